"""Consume queues: for each message of a queue, where its record is (store.md 3).

Unit n of a queue stands at byte `20 * n`, always: a gap is filled with pre-blank units, never
closed by moving later ones down (T2). Units are derived from the log, so they are written without
fsync and made durable in bulk when the durable mark rises.

The queue offset that a record says is covered by no checksum. Its neighbours are the witnesses: a
record between n-1 and n+1 is n, whatever it says, and keeps no other out of its slot.
"""

import struct
from contextlib import suppress

from rocketbed.node.store.segments import SegmentRow

UNIT = struct.Struct(">qiq")
"""Physical offset, record size, tag code: 20 bytes."""
BATCH_UNIT = struct.Struct(">qiqqqhii")
"""Physical offset, size, tag code, store time, first queue offset, count, -1, 0: 46 bytes."""
_pack_unit = UNIT.pack
BLANK_UNIT_SIZE = 0x7FFFFFFF
"""Record size in a pre-blank unit, which stands for no message (T6)."""
PRE_BLANK = UNIT.pack(0, BLANK_UNIT_SIZE, 0)
_BLOCK = 3276
"""Units that are compared with pre-blanks, or written of a gap, at once (64 KiB)."""
_BLANKS = PRE_BLANK * _BLOCK
GAP_MAX = 1 << 22
"""Units a gap may have; beyond, the queue offset of the record is taken as damaged."""


FIRST_MAX = 1 << 58
"""Queue offset that a queue may begin with; beyond, its byte would have no 64-bit number."""

Unit = tuple[int, int, int]


class UnitQueue:
    """What both kinds of queue share: units of one size in a row of segments.

    Units that were put are in `_pending` until `write_pending`; dispatch calls that before
    anybody looks. Invariant: `end_unit` counts stored and pending units.
    """

    unit: struct.Struct
    setting: str

    def __init__(self, topic: str, queue_id: int, row: SegmentRow) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.row = row
        self.end_unit = 0
        """Number of the next unit (slot), pending ones included."""
        self._pending = bytearray()

    def load(self, *, tolerant: bool) -> list[str]:
        """Find the segments; returns the names of other files (see `SegmentRow.load`)."""
        return self.row.load(key=self.setting, tolerant=tolerant)

    @property
    def stored_units(self) -> int:
        return self.end_unit - len(self._pending) // self.unit.size

    @property
    def readable_offset(self) -> int:
        """Queue offset behind the last message that can be read: units that wait for space on
        the disk cannot."""
        return self.offset_after(self.stored_units)

    def write_pending(self) -> None:
        """Write what was put, making segments as needed. On `OSError` it stays pending."""
        position = self.stored_units * self.unit.size
        while self._pending:
            start = self.row.start_of(position)
            if not self.row.has(position):
                self.row.create(start)
            room = start + self.row.size - position
            if room >= len(self._pending):
                self.row.write(position, self._pending)
                self._pending.clear()
                return
            self.row.write(position, self._pending[:room])
            position += room
            del self._pending[:room]

    def unit_at(self, number: int) -> tuple[int, ...] | None:
        """A unit that is in a file; None when its segment is gone."""
        data = self.row.read(number * self.unit.size, self.unit.size)
        return self.unit.unpack(data) if len(data) == self.unit.size else None

    def units(self, number: int, count: int) -> list[tuple[int, ...]]:
        """Up to `count` stored units from `number`, to the end of their segment."""
        count = min(count, self.stored_units - number)
        if count <= 0:
            return []
        data = self.row.read(number * self.unit.size, count * self.unit.size)
        return list(self.unit.iter_unpack(data))

    @property
    def first_unit(self) -> int:
        """Number of the first unit that still has a segment."""
        return self.row.starts[0] // self.unit.size if self.row.starts else self.end_unit

    def begins_before(self, deletions: dict[str, int]) -> bool:
        """Whether the queue holds what was there when its topic was deleted.

        `deletions`: topics, each with the end of the log at that moment.
        """
        deleted_at = deletions.get(self.topic)
        if deleted_at is None or not self.row.starts:
            return False
        first = self.unit_at(self.first_unit)
        return first is not None and first[0] < deleted_at

    def find_end(self, offset: int, *, thorough: bool) -> int:
        """Length of the longest prefix of units whose records end at or below `offset`.

        `thorough` looks at every unit; else the boundary is found by halving, which trusts the
        units below it. Nothing is changed.
        """
        return self._walk(offset) if thorough else self._halve(offset)

    def offset_after(self, end_unit: int) -> int:
        """The queue's next offset if it ended before unit `end_unit`."""
        return end_unit

    def set_end(self, end_unit: int) -> None:
        """Take `end_unit` for the number of units that the files hold."""
        self.end_unit = end_unit

    def cut_units(self, end_unit: int) -> None:
        """Keep the units before `end_unit`, zero the rest of their segment, drop later ones.

        A unit above the mark is never kept because it is there (store.md 8.6).
        """
        self._pending.clear()
        self.end_unit = end_unit
        position = end_unit * self.unit.size
        self.row.drop_from(position if position % self.row.size == 0 else position + 1)
        if self.row.has(position):
            self.row.zero(position, self.row.start_of(position) + self.row.size)
        if not self.row.starts:
            self.end_unit = 0

    def _valid(self, unit: tuple[int, ...], offset: int) -> bool:
        return unit[0] >= 0 and unit[1] > 0 and unit[0] + unit[1] <= offset

    def _is_blank(self, unit: tuple[int, ...]) -> bool:
        return unit[0] == 0 and unit[1] == BLANK_UNIT_SIZE

    def _walk(self, offset: int) -> int:
        """End of the valid prefix, unit by unit; pre-blanks at its end do not count."""
        end = first = self.first_unit
        last_physical, number = -1, first
        for start in self.row.starts:
            for unit in self.unit.iter_unpack(self.row.read(start, self.row.size)):
                if not self._is_blank(unit):
                    if not self._valid(unit, offset) or unit[0] <= last_physical:
                        return end
                    last_physical, end = unit[0], number + 1
                number += 1
        return end

    def _halve(self, offset: int) -> int:
        """The same by halving: valid units are a prefix, as the mark says.

        Pre-blanks count as valid on the way, so that a gap costs no more than any other units;
        those right before the end are taken off again.
        """
        base = low = self.first_unit
        high = self.row.end // self.unit.size
        while low < high:
            middle = (low + high) // 2
            unit = self.unit_at(middle)
            if unit is not None and (self._is_blank(unit) or self._valid(unit, offset)):
                low = middle + 1
            else:
                high = middle
        return self._before_blanks(base, low)

    def _before_blanks(self, base: int, end: int) -> int:
        """Number behind the last unit in [base, end) that is no pre-blank; `base` without one."""
        while end > base:
            unit = self.unit_at(end - 1)
            if unit is not None and not self._is_blank(unit):
                return end
            # One by one as long as that is little; a gap goes block by block.
            row_start = self.row.start_of((end - 1) * self.unit.size) // self.unit.size
            start = max(base, end - _BLOCK, row_start)
            data = self.row.read(start * self.unit.size, (end - start) * self.unit.size)
            end = start if data == _BLANKS[: len(data)] else end - 1
        return base

    def last_unit(self) -> tuple[int, ...] | None:
        """The last stored unit that stands for a record."""
        end = self._before_blanks(self.first_unit, self.stored_units)
        return self.unit_at(end - 1) if end > self.first_unit else None

    def delete_before(self, log_min: int) -> int:
        """Unlink segments whose last unit points below `log_min`, never the newest; how many."""
        removed = 0
        while len(self.row.starts) > 1:
            last = self.row.starts[0] + self.row.size - self.unit.size
            unit = self.unit_at(last // self.unit.size)
            if unit is None or unit[0] >= log_min:
                break
            self.row.remove(self.row.starts[0])
            removed += 1
        return removed

    def destroy(self) -> None:
        """Unlink everything; the queue begins anew."""
        self._pending.clear()
        self.row.drop_from(0)
        self.end_unit = 0


class ConsumeQueue(UnitQueue):
    """An ordinary queue: unit n is the message with queue offset n."""

    unit = UNIT
    setting = "mappedFileSizeConsumeQueue"

    def __init__(self, topic: str, queue_id: int, row: SegmentRow) -> None:
        super().__init__(topic, queue_id, row)
        self._least = 0
        """A lower bound of `min_offset`."""
        self._log_min: int | None = None
        """Beginning of the log for which `_least` has not been brought up yet."""
        self._homeless: tuple[int, Unit] | None = None
        """Queue offset and unit of the last record that was refused its slot."""
        self._refused = 0
        """Records in a row that were refused theirs."""

    @property
    def min_offset(self) -> int:
        """First queue offset whose record is kept; at most `max_offset` (T15)."""
        if self._log_min is not None:
            self._least = self._find_min(self._log_min)
            self._log_min = None
        return self._least

    @property
    def max_offset(self) -> int:
        """Queue offset of the next message."""
        return self.end_unit

    def put(self, queue_offset: int, physical_offset: int, size: int, tag_code: int) -> str:
        """Add the unit of a record; what is odd about it, empty if nothing.

        A lower queue offset than the next: the slot is taken, the first record keeps it (T1, T2). A
        higher one: the gap is filled with pre-blanks. Either is taken back if the next record of
        the queue shows that only this one's queue offset is wrong.
        """
        if queue_offset == self.end_unit and queue_offset and self._homeless is None:
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
        """At the end of the log: the last record, the only one refused for its queue offset, can
        only be the next one. What is odd about it, empty if there is none."""
        said, unit = self._take_homeless()
        if unit is None or self._refused > 1:
            return ""
        number = self.end_unit
        self._place(number, unit)
        return _misplaced(unit, said, number)

    @property
    def _is_new(self) -> bool:
        return not (self.end_unit or self.row.starts)

    def _begin(self, number: int, unit: Unit) -> str:
        """The first record of the queue."""
        said, homeless = self._take_homeless()
        if not 0 <= number <= FIRST_MAX:
            self._refuse(number, unit)
            return f"queue offset {number} is impossible"
        if homeless is not None and number:
            self._start_at(number - 1)
            self._place(number - 1, homeless)
            self._place(number, unit)
            return _misplaced(homeless, said, number - 1)
        self._start_at(number)
        self._place(number, unit)
        return ""

    def _go_on(self, number: int, unit: Unit) -> str:
        """The next one, behind a record that was refused: that one, or the queue's first, was
        wrong."""
        said = self._homeless[0] if self._homeless is not None else -1
        problem = ""
        if said == number - 1 > 0:
            problem = self._correct_last(number, unit)
        self._homeless = None
        if not problem:
            self._place(number, unit)
        return problem

    def _leap(self, number: int, unit: Unit) -> str:
        """A queue offset above the next one."""
        end = self.end_unit
        said, homeless = self._take_homeless()
        if number - end > GAP_MAX:
            self._refuse(number, unit)
            return f"queue offset {number} is impossible, the next is {end}"
        if homeless is not None and number == end + 1:
            self._place(end, homeless)
            self._place(number, unit)
            return _misplaced(homeless, said, end)
        self._place(number, unit)
        return f"queue offsets {end} to {number - 1} have no record"

    def _fall_back(self, number: int, unit: Unit) -> str:
        """A queue offset below the next one: a second record of that number, or the one before
        was wrong."""
        problem = self._correct_last(number, unit)
        if problem:
            return problem
        self._refuse(number, unit)
        return f"queue offset {number} is taken, the next is {self.end_unit}"

    def _correct_last(self, number: int, unit: Unit) -> str:
        """Take the last unit back if it came with a leap that a record `number` disproves.

        Where it is the queue's first it takes a second witness, as the first witness may be the
        one that is wrong; but 1 follows 0.
        """
        last = self.end_unit - 1
        before = self._before_leap(last)
        if before is None:
            return ""
        is_first = before == self._first_slot
        floor = 0 if is_first else before
        wrong = self._peek(last)
        units = [wrong, unit]
        said, homeless = self._take_homeless()
        if is_first and homeless is not None and said == min(number - 1, last):
            units.insert(1, homeless)
        elif number < floor or number > last or (is_first and number != 1):
            return ""
        self._forget_from(floor)
        place = number - len(units) + 1
        del units[: max(floor - place, 0)]
        place = max(place, floor)
        if is_first:
            self._start_at(place)
        for at, found in enumerate(units, place):
            self._place(at, found)
        if units[0] is wrong:
            return _misplaced(wrong, last, place)
        return f"the record at {wrong[0]} says queue offset {last}, and is not of this queue"

    @property
    def _first_slot(self) -> int:
        return self.first_unit if self.row.starts else self.stored_units

    def _before_leap(self, last: int) -> int | None:
        """Number of the first pre-blank of those right before unit `last`, or of `last` itself if
        the queue begins with it; None if another unit stands before it."""
        base, number = self._first_slot, last
        while number > max(base, self.stored_units) and self._is_blank(self._peek(number - 1)):
            number -= 1
        if number == self.stored_units:
            number = self._before_blanks(base, number)
        return number if number < last or number == base else None

    def _peek(self, number: int) -> tuple[int, int, int]:
        """A unit, pending or stored."""
        at = (number - self.stored_units) * UNIT.size
        data = (
            self._pending[at : at + UNIT.size]
            if at >= 0
            else self.row.read(number * UNIT.size, UNIT.size)
        )
        offset, size, tag_code = UNIT.unpack(data)
        return offset, size, tag_code

    def _forget_from(self, number: int) -> None:
        """Take units back that were put since nobody relies on them."""
        kept = number - self.stored_units
        if kept >= 0:
            del self._pending[kept * UNIT.size :]
            self.end_unit = number
            return
        # Bytes that a disk does not let go of stand behind the end: they are overwritten, or a boot
        # finds more units than the mark says, and builds the queues again.
        with suppress(OSError):
            if number:
                self.cut_units(number)
            else:
                self.destroy()

    def _refuse(self, number: int, unit: Unit) -> None:
        self._homeless = (number, unit)
        self._refused += 1

    def _take_homeless(self) -> tuple[int, Unit | None]:
        """The record before, if it was refused: what it said, and its unit."""
        found, self._homeless = self._homeless, None
        if found is None:
            return -1, None
        if not self._is_new and self._peek(self.end_unit - 1)[0] > found[1][0]:
            return -1, None
        return found

    def _start_at(self, number: int) -> None:
        self.end_unit = self.row.start_of(number * UNIT.size) // UNIT.size
        self._least = number

    def _place(self, number: int, unit: Unit) -> None:
        """Put a unit at or behind the end."""
        self._refused = 0
        with suppress(OSError):  # what could not be written is pending, and said when that is
            while number - self.end_unit > _BLOCK:  # a thousand such queues are 6 GB in memory
                self._pending += _BLANKS
                self.end_unit += _BLOCK
                self.write_pending()
        self._pending += PRE_BLANK * (number - self.end_unit)
        self._pending += UNIT.pack(*unit)
        self.end_unit = number + 1

    def correct_min(self, log_min: int) -> None:
        """Set `min_offset` to the first unit of a record at or above `log_min` (T6, T15).

        It is looked for when somebody asks: a queue that begins with a gap of a whole segment costs
        nothing at a start.
        """
        self._log_min = log_min

    def _find_min(self, log_min: int) -> int:
        return min(self._first_at(log_min), self.end_unit)

    def slot_of(self, physical_offset: int) -> int | None:
        """Number of the stored unit that points to a record; None if none does."""
        number = self._first_at(physical_offset)
        unit = self.unit_at(number) if number < self.stored_units else None
        return number if unit is not None and unit[0] == physical_offset else None

    def _first_at(self, physical_offset: int) -> int:
        """Number of the first stored unit of a record at or above an offset of the log."""
        high = self.stored_units
        low = self._behind_blanks(max(self._least, self.first_unit), high)
        while low < high:
            middle = (low + high) // 2
            probe = self._behind_blanks(middle, high)
            unit = self.unit_at(probe) if probe < high else None
            if probe == high or (unit is not None and unit[0] >= physical_offset):
                high = middle
            else:
                low = probe + 1
        return self._behind_blanks(low, self.stored_units)

    def _behind_blanks(self, number: int, end: int) -> int:
        """The first unit in [number, end) that is no pre-blank; `end` without one."""
        while number < end:
            data = self.row.read(number * UNIT.size, min(end - number, _BLOCK) * UNIT.size)
            if not data or data != _BLANKS[: len(data)]:
                for unit in UNIT.iter_unpack(data):
                    if not self._is_blank(unit):
                        break
                    number += 1
                return number
            number += len(data) // UNIT.size
        return end


class BatchConsumeQueue(UnitQueue):
    """A queue of inner batches: each unit says which queue offsets it covers (store.md 3.5)."""

    unit = BATCH_UNIT
    setting = "mapperFileSizeBatchConsumeQueue"

    def __init__(self, topic: str, queue_id: int, row: SegmentRow) -> None:
        super().__init__(topic, queue_id, row)
        self.max_offset = 0
        """Queue offset of the next message."""
        self.min_offset = 0

    @property
    def readable_offset(self) -> int:
        return self.offset_after(self.stored_units) if self._pending else self.max_offset

    def _is_blank(self, unit: tuple[int, ...]) -> bool:
        return False

    def _valid(self, unit: tuple[int, ...], offset: int) -> bool:
        return super()._valid(unit, offset) and unit[4] >= 0 and unit[5] > 0

    def offset_after(self, end_unit: int) -> int:
        """The queue offset behind the last message of unit `end_unit - 1`."""
        unit = self.unit_at(end_unit - 1) if end_unit > self.first_unit else None
        return unit[4] + unit[5] if unit else 0

    def set_end(self, end_unit: int) -> None:
        """As for every queue; the maximum follows from the last unit."""
        super().set_end(end_unit)
        self.max_offset = self.offset_after(end_unit)

    def cut_units(self, end_unit: int) -> None:
        """As for every queue; the maximum follows from the last unit that is kept."""
        maximum = self.offset_after(end_unit)
        super().cut_units(end_unit)
        self.max_offset = maximum

    def put_batch(
        self, base: int, count: int, physical_offset: int, size: int, tag_code: int, store_ms: int
    ) -> str:
        """Append the unit of one record with `count` messages from queue offset `base`."""
        if base < self.max_offset:
            return f"queue offset {base} is taken, the next is {self.max_offset}"
        if not self.end_unit and not self.row.starts:
            self.min_offset = base
        self._pending += BATCH_UNIT.pack(
            physical_offset, size, tag_code, store_ms, base, count, -1, 0
        )
        self.end_unit += 1
        self.max_offset = base + count
        return ""

    def find(self, queue_offset: int) -> int:
        """Number of the unit that covers `queue_offset`, or of the first one behind it."""
        low, high = self.first_unit, self.stored_units
        while low < high:
            middle = (low + high) // 2
            unit = self.unit_at(middle)
            if unit is None or unit[4] + unit[5] <= queue_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def correct_min(self, log_min: int) -> None:
        """Set `min_offset` to the first queue offset of a record at or above `log_min`."""
        low, high = self.first_unit, self.stored_units
        while low < high:
            middle = (low + high) // 2
            unit = self.unit_at(middle)
            if unit is None or unit[0] < log_min:
                low = middle + 1
            else:
                high = middle
        unit = self.unit_at(low) if low < self.stored_units else None
        self.min_offset = unit[4] if unit is not None else self.max_offset

    def destroy(self) -> None:
        """Unlink everything; the queue begins anew."""
        super().destroy()
        self.max_offset = self.min_offset = 0


def _misplaced(unit: Unit, said: int, number: int) -> str:
    return f"the record at {unit[0]} says queue offset {said}, its neighbours say {number}"
