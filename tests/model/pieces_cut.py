"""Where the records of a log end, what stands behind a bad one, and what is kept of bytes that go:
asked of drawn logs, beside the places that are known of their records.
"""

import errno
from dataclasses import replace
from random import Random
from typing import Any, Final

from rocketbed.chaos.backends.sim.faults import SimFault
from rocketbed.node.store import cut
from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.cursor import LogCursor
from rocketbed.node.store.scan import crc_scanner
from rocketbed.node.store.store import MessageStore
from rocketbed.node.store.tail import Tail, good_records_after, next_good
from rocketbed.world.api import World
from tests.model.durable import ensure_durable
from tests.model.mending import serve
from tests.model.model import Kept, Model
from tests.model.store import ROOT, Life, Topics

WRITES: Final = 14
LARGE: Final = 1 << 17
"""A file of the log in which one record is longer than what is read at once."""
READ: Final = 1 << 14
CHUNK: Final = 4 << 20
"""Bytes that are looked at at once, and copied."""
KEPT: Final = f"{ROOT}/rocketbed.cut"


async def ask_cuts(world: World, random: Random, config: StoreConfig) -> None:
    log = await _Log.made(world, random, config)
    await log.boundaries(random)
    await log.behind(random)
    await log.copies(random)
    await log.no_copies(random)
    log.last_bytes(random)
    log.release()
    for size in (CHUNK - 1, CHUNK, CHUNK + 1):
        some = bytes(size - 1)
        assert cut.is_zero(some + b"\0"), f"cut: {size} zeros are none"
        assert not cut.is_zero(some + b"\1"), f"cut: {size} bytes are zeros, and one is not"


async def ask_far(world: World, random: Random, config: StoreConfig) -> None:
    """The next record that is good, with its head on both sides of where a read ends. Raises
    `AssertionError`."""
    life = Life(Model(segment=LARGE), random, 0, power=False)
    store = await MessageStore.open(world, replace(config, segment_size=LARGE), Topics())
    life.put_in(store, "A", 0)
    head = store._parts.log.segments.read(0, 88)
    life.put_body(store, head * (READ * 4 // len(head)))  # each of them says that it is at 0
    life.put_in(store, "A", 0)
    _, bad, good = life.model.kept
    disk: Any = world.disk
    _flip(disk, store._parts.log.segments.path(0), bad.physical + 200)
    cursor = LogCursor(store._parts.log.segments, crc_scanner(config))
    for read in (READ, 3 * READ):
        for before in (*range(-2, 100), READ // 2):
            at = good.physical + before - read
            found = await next_good(world, cursor, at)
            assert found == good.physical, f"tail: {found} behind {at}, not {good.physical}"
    for limit, want in ((good.physical, -1), (good.physical + 1, good.physical)):
        found = await next_good(world, cursor, bad.physical, limit)
        assert found == want, f"tail: {found} below {limit}"
    store._release()


async def ask_known_damage(world: World, random: Random, config: StoreConfig) -> None:
    """What an earlier scrub found is damage still, though this one goes on behind it; not what was
    mended since."""
    life = Life(Model(segment=config.segment_size), random, 0, power=False)
    store = await MessageStore.open(world, config, Topics())
    await life.filled(store, WRITES)
    store._release()
    await serve(world, config, stops=True)
    bad, mended, *_ = records = life.model.kept
    known = tuple((one.physical, one.end, "bad") for one in (bad, mended))

    async def note(store: MessageStore) -> None:
        await store.scrubber._note(scrubbed=records[-1].physical, damage=known)

    await serve(world, config, note, stops=True)
    path = f"{ROOT}/commitlog/{0:020d}"
    _flip(world.disk, path, bad.data.index(bad.put.body) + bad.physical)

    async def look(store: MessageStore) -> None:
        found = [(one.start, one.end) for one in store.scrubber.damage]
        assert found == [(bad.physical, bad.end)], f"scrub: {found} is damage, of {known}"
        noted = store._parts.marks.mark.damage
        assert noted == known[:1], f"scrub: {noted} is on record, of {known}"

    await serve(world, config, look)


def _flip(disk: Any, path: str, at: int) -> None:
    data = bytearray(disk.contents(path))
    data[at] ^= 1
    disk.replace_contents(path, bytes(data))


class _Log:
    """A log of some files, and what is known of it."""

    def __init__(self, world: World, store: MessageStore, life: Life) -> None:
        self.release = store._release
        self._world, self._parts = world, store._parts
        self._disk: Any = world.disk
        self._segments = store._parts.log.segments
        self._size = store._parts.config.segment_size
        self._records, self._end = life.model.kept, life.model.written

    @classmethod
    async def made(cls, world: World, random: Random, config: StoreConfig) -> "_Log":
        life = Life(Model(segment=config.segment_size), random, 0, power=False)
        store = await MessageStore.open(world, config, Topics())
        await life.filled(store, WRITES, mixed=True)
        while life.model.written < 2 * config.segment_size:
            life.put_in(store, "A", 0)
        return cls(world, store, life)

    def _bytes(self, start: int, end: int) -> bytes:
        files = (self._disk.contents(self._segments.path(at)) for at in self._segments.starts)
        return b"".join(files)[start:end]

    def _flip(self, record: Kept) -> None:
        start = self._segments.start_of(record.physical)
        at = record.physical - start + record.data.index(record.put.body)  # what its CRC covers
        _flip(self._disk, self._segments.path(start), at)

    # --- where records end

    async def boundaries(self, random: Random) -> None:
        """The last record that ends at or below an offset, and its end, or that of what fills the
        file behind it; without a checksum a bad one counts, with it nothing behind it in its file.
        """
        bad = random.choice(self._records)
        self._flip(bad)
        ends = [*(one.end for one in self._records), *self._segments.starts, bad.physical + 1]
        places = [at + by for at in ends for by in (-1, 0, 1) if 0 <= at + by <= self._end]
        crc = crc_scanner(self._parts.config)
        for at in dict.fromkeys(places):
            for scanner in (None, crc):
                found = await cut.boundary_below(self._parts, at, scanner)
                told = None if found is None else (found.last.physical_offset, found.end)
                want = self._boundary(at, None if scanner is None else bad)
                assert told == want, f"cut: below {at} is {told}, not {want}"
        self._flip(bad)

    def _boundary(self, at: int, bad: Kept | None) -> tuple[int, int] | None:
        size = self._size
        first = (at - 1) // size * size
        below = [one for one in self._records if one.end <= at]
        for start in range(first, -1, -size):
            mine = [one for one in below if start <= one.physical < start + size]
            if bad is not None and start <= bad.physical < start + size:
                mine = [one for one in mine if one.physical < bad.physical]
            if mine:
                # What fills a file stands behind its last good record.
                last = [one for one in self._records if one.physical < start + size][-1]
                is_full = at >= start + size and last is mine[-1]
                return mine[-1].physical, start + size if is_full else mine[-1].end
        return None

    # --- what stands behind a bad one

    async def behind(self, random: Random) -> None:
        """How many good records, in whichever file, and the first of them."""
        bad = random.sample(self._records, random.randrange(1, 4))
        for record in bad:
            self._flip(record)
        good = [one.physical for one in self._records if one not in bad]
        for record in self._records:
            for at in (record.physical - 1, record.physical, record.end):
                rest = [one for one in good if one > at]
                tail = await good_records_after(self._parts, at)
                want = Tail(len(rest), rest[0] if rest else -1)
                assert tail == want, f"tail: behind {at}: {tail}, not {want}"
        at = random.choice(good)
        for limit, is_there in ((at, False), (at + 1, True)):
            tail = await good_records_after(self._parts, at - 1, limit)
            told = tail.first_good == at, tail.good_records > 0
            assert told == (is_there, is_there), f"tail: {at} below {limit}: {tail}"
        for record in bad:
            self._flip(record)

    # --- copies

    async def copies(self, random: Random) -> None:
        """Of a piece, or of a file: just its bytes, on disk, beside every earlier one."""
        kept, opened = dict[str, bytes](), self._disk.open_files
        start = random.randrange(self._end)
        for end in (start - 1, start):
            none = await cut.keep_cut_bytes(self._parts, start, end=end)
            assert none == ("", 0), f"cut: {none} of nothing"
        for number in range(8):
            start = random.choice((0, self._size, random.randrange(self._end)))
            ends = (start + 1, self._size, 2 * self._size, self._end)
            end = random.choice([end for end in ends if end > start])
            name = f"{start:020d}"
            leftover = f"{KEPT}/{name}.new"  # of a crash
            if number % 2 and self._disk.is_dir(KEPT):
                self._disk.replace_contents(leftover, bytes(self._end + 9))
            if number % 3:
                path, size = await cut.keep_cut_bytes(self._parts, start, end=end)
                assert size == end - start, f"cut: {size} of {end - start} bytes"
            else:
                path, name = await cut.keep_bytes(self._parts, start, end, "why"), f"{name}.why"
            self._is_new(kept, path, name, self._bytes(start, end))
        for start in (*self._segments.starts[:2], self._segments.starts[0]):
            of = self._segments.path(start)
            path = await cut.keep_file(self._parts, of)
            self._is_new(kept, path, f"{start:020d}.segment", self._disk.contents(of))
        assert self._disk.open_files == opened, f"cut: {self._disk.open_files} are open"

    def _is_new(self, kept: dict[str, bytes], path: str, name: str, data: bytes) -> None:
        first = f"{KEPT}/{name}"
        is_named = path.startswith(f"{first}.") if first in kept else path == first
        assert is_named and path not in kept, f"cut: {name} is kept as {path}"
        kept[path] = data
        held = {one: self._disk.contents(one) for one in self._disk.paths() if KEPT in one}
        held = {one: data for one, data in held.items() if not one.endswith(".new")}
        assert held == kept, f"cut: {sorted(held)} are kept, not {sorted(kept)}"
        ensure_durable(self._world, "what is kept of a log", f"{KEPT}/")

    async def no_copies(self, random: Random) -> None:
        """A disk that fails in between leaves none, and who asked is told; nor is there one of what
        no file has."""
        before = self._disk.paths()
        for operation in ("create", "write", "sync", "rename", "read", ""):
            fault = SimFault(operation=operation, path="*" if operation == "read" else f"{KEPT}/*")
            self._disk.faults[:] = [fault] * bool(operation)
            end = self._end if operation else self._segments.end + 1
            try:
                await cut.keep_bytes(self._parts, self._size, end, "not")
            except OSError as exc:
                assert exc.errno == errno.EIO, f"cut: {operation}: {exc!r}"
            else:
                raise AssertionError(
                    f"cut: nobody is told of a disk that fails ({operation or 'no file'})"
                )
            self._disk.faults.clear()
            left = [one for one in self._disk.paths() if one not in before]
            assert not left or operation == "rename", f"cut: {operation}: {left} is left"
        for path in self._disk.paths():
            if path not in before:
                self._disk.remove_name(path)

    # --- the last bytes

    def last_bytes(self, random: Random) -> None:
        """Where all that is not zero ends, behind an offset."""
        start = self._segments.starts[-1]
        path = self._segments.path(start)
        whole = self._bytes(0, start + self._size)
        for by in (0, 1, self._size - 1 - self._end % self._size):
            at = min(self._end + by, start + self._size - 1) - start
            data = bytearray(whole[start:])
            data[at] = 7
            self._disk.replace_contents(path, bytes(data))
            now = whole[:start] + data
            for offset in (0, random.randrange(self._end), self._end, start + at, start + at + 1):
                end = max(len(now.rstrip(b"\0")), offset)
                found = cut.last_nonzero(self._parts, offset)
                assert found == end, f"cut: {found} is the last behind {offset}, not {end}"
        self._disk.replace_contents(path, whole[start:])
