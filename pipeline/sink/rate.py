"""How fast a task may send: a bucket that fills with bytes as time goes by."""

from dataclasses import dataclass
from typing import Final

BURST_S: Final = 1.0
"""What a pause saves up is at most the bytes of this many seconds."""


@dataclass(slots=True)
class TokenBucket:
    """Bytes that may be sent. The caller brings the time, in seconds, and does the waiting."""

    bytes_per_s: float
    """0: no limit."""
    _level: float = 0.0
    _looked_at_s: float | None = None

    def take(self, count: int, now_s: float) -> float:
        """Take `count` bytes now; the seconds to wait before sending them.

        What is over the level is owed: one message larger than the bucket still goes out, and
        those after it wait the longer.
        """
        if self.bytes_per_s <= 0:
            return 0.0
        if self._looked_at_s is not None:
            self._level += max(now_s - self._looked_at_s, 0.0) * self.bytes_per_s
            self._level = min(self._level, self.bytes_per_s * BURST_S)
        self._looked_at_s = now_s
        self._level -= count
        return max(-self._level / self.bytes_per_s, 0.0)
