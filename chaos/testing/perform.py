"""One run of one test in this very process, from set-up to outcome.

One function for each backend makes a cluster there and plays the script to its end. A signal that
ends the process ends what was started first.
"""

import json
import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from rocketbed.chaos.checkers.judgement import Judgement, RunVerdict, judge_run
from rocketbed.chaos.hunt.runner import VERDICT_FILE
from rocketbed.chaos.record import RunRecord
from rocketbed.chaos.report.page import write_report
from rocketbed.chaos.report.text import summary_text
from rocketbed.chaos.scenario.plan import Plan
from rocketbed.chaos.testing.errors import ChecksFailed
from rocketbed.chaos.testing.spec import RunResult, RunSpec, Script
from rocketbed.chaos.testing.stage import Stage
from rocketbed.chaos.testing.wishes import Wishes

if TYPE_CHECKING:
    from rocketbed.chaos.process.network.choice import Net
    from rocketbed.chaos.process.run import ProcessHost


def perform(
    spec: RunSpec, script: Script, directory: Path, *, home: str = ""
) -> tuple[RunResult, BaseException | None]:
    """Run a script; its outcome, and the error of the body or of the checks.

    `home` is the file of the test, for the place of its failure. The directory is empty.
    """
    began = time.monotonic()
    played = PLACES[spec.backend](spec.plan, directory, spec.wishes, script)
    result = RunResult(
        steps=[(number, step.action()) for number, step in script.steps.items()],
        storms=script.storms,
        done=script.done,
        digest=played.digest,
        simulated_s=played.simulated_s,
        body_s=script.body_s,
        directory=directory,
    )
    if script.skipped:
        result.kind, result.reason = "skipped", script.skipped
        return result, None
    error = script.failure
    if error is None and script.wants_judgement:
        error = _judge(script, played.record, directory, result)
    if error is not None:
        result.kind = "failed"
        result.signature = signature(error, home)
    result.wall_s = time.monotonic() - began
    return result, error


def signature(error: BaseException, home: str) -> str:
    """What makes two failures the same: the gravest finding, or kind and line of an error."""
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
    text = json.dumps(judgement.as_row(), indent=1)
    (directory / VERDICT_FILE).write_text(text + "\n", encoding="utf-8")
    result.finding_ids = tuple(dict.fromkeys(one.id for one in judgement.by_weight))
    if judgement.verdict is RunVerdict.PASS:
        return None
    write_report(directory, judgement, record, again="pytest --rb-replay FILE")
    return ChecksFailed(_verdict_text(judgement, record, script), result.finding_ids)


def _verdict_text(judgement: Judgement, record: RunRecord, script: Script) -> str:
    asked = f"chaos.check() of {script.asked_at}" if script.asked_at else "chaos.check()"
    return f"{asked}: {summary_text(judgement, record)}"


# --- the places


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A script that was played to its end."""

    record: RunRecord
    simulated_s: float = 0.0
    """0 where time is real."""
    digest: str = ""
    """The simulation's digest."""


Place = Callable[[Plan, Path, Wishes, Script], Played]
"""Gets the plan, an empty directory, the wishes and the script."""


def in_simulation(plan: Plan, directory: Path, wishes: Wishes, script: Script) -> Played:
    """The body is one more machine of a simulation. Raises `SimulationError`."""
    from rocketbed.chaos.sim.run import run_in_simulation

    record, simulation = run_in_simulation(plan, directory, conductor=partial(Stage, script=script))
    return Played(
        record=record,
        simulated_s=simulation.timeline.now / 1e9,
        digest=simulation.digest(),
    )


def in_processes(plan: Plan, directory: Path, wishes: Wishes, script: Script) -> Played:
    """Real processes on loopback. Raises `BackendError`."""
    net = wishes.net_of("process", is_open=script.is_open)
    return _on_host(plan, directory, net, script, None)


def in_containers(plan: Plan, directory: Path, wishes: Wishes, script: Script) -> Played:
    """Containers of this machine's daemon. Raises `DockerError`."""
    from rocketbed.chaos.docker.backend import DockerHost

    net = wishes.net_of("docker", is_open=script.is_open)
    with DockerHost.open() as host:
        return _on_host(plan, directory, net, script, host)


def missing_for(backend: str) -> str | None:
    """Why a backend cannot be used here at all; what takes long is prepared meanwhile."""
    if backend != "docker":
        return None
    from rocketbed.chaos.docker.backend import DockerHost
    from rocketbed.chaos.docker.client import DockerError

    try:
        with DockerHost.open():
            return None
    except DockerError as error:
        return str(error)


PLACES: Final[Mapping[str, Place]] = {
    "sim": in_simulation,
    "process": in_processes,
    "docker": in_containers,
}
"""Backend -> what makes its cluster."""


def _on_host(
    plan: Plan, directory: Path, net: "Net", script: Script, host: "ProcessHost | None"
) -> Played:
    from rocketbed.chaos.process.run import run, run_in_processes

    conductor = partial(Stage, script=script)
    if threading.current_thread() is threading.main_thread():
        record = run_in_processes(plan, directory, net=net, host=host, conductor=conductor)
    else:
        part = partial(run, plan, directory, net, _say_nothing, host=host, conductor=conductor)
        record = trio.run(part)
    return Played(record=record)


def _say_nothing(_line: str) -> None:
    return None
