"""How many a second, over the last minute, from samples of totals."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import trio

SAMPLE_S: Final = 10.0
"""Between two samples."""
SAMPLES: Final = 7
"""That many are kept: a minute."""
PIECE: Final = 256
"""Parts that are added up before others run: there may be thousands."""


class Rates:
    """The growth of totals that have names."""

    def __init__(self, parts: Callable[[], Iterable[tuple[str, int]]]) -> None:
        """`parts` gives names and what to add to their totals; others run meanwhile."""
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
        """0 for what is new, or has become less."""
        known = [(at, totals[name]) for at, totals in self._samples if name in totals]
        if len(known) < 2 or known[-1][0] <= known[0][0]:
            return 0.0
        (begin, low), (end, high) = known[0], known[-1]
        return max(high - low, 0) / (end - begin)
