"""Index files, which map a topic's keys to records.

Header of 40 bytes, slot table, then entries of 20 bytes, each linked to the previous entry of its
slot (store.md 4; RocketMQ: `IndexFile`, `IndexService.queryOffset`).
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rocketbed.inspect.config import INDEX_ENTRIES_DEFAULT, INDEX_SLOTS_DEFAULT
from rocketbed.inspect.files import READ_SIZE, FilePool, SegmentFile
from rocketbed.inspect.properties import index_key_hash

HEADER = struct.Struct(">4q2i")
ENTRY = struct.Struct(">iqii")
SLOT = struct.Struct(">i")
QUERY_MAX = 64
"""Most offsets that a query returns: RocketMQ's maxMsgsNumBatch."""
_DERIVED_SIZE_MAX = 64 << 20
"""File length, bytes, above which the layout of an unfinished file must be given, because the
search would take too long."""
_TIME_MAX = (1 << 63) - 1


class IndexLayout(NamedTuple):
    """Number of hash slots and of entries (entry 0 is never used)."""

    slots: int
    entries: int

    @property
    def size(self) -> int:
        """Length of a file, bytes."""
        return HEADER.size + SLOT.size * self.slots + ENTRY.size * self.entries


class IndexHeader(NamedTuple):
    """The first 40 bytes of a file. `next_entry` is the number of entries plus one."""

    begin_ms: int
    end_ms: int
    begin_offset: int
    end_offset: int
    used_slots: int
    next_entry: int


class IndexEntry(NamedTuple):
    """An entry: absolute key hash, record's offset, seconds after the file's begin, previous entry
    of the slot."""

    key_hash: int
    offset: int
    seconds: int
    previous: int


@dataclass(frozen=True, slots=True)
class IndexFile:
    """An index file of known layout."""

    pool: FilePool
    file: SegmentFile
    layout: IndexLayout

    def header(self) -> IndexHeader:
        """Read the header; like the broker, read an entry count below 1 as 1."""
        return read_header(self.pool, self.file.path)

    def slot(self, number: int) -> int:
        """Return the newest entry of a slot; 0 if it is empty."""
        data = self.pool.read(self.file.path, HEADER.size + SLOT.size * number, SLOT.size)
        return int(SLOT.unpack(data)[0]) if len(data) == SLOT.size else 0

    def slot_table(self) -> bytes:
        """Return the whole slot table as stored (20 MB in a file of the usual layout)."""
        return self.pool.read(self.file.path, HEADER.size, SLOT.size * self.layout.slots)

    def entry(self, number: int) -> IndexEntry | None:
        """Return the entry of a number; None beyond the file's end."""
        data = self.pool.read(self.file.path, self._entry_at(number), ENTRY.size)
        return IndexEntry(*ENTRY.unpack(data)) if len(data) == ENTRY.size else None

    def entries(self, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield the entries from 1 up to `end` (exclusive) as plain tuples in `IndexEntry`'s
        order."""
        position = self._entry_at(1)
        stop = min(self._entry_at(end), self.file.size)
        step = READ_SIZE // ENTRY.size * ENTRY.size
        while position < stop:
            data = self.pool.read(self.file.path, position, min(step, stop - position))
            data = data[: len(data) - len(data) % ENTRY.size]
            if not data:
                return
            yield from ENTRY.iter_unpack(data)
            position += len(data)

    def _entry_at(self, number: int) -> int:
        return HEADER.size + SLOT.size * self.layout.slots + ENTRY.size * number


def read_header(pool: FilePool, path: str) -> IndexHeader:
    """Read the header of an index file; zeros if the file is too short."""
    data = pool.read(path, 0, HEADER.size).ljust(HEADER.size, b"\0")
    header = IndexHeader(*HEADER.unpack(data))
    return header if header.next_entry > 0 else header._replace(next_entry=1)


def query_offsets(
    files: Sequence[IndexFile],
    topic: str,
    key: str,
    *,
    limit: int = QUERY_MAX,
    begin_ms: int = 0,
    end_ms: int = _TIME_MAX,
) -> list[int]:
    """Return offsets of records with the key's hash, newest file first, as a broker finds them.

    They include hash collisions, may repeat a record, and respect times in whole seconds (4.4).
    """
    key_hash = index_key_hash(topic, key)
    offsets: list[int] = []
    for index in reversed(files):
        header = index.header()
        if header.begin_ms <= end_ms and header.end_ms >= begin_ms:
            for offset in _walk(index, header, key_hash, begin_ms, end_ms):
                offsets.append(offset)
                if len(offsets) >= limit:
                    return offsets
        if header.begin_ms < begin_ms:
            break
    return offsets


def _walk(
    index: IndexFile, header: IndexHeader, key_hash: int, begin_ms: int, end_ms: int
) -> Iterator[int]:
    """Follow one slot's chain back in time; stop at a loop and where the broker would stop."""
    if header.next_entry <= 1:
        return
    number = index.slot(key_hash % index.layout.slots)
    above = header.next_entry + 1
    while 0 < number < above:
        above = number
        entry = index.entry(number)
        if entry is None or entry.seconds < 0:
            return
        time_ms = header.begin_ms + entry.seconds * 1000
        if entry.key_hash == key_hash and begin_ms <= time_ms <= end_ms:
            yield entry.offset
        if time_ms < begin_ms:
            return
        number = entry.previous


def derive_layout(
    pool: FilePool,
    files: Sequence[SegmentFile],
    *,
    slots: int | None = None,
    entries: int | None = None,
) -> IndexLayout | None:
    """Return the layout that fits the files, or None when several would.

    A file's length is one equation for two numbers, so one of them gives the other. A full file
    contains its number of entries, and RocketMQ's usual length means its usual layout. For a small
    unfinished file the layout is searched for under which its chains are valid.
    """
    if slots is not None and entries is not None:
        return IndexLayout(slots, entries)
    for file in files:
        spare = file.size - HEADER.size
        if slots is not None and (spare - SLOT.size * slots) % ENTRY.size == 0:
            return IndexLayout(slots, (spare - SLOT.size * slots) // ENTRY.size)
        if entries is not None and (spare - ENTRY.size * entries) % SLOT.size == 0:
            return IndexLayout((spare - ENTRY.size * entries) // SLOT.size, entries)
    usual = IndexLayout(INDEX_SLOTS_DEFAULT, INDEX_ENTRIES_DEFAULT)
    if any(file.size == usual.size for file in files):
        return usual
    for file in files:
        count = read_header(pool, file.path).next_entry
        spare = file.size - HEADER.size - ENTRY.size * count
        if count > 2 and spare > 0 and spare % SLOT.size == 0:
            layout = IndexLayout(spare // SLOT.size, count)
            if _chains_hold(IndexFile(pool, file, layout)):
                return layout
    for file in files:
        searched = _search_layout(pool, file) if file.size <= _DERIVED_SIZE_MAX else None
        if searched is not None:
            return searched
    return None


def _search_layout(pool: FilePool, file: SegmentFile) -> IndexLayout | None:
    header = read_header(pool, file.path)
    if header.next_entry <= 1:
        return None
    spare = file.size - HEADER.size
    data = pool.read(file.path, 0, file.size)
    first_offset = struct.pack(">q", header.begin_offset)
    at = data.find(first_offset, HEADER.size + ENTRY.size)
    while at >= 0:
        table = at - 4 - ENTRY.size - HEADER.size
        if table > 0 and table % SLOT.size == 0 and (spare - table) % ENTRY.size == 0:
            layout = IndexLayout(table // SLOT.size, (spare - table) // ENTRY.size)
            if layout.entries >= header.next_entry and _chains_hold(IndexFile(pool, file, layout)):
                return layout
        at = data.find(first_offset, at + 1)
    return None


def _chains_hold(index: IndexFile) -> bool:
    """True if linking the entries in order gives the chains that are stored."""
    header = index.header()
    newest: dict[int, int] = {}
    numbered = enumerate(index.entries(header.next_entry), start=1)
    for number, (key_hash, _, _, previous) in numbered:
        if key_hash < 0 or newest.get(key_hash % index.layout.slots, 0) != previous:
            return False
        newest[key_hash % index.layout.slots] = number
    if index.entry(header.next_entry - 1) is None:
        return False
    return all(index.slot(slot) == number for slot, number in newest.items())
