"""Threads for frequent blocking calls that come one at a time: syncs.

`trio.to_thread` takes 190 us for a round trip, mostly to find a thread and to notify its task; this
takes 120 us (on an AMD EPYC), for which a producer under sync flush waits with each message.
"""

import errno
import os
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import outcome
import trio

T = TypeVar("T")
_Call = tuple[Callable[[], outcome.Outcome[Any]], trio.lowlevel.Task, trio.lowlevel.TrioToken]

IDLE_S = 10.0
"""Idle time after which a thread ends, seconds; the next call starts another one."""


class SyncThreads:
    """Runs blocking functions, at most as many at once as there may be threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._forget()

    def _forget(self) -> None:
        self._process = os.getpid()
        self._turn = trio.Semaphore(self._limit)
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._guard = threading.Lock()
        """Held to read `_idle` and the queue together."""
        self._threads = 0
        self._idle = 0
        """Number of waiting threads, less the calls in the queue."""

    @trio.lowlevel.enable_ki_protection
    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Return the result of `function(*arguments)`. Once begun it is not cancelled.

        Raises `OSError` if there is no thread, not even a busy one, and the system creates none.
        """
        if self._process != os.getpid():
            self._forget()  # a fork has only the thread that forked
        turn = self._turn
        try:
            turn.acquire_nowait()  # `acquire` would run another turn of the loop
        except trio.WouldBlock:
            await turn.acquire()
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            task, token = trio.lowlevel.current_task(), trio.lowlevel.current_trio_token()
            self._give((partial(outcome.capture, function, *arguments), task, token))
            result: T = await trio.lowlevel.wait_task_rescheduled(_cannot_stop)
            return result
        finally:
            turn.release()

    def _give(self, call: _Call) -> None:
        with self._guard:
            if self._idle <= 0 and self._start():
                self._threads += 1
            else:
                self._idle -= 1
            self._calls.put(call)

    def _start(self) -> bool:
        """Start another thread; False if the busy ones have to suffice."""
        try:
            threading.Thread(target=self._work, name="sync", daemon=True).start()
        except RuntimeError as exc:
            if self._threads:
                return False
            raise BlockingIOError(
                errno.EAGAIN,
                f"no thread to bring files to disk ({exc}): raise the limit of processes (ulimit"
                " -u, pids of a container)",
            ) from exc
        return True

    def _work(self) -> None:
        while True:
            try:
                function, task, token = self._calls.get(timeout=IDLE_S)
            except queue.Empty:
                with self._guard:
                    if self._calls.empty():
                        self._idle -= 1
                        self._threads -= 1
                        return
                continue
            result = function()
            with self._guard:  # before the caller wakes, or its next call would start a thread
                self._idle += 1
            token.run_sync_soon(trio.lowlevel.reschedule, task, result)


def _cannot_stop(_raise_cancel: Any) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED
