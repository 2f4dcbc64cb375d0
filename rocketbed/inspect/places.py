"""Which slot of its queue a record has, where what it says cannot be believed.

No checksum covers a record's queue offset. In the order of the log a queue's records are one behind
the other, so a record that says something else is held until the next one of its queue has spoken:
between n-1 and n+1 stands n. A gap that the next record goes on from is one (messages were lost).
"""

from typing import NamedTuple

from rocketbed.inspect.consumequeue import BatchUnit
from rocketbed.inspect.writers import BatchQueueWriter, QueueWriter, SlotRefused

FIRST_MAX, LEAP_MAX = 1 << 58, 1 << 32
"""Queue offset of a batch queue's first record, and messages that may lack before a later one."""


class Placed(NamedTuple):
    """A record's unit, and where it belongs."""

    slot: int | None
    """None: another record has the slot that it says, or it cannot be."""
    said: int
    offset: int
    """Physical offset of the record."""
    size: int
    tag_code: int


class Placer:
    """Places of one queue's records, given in the order of the log."""

    def __init__(self, gap_max: int) -> None:
        """`gap_max`: a slot further than this behind the next one cannot be."""
        self._gap_max = gap_max
        self._next = -1
        """The next slot; -1 before the first is settled."""
        self._held: list[Placed] = []
        self._refused = False
        """Whether the record before has no slot."""

    def put(self, said: int, offset: int, size: int, tag_code: int) -> list[Placed]:
        """One more record; those whose place is settled by it."""
        record = Placed(None, said, offset, size, tag_code)
        if said == self._next and not self._held:
            self._next = said + 1
            self._refused = False
            return [record._replace(slot=said)]
        self._held.append(record)
        return self._settle() if self._next >= 0 else self._settle_first()

    def finish(self) -> list[Placed]:
        """The rest, at the end of the log: a refused last record can only be the next one, unless
        the one before it was refused as well."""
        settled, is_row = [], False
        for record in self._held:
            is_row = self._refused
            settled.append(self._as_said(record))
        if settled and settled[-1].slot is None and not is_row:
            settled[-1] = settled[-1]._replace(slot=max(self._next, 0))
        self._held = []
        return settled

    def _settle(self) -> list[Placed]:
        if len(self._held) == 1:
            return []
        held, last = self._held
        if last.said == self._next + 1:
            return self._from(self._next)
        if last.said == self._next:
            self._held = [last]
            return [held, *self._from(self._next)]
        self._held = []
        settled = self._as_said(held)
        return [settled, *self.put(*last[1:])]

    def _settle_first(self) -> list[Placed]:
        """The queue's first records: two that agree, or a 1, correct the one that does not."""
        said = [record.said for record in self._held]
        if len(said) == 1:
            return []
        if said[1] in (1, said[0] + 1):
            return self._from(said[1] - 1)
        if said[1] > said[0]:
            settled = self._as_said(self._held.pop(0))
            return [settled, *self._settle()]
        if len(said) == 2:
            return []
        if said[2] == said[1] + 1:
            first = said[1] - 1
        elif said[2] == said[0] + 2:
            first = said[0]
        elif said[2] == said[0] + 1 == said[1] + 1:
            first = said[0] - 1
        else:
            records, self._held = self._held, []
            return [self._as_said(record) for record in records]
        return self._from(first)

    def _from(self, slot: int) -> list[Placed]:
        """All held ones from a slot on; what would stand before 0 is of no queue."""
        placed = []
        for number, record in enumerate(self._held, slot):
            placed.append(record._replace(slot=number) if number >= 0 else record)
            self._next = number + 1
        self._refused = False
        self._held = []
        return placed

    def _as_said(self, record: Placed) -> Placed:
        too_far = self._next >= 0 and record.said - self._next > self._gap_max
        self._refused = record.said < max(self._next, 0) or too_far
        if self._refused:
            return record
        self._next = record.said + 1
        return record._replace(slot=record.said)


class PlacedQueue:
    """Writes one queue, each record at its place."""

    def __init__(self, writer: QueueWriter, name: str) -> None:
        """`name` is for sentences: `Topic/3`."""
        self._writer = writer
        self._placer = Placer(writer.gap_max)
        self.name = name
        self.units = 0
        self.refused: list[str] = []
        """Records without a place, in sentences."""
        self.corrected: list[str] = []
        """Records that stand at another place than they say."""
        self.begun_anew = -1
        """Where the queue offsets begin at 0 again, as two records in a row say; -1 nowhere. One
        alone may be damage."""
        self._zero_at = -1

    def put(self, said: int, offset: int, size: int, tag_code: int) -> None:
        """Take the next record of the queue, in the order of the log."""
        self._write(self._placer.put(said, offset, size, tag_code))

    def close(self) -> None:
        self._write(self._placer.finish())
        self._writer.close()

    def _write(self, units: list[Placed]) -> None:
        for unit in units:
            what = f"record at {unit.offset} of {self.name}: "
            if unit.slot is None:
                if unit.said == 1 and self._zero_at >= 0:
                    self.begun_anew = self._zero_at
                self._zero_at = -1 if unit.said else unit.offset
                what += (
                    f"its queue offset {unit.said} was given out before, or is far beyond the next"
                )
                self.refused.append(what)
                continue
            self._zero_at = -1
            try:
                self._writer.put(unit.slot, unit.offset, unit.size, unit.tag_code)
            except SlotRefused as error:
                self.refused.append(f"{what}{error}")
                continue
            self.units += 1
            if unit.slot != unit.said:
                what += f"it says queue offset {unit.said}, its neighbours say {unit.slot}"
                self.corrected.append(what)


class PlacedBatches:
    """Writes one batch queue, each record at its place: a record that says another queue offset
    than what is due is held until the next one has spoken."""

    def __init__(self, writer: BatchQueueWriter, name: str) -> None:
        self._writer = writer
        self._due = 0
        self._held: BatchUnit | None = None
        self.name = name
        self.units = 0
        self.refused: list[str] = []
        """As those of `PlacedQueue`."""
        self.corrected: list[str] = []

    def put(self, unit: BatchUnit) -> None:
        """Take the next record of the queue, in the order of the log."""
        held, self._held = self._held, None
        if held is not None and unit.base == self._due + held.messages:
            told = f"it says queue offset {held.base}, its neighbours say {self._due}"
            self.corrected.append(f"record at {held.offset} of {self.name}: {told}")
            self._write(held._replace(base=self._due))
        elif held is not None:
            self._write_as_said(held)
        if unit.base == self._due:
            self._write(unit)
        else:
            self._held = unit

    def close(self) -> None:
        if self._held is not None:
            self._write_as_said(self._held)
        self._writer.close()

    def _write_as_said(self, unit: BatchUnit) -> None:
        most = self._due + LEAP_MAX if self.units else FIRST_MAX
        if self._due <= unit.base <= most:
            self._write(unit)
        else:
            told = f"its queue offset {unit.base} was given out before, or is far beyond the next"
            self.refused.append(f"record at {unit.offset} of {self.name}: {told}")

    def _write(self, unit: BatchUnit) -> None:
        self._writer.put(unit)
        self._due = unit.base + unit.messages
        self.units += 1
