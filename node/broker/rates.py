"""Rates per second, over the last minute, from samples of totals."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import trio

SAMPLE_S: Final = 10.0
"""Time between two samples."""
SAMPLES: Final = 7
"""Number of samples in memory: a minute."""
PIECE: Final = 256
"""Parts that are added up before other tasks run: there may be thousands."""


class Rates:
    """Growth of named totals."""

    def __init__(self, parts: Callable[[], Iterable[tuple[str, int]]]) -> None:
        """`parts` yields names and amounts to add to their totals; other tasks run meanwhile."""
        self._parts = parts
        self._samples: deque[tuple[float, Mapping[str, int]]] = deque(maxlen=SAMPLES)

    async def sample(self) -> None:
        """Take a sample; called every `SAMPLE_S`."""
        sums: dict[str, int] = {}
        for number, (name, part) in enumerate(self._parts()):
            sums[name] = sums.get(name, 0) + part
            if number % PIECE == PIECE - 1:
                await trio.lowlevel.checkpoint()
        self._samples.append((trio.current_time(), sums))

    def per_s(self, name: str) -> float:
        """Return the rate of a total; 0 if it is new or became less."""
        points = [(at, totals[name]) for at, totals in self._samples if name in totals]
        if len(points) < 2 or points[-1][0] <= points[0][0]:
            return 0.0
        (begin, low), (end, high) = points[0], points[-1]
        return max(high - low, 0) / (end - begin)
