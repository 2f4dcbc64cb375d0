"""What the scrub has found in the log, and what that means for readers.

A serving node goes on: it serves what is good, and refuses a read that comes to a damaged stretch
with an error that names it. To pass over it would hide messages; to serve it would hand out bytes
that nobody wrote, which not every client compares with their checksum.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace

from rocketbed.node.store.errors import CorruptRecord

RANGES_MAX = 512
"""Stretches that are told apart. All stand in the durable mark, which is written whole: 40 kB."""
JOIN_GAP = 64 << 10
"""Bytes between two stretches that are joined first, once there are more than that."""
SHOWN = 8
"""Stretches that the runtime information names."""
_AND_MORE = ", and more behind it"


@dataclass(frozen=True, slots=True)
class Damage:
    """A stretch of the log without a readable record. Physical offsets."""

    start: int
    end: int
    """Where the next good record begins, where a segment that cannot be read ends, or where the
    scrub ended."""
    reason: str
    is_readable: bool = False
    """A record that says something wrong of its place, and is whole otherwise: it is served."""


@dataclass(slots=True)
class DamagedRanges:
    """The stretches that were found, at most `RANGES_MAX`.

    Up to that number each good record in between is served. Beyond, stretches that lie close
    together are taken for one, first those within `JOIN_GAP`, then, while there are too many
    still, those within twice that, and so on: the good records in between are refused as well,
    until a replica's copy has mended them and the next start has looked again.
    """

    found: list[Damage] = field(default_factory=list)
    """In the order of the log."""
    count: int = 0
    """How often something was found; joining does not change it."""
    _bad: list[Damage] = field(default_factory=list)
    """Those that are not served, in order; none overlaps another."""
    _readable: list[Damage] = field(default_factory=list)
    """The others; the same holds for them."""

    def add(self, new: Damage) -> None:
        """Note a stretch. With one that it overlaps it is one stretch."""
        kind = self._readable if new.is_readable else self._bad
        low = bisect_right(kind, new.start, key=_end)
        high = bisect_left(kind, new.end, key=_start)
        known = kind[low:high]
        self.count += not known
        kind[low:high] = [_union([*known, new])]
        gap = JOIN_GAP
        while len(self._bad) + len(self._readable) > RANGES_MAX:
            self._bad, self._readable = _joined(self._bad, gap), _joined(self._readable, gap)
            gap *= 2
        self.found = sorted([*self._bad, *self._readable], key=_start)

    def hit(self, offset: int, size: int) -> Damage | None:
        """The first damage that a record lies in, if it must not be served."""
        at = bisect_right(self._bad, offset, key=_end)
        if at < len(self._bad) and self._bad[at].start < offset + size:
            return self._bad[at]
        return None

    def cut(self, offset: int) -> None:
        """The log ends here now; what comes anew is another one's."""
        self._bad, self._readable = (
            [replace(one, end=min(one.end, offset)) for one in kind if one.start < offset]
            for kind in (self._bad, self._readable)
        )
        self.found = sorted([*self._bad, *self._readable], key=_start)

    def refuse(self, offset: int, size: int = 1) -> None:
        """Raises `CorruptRecord` for a record that must not be served."""
        if self.found and (one := self.hit(offset, size)) is not None:
            raise CorruptRecord(
                f"bytes {one.start} to {one.end} of the log are damaged ({one.reason}), and the"
                f" message at {offset} lies there: read it from a replica, or have the range"
                " copied from one (`rocketbed store heal`)",
                offset=one.start,
            )

    def shown(self) -> str:
        """The first stretches, and how many more there are."""
        first = ";".join(f"{one.start}-{one.end}" for one in self.found[:SHOWN])
        more = len(self.found) - SHOWN
        return f"{first} and {more} more" if more > 0 else first


def _start(one: Damage) -> int:
    return one.start


def _end(one: Damage) -> int:
    return one.end


def _union(ranges: list[Damage]) -> Damage:
    return replace(ranges[0], start=min(map(_start, ranges)), end=max(map(_end, ranges)))


def _joined(ranges: list[Damage], gap: int) -> list[Damage]:
    """The same with what lies within `gap` bytes made one. `ranges` are in order."""
    found: list[Damage] = []
    for one in ranges:
        if found and one.start - found[-1].end <= gap:
            reason = found[-1].reason.removesuffix(_AND_MORE) + _AND_MORE
            found[-1] = replace(found[-1], end=max(found[-1].end, one.end), reason=reason)
        else:
            found.append(one)
    return found
