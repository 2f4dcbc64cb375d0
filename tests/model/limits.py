"""What a store refuses: sizes that nothing fits into, a directory that another process has."""

from dataclasses import replace
from random import Random
from typing import Any, Final

import trio

from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.node.store.config import StoreConfig, parse_delay_levels
from rocketbed.node.store.errors import BadStoreDirectory, MessageRejected, StoreError, StoreLocked
from rocketbed.node.store.status import PutStatus
from rocketbed.node.store.store import MessageStore
from rocketbed.wire.message import BatchItem
from rocketbed.world.api import World
from tests.model.store import HOST, Topics, settings

TAKEN: Final = (
    {"segment_size": 256},
    {"index_entries": 2, "index_slots": 1},
    {"index_entries": (1 << 31) - 1},
)
REFUSED: Final = (
    {"segment_size": 255},
    {"index_entries": 1},
    {"index_slots": 0},
    {"index_entries": 1 << 31},
)
LARGEST: Final = 1000
PROPERTIES_MAX: Final = (1 << 15) - 1
"""Bytes: a record has their length as a signed number of 16 bits."""
CRC_PROPERTY: Final = 20
"""Bytes that a record's checksum takes among them."""
END_MARK: Final = 8
"""Bytes that a file of the log keeps free for its end."""


def run_limits(seed: int) -> str:
    """Each on both of its sides."""
    config = settings(Random(seed))
    for changes in TAKEN:
        settings(Random(seed), **changes)
    for changes in REFUSED:
        try:
            settings(Random(seed), **changes)
        except BadStoreDirectory:
            continue
        raise AssertionError(f"settings: {changes} was taken")
    for levels, wanted in (
        ("1s 2m", [1000, 120_000]),
        ("3h 4d", [10_800_000, 345_600_000]),
        ("1_0s", None),
        ("\u0663s", None),
        ("s", None),
    ):
        assert _delays(levels) == wanted, f"settings: {levels}: {_delays(levels)}"
    odd = replace(config, queue_segment_size=61, batch_queue_segment_size=100)
    sizes = (odd.queue_segment_size, odd.batch_queue_segment_size)
    assert sizes == (80, 92), f"settings: {sizes}: not whole units"
    run = run_solo(_main, replace(config, max_message_size=LARGEST, segment_size=4096), seed=seed)
    for said in run.value:
        raise AssertionError(said)
    digest = run.digest
    for has_crc in (False, True):
        wide = replace(config, segment_size=1 << 18, append_property_crc=has_crc)
        long = run_solo(_properties, wide, seed=seed)
        for said in long.value:
            raise AssertionError(said)
        digest += long.digest
    small = replace(config, segment_size=4096)
    plain = replace(small, append_property_crc=False)
    for filling in (run_solo(_fills, small, seed=seed), run_solo(_batches, plain, seed=seed)):
        for said in filling.value:
            raise AssertionError(said)
        digest += filling.digest
    return digest


def _delays(levels: str) -> list[int] | None:
    """In ms; None if they are refused."""
    try:
        return parse_delay_levels(levels)
    except ValueError:
        return None


async def _fills(world: World, config: StoreConfig) -> list[str]:
    """A record that fills a file but for the end's mark, in an empty one, and one byte more."""
    store = await MessageStore.open(world, config, Topics())
    one, wrong = store.begin(), []
    one.add("A", 0, b"", b"", flag=0, sys_flag=0, born_ms=1, born_host=HOST)
    store.commit(one)
    rest = config.segment_size - END_MARK - store.max_offset
    for number, (more, is_taken) in enumerate(((0, True), (1, False), (0, True))):
        run = store.begin()
        try:
            run.add("A", 0, bytes(rest + more), b"", flag=0, sys_flag=0, born_ms=1, born_host=HOST)
        except MessageRejected:
            was_taken = False
        else:
            was_taken = True
            store.commit(run)
        if was_taken != is_taken:
            wrong.append(f"size: {rest + more} bytes of a body in a file: taken {was_taken}")
        if not number and store.max_offset != 2 * config.segment_size - END_MARK:
            wrong.append(f"size: a record that fills the second file ends at {store.max_offset}")
    return wrong


async def _batches(world: World, config: StoreConfig) -> list[str]:
    """Messages of a batch that fill a file but for the end's mark, and one byte more; then one that
    fits beside what the file has, and one byte more, for which the next file is."""
    store = await MessageStore.open(world, config, Topics())
    wrong = []
    most = config.segment_size - END_MARK
    for size, is_taken in ((most, True), (most + 1, False), (most - 400, True), (400, True)):
        run, before = store.begin(), store.max_offset
        bodies = _bodies(store, size)
        items = [BatchItem(body, 0, b"") for body in bodies]
        try:
            run.add_batch("A", 0, items, sys_flag=0, born_ms=1, born_host=HOST)
        except MessageRejected:
            was_taken = False
        else:
            was_taken = True
            store.commit(run)
        if was_taken != is_taken:
            wrong.append(f"size: a batch of {size} bytes: taken {was_taken}")
        start = -(-before // config.segment_size) * config.segment_size
        end = before + size if before % config.segment_size + size <= most else start + size
        if was_taken and store.max_offset != end:
            wrong.append(f"size: a batch of {size} from {before} ends at {store.max_offset}")
    return wrong


async def _properties(world: World, config: StoreConfig) -> list[str]:
    """As long as a record can say, by themselves and in a batch, and one byte more."""
    store = await MessageStore.open(world, config, Topics())
    room = PROPERTIES_MAX - (CRC_PROPERTY + 1 if config.append_property_crc else 0)
    wrong = []
    for size, is_taken in ((room, True), (room + 1, False)):
        text = b"k\x01".ljust(size, b"v")
        items = [BatchItem(b"one", 0, b""), BatchItem(b"two", 0, text)]
        host: dict[str, Any] = {"sys_flag": 0, "born_ms": 1, "born_host": HOST}
        for what in ("one", "batch"):
            run, was_taken = store.begin(), True
            try:
                if what == "one":
                    run.add("A", 0, b"", text, flag=0, **host)
                else:
                    run.add_batch("A", 0, items, **host)
            except MessageRejected as exc:
                was_taken = False
                if exc.status is not PutStatus.PROPERTIES_SIZE_EXCEEDED:
                    wrong.append(f"size: {what}: {exc.status} for {size} bytes of properties")
            else:
                store.commit(run)
            if was_taken != is_taken:
                wrong.append(f"size: {what}: {size} bytes of properties: taken {was_taken}")
    return wrong


def _bodies(store: MessageStore, size: int) -> list[bytes]:
    """Of two messages whose records take so many bytes."""
    probe = store.begin()
    probe.add_batch("A", 0, [BatchItem(b"", 0, b"")] * 2, sys_flag=0, born_ms=1, born_host=HOST)
    rest = size - sum(map(len, probe.chunks[-1][1]))
    return [bytes(rest // 2), bytes(rest - rest // 2)]


async def _main(world: World, config: StoreConfig) -> list[str]:
    wrong = [said for said in [await _second(world, config)] if said]
    store = await MessageStore.open(world, config, Topics())
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        wrong += _sizes(store)
        world.disk.makedirs("/other")
        for other in (config, replace(config, root="/other", commitlog_dir=config.log_dir)):
            if not await _is_locked(world, other):
                wrong.append(f"lock: {other.root} was opened beside the process that has its log")
        await store.close()
    if await _is_locked(world, config):
        wrong.append("lock: a store that was closed is locked still")
    return wrong


async def _second(world: World, config: StoreConfig) -> str:
    """A check of a directory without a store says so, and makes none."""
    try:
        await MessageStore.check(world, config, Topics())
    except BadStoreDirectory:
        return "" if not world.disk.is_dir(config.root) else "preview: it made a directory"
    return "preview: nothing was found, and nothing said"


async def _is_locked(world: World, config: StoreConfig) -> bool:
    try:
        await MessageStore.check(world, config, Topics())
    except StoreLocked:
        return True
    except StoreError:
        return False
    return False


def _sizes(store: MessageStore) -> list[str]:
    """Bodies and properties about as long as is allowed; the store's end shows what was put."""
    wrong = []
    for size, properties, is_taken in (
        (LARGEST, b"", True),
        (LARGEST + 1, b"", False),
        (10, b"k\x01" + b"v" * 4000 + b"\x02", False),
        (10, b"k\x01v", True),
        (10, b"k\x01v\x02", True),
        (0, b"", True),
    ):
        run, before = store.begin(), store.max_offset
        try:
            run.add("A", 0, bytes(size), properties, flag=0, sys_flag=0, born_ms=1, born_host=HOST)
        except MessageRejected:
            was_taken = False
        else:
            was_taken = True
            store.commit(run)
        if was_taken != is_taken or (store.max_offset > before) != is_taken:
            wrong.append(f"size: a body of {size} with {len(properties)}: taken {was_taken}")
    for size, is_taken in ((0, False), (1, True), (127, True), (128, False)):
        run = store.begin()
        try:
            run.add("t" * size, 0, b"", b"", flag=0, sys_flag=0, born_ms=1, born_host=HOST)
        except MessageRejected:
            was_taken = False
        else:
            was_taken = True
        if was_taken != is_taken:
            wrong.append(f"size: a topic of {size} characters: taken {was_taken}")
    return wrong
