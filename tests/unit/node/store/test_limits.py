"""Limits of a store, each on both sides: settings, sizes of records and batches, its lock."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from rocketbed.node.store.config import StoreConfig, parse_delay_levels
from rocketbed.node.store.errors import BadStoreDirectory, MessageRejected, StoreLocked
from rocketbed.node.store.run import Run
from rocketbed.node.store.status import PutStatus
from rocketbed.node.store.store import MessageStore
from rocketbed.wire.message import BatchItem
from rocketbed.world.api import World
from tests.model.alone import run_alone
from tests.model.store import HOST, Topics, settings

LARGEST = 1000
PROPERTIES_MAX = (1 << 15) - 1
"""Bytes: a record has their length as a signed number of 16 bits."""
CRC_PROPERTY = 20
END_MARK = 8
"""Bytes at the end of a file that no record takes."""
BORN: dict[str, Any] = {"sys_flag": 0, "born_ms": 1, "born_host": HOST}
SMALL = settings(Random(1), segment_size=4096, max_message_size=LARGEST, append_property_crc=False)


def with_store(test: Any, config: StoreConfig) -> Any:
    async def main(world: World) -> Any:
        return await test(world, await MessageStore.open(world, config, Topics()))

    return run_alone(main).value


def is_accepted(store: MessageStore, run: Run, add: Any) -> PutStatus | None:
    """Add to a run and commit it; return why it was rejected, or None."""
    try:
        add(run)
    except MessageRejected as exc:
        return exc.status
    store.commit(run)
    return None


@pytest.mark.parametrize(
    ("changes", "is_valid"),
    [
        ({"segment_size": 256}, True),
        ({"segment_size": 255}, False),
        ({"index_entries": 2, "index_slots": 1}, True),
        ({"index_entries": 1}, False),
        ({"index_slots": 0}, False),
        ({"index_entries": (1 << 31) - 1}, True),
        ({"index_entries": 1 << 31}, False),
    ],
)
def test_settings_have_limits(changes: dict[str, int], is_valid: bool) -> None:
    if is_valid:
        settings(Random(1), **changes)
        return
    with pytest.raises(BadStoreDirectory):
        settings(Random(1), **changes)


def test_sizes_of_queue_files_are_whole_units() -> None:
    odd = replace(SMALL, queue_segment_size=61, batch_queue_segment_size=100)
    assert (odd.queue_segment_size, odd.batch_queue_segment_size) == (80, 92)


def test_delay_levels_are_parsed() -> None:
    assert parse_delay_levels("1s 2m") == [1000, 120_000]
    assert parse_delay_levels("3h 4d") == [10_800_000, 345_600_000]
    for text in ("1_0s", "\u0663s", "s"):
        with pytest.raises(ValueError, match="is no delay"):
            parse_delay_levels(text)


@pytest.mark.parametrize(
    ("topic", "size", "properties", "accepted"),
    [
        ("A", LARGEST, b"", True),
        ("A", LARGEST + 1, b"", False),
        ("A", 10, b"k\x01" + b"v" * 4000 + b"\x02", False),
        ("A", 10, b"k\x01v", True),
        ("A", 10, b"k\x01v\x02", True),
        ("A", 0, b"", True),
        ("", 0, b"", False),
        ("t", 0, b"", True),
        ("t" * 127, 0, b"", True),
        ("t" * 128, 0, b"", False),
    ],
)
def test_messages_have_limits(topic: str, size: int, properties: bytes, accepted: bool) -> None:
    async def put(_world: World, store: MessageStore) -> tuple[bool, bool]:
        status = is_accepted(
            store,
            store.begin(),
            lambda run: run.add(topic, 0, bytes(size), properties, flag=0, **BORN),
        )
        return status is None, store.max_offset > 0

    assert with_store(put, SMALL) == (accepted, accepted)


def test_a_record_may_fill_a_file_but_for_its_end_mark() -> None:
    size = SMALL.segment_size

    async def put(_world: World, store: MessageStore) -> None:
        def add(length: int) -> PutStatus | None:
            run = store.begin()
            return is_accepted(
                store, run, lambda run: run.add("A", 0, bytes(length), b"", flag=0, **BORN)
            )

        assert add(0) is None
        remaining = size - END_MARK - store.max_offset
        assert add(remaining) is None
        assert store.max_offset == 2 * size - END_MARK
        assert add(remaining + 1) is not None
        assert add(remaining) is None

    with_store(put, replace(SMALL, max_message_size=4 << 20))


def test_a_batch_goes_to_the_next_file_if_it_does_not_fit() -> None:
    size = SMALL.segment_size
    most = size - END_MARK

    async def put(_world: World, store: MessageStore) -> None:
        for length, accepted in ((most, True), (most + 1, False), (most - 400, True), (400, True)):
            probe, before = store.begin(), store.max_offset
            probe.add_batch("A", 0, [BatchItem(b"", 0, b"")] * 2, **BORN)
            remaining = length - sum(map(len, probe.chunks[-1][1]))
            items = [
                BatchItem(bytes(n), 0, b"") for n in (remaining // 2, remaining - remaining // 2)
            ]
            status = is_accepted(
                store,
                store.begin(),
                lambda run, items=items: run.add_batch("A", 0, items, **BORN),
            )
            assert (status is None) == accepted, length
            next_file = -(-before // size) * size
            start = before if before % size + length <= most else next_file
            assert not accepted or store.max_offset == start + length, length

    with_store(put, replace(SMALL, max_message_size=4 << 20))


@pytest.mark.parametrize("has_crc", [False, True])
@pytest.mark.parametrize("is_batch", [False, True])
def test_properties_are_as_long_as_a_record_can_say(has_crc: bool, is_batch: bool) -> None:
    config = settings(Random(1), segment_size=1 << 18, append_property_crc=has_crc)

    async def put(_world: World, store: MessageStore) -> list[PutStatus | None]:
        def add(run: Run, text: bytes) -> None:
            if is_batch:
                items = [BatchItem(b"one", 0, b""), BatchItem(b"two", 0, text)]
                run.add_batch("A", 0, items, **BORN)
            else:
                run.add("A", 0, b"", text, flag=0, **BORN)

        room = PROPERTIES_MAX - (CRC_PROPERTY + 1 if has_crc else 0)
        return [
            is_accepted(
                store, store.begin(), lambda run, size=size: add(run, b"k\x01".ljust(size, b"v"))
            )
            for size in (room, room + 1)
        ]

    assert with_store(put, config) == [None, PutStatus.PROPERTIES_SIZE_EXCEEDED]


def test_a_store_is_locked_while_it_is_open() -> None:
    """Another directory with the same log is locked as well."""

    async def lock(world: World, store: MessageStore) -> None:
        world.disk.makedirs("/other")
        for config in (SMALL, replace(SMALL, root="/other", commitlog_dir=SMALL.log_dir)):
            with pytest.raises(StoreLocked):
                await MessageStore.check(world, config, Topics())
        await store.close()
        await MessageStore.check(world, SMALL, Topics())

    with_store(lock, SMALL)


def test_a_check_makes_no_directory() -> None:
    async def main(world: World) -> None:
        with pytest.raises(BadStoreDirectory):
            await MessageStore.check(world, SMALL, Topics())
        assert not world.disk.is_dir(SMALL.root)

    run_alone(main)
