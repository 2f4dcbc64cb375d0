"""Run of a test's body, in the process that was forked for it: with fixtures, and a budget.

Over its budget the run is ended, with the place where the test hung; the alarm rings in the main
thread. A simulation is left at once, since it has nothing outside its process. Real processes are
ended in order: the body is cancelled, and the cluster with it. A body that is a plain function gets
the error itself.
"""

import asyncio
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

import trio

from rocketbed.chaos.pytest_plugin.asyncio_side import AsyncioCluster, Side
from rocketbed.chaos.pytest_plugin.blocking import BlockingCluster, StageThread
from rocketbed.chaos.pytest_plugin.cluster import Cluster
from rocketbed.chaos.pytest_plugin.errors import BudgetSpent, TestingError
from rocketbed.chaos.pytest_plugin.fixtures import Deferred, Fixtures
from rocketbed.chaos.pytest_plugin.perform import perform, signature
from rocketbed.chaos.pytest_plugin.spec import RunResult, RunSpec, Script
from rocketbed.chaos.pytest_plugin.stage import Stage

PLACES_MAX: Final = 5
BUDGET: Final = "budget"
"""Signature of a run that was over its budget."""
Overdue = Callable[[BudgetSpent], NoReturn]
"""Leaves the process at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    function: Callable[..., Any]
    names: tuple[str, ...]
    """Names of its arguments, without fixtures that it uses but does not name."""
    home: str
    """File of the test."""

    def call(self, values: Mapping[str, Any]) -> Any:
        """Call it with those of the values that are its arguments."""
        return self.function(**{name: values[name] for name in self.names})


def run_async(
    spec: RunSpec,
    body: Body,
    directory: Path,
    cluster: Cluster,
    arguments: Mapping[str, Any],
    overdue: Overdue | None,
) -> tuple[RunResult, BaseException | None]:
    """Run a body that is an async function. Without `overdue` it has no budget."""

    async def main(stage: Stage) -> None:
        cluster.bind(stage)
        fixtures = Fixtures()
        try:
            await body.call(await fixtures.open(arguments))
        finally:
            with trio.CancelScope(shield=True):
                await fixtures.close()
            cluster.bind(None)

    script = Script(body=main, choice=spec.choice, failover_s=spec.wishes.failover_s)
    if overdue is None:
        return perform(spec, script, directory, home=body.home)

    def ring(frame: FrameType | None) -> None:
        error = spent(spec.budget_s, script, frame, body.home)
        if spec.backend == "sim" or script.token is None or script.scope is None:
            overdue(error)  # nothing of it outlives this process
        script.failure = error
        if own_frames(frame, body.home):  # it is not in an await
            raise error
        script.token.run_sync_soon(script.scope.cancel)

    with alarm(spec.budget_s, ring):
        result, failure = perform(spec, script, directory, home=body.home)
    if isinstance(failure, BudgetSpent):
        result.signature = BUDGET
    return result, failure


def run_blocking(
    spec: RunSpec,
    body: Body,
    directory: Path,
    cluster: BlockingCluster,
    arguments: Mapping[str, Any],
    overdue: Overdue | None,
) -> tuple[RunResult, BaseException | None]:
    """Run a body that is a plain function, with the cluster in a thread."""
    for name, value in arguments.items():
        if isinstance(value, Deferred):
            raise TestingError(
                f"fixture {name!r} is an async function: a test that uses it must be async too"
            )
    thread = StageThread(spec, directory)

    def ring(frame: FrameType | None) -> None:
        raise spent(spec.budget_s, thread.script, frame, body.home)

    failure: BaseException | None = None
    try:
        with alarm(0.0 if overdue is None else spec.budget_s, ring):
            if thread.start():
                cluster.bind(thread)
                body.call(arguments)
    except BaseException as error:
        failure = error
    cluster.bind(None)
    return _end(thread, failure, body)


def run_asyncio(
    spec: RunSpec,
    body: Body,
    directory: Path,
    cluster: AsyncioCluster,
    arguments: Mapping[str, Any],
    overdue: Overdue | None,
) -> tuple[RunResult, BaseException | None]:
    """Run a body on asyncio, with the cluster in a thread beside its loop."""
    thread = StageThread(spec, directory)
    late: list[BudgetSpent] = []
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        running.append((asyncio.get_running_loop(), task))
        cluster.bind(Side(thread))
        fixtures = Fixtures()
        try:
            await body.call(await fixtures.open(arguments))
        finally:
            await fixtures.close()
            cluster.bind(None)

    def ring(frame: FrameType | None) -> None:
        loops = [loop for loop, _ in running]
        late.append(spent(spec.budget_s, thread.script, frame, body.home, *loops))
        if not running or own_frames(frame, body.home):  # it is not in an await
            raise late[0]
        loop, task = running[0]
        loop.call_soon_threadsafe(task.cancel)

    failure: BaseException | None = None
    try:
        with alarm(0.0 if overdue is None else spec.budget_s, ring):
            if thread.start():
                asyncio.run(main())
    except BaseException as error:
        failure = late[0] if late else error
    return _end(thread, failure, body)


def _end(
    thread: StageThread, failure: BaseException | None, body: Body
) -> tuple[RunResult, BaseException | None]:
    """End the cluster of a thread after a body that raised `failure`, or nothing."""
    result, error = thread.finish(failure)
    if isinstance(failure, KeyboardInterrupt):
        raise failure
    if failure is not None:
        result.kind = "failed"
        is_late = isinstance(failure, BudgetSpent)
        result.signature = BUDGET if is_late else signature(failure, body.home)
    return result, failure or error


# --- the budget


@contextmanager
def alarm(seconds: float, ring: Callable[[FrameType | None], None]) -> Iterator[None]:
    """Call `ring` with the current frame after this much real time."""

    before = signal.signal(signal.SIGALRM, lambda number, frame: ring(frame))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def spent(
    budget_s: float,
    script: Script,
    frame: FrameType | None,
    home: str,
    loop: asyncio.AbstractEventLoop | None = None,
) -> BudgetSpent:
    """Return the error of a run over its budget; `loop` is the body's, if that is asyncio's."""
    where = where_is(script, frame, home, loop)
    first = next(iter(script.waits.values()), None)
    waits = "" if first is None else f"; {first()}"
    return BudgetSpent(
        f"the test took longer than its budget of {budget_s:g} s (--rb-budget) and was stopped; it"
        f" was at {where}{waits}"
    )


def own_frames(frame: FrameType | None, home: str) -> list[traceback.FrameSummary]:
    """Return the frames on the stack that are in the test's own file."""
    stack = [] if frame is None else traceback.extract_stack(frame)
    return [entry for entry in stack if _same(entry.filename, home)]


def where_is(
    script: Script,
    frame: FrameType | None,
    home: str,
    loop: asyncio.AbstractEventLoop | None = None,
) -> str:
    """Return where the body is: the line of its own file, and what it waits for there."""
    if own := own_frames(frame, home):
        return f"{_line(own[-1].filename, own[-1].lineno or 0, own[-1].name)}, not awaiting"
    task = script.body_task
    if task is None:
        return "the set-up of the cluster, before its body began"
    if script.is_over:
        return "the end of the cluster, after its body had ended"
    if loop is not None:
        stacks = [list(_awaited(other.get_coro())) for other in asyncio.all_tasks(loop)]
    else:
        stacks = [list(child.iter_await_frames()) for child in _with_children(task)]
    places: list[str] = []
    for stack in stacks:
        frames = [(frame.f_code, line) for frame, line in stack]
        inside = [(code, line) for code, line in frames if _same(code.co_filename, home)]
        if not inside:
            continue
        code, line = inside[-1]
        text = _line(code.co_filename, line, code.co_name)
        inner = frames[len(frames) - frames[::-1].index(inside[-1]) :]
        if inner:
            text += f", waiting in {inner[0][0].co_name}"
        places.append(text)
    return "; and ".join(places[-PLACES_MAX:]) or "no line of the test's own file"


def _with_children(task: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    yield task
    for nursery in task.child_nurseries:
        for child in sorted(nursery.child_tasks, key=lambda task: task.name):
            yield from _with_children(child)


def _awaited(coroutine: Any) -> Iterator[tuple[FrameType, int]]:
    """Yield the frame and line of a coroutine, then of the one that it awaits, and so on."""
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        yield frame, frame.f_lineno
        coroutine = coroutine.cr_await


def _line(path: str, line: int, function: str) -> str:
    return f"{os.path.relpath(path)}:{line} in {function}"


def _same(path: str, home: str) -> bool:
    return os.path.realpath(path) == os.path.realpath(home)
