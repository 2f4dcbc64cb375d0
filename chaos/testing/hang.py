"""Ends a run that takes longer than its budget, and says where the test hung.

The alarm rings in the main thread. A simulation is left at once, since it has nothing outside its
process. Real processes are ended in order: the body is cancelled, and the cluster with it. A body
that is a plain function gets the error itself.
"""

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import trio

from rocketbed.chaos.testing.errors import BudgetSpent
from rocketbed.chaos.testing.script import Script

PLACES_MAX: Final = 5


@contextmanager
def alarm(seconds: float, ring: Callable[[FrameType | None], None]) -> Iterator[None]:
    """Call `ring` with the frame under way once so much real time has passed."""

    def handle(_number: int, frame: FrameType | None) -> None:
        ring(frame)

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def spent(budget_s: float, where: str) -> BudgetSpent:
    """The error of a run over its budget."""
    return BudgetSpent(
        f"the test took longer than its budget of {budget_s:g} s (--rb-budget) and was ended; it"
        f" was at {where}"
    )


def is_running(frame: FrameType | None, home: str) -> bool:
    """Whether a function of the test's own file is on the stack: it does not await anything."""
    return frame is not None and any(
        _same(entry.filename, home) for entry in traceback.extract_stack(frame)
    )


def where_is(script: Script, frame: FrameType | None, home: str) -> str:
    """Where the body is: in which line of its own file, and what it waits for there."""
    if frame is not None:
        stack = traceback.extract_stack(frame)
        own = [entry for entry in stack if _same(entry.filename, home)]
        if own:
            return f"{_line(own[-1].filename, own[-1].lineno or 0, own[-1].name)}, not awaiting"
    task = script.body_task
    if task is None:
        return "the set-up of the cluster, before its body began"
    if script.is_over:
        return "the end of the cluster, after its body had ended"
    places: list[str] = []
    for one in _with_children(task):
        frames = [(frame.f_code, line) for frame, line in one.iter_await_frames()]
        own_frames = [(code, line) for code, line in frames if _same(code.co_filename, home)]
        if not own_frames:
            continue
        code, line = own_frames[-1]
        text = _line(code.co_filename, line, code.co_name)
        behind = frames[len(frames) - frames[::-1].index(own_frames[-1]) :]
        if behind:
            text += f", waiting in {behind[0][0].co_name}"
        places.append(text)
    return "; and ".join(places[-PLACES_MAX:]) or "no line of the test's own file"


def _with_children(task: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    yield task
    for nursery in task.child_nurseries:
        for child in sorted(nursery.child_tasks, key=lambda one: one.name):
            yield from _with_children(child)


def _line(path: str, line: int, function: str) -> str:
    return f"{os.path.relpath(path)}:{line} in {function}"


def _same(path: str, home: str) -> bool:
    return os.path.realpath(path) == os.path.realpath(home)
