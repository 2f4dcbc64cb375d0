"""What the scrub has found in the log, and what that means for readers.

A serving node goes on: it serves what is good, and refuses a read that comes to a damaged stretch
with an error that names it. To pass over it would hide messages; to serve it would hand out bytes
that nobody wrote, which not every client compares with their checksum.
"""

from dataclasses import dataclass, field

from rocketbed.node.store.errors import CorruptRecord


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
    found: list[Damage] = field(default_factory=list)

    def hit(self, offset: int, size: int) -> Damage | None:
        """The damage that a record lies in, if it must not be served."""
        for one in self.found:
            if offset < one.end and one.start < offset + size and not one.is_readable:
                return one
        return None

    def refuse(self, offset: int, size: int = 1) -> None:
        """Raises `CorruptRecord` for a record that must not be served."""
        if self.found and (one := self.hit(offset, size)) is not None:
            raise CorruptRecord(
                f"bytes {one.start} to {one.end} of the log are damaged ({one.reason}), and the"
                f" message at {offset} lies there: read it from a replica, or have the range"
                " copied from one (`rocketbed store heal`)",
                offset=one.start,
            )
