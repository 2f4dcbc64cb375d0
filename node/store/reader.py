"""Reading messages: by queue, by offset, by time, by key (store.md 4.4, 10).

Bytes in the page cache are read in the loop, all others with `World.offload`, with the segments
pinned meanwhile (design.md 8).
"""

import struct
import sys
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import NamedTuple

from rocketbed.node.store.batch_queue import BatchConsumeQueue
from rocketbed.node.store.consumequeue import ConsumeQueue
from rocketbed.node.store.errors import CorruptRecord
from rocketbed.node.store.parts import StoreParts
from rocketbed.node.store.picker import GetResult, Picker, Range, pick_batches
from rocketbed.node.store.status import GetStatus
from rocketbed.wire.message import HEAD, MAGIC_V1, MAGIC_V2, RECORD_MIN
from rocketbed.world.api import File

_PLACE = struct.Struct(">ii20xq")
"""Size, magic and physical offset of a record."""
SPAN_MAX = 1 << 19
GAP_MAX = 1 << 14
"""Most bytes of one read of several records, and between two of them. A separate read costs 1 us,
as much as copying 40 KiB: 32 records of one of 8 queues take 11 us in one read, 33 in 32."""
UNITS_STEP = 64
UNITS_MAX = 800
"""Queue units read at a time: no more than are needed, since 800 cost a sixth of a pull of 32; with
a tag filter, two pulls' worth at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    records: list[bytes]
    last_update_ms: int
    last_update_offset: int


class _Span(NamedTuple):
    """Records that one read gets, all of one segment."""

    start: int
    end: int
    ranges: list[Range]


class Reader:
    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts
        self._scratch = memoryview(bytearray(SPAN_MAX))
        """For reads with gaps, of which only the records are copied."""

    def get_messages(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        *,
        max_bytes: int | None = None,
        tag_codes: Set[int] | None = None,
    ) -> GetResult:
        """Return the records that a pull from `offset` gets; `tag_codes` None takes all.

        Raises `CorruptRecord` if the first of them is known to be damaged.
        """
        queue = self._parts.queues.find(topic, queue_id)
        if queue is None:
            return self._bounds_miss(GetStatus.NO_MATCHED_LOGIC_QUEUE, offset, 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if high == 0:
            return self._bounds_miss(GetStatus.NO_MESSAGE_IN_QUEUE, offset, 0, 0)
        if offset < low:
            return self._bounds_miss(GetStatus.OFFSET_TOO_SMALL, offset, low, high)
        if offset == high:
            return self._bounds_miss(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:
            return self._bounds_miss(GetStatus.OFFSET_OVERFLOW_BADLY, offset, low, high)
        result = GetResult(
            status=GetStatus.NO_MATCHED_MESSAGE, next_offset=offset, min_offset=low, max_offset=high
        )
        if isinstance(queue, BatchConsumeQueue):
            pick_batches(self._parts, queue, result, max_messages)
        else:
            self._collect(queue, result, max_messages, max_bytes, tag_codes)
        return result

    def _bounds_miss(self, status: GetStatus, offset: int, low: int, high: int) -> GetResult:
        """Return a miss, with the offset to continue at (on a slave the reader's own, store.md
        10.1)."""
        corrected = {
            GetStatus.NO_MATCHED_LOGIC_QUEUE: 0,
            GetStatus.NO_MESSAGE_IN_QUEUE: 0,
            GetStatus.OFFSET_TOO_SMALL: low,
            GetStatus.OFFSET_OVERFLOW_ONE: offset,
            GetStatus.OFFSET_OVERFLOW_BADLY: high,
        }[status]
        config = self._parts.config
        if config.is_slave and not config.offset_check_in_slave:
            corrected = offset
        return GetResult(status=status, next_offset=corrected, min_offset=low, max_offset=high)

    def _collect(
        self,
        queue: ConsumeQueue,
        result: GetResult,
        max_messages: int,
        max_bytes: int | None,
        tag_codes: Set[int] | None,
    ) -> None:
        units_max = max(self._parts.config.max_filter_bytes // 20, max_messages)
        first = result.next_offset
        picker = Picker(self._parts, result, max_messages, max_bytes, tag_codes)
        while not picker.full and (lacking := max_messages - len(result.ranges)) > 0:
            step = min(lacking, UNITS_MAX)
            if tag_codes is not None:
                step = max(step, UNITS_STEP)
            step = min(step, units_max - (result.next_offset - first))
            units = queue.units(result.next_offset, step)
            if not units:
                break
            picker.pick(units)
        if result.next_offset == first:
            row_end = (first * 20 // queue.row.size + 1) * queue.row.size // 20
            result.status, result.next_offset = GetStatus.OFFSET_FOUND_NULL, row_end
            return
        if result.ranges:
            result.status = GetStatus.FOUND
        memory = self._parts.config.memory_bytes
        lag = self._parts.log.written.value - picker.last_physical
        result.suggest_slave = bool(memory) and picker.last_physical >= 0 and lag > memory

    def read_cached(self, ranges: list[Range]) -> bytes | None:
        """Return the records if the page cache holds them all; close ones are read together.

        Raises `CorruptRecord`.
        """
        log, parts = self._parts.log, []
        for start, end, records in _spans(ranges, log.segment_size, GAP_MAX, SPAN_MAX):
            size = end - start
            data = self._scratch[:size] if size <= SPAN_MAX else memoryview(bytearray(size))
            if not log.segments.fill_cached(start, data):
                return None
            parts.append(_cut(data, start, records))
        return b"".join(parts)

    async def read(self, ranges: list[Range]) -> bytes:
        """Return the records, from the disk if need be, with one hop to a thread.

        Records deleted meanwhile are left out; all, if the log was cut meanwhile. Raises
        `CorruptRecord`.
        """
        log, parts = self._parts.log, []
        # No gaps: the bytes in between may be on a bad sector.
        spans = _spans(ranges, log.segment_size, 0, log.segment_size)
        pieces = await self._read_pieces([(span.start, span.end - span.start) for span in spans])
        if pieces is None:
            return b""
        for start, _, records in spans:
            if start in pieces:
                parts.append(_cut(pieces[start], start, records))
            elif start >= log.min_offset:
                raise _not_there(*records[0])
        return b"".join(parts)

    async def _read_pieces(self, pieces: list[Range]) -> dict[int, bytes] | None:
        """Return the existing ones among some pieces of the log, by physical offset; None if it was
        cut meanwhile."""
        log = self._parts.log
        segments, cuts = log.segments, log.cuts
        reads: list[tuple[int, File, int, int]] = []
        pinned: list[int] = []
        try:
            for offset, size in pieces:
                if segments.has(offset):
                    start = segments.start_of(offset)
                    reads.append((offset, segments.pin(start), offset - start, size))
                    pinned.append(start)
            data = await self._parts.world.offload(_read_all, reads) if reads else {}
        finally:
            for start in pinned:
                segments.unpin(start)
        return data if log.cuts == cuts else None

    async def record_at(self, physical_offset: int) -> bytes | None:
        """Return the record that begins there, or None. Any client can ask, so sizes are
        bounded."""
        log = self._parts.log
        if not log.min_offset <= physical_offset < log.written.value:
            return None
        head = await self._small(physical_offset, HEAD.size)
        if len(head) < HEAD.size:
            return None
        size, magic, *_ = HEAD.unpack(head)
        if magic not in (MAGIC_V1, MAGIC_V2) or HEAD.unpack(head)[6] != physical_offset:
            return None
        room = log.segment_size - physical_offset % log.segment_size
        if not RECORD_MIN <= size <= room or physical_offset + size > log.written.value:
            return None
        record = await self._small(physical_offset, size)
        return record if len(record) == size else None

    async def _small(self, offset: int, size: int) -> bytes:
        """Return bytes of the log that need not be a record, empty if they no longer exist."""
        cached = self._parts.log.read_cached(offset, size)
        if cached is not None:
            return cached
        return (await self._read_pieces([(offset, size)]) or {}).get(offset, b"")

    async def store_ms(self, physical_offset: int) -> int:
        """Return the store time of the record at an offset; 0 if it cannot be read."""
        head = await self._small(physical_offset, 76)
        if len(head) < 76:
            return 0
        at = 68 if head[39] & 0x10 else 56
        return int.from_bytes(head[at : at + 8], "big")

    async def stored_ms(self, topic: str, queue_id: int, offset: int | None = None) -> int:
        """Return the store time of the message at a queue offset, or of the first one; -1 if it
        does not exist."""
        queue = self._parts.queues.find(topic, queue_id)
        if queue is None:
            return -1
        unit = _unit_of(queue, queue.min_offset if offset is None else offset)
        if unit is None or unit[0] < self._parts.log.min_offset:
            return -1
        return await self.store_ms(unit[0])

    async def offset_by_time(self, topic: str, queue_id: int, time_ms: int, *, upper: bool) -> int:
        """Return the first queue offset with store time >= `time_ms`; with `upper` the last one <=
        it.

        Clamped to the queue's bounds; equal times give the first, or with `upper` the last.
        """
        queue = self._parts.queues.find(topic, queue_id)
        if queue is None or queue.max_offset == 0:
            return 0
        low, high = queue.min_offset, queue.max_offset
        while low < high:
            middle = (low + high) // 2
            unit = _unit_of(queue, middle)
            at_ms = -1
            if unit is not None and unit[0] >= self._parts.log.min_offset:
                at_ms = await self.store_ms(unit[0])
            if at_ms < time_ms or (upper and at_ms == time_ms):
                low = middle + 1
            else:
                high = middle
        if upper:
            return max(low - 1, queue.min_offset)
        return min(low, queue.max_offset)

    async def query(
        self, topic: str, key: str, count: int, begin_ms: int, end_ms: int
    ) -> QueryResult:
        """Return records with a key, oldest first, at most `count` or the configured maximum.

        Includes hash collisions, as upstream; clients compare the key. Raises `CorruptRecord` if
        one of them is damaged.
        """
        index = self._parts.index
        count = min(count, self._parts.config.max_query_messages)
        records: list[bytes] = []
        for _ in range(3):
            offsets = sorted(index.query(topic, key, count, begin_ms, end_ms))
            records = await self.indexed(offsets)
            if records or not offsets:
                break
            end_ms = await self.store_ms(offsets[0])
        newest = index.files[-1] if index.files else None
        return QueryResult(
            records=records,
            last_update_ms=newest.end_ms if newest else 0,
            last_update_offset=newest.end_offset if newest else 0,
        )

    def places(self, topic: str, key: str) -> list[int]:
        """Return log offsets of all records that may have a key, rising."""
        return sorted(self._parts.index.query(topic, key, sys.maxsize, 0, sys.maxsize))

    async def indexed(self, offsets: Iterable[int]) -> list[bytes]:
        """Return the records that the index names; expired ones are left out. Raises
        `CorruptRecord` if one of them is damaged."""
        records: list[bytes] = []
        for offset in offsets:
            self._parts.damaged.refuse(offset)
            record = await self.record_at(offset)
            if record is not None:
                records.append(record)
            elif self._parts.log.min_offset <= offset < self._parts.log.written.value:
                raise CorruptRecord(
                    f"the index names a record at offset {offset}, and the log has none there:"
                    " either is damaged, the scrub will tell which; read it from a replica",
                    offset=offset,
                )
        return records


def _read_all(reads: list[tuple[int, File, int, int]]) -> dict[int, bytes]:
    """Read (physical offset, file, offset in it, size), blocking; short reads are left out."""
    pieces = [(at, file.read_at(offset, size), size) for at, file, offset, size in reads]
    return {at: data for at, data, size in pieces if len(data) == size}


def _cut(data: bytes | memoryview, start: int, ranges: list[Range]) -> bytes:
    """Return the records of a span. Raises `CorruptRecord` if the log does not have the record that
    the queue names. A client compares the body with its checksum; it could not see that the message
    is a different one, from a segment in the wrong place."""
    pieces: list[bytes | memoryview] = []
    begin = end = 0
    for offset, size in ranges:
        at = offset - start
        if size < RECORD_MIN or at + size > len(data):
            raise _not_there(offset, size)
        found_size, magic, found_offset = _PLACE.unpack_from(data, at)
        if found_size != size or found_offset != offset or magic not in (MAGIC_V2, MAGIC_V1):
            raise _not_there(offset, size)
        if at != end:
            pieces.append(data[begin:end])
            begin = at
        end = at + size
    pieces.append(data[begin:end])
    return b"".join(pieces)


def _not_there(offset: int, size: int) -> CorruptRecord:
    return CorruptRecord(
        f"the log has no record of {size} bytes at offset {offset}, where its queue says"
        " there is one: either is damaged, the scrub will tell which; until then, read"
        " the message from a replica",
        offset=offset,
    )


def _unit_of(queue: ConsumeQueue | BatchConsumeQueue, queue_offset: int) -> tuple[int, ...] | None:
    """Return the unit that covers a queue offset."""
    if isinstance(queue, BatchConsumeQueue):
        number = queue.find(queue_offset)
        return queue.unit_at(number) if number < queue.end_unit else None
    if not queue.first_unit <= queue_offset < queue.end_unit:
        return None
    return queue.unit_at(queue_offset)


def _spans(ranges: list[Range], segment_size: int, gap_max: int, span_max: int) -> list[_Span]:
    """Return reads that cover records of the log, close ones in one read. Raises
    `CorruptRecord`."""
    spans: list[_Span] = []
    records: list[Range] = []
    start = end = segment_end = -1
    for offset, size in ranges:
        is_near = 0 <= offset - end <= gap_max and offset < segment_end
        if not (is_near and offset + size - start <= span_max):
            if records:
                spans.append(_Span(start, end, records))
            start, records = offset, []
            segment_end = offset - offset % segment_size + segment_size
        end = offset + size
        if end > segment_end:
            raise _not_there(offset, size)
        records.append((offset, size))
    if records:
        spans.append(_Span(start, end, records))
    return spans
