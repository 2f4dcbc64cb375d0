"""Consume queues: for each message of a queue, the position of its record (store.md 3).

Unit n of a queue is always at byte `20 * n`: a gap is filled with pre-blank units, never closed by
moving later ones down (T2).

The queue offset in a record is not covered by a checksum. Its neighbours are the witnesses: a
record between n-1 and n+1 is n, whatever it says, and blocks no other record's slot.
"""

from contextlib import suppress

from rocketbed.node.store.segments import SegmentRow
from rocketbed.node.store.unit_queue import BLANKS, BLOCK, PRE_BLANK, UNIT, UnitQueue

_pack_unit = UNIT.pack
GAP_MAX = 1 << 22
"""Most units of a gap; beyond, the queue offset of the record counts as damaged."""
FIRST_MAX = 1 << 58
"""Highest queue offset that a queue may begin with; beyond, its byte would exceed 64 bits."""

Unit = tuple[int, int, int]


class ConsumeQueue(UnitQueue):
    """An ordinary queue: unit n is the message with queue offset n."""

    unit = UNIT
    setting = "mappedFileSizeConsumeQueue"

    def __init__(self, topic: str, queue_id: int, row: SegmentRow) -> None:
        super().__init__(topic, queue_id, row)
        self._least = 0
        """Lower bound of `min_offset`."""
        self._log_min: int | None = None
        """Beginning of the log that `_least` does not reflect yet."""
        self._displaced: tuple[int, Unit] | None = None
        """Queue offset and unit of the last record that was refused its slot."""
        self._refused = 0
        """Records in a row that were refused their slots."""

    @property
    def min_offset(self) -> int:
        """First queue offset whose record still exists; at most `max_offset` (T15)."""
        if self._log_min is not None:
            self._least = self._find_min(self._log_min)
            self._log_min = None
        return self._least

    @property
    def max_offset(self) -> int:
        """Queue offset of the next message."""
        return self.end_unit

    def put(self, queue_offset: int, physical_offset: int, size: int, tag_code: int) -> str:
        """Add the unit of a record; return what is odd about it, empty if nothing.

        A lower queue offset than the next: the slot is taken, and the first record stays in it (T1,
        T2). A higher one: the gap is filled with pre-blanks. Either is undone if the next record of
        the queue shows that only this one's queue offset is wrong.
        """
        if queue_offset == self.end_unit and queue_offset and self._displaced is None:
            self._pending += _pack_unit(physical_offset, size, tag_code)
            self.end_unit = queue_offset + 1
            return ""
        unit = (physical_offset, size, tag_code)
        if self._is_new:
            return self._begin(queue_offset, unit)
        if queue_offset > self.end_unit:
            return self._leap(queue_offset, unit)
        if queue_offset == self.end_unit:
            return self._go_on(queue_offset, unit)
        return self._fall_back(queue_offset, unit)

    def adopt(self) -> str:
        """Place the last record of the log, the only one refused for its queue offset: it can only
        be the next one. Return what is odd about it, empty if there is none."""
        claimed, unit = self._take_displaced()
        if unit is None or self._refused > 1:
            return ""
        number = self.end_unit
        self._place_refused(number, unit)
        return _misplaced(unit, claimed, number)

    @property
    def _is_new(self) -> bool:
        return not (self.end_unit or self.row.starts)

    def _begin(self, number: int, unit: Unit) -> str:
        """Add the first record of the queue."""
        claimed, displaced = self._take_displaced()
        if not 0 <= number <= FIRST_MAX:
            self._refuse(number, unit)
            return f"queue offset {number} is impossible"
        if displaced is not None and number:
            self._start_at(number - 1)
            self._place_refused(number - 1, displaced)
            self._place(number, unit)
            return _misplaced(displaced, claimed, number - 1)
        self._start_at(number)
        self._place(number, unit)
        return ""

    def _go_on(self, number: int, unit: Unit) -> str:
        """Add the next record after a refused one: the refused record, or the queue's first, was
        wrong."""
        claimed = self._displaced[0] if self._displaced is not None else -1
        problem = ""
        if claimed == number - 1 > 0:
            problem = self._correct_last(number, unit)
        self._displaced = None
        if not problem:
            self._place(number, unit)
        return problem

    def _leap(self, number: int, unit: Unit) -> str:
        """Add a record with a queue offset above the next one."""
        end = self.end_unit
        claimed, displaced = self._take_displaced()
        if number - end > GAP_MAX:
            self._refuse(number, unit)
            return f"queue offset {number} is impossible, the next is {end}"
        if displaced is not None and number == end + 1:
            self._place_refused(end, displaced)
            self._place(number, unit)
            return _misplaced(displaced, claimed, end)
        self._place(number, unit)
        return f"queue offsets {end} to {number - 1} have no record"

    def _fall_back(self, number: int, unit: Unit) -> str:
        """Handle a queue offset below the next one: a second record of that number, or the previous
        record was wrong."""
        problem = self._correct_last(number, unit)
        if problem:
            return problem
        self._refuse(number, unit)
        return f"queue offset {number} is taken, the next is {self.end_unit}"

    def _correct_last(self, number: int, unit: Unit) -> str:
        """Undo the last unit if it came with a leap that record `number` disproves.

        If it is the queue's first, a second witness is needed, as the first witness may be the
        wrong one; but 1 follows 0.
        """
        last = self.end_unit - 1
        before = self._before_leap(last)
        if before is None:
            return ""
        is_first = before == self.first_unit
        floor = 0 if is_first else before
        wrong = self._peek(last)
        units = [wrong, unit]
        claimed, displaced = self._take_displaced()
        if is_first and displaced is not None and claimed == min(number - 1, last):
            units.insert(1, displaced)
            self.outside -= 1
        elif number < floor or number > last or (is_first and number != 1):
            return ""
        self._forget_from(floor)
        place = number - len(units) + 1
        for outside_unit in units[: max(floor - place, 0)]:
            self.keep_outside(-1, outside_unit[0])
        del units[: max(floor - place, 0)]
        place = max(place, floor)
        if is_first:
            self._start_at(place)
        for at, unit_ in enumerate(units, place):
            self._place(at, unit_)
        if units[0] is wrong:
            return _misplaced(wrong, last, place)
        return f"the record at {wrong[0]} says queue offset {last}, and is not of this queue"

    def _before_leap(self, last: int) -> int | None:
        """Return the number of the first pre-blank of those right before unit `last`, or of `last`
        itself if the queue begins with it; None if another unit precedes it."""
        base, number = self.first_unit, last
        while number > max(base, self.stored_units) and self._is_blank(self._peek(number - 1)):
            number -= 1
        if number == self.stored_units:
            number = self._before_blanks(base, number)
        return number if number < last or number == base else None

    def _peek(self, number: int) -> tuple[int, int, int]:
        """Return an existing unit."""
        offset, size, tag_code = UNIT.unpack(self._read(number, 1))
        return offset, size, tag_code

    def _forget_from(self, number: int) -> None:
        """Remove units that were put since; nothing relies on them yet."""
        remaining = number - self.stored_units
        if remaining >= 0:
            del self._pending[remaining * UNIT.size :]
            self.end_unit = number
            return
        # Bytes that a disk cannot remove remain after the end: they are overwritten, or a boot
        # finds more units than the mark says, and rebuilds the queues.
        with suppress(OSError):
            if number:
                self.cut_units(number)
            else:
                self.destroy()

    def _refuse(self, number: int, unit: Unit) -> None:
        self._displaced = (number, unit)
        self._refused += 1
        self.keep_outside(number, unit[0])

    def _take_displaced(self) -> tuple[int, Unit | None]:
        """Return the previous record if it was refused: its queue offset and its unit."""
        displaced, self._displaced = self._displaced, None
        if displaced is None:
            return -1, None
        # A first segment that a cut left empty has no unit to read.
        if self.end_unit > self.first_unit and self._peek(self.end_unit - 1)[0] > displaced[1][0]:
            return -1, None
        return displaced

    def _start_at(self, number: int) -> None:
        self.end_unit = self.row.start_of(number * UNIT.size) // UNIT.size
        self._least = number

    def _place(self, number: int, unit: Unit) -> None:
        """Put a unit at or after the end."""
        self._refused, self._zero_at = 0, -1
        with suppress(OSError):  # what could not be written is pending, and reported later
            while number - self.end_unit > BLOCK:  # a thousand such queues are 6 GB in memory
                self._pending += BLANKS
                self.end_unit += BLOCK
                self.write_pending()
        self._pending += PRE_BLANK * (number - self.end_unit)
        self._pending += UNIT.pack(*unit)
        self.end_unit = number + 1

    def _place_refused(self, number: int, unit: Unit) -> None:
        """Put the unit of the record that was refused, and is accepted now."""
        self._place(number, unit)
        self.outside -= 1

    def correct_min(self, log_min: int) -> None:
        """Set `min_offset` to the first unit of a record at or above `log_min` (T6, T15).

        It is computed at its first use: a queue that begins with a gap of a whole segment costs
        nothing at a start.
        """
        self._log_min = log_min

    def find_min_again(self, log_min: int) -> None:
        """Compute the minimum again: next to a damaged unit it may have been too high."""
        self._least, self._log_min = self.first_unit, log_min

    def _find_min(self, log_min: int) -> int:
        return min(self._first_at(log_min), self.end_unit)

    def slot_of(self, physical_offset: int) -> int | None:
        """Return the number of the unit that points to a record; None if none does."""
        number = self._first_at(physical_offset)
        unit = self.unit_at(number) if number < self.end_unit else None
        return number if unit is not None and unit[0] == physical_offset else None

    def _first_at(self, physical_offset: int) -> int:
        """Return the number of the first unit of a record at or above an offset of the log."""
        base, high = max(self._least, self.first_unit), self.end_unit
        while True:
            number = self._halve_at(physical_offset, base, high)
            # A damaged unit moves the result too far; then the unit before the previous one is
            # above the offset too.
            before = self.unit_at(number - 2) if number - 2 >= base else None
            if before is None or self._is_blank(before) or before[0] < physical_offset:
                return number
            if (high := min(high, number) - 1) <= base:
                return number

    def _halve_at(self, physical_offset: int, low: int, high: int) -> int:
        low = self._after_blanks(low, high)
        while low < high:
            middle = (low + high) // 2
            probe = self._after_blanks(middle, high)
            unit = self.unit_at(probe) if probe < high else None
            # A unit without a record counts as existing: its reader gets an error, nothing is
            # hidden.
            if probe == high or (unit and (unit[0] >= physical_offset or not self._is_whole(unit))):
                high = middle
            else:
                low = probe + 1
        return self._after_blanks(low, self.end_unit)

    def _after_blanks(self, number: int, end: int) -> int:
        """Return the first unit in [number, end) that is not a pre-blank; `end` without one."""
        while number < end:
            data = self._read(number, min(end - number, BLOCK))
            if not data or data != BLANKS[: len(data)]:
                for unit in UNIT.iter_unpack(data):
                    if not self._is_blank(unit):
                        break
                    number += 1
                return number
            number += len(data) // UNIT.size
        return end


def _misplaced(unit: Unit, claimed: int, number: int) -> str:
    return f"the record at {unit[0]} says queue offset {claimed}, its neighbours say {number}"
