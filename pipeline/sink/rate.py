"""Rate limit of a task: a token bucket that fills with bytes over time."""

from dataclasses import dataclass
from typing import Final

BURST_S: Final = 1.0
"""A pause saves up at most the bytes of this many seconds."""


@dataclass(slots=True)
class TokenBucket:
    """Bytes that may be sent. The caller passes the time, in seconds, and does the waiting."""

    bytes_per_s: float
    """0: no limit."""
    _level: float = 0.0
    _looked_at_s: float | None = None

    def take(self, count: int, now_s: float) -> float:
        """Take `count` bytes now, and return the seconds to wait before sending them.

        The level may go below zero: a message larger than the bucket is still sent, and those
        after it wait longer.
        """
        if self.bytes_per_s <= 0:
            return 0.0
        if self._looked_at_s is not None:
            self._level += max(now_s - self._looked_at_s, 0.0) * self.bytes_per_s
            self._level = min(self._level, self.bytes_per_s * BURST_S)
        self._looked_at_s = now_s
        self._level -= count
        return max(-self._level / self.bytes_per_s, 0.0)
