"""A thread that runs trio with one client in it, for programs that do not run on trio.

Calls come from any thread, in order, and each becomes a task of its own in this thread; its answer
goes back to a thread that waits, or to an asyncio loop. The client's code is not aware of this.
"""

import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import copy_context
from typing import Any, Final, Generic, TypeVar

import trio

from rocketbed.client.connections import CLOSED
from rocketbed.client.errors import ClientError
from rocketbed.client.progress import POLLER, SEEN

T = TypeVar("T")
Client = AbstractAsyncContextManager[Any]
Undo = Callable[[Any], object]

START_S: Final = 10.0
"""Time for a thread to begin, seconds; longer means that the machine is overloaded."""
NOT_OPEN: Final = "the client is not open: use it in a `with` block, or between start and stop"


def later(function: Callable[[], T]) -> Callable[[], Awaitable[T]]:
    """Return an async function that calls a plain one."""

    async def run() -> T:
        await trio.lowlevel.checkpoint()
        return function()

    return run


class Call(Generic[T]):
    """A call of the client, run as a task of its thread."""

    def __init__(
        self,
        function: Callable[[], Awaitable[T]],
        *,
        poller: object,
        done: Callable[[], object],
        undo: Undo | None = None,
    ) -> None:
        """`poller` is the owner of messages that the call returns; `done` is called in the client's
        thread, and so is `undo`, with the result, when no caller gets it."""
        self._function = function
        self._poller = poller
        self._done = done
        self._undo = undo
        self._context = copy_context()
        self._scope = trio.CancelScope()
        self._is_done = False
        self._is_given_up = False
        self.is_seen = False
        """True once its caller got its result or error."""
        self._value: T | None = None
        self._error: BaseException | None = None

    def begin(self) -> None:
        """Start the task."""
        try:
            trio.lowlevel.spawn_system_task(self._run, context=self._context)
        except RuntimeError:  # trio starts no more tasks
            self._error = ClientError(CLOSED)
            self._end()

    def give_up(self) -> None:
        """Cancel the call, because its caller no longer waits for it."""
        self._is_given_up = True
        if not self._is_done:
            self._scope.cancel()
        elif self._error is None and self._undo is not None:
            self._context.run(self._undo, self._value)

    def result(self) -> T:
        """Return the function's result, or raise its error."""
        self.is_seen = True
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # None only where T has it

    async def _run(self) -> None:
        POLLER.set(self._poller)
        SEEN.set(lambda: self.is_seen)
        try:
            with self._scope:
                self._value = await self._function()
            if self._scope.cancelled_caught:
                self._error = ClientError("the call was cancelled")
        except (
            BaseException
        ) as exc:  # goes to the caller, except for cancellations by the end of the thread
            self._error = ClientError(CLOSED) if _is_by_close(exc) else _ungrouped(exc)
        self._end()

    def _end(self) -> None:
        self._is_done = True
        if self._is_given_up and self._error is None and self._undo is not None:
            self._undo(self._value)
        self._done()


def _is_by_close(error: BaseException) -> bool:
    """True if a call ended because its client was closed: cancelled, or by tasks that could not
    begin."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_by_close(member) for member in error.exceptions)
    is_nursery = isinstance(error, RuntimeError) and "closed to new arrivals" in str(error)
    return is_nursery or isinstance(error, trio.Cancelled)


def _ungrouped(error: BaseException) -> BaseException:
    """Return the exception that ends a program (`SystemExit`, `KeyboardInterrupt`) without the
    groups into which nurseries put it: callers do not look for it there."""
    if isinstance(error, BaseExceptionGroup):
        _, ending = error.split((Exception, trio.Cancelled))
        return error if ending is None else _ungrouped(ending.exceptions[0])
    return error


class Portal:
    """A thread that runs trio with one client in it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._thread: threading.Thread | None = None
        self._began = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._closing: trio.Event | None = None
        self._failure: BaseException | None = None
        self._pid = 0
        """Process that has the thread: a forked child has none."""
        self._posted: deque[Callable[[], object]] = deque()

    def open(self) -> None:
        """Start the thread and enter the client. Raises what entering raised."""
        if self._thread is not None:
            raise ClientError("a client can be entered only once; create a new one")
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="rocketbed client", daemon=True)
        self._thread.start()
        if not self._began.wait(START_S):
            raise ClientError(f"the client's thread did not start within {START_S:g} s")
        if self._token is None:
            self._thread.join()
            raise self._failure or ClientError("the client ended immediately")

    def close(self) -> None:
        """Leave the client and end the thread. Raises what the client's own tasks raised."""
        if self._thread is None or self._token is None or self._closing is None:
            return
        if os.getpid() != self._pid:
            return  # nothing of it runs in this process
        with suppress(trio.RunFinishedError, AttributeError):  # closed by another thread
            self._token.run_sync_soon(self._closing.set)
        self._thread.join()
        self._token = None
        if self._failure is not None:
            raise self._failure

    def call(
        self,
        function: Callable[[], Awaitable[T]],
        *,
        poller: object = None,
        undo: Undo | None = None,
    ) -> T:
        """Run an async function in the thread; return its result or raise its error. `poller` and
        `undo` are those of `Call`."""
        if threading.current_thread() is self._thread:
            raise ClientError("a function that the client calls must not call the client: it waits")
        # A bare lock: an event's wait that a signal breaks may leave its own lock held.
        answered = threading.Lock()
        answered.acquire()
        call = Call(function, poller=poller, done=answered.release, undo=undo)
        try:
            self.post(call.begin)
            answered.acquire()
            return call.result()
        except BaseException:
            if not call.is_seen:  # a signal's handler raised
                with suppress(ClientError):
                    self.post(call.give_up)
            raise

    def post(self, function: Callable[[], object]) -> None:
        """Call a plain function in the thread, soon; it must not raise. Raises `ClientError` when
        the client is not open, or belongs to another process."""
        self.check_process()
        token = self._token
        if token is None:
            raise ClientError(NOT_OPEN if self._thread is None else self._failure_text())
        self._posted.append(function)
        try:
            # Each call wakes the thread: a flag that it is awake could stay set when a signal's
            # handler raises in between, and nothing would ever run again.
            token.run_sync_soon(self._run_posted, idempotent=True)
        except trio.RunFinishedError as exc:
            raise ClientError(self._failure_text()) from exc

    def check_process(self) -> None:
        """Raise `ClientError` in a fork of the process that opened the client."""
        if self._thread is not None and os.getpid() != self._pid:
            raise ClientError(
                f"this client belongs to process {self._pid}, of which {os.getpid()} is a fork:"
                " create a client after the fork (in gunicorn's post_fork, Celery's"
                " worker_process_init, multiprocessing's initializer)"
            )

    def _run_posted(self) -> None:
        while self._posted:
            self._posted.popleft()()

    def _failure_text(self) -> str:
        return CLOSED if self._failure is None else f"{CLOSED}: {self._failure}"

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as exc:
            self._failure = exc
        finally:
            self._began.set()

    async def _main(self) -> None:
        async with self._client:
            self._closing = trio.Event()
            self._token = trio.lowlevel.current_trio_token()
            self._began.set()
            await self._closing.wait()
