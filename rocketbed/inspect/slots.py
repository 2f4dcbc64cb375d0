"""Finds the slot of each record in its queue, even if the record's own queue offset is damaged.

No checksum covers a record's queue offset. In log order a queue's records are consecutive, so a
record that claims another slot is held until the next record of its queue is read: between n-1 and
n+1 is n. A gap after which the next record continues is real (messages were lost).
"""

from typing import NamedTuple

from rocketbed.inspect.consumequeue import BatchUnit
from rocketbed.inspect.writers import BatchQueueWriter, QueueWriter, SlotRefused

FIRST_MAX, LEAP_MAX = 1 << 58, 1 << 32
"""Highest queue offset of a batch queue's first record, and largest gap before a later one."""


class Placed(NamedTuple):
    """A record's unit, and its slot."""

    slot: int | None
    """None if another record has the slot it claims, or the claim is impossible."""
    claimed: int
    offset: int
    """Physical offset of the record."""
    size: int
    tag_code: int


class Placer:
    """Assigns slots to one queue's records, which come in log order."""

    def __init__(self, gap_max: int) -> None:
        """`gap_max`: largest plausible gap before a record, in slots."""
        self._gap_max = gap_max
        self._next = -1
        """The next slot; -1 before the first is settled."""
        self._pending: list[Placed] = []
        self._refused = False
        """True if the previous record got no slot."""

    def put(self, claimed: int, offset: int, size: int, tag_code: int) -> list[Placed]:
        """Take the next record; return the records whose slots are now settled."""
        record = Placed(None, claimed, offset, size, tag_code)
        if claimed == self._next and not self._pending:
            self._next = claimed + 1
            self._refused = False
            return [record._replace(slot=claimed)]
        self._pending.append(record)
        return self._settle() if self._next >= 0 else self._settle_first()

    def finish(self) -> list[Placed]:
        """Settle the records still held, at the end of the log: a refused last record can only be
        the next one, unless the one before it was refused as well."""
        settled, is_row = [], False
        for record in self._pending:
            is_row = self._refused
            settled.append(self._at_claim(record))
        if settled and settled[-1].slot is None and not is_row:
            settled[-1] = settled[-1]._replace(slot=max(self._next, 0))
        self._pending = []
        return settled

    def _settle(self) -> list[Placed]:
        if len(self._pending) == 1:
            return []
        pending, last = self._pending
        if last.claimed == self._next + 1:
            return self._from(self._next)
        if last.claimed == self._next:
            self._pending = [last]
            return [pending, *self._from(self._next)]
        self._pending = []
        settled = self._at_claim(pending)
        return [settled, *self.put(*last[1:])]

    def _settle_first(self) -> list[Placed]:
        """Settle the queue's first records: two that agree, or a 1, correct the one that does
        not."""
        claimed = [record.claimed for record in self._pending]
        if len(claimed) == 1:
            return []
        if claimed[1] in (1, claimed[0] + 1):
            return self._from(claimed[1] - 1)
        if claimed[1] > claimed[0]:
            settled = self._at_claim(self._pending.pop(0))
            return [settled, *self._settle()]
        if len(claimed) == 2:
            return []
        if claimed[2] == claimed[1] + 1:
            first = claimed[1] - 1
        elif claimed[2] == claimed[0] + 2:
            first = claimed[0]
        elif claimed[2] == claimed[0] + 1 == claimed[1] + 1:
            first = claimed[0] - 1
        else:
            records, self._pending = self._pending, []
            return [self._at_claim(record) for record in records]
        return self._from(first)

    def _from(self, slot: int) -> list[Placed]:
        """Settle all held records from a slot on; a record before slot 0 belongs to no queue."""
        placed = []
        for number, record in enumerate(self._pending, slot):
            placed.append(record._replace(slot=number) if number >= 0 else record)
            self._next = number + 1
        self._refused = False
        self._pending = []
        return placed

    def _at_claim(self, record: Placed) -> Placed:
        too_far = self._next >= 0 and record.claimed - self._next > self._gap_max
        self._refused = record.claimed < max(self._next, 0) or too_far
        if self._refused:
            return record
        self._next = record.claimed + 1
        return record._replace(slot=record.claimed)


class PlacedQueue:
    """Writes one queue, each record at its slot."""

    def __init__(self, writer: QueueWriter, name: str) -> None:
        """`name` appears in messages, such as `Topic/3`."""
        self._writer = writer
        self._placer = Placer(writer.gap_max)
        self.name = name
        self.units = 0
        self.refused: list[str] = []
        """Messages about records without a slot."""
        self.corrected: list[str] = []
        """Messages about records whose slot is not the one they claim."""
        self.begun_anew = -1
        """Log offset at which the queue offsets start again at 0, according to two consecutive
        records; -1 if they do not. A single record may be damage."""
        self._zero_at = -1

    def put(self, claimed: int, offset: int, size: int, tag_code: int) -> None:
        """Take the next record of the queue, in log order."""
        self._write(self._placer.put(claimed, offset, size, tag_code))

    def close(self) -> None:
        self._write(self._placer.finish())
        self._writer.close()

    def _write(self, units: list[Placed]) -> None:
        for unit in units:
            text = f"record at {unit.offset} of {self.name}: "
            if unit.slot is None:
                if unit.claimed == 1 and self._zero_at >= 0:
                    self.begun_anew = self._zero_at
                self._zero_at = -1 if unit.claimed else unit.offset
                text += (
                    f"its queue offset {unit.claimed} was given out before,"
                    " or is far beyond the next"
                )
                self.refused.append(text)
                continue
            self._zero_at = -1
            try:
                self._writer.put(unit.slot, unit.offset, unit.size, unit.tag_code)
            except SlotRefused as error:
                self.refused.append(f"{text}{error}")
                continue
            self.units += 1
            if unit.slot != unit.claimed:
                text += f"it says queue offset {unit.claimed}, its neighbours say {unit.slot}"
                self.corrected.append(text)


class PlacedBatches:
    """Writes one batch queue, each record at its place. A record that claims another queue offset
    than the next is held until its successor is read."""

    def __init__(self, writer: BatchQueueWriter, name: str) -> None:
        self._writer = writer
        self._next_base = 0
        self._pending: BatchUnit | None = None
        self.name = name
        self.units = 0
        self.refused: list[str] = []
        """Messages like those of `PlacedQueue`."""
        self.corrected: list[str] = []

    def put(self, unit: BatchUnit) -> None:
        """Take the next record of the queue, in log order."""
        pending, self._pending = self._pending, None
        if pending is not None and unit.base == self._next_base + pending.messages:
            text = f"it says queue offset {pending.base}, its neighbours say {self._next_base}"
            self.corrected.append(f"record at {pending.offset} of {self.name}: {text}")
            self._write(pending._replace(base=self._next_base))
        elif pending is not None:
            self._write_at_claim(pending)
        if unit.base == self._next_base:
            self._write(unit)
        else:
            self._pending = unit

    def close(self) -> None:
        if self._pending is not None:
            self._write_at_claim(self._pending)
        self._writer.close()

    def _write_at_claim(self, unit: BatchUnit) -> None:
        base_max = self._next_base + LEAP_MAX if self.units else FIRST_MAX
        if self._next_base <= unit.base <= base_max:
            self._write(unit)
        else:
            text = f"its queue offset {unit.base} was given out before, or is far beyond the next"
            self.refused.append(f"record at {unit.offset} of {self.name}: {text}")

    def _write(self, unit: BatchUnit) -> None:
        self._writer.put(unit)
        self._next_base = unit.base + unit.messages
        self.units += 1
