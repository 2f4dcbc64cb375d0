"""Writers of derived files, byte for byte as a broker writes them.

Units and entries are only appended, so each writer buffers a short run and writes it when the run
is long or its file is full; of an index file only the slot table stays in memory. No file stays
open, since a store may have thousands of queues. Formats: store.md 3.2, 3.5, 4.2.
"""

import os
import sys
from array import array
from datetime import datetime, timedelta

from rocketbed.inspect.consumequeue import BATCH_UNIT, PRE_BLANK, UNIT, BatchUnit
from rocketbed.inspect.index import ENTRY, HEADER, IndexLayout

_RUN_BYTES = 20_000
GAP_UNITS_MAX = 1_000_000
"""Largest gap in a queue that is filled with pre-blanks. Beyond it the queue offset counts as
damage; filling would take 20 MB per million."""
_SECONDS_MAX = (1 << 31) - 1


class SlotRefused(Exception):
    """A record cannot have the queue offset that it claims."""


class SegmentWriter:
    """Bytes of one queue, written in runs to files of one size."""

    def __init__(self, directory: str, segment_size: int) -> None:
        self._directory = directory
        self._segment_size = segment_size
        self._run = bytearray()
        self._run_at = 0
        self._created_start = -1

    @property
    def position(self) -> int:
        """Position of the next byte, counted from the start of the queue."""
        return self._run_at + len(self._run)

    def start_at(self, position: int) -> None:
        """Start at a position; allowed only before the first byte."""
        assert not self._run
        self._run_at = position

    def append(self, data: bytes) -> None:
        """Append whole units; a unit never crosses files."""
        self._run += data
        if len(self._run) >= _RUN_BYTES:
            self.close()

    def close(self) -> None:
        while self._run:
            start = self._run_at - self._run_at % self._segment_size
            size = min(len(self._run), start + self._segment_size - self._run_at)
            if start != self._created_start:
                os.makedirs(self._directory, exist_ok=True)
                self._created_start = start
            path = os.path.join(self._directory, f"{start:020d}")
            write_at(path, self._run_at - start, self._run[:size], length=self._segment_size)
            del self._run[:size]
            self._run_at += size


class QueueWriter(SegmentWriter):
    """Units of 20 bytes, each at the slot of its queue offset."""

    def __init__(self, directory: str, segment_size: int) -> None:
        super().__init__(directory, segment_size)
        self.gap_max = max(GAP_UNITS_MAX, segment_size // UNIT.size)
        """Most pre-blanks that are written before one unit."""
        self._next = -1

    def put(self, slot: int, offset: int, size: int, tag_code: int) -> None:
        """Write one unit.

        Its first segment is filled with pre-blanks before it (store.md 3.2), and so is a gap.
        Raises `SlotRefused` for a slot that is taken, negative, or absurdly far away.
        """
        if slot != self._next:
            self._go_to(slot)
        self.append(UNIT.pack(offset, size, tag_code))
        self._next = slot + 1

    def _go_to(self, slot: int) -> None:
        if not 0 <= slot < (1 << 62) // UNIT.size:
            raise SlotRefused(f"its queue offset {slot} cannot be")
        if self._next < 0:
            first = slot * UNIT.size
            self.start_at(first - first % self._segment_size)
            self._next = self.position // UNIT.size
        if slot < self._next:
            raise SlotRefused(f"its queue offset {slot} was given out before")
        if slot - self._next > self.gap_max:
            raise SlotRefused(f"its queue offset {slot} is far beyond the next one {self._next}")
        for _ in range(slot - self._next):
            self.append(PRE_BLANK)


class BatchQueueWriter(SegmentWriter):
    """Units of 46 bytes, one after the other."""

    def put(self, unit: BatchUnit) -> None:
        """Append the unit of one record; its number is ignored."""
        self.append(BATCH_UNIT.pack(*unit[1:], -1, 0))


class IndexWriter:
    """Index files; a new one starts when a key finds the last one full."""

    def __init__(self, directory: str, layout: IndexLayout) -> None:
        self.files = 0
        self.total = 0
        """Entries written in all files."""
        self._directory = directory
        self._layout = layout
        self._table = array("i")
        self._run = bytearray()
        self._run_first = 1
        self._count = 0
        self._name = ""
        self._begin_ms = self._end_ms = self._begin_offset = self._end_offset = 0
        self._used = 0

    def put(self, key_hash: int, offset: int, store_ms: int) -> None:
        """Add one key of a record (store.md 4.2)."""
        if not self._count or self._count >= self._layout.entries:
            self._start_file(store_ms)
        slot = key_hash % self._layout.slots
        previous = self._table[slot]
        seconds = int((store_ms - self._begin_ms) / 1000) if self._begin_ms > 0 else 0
        seconds = min(max(seconds, 0), _SECONDS_MAX)
        self._run += ENTRY.pack(key_hash, offset, seconds, previous)
        self._table[slot] = self._count
        if self._count == 1:
            self._begin_offset, self._begin_ms = offset, store_ms
        if not previous:
            self._used += 1
        self._count += 1
        self.total += 1
        self._end_offset, self._end_ms = offset, store_ms
        if len(self._run) >= 1 << 20:
            self._write_run()

    def close(self) -> None:
        """Write the last file's entries, slots and header."""
        if not self._count:
            return
        self._write_run()
        slots = array("i", self._table)
        if sys.byteorder == "little":
            slots.byteswap()
        header = HEADER.pack(
            self._begin_ms,
            self._end_ms,
            self._begin_offset,
            self._end_offset,
            self._used,
            self._count,
        )
        self._write(0, header + slots.tobytes())

    def _start_file(self, store_ms: int) -> None:
        """Start a file; its header begins with the end of the previous one, which the first put
        replaces."""
        self.close()
        os.makedirs(self._directory, exist_ok=True)
        self._name = next_name(self._name, store_ms)
        self._begin_ms, self._begin_offset = self._end_ms, self._end_offset
        self._table = array("i", bytes(4 * self._layout.slots))
        self._count = self._run_first = 1
        self._used = 0
        self.files += 1

    def _write_run(self) -> None:
        if self._run:
            position = HEADER.size + 4 * self._layout.slots + ENTRY.size * self._run_first
            self._write(position, self._run)
            self._run_first += len(self._run) // ENTRY.size
            self._run.clear()

    def _write(self, position: int, data: bytes | bytearray) -> None:
        path = os.path.join(self._directory, self._name)
        write_at(path, position, data, length=self._layout.size)


def next_name(before: str, store_ms: int) -> str:
    """Return an index file's name: the local time of its first entry, and later than the previous
    name."""
    moment = datetime.fromtimestamp(store_ms // 1000) + timedelta(milliseconds=store_ms % 1000)
    while True:
        name = f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}"
        if name > before:
            return name
        moment = datetime.strptime(before + "000", "%Y%m%d%H%M%S%f") + timedelta(milliseconds=1)


def write_at(path: str, position: int, data: bytes | bytearray, *, length: int) -> None:
    """Write into a file, which is created sparse with its full length if it does not exist.

    Raises `OSError`, also for a write that is cut short.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if os.fstat(descriptor).st_size < length:
            os.ftruncate(descriptor, length)
        written = os.pwrite(descriptor, data, position)
        if written != len(data):
            raise OSError(f"{path}: only {written} of {len(data)} bytes were written")
    finally:
        os.close(descriptor)
