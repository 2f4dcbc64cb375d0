"""Ends of records, good records after damage, and copies of bytes that are cut off."""

import errno
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from rocketbed.chaos.backends.sim.faults import SimFault
from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.node.store import cut
from rocketbed.node.store.cursor import LogCursor
from rocketbed.node.store.scan import crc_scanner
from rocketbed.node.store.store import MessageStore
from rocketbed.node.store.tail import Tail, good_records_after, next_good
from rocketbed.world.api import World
from tests.model.durable import ensure_durable
from tests.support.sim.small_store import ROOT, Topics, put, small_config

CONFIG = small_config()
SIZE = CONFIG.segment_size
BODY_AT = 88
CHUNK = 4 << 20
"""Bytes that are examined at once, and copied."""
READ = 1 << 14
"""Bytes that a search reads at once."""
KEPT = f"{ROOT}/rocketbed.cut"


class Log:
    """Records of three files; each by its start and end."""

    def __init__(self, world: World, store: MessageStore, random: Random) -> None:
        self.world, self.parts, self.random = world, store._parts, random
        self.disk: Any = world.disk
        self.segments = self.parts.log.segments
        self.records = list[tuple[int, int]]()
        while store.max_offset < 2 * SIZE:
            body = b"%d " % len(self.records) + bytes(random.choice((5, 40, 300, 700)))
            start = put(store, "A", 0, body)
            self.records.append((start, store.max_offset))
        self.end = store.max_offset
        self.close = store._release

    def bytes(self, start: int, end: int) -> bytes:
        files = (self.disk.contents(self.segments.path(at)) for at in self.segments.starts)
        return b"".join(files)[start:end]

    def flip(self, offset: int) -> None:
        """Invert a bit of the body of the record at this offset."""
        file = self.segments.start_of(offset)
        flip(self.disk, self.segments.path(file), offset - file + BODY_AT)

    def boundary(self, at: int, bad: int | None) -> tuple[int, int] | None:
        """Return the last record that ends at or below, and its end or that of the file's filler;
        in the file of the bad one, none after it counts."""
        for file in range((at - 1) // SIZE * SIZE, -1, -SIZE):
            mine = [one for one in self.records if file <= one[0] < file + SIZE and one[1] <= at]
            if bad is not None and file <= bad < file + SIZE:
                mine = [one for one in mine if one[0] < bad]
            if mine:
                last = [one for one in self.records if one[0] < file + SIZE][-1]
                is_full = at >= file + SIZE and last == mine[-1]
                return mine[-1][0], file + SIZE if is_full else mine[-1][1]
        return None


def flip(disk: Any, path: str, at: int) -> None:
    data = bytearray(disk.contents(path))
    data[at] ^= 1
    disk.replace_contents(path, bytes(data))


def with_log(check: Any, seed: int = 0) -> None:
    """Run the check on a new log."""

    async def main(world: World) -> None:
        store = await MessageStore.open(world, CONFIG, Topics())
        log = Log(world, store, Random(seed))
        await check(log)
        log.close()

    assert run_solo(main).outcome == "ended"


@pytest.mark.parametrize("seed", range(3))
def test_finds_the_last_record_below_an_offset(seed: int) -> None:
    async def check(log: Log) -> None:
        bad = log.random.choice(log.records)[0]
        log.flip(bad)
        ends = [*(end for _, end in log.records), *log.segments.starts, bad + 1]
        places = {at + by for at in ends for by in (-1, 0, 1) if 0 <= at + by <= log.end}
        for at in sorted(places):
            for scanner, damage in ((None, None), (crc_scanner(CONFIG), bad)):
                actual = await cut.boundary_below(log.parts, at, scanner)
                place = actual and (actual.last.physical_offset, actual.end)
                assert place == log.boundary(at, damage)

    with_log(check, seed)


@pytest.mark.parametrize("seed", range(3))
def test_counts_good_records_after_damage(seed: int) -> None:
    async def check(log: Log) -> None:
        bad = [start for start, _ in log.random.sample(log.records, log.random.randrange(1, 4))]
        for start in bad:
            log.flip(start)
        good = [start for start, _ in log.records if start not in bad]
        for start, end in log.records:
            for at in (start - 1, start, end):
                after = [one for one in good if one > at]
                expected = Tail(len(after), after[0] if after else -1)
                assert await good_records_after(log.parts, at) == expected
        at = log.random.choice(good)
        for limit, is_found in ((at, False), (at + 1, True)):
            tail = await good_records_after(log.parts, at - 1, limit)
            assert (tail.first_good == at, tail.good_records > 0) == (is_found, is_found)

    with_log(check, seed)


def test_finds_a_record_across_the_end_of_a_read() -> None:
    async def check(world: World) -> None:
        config = small_config(segment_size=1 << 17)
        store = await MessageStore.open(world, config, Topics())
        segments = store._parts.log.segments
        put(store, "A", 0, bytes(9))
        head = segments.read(0, BODY_AT)
        bad = put(store, "A", 0, head * (READ * 4 // len(head)))  # heads that claim offset 0
        good = put(store, "A", 0, bytes(9))
        flip(world.disk, segments.path(0), bad + 200)
        cursor = LogCursor(segments, crc_scanner(config))
        for read in (READ, 3 * READ):
            for before in (*range(-2, 100), READ // 2):
                assert await next_good(world, cursor, good + before - read) == good
        for limit, expected in ((good, -1), (good + 1, good)):
            assert await next_good(world, cursor, bad, limit) == expected
        store._release()

    run_solo(check)


@pytest.mark.parametrize("seed", range(4))
def test_keeps_each_piece_beside_earlier_ones(seed: int) -> None:
    async def check(log: Log) -> None:
        kept, opened, disk = dict[str, bytes](), log.disk.open_files, log.disk

        def check_kept(path: str, name: str, data: bytes) -> None:
            first = f"{KEPT}/{name}"
            assert path.startswith(f"{first}.") if first in kept else path == first
            assert path not in kept
            kept[path] = data
            paths = [one for one in disk.paths() if KEPT in one and not one.endswith(".new")]
            assert {one: disk.contents(one) for one in paths} == kept
            ensure_durable(log.world, "a kept piece", f"{KEPT}/")

        start = log.random.randrange(log.end)
        for end in (start - 1, start):
            assert await cut.keep_cut_bytes(log.parts, start, end=end) == ("", 0)
        for number in range(8):
            start = log.random.choice((0, SIZE, log.random.randrange(log.end)))
            ends = (start + 1, SIZE, 2 * SIZE, log.end)
            end = log.random.choice([end for end in ends if end > start])
            name = f"{start:020d}"
            if number % 2 and disk.is_dir(KEPT):
                disk.replace_contents(f"{KEPT}/{name}.new", bytes(log.end + 9))  # of a crash
            if number % 3:
                path, size = await cut.keep_cut_bytes(log.parts, start, end=end)
                assert size == end - start
            else:
                path, name = await cut.keep_bytes(log.parts, start, end, "why"), f"{name}.why"
            check_kept(path, name, log.bytes(start, end))
        for start in (*log.segments.starts[:2], log.segments.starts[0]):
            file = log.segments.path(start)
            path = await cut.keep_file(log.parts, file)
            check_kept(path, f"{start:020d}.segment", disk.contents(file))
        assert disk.open_files == opened

    with_log(check, seed)


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename", "read", ""])
def test_a_failing_disk_leaves_no_copy(operation: str) -> None:
    async def check(log: Log) -> None:
        before = log.disk.paths()
        path = "*" if operation == "read" else f"{KEPT}/*"
        log.disk.faults[:] = [SimFault(operation=operation, path=path)] * bool(operation)
        end = log.end if operation else log.segments.end + 1
        with pytest.raises(OSError, match=r".") as caught:
            await cut.keep_bytes(log.parts, SIZE, end, "not")
        assert caught.value.errno == errno.EIO
        assert operation == "rename" or set(log.disk.paths()) == set(before)

    with_log(check)


def test_finds_the_last_byte_that_is_not_zero() -> None:
    async def check(log: Log) -> None:
        start = log.segments.starts[-1]
        path, whole = log.segments.path(start), log.bytes(0, log.segments.starts[-1] + SIZE)
        for by in (0, 1, SIZE - 1 - log.end % SIZE):
            at = log.end + by - start
            data = bytearray(whole[start:])
            data[at] = 7
            log.disk.replace_contents(path, bytes(data))
            end = len((whole[:start] + data).rstrip(b"\0"))
            for offset in (0, log.random.randrange(log.end), log.end, start + at, start + at + 1):
                assert cut.last_nonzero(log.parts, offset) == max(end, offset)

    with_log(check)


def test_a_missing_file_ends_the_search_for_bytes() -> None:
    for data, at, end in ((bytes(9), 2, 2), (b"\0" * 7 + b"ab" + bytes(9), 2, 9), (b"a", 0, 1)):
        segments = SimpleNamespace(
            has=lambda at, data=data: at < len(data),
            read=lambda at, _, data=data: data[at : at + 5],
        )
        parts: Any = SimpleNamespace(log=SimpleNamespace(segments=segments))
        assert cut.last_nonzero(parts, at) == end


def test_zeros_are_told_from_data_across_chunks() -> None:
    for size in (CHUNK - 1, CHUNK, CHUNK + 1):
        assert cut.is_zero(bytes(size))
        assert not cut.is_zero(bytes(size - 1) + b"\1")


def test_a_scrub_keeps_earlier_damage_that_is_still_there() -> None:
    places = list[tuple[int, int, str]]()

    async def fill(world: World) -> None:
        store = await MessageStore.open(world, CONFIG, Topics())
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            for number in range(14):
                start = put(store, "A", 0, b"%d " % number * 30)
                places.append((start, store.max_offset, "bad"))
            await store.scrubber.finished.wait()
            await trio.sleep(3)
            await store.scrubber._note(scrubbed=places[-1][0], damage=tuple(places[:2]))
            await store.close()
            nursery.cancel_scope.cancel()
        flip(world.disk, f"{ROOT}/commitlog/{0:020d}", places[0][0] + BODY_AT)

    async def look(world: World) -> None:
        store = await MessageStore.open(world, CONFIG, Topics())
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            await store.scrubber.finished.wait()
            damage = [(one.start, one.end) for one in store.scrubber.damage]
            assert damage == [places[0][:2]]
            assert store._parts.marks.mark.damage == tuple(places[:1])
            nursery.cancel_scope.cancel()

    run_solo(look, image=run_solo(fill).image)
