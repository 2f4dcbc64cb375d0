"""Run of a test in this very process, from set-up to outcome.

A signal that ends the process first ends what was started.
"""

import os
import threading
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Final

import trio

from rocketbed.chaos.checks.judgement import RunVerdict, judge_run
from rocketbed.chaos.evidence.record import RunRecord
from rocketbed.chaos.pytest_plugin.errors import ChecksFailed
from rocketbed.chaos.pytest_plugin.spec import RunResult, RunSpec, Script
from rocketbed.chaos.pytest_plugin.stage import Stage
from rocketbed.chaos.report.page import write_report
from rocketbed.chaos.report.text import summary_text
from rocketbed.chaos.search.replay import read_backend
from rocketbed.chaos.search.runner import Options, host_of
from rocketbed.host.errors import HostError

NOTHING_SENT: Final = (
    "No send was recorded, so nothing can be said of what was acknowledged: send by"
    " cluster.producer() or cluster.real_producer(), or name the checks that are wanted, such as"
    ' chaos.check("log-files-tile", "queue-entries-complete").'
)


def perform(
    spec: RunSpec, script: Script, directory: Path, *, home: str = ""
) -> tuple[RunResult, BaseException | None]:
    """Run a script. Return its outcome, and the error of the body or of the checks.

    `home` is the file of the test, for the place of its failure. The directory is empty.
    """
    began = time.monotonic()
    record, simulated_s, digest = play(spec, script, directory)
    result = RunResult(
        steps=[(number, step.action()) for number, step in script.steps.items()],
        fault_phases=script.fault_phases,
        done=script.done,
        digest=digest,
        simulated_s=simulated_s,
        directory=directory,
    )
    if script.skipped:
        result.kind, result.reason = "skipped", script.skipped
        return result, None
    error = script.failure
    if error is None and script.wants_judgement:
        error = _judge(script, record, directory, result)
    if error is not None:
        result.kind = "failed"
        result.signature = signature(error, home)
    result.wall_s = time.monotonic() - began
    return result, error


def signature(error: BaseException, home: str) -> str:
    """Return a text that is equal for equal failures: the gravest finding, or kind and line of an
    error."""
    if isinstance(error, ChecksFailed):
        return f"checks:{''.join(error.finding_ids[:1])}"
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if os.path.realpath(frame.filename) == os.path.realpath(home)
    ]
    return f"{type(error).__name__}:{lines[-1] if lines else 0}"


def _judge(
    script: Script, record: RunRecord, directory: Path, result: RunResult
) -> ChecksFailed | None:
    judgement = judge_run(directory, only=script.checks or None)
    judgement.save(directory)
    result.finding_ids = tuple(dict.fromkeys(result.id for result in judgement.by_weight))
    if judgement.verdict is RunVerdict.PASS:
        return None
    write_report(directory, judgement, record, repeat_command="pytest --rb-replay FILE")
    request = f"chaos.check() of {script.asked_at}" if script.asked_at else "chaos.check()"
    hint = ""
    if judgement.verdict is RunVerdict.UNKNOWN and not script.checks and not script.has_sent:
        hint = f"\n{NOTHING_SENT}"
    text = summary_text(judgement, record, explain=True)
    return ChecksFailed(f"{request}: {text}{hint}", result.finding_ids)


def play(spec: RunSpec, script: Script, directory: Path) -> tuple[RunRecord, float, str]:
    """Create a cluster and play a script on it to its end.

    Returns the record, and of a simulation its seconds and its digest. Raises `SimulationError`,
    `HostError`, `DockerError`.
    """
    conductor = partial(Stage, script=script)
    if spec.backend == "sim":
        from rocketbed.chaos.backends.sim.run import run_in_simulation

        record, simulation = run_in_simulation(spec.plan, directory, conductor=conductor)
        return record, simulation.timeline.now / 1e9, simulation.digest()
    from rocketbed.chaos.backends.process.run import run, run_in_processes

    net = spec.wishes.net_of(spec.backend, is_open=script.is_open)
    with host_of(Options(backend=read_backend(spec.backend))) as host:
        if threading.current_thread() is threading.main_thread():
            record = run_in_processes(spec.plan, directory, net=net, host=host, conductor=conductor)
        else:
            part = partial(run, host=host, conductor=conductor)
            record = trio.run(part, spec.plan, directory, net, lambda line: None)
    return record, 0.0, ""


def missing_for(backend: str) -> str | None:
    """Return why this system has no clusters of this backend; None if it has."""
    try:
        with host_of(Options(backend=read_backend(backend))):
            return None
    except HostError as error:
        return str(error)
