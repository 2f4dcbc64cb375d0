"""Bytes staged over a log's files, and sizes of these files."""

from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.node.store.checkpointer import store_ms_at
from rocketbed.node.store.config import SEGMENT_SIZE, StoreConfig, parse_delay_levels
from rocketbed.node.store.errors import BadStoreDirectory
from rocketbed.node.store.heal_files import NotHealed, file_lengths, segment_size
from rocketbed.node.store.scan import SECTOR, _late_damage
from rocketbed.node.store.store import MessageStore
from rocketbed.node.store.view import LogView, Staged, is_segment_name
from rocketbed.world.api import World
from tests.support.records import record_head
from tests.support.sim.small_store import Topics, small_config

HOUR_MS = 3_600_000


@pytest.mark.parametrize("seed", range(10))
def test_staged_bytes_cover_the_files(seed: int) -> None:
    assert run_solo(check_view, Random(seed)).outcome == "ended"


async def check_view(world: World, random: Random) -> None:
    disk: Any = world.disk
    config = small_config()
    store = await MessageStore.open(world, config, Topics())
    size = config.segment_size
    starts = [size * number for number in range(random.randrange(3), 4)]
    view, path = LogView(store._parts, starts, {}), f"{config.root}/rocketbed.tmp/heal"
    disk.makedirs(f"{config.root}/rocketbed.tmp")
    disk.replace_contents(path, b"left by a crash")
    view.staged = staged = Staged(world, path)
    end, expected, covered = 4 * size, bytearray(4 * size), set[int]()
    at = random.randrange(size)
    while at < end:
        data = random.randbytes(min(random.choice((1, 50, size, size + 9)), end - at))
        staged.add(at, data)
        expected[at : at + len(data)] = data
        covered |= {*range(at, at + len(data))}
        at += len(data) + random.choice((0, 1, 70, size))
    for _ in range(20):
        at, length = random.randrange(end + 9), random.randrange(size + 9)
        file_end = at - at % size + size
        is_inside = starts[0] <= at < end
        assert view.read(at, length) == bytes(expected[at : min(at + length, file_end)] * is_inside)
    begin = random.randrange(starts[0], end)
    assert view.read_all(begin, end) == expected[begin:]
    pieces = staged.pieces(size)
    assert sorted(covered) == [at for start, n in pieces for at in range(start, start + n)]
    assert all(start // size == (start + n - 1) // size for start, n in pieces)
    assert view.incomplete == starts
    view.lengths = {starts[0]: size, starts[-1] + size: 1, starts[-1]: size - 1}
    assert view.incomplete == starts[1:] or len(starts) == 1
    for _ in range(2):
        staged.close()
    assert not disk.exists(path)


def test_only_numbered_files_belong_to_the_log() -> None:
    names = ("00000000000000000000", "00000000000000000512", "0000000000000000512", "x" * 20)
    assert [is_segment_name(name) for name in (*names, "\u0663" * 20)] == [True, True, *[False] * 3]

    async def look(world: World) -> None:
        disk: Any = world.disk
        disk.makedirs("/files")
        for number, name in enumerate(reversed(names)):
            disk.replace_contents(f"/files/{name}", bytes(number))
        assert list(file_lengths(world, "/files").items()) == [(0, 3), (512, 2)]
        disk.makedirs("/files/00000000000000001024")
        with pytest.raises(NotHealed):
            file_lengths(world, "/files")

    run_solo(look)


@pytest.mark.parametrize(
    ("at", "size", "is_record"),
    [(704, 200, True), (704, 76, True), (704, 75, False), (703, 200, False)],
)
def test_reads_the_time_of_a_record(at: int, size: int, is_record: bool) -> None:
    head = record_head(at, 5_000_000_000)[:size]
    for data, ms in ((head, 5_000_000_000 * is_record), (head[:6] + b"x" + head[7:], 0)):
        segments = SimpleNamespace(read=lambda at, most, data=data: data)
        parts: Any = SimpleNamespace(log=SimpleNamespace(segments=segments))
        assert store_ms_at(parts, 704) == ms


@pytest.mark.parametrize("recorded", [None, 512, 1024])
def test_finds_the_size_of_files(recorded: int | None) -> None:
    lengths: dict[int, int]
    for configured, lengths in product(
        (SEGMENT_SIZE, 512), ({}, {0: 0}, {0: 512}, {0: 512, 512: 9}, {256: 1})
    ):
        longest = max(lengths.values(), default=0)
        size = recorded or (configured if configured == 512 else longest or configured)
        fits = all(length <= size and at % size == 0 for at, length in lengths.items())
        fits = fits and (not recorded or configured in (SEGMENT_SIZE, recorded))
        config = StoreConfig(root="/s", segment_size=configured)
        mark: Any = None if recorded is None else SimpleNamespace(sizes=(recorded,))
        if fits:
            assert segment_size(config, mark, lengths) == size
        else:
            with pytest.raises(NotHealed):
                segment_size(config, mark, lengths)


def test_a_mark_without_sizes_tells_nothing() -> None:
    mark: Any = SimpleNamespace(sizes=())
    assert segment_size(StoreConfig(root="/s"), mark, {0: 300}) == 300


def test_sizes_have_limits() -> None:
    limits = {"segment_size": (256, 1 << 30), "index_entries": (2, (1 << 31) - 1)}
    for name, (low, high) in limits.items():
        values: dict[str, Any] = {"root": "/s", "index_slots": 1}
        for value in (low, high):
            StoreConfig(**(values | {name: value}))
        for value in (low - 1, *([high + 1] if name == "index_entries" else [])):
            with pytest.raises(BadStoreDirectory):
                StoreConfig(**(values | {name: value}))
    with pytest.raises(BadStoreDirectory):
        StoreConfig(root="/s", index_slots=0)


@pytest.mark.parametrize(
    ("requested", "queue", "batch"), [(1, 20, 46), (20, 20, 46), (21, 40, 46), (92, 100, 92)]
)
def test_queue_files_hold_whole_units(requested: int, queue: int, batch: int) -> None:
    config = StoreConfig(
        root="/s", queue_segment_size=requested, batch_queue_segment_size=requested
    )
    assert (config.queue_segment_size, config.batch_queue_segment_size) == (queue, batch)


@pytest.mark.parametrize(
    ("body_max", "segment", "record_max"),
    [(0, 1 << 20, 65_536), (99, 1 << 20, 65_635), (99, 300, 292)],
)
def test_a_record_fits_into_a_file(body_max: int, segment: int, record_max: int) -> None:
    config = StoreConfig(root="/s", max_message_size=body_max, segment_size=segment)
    assert config.record_max == record_max


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"commitlog_dir": "/s/commitlog", "segment_size": SEGMENT_SIZE}, ""),
        ({"commitlog_dir": "/l"}, " --set storePathCommitLog=/l"),
        ({"segment_size": 512}, " --set mappedFileSizeCommitLog=512"),
    ],
)
def test_the_heal_command_names_changed_settings(changes: dict[str, Any], options: str) -> None:
    command = StoreConfig(root="/s", **changes).heal_command
    assert command == f"rocketbed store heal /s --from HOST:PORT{options}"


def test_reads_delay_levels() -> None:
    expected = [1000, 120_000, 3 * HOUR_MS, 96 * HOUR_MS, 0]
    assert parse_delay_levels(" 1s 2m\t3h 4d 0s") == expected
    for text in ("1", "s", "1.5s", "-1s", "1s 2x", "\u0663s"):
        with pytest.raises(ValueError, match=r"."):
            parse_delay_levels(text)


@pytest.mark.parametrize("seed", range(60))
def test_notices_a_lost_sector_in_topic_and_properties(seed: int) -> None:
    random = Random(seed)
    base, topic_at = random.randrange(2 * SECTOR), random.choice((80, SECTOR - 3, SECTOR))
    topic, size = random.choice((1, 7, 127)), random.choice((0, 1, 40, 3 * SECTOR))
    end = topic_at + topic + 2 + size
    buffer = bytearray(b"x" * end)
    low = random.choice(range(-(base % SECTOR), end, SECTOR))
    for at in range(max(low, 0), min(low + random.choice((1, 100, SECTOR)), end)):
        buffer[at] = 0
    parts: dict[tuple[bool, int], set[int]] = {}
    for at in (*range(topic_at, topic_at + topic), *range(end - size, end)):
        parts.setdefault((at < topic_at + topic, (base + at) // SECTOR), set()).add(buffer[at])
    properties = bytes(buffer[end - size :])
    for checks in (True, False):
        damage = _late_damage(bytes(buffer), 0, base, topic_at, properties, end, checks)
        assert bool(damage) == (checks and {0} in parts.values())


@pytest.mark.parametrize(
    ("pair", "is_checksum"),
    [("__CRC32#", True), ("x__CRC32#", False), ("K\x01v\x02__CRC32#", True)],
)
def test_checks_the_checksum_of_properties(pair: str, is_checksum: bool) -> None:
    properties = f"{pair}\x010123456789\x02".encode()
    damage = _late_damage(properties, 0, 0, 0, properties, len(properties), False)
    assert ("checksum" in damage) == is_checksum
