"""Expected contents of a store: for each record of its log what was put.

The model lives outside the simulated process, so it knows what was written, flushed and under way
when the end came. It reads bytes of the log by the format alone (docs/reference/formats.md),
nothing of the store's own bookkeeping.
"""

import copy
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from rocketbed.wire.message import BORN_IPV6, MAGIC_BLANK, STORE_IPV6

_HEAD: Final = struct.Struct(">4xi")
_SIZE: Final = struct.Struct(">i")
_PLACE: Final = struct.Struct(">qq")
_TIME: Final = struct.Struct(">q")
_PLACE_AT, _FLAG_AT, _TIME_AT, _HEAD_SIZE = 20, 36, 56, 91
_LONGER = 12


@dataclass(frozen=True, slots=True)
class Put:
    """A message, or an inner batch of `count`, as it was handed to the store."""

    topic: str
    queue: int
    body: bytes
    properties: bytes
    keys: tuple[str, ...] = ()
    tag: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Kept:
    """A record of the log. Offsets and sizes in bytes, `offset` in messages of its queue."""

    put: Put
    offset: int
    physical: int
    data: bytes
    stored_ms: int

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def end(self) -> int:
        return self.physical + len(self.data)

    @property
    def place(self) -> tuple[str, int]:
        return self.put.topic, self.put.queue


@dataclass(slots=True)
class Model:
    segment: int
    """Bytes of a file of the log."""
    batches: Sequence[str] = ("C",)
    """Topics with batch queues."""
    kept: list[Kept] = field(default_factory=list)
    """Records in the log, in its order."""
    pending: list[Kept] = field(default_factory=list)
    """Records of a write that has not returned."""
    retired: list[Kept] = field(default_factory=list)
    """Records of deleted files; a power cut may bring back the file's name."""
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    """By topic and queue the offset of the next message."""
    hidden: set[int] = field(default_factory=set)
    """Physical offsets of records whose topic was deleted: no queue has them any more."""
    emptied: set[tuple[str, int]] = field(default_factory=set)
    """Queues that lost their last message to a cut: one of batches may begin anew."""
    begun: dict[tuple[str, int], int] = field(default_factory=dict)
    """Physical offset of the first record of those that did."""
    doubtful: set[str] = field(default_factory=set)
    """Topics whose deletion was interrupted, or that lost unflushed records: either is right."""
    written: int = 0
    flushed: int = 0
    """End of what a flush that returned had covered."""
    cutting: int | None = None
    """Target of a cut that has not returned."""
    deleting: str = ""
    """Topic of a deletion that has not returned."""
    opened: bool = False
    closed: bool | None = False
    """True if a clean stop has returned; None if a start was interrupted after it."""

    def copy(self) -> "Model":
        """Return a deep copy."""
        return copy.deepcopy(self)

    def expect(self, puts: Sequence[Put], chunks: Sequence[tuple[int, bytes]]) -> list[Kept]:
        """Return the records of a run that is about to be written."""
        records = [at for start, data in chunks for at in _records(start, data)]
        assert len(records) == len(puts), f"append: {len(records)} records of {len(puts)} messages"
        position, kept = self.written, []
        ends = dict(self.ends)
        for put, (at, data) in zip(puts, records, strict=True):
            at_start = at % self.segment == 0 and position <= at < position + self.segment
            assert at == position or at_start, f"append: a record at {at} behind {position}"
            offset, physical = _PLACE.unpack_from(data, _PLACE_AT)
            expected = ends.get((put.topic, put.queue), 0)
            expected = offset if put.topic in self.doubtful else expected
            begins_anew = offset == 0 and (put.topic, put.queue) in self.emptied
            expected = 0 if begins_anew and put.topic in self.batches else expected
            assert offset == expected, (
                f"append: {put.topic}/{put.queue} {offset} where {expected} is next"
            )
            assert physical == at, f"append: a record at {at} says {physical}"
            for part in (put.body, put.topic.encode(), put.properties):
                assert part in data, f"append: the record at {at} lacks {part[:20]!r}"
            ends[put.topic, put.queue] = offset + put.count
            time_at = _TIME_AT + longer_by(data, BORN_IPV6)
            kept.append(Kept(put, offset, at, data, _TIME.unpack_from(data, time_at)[0]))
            position = at + len(data)
        return kept

    def wrote(self) -> None:
        """The write that was pending has returned."""
        self.kept += self.pending
        for record in self.pending:
            if record.offset == 0 and record.place in self.emptied:
                self.begun[record.place] = record.physical
            self.emptied.discard(record.place)
            self.ends[record.place] = record.offset + record.put.count
        self.written = self.pending[-1].end
        self.pending = []

    def cut(self, count: int) -> int:
        """Return the end of the log without its last records."""
        self.cutting = self.kept[-count].physical
        return self.cutting

    def was_cut(self) -> None:
        assert self.cutting is not None
        queues = {record.place for record in self.kept if record.physical not in self.hidden}
        self._end_at(self.cutting)
        self.emptied |= queues - {record.place for record in self.kept}
        self.cutting = None

    def was_deleted(self) -> None:
        """The deletion of a topic has returned."""
        records = (*self.retired, *self.kept)
        self.hidden.update(o.physical for o in records if o.put.topic == self.deleting)
        self.ends = {place: end for place, end in self.ends.items() if place[0] != self.deleting}
        self.doubtful.discard(self.deleting)
        self.deleting = ""

    def expired(self, low: int) -> None:
        """Files below an offset are gone."""
        self.retired += [record for record in self.kept if record.physical < low]
        self.kept = [record for record in self.kept if record.physical >= low]

    def recovered(self, low: int, end: int, log: bytes, *, power: bool) -> None:
        """Compare what a start found with what had to be there, and go on from it.

        `log` are the bytes of all files, from `low` on; `power`: it was no kill.
        """
        floor = self.flushed if power else self.written
        if self.cutting is not None:
            floor = min(floor, self.cutting)
        assert end >= floor, f"loss: the log ends at {end}, {floor} was promised"
        assert not log[end - low :].strip(b"\0"), "log: bytes behind the end"
        possible = {
            record.physical: record for record in (*self.retired, *self.kept, *self.pending)
        }
        records = []
        for at, data in _records(low, log[: end - low]):
            record = possible.get(at)
            assert record is not None and record.data == data, f"log: another record at {at}"
            assert record is not None
            records.append(record)
        offsets = {record.physical for record in records}
        for record in self.kept:
            if low <= record.physical and record.end <= min(floor, end):
                assert record.physical in offsets, f"loss: the record at {record.physical} is gone"
        # A file whose name was lost with the power, with unflushed records: its queues may go
        # on behind that, or begin anew.
        lost = [record for record in self.kept if record.physical < low]
        self.doubtful |= {record.put.topic for record in lost if power and record.end > floor}
        self.retired += lost
        self.kept, self.pending = records, []
        if self.deleting:
            self.doubtful.add(self.deleting)
            self.deleting = ""
        self._end_at(end)
        self.flushed, self.cutting, self.closed = end, None, False

    def _end_at(self, end: int) -> None:
        """Nothing at or behind `end` was ever put, for all that the log says."""
        self.kept = [record for record in self.kept if record.physical < end]
        self.written, self.flushed = end, min(self.flushed, end)
        self.hidden = {physical for physical in self.hidden if physical < end}
        self.begun = {place: at for place, at in self.begun.items() if at < end}
        ends: dict[tuple[str, int], int] = {}
        for record in (*self.retired, *self.kept):
            is_old = record.physical < self.begun.get(record.place, 0)
            if record.physical not in self.hidden and not is_old:
                ends[record.place] = max(
                    ends.get(record.place, 0), record.offset + record.put.count
                )
        self.ends = ends

    def queues(self) -> dict[tuple[str, int], list[Kept]]:
        """Return the records of each queue, in its order."""
        records: dict[tuple[str, int], list[Kept]] = {}
        for record in self.kept:
            if record.physical not in self.hidden and record.put.topic not in self.doubtful:
                records.setdefault(record.place, []).append(record)
        return records


def longer_by(data: bytes, hosts: int = BORN_IPV6 | STORE_IPV6) -> int:
    """Bytes that a record has more for those of its two hosts that are of IPv6."""
    flag = _SIZE.unpack_from(data, _FLAG_AT)[0] & hosts
    return int(flag.bit_count()) * _LONGER


def _records(start: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    """Physical offset and bytes of each record from `start` on."""
    at = 0
    while at + 8 <= len(data):
        size, magic = _SIZE.unpack_from(data, at)[0], _HEAD.unpack_from(data, at)[0]
        is_blank = magic == MAGIC_BLANK
        assert size >= 8 and (is_blank or (size >= _HEAD_SIZE and at + size <= len(data))), (
            f"log: no record at {start + at}"
        )
        if not is_blank:
            yield start + at, data[at : at + size]
        at += size
