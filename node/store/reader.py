"""Reading messages: by queue, by offset, by time, by key (store.md 4.4, 10).

What the page cache holds is read in the loop; what it does not hold goes through
`World.offload`, with the segments pinned meanwhile (design.md 8).
"""

from collections.abc import Set
from dataclasses import dataclass, field

from rocketbed.node.store.batch_queue import BatchConsumeQueue
from rocketbed.node.store.consumequeue import ConsumeQueue
from rocketbed.node.store.parts import StoreParts
from rocketbed.node.store.status import GetStatus
from rocketbed.node.store.unit_queue import BLANK_UNIT_SIZE
from rocketbed.wire.message import HEAD, MAGIC_V1, MAGIC_V2, RECORD_MIN
from rocketbed.world.api import File

Range = tuple[int, int]
"""Physical offset and size of a record, bytes."""


UNITS_STEP = 64
"""Queue units read at a time: two pulls' worth; 800 at once cost a sixth of a pull."""


@dataclass(slots=True, kw_only=True)
class GetResult:
    """Outcome of `get_messages`. Offsets are queue offsets."""

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    ranges: list[Range] = field(default_factory=list)
    """The records, in queue order; read them with `read_cached` or `read`."""
    suggest_slave: bool = False
    """The reader is so far behind that a slave should serve it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    records: list[bytes]
    last_update_ms: int
    last_update_offset: int


class _Picker:
    """Chooses the records of one pull from units, within its limits (store.md 10.1)."""

    def __init__(
        self,
        parts: StoreParts,
        result: GetResult,
        max_messages: int,
        max_bytes: int | None,
        tag_codes: Set[int] | None,
    ) -> None:
        config = parts.config
        self._result = result
        self._tag_codes = tag_codes
        self._log_min = parts.log.min_offset
        self._damaged = parts.damaged
        self._memory_from = 0
        if config.memory_bytes:
            self._memory_from = parts.log.written.value - config.memory_bytes
        limit = max_bytes or config.transfer_bytes_memory
        self._in_memory = (
            min(max_messages, config.transfer_count_memory),
            min(limit, config.transfer_bytes_memory),
        )
        self._on_disk = (
            min(max_messages, config.transfer_count_disk),
            min(limit, config.transfer_bytes_disk),
        )
        self._total = 0
        self.full = False
        """Whether a record was left for the next pull."""
        self.last_physical = -1
        """Physical offset of the last unit looked at, -1 without any."""

    def pick(self, units: list[tuple[int, ...]]) -> None:
        """Take what fits, moving the result's next offset behind what was looked at.

        What comes before a damaged record is a pull of its own. Raises `CorruptRecord` at it.
        """
        result, ranges = self._result, self._result.ranges
        for physical, size, code in units:
            if size == BLANK_UNIT_SIZE and physical == 0:
                result.next_offset += 1
                continue
            count_max, bytes_max = (
                self._in_memory if physical >= self._memory_from else self._on_disk
            )
            if ranges and (len(ranges) >= count_max or self._total + size > bytes_max):
                self.full = True
                return
            is_wanted = self._tag_codes is None or code in self._tag_codes
            if is_wanted and self._damaged.found and self._damaged.hit(physical, size):
                if not ranges:
                    self._damaged.refuse(physical, size)
                self.full = True
                return
            result.next_offset += 1
            if physical < self._log_min:
                result.status = GetStatus.MESSAGE_WAS_REMOVING
                continue
            self.last_physical = physical
            if is_wanted:
                ranges.append((physical, size))
                self._total += size


class Reader:
    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts

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
        """Which records a pull from `offset` gets; `tag_codes` None takes all.

        Raises `CorruptRecord` where the first of them is known to be damaged.
        """
        queue = self._parts.queues.find(topic, queue_id)
        if queue is None:
            return self._bounds_miss(GetStatus.NO_MATCHED_LOGIC_QUEUE, offset, 0, 0)
        low, high = queue.min_offset, queue.readable_offset
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
            self._collect_batches(queue, result, max_messages)
        else:
            self._collect(queue, result, max_messages, max_bytes, tag_codes)
        return result

    def _bounds_miss(self, status: GetStatus, offset: int, low: int, high: int) -> GetResult:
        """A miss, with the offset to go on from (on a slave the reader's own, store.md 10.1)."""
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
        looked_max = max(self._parts.config.max_filter_bytes // 20, max_messages)
        first = result.next_offset
        picker = _Picker(self._parts, result, max_messages, max_bytes, tag_codes)
        while not picker.full and result.next_offset - first < looked_max:
            step = min(max(UNITS_STEP, max_messages), looked_max - (result.next_offset - first))
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
        behind = self._parts.log.written.value - picker.last_physical
        result.suggest_slave = bool(memory) and picker.last_physical >= 0 and behind > memory

    def _collect_batches(
        self, queue: BatchConsumeQueue, result: GetResult, max_messages: int
    ) -> None:
        """Whole records that together hold at least one and about `max_messages` messages."""
        number, count, total = queue.find(result.next_offset), 0, 0
        config, log_min = self._parts.config, self._parts.log.min_offset
        while number < queue.stored_units and count < max_messages:
            unit = queue.unit_at(number)
            if unit is None or (total and total + unit[1] > config.transfer_bytes_memory):
                break
            if self._parts.damaged.hit(unit[0], unit[1]):
                if not result.ranges:
                    self._parts.damaged.refuse(unit[0], unit[1])
                break
            number += 1
            result.next_offset = unit[4] + unit[5]
            if unit[0] < log_min:
                result.status = GetStatus.MESSAGE_WAS_REMOVING
                continue
            result.ranges.append((unit[0], unit[1]))
            count += unit[5]
            total += unit[1]
        if result.ranges:
            result.status = GetStatus.FOUND

    def read_cached(self, ranges: list[Range]) -> list[bytes] | None:
        """The records if the page cache holds them all; neighbours are read in one go."""
        found: list[bytes] = []
        for offset, size in merge_ranges(ranges):
            data = self._parts.log.read_cached(offset, size)
            if data is None or len(data) < size:
                return None
            found.append(data)
        return found

    async def read(self, ranges: list[Range]) -> list[bytes]:
        """The records, from the disk if need be, with one hop to a thread.

        Those that were deleted meanwhile are left out; none, if the log was cut meanwhile.
        """
        log = self._parts.log
        segments, cuts = log.segments, log.cuts
        wanted: list[tuple[File, int, int]] = []
        pinned: list[int] = []
        try:
            for offset, size in merge_ranges(ranges):
                if segments.has(offset):
                    start = segments.start_of(offset)
                    wanted.append((segments.pin(start), offset - start, size))
                    pinned.append(start)
            found = await self._parts.world.offload(_read_all, wanted) if wanted else []
            return found if log.cuts == cuts else []
        finally:
            for start in pinned:
                segments.unpin(start)

    async def record_at(self, physical_offset: int) -> bytes | None:
        """The record that begins there, or None. Any client can ask, so sizes are bounded."""
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
        cached = self._parts.log.read_cached(offset, size)
        if cached is not None:
            return cached
        return b"".join(await self.read([(offset, size)]))

    async def store_ms(self, physical_offset: int) -> int:
        """Store time of the record at an offset; 0 when it cannot be read."""
        head = await self._small(physical_offset, 76)
        if len(head) < 76:
            return 0
        at = 68 if head[39] & 0x10 else 56
        return int.from_bytes(head[at : at + 8], "big")

    async def earliest_ms(self, topic: str, queue_id: int) -> int:
        """Store time of the first message of a queue, -1 when it is empty."""
        queue = self._parts.queues.find(topic, queue_id)
        unit = _unit_of(queue, queue.min_offset) if queue is not None else None
        if unit is None or unit[0] < self._parts.log.min_offset:
            return -1
        return await self.store_ms(unit[0])

    async def offset_by_time(self, topic: str, queue_id: int, time_ms: int, *, upper: bool) -> int:
        """First queue offset with store time >= `time_ms`; with `upper` the last one <= it.

        Clamped to the queue's bounds; equal times give the first, or with `upper` the last.
        """
        queue = self._parts.queues.find(topic, queue_id)
        if queue is None or queue.readable_offset == 0:
            return 0
        low, high = queue.min_offset, queue.readable_offset
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
        return min(low, queue.readable_offset)

    async def query(
        self, topic: str, key: str, count: int, begin_ms: int, end_ms: int
    ) -> QueryResult:
        """Records with a key, oldest first, at most `count` or the configured maximum.

        Hash collisions are among them, as upstream; clients compare the key. Raises
        `CorruptRecord` if one of them is known to be damaged.
        """
        index = self._parts.index
        count = min(count, self._parts.config.max_query_messages)
        records: list[bytes] = []
        for _ in range(3):
            offsets = sorted(index.query(topic, key, count, begin_ms, end_ms))
            for offset in offsets:
                self._parts.damaged.refuse(offset)
                record = await self.record_at(offset)
                if record is not None:
                    records.append(record)
            if records or not offsets:
                break
            end_ms = await self.store_ms(offsets[0])
        newest = index.files[-1] if index.files else None
        return QueryResult(
            records=records,
            last_update_ms=newest.end_ms if newest else 0,
            last_update_offset=newest.end_offset if newest else 0,
        )


def _read_all(wanted: list[tuple[File, int, int]]) -> list[bytes]:
    """Blocking reads of (file, offset, size); short ones are left out."""
    found = [(file.read_at(offset, size), size) for file, offset, size in wanted]
    return [data for data, size in found if len(data) == size]


def _unit_of(queue: ConsumeQueue | BatchConsumeQueue, queue_offset: int) -> tuple[int, ...] | None:
    """The unit that covers a queue offset."""
    if isinstance(queue, BatchConsumeQueue):
        number = queue.find(queue_offset)
        return queue.unit_at(number) if number < queue.stored_units else None
    if not queue.first_unit <= queue_offset < queue.stored_units:
        return None
    return queue.unit_at(queue_offset)


def merge_ranges(ranges: list[Range]) -> list[Range]:
    """Join ranges that follow each other without a gap."""
    merged: list[Range] = []
    for offset, size in ranges:
        if merged and sum(merged[-1]) == offset:
            merged[-1] = (merged[-1][0], merged[-1][1] + size)
        else:
            merged.append((offset, size))
    return merged
