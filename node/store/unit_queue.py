"""Units of one size in a row of segments: the common part of ordinary and batch queues (store.md
3).

Units are derived from the log, so they are written without fsync and made durable in bulk when the
durable mark rises.
"""

import struct

from rocketbed.node.store.segments import SegmentRow

UNIT = struct.Struct(">qiq")
"""Physical offset, record size, tag code: 20 bytes; the unit of an ordinary queue."""
BLANK_UNIT_SIZE = 0x7FFFFFFF
"""Record size in a pre-blank unit, which stands for no message (T6)."""
PRE_BLANK = UNIT.pack(0, BLANK_UNIT_SIZE, 0)
BLOCK = 3276
"""Units that are compared with pre-blanks, or written for a gap, at once (64 KiB)."""
BLANKS = PRE_BLANK * BLOCK
PROBES = 8
"""Most damaged units in a row that a search skips."""


class UnitQueue:
    """Common part of both kinds of queue: units of one size in a row of segments.

    Units that were put are in `_pending` until `write_pending`, and are read from there. Invariant:
    `end_unit` counts stored and pending units, and those in files are a prefix.
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
        self.outside = 0
        """Good records that were put since the start and have no unit."""
        self.first_outside = -1
        """Physical offset of the first of them."""
        self.anew_at = -1
        """Offset of the log at which the queue offsets begin at 0 again, as two records in a row
        say; -1: nowhere."""
        self._zero_at = -1

    def keep_outside(self, queue_offset: int, physical_offset: int) -> None:
        """Count a record that gets no unit."""
        if not self.outside:
            self.first_outside, self.anew_at = physical_offset, -1
        self.outside += 1
        if queue_offset == 1 and self._zero_at >= 0 > self.anew_at:
            self.anew_at = self._zero_at
        self._zero_at = -1 if queue_offset else physical_offset

    def load(self, *, tolerant: bool) -> list[str]:
        """Find the segments; return the names of other files (see `SegmentRow.load`)."""
        return self.row.load(key=self.setting, tolerant=tolerant)

    @property
    def stored_units(self) -> int:
        """Number of the first unit that is in no file yet."""
        return self.end_unit - len(self._pending) // self.unit.size

    def write_pending(self) -> None:
        """Write the pending units, creating segments as needed. On `OSError` they stay pending."""
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
        """Return a unit; None if its segment no longer exists."""
        data = self._read(number, 1)
        return self.unit.unpack(data) if len(data) == self.unit.size else None

    def units(self, number: int, count: int) -> list[tuple[int, ...]]:
        """Return up to `count` units from `number`, to the end of their segment, or of the
        files."""
        count = min(count, self.end_unit - number)
        return list(self.unit.iter_unpack(self._read(number, count))) if count > 0 else []

    def _read(self, number: int, count: int) -> bytes:
        """Return bytes of up to `count` units from `number`, to the end of their segment, or of the
        files. Includes bytes after `end_unit`, which a start needs."""
        size = self.unit.size
        if self._pending:
            at = number - self.stored_units
            if at >= 0:
                return bytes(self._pending[at * size : (at + count) * size])
            count = min(count, -at)
        return self.row.read(number * size, count * size)

    @property
    def first_unit(self) -> int:
        """Number of the first unit that still exists, or of the first one of its segment."""
        return self.row.starts[0] // self.unit.size if self.row.starts else self.stored_units

    @property
    def kept_unit(self) -> int:
        """Number of the first unit from which conclusions about later units are valid."""
        return self.first_unit

    def begins_before(self, deletions: dict[str, int]) -> bool:
        """True if the queue holds messages from before its topic's deletion.

        `deletions`: topics, each with the end of the log at that moment.
        """
        deleted_at = deletions.get(self.topic)
        if deleted_at is None or not (self.row.starts or self._pending):
            return False
        end = max(self.row.end // self.unit.size, self.end_unit)
        first = self.unit_at(self._after_blanks(self.first_unit, end))
        return first is not None and first[0] < deleted_at

    def _after_blanks(self, number: int, end: int) -> int:
        """Return the first unit in [number, end) that is not a pre-blank; `end` without one."""
        return number

    def find_end(self, offset: int, *, thorough: bool) -> int:
        """Return the length of the longest prefix of units whose records end at or below `offset`.

        `thorough` reads every unit; else the boundary is found by halving, which trusts the units
        below it. Nothing is changed; only files are read.
        """
        assert not self._pending, "what is put is written before anybody looks for an end"
        return self._walk(offset) if thorough else self._halve(offset)

    def offset_after(self, end_unit: int) -> int:
        """Return the queue's next offset if it ended before unit `end_unit`."""
        return end_unit

    def set_end(self, end_unit: int) -> None:
        """Set the number of units that the files hold."""
        self.end_unit = end_unit

    def cut_units(self, end_unit: int, *, keeps_first: bool = False) -> None:
        """Keep the units before `end_unit`, zero the remainder of their segment, drop later ones.

        A unit above the mark is never kept just because it exists (store.md 8.6). With
        `keeps_first` the first segment stays, empty, if retention removed those before it: its name
        shows the queue's progress.
        """
        self._pending.clear()
        self.end_unit = end_unit
        position = end_unit * self.unit.size
        stays = keeps_first and self.row.starts[:1] == [position] and position > 0
        begins = position % self.row.size == 0 and not stays
        self.row.drop_from(position if begins else position + 1)
        if self.row.has(position):
            self.row.zero(position, self.row.start_of(position) + self.row.size)
        if not self.row.starts:
            self.end_unit = 0

    def _valid(self, unit: tuple[int, ...], offset: int) -> bool:
        return self._is_whole(unit) and unit[0] + unit[1] <= offset

    def _is_whole(self, unit: tuple[int, ...]) -> bool:
        """True if it can name a record at all."""
        return unit[0] >= 0 and unit[1] > 0

    def _is_blank(self, unit: tuple[int, ...]) -> bool:
        return unit[0] == 0 and unit[1] == BLANK_UNIT_SIZE

    def goes_on(self, number: int) -> bool:
        """True if there is a unit of a record at this number."""
        unit = self.unit_at(number)
        return unit is not None and self._is_whole(unit) and not self._is_blank(unit)

    def _walk(self, offset: int) -> int:
        """Return the end of the valid prefix, unit by unit; pre-blanks at its end do not count."""
        end, first_valid = self.first_unit, self.kept_unit
        last_physical, number = -1, end
        for start in self.row.starts:
            for unit in self.unit.iter_unpack(self.row.read(start, self.row.size)):
                if number < first_valid:
                    end = number + 1
                elif not self._is_blank(unit):
                    if not self._valid(unit, offset) or unit[0] <= last_physical:
                        return end
                    last_physical, end = unit[0], number + 1
                number += 1
        return end

    def _halve(self, offset: int) -> int:
        """Return the same by halving: valid units are a prefix, as the mark says.

        Pre-blanks count as valid meanwhile, so that a gap costs no more than any other units; those
        right before the end are subtracted again.
        """
        base = low = self.kept_unit
        high = self.row.end // self.unit.size
        while low < high:
            middle = probe = (low + high) // 2
            unit = self.unit_at(probe)
            # After the end all are zero; a non-zero one may be damaged, and later ones still count.
            while unit and any(unit) and not self._counts(unit, offset) and probe - middle < PROBES:
                probe += 1
                unit = self.unit_at(probe) if probe < high else None
            if unit and self._counts(unit, offset):
                low = probe + 1
            else:
                high = middle
        return self._before_blanks(base, low)

    def _counts(self, unit: tuple[int, ...], offset: int) -> bool:
        return self._is_blank(unit) or self._valid(unit, offset)

    def _before_blanks(self, base: int, end: int) -> int:
        """Return the number after the last unit in [base, end) that is not a pre-blank; `base`
        without one."""
        while end > base:
            unit = self.unit_at(end - 1)
            if unit is not None and not self._is_blank(unit):
                return end
            # One by one as long as these are few; a gap goes block by block.
            row_start = self.row.start_of((end - 1) * self.unit.size) // self.unit.size
            start = max(base, end - BLOCK, row_start)
            data = self.row.read(start * self.unit.size, (end - start) * self.unit.size)
            end = start if data == BLANKS[: len(data)] else end - 1
        return base

    def last_unit(self) -> tuple[int, ...] | None:
        """Return the last unit in a file that stands for a record."""
        end = self._before_blanks(self.first_unit, self.stored_units)
        return self.unit_at(end - 1) if end > self.first_unit else None

    def delete_before(self, log_min: int) -> int:
        """Unlink segments whose last units point below `log_min`, or the first ones after them;
        never the newest. Return their number."""
        removed = 0
        while len(self.row.starts) > 1:
            end = (self.row.starts[0] + self.row.size) // self.unit.size
            if not (self._are_before(end - 2, log_min) or self._are_before(end, log_min)):
                break
            self.row.remove(self.row.starts[0])
            removed += 1
        return removed

    def _are_before(self, number: int, log_min: int) -> bool:
        """True if a unit and the next one point below `log_min`: two, as one may be damaged."""
        unit, following = self.unit_at(number), self.unit_at(number + 1)
        if unit is None or following is None:
            return False
        return (
            self._is_whole(unit) and self._is_whole(following) and unit[0] < following[0] < log_min
        )

    def destroy(self) -> None:
        """Unlink everything; the queue starts afresh."""
        self._pending.clear()
        self.row.drop_from(0)
        self.end_unit = 0
