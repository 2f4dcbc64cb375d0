"""Times of sends, counted where they are taken, so that looking at them costs nothing then.

A count for each eighth of a power of two of microseconds: within 12 % of the true time, at the
price of an addition for each send.
"""

from collections.abc import Sequence
from typing import Final

STEPS: Final = 8
"""Counters for each doubling."""
_BITS: Final = STEPS.bit_length() - 1
SIZE: Final = STEPS * 40


class Latencies:
    """How many sends took how long, since the run began."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts = [0] * SIZE

    def note(self, time_ns: int) -> None:
        self.counts[_place(max(time_ns // 1000, 0))] += 1


def quantiles(
    before: Sequence[int], after: Sequence[int], shares: Sequence[float]
) -> list[float | None]:
    """Seconds within which these shares of the sends between two looks ended; None without any."""
    new = [late - early for early, late in zip(before, after, strict=True)]
    total = sum(new)
    found: list[float | None] = []
    for share in shares:
        left = share * total
        answer = None
        for place, count in enumerate(new):
            left -= count
            if count and left <= 0:
                answer = _upper_us(place) / 1e6
                break
        found.append(answer)
    return found


def _place(time_us: int) -> int:
    if time_us < STEPS:
        return time_us
    shift = time_us.bit_length() - 1 - _BITS
    return min(SIZE - 1, STEPS * (shift + 1) + (time_us >> shift) - STEPS)


def _upper_us(place: int) -> int:
    if place < STEPS:
        return place + 1
    shift, rest = divmod(place - STEPS, STEPS)
    return (STEPS + rest + 1) << shift
