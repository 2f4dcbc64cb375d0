"""Batch consume queues: a unit for each inner batch, of BatchCQ topics (store.md 3.5)."""

import struct

from rocketbed.node.store.segments import SegmentRow
from rocketbed.node.store.unit_queue import UnitQueue

BATCH_UNIT = struct.Struct(">qiqqqhii")
"""Physical offset, size, tag code, store time, first queue offset, count, -1, 0: 46 bytes."""


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
