"""Consume queues, which map the n-th message of a topic and queue to its record.

There are two kinds: units of 20 bytes at slot `20 * queue offset`, and for BatchCQ topics
consecutive units of 46 bytes, each for a record that may hold several messages (store.md 3).
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from rocketbed.inspect.files import READ_SIZE, FilePool, SegmentFile, SegmentRow

UNIT = struct.Struct(">qiq")
BATCH_UNIT = struct.Struct(">qiqqqhii")
PRE_BLANK_SIZE = 0x7FFFFFFF
PRE_BLANK = UNIT.pack(0, PRE_BLANK_SIZE, 0)
"""Unit of a slot that never had a message (store.md 3.2)."""
EMPTY = bytes(UNIT.size)
EXTENSION_ADDRESS_MAX = -2147483649
"""Highest tags field that is an address in `consumequeue_ext` (store.md 3.4)."""


class Unit(NamedTuple):
    """A unit: slot (queue offset), offset and size of the record in bytes, tags field."""

    slot: int
    offset: int
    size: int
    tag_code: int

    @property
    def is_pre_blank(self) -> bool:
        """True if the unit only fills a slot."""
        return self.size == PRE_BLANK_SIZE and self.offset == 0


class BatchUnit(NamedTuple):
    """A unit of a batch queue; `number` counts units, `base` and `messages` count messages."""

    number: int
    offset: int
    size: int
    tag_code: int
    store_ms: int
    base: int
    messages: int


class QueueBounds(NamedTuple):
    """First and next queue offset of a queue, in messages."""

    minimum: int
    maximum: int


class ConsumeQueue(SegmentRow):
    """The 20-byte units of one topic and queue."""

    def __init__(
        self, pool: FilePool, topic: str, queue_id: int, segments: tuple[SegmentFile, ...]
    ) -> None:
        super().__init__(pool, segments)
        self.topic = topic
        self.queue_id = queue_id

    def window(self, slot: int, count: int) -> bytes:
        """Return up to `count` units from a slot on, as bytes, within one segment."""
        data = self.read(slot * UNIT.size, count * UNIT.size)
        return data[: len(data) - len(data) % UNIT.size]

    def units(self, first: int = 0, end: int | None = None) -> Iterator[Unit]:
        """Yield the units that are not zero, with slots in `[first, end)`, including pre-blanks."""
        for segment in self.segments:
            last = segment.size - segment.size % UNIT.size
            if end is not None:
                last = min(last, end * UNIT.size - segment.start)
            position = max(0, first * UNIT.size - segment.start)
            for begin, stop in self.pool.data_ranges(segment.path, position, last):
                yield from self._units_between(segment, max(position, begin), stop, last)
                position = -(-stop // UNIT.size) * UNIT.size

    def bounds(self, log_min: int) -> QueueBounds:
        """Return queue offsets `[minimum, maximum)`: the first unit with a record at or above
        `log_min`, and the slot after the last unit (store.md 3.3; pre-blanks count as absent:
        T6)."""
        maximum = self.end_slot()
        for unit in self.units(0, maximum):
            if not unit.is_pre_blank and unit.size > 0 and unit.offset >= log_min:
                return QueueBounds(unit.slot, maximum)
        return QueueBounds(maximum, maximum)

    def end_slot(self) -> int:
        """Return the slot after the last unit that is not zero; the first slot of an empty
        queue."""
        for segment in reversed(self.segments):
            last = -1
            for begin, stop in self.pool.data_ranges(segment.path, 0, segment.size):
                begin -= begin % UNIT.size
                stripped = self.pool.read(segment.path, begin, stop - begin).rstrip(b"\0")
                if stripped:
                    last = (begin + len(stripped) - 1) // UNIT.size
            if last >= 0:
                return segment.start // UNIT.size + last + 1
        return self.segments[0].start // UNIT.size if self.segments else 0

    def _units_between(
        self, segment: SegmentFile, begin: int, stop: int, last: int
    ) -> Iterator[Unit]:
        position = begin - begin % UNIT.size
        stop = min(last, -(-stop // UNIT.size) * UNIT.size)
        step = READ_SIZE // UNIT.size * UNIT.size
        while position < stop:
            data = self.pool.read(segment.path, position, min(step, stop - position))
            data = data[: len(data) - len(data) % UNIT.size]
            if not data:
                return
            slot = (segment.start + position) // UNIT.size
            for offset, size, tag_code in UNIT.iter_unpack(data):
                if offset or size or tag_code:
                    yield Unit(slot, offset, size, tag_code)
                slot += 1
            position += len(data)


class BatchConsumeQueue(SegmentRow):
    """The 46-byte units of one topic and queue."""

    def __init__(
        self, pool: FilePool, topic: str, queue_id: int, segments: tuple[SegmentFile, ...]
    ) -> None:
        super().__init__(pool, segments)
        self.topic = topic
        self.queue_id = queue_id

    def units(self) -> Iterator[BatchUnit]:
        """Yield the valid units in order (store.md 3.5); the first invalid one ends the queue."""
        for segment in self.segments:
            step = READ_SIZE // BATCH_UNIT.size * BATCH_UNIT.size
            for position in range(0, segment.size, step):
                data = self.pool.read(segment.path, position, min(step, segment.size - position))
                data = data[: len(data) - len(data) % BATCH_UNIT.size]
                number = (segment.start + position) // BATCH_UNIT.size
                for fields in BATCH_UNIT.iter_unpack(data):
                    offset, size, _, _, base, count, _, _ = fields
                    if offset < 0 or size <= 0 or base < 0 or count <= 0:
                        return
                    yield BatchUnit(number, *fields[:6])
                    number += 1

    def bounds(self, log_min: int) -> QueueBounds:
        """Return the queue offsets `[minimum, maximum)`, in messages."""
        minimum: int | None = None
        maximum = 0
        for unit in self.units():
            if minimum is None and unit.offset >= log_min:
                minimum = unit.base
            maximum = unit.base + unit.messages
        return QueueBounds(maximum if minimum is None else minimum, maximum)


def extension_tag(pool: SegmentRow, address: int) -> int | None:
    """Return the tag code of a unit in `consumequeue_ext`, by the address in a queue unit (3.4)."""
    data = pool.read(address + (1 << 63), 10)
    if len(data) < 10:
        return None
    size, tag_code = struct.unpack(">hq", data)
    return int(tag_code) if size >= 20 else None
