"""How many a second, over the last minute, from samples of totals."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

SAMPLES: Final = 7
"""Of `clients.SCAN_S` each: a minute."""


class Rates:
    """The growth of totals that have names."""

    def __init__(self, now_s: Callable[[], float], totals: Callable[[], Mapping[str, int]]) -> None:
        self._now_s = now_s
        self._totals = totals
        self._samples: deque[tuple[float, Mapping[str, int]]] = deque(maxlen=SAMPLES)

    def sample(self) -> None:
        """Take a sample; called at regular times."""
        self._samples.append((self._now_s(), self._totals()))

    def per_s(self, name: str) -> float:
        """0 for what is new, or has become less."""
        known = [(at, totals[name]) for at, totals in self._samples if name in totals]
        if len(known) < 2 or known[-1][0] <= known[0][0]:
            return 0.0
        (begin, low), (end, high) = known[0], known[-1]
        return max(high - low, 0) / (end - begin)
