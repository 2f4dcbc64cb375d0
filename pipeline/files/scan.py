"""Scan a stretch of one file for its records and the gaps between them.

Framing does not depend on what is asked for: whether bytes are a record is decided by magic, the
position that the record claims, and its lengths, for every read alike, so that any two reads of a
stretch see the same records. After bytes that are not a record the reader looks for the next place
where a whole record stands.
"""

from collections.abc import Iterator
from typing import Final

from rocketbed.inspect.record import RECORD_SIZE_MIN, blank_size, scan_record
from rocketbed.pipeline.files.corrupt import (
    SHOWN_MAX,
    TORN_TAIL,
    Gap,
    frame_reason,
    may_be_long,
)
from rocketbed.pipeline.files.frame import Frame
from rocketbed.pipeline.files.segments import WINDOW, WINDOW_MIN, Segment, Window
from rocketbed.pipeline.files.walk import walk

_UNKNOWN: Final = -1
_HEAD_MAX: Final = 112
"""The fixed part of a record with two IPv6 hosts."""


class Scan:
    """Walks one file. Iterating gives a `Frame` of up to `rows` records, or a `Gap`."""

    def __init__(
        self,
        segment: Segment,
        start: int,
        stop: int,
        *,
        rows: int = 4096,
        is_tail: bool = True,
        durable: int = _UNKNOWN,
    ) -> None:
        """Records that begin in `[start, stop)` of the file; `start` is a record's start.

        `is_tail`: no later file holds records, so the log may end here. `durable`: physical offset
        up to which the log was certainly on disk, -1 if unknown.
        """
        self.segment = segment
        self.stop = min(stop, segment.size)
        self.rows = rows
        self.position = start
        """Position of the next record in the file."""
        self.is_at_end = False
        """True if the log, or the file, ends at `position`."""
        self.resyncs = 0
        """Number of searches for the next record."""
        self._is_tail = is_tail
        self._durable = durable

    def __iter__(self) -> Iterator[Frame | Gap]:
        segment = self.segment
        size, most = 0, WINDOW
        while self.position < self.stop:
            window = segment.window(self.position, size, most)
            before = self.position
            yield from self._frames(window)
            if self.position > before:
                size, most = 0, min(4 * most, WINDOW)
                continue
            claimed = int.from_bytes(window.data[:4], "big", signed=True)
            if window.length < claimed <= segment.size - self.position and may_be_long(
                window.data, segment.base + self.position
            ):
                size = claimed
                continue
            size, most = 0, WINDOW_MIN
            gap = self._gap(window)
            if gap is not None:
                yield gap
            if self.is_at_end:
                return
        self.is_at_end = self.position >= segment.size

    def _frames(self, window: Window) -> Iterator[Frame]:
        """Frames of the good records at the window's start; moves `position` after them."""
        at = 0
        stop = self.stop - window.origin
        offset = self.segment.base + window.origin
        positions, following = walk(window.data, at, stop, window.length, offset)
        for first in range(0, len(positions), self.rows):
            selected = positions[first : first + self.rows]
            frame = Frame(window.data, selected, offset)
            if frame.count < len(selected):
                self.position = window.origin + int(selected[frame.count])
                if frame.count:
                    yield frame
                return
            last = first + len(selected)
            end = following if last == len(positions) else int(positions[last])
            self.position = window.origin + end
            yield frame

    def _gap(self, window: Window) -> Gap | None:
        """Describe the bytes at `position`, which are not a record, and move after them.

        None for a filler and for the log's end.
        """
        segment, position = self.segment, self.position
        remaining = segment.size - position
        if blank_size(bytes(window.data[:8]), 0) == remaining:
            # Bytes after the filler are not of the log: RocketMQ truncates without zeroing.
            self.position = segment.size
            self.is_at_end = True
            return None
        offset = segment.base + position
        may_end = self._is_tail and (self._durable == _UNKNOWN or offset >= self._durable)
        following = None if may_end and self._durable != _UNKNOWN else self._resync(position + 1)
        reason = frame_reason(window.data, 0, offset, remaining)
        prefix = bytes(window.data[: min(SHOWN_MAX, window.length)])
        if following is not None:
            self.resyncs += 1
            self.position = following
        elif may_end:
            self.is_at_end = True
            return None
        elif self._is_tail:
            end = min(self._durable, segment.base + segment.size)
            self.is_at_end = True
            return Gap(offset, end, TORN_TAIL, prefix)
        else:
            self.position = segment.size
            self.is_at_end = True
        end = segment.base + self.position
        return Gap(offset, end, reason, prefix[: end - offset])

    def _resync(self, position: int) -> int | None:
        """First position from `position` on with a whole good record."""
        return next(good_records(self.segment, position), None)


def good_records(segment: Segment, position: int) -> Iterator[int]:
    """Yield positions from `position` on with a whole good record, checksum included."""
    for at in segment.claims_from(position):
        remaining = segment.size - at
        if remaining < RECORD_SIZE_MIN:
            return
        head = segment.peek(at, _HEAD_MAX).ljust(_HEAD_MAX, b"\0")
        size = int.from_bytes(head[:4], "big", signed=True)
        if not RECORD_SIZE_MIN <= size <= remaining or not may_be_long(head, segment.base + at):
            continue
        data = segment.peek(at, size)
        if scan_record(data, memoryview(data), 0, segment.base + at) is not None:
            yield at
