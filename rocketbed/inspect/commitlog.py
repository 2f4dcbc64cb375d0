"""Scan the commit log from record to record, across whatever lies between.

A reader that stops at the first bad byte cannot tell a torn tail from damage. This one searches on,
byte by byte, for the next message that claims to be at its own offset, and reports the bytes in
between as a hole. The log ends only where no such message follows (store.md 8.6).
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from rocketbed.inspect.files import READ_SIZE, SegmentFile, SegmentRow
from rocketbed.inspect.record import (
    MAGIC_PREFIX,
    RECORD_SIZE_MIN,
    Fault,
    Record,
    Scanned,
    blank_size,
    dissect,
    scan_record,
    skim,
)

_SIZE = struct.Struct(">i")
_PHYSICAL_OFFSET = struct.Struct(">q")
_BLANK_SIZE = 8
"""Size of a blank record, for which every segment leaves room."""
_PROBE = 40
"""Bytes from the start of a record that are needed to read the offset it claims."""


class Filler(NamedTuple):
    """A blank record: the remaining bytes of its segment are unused."""

    offset: int
    size: int


class Hole(NamedTuple):
    """Bytes that are no record although a record follows: damage."""

    offset: int
    end: int
    fault: Fault


class LogEnd(NamedTuple):
    """The end of the log, and the reason why it ends there."""

    offset: int
    fault: Fault | None
    """Reason why the bytes at the end are no record; None at the end of a full last segment."""
    torn_at: int | None
    """Offset of the first non-zero byte after the end; None if only zeros follow."""


Item = Scanned | Filler | Hole | LogEnd


class CommitLog(SegmentRow):
    """The log's segments as one range of bytes and records."""

    flushed_offset: int | None = None
    """Offset up to which the log is known to have been on disk. A power loss tears later bytes in
    any order, so good records may follow a bad one there, and yet the log ends at the bad one."""

    @property
    def min_offset(self) -> int:
        """Start of the first segment; 0 for a log without segments."""
        return self.segments[0].start if self.segments else 0

    def scan(self, start: int | None = None) -> Iterator[Item]:
        """Yield the records from `start` (a record's start; None: the first), then one `LogEnd`.

        Holds one window of a few MiB in memory, or one record if that is longer. Segments that
        appear during the scan are not read.
        """
        offset = self.min_offset if start is None else start
        number = self.index_at(offset)
        while number is not None:
            segment = self.segments[number]
            bad: Fault | None = None
            for item in self._scan_segment(segment, offset):
                if isinstance(item, Fault):
                    bad = item
                    break
                offset = item.offset + item.size
                yield item
            if bad is None and number + 1 == len(self.segments):
                yield LogEnd(segment.end, None, None)
                return
            if bad is None and self.segments[number + 1].start == segment.end:
                number += 1
                offset = segment.end
                continue
            if bad is None:
                bad = Fault("log-gap", "the next segment file does not begin where this ends", -1)
            known_torn = self.flushed_offset is not None and offset >= self.flushed_offset
            following = None if known_torn else self._next_claim(number, offset)
            if following is None:
                yield LogEnd(offset, bad, self._first_data(number, offset))
                return
            yield Hole(offset, following, bad)
            offset = following
            number = self.index_at(offset)
        if start is None and not self.segments:
            yield LogEnd(0, None, None)
        elif number is None:
            yield LogEnd(offset, None, None)

    def record_at(self, offset: int, size: int | None = None) -> Record | Fault:
        """Return the record at an offset, or the reason why there is none. Giving `size` saves a
        read."""
        if size is None:
            head = self.read(offset, _SIZE.size)
            if len(head) < _SIZE.size:
                return Fault("record-short", "outside of the log", -1)
            (size,) = _SIZE.unpack(head)
        if not RECORD_SIZE_MIN <= size <= self._remaining(offset):
            reason = f"length {size} with {self._remaining(offset)} bytes to the end of the segment"
            return Fault("record-short", reason, -1)
        if size > READ_SIZE and self._length_at(offset) != size:
            return Fault("record-size", f"length {size}, but its parts do not add up to it", -1)
        return dissect(self.read(offset, size), 0, offset)

    def _length_at(self, offset: int) -> int:
        """Return the length to which the fields of the record at an offset add up; -1 if there is
        none."""
        head = self.read(offset, _PROBE)
        if not claims(head, 0, offset):
            return -1
        pieces = skim(head)
        try:
            at, size = next(pieces)
            while True:
                at, size = pieces.send(self.read(offset + at, size))
        except StopIteration as stop:
            length: int = stop.value
            return length

    def _remaining(self, offset: int) -> int:
        number = self.index_at(offset)
        return 0 if number is None else self.segments[number].end - offset

    def _scan_segment(
        self, segment: SegmentFile, offset: int
    ) -> Iterator[Scanned | Filler | Fault]:
        """Yield good records from `offset` on, then a filler (end of the segment) or a fault."""
        base = position = offset - segment.start
        buffer = self.pool.read(segment.path, base, READ_SIZE)
        view = memoryview(buffer)
        while position < segment.size:
            entry = scan_record(buffer, view, position - base, segment.start + position)
            if entry is not None:
                if self._is_unwritten(segment, buffer, position - base, position, entry):
                    reason = "the last record ends in bytes that were never written"
                    yield Fault("record-unwritten", reason, entry.size)
                    return
                position += entry.size
                yield entry
                continue
            if base + len(buffer) < segment.size:
                size = self._window_size(
                    segment, buffer, position - base, position, segment.size - position
                )
                if position > base or size > len(buffer):
                    base = position
                    buffer = self.pool.read(segment.path, base, size)
                    view = memoryview(buffer)
                    if buffer:
                        continue
            remaining = segment.size - position
            if blank_size(buffer, position - base) == remaining:
                yield Filler(segment.start + position, remaining)
            else:
                yield self._fault(buffer, position - base, segment.start + position, remaining)
            return

    def _is_unwritten(
        self, segment: SegmentFile, buffer: bytes, position: int, at: int, entry: Scanned
    ) -> bool:
        """True if the record ends in zeros and nothing follows it: a kill can leave any first part
        of a record, and no checksum covers topic and properties (T5)."""
        end = position + entry.size
        if buffer[end - 1] or not (entry.properties or not buffer[end - 3]):
            return False
        following = self.pool.read(segment.path, at + entry.size, _BLANK_SIZE)
        return following == bytes(_BLANK_SIZE)

    def _window_size(
        self, segment: SegmentFile, buffer: bytes, position: int, at: int, remaining: int
    ) -> int:
        """Return how much to read at a record that the window cuts: all of it, if it is a record.

        A wrong length must not decide how much memory is used. So a record longer than a window
        must first claim this offset, and its fields, read without the body, must add up to that
        length. `position` is its position in the buffer, `at` the one in the segment.
        """
        offset = segment.start + at
        if not claims(buffer, position, offset):
            return READ_SIZE
        (claimed,) = _SIZE.unpack_from(buffer, position)
        if READ_SIZE < claimed <= remaining and self._length_at(offset) == claimed:
            return int(claimed)
        return READ_SIZE

    @staticmethod
    def _fault(buffer: bytes, position: int, offset: int, remaining: int) -> Fault:
        claimed = blank_size(buffer, position)
        if claimed is not None:
            reason = f"a filler of {claimed} bytes with {remaining} to the end of the segment"
            return Fault("log-filler", reason, -1)
        record = dissect(buffer, position, offset)
        if isinstance(record, Fault):
            return record
        return Fault("record-changed", "the record changed while it was read", -1)

    def _next_claim(self, number: int, after: int) -> int | None:
        """Return the first offset after `after` at which a message claims to be."""
        for segment in self.segments[number:]:
            position = max(0, after + 1 - segment.start)
            for first, last in self.pool.data_ranges(segment.path, position, segment.size):
                claim = self._claim_in(segment, max(position, first - _PROBE), last)
                if claim is not None:
                    return claim
        return None

    def _claim_in(self, segment: SegmentFile, first: int, last: int) -> int | None:
        while first < last:
            buffer = self.pool.read(segment.path, first, READ_SIZE)
            at = buffer.find(MAGIC_PREFIX)
            while at >= 0:
                position = at - 4
                if position >= 0 and claims(buffer, position, segment.start + first + position):
                    return segment.start + first + position
                at = buffer.find(MAGIC_PREFIX, at + 1)
            if len(buffer) <= _PROBE:
                return None
            first += len(buffer) - _PROBE
        return None

    def _first_data(self, number: int, offset: int) -> int | None:
        for segment in self.segments[number:]:
            position = max(0, offset - segment.start)
            data_at = self.pool.first_data(segment.path, position, segment.size)
            if data_at is not None:
                return segment.start + data_at
        return None


def claims(buffer: bytes, position: int, offset: int) -> bool:
    """True if the bytes are the start of a message that claims to be at `offset`."""
    if len(buffer) - position < _PROBE:
        return False
    if buffer[position + 7] not in (0xA7, 0xAB) or buffer[position + 4 : position + 7] != (
        MAGIC_PREFIX
    ):
        return False
    return bool(_PHYSICAL_OFFSET.unpack_from(buffer, position + 28)[0] == offset)
