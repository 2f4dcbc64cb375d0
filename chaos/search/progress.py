"""Progress of many runs: a line now and then, with the real time that is left."""

import time
from collections.abc import Callable
from typing import Final

EVERY_S: Final = 20.0
"""Real seconds between two lines; the first comes with the first run."""


class Progress:
    """Counts runs that ended and says how many are left."""

    def __init__(
        self,
        total: int,
        say: Callable[[str], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total
        self._say = say
        self._now_s = now_s
        self._began_s = now_s()
        self._said_s = -EVERY_S
        self._done = 0

    @property
    def elapsed_s(self) -> float:
        """Real seconds since the beginning."""
        return self._now_s() - self._began_s

    def add(self) -> None:
        """Count a run, and print a line if the last one is long enough ago."""
        self._done += 1
        elapsed_s = self.elapsed_s
        if self._done >= self._total or elapsed_s - self._said_s < EVERY_S:
            return
        self._said_s = elapsed_s
        left_s = elapsed_s / self._done * (self._total - self._done)
        self._say(
            f"{self._done} of {self._total} runs done, about {duration(left_s)} of real time left"
        )


def duration(seconds: float) -> str:
    """Return `40 s`, `4 min` or `2 h 5 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
