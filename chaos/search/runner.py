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
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

from rocketbed.chaos.checks.judgement import Judgement, judge_run
from rocketbed.chaos.evidence.record import RunRecord
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.search.failures import explain, is_full
from rocketbed.host.child import Child, NothingSent, held, readable
from rocketbed.host.scratch import Scratch

if TYPE_CHECKING:
    from rocketbed.chaos.backends.process.run import ProcessHost

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
    told: str | None = None
    """What was returned where something else was done (`Options.instead`); it is a digest."""
    record: RunRecord | None = None
    directory: Path | None = None
    """Where the run's files are, if they were kept."""
    error: str = ""
    """Why there is no judgement: a traceback of the harness, a time-out, a signal."""
    timed_out: bool = False
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    run_cpu_s: float = 0.0
    """That of the run itself, before it was judged."""
    wall_s: float = 0.0
    memory_mib: float = 0.0
    """Highest resident memory of the run's process."""

    @property
    def verdict(self) -> str:
        """`pass`, `anomaly`, ... (chaos.md 2.10)."""
        if self.told is not None:
            return "pass"
        return "harness-error" if self.judgement is None else str(self.judgement.verdict)

    @property
    def exit_code(self) -> int:
        return 4 if self.judgement is None else self.judgement.exit_code

    @property
    def facts(self) -> dict[str, Any]:
        """The record's; empty where there is none."""
        return {} if self.record is None else self.record.facts

    @property
    def digest(self) -> str:
        return self.told or ("" if self.record is None else self.record.digest)

    @property
    def finding_ids(self) -> list[str]:
        return [] if self.judgement is None else self.judgement.finding_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    backend: BackendName = "sim"
    net: Literal["auto", "plain", "proxy", "switch"] = "auto"
    """What lies between the machines of a process cluster."""
    target: str = ""
    """Foreign software on the machines of a real cluster (`chaos.backends.foreign.target`)."""
    mode: Literal["classic", "controller"] = "classic"
    """Who assigns roles in the software under test."""
    timeout_s: float = TIMEOUT_S
    say: Say | None = None
    """Told of what happens, line by line."""
    before: Callable[[], None] | None = None
    """Called in each run's process before it begins; for planted bugs."""
    instead: Callable[[], str] | None = None
    """Called in place of the plan; raises if something is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """One run that is asked for."""

    plan: Plan
    options: Options
    directory: Path | None = None
    """Where its files are kept; None: nowhere."""


Asked = TypeVar("Asked", bound=Errand)


def run_here(plan: Plan, directory: Path, options: Options) -> Outcome:
    """Run and judge a plan in this very process. The directory exists and is empty."""
    outcome = Outcome(plan=plan, backend=options.backend, directory=directory)
    began, began_cpu = time.monotonic(), time.process_time()
    say = options.say or (lambda line: None)
    if options.backend == "sim":
        from rocketbed.chaos.backends.sim.run import run_in_simulation

        record, simulation = run_in_simulation(plan, directory, say=say)
        outcome.simulated_s = simulation.timeline.now / 1e9
    else:
        from rocketbed.chaos.backends.process.run import run_in_processes

        with host_of(options) as host:
            record = run_in_processes(plan, directory, net=options.net, say=say, host=host)
        if options.target:
            record.facts |= {"target": options.target, "mode": options.mode}
            record.save(directory)
    outcome.run_cpu_s = time.process_time() - began_cpu
    outcome.record = record
    outcome.judgement = judge_run(directory)
    outcome.cpu_s = time.process_time() - began_cpu
    outcome.wall_s = time.monotonic() - began
    outcome.judgement.save(directory)
    return outcome


@contextmanager
def host_of(options: Options) -> "Iterator[ProcessHost | None]":
    """Where the cluster's programs run; None: as processes of this system. Blocks.

    What is to run there is fetched, pulled or built, if it has to be. Raises `InstallationError`,
    `HostError`, `ScenarioError` for a target that names nothing.
    """
    if options.backend == "docker":
        from rocketbed.chaos.backends.docker.backend import DockerHost
        from rocketbed.chaos.backends.foreign.contained import ForeignDockerHost, ready_target
        from rocketbed.host.docker.client import Daemon
        from rocketbed.host.docker.image import ready_image

        say = options.say or (lambda line: None)
        with Daemon.connect() as daemon:
            if options.target:
                found = ready_target(daemon, options.target, say)
                yield ForeignDockerHost(daemon, found, options.mode)
            else:
                yield DockerHost(daemon, ready_image(daemon, say))
    elif options.target:
        from rocketbed.chaos.backends.foreign.target import foreign_host

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
    Raises `OSError` when a place for a run cannot be made, `HostError` when containers cannot.
    """
    options = options or Options()
    if options.backend == "docker":
        with host_of(options):  # has the image, which may take longer than a run
            pass
    asked = (Errand(plan=plan, options=options, directory=keep(plan)) for plan in plans)
    with closing(run_errands(asked, jobs=jobs)) as done:
        for _, outcome in done:
            yield outcome


def run_errands(
    errands: Iterable[Asked], *, jobs: int = 2
) -> Generator[tuple[Asked, Outcome], None, None]:
    """The same for runs that have options of their own. The next one is asked for whenever there
    is room; an iterator that had none may have one again once an outcome was given."""
    with held():  # finalizers of what is collected here would swallow an interrupt
        import rocketbed.chaos.backends.sim.run  # noqa: F401 (what the children need; they share its memory)

        gc.collect()
        gc.freeze()
    waiting = iter(errands)
    runs: dict[int, _Run[Asked]] = {}
    try:
        while True:
            while len(runs) < jobs and (errand := next(waiting, None)) is not None:
                with held() as mask:
                    run = _Run(errand, mask)
                    runs[run.child.pipe] = run
            if not runs:
                return
            due = min(run.deadline for run in runs.values()) - time.monotonic()
            for pipe in readable(runs, due):
                if runs[pipe].child.read():
                    with held():
                        ended = runs.pop(pipe)
                        outcome = ended.outcome()
                    yield ended.errand, outcome
            now = time.monotonic()
            for pipe, run in list(runs.items()):
                if run.deadline <= now:
                    with held():
                        outcome = runs.pop(pipe).time_out()
                    yield run.errand, outcome
    finally:
        with held():
            _end_all(runs.values())


class _Run(Generic[Asked]):
    """One forked run. Made, asked and ended while signals are held."""

    def __init__(self, errand: Asked, mask: set[signal.Signals]) -> None:
        plan, options, kept = errand.plan, errand.options, errand.directory
        self.deadline = time.monotonic() + options.timeout_s
        self.errand = errand
        self.files = ExitStack()
        """Closing it takes away what nobody keeps."""
        directory = kept or self.files.enter_context(Scratch()).path
        directory.mkdir(parents=True, exist_ok=True)
        self.child = Child(lambda _send: _run_whole(plan, options, directory), mask)

    def outcome(self) -> Outcome:
        """What the child sent before it ended."""
        try:
            outcome = self.child.value()
        except NothingSent as nothing:
            outcome = self._failed(f"the run's process exited with code {nothing.code}")
            outcome.timed_out = nothing.code == -signal.SIGXCPU
        self.files.close()
        outcome.directory = self._place()
        return outcome

    def time_out(self) -> Outcome:
        _end_all([self])
        limit_s = self.errand.options.timeout_s
        outcome = self._failed(f"the run took longer than {limit_s:g} s and was stopped")
        outcome.timed_out = True
        return outcome

    def _failed(self, error: str) -> Outcome:
        backend, plan = self.errand.options.backend, self.errand.plan
        return Outcome(plan=plan, backend=backend, error=error, directory=self._place())

    def _place(self) -> Path | None:
        kept = self.errand.directory
        return kept if kept is not None and kept.exists() else None


def _end_all(runs: Iterable[_Run[Any]]) -> None:
    """End runs that nobody waits for any more, all at the same time."""
    ending = list(runs)
    for run in ending:  # a simulation has started nothing that it would have to end
        run.child.kill(signal.SIGKILL if run.errand.options.backend == "sim" else signal.SIGINT)
    until = time.monotonic() + END_S
    for run in ending:
        run.child.reap(until)
        run.files.close()


def _run_whole(plan: Plan, options: Options, directory: Path) -> Outcome:
    outcome = Outcome(plan=plan, backend=options.backend)
    try:
        if options.backend == "sim":
            gc.disable()
        if options.before is not None:
            options.before()
        if options.instead is None:
            outcome = run_here(plan, directory, options)
        else:
            began = time.process_time()
            outcome.told = options.instead()
            outcome.cpu_s = time.process_time() - began
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        outcome.error = explain(error)
        if is_full(error):
            shutil.rmtree(directory, ignore_errors=True)
    outcome.memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return outcome
