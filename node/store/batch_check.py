"""Comparison of batch queues with the log (store.md 3.5), for the scrub.

The position of a record's unit in a batch queue does not follow from its queue offset. So a queue
is compared with the log unit by unit.
"""

from rocketbed.node.store.batch_queue import (
    MESSAGES_MAX,
    BatchConsumeQueue,
    batch_unit,
    is_unit_of,
)
from rocketbed.node.store.commitlog import CommitLog
from rocketbed.node.store.cursor import LogCursor
from rocketbed.node.store.damage import DamagedRanges
from rocketbed.node.store.entry import Entry

BLOCK = 1024
"""Units read at once, to find where to begin."""


class BatchCheck:
    """Follows the log with a position in each batch queue."""

    def __init__(self, log: CommitLog, damaged: DamagedRanges, cursor: LogCursor) -> None:
        self._log = log
        self._damaged = damaged
        self._cursor = cursor
        self._next_units: dict[BatchConsumeQueue, int] = {}
        """Number of the unit expected next."""
        self.begun_at = 0
        """Offset of the log at which the scrub began."""

    def find(self, queue: BatchConsumeQueue, entry: Entry) -> int | None:
        """Return the number of the unit that points to a record, or has to; None if there is none.

        Records have to come in the order of the log; some may be left out. Raises `OSError`.
        """
        if abs(entry.units) > MESSAGES_MAX:
            return None
        number = self._next_units.get(queue, -1)
        if number < queue.first_unit:
            return self._begin(queue, entry)
        return self._find_from(number, queue, entry)

    def _begin(self, queue: BatchConsumeQueue, entry: Entry) -> int | None:
        """Return the same for the first record of a queue."""
        number = self._find_from(self._first(queue, entry), queue, entry)
        if number is None or number == queue.first_unit:
            return number
        if self._is_gone(queue, number - 1, entry):
            queue.keep_from(number, self._log.min_offset)
        return number

    def _find_from(self, number: int, queue: BatchConsumeQueue, entry: Entry) -> int | None:
        while number < queue.end_unit:
            unit = queue.unit_at(number)
            is_own = unit is not None and _is_of(unit, entry)
            if is_own or not self._is_true(queue, number):
                # A false unit may be of a record that names another queue: no checksum covers that.
                own = number if is_own else queue.number_of(entry.physical_offset)
                if own > number and is_unit_of(queue.unit_at(own), entry):
                    number = own
                self._next_units[queue] = number + 1
                return number
            if unit is not None and unit[0] > entry.physical_offset:
                break
            number += 1
        self._next_units[queue] = number
        return None

    def _first(self, queue: BatchConsumeQueue, entry: Entry) -> int:
        """Return the first unit that does not belong to a record below that of `entry`."""
        number, end, offset = queue.first_unit, queue.end_unit, entry.physical_offset
        while number < end:
            units = queue.units(number, BLOCK)
            if not units or units[-1][0] >= offset:
                break
            number += len(units)
        while number < end:
            unit = queue.trusted_unit(number)
            if unit is not None and unit[0] >= offset:
                break
            number += 1
        while number > queue.first_unit and not _is_own_and_joined(queue, number, entry):
            if self._is_below(queue, number - 1, entry):
                break
            number -= 1
        return number

    def _is_gone(self, queue: BatchConsumeQueue, number: int, entry: Entry) -> bool:
        """True if no record of the log before `entry` can be that of a unit."""
        low, offset = self._log.min_offset, entry.physical_offset
        if self.begun_at > low or self._damaged.hit(low, offset - low) is not None:
            return False  # not all of them were read
        unit = queue.unit_at(number)
        if unit is None or not low <= unit[0] <= offset:
            return True
        if unit[0] == offset:  # its own, of which it says something else, or a copy of that
            return is_unit_of(unit, entry)
        return not self._cursor.record_at(unit[0]).entries

    def _is_below(self, queue: BatchConsumeQueue, number: int, entry: Entry) -> bool:
        unit = queue.unit_at(number)
        if unit is None or unit[0] >= entry.physical_offset or _is_of(unit, entry):
            return False
        return self._is_true(queue, number)

    def _is_true(self, queue: BatchConsumeQueue, number: int) -> bool:
        """True if a unit is that of a record of its queue, or may be that of an expired or
        unreadable record, and no other unit is."""
        unit = queue.unit_at(number)
        if unit is None or unit[0] < self._log.min_offset:
            return queue.trusted_unit(number, ignore_next=number > queue.first_unit) is not None
        if self._damaged.hit(unit[0], 1) is not None:
            # Its record cannot be read, and may be healed: the unit belongs to no other record.
            return queue.trusted_unit(number) is not None
        entry = next(iter(self._cursor.record_at(unit[0]).entries), None)
        if entry is None or queue.trusted_unit(number) is None:
            return False
        if (entry.topic, entry.queue_id) != (queue.topic, queue.queue_id):
            return False
        record_says = entry.queue_offset, abs(entry.units)
        return is_unit_of(unit, entry) or queue.slot_of(entry) not in (None, record_says)


def _is_of(unit: tuple[int, ...], entry: Entry) -> bool:
    """True if a unit has a record's offset in the log, or equals its unit in everything else."""
    return unit[0] == entry.physical_offset or unit[1:6] == batch_unit(entry)[1:6]


def _is_own_and_joined(queue: BatchConsumeQueue, number: int, entry: Entry) -> bool:
    """True if a unit is a record's and ends where the next one begins; a copy of it does not."""
    after = queue.unit_at(number + 1) if number + 1 < queue.end_unit else None
    is_joined = after is not None and after[4] == entry.queue_offset + abs(entry.units)
    return is_joined and is_unit_of(queue.unit_at(number), entry)
