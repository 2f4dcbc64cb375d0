"""Steps of a store taken by themselves: a hole that is filled, what stands in the way of a file,
two locks of which one is taken, a store that has failed, small files that are kept; on both sides
of each limit, and with a disk that fails at the step.
"""

import errno
import struct
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final

from rocketbed.node.store.aside import clear_the_way, kept_bytes
from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.errors import DamagedLog, StoreFailed, StoreLocked
from rocketbed.node.store.filler import FILLER_MIN, fill_hole
from rocketbed.node.store.locks import lock_store
from rocketbed.node.store.store import MessageStore
from rocketbed.replication.entry import Policy
from rocketbed.replication.errors import NoRoom
from rocketbed.replication.identity import ReplicaFile
from rocketbed.replication.kept_file import (
    SIZE_MAX,
    KeptFileDamaged,
    KeptFileUnwritable,
    read_kept,
    write_kept,
)
from rocketbed.world.api import World
from tests.model.alone import run_alone
from tests.model.durable import ensure_durable
from tests.model.model import Model
from tests.model.store import ROOT, Life, Topics, ensure_closed, settings

RECORD: Final = struct.Struct(">iiIiiqqiq8sq8siqi")
"""A record up to its body (docs/reference/formats.md)."""
MAGIC: Final = 0xDAA320A7 - (1 << 32)
ROLLED_BACK: Final = 12
Step = Callable[[World, StoreConfig, Random], Awaitable[None]]
MINE: Final = b"mine"
KIND: Final = "rocketbed-thing 1"


def run_steps(seed: int) -> str:
    random = Random(f"steps/{seed}")
    config = settings(random)
    steps = (_holes, _in_the_way, _locks, _failed, _leftovers, _kept_files, _left)
    return " ".join(
        run_alone(partial(_step, step=step, random=random), config).digest for step in steps
    )


async def _step(world: World, config: StoreConfig, *, step: Step, random: Random) -> None:
    await step(world, config, random)
    ensure_closed(world)


async def _refuses(
    what: str, kind: type[Exception], asked: Callable[[], Awaitable[Any]], says: str = ""
) -> None:
    try:
        await asked()
    except kind as exc:
        assert says in str(exc), f"refusal: {what}: {exc!r} for {says!r}"
        return
    raise AssertionError(f"refusal: {what}")


# --- a hole in the log


async def _holes(world: World, config: StoreConfig, random: Random) -> None:
    """One record takes its place, with what stood there as its body; not less than one needs, and
    not beyond the end of a file."""
    life = Life(Model(segment=config.segment_size), random, 0, power=False)
    store = await MessageStore.open(world, config, Topics())
    await life.filled(store, 6)
    parts, size = store._parts, config.segment_size
    start = parts.log.segments.starts[0]
    for at, length in (
        (start, FILLER_MIN),
        (start + 8, FILLER_MIN + random.randrange(1, 50)),
        (start + size - FILLER_MIN, FILLER_MIN),
        (start, size),
    ):
        before = parts.log.segments.read(at, length)
        await fill_hole(parts, at, at + length)
        data = parts.log.segments.read(at, length)
        rest = length - FILLER_MIN
        body, ends = data[88 : 88 + rest], data[88 + rest :]
        assert before[88 : 88 + rest] == body, "filler: its body is not what stood there"
        stored_ms = parts.log.last_store_ms
        says = RECORD.unpack_from(data)
        crc = zlib.crc32(body) & 0x7FFFFFFF
        want: tuple[Any, ...] = (length, MAGIC, crc, 0, 0, 0, at, ROLLED_BACK, stored_ms)
        want += (says[9], stored_ms, says[9], 0, 0, rest)
        assert says == want and ends == b"\x01!\0\0", f"filler: {says} for {want}, {ends!r}"
        ensure_durable(world, "a hole that was filled")
    asked: tuple[tuple[int, int], ...] = ((start, FILLER_MIN - 1), (start + size - 10, FILLER_MIN))
    if len(parts.log.segments.starts) > 1:
        asked += ((start + size - FILLER_MIN, FILLER_MIN + 1),)
    for at, length in asked:
        fill = partial(fill_hole, parts, at, at + length)
        await _refuses(f"a filler of {length} bytes at {at}", DamagedLog, fill)
    store._release()


# --- in the way of a file


async def _in_the_way(world: World, config: StoreConfig, random: Random) -> None:
    """A file where a folder is needed, and a folder where a file is, are moved; nothing else is."""
    store = await MessageStore.open(world, config, Topics())
    disk: Any = world.disk
    pool, folder = store._parts.pool, f"{ROOT}/consumequeue"
    wanted = f"{folder}/T/0/{0:020d}"
    clear = partial(clear_the_way, world, pool, ROOT, wanted)
    assert not clear(), "aside: nothing stands in the way"
    moved = 0
    for depth, is_folder in ((1, False), (2, False), (3, True), (3, False), (2, True)):
        path = "/".join(wanted.split("/")[: depth + 3])
        disk.makedirs(path if is_folder else path.rpartition("/")[0])
        if not is_folder:
            disk.replace_contents(path, MINE)
        is_in_the_way = is_folder == (path == wanted)
        assert clear() == is_in_the_way, f"aside: {path}, a folder: {is_folder}"
        await pool.sync_names()
        ensure_durable(world, "what was moved aside")
        assert disk.exists(path) != is_in_the_way, f"aside: {path} stands there still"
        moved += is_in_the_way
        assert len(disk.listdir(f"{ROOT}/rocketbed.cut")) == moved, "aside: where is it kept"
        assert not clear(), f"aside: {path} is in the way twice"
        if disk.is_file(path):
            disk.unlink(path)
    kept = disk.open(f"{ROOT}/rocketbed.cut/piece", create=True)
    kept.write_at(0, MINE)
    kept.close()
    found = kept_bytes(world, ROOT), kept_bytes(world, f"{ROOT}/index")
    assert found == (len(MINE), 0), f"aside: {found} bytes are kept"
    store._release()


# --- two locks


async def _locks(world: World, config: StoreConfig, random: Random) -> None:
    """Both or none: whoever cannot have the second gives back the first."""
    disk: Any = world.disk
    apart = replace(config, commitlog_dir="/log")
    disk.makedirs(ROOT)
    only = lock_store(world, apart)
    assert len(only) == 1, f"lock: {len(only)} without a log"
    only[0].release()
    disk.makedirs("/log")
    other = disk.lock_dir("/log")
    await _refuses("the log is another's", StoreLocked, partial(_lock, world, apart))
    other.release()
    lock_dir = disk.lock_dir

    def fails(path: str) -> None:
        raise OSError(5, "no lock", path)

    disk.lock_dir = fails
    await _refuses("the log's lock fails", OSError, partial(_lock, world, apart))
    disk.lock_dir = lock_dir
    both = lock_store(world, apart)
    assert len(both) == 2, f"lock: {len(both)} beside a log"
    await _refuses("both are taken", StoreLocked, partial(_lock, world, apart))
    for lock in both:
        lock.release()


async def _lock(world: World, config: StoreConfig) -> None:
    lock_store(world, config)


# --- a store that has failed


async def _failed(world: World, config: StoreConfig, random: Random) -> None:
    """Its reason is the first one, and whoever would bring something to disk hears it."""
    life = Life(Model(segment=config.segment_size), random, 0, power=False)
    store = await MessageStore.open(world, config, Topics())
    life.put_in(store, "A", 0)
    parts = store._parts
    first = StoreFailed("first")
    assert parts.failure.set(first) is first, "failed: another reason"
    assert parts.failure.set(StoreFailed("second")) is first, "failed: a later reason"
    path = parts.log.segments.path(parts.log.segments.starts[0])
    for what, asked in (
        ("a sync", partial(parts.pool.sync, path)),
        ("a flush", store._flusher.flush),
        ("names", parts.pool.sync_names),
        ("the mark", store._checkpointer.raise_mark),
    ):
        await _refuses(f"{what} of a store that has failed", StoreFailed, asked)
    assert str(first) in store.trouble(), f"failed: {store.trouble()!r} is told"
    store._release()


# --- what a crash left half-done


async def _leftovers(world: World, config: StoreConfig, random: Random) -> None:
    """Files without a name yet, longer than what comes in their place, are in nobody's way; and
    half of a file that was made ahead."""
    disk: Any = world.disk
    life = Life(Model(segment=config.segment_size), random, 0, power=False)
    store = await MessageStore.open(world, config, Topics())
    await life.filled(store, 3)
    store._release()
    for _ in range(2):
        for name in _unnamed(disk):
            disk.replace_contents(name, MINE * (config.segment_size // 2))
        disk.replace_contents(f"{ROOT}/rocketbed.tmp/ahead.new", bytes(config.segment_size // 2))
        await life.main(world, config, stops=True)
        if life.wrong is not None:
            raise life.wrong


def _unnamed(disk: Any) -> list[str]:
    """All that a store would make before it gives it its name."""
    names = [path.rpartition("/")[2] for path in disk.paths()]
    return [f"{ROOT}/rocketbed.tmp/{name}.new" for name in dict.fromkeys(names)]


# --- small files


async def _kept_files(world: World, config: StoreConfig, random: Random) -> None:
    """What was written comes back; nothing else does, and what cannot be written is no loss."""
    disk: Any = world.disk
    disk.makedirs(ROOT)
    path = f"{ROOT}/thing"
    assert read_kept(world, path, KIND) is None, "kept: there is none"
    value = {"n": random.randrange(100), "text": "x" * random.randrange(9)}
    await write_kept(world, ROOT, "thing", KIND, value)
    ensure_durable(world, "a small file")
    assert read_kept(world, path, KIND) == value, "kept: it is another one"
    good = disk.contents(path)
    spoilt = (good[:-1], good[1:], good + b"\n", good.replace(b'"n"', b'"m"'), bytes(9), b"r")
    for data in (b"", *spoilt):
        disk.replace_contents(path, data)
        asked, says = partial(_read, world, path, KIND), "CRC" if data else "it has 0 bytes"
        await _refuses(f"{data!r} for {good!r}", KeptFileDamaged, asked, says)
    disk.replace_contents(path, good)
    for kind, says in (("other 1", "CRC"), (KIND[:-1] + "2", f"it is a {KIND!r}")):
        asked = partial(_read, world, path, kind)
        await _refuses(f"of kind {kind}", KeptFileDamaged, asked, says)
    await _refuses("a folder", KeptFileDamaged, partial(_read, world, ROOT, KIND))
    empty = await _size_of(world, {"text": ""})
    for more, is_taken in ((0, True), (1, False)):
        await write_kept(world, ROOT, "long", KIND, {"text": "x" * (SIZE_MAX - empty + more)})
        asked = partial(_read, world, f"{ROOT}/long", KIND)
        if is_taken:
            await asked()
        else:
            await _refuses(f"{SIZE_MAX + 1} bytes", KeptFileDamaged, asked)
    disk.quota = disk.allocated()
    write = partial(write_kept, world, ROOT, "thing", KIND, {"n": -1})
    await _refuses("a full disk", NoRoom, write)
    disk.quota, sync_dir = None, disk.sync_dir
    disk.sync_dir = _no_room
    another = partial(write_kept, world, ROOT, "another", KIND, {})
    await _refuses("a name that may not be on disk", KeptFileUnwritable, another)
    disk.sync_dir, disk.read_only = sync_dir, True
    await _refuses("a disk that is read only", KeptFileUnwritable, write)
    disk.read_only = False
    disk.replace_contents(f"{path}.new", bytes(999))  # of a crash
    assert read_kept(world, path, KIND) == value, "kept: what could not be written came"
    await write()
    assert read_kept(world, path, KIND) == {"n": -1}, "kept: what could be written did not"


async def _no_room(path: str) -> None:
    raise OSError(errno.ENOSPC, "no room", path)


async def _read(world: World, path: str, kind: str) -> None:
    read_kept(world, path, kind)


async def _size_of(world: World, value: dict[str, object]) -> int:
    await write_kept(world, ROOT, "long", KIND, value)
    disk: Any = world.disk
    return len(disk.contents(f"{ROOT}/long"))


async def _left(world: World, config: StoreConfig, random: Random) -> None:
    """A replica's directory that a node without failover takes says so from then on, and no more
    once it is a replica's again."""
    world.disk.makedirs(ROOT)
    file = ReplicaFile(world, ROOT)
    await file.leave()
    assert not world.disk.exists(file.path), "left: a file of a directory that was no replica's"
    for _ in range(2):
        await file.begin(group="g", number=1, policy=Policy.FSYNC, trusts_cache=True)
        assert not file.was_alone(), "left: it was a replica's"
        await file.leave()
        assert file.was_alone(), "left: it was no replica's"
        disk: Any = world.disk
        events = disk.events
        await file.leave()
        assert disk.events == events, "left: it is written once more"
