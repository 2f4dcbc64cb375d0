"""Runs plans: each in a process of its own, several at a time, judged where it ran.

A simulation's process is a fork of one that has imported everything and runs nothing, so that no
state of a module passes from one seed to the next and a run that hangs or eats memory can be ended.
What comes back is an `Outcome`; the run's directory is kept if it is wanted.
"""

import gc
import resource
import shutil
import signal
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from rocketbed.chaos.checkers.judgement import Judgement, judge_run
from rocketbed.chaos.host.child import Child, NothingSent, held, readable
from rocketbed.chaos.host.scratch import Scratch
from rocketbed.chaos.hunt.failures import explain, is_full
from rocketbed.chaos.record import RunRecord
from rocketbed.chaos.scenario.plan import Plan

if TYPE_CHECKING:
    from rocketbed.chaos.process.run import ProcessHost

END_S: Final = 20.0
"""What an interrupted run may take to clean up before it is killed."""
TIMEOUT_S: Final = 900.0
"""Real seconds that one run may take."""

Say = Callable[[str], None]
BackendName = Literal["sim", "process", "docker"]
"""Where clusters run."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    plan: Plan
    backend: BackendName
    judgement: Judgement | None = None
    """None: the run itself failed (`error`)."""
    record: RunRecord | None = None
    directory: Path | None = None
    """Where the run's files are, if they were kept."""
    error: str = ""
    """Why there is no judgement: a traceback of the harness, a time-out, a signal."""
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    memory_mib: float = 0.0
    """Highest resident memory of the run's process."""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """`pass`, `anomaly`, ... (chaos.md 2.10)."""
        return "harness-error" if self.judgement is None else str(self.judgement.verdict)

    @property
    def exit_code(self) -> int:
        return 4 if self.judgement is None else self.judgement.exit_code

    @property
    def digest(self) -> str:
        return "" if self.record is None else self.record.digest

    @property
    def finding_ids(self) -> list[str]:
        return [] if self.judgement is None else self.judgement.finding_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    backend: BackendName = "sim"
    net: Literal["auto", "plain", "proxy", "switch"] = "auto"
    """What lies between the machines of a process cluster."""
    target: str = ""
    """Somebody else's software on the machines of a real cluster (`chaos.foreign.target`)."""
    mode: Literal["classic", "controller"] = "classic"
    """Who assigns roles in the software under test."""
    timeout_s: float = TIMEOUT_S
    say: Say | None = None
    """Told of what happens, line by line."""
    before: Callable[[], None] | None = None
    """Called in each run's process before it begins; for planted bugs."""


def run_here(plan: Plan, directory: Path, options: Options) -> Outcome:
    """Run and judge a plan in this very process. The directory exists and is empty."""
    outcome = Outcome(plan=plan, backend=options.backend, directory=directory)
    began, began_cpu = time.monotonic(), time.process_time()
    say = options.say or (lambda line: None)
    if options.backend == "sim":
        from rocketbed.chaos.sim.run import run_in_simulation

        record, simulation = run_in_simulation(plan, directory, say=say)
        outcome.simulated_s = simulation.timeline.now / 1e9
    else:
        from rocketbed.chaos.process.run import run_in_processes

        with host_of(options) as host:
            record = run_in_processes(plan, directory, net=options.net, say=say, host=host)
        if options.target:
            record.facts |= {"target": options.target, "mode": options.mode}
            record.save(directory)
    outcome.facts["run_cpu_s"] = time.process_time() - began_cpu
    outcome.record = record
    outcome.judgement = judge_run(directory)
    outcome.cpu_s = time.process_time() - began_cpu
    outcome.wall_s = time.monotonic() - began
    outcome.judgement.save(directory)
    return outcome


@contextmanager
def host_of(options: Options) -> "Iterator[ProcessHost | None]":
    """Where the cluster's programs run; None: as processes of this system."""
    if options.backend == "docker" and options.target:
        from rocketbed.chaos.foreign.contained import foreign_docker_host

        with foreign_docker_host(options.target, options.mode) as foreign:
            yield foreign
    elif options.backend == "docker":
        from rocketbed.chaos.docker.backend import DockerHost

        with DockerHost.open() as host:
            yield host
    elif options.target:
        from rocketbed.chaos.foreign.target import foreign_host

        yield foreign_host(options.target, options.mode)
    else:
        yield None


def run_plan(
    plan: Plan, options: Options | None = None, *, directory: Path | None = None
) -> Outcome:
    """Run and judge a plan in a process of its own; without `directory` its files are removed."""
    with closing(run_many([plan], options, jobs=1, keep=lambda _: directory)) as outcomes:
        return next(outcomes)


def run_many(
    plans: Iterable[Plan],
    options: Options | None = None,
    *,
    jobs: int = 2,
    keep: Callable[[Plan], Path | None] = lambda plan: None,
) -> Generator[Outcome, None, None]:
    """Run plans side by side; outcomes as they come, in no particular order.

    `keep` says where a run's files go (None: nowhere). Closing the generator ends what still runs.
    Raises `OSError` when a place for a run cannot be made, `BackendError` when containers cannot.
    """
    options = options or Options()
    if options.backend == "docker":
        _prepare_image(options)
    with held():  # finalizers of what is collected here would swallow an interrupt
        import rocketbed.chaos.sim.run  # noqa: F401 (what the children need; they share its memory)

        gc.collect()
        gc.freeze()
    waiting = iter(plans)
    runs: dict[int, _Run] = {}
    try:
        while True:
            while len(runs) < jobs and (plan := next(waiting, None)) is not None:
                kept = keep(plan)
                with held() as mask:
                    run = _Run(plan, options, kept, mask)
                    runs[run.child.pipe] = run
            if not runs:
                return
            due = min(run.deadline for run in runs.values()) - time.monotonic()
            for pipe in readable(runs, due):
                if runs[pipe].child.read():
                    with held():
                        outcome = runs.pop(pipe).outcome()
                    yield outcome
            now = time.monotonic()
            for pipe, run in list(runs.items()):
                if run.deadline <= now:
                    with held():
                        outcome = runs.pop(pipe).time_out()
                    yield outcome
    finally:
        with held():
            _end_all(runs.values())


class _Run:
    """One forked run. Made, asked and ended while signals are held."""

    def __init__(
        self, plan: Plan, options: Options, kept: Path | None, mask: set[signal.Signals]
    ) -> None:
        self.deadline = time.monotonic() + options.timeout_s
        self._plan = plan
        self._options = options
        self._kept = kept
        self._scratch = None if kept is not None else Scratch()
        if kept is not None:
            kept.mkdir(parents=True, exist_ok=True)
        directory = self._scratch.path if kept is None and self._scratch is not None else kept
        assert directory is not None
        self.child = Child(lambda _send: _run_whole(plan, options, directory), mask)

    def outcome(self) -> Outcome:
        """What the child sent before it ended."""
        try:
            outcome = self.child.value()
        except NothingSent as nothing:
            outcome = self._failed(f"the run's process exited with code {nothing.code}")
        self._clear()
        outcome.directory = self._place()
        return outcome

    def time_out(self) -> Outcome:
        _end_all([self])
        limit_s = self._options.timeout_s
        return self._failed(f"the run took longer than {limit_s:g} s and was stopped")

    def interrupt(self) -> None:
        """Ask it to end what it started; a simulation has nothing of that."""
        in_simulation = self._options.backend == "sim"
        self.child.kill(signal.SIGKILL if in_simulation else signal.SIGINT)

    def reap(self, until: float) -> None:
        """Wait for it; SIGKILL when it takes too long."""
        self.child.reap(until)
        self._clear()

    def _failed(self, error: str) -> Outcome:
        backend = self._options.backend
        return Outcome(plan=self._plan, backend=backend, error=error, directory=self._place())

    def _place(self) -> Path | None:
        return self._kept if self._kept is not None and self._kept.exists() else None

    def _clear(self) -> None:
        if self._scratch is not None:
            self._scratch.close()


def _end_all(runs: Iterable[_Run]) -> None:
    """End runs that nobody waits for any more, all at the same time."""
    ending = list(runs)
    for run in ending:
        run.interrupt()
    until = time.monotonic() + END_S
    for run in ending:
        run.reap(until)


def _run_whole(plan: Plan, options: Options, directory: Path) -> Outcome:
    outcome = Outcome(plan=plan, backend=options.backend)
    try:
        if options.backend == "sim":
            gc.disable()
        if options.before is not None:
            options.before()
        outcome = run_here(plan, directory, options)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        outcome.error = explain(error)
        if is_full(error):
            shutil.rmtree(directory, ignore_errors=True)
    outcome.memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return outcome


def _prepare_image(options: Options) -> None:
    """Have the image of containers, which may take longer than a run. Raises `BackendError`."""
    from rocketbed.chaos.docker.client import Daemon
    from rocketbed.chaos.docker.image import ready_image
    from rocketbed.chaos.foreign.contained import ready_target

    say = options.say or (lambda line: None)
    with Daemon.connect() as daemon:
        if options.target:
            ready_target(daemon, options.target, say)
        else:
            ready_image(daemon, say)
