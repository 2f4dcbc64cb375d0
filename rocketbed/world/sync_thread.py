"""A thread for blocking calls that come one at a time and often: syncs.

`trio.to_thread` takes 190 us there and back, mostly to find a thread and to tell its task; this
takes 120 us (an AMD EPYC), which a producer under sync flush waits for with each message.
"""

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import outcome
import trio

T = TypeVar("T")

IDLE_S = 10.0
"""Without work the thread ends after so long; the next call starts another one."""


class SyncThread:
    """Runs blocking functions one after the other, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._turn = trio.Lock()
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._guard = threading.Lock()
        """Held to look at `_is_running` and what is in the queue at once."""
        self._is_running = False

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Result of `function(*arguments)`. Once begun it is not cancelled."""
        try:
            self._turn.acquire_nowait()  # `acquire` would let the loop turn once more
        except trio.WouldBlock:
            await self._turn.acquire()
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            task, token = trio.lowlevel.current_task(), trio.lowlevel.current_trio_token()

            def call() -> None:
                result = outcome.capture(function, *arguments)
                token.run_sync_soon(trio.lowlevel.reschedule, task, result)

            self._give(call)
            found: T = await trio.lowlevel.wait_task_rescheduled(_cannot_stop)
            return found
        finally:
            self._turn.release()

    def _give(self, call: Callable[[], None]) -> None:
        with self._guard:
            self._calls.put(call)
            if not self._is_running:
                threading.Thread(target=self._work, name="sync", daemon=True).start()
                self._is_running = True

    def _work(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=IDLE_S)
            except queue.Empty:
                with self._guard:
                    if self._calls.empty():
                        self._is_running = False
                        return
            else:
                call()


def _cannot_stop(_raise_cancel: Any) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED
