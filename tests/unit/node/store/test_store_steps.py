"""Steps of a store: filling holes, moving obstacles, locking, failing, starting after a crash."""

import struct
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import trio

from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.node.store.aside import clear_the_way, kept_bytes
from rocketbed.node.store.errors import DamagedLog, StoreFailed, StoreLocked
from rocketbed.node.store.filler import FILLER_MIN, fill_hole
from rocketbed.node.store.locks import lock_store
from rocketbed.node.store.store import MessageStore
from rocketbed.world.api import World
from tests.model.durable import ensure_durable
from tests.support.sim.small_store import ROOT, Topics, put, small_config

RECORD = struct.Struct(">iiIiiqqiq8sq8siqi")
"""A record up to its body (docs/reference/formats.md)."""
MAGIC = 0xDAA320A7 - (1 << 32)
ROLLED_BACK = 12
CONFIG = small_config()


def run_closed(main: Callable[[World], Awaitable[None]]) -> None:
    """Run it in simulation; expect that it leaves no file open."""

    async def check(world: World) -> None:
        await main(world)
        disk: Any = world.disk
        assert disk.open_files == 0

    run_solo(check)


def test_fills_a_hole_with_a_single_record() -> None:
    async def fill(world: World) -> None:
        store = await MessageStore.open(world, CONFIG, Topics())
        for number in range(12):
            put(store, "A", 0, bytes([number]) * 300)
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            await trio.sleep(2.5)  # until all is on disk
            nursery.cancel_scope.cancel()
        parts, size = store._parts, CONFIG.segment_size
        segments = parts.log.segments
        for at, length in (
            (0, FILLER_MIN), (8, FILLER_MIN + 23), (size - FILLER_MIN, FILLER_MIN), (0, size),
        ):  # fmt: skip
            before = segments.read(at, length)
            await fill_hole(parts, at, at + length)
            data, rest = segments.read(at, length), length - FILLER_MIN
            body, head = data[88 : 88 + rest], RECORD.unpack_from(data)
            assert body == before[88 : 88 + rest]
            assert data[88 + rest :] == b"\x01!\0\0"
            crc, stored_ms = zlib.crc32(body) & 0x7FFFFFFF, parts.log.last_store_ms
            assert head[:9] == (length, MAGIC, crc, 0, 0, 0, at, ROLLED_BACK, stored_ms)
            assert head[9:] == (head[9], stored_ms, head[9], 0, 0, rest)
            ensure_durable(world, "a filled hole")
        for at, length in (
            (0, FILLER_MIN - 1), (size - 10, FILLER_MIN), (size - FILLER_MIN, FILLER_MIN + 1),
        ):  # fmt: skip
            with pytest.raises(DamagedLog):
                await fill_hole(parts, at, at + length)
        store._release()

    run_closed(fill)


def test_moves_only_what_is_in_the_way() -> None:
    async def clear(world: World) -> None:
        store = await MessageStore.open(world, CONFIG, Topics())
        disk: Any = world.disk
        pool, aside = store._parts.pool, f"{ROOT}/rocketbed.cut"
        file = f"{ROOT}/consumequeue/T/0/{0:020d}"
        is_moved = partial(clear_the_way, world, pool, ROOT, file)
        assert not is_moved()
        moved = 0
        for depth, is_folder in ((1, False), (2, False), (3, True), (3, False), (2, True)):
            path = "/".join(file.split("/")[: depth + 3])
            disk.makedirs(path if is_folder else path.rpartition("/")[0])
            if not is_folder:
                disk.replace_contents(path, b"mine")
            is_obstacle = is_folder == (path == file)
            assert is_moved() == is_obstacle
            await pool.sync_names()
            ensure_durable(world, "a moved obstacle")
            assert disk.exists(path) != is_obstacle
            moved += is_obstacle
            assert len(disk.listdir(aside)) == moved
            assert not is_moved()
            if disk.is_file(path):
                disk.unlink(path)
        piece = disk.open(f"{aside}/piece", create=True)
        piece.write_at(0, b"mine")
        piece.close()
        assert (kept_bytes(world, ROOT), kept_bytes(world, f"{ROOT}/index")) == (4, 0)
        store._release()

    run_closed(clear)


def test_takes_both_locks_or_neither() -> None:
    async def lock(world: World) -> None:
        disk: Any = world.disk
        config = replace(CONFIG, commitlog_dir="/log")
        disk.makedirs(ROOT)
        (only,) = lock_store(world, config)
        only.release()
        disk.makedirs("/log")
        foreign = disk.lock_dir("/log")
        with pytest.raises(StoreLocked):
            lock_store(world, config)
        foreign.release()
        lock_dir = disk.lock_dir

        def fail(path: str) -> None:
            raise OSError(5, "no lock", path)

        disk.lock_dir = fail
        with pytest.raises(OSError, match="no lock"):
            lock_store(world, config)
        disk.lock_dir = lock_dir
        both = lock_store(world, config)
        assert len(both) == 2
        with pytest.raises(StoreLocked):
            lock_store(world, config)
        for taken in both:
            taken.release()

    run_closed(lock)


def test_a_failed_store_keeps_its_first_reason() -> None:
    async def fail(world: World) -> None:
        store = await MessageStore.open(world, CONFIG, Topics())
        put(store, "A", 0, b"body")
        parts = store._parts
        first = StoreFailed("first")
        assert parts.failure.set(first) is first
        assert parts.failure.set(StoreFailed("second")) is first
        for step in (
            partial(parts.pool.sync, parts.log.segments.path(0)), store._flusher.flush,
            parts.pool.sync_names, store._checkpointer.raise_mark,
        ):  # fmt: skip
            with pytest.raises(StoreFailed):
                await step()
        assert "first" in store.trouble()
        store._release()

    run_closed(fail)


def test_unnamed_files_of_a_crash_do_no_harm() -> None:
    bodies = list[bytes]()

    async def live(world: World) -> None:
        disk: Any = world.disk
        names = [path.rpartition("/")[2] for path in disk.paths()]
        for name in [*dict.fromkeys(names), "ahead"]:
            size = CONFIG.segment_size * (2 if name != "ahead" else 1) // 2
            disk.replace_contents(f"{ROOT}/rocketbed.tmp/{name}.new", b"x" * size)
        store = await MessageStore.open(world, CONFIG, Topics())
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            for number in range(8):
                bodies.append(b"%d " % number * 40)
                put(store, "A", 0, bodies[-1])
            await store.dispatched.wait_for(store.max_offset)
            stored = list[bytes]()
            while len(stored) < len(bodies):
                result = store.get_messages("A", 0, len(stored), 1)
                at, size = result.ranges[0]
                stored.append(bytes(store.log.read(at, size)))
            assert all(body in data for body, data in zip(bodies, stored, strict=True))
            await store.close()
            nursery.cancel_scope.cancel()

    async def first(world: World) -> None:
        world.disk.makedirs(f"{ROOT}/rocketbed.tmp")
        await live(world)

    image = run_solo(first).image
    for _ in range(2):
        image = run_solo(live, image=image).image
