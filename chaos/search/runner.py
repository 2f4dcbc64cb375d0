"""Runs plans, each in a process of its own, several at a time, and judges them there.

The process of a simulation is a fork of one that has imported everything and runs nothing. So no
module state passes from one seed to the next, and a run that hangs or exhausts memory can be ended.
The result is an `Outcome`; the run's directory is kept on request.
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
from rocketbed.host.child import Child, NothingSent, readable, signals_blocked
from rocketbed.host.scratch import Scratch

if TYPE_CHECKING:
    from rocketbed.chaos.backends.process.run import ProcessHost

END_S: Final = 20.0
"""Time that an interrupted run may take to clean up before it is killed."""
TIMEOUT_S: Final = 900.0
"""Real seconds that one run may take."""

Say = Callable[[str], None]
BackendName = Literal["sim", "process", "docker"]
"""Kinds of cluster."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    plan: Plan
    backend: BackendName
    judgement: Judgement | None = None
    """None if the run itself failed (`error`)."""
    instead_result: str | None = None
    """Result of `Options.instead` if that ran in place of the plan; a digest."""
    record: RunRecord | None = None
    directory: Path | None = None
    """Directory of the run's files, if they were kept."""
    error: str = ""
    """Reason why there is no judgement: a traceback of the harness, a time-out, a signal."""
    timed_out: bool = False
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    run_cpu_s: float = 0.0
    """CPU time of the run itself, before it was judged."""
    wall_s: float = 0.0
    memory_mib: float = 0.0
    """Highest resident memory of the run's process."""

    @property
    def verdict(self) -> str:
        """Verdict such as `pass` or `anomaly` (chaos.md 2.10)."""
        if self.instead_result is not None:
            return "pass"
        return "harness-error" if self.judgement is None else str(self.judgement.verdict)

    @property
    def exit_code(self) -> int:
        return 4 if self.judgement is None else self.judgement.exit_code

    @property
    def facts(self) -> dict[str, Any]:
        """Facts of the record; empty without one."""
        return {} if self.record is None else self.record.facts

    @property
    def digest(self) -> str:
        return self.instead_result or ("" if self.record is None else self.record.digest)

    @property
    def finding_ids(self) -> list[str]:
        return [] if self.judgement is None else self.judgement.finding_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    backend: BackendName = "sim"
    net: Literal["auto", "plain", "proxy", "switch"] = "auto"
    """Kind of network between the machines of a process cluster."""
    target: str = ""
    """Foreign software on the machines of a real cluster (`chaos.backends.foreign.target`)."""
    mode: Literal["classic", "controller"] = "classic"
    """Mechanism that assigns roles in the software under test."""
    timeout_s: float = TIMEOUT_S
    say: Say | None = None
    """Called with each line of progress."""
    before: Callable[[], None] | None = None
    """Called in each run's process before it begins; for planted bugs."""
    instead: Callable[[], str] | None = None
    """Called in place of the plan; raises if something is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A run to be made."""

    plan: Plan
    options: Options
    directory: Path | None = None
    """Directory that keeps its files; None to remove them."""


Request = TypeVar("Request", bound=RunRequest)


def run_here(plan: Plan, directory: Path, options: Options) -> Outcome:
    """Run and judge a plan in this very process. The directory exists and is empty."""
    outcome = Outcome(plan=plan, backend=options.backend, directory=directory)
    start, start_cpu = time.monotonic(), time.process_time()
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
    outcome.run_cpu_s = time.process_time() - start_cpu
    outcome.record = record
    outcome.judgement = judge_run(directory)
    outcome.cpu_s = time.process_time() - start_cpu
    outcome.wall_s = time.monotonic() - start
    outcome.judgement.save(directory)
    return outcome


@contextmanager
def host_of(options: Options) -> "Iterator[ProcessHost | None]":
    """Provide the host of the cluster's programs; None for processes of this system. Blocks.

    Software is fetched, pulled or built if necessary. Raises `InstallationError`, `HostError`,
    `ScenarioError` for an unknown target.
    """
    if options.backend == "docker":
        from rocketbed.chaos.backends.docker.backend import DockerHost
        from rocketbed.chaos.backends.foreign.contained import ForeignDockerHost, ready_target
        from rocketbed.host.docker.client import Daemon
        from rocketbed.host.docker.image import ready_image

        say = options.say or (lambda line: None)
        with Daemon.connect() as daemon:
            if options.target:
                target = ready_target(daemon, options.target, say)
                yield ForeignDockerHost(daemon, target, options.mode)
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
    """Run plans side by side; yields outcomes as they complete, in no particular order.

    `keep` returns the directory for a run's files (None to remove them). Closing the generator ends
    running runs. Raises `OSError` if a run's directory cannot be created, `HostError` if containers
    cannot.
    """
    options = options or Options()
    if options.backend == "docker":
        with host_of(options):  # prepares the image, which may take longer than a run
            pass
    requests = (RunRequest(plan=plan, options=options, directory=keep(plan)) for plan in plans)
    with closing(run_requests(requests, jobs=jobs)) as results:
        for _, outcome in results:
            yield outcome


def run_requests(
    requests: Iterable[Request], *, jobs: int = 2
) -> Generator[tuple[Request, Outcome], None, None]:
    """Run requests that have options of their own, like `run_many`.

    The next request is taken whenever there is room; an iterator that was exhausted may continue
    after an outcome was yielded.
    """
    with signals_blocked():  # finalizers of what is collected here would swallow an interrupt
        import rocketbed.chaos.backends.sim.run  # noqa: F401 (what the children need; they share its memory)

        gc.collect()
        gc.freeze()
    waiting = iter(requests)
    runs: dict[int, _Run[Request]] = {}
    try:
        while True:
            while len(runs) < jobs and (errand := next(waiting, None)) is not None:
                with signals_blocked() as mask:
                    run = _Run(errand, mask)
                    runs[run.child.pipe] = run
            if not runs:
                return
            wait_s = min(run.deadline for run in runs.values()) - time.monotonic()
            for pipe in readable(runs, wait_s):
                if runs[pipe].child.read():
                    with signals_blocked():
                        ended = runs.pop(pipe)
                        outcome = ended.outcome()
                    yield ended.request, outcome
            now = time.monotonic()
            for pipe, run in list(runs.items()):
                if run.deadline <= now:
                    with signals_blocked():
                        outcome = runs.pop(pipe).time_out()
                    yield run.request, outcome
    finally:
        with signals_blocked():
            _end_all(runs.values())


class _Run(Generic[Request]):
    """A forked run. Started, queried and ended while signals are held."""

    def __init__(self, errand: Request, mask: set[signal.Signals]) -> None:
        plan, options, directory_to_keep = errand.plan, errand.options, errand.directory
        self.deadline = time.monotonic() + options.timeout_s
        self.request = errand
        self.files = ExitStack()
        """Closing it removes files that nobody keeps."""
        directory = directory_to_keep or self.files.enter_context(Scratch()).path
        directory.mkdir(parents=True, exist_ok=True)
        self.child = Child(lambda _send: _run_whole(plan, options, directory), mask)

    def outcome(self) -> Outcome:
        """Return what the child sent before it ended."""
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
        limit_s = self.request.options.timeout_s
        outcome = self._failed(f"the run took longer than {limit_s:g} s and was stopped")
        outcome.timed_out = True
        return outcome

    def _failed(self, error: str) -> Outcome:
        backend, plan = self.request.options.backend, self.request.plan
        return Outcome(plan=plan, backend=backend, error=error, directory=self._place())

    def _place(self) -> Path | None:
        directory = self.request.directory
        return directory if directory is not None and directory.exists() else None


def _end_all(runs: Iterable[_Run[Any]]) -> None:
    """End runs whose results are no longer needed, all at the same time."""
    ending = list(runs)
    for run in ending:  # a simulation has started nothing that it would have to end
        run.child.kill(signal.SIGKILL if run.request.options.backend == "sim" else signal.SIGINT)
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
            start = time.process_time()
            outcome.instead_result = options.instead()
            outcome.cpu_s = time.process_time() - start
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        outcome.error = explain(error)
        if is_full(error):
            shutil.rmtree(directory, ignore_errors=True)
    outcome.memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return outcome
