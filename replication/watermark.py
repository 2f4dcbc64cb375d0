"""An offset that only rises, and the tasks that wait for it."""

from collections.abc import Callable

import trio


class Watermark:
    """A byte offset below which something is known to hold.

    Invariant: `value` never falls, except for `reset` while no task waits (recovery, a cut).
    """

    def __init__(self, value: int = 0) -> None:
        self.value = value
        self._callbacks: list[Callable[[int], None]] = []
        self._risen: trio.Event | None = None

    def advance(self, value: int) -> None:
        """Raise to `value`, call every subscriber, wake every waiter; a lower value is ignored."""
        if value <= self.value:
            return
        self.value = value
        for callback in self._callbacks:
            callback(value)
        if self._risen is not None:
            self._risen.set()
            self._risen = None

    def reset(self, value: int) -> None:
        """Set to any value; only before the old one can have been seen, or after a cut."""
        self.value = value

    def subscribe(self, callback: Callable[[int], None]) -> None:
        """Call `callback(value)` at each rise, in the loop, before waiters wake."""
        self._callbacks.append(callback)

    async def wait_above(self, value: int) -> int:
        """Wait until it is above `value`; return its value then. Safe to cancel."""
        while self.value <= value:
            if self._risen is None:
                self._risen = trio.Event()
            await self._risen.wait()
        return self.value

    async def wait_for(self, value: int) -> int:
        """Wait until it is at least `value`; return its value then. Safe to cancel."""
        return await self.wait_above(value - 1)
