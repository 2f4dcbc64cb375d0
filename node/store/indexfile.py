"""An index file: maps a key to the records that contain it (store.md 4).

Header, slot table, entries; a slot holds the number of its newest entry, an entry the number of the
previous one in its slot. Puts go into memory: new entries to a buffer, slots to cached pages.
`write` writes both to the file, which only happens when the durable mark rises, when the file is
full, and at a clean stop; a query reads through the same buffers.
"""

import struct
import sys
from array import array
from typing import NamedTuple

from rocketbed.node.store.entry import Entry
from rocketbed.node.store.files import FilePool
from rocketbed.node.store.log_bodies import LogBodies
from rocketbed.wire.javahash import key_state
from rocketbed.world.api import File

HEADER = struct.Struct(">4q2i")
"""Begin and end time, begin and end physical offset, used slots, next entry number."""
ENTRY = struct.Struct(">iqii")
"""Key hash, physical offset, seconds since begin, previous entry number: 20 bytes."""
_HASH_ONLY = struct.Struct(">i16x")
_RESTORE_STEP = 1 << 16
PAGE_SLOTS = 1024
TIME_DIFF_MAX = 2**31 - 1
_SWAP = sys.byteorder == "little"
_BUFFER_MAX = 1 << 20


class Header(NamedTuple):
    """The header's fields, in their order on disk. Times in ms, offsets in bytes."""

    begin_ms: int = 0
    end_ms: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    used_slots: int = 0
    next_entry: int = 1
    """Number of the next entry; the first is 1, so this is entries + 1."""


class IndexFile:
    """An open index file.

    Invariant: entries 1 to `next_entry - 1` exist, those from `_written_entries` on in memory.
    """

    def __init__(
        self,
        pool: FilePool,
        path: str,
        *,
        slots: int,
        entries: int,
        bodies: LogBodies | None = None,
    ) -> None:
        self._pool = pool
        self.path = path
        self.slots = slots
        self.entries = entries
        self.size = HEADER.size + 4 * slots + 20 * entries
        """Length of the file, bytes."""
        self._entries_at = HEADER.size + 4 * slots
        self.begin_ms = self.end_ms = self.begin_offset = self.end_offset = self.used_slots = 0
        self.next_entry = 1
        self._buffer = bytearray()
        self._written_entries = 1
        self._pages: dict[int, array[int]] = {}
        self._dirty_pages: dict[int, None] = {}
        self.was_short = False
        """True if the file is shorter than it has to be."""
        self.dirty = False
        """True if the file has anything that was not fsynced."""
        self.failure: OSError | None = None
        """Reason why the last `put_entries` ended early; cleared by the caller that handles it."""
        self._put_keys = bodies.put_keys if bodies is not None else None

    @property
    def file(self) -> File:
        return self._pool.get(self.path)

    @property
    def full(self) -> bool:
        """True if no further entry fits."""
        return self.next_entry >= self.entries

    @property
    def header(self) -> Header:
        """The header in memory."""
        return Header(
            self.begin_ms,
            self.end_ms,
            self.begin_offset,
            self.end_offset,
            self.used_slots,
            self.next_entry,
        )

    @header.setter
    def header(self, header: Header) -> None:
        (
            self.begin_ms,
            self.end_ms,
            self.begin_offset,
            self.end_offset,
            self.used_slots,
            self.next_entry,
        ) = header

    def load(self) -> None:
        """Read the header; an empty one counts as a new file. Nothing is changed."""
        self.was_short = self.file.size() < self.size
        header = Header(*HEADER.unpack(self.file.read_at(0, HEADER.size).ljust(HEADER.size, b"\0")))
        if header.next_entry <= 0:
            header = header._replace(next_entry=1)
        self.header = header._replace(next_entry=min(header.next_entry, self.entries))
        self._written_entries = self.next_entry

    def extend(self) -> None:
        """Extend a short file to its length."""
        if self.was_short:
            self.file.truncate(self.size)
            self.was_short = False

    def put_entries(self, waiting: list[Entry], first: int, done: int) -> tuple[int, int]:
        """Put the keys of waiting records, from number `first` on, until the file is full.

        `done` keys of the first one were put before; returns the number of the first incomplete
        record, and the same count for it. Ends with `failure` set when slots cannot be read, and
        can be called again. A single loop, since it runs for every key of every message.
        """
        if self._put_keys is not None and self.next_entry > 1:
            return self._put_natively(waiting, first, done)
        pages, buffer, slots, room = self._pages, self._buffer, self.slots, self.entries
        number, dirty, pack = self.next_entry, self._dirty_pages, ENTRY.pack
        last_ms, seconds = -1, 0
        while first < len(waiting):
            topic, _, _, offset, _, _, store_ms, keys, _ = waiting[first]
            for key in keys[done:] if done else keys:
                if number >= room:
                    self.next_entry = number
                    return first, done
                if store_ms != last_ms:
                    last_ms, seconds = store_ms, self.seconds(store_ms)
                state = key_state(topic, key)
                key_hash = state if state < 0x80000000 else (1 << 32) - state
                if key_hash == 0x80000000:
                    key_hash = 0
                slot = key_hash % slots
                page = pages.get(slot >> 10)
                if page is None:
                    try:
                        page = self._load_page(slot >> 10)
                    except OSError as exc:
                        self.next_entry, self.failure = number, exc
                        return first, done
                previous = page[slot & 1023]
                if not 0 < previous <= number:
                    previous = 0
                    self.used_slots += 1
                buffer += pack(key_hash, offset, seconds, previous)
                page[slot & 1023] = number
                dirty[slot >> 10] = None
                if number == 1:
                    self.begin_offset, self.begin_ms = offset, store_ms
                    last_ms = -1
                number += 1
                done += 1
                self.end_offset, self.end_ms = offset, store_ms
            first += 1
            done = 0
        self.next_entry = number
        return first, done

    def _put_natively(self, waiting: list[Entry], first: int, done: int) -> tuple[int, int]:
        """Do the same with the native function, which stops when slots have to be read."""
        assert self._put_keys is not None
        while True:
            first, done, self.next_entry, used, self.end_offset, self.end_ms, page = self._put_keys(
                waiting,
                first,
                done,
                self._pages,
                self._dirty_pages,
                self._buffer,
                self.slots,
                self.entries,
                self.next_entry,
                self.begin_ms,
                self.end_offset,
                self.end_ms,
            )
            self.used_slots += used
            if page < 0:
                return first, done
            try:
                self._load_page(page)
            except OSError as exc:
                self.failure = exc
                return first, done

    def seconds(self, store_ms: int, *, after: bool = False) -> int:
        """Return the seconds since the file's begin, as entries hold them; with `after` since its
        end."""
        since_ms = self.end_ms if after else self.begin_ms
        if since_ms <= 0:
            return 0
        return min(max((store_ms - since_ms) // 1000, 0), TIME_DIFF_MAX)

    def slots_differ(self, expected_slots: "array[int]", first: int, limit: int) -> bool:
        """True if slots of a page, from number `first` on, do not name the newest entries that they
        named before entry `limit` was put. Raises `OSError`."""
        number = first // PAGE_SLOTS
        page = self._pages.get(number) or self._read_page(number)
        return page != expected_slots and any(
            self._newest_before(limit, newest) != expected
            for newest, expected in zip(page, expected_slots, strict=True)
        )

    def _newest_before(self, limit: int, number: int) -> int:
        while limit <= number < self.next_entry:
            number = self.entry(number)[3]
        return number

    def _load_page(self, number: int) -> "array[int]":
        """Return the slots of one page, and cache them."""
        page = self._pages[number] = self._read_page(number)
        return page

    def _read_page(self, number: int) -> "array[int]":
        first = number * PAGE_SLOTS
        count = min(PAGE_SLOTS, self.slots - first)
        page = array("i", self.file.read_at(HEADER.size + 4 * first, 4 * count))
        if _SWAP:
            page.byteswap()
        return page

    def flush_buffer(self, *, force: bool = False) -> None:
        """Write buffered entries once there are many (or any, with `force`). Raises `OSError`."""
        if len(self._buffer) > (0 if force else _BUFFER_MAX):
            self.file.write_at(self._entries_at + 20 * self._written_entries, self._buffer)
            self._written_entries += len(self._buffer) // 20
            self._buffer.clear()
            self.dirty = True

    def write(self) -> None:
        """Write entries, changed slots and header. Raises `OSError`; a repeat writes the remaining
        ones."""
        if not self._dirty_pages and not self._buffer:
            return
        self.dirty = True
        self.flush_buffer(force=True)
        # Before the slots: until all are written, each repeat writes the header again.
        self.file.write_at(0, HEADER.pack(*self.header))
        for number in list(self._dirty_pages):
            page = array("i", self._pages[number])
            if _SWAP:
                page.byteswap()
            self.file.write_at(HEADER.size + 4 * number * PAGE_SLOTS, page.tobytes())
            del self._dirty_pages[number]

    async def sync(self) -> None:
        if self.dirty:
            self.dirty = False
            try:
                await self._pool.sync(self.path)
            except BaseException:
                self.dirty = True
                raise

    def release(self) -> None:
        """Drop cached slots; the file is full and written."""
        if not self._dirty_pages:
            self._pages.clear()

    def entry(self, number: int) -> tuple[int, int, int, int]:
        """Return hash, physical offset, seconds and previous number of an entry."""
        buffered = number - self._written_entries
        if buffered >= 0:
            return ENTRY.unpack_from(self._buffer, 20 * buffered)
        return ENTRY.unpack(self.file.read_at(self._entries_at + 20 * number, 20))

    def query(self, key_hash: int, begin_ms: int, end_ms: int, room: int) -> list[int]:
        """Return physical offsets of entries with this hash, newest first, at most `room` (store.md
        4.4).

        Includes hash collisions; the caller compares the records.
        """
        slot = key_hash % self.slots
        page = self._pages.get(slot >> 10)
        if page is None:
            page = self._load_page(slot >> 10)
        number = page[slot & 1023]
        offsets: list[int] = []
        while 0 < number < self.next_entry and len(offsets) < room:
            entry_hash, physical_offset, seconds, previous = self.entry(number)
            if seconds < 0:
                break
            at_ms = self.begin_ms + seconds * 1000
            if entry_hash == key_hash and begin_ms <= at_ms <= end_ms:
                offsets.append(physical_offset)
            if previous == number or at_ms < begin_ms:
                break
            number = previous
        return offsets

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """True if the file's time range meets [begin_ms, end_ms]."""
        return self.begin_ms <= end_ms and begin_ms <= self.end_ms

    def restore(self, header: Header) -> None:
        """Restore a newly opened file to the state that `header` describes (store.md 8.6, Index).

        Entries up to it are durable and never change; slots are rebuilt from them, later entries
        become zero.
        """
        self.load()
        self.header = header
        self.extend()
        slots = array("i", bytes(4 * self.slots))
        size = self.slots
        for first in range(1, header.next_entry, _RESTORE_STEP):
            count = min(_RESTORE_STEP, header.next_entry - first)
            data = self.file.read_at(self._entries_at + 20 * first, 20 * count)
            for number, (key_hash,) in enumerate(_HASH_ONLY.iter_unpack(data), first):
                slots[key_hash % size] = number
        self.used_slots = size - slots.count(0)
        self._write_slots(slots)
        self.file.write_at(0, HEADER.pack(*self.header))
        tail = self._entries_at + 20 * header.next_entry
        self.file.punch(tail, self.size - tail)
        self._written_entries = header.next_entry
        self.dirty = True

    def _write_slots(self, slots: "array[int]") -> None:
        """Write the whole slot table; pages without a used slot stay holes."""
        self.file.punch(HEADER.size, 4 * self.slots)
        empty = bytes(4 * PAGE_SLOTS)
        if _SWAP:
            slots.byteswap()
        for first in range(0, self.slots, PAGE_SLOTS):
            page = slots[first : first + PAGE_SLOTS].tobytes()
            if page != empty[: len(page)]:
                self.file.write_at(HEADER.size + 4 * first, page)
