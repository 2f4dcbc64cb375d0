"""Damage that the scrub has found in the log, and its consequence for readers.

A serving node continues: it serves good records, and refuses a read that meets a damaged range with
an error that names it. Skipping the range would hide messages; serving it would return garbage,
which not every client compares with its checksum.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace

from rocketbed.node.store.errors import CorruptRecord

RANGES_MAX = 512
"""Ranges that are recorded separately. All are in the durable mark, which is written whole: 40
kB."""
JOIN_GAP = 64 << 10
"""Largest distance of two ranges that are joined first, once there are more than that."""
SHOWN = 8
"""Ranges that the runtime information names."""
_AND_MORE = ", and more behind it"


@dataclass(frozen=True, slots=True)
class Damage:
    """A range of the log without a readable record. Physical offsets."""

    start: int
    end: int
    """Start of the next good record, end of an unreadable segment, or end of the scrub."""
    reason: str
    is_readable: bool = False
    """True if the record only names a wrong position and is whole otherwise: it is served."""


@dataclass(slots=True)
class DamagedRanges:
    """The damaged ranges, at most `RANGES_MAX`.

    Up to that number each good record in between is served. Beyond, ranges that are close together
    are joined, first those within `JOIN_GAP`, then, while there are still too many, those within
    twice that, and so on: the good records in between are refused as well, until a replica's copy
    has healed the ranges and the next start has scanned them again.
    """

    ranges: list[Damage] = field(default_factory=list)
    """In the order of the log."""
    count: int = 0
    """Number of findings; joining does not change it."""
    _bad: list[Damage] = field(default_factory=list)
    """Ranges that are not served, in order; none overlaps another."""
    _readable: list[Damage] = field(default_factory=list)
    """Ranges that are served; the same holds for them."""

    def add(self, new: Damage) -> None:
        """Add a range. It is joined with ranges that it overlaps."""
        kind = self._readable if new.is_readable else self._bad
        low = bisect_right(kind, new.start, key=_end)
        high = bisect_left(kind, new.end, key=_start)
        overlapping = kind[low:high]
        self.count += not overlapping
        kind[low:high] = [_union([*overlapping, new])]
        gap = JOIN_GAP
        while len(self._bad) + len(self._readable) > RANGES_MAX:
            self._bad, self._readable = _joined(self._bad, gap), _joined(self._readable, gap)
            gap *= 2
        self.ranges = sorted([*self._bad, *self._readable], key=_start)

    def hit(self, offset: int, size: int) -> Damage | None:
        """Return the first damage that contains a part of a record, if the record must not be
        served."""
        at = bisect_right(self._bad, offset, key=_end)
        if at < len(self._bad) and self._bad[at].start < offset + size:
            return self._bad[at]
        return None

    def cut(self, offset: int) -> None:
        """Drop damage beyond a cut: records written there later are different ones."""
        self._bad, self._readable = (
            [
                replace(damage, end=min(damage.end, offset))
                for damage in kind
                if damage.start < offset
            ]
            for kind in (self._bad, self._readable)
        )
        self.ranges = sorted([*self._bad, *self._readable], key=_start)

    def refuse(self, offset: int, size: int = 1) -> None:
        """Raise `CorruptRecord` for a record that must not be served."""
        if self.ranges and (damage := self.hit(offset, size)) is not None:
            raise CorruptRecord(
                f"bytes {damage.start} to {damage.end} of the log are damaged ({damage.reason}),"
                f" and the message at {offset} lies there: read it from a replica, or have the"
                " range copied from one (`rocketbed store heal`)",
                offset=damage.start,
            )

    def summary(self) -> str:
        """Return the first ranges, and the number of further ones."""
        first = ";".join(f"{damage.start}-{damage.end}" for damage in self.ranges[:SHOWN])
        more = len(self.ranges) - SHOWN
        return f"{first} and {more} more" if more > 0 else first


def _start(damage: Damage) -> int:
    return damage.start


def _end(damage: Damage) -> int:
    return damage.end


def _union(ranges: list[Damage]) -> Damage:
    return replace(ranges[0], start=min(map(_start, ranges)), end=max(map(_end, ranges)))


def _joined(ranges: list[Damage], gap: int) -> list[Damage]:
    """Return the ranges, in order, with those within `gap` bytes joined."""
    joined: list[Damage] = []
    for damage in ranges:
        if joined and damage.start - joined[-1].end <= gap:
            reason = joined[-1].reason.removesuffix(_AND_MORE) + _AND_MORE
            joined[-1] = replace(joined[-1], end=max(joined[-1].end, damage.end), reason=reason)
        else:
            joined.append(damage)
    return joined
