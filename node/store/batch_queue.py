"""Batch consume queues: a unit for each inner batch, of BatchCQ topics (store.md 3.5)."""

import struct
from collections.abc import Callable
from contextlib import suppress

from rocketbed.node.store.entry import Entry
from rocketbed.node.store.segments import SegmentRow
from rocketbed.node.store.unit_queue import PROBES, UnitQueue

BATCH_UNIT = struct.Struct(">qiqqqhii")
"""Physical offset, size, tag code, store time, first queue offset, count, -1, 0: 46 bytes."""
MESSAGES_MAX = (1 << 15) - 1
"""Most messages of a unit: its count is a 16-bit number."""
FIRST_MAX = 1 << 58
"""Highest queue offset of a queue's first record."""
LEAP_MAX = 1 << 32
"""Most messages that may be missing before a record; an offset further away is wrong."""


def batch_unit(entry: Entry) -> tuple[int, ...]:
    """Return the unit of a record; a single message is a batch of one, as in RocketMQ's
    dispatch."""
    count = abs(entry.units)
    place = entry.physical_offset, entry.size, entry.tag_code, entry.store_ms
    return *place, entry.queue_offset, count, -1, 0


def is_unit_of(unit: tuple[int, ...] | None, entry: Entry) -> bool:
    """True if a unit is a record's; RocketMQ's last fields do not matter."""
    return unit is not None and unit[:6] == batch_unit(entry)[:6]


class BatchConsumeQueue(UnitQueue):
    """A queue of inner batches: each unit contains the queue offsets that it covers (store.md
    3.5)."""

    unit = BATCH_UNIT
    setting = "mapperFileSizeBatchConsumeQueue"

    def __init__(self, topic: str, queue_id: int, row: SegmentRow) -> None:
        super().__init__(topic, queue_id, row)
        self.max_offset = 0
        """Queue offset of the next message."""
        self.min_offset = 0
        self._refused: tuple[int, ...] | None = None
        """Unit of the last record, if it has none in the queue."""
        self.knows_min = True
        """True if `min_offset` comes from the unit of the first record that still exists."""
        self._first_valid = 0
        """Units before this one are of expired records, and one of them may be damaged
        permanently."""

    @property
    def kept_unit(self) -> int:
        """First valid unit; after the units of expired records if the scrub found them."""
        return max(self.first_unit, self._first_valid)

    def keep_from(self, number: int, log_min: int) -> None:
        """Skip units before `number` from now on: their records have expired."""
        self._first_valid = number
        self.correct_min(log_min)

    def _is_blank(self, unit: tuple[int, ...]) -> bool:
        return False

    def _is_whole(self, unit: tuple[int, ...]) -> bool:
        return super()._is_whole(unit) and unit[4] >= 0 and unit[5] > 0

    def offset_after(self, end_unit: int) -> int:
        """Return the queue offset after the last message of unit `end_unit - 1`."""
        unit = self.unit_at(end_unit - 1) if end_unit > self.first_unit else None
        return unit[4] + unit[5] if unit else 0

    def set_end(self, end_unit: int) -> None:
        """Set the end as for every queue; the maximum follows from the last unit."""
        super().set_end(end_unit)
        self.max_offset = self.offset_after(end_unit)

    def cut_units(self, end_unit: int, *, keeps_first: bool = False) -> None:
        """Cut as for every queue; the maximum follows from the last unit that remains. Without one
        the queue starts afresh: the name of a segment says nothing about its messages."""
        maximum = self.offset_after(end_unit)
        super().cut_units(end_unit)
        self.max_offset, self._refused = maximum, None
        self._first_valid = min(self._first_valid, self.end_unit)

    def put_batch(self, entry: Entry) -> str:
        """Append the unit of one record; return what is odd about it, empty if nothing. A record
        may show that only the previous one named a wrong position: that is corrected."""
        unit = batch_unit(entry)
        base, count = unit[4:6]
        if count > MESSAGES_MAX:
            self.keep_outside(base, entry.physical_offset)
            return f"it says it holds {count} messages, a batch queue's unit takes {MESSAGES_MAX}"
        problem = self._correct_last(base) if base != self.max_offset or self._refused else ""
        next_offset, is_new = self.max_offset, not (self.end_unit or self.row.starts)
        if next_offset <= base <= (FIRST_MAX if is_new else next_offset + LEAP_MAX):
            self._place(unit)
            is_next = is_new or base == next_offset
            return (
                problem if is_next else f"queue offsets {next_offset} to {base - 1} have no record"
            )
        self._refused = unit
        self.keep_outside(base, entry.physical_offset)
        problem_word = "taken" if 0 <= base < next_offset else "impossible"
        return f"queue offset {base} is {problem_word}, the next is {next_offset}"

    def _place(self, unit: tuple[int, ...]) -> None:
        if not self.end_unit and not self.row.starts:
            self.min_offset = unit[4]
        self._pending += BATCH_UNIT.pack(*unit)
        self.end_unit += 1
        self.max_offset = unit[4] + unit[5]

    def _correct_last(self, base: int) -> str:
        """Correct the previous record, or its unit, if the next one's queue offset shows how."""
        refused, self._refused = self._refused, None
        if refused is not None and self.max_offset + refused[5] == base:
            return self._place_refused(refused, self.max_offset)
        last = self.end_unit - 1
        unit = self.unit_at(last) if last >= self.first_unit else None
        if unit is None or base >= self.max_offset or (last and last == self.first_unit):
            return ""
        next_offset = self.offset_after(last)
        if next_offset < unit[4] and next_offset + unit[5] == base:
            self._take_last()
            self._place((*unit[:4], next_offset, *unit[5:]))
            return _contradiction(unit, f"queue offset {unit[4]}", next_offset)
        if refused is not None and unit[4] < refused[4] and sum(refused[4:6]) == base:
            count = refused[4] - unit[4]
            self._take_last()
            self._place((*unit[:5], count, *unit[6:]))
            self._place_refused(refused, refused[4])
            return _contradiction(unit, f"that it holds {unit[5]} messages", count)
        return ""

    def _place_refused(self, unit: tuple[int, ...], base: int) -> str:
        self.outside -= 1
        self._place((*unit[:4], base, *unit[5:]))
        return _contradiction(unit, f"queue offset {unit[4]}", base)

    def _take_last(self) -> None:
        if self._pending:
            del self._pending[-BATCH_UNIT.size :]
            self.end_unit -= 1
        else:
            with suppress(OSError):  # a unit that the disk cannot remove is overwritten
                self.cut_units(self.end_unit - 1)

    def find(self, queue_offset: int) -> int:
        """Return the number of the unit that covers `queue_offset`, or of the first one after
        it."""
        return self._first_where(lambda unit: unit[4] + unit[5] > queue_offset)

    def number_of(self, physical_offset: int) -> int:
        """Return the number of the unit of a record at an offset of the log, or of the next one."""
        number = self._first_where(lambda unit: unit[0] >= physical_offset)
        following = self.unit_at(number + 1) if number + 1 < self.end_unit else None
        if following and self._is_whole(following) and following[0] == physical_offset:
            number += 1  # a damaged unit before it was taken for it
        return number

    def slot_of(self, entry: Entry) -> tuple[int, int] | None:
        """Return the queue offset and the message count with which a record has to be served; None
        if no unit names it.

        No checksum covers the record's or the unit's numbers. If they differ, the unit wins if it
        joins more of its neighbours. A queue begins with 0.
        """
        number = self.number_of(entry.physical_offset)
        unit = self.unit_at(number) if number < self.end_unit else None
        if unit is None or unit[0] != entry.physical_offset or not self._is_whole(unit):
            return None
        before = self.offset_after(number) if number > self.kept_unit or not number else -1
        after = self.unit_at(number + 1) if number + 1 < self.end_unit else None

        def joins(base: int, count: int) -> int:
            return (base == before) + (after is not None and base + count == after[4])

        record_says, served = (entry.queue_offset, abs(entry.units)), (unit[4], unit[5])
        return served if joins(*served) > joins(*record_says) else record_says

    def trusted_unit(self, number: int, *, ignore_next: bool = False) -> tuple[int, ...] | None:
        """Return a unit, unless it can name no record or its neighbours contradict it.

        Units have no checksum; their ranges neither overlap nor go back. `ignore_next` compares the
        previous unit only.
        """
        unit = self.unit_at(number)
        if unit is None or not self._is_whole(unit):
            return None
        before = self.unit_at(number - 1) if number > self.kept_unit else None
        last = ignore_next or number + 1 >= self.end_unit
        after = None if last else self.unit_at(number + 1)
        if before is not None and self._is_whole(before) and not _follows(before, unit):
            return None
        if after is not None and self._is_whole(after) and not _follows(unit, after):
            return None
        return unit if unit[4] + unit[5] <= self.max_offset else None

    def correct_min(self, log_min: int) -> None:
        """Set `min_offset` to the first queue offset of a record at or above `log_min`."""
        number = self._first_where(lambda unit: unit[0] >= log_min)
        # A damaged unit moves the result too far; then the unit before the previous one is above
        # the beginning too.
        while (previous := self.unit_at(number - 2) if number - 2 >= self.kept_unit else None) and (
            self._is_whole(previous) and previous[0] >= log_min
        ):
            number -= 1
        unit = self.trusted_unit(number)
        self.knows_min = number == self.end_unit or unit is not None
        if number == self.end_unit:
            self.min_offset = self.max_offset
        elif unit is not None:
            self.min_offset = unit[4]
        else:  # as low as possible: a reader gets an error for the unit
            before = self.trusted_unit(number - 1) if number > self.kept_unit else None
            self.min_offset = 0 if before is None else before[4] + before[5]

    find_min_again = correct_min

    def _first_where(self, holds: Callable[[tuple[int, ...]], bool]) -> int:
        """Return the number of the first unit from which on a condition holds; damaged units are
        skipped."""
        low, high = self.kept_unit, self.end_unit
        while low < high:
            middle = probe = (low + high) // 2
            unit = self.unit_at(probe)
            while unit is not None and not self._is_whole(unit) and probe - middle < PROBES:
                probe += 1
                unit = self.unit_at(probe) if probe < high else None
            if unit is None or not self._is_whole(unit) or holds(unit):
                high = middle
            else:
                low = probe + 1
        return low

    def destroy(self) -> None:
        """Unlink everything; the queue starts afresh."""
        super().destroy()
        self.max_offset = self.min_offset = self._first_valid = 0
        self._refused = None


def _follows(unit: tuple[int, ...], following: tuple[int, ...]) -> bool:
    """True if a unit follows another, in the log and in the queue."""
    return unit[0] + unit[1] <= following[0] and unit[4] + unit[5] <= following[4]


def _contradiction(unit: tuple[int, ...], claim: str, truth: int) -> str:
    return f"the record at {unit[0]} says {claim}, its neighbours say {truth}"
