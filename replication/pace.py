"""How often: a rate that several senders share, and what is said again and again."""

from typing import Final

import trio

SAY_S: Final = 10.0


class Pace:
    """Bytes a second; whoever sends waits for its turn. Nothing is saved up while nobody does."""

    def __init__(self, rate: int) -> None:
        """`rate` in bytes a second; 0: as fast as it goes."""
        self._rate = rate
        self._free_at = float("-inf")

    async def wait(self, size: int) -> None:
        """Until `size` more bytes may go."""
        if not self._rate:
            return
        begin = max(self._free_at, trio.current_time())
        self._free_at = begin + size / self._rate
        await trio.sleep_until(begin)


class Seldom:
    """When to say, or to try, again what goes on for long."""

    def __init__(self, every_s: float = SAY_S) -> None:
        self._every_s = every_s
        self._next = float("-inf")

    def is_due(self) -> bool:
        """True once in so many seconds at most."""
        now = trio.current_time()
        is_due = now >= self._next
        if is_due:
            self._next = now + self._every_s
        return is_due
