"""Limits: a rate shared by several senders, and an interval for repeated log lines."""

from typing import Final

import trio

SAY_S: Final = 10.0


class Pace:
    """Bytes a second; senders wait for their turns. Unused time is not saved up."""

    def __init__(self, rate: int) -> None:
        """`rate` in bytes a second; 0: no limit."""
        self._rate = rate
        self._free_at = float("-inf")

    async def wait(self, size: int) -> None:
        """Wait until `size` more bytes may be sent."""
        if not self._rate:
            return
        begin = max(self._free_at, trio.current_time())
        self._free_at = begin + size / self._rate
        await trio.sleep_until(begin)


class Seldom:
    """Interval for repeated log lines, or retries, of a lasting condition."""

    def __init__(self, every_s: float = SAY_S) -> None:
        self._every_s = every_s
        self._next = float("-inf")

    def is_due(self) -> bool:
        """Return True at most once in `every_s` seconds."""
        now = trio.current_time()
        is_due = now >= self._next
        if is_due:
            self._next = now + self._every_s
        return is_due
