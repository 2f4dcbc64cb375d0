"""Trio run loops, one for each simulated node, stepped by hand.

A loop that is never stepped again is a process after SIGKILL: no `finally` has run. That needs
trio's internals: the generator under `trio.lowlevel.start_guest_run`, fed with empty lists of I/O
events, so that a step makes no system call; and the random source with which trio orders the tasks
of a batch, replaced by a seeded one. The names are private and may change with any release. This
module is the only one that uses them, and checks for them when it is imported.
"""

import math
import sys
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any, TypeVar

import trio
import trio._core._run as trio_run
from outcome import Error, Outcome, Value
from trio._core._run_context import GLOBAL_RUN_CONTEXT

from rocketbed.chaos.backends.sim.incarnation import SimulationError

T = TypeVar("T")

NEEDED = (
    "setup_runner",
    "unrolled_run",
    "Runner",
    "_r",
    "_ALLOW_DETERMINISTIC_SCHEDULING",
    "sniffio_library",
)
NEEDED_OF_RUNNER = ("reschedule", "close")
LONGEST_SLEEP = 86_400.0
"""Seconds; trio caps a time-out here, also if nothing is due at all."""
CLOSING_ROUNDS = 8
"""Number of times that a buried coroutine that awaits in its clean-up is closed again."""


def _check_private_names() -> None:
    missing = [name for name in NEEDED if not hasattr(trio_run, name)]
    missing += [name for name in NEEDED_OF_RUNNER if not hasattr(trio_run.Runner, name)]
    if missing:
        raise SimulationError(
            f"trio {trio.__version__} has no {', '.join(missing)}: the simulator needs another "
            "release (pip install 'trio>=0.30,<0.36')"
        )


_check_private_names()


@contextmanager
def seeded_scheduling(random: Random) -> Iterator[None]:
    """Let `random` order the tasks that are runnable at once, in every loop, within the block.

    Libraries that ask which loop they run on are told that it is trio's.
    """
    private: Any = trio_run
    previous = private._r, private._ALLOW_DETERMINISTIC_SCHEDULING
    library = private.sniffio_library.name
    private._r, private._ALLOW_DETERMINISTIC_SCHEDULING = random, True
    private.sniffio_library.name = "trio"
    try:
        yield
    finally:
        private._r, private._ALLOW_DETERMINISTIC_SCHEDULING = previous
        private.sniffio_library.name = library


class NodeLoop:
    def __init__(
        self,
        clock: trio.abc.Clock,
        main: Callable[..., Awaitable[object]],
        arguments: tuple[object, ...],
    ) -> None:
        self.outcome: Outcome[object] | None = None
        """Result or error of `main`, once it has ended."""
        with _context({}):
            self._runner: Any = trio_run.setup_runner(clock, (), False, True)
            self._runner.ki_manager.close()
            self._generator = trio_run.unrolled_run(
                self._runner, main, arguments, host_uses_signal_set_wakeup_fd=True
            )
            self._context = dict(GLOBAL_RUN_CONTEXT.__dict__)
        self._started = False

    def step(self) -> float | None:
        """Run all tasks that are runnable. Return the seconds until the next deadline.

        0.0 if something is runnable again, None if nothing is due at all; `outcome` is set once the
        loop has ended.
        """
        entries = self._runner.entry_queue
        events: Any = None
        if self._started:
            # I/O events to feed: none, unless something came through `run_sync_soon`.
            waiting = entries.queue or entries.idempotent_queue
            events = self._runner.io_manager.get_events(0) if waiting else []
        self._started = True
        try:
            with _context(self._context):
                timeout: float = self._generator.send(events)
        except StopIteration:
            self.outcome = self._runner.main_task_outcome or Value(None)
            return None
        if self._runner.runq or entries.queue or entries.idempotent_queue:
            return 0.0
        if timeout >= LONGEST_SLEEP and self._runner.deadlines.next_deadline() == math.inf:
            return None
        return timeout

    def inside(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a plain function as if from within this loop, for instance to set an event."""
        with _context(self._context):
            return function(*arguments)

    def wake(self, task: trio.lowlevel.Task) -> None:
        self._runner.reschedule(task)

    def stacks(self) -> list[str]:
        """Return where the runnable tasks are, to diagnose a spinning node."""
        return [
            f"{task.name}: "
            + " < ".join(
                f"{frame.f_code.co_name}:{line}" for frame, line in task.iter_await_frames()
            )
            for task in self._runner.runq
        ]

    def let_go(self) -> None:
        """Free the descriptors of a loop that is never stepped again; runs no code of the node."""
        if self.outcome is None:
            manager = self._runner.io_manager
            manager.close()
            manager._epoll = _ClosedPoll()
            self._runner.entry_queue.close()

    def bury(self) -> None:
        """End the coroutines of a loop that was let go. Their clean-up runs; seams must be dead."""
        if self.outcome is not None:
            return
        self.outcome = Error(SimulationError("buried"))
        hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
        try:
            with warnings.catch_warnings(), _context(self._context):
                warnings.simplefilter("ignore")
                self._close_coroutines()
                with suppress(BaseException):
                    self._generator.close()
        finally:
            sys.unraisablehook = hook

    def _close_coroutines(self) -> None:
        tasks = sorted(self._runner.tasks, key=lambda task: -task._counter)
        # Without children a nursery lets its parent end: else each clean-up would await tasks that
        # never run again. Youngest first, so that a child is closed before its parent.
        for task in tasks:
            for nursery in task.child_nurseries:
                nursery._children = set()
        for task in tasks:
            for _ in range(CLOSING_ROUNDS):
                try:
                    task.coro.close()
                except RuntimeError:
                    continue  # it awaits in its clean-up
                except BaseException:
                    break
                break
        self._runner.tasks.clear()
        self._runner.runq.clear()


@contextmanager
def _context(inner: dict[str, object]) -> Iterator[None]:
    """Swap trio's idea of the loop that is running in this thread.

    Without the swap two nodes would schedule tasks on each other's loop; without the way back the
    harness would. A loop's first step also installs hooks for async generators in the thread.
    """
    current = GLOBAL_RUN_CONTEXT.__dict__
    outer, hooks = dict(current), sys.get_asyncgen_hooks()
    current.clear()
    current.update(inner)
    try:
        yield
    finally:
        current.clear()
        current.update(outer)
        sys.set_asyncgen_hooks(*hooks)


class _ClosedPoll:
    """Replacement for the epoll object of a loop that was let go, while its coroutines unwind."""

    def register(self, *_arguments: object) -> None:
        """Do nothing: nothing is polled any more."""

    modify = unregister = close = register
