"""Runs plans: each in a process of its own, several at a time, judged where it ran.

A simulation's process is a fork of one that has imported everything and runs nothing, so that no
state of a module passes from one seed to the next and a run that hangs or eats memory can be ended.
What comes back is an `Outcome`; the run's directory is kept if it is wanted.
"""

import gc
import json
import os
import pickle
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from chaos.checkers.judgement import Judgement, judge_run
from chaos.record import RunRecord
from chaos.scenario.plan import Plan

VERDICT_FILE: Final = "verdict.json"
TIMEOUT_S: Final = 900.0
"""Real seconds that one run may take."""

Say = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class Outcome:
    """How one run ended."""

    plan: Plan
    backend: str
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
        """Of the command (chaos.md 4.9)."""
        return 4 if self.judgement is None else self.judgement.exit_code

    @property
    def digest(self) -> str:
        """Of the simulation."""
        return "" if self.record is None else self.record.digest

    @property
    def finding_ids(self) -> list[str]:
        """Ids of the checks that found something, sorted."""
        if self.judgement is None:
            return []
        return sorted({result.id for result in self.judgement.findings})


def run_here(
    plan: Plan, directory: Path, *, backend: str = "sim", say: Say | None = None
) -> Outcome:
    """Run and judge a plan in this very process. The directory exists and is empty."""
    outcome = Outcome(plan=plan, backend=backend, directory=directory)
    began, began_cpu = time.monotonic(), time.process_time()
    tell = say or _say_nothing
    if backend == "sim":
        from chaos.sim.run import run_in_simulation

        record, simulation = run_in_simulation(plan, directory, say=tell)
        outcome.simulated_s = simulation.timeline.now / 1e9
    else:
        from chaos.process.run import run_in_processes

        record = run_in_processes(plan, directory, say=tell)
    outcome.facts["run_cpu_s"] = time.process_time() - began_cpu
    outcome.record = record
    outcome.judgement = judge_run(directory)
    outcome.cpu_s = time.process_time() - began_cpu
    outcome.wall_s = time.monotonic() - began
    text = json.dumps(outcome.judgement.as_row(), indent=1)
    (directory / VERDICT_FILE).write_text(text + "\n", encoding="utf-8")
    return outcome


def run_plan(
    plan: Plan,
    *,
    backend: str = "sim",
    directory: Path | None = None,
    say: Say | None = None,
    before: Callable[[], None] | None = None,
) -> Outcome:
    """Run and judge a plan in a process of its own; without `directory` its files are removed."""
    return next(
        run_many([plan], backend=backend, jobs=1, keep=lambda _: directory, say=say, before=before)
    )


def run_many(
    plans: Iterable[Plan],
    *,
    backend: str = "sim",
    jobs: int = 2,
    keep: Callable[[Plan], Path | None] = lambda plan: None,
    timeout_s: float = TIMEOUT_S,
    say: Say | None = None,
    before: Callable[[], None] | None = None,
) -> Iterator[Outcome]:
    """Run plans side by side; outcomes as they come, in no particular order.

    `keep` says where a run's files go (None: nowhere); `before` is called in each new process, for
    planted bugs. Closing the iterator kills what still runs.
    """
    _prepare_to_fork()
    waiting = iter(plans)
    children: dict[int, _Child] = {}
    try:
        while True:
            while len(children) < jobs and (plan := next(waiting, None)) is not None:
                child = _Child(plan, backend, keep(plan), timeout_s, say, before)
                children[child.pipe] = child
            if not children:
                return
            due = min(child.deadline for child in children.values()) - time.monotonic()
            ready, _, _ = select.select(list(children), [], [], max(due, 0.0))
            for pipe in ready:
                if children[pipe].read():
                    yield children.pop(pipe).outcome()
            now = time.monotonic()
            for pipe, child in list(children.items()):
                if child.deadline <= now:
                    yield children.pop(pipe).time_out()
    finally:
        for child in children.values():
            child.end()


class _Child:
    """One forked run."""

    def __init__(
        self,
        plan: Plan,
        backend: str,
        kept: Path | None,
        timeout_s: float,
        say: Say | None,
        before: Callable[[], None] | None,
    ) -> None:
        self.plan = plan
        self.deadline = time.monotonic() + timeout_s
        self._backend = backend
        self._kept = kept
        self._timeout_s = timeout_s
        self._data = bytearray()
        self.directory = kept or Path(tempfile.mkdtemp(prefix="rocketbed-run-", dir=scratch()))
        if kept is not None:
            kept.mkdir(parents=True, exist_ok=True)
        self.pipe, theirs = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.pipe)
            _child_main(theirs, plan, backend, self.directory, say, before)
        os.close(theirs)

    def read(self) -> bool:
        """Take what came; whether that was all."""
        data = os.read(self.pipe, 1 << 20)
        self._data += data
        return not data

    def outcome(self) -> Outcome:
        """What the child sent before it ended."""
        _, status = os.waitpid(self.pid, 0)
        self._close()
        try:
            outcome: Outcome = pickle.loads(self._data)
        except Exception:
            code = os.waitstatus_to_exitcode(status)
            outcome = self._failed(f"the run's process ended with code {code}")
        outcome.directory = self._kept
        return outcome

    def time_out(self) -> Outcome:
        """Kill it."""
        self.end()
        return self._failed(f"the run took longer than {self._timeout_s:g} s and was killed")

    def end(self) -> None:
        """SIGKILL, and wait."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._close()

    def _failed(self, error: str) -> Outcome:
        return Outcome(plan=self.plan, backend=self._backend, error=error, directory=self._kept)

    def _close(self) -> None:
        os.close(self.pipe)
        if self._kept is None:
            shutil.rmtree(self.directory, ignore_errors=True)


def _child_main(
    pipe: int,
    plan: Plan,
    backend: str,
    directory: Path,
    say: Say | None,
    before: Callable[[], None] | None,
) -> None:
    """All of a child's life; never returns."""
    try:
        if backend == "sim":
            gc.disable()
        if before is not None:
            before()
        outcome = run_here(plan, directory, backend=backend, say=say)
    except BaseException:
        outcome = Outcome(plan=plan, backend=backend, error=traceback.format_exc())
    outcome.memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    try:
        with os.fdopen(pipe, "wb") as file:
            pickle.dump(outcome, file)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0)


def scratch() -> str | None:
    """Where runs write what is not kept: memory, if the system has such a place."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _prepare_to_fork() -> None:
    """Import what the children need, and let them share its memory."""
    import chaos.sim.run  # noqa: F401

    gc.collect()
    gc.freeze()


def _say_nothing(_line: str) -> None:
    return None
