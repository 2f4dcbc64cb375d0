"""Bridge from the client's trio thread to the program's asyncio loop, where its calls end and the
program's functions run."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Final

import trio

from rocketbed.client.errors import ClientError
from rocketbed.client.listener import Begun, Handler, called
from rocketbed.client.messages import Received
from rocketbed.portal import NOT_OPEN, Portal

CANCEL_S: Final = 5.0
"""Time for a cancelled function to end, seconds, before its message may go to another reader."""


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running loop. Raises `ClientError`."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise ClientError(
            "rocketbed.aio is for asyncio, and no loop of it runs here: import from rocketbed for"
            " trio, or from rocketbed.blocking for programs without an event loop"
        ) from None


class Loop:
    """The asyncio loop that a client belongs to, for use by the client's thread."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        """None until the client is started."""
        self._posted: deque[Callable[[], object]] = deque()
        self._is_woken = False

    def check(self) -> asyncio.AbstractEventLoop:
        """Return the loop, which has to be the running one. Raises `ClientError`."""
        running = running_loop()
        if self.loop is None:
            raise ClientError(NOT_OPEN)
        if running is not self.loop:
            raise ClientError("this client belongs to another event loop: create one for each loop")
        return running

    def post(self, function: Callable[[], object]) -> None:
        """Call a plain function in the loop, soon; no error when the loop is closed."""
        assert self.loop is not None
        self._posted.append(function)
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # closed, with all tasks that waited in it
                self.loop.call_soon_threadsafe(self._run_posted)

    def _run_posted(self) -> None:
        # In this order: a function that is posted from here on wakes the loop again.
        self._is_woken = False
        while self._posted:
            self._posted.popleft()()


class Waiter:
    """Waits in the loop for the end of a call."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.has_ended = False
        self._loop = loop
        self._future = loop.create_future()

    def end(self) -> None:
        """Record that the call has ended."""
        self.has_ended = True
        if not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> None:
        """Wait until the call has ended, or this is cancelled; may be awaited again then."""
        if not self.has_ended:
            if self._future.done():
                self._future = self._loop.create_future()
            await self._future


def _has_returned(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


class InLoop:
    """A program's function, called in the loop for each message by the client's thread."""

    def __init__(self, handler: Handler, portal: Portal, loop: Loop) -> None:
        self._handler = handler
        self._portal = portal
        self._loop = loop

    async def __call__(self, message: Received, begun: Begun) -> None:
        """Return when the function has returned; raise what it raised."""
        ended = trio.Event()
        context = copy_context()
        tasks: list[asyncio.Task[None]] = []
        failures: list[Exception] = []
        is_over = was_cancelled = False

        def begin() -> None:
            assert self._loop.loop is not None
            if is_over:
                return
            self._post(begun)
            coroutine = called(self._handler, message)
            try:
                task = self._loop.loop.create_task(coroutine, context=context)
            except Exception as exc:  # raised by a task factory of the program
                coroutine.close()
                failures.append(exc)
                self._post(ended.set)
            else:
                task.add_done_callback(lambda _: self._post(ended.set))
                tasks.append(task)

        def cancel() -> None:
            nonlocal is_over, was_cancelled
            is_over = True
            if not tasks:
                self._post(ended.set)
            for task in tasks:
                was_cancelled = not task.done()
                task.cancel()

        self._loop.post(begin)
        try:
            await ended.wait()
        except trio.Cancelled:
            self._loop.post(cancel)
            with trio.move_on_after(CANCEL_S, shield=True):
                await ended.wait()
            # A function that returns because it was cancelled has not handled its message; one that
            # returned before has, whether or not its end is noticed before `cancel` ran.
            if tasks and not was_cancelled and _has_returned(tasks[0]):
                return
            raise
        if failures:
            raise failures[0]
        if tasks[0].cancelled():
            raise ClientError("the function was cancelled")
        error = tasks[0].exception()
        if error is not None:
            raise error

    def _post(self, function: Callable[[], object]) -> None:
        with suppress(ClientError):  # closed: nothing waits for it
            self._portal.post(function)
