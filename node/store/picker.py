"""Choice of the records for one pull, from the units of its queue (store.md 10.1).

Units have no checksum, so they are trusted only as far as they can be true.
"""

from collections.abc import Set
from dataclasses import dataclass, field

from rocketbed.node.store.batch_queue import BatchConsumeQueue
from rocketbed.node.store.errors import CorruptRecord
from rocketbed.node.store.parts import StoreParts
from rocketbed.node.store.status import GetStatus
from rocketbed.node.store.unit_queue import BLANK_UNIT_SIZE
from rocketbed.wire.message import RECORD_MIN

Range = tuple[int, int]
"""Physical offset and size of a record, bytes."""


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
    """True if the reader lags so far that a slave should serve it."""


class Picker:
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
        """True if a record was left for the next pull."""
        self.last_physical = -1
        """Physical offset of the last unit that was read, -1 without any."""
        self._before = -1

    def pick(self, units: list[tuple[int, ...]]) -> None:
        """Take what fits, moving the result's next offset past the units that were read.

        A damaged record or unit ends the pull before it. Raises `CorruptRecord` if it is the first
        one.
        """
        result, ranges = self._result, self._result.ranges
        for physical, size, code in units:
            if size == BLANK_UNIT_SIZE and physical == 0:
                result.next_offset += 1
                continue
            if size < RECORD_MIN or physical <= self._before:  # units rise, as the log does
                if not ranges:
                    raise rotten(result.next_offset, size, physical)
                self.full = True
                return
            self._before = physical
            count_max, bytes_max = (
                self._in_memory if physical >= self._memory_from else self._on_disk
            )
            if ranges and (len(ranges) >= count_max or self._total + size > bytes_max):
                self.full = True
                return
            matches = self._tag_codes is None or code in self._tag_codes
            if matches and self._damaged.ranges and self._damaged.hit(physical, size):
                if not ranges:
                    self._damaged.refuse(physical, size)
                self.full = True
                return
            result.next_offset += 1
            if physical < self._log_min:
                result.status = GetStatus.MESSAGE_WAS_REMOVING
                continue
            self.last_physical = physical
            if matches:
                ranges.append((physical, size))
                self._total += size


def pick_batches(
    parts: StoreParts, queue: BatchConsumeQueue, result: GetResult, max_messages: int
) -> None:
    """Choose whole records that together hold at least one and about `max_messages` messages.

    A damaged record or unit ends the pull before it. Raises `CorruptRecord` if it is the first one.
    """
    number, count, total = queue.find(result.next_offset), 0, 0
    limit, log_min = parts.config.transfer_bytes_memory, parts.log.min_offset
    if number == queue.end_unit:
        number -= 1  # below the queue's end all is covered: the last unit is wrong
    while number < queue.end_unit and count < max_messages:
        unit = queue.trusted_unit(number)
        if unit is None or not _goes_on(queue, number, unit, result.next_offset):
            if not result.ranges:
                physical, size = (queue.unit_at(number) or (0, 0))[:2]
                raise rotten(result.next_offset, size, physical)
            break
        if total and total + unit[1] > limit:
            break
        if parts.damaged.hit(unit[0], unit[1]):
            if not result.ranges:
                parts.damaged.refuse(unit[0], unit[1])
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


def _goes_on(
    queue: BatchConsumeQueue, number: int, unit: tuple[int, ...], queue_offset: int
) -> bool:
    """True if a damaged unit cannot hide anything between a queue offset and a unit."""
    if unit[4] + unit[5] <= queue_offset:
        return False
    is_first = unit[4] <= queue_offset or number == queue.kept_unit
    return is_first or queue.trusted_unit(number - 1) is not None


def rotten(queue_offset: int, size: int, physical: int) -> CorruptRecord:
    """Return the error for a queue unit that cannot be true."""
    return CorruptRecord(
        f"the entry at queue offset {queue_offset} is damaged: it names {size} bytes at offset"
        f" {physical} of the log; the scrub repairs it, and so does a start without this queue's"
        " files; or read from a replica",
        offset=physical,
    )
