"""Files of a log by themselves: which are its files, how long, and when the oldest ones go."""

from dataclasses import replace
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

from rocketbed.node.store.checkpointer import store_ms_at
from rocketbed.node.store.config import SEGMENT_SIZE, StoreConfig, parse_delay_levels
from rocketbed.node.store.errors import BadStoreDirectory
from rocketbed.node.store.heal_files import NotHealed, file_lengths, segment_size
from rocketbed.node.store.retention import HOUR_MS, Retention
from rocketbed.node.store.scan import SECTOR, _late_damage
from rocketbed.node.store.view import is_segment_name
from rocketbed.wire.message import HEAD
from rocketbed.world.api import DiskUsage, World


def ask_lengths(world: World) -> None:
    """Which files are a log's, and how long they are to be."""
    disk: Any = world.disk
    names = ("00000000000000000000", "00000000000000000512", "0000000000000000512", "x" * 20)
    disk.makedirs("/files")
    assert [is_segment_name(name) for name in names] == [True, True, False, False], "files: names"
    assert not is_segment_name("\u0663" * 20), "files: digits of another script"
    for number, name in enumerate(reversed(names)):
        disk.replace_contents(f"/files/{name}", bytes(number))
    assert [*file_lengths(world, "/files").items()] == [(0, 3), (512, 2)], "files: lengths"
    disk.makedirs("/files/00000000000000001024")
    try:
        file_lengths(world, "/files")
    except NotHealed:
        return
    raise AssertionError("files: a folder is one")


def ask_times() -> None:
    """When the record at an offset was stored, by its first bytes; 0 where none begins."""
    for magic, start, size in product((True, False), (704, 703), (HEAD.size + 96, 76, 75)):
        head = bytearray(_head(start, 5_000_000_000))
        head[6] ^= not magic
        head[36:40] = bytes(4)  # hosts of IPv4
        read = SimpleNamespace(read=lambda at, _most, head=head, size=size: bytes(head[:size]))
        parts: Any = SimpleNamespace(log=SimpleNamespace(segments=read))
        found = store_ms_at(parts, 704)
        want = 5_000_000_000 if magic and start == 704 and size > 75 else 0
        assert found == want, f"times: {found} of a record: {magic}, {start}, {size} bytes"


def ask_sectors(random: Random) -> None:
    """A sector that never arrived is told in the topic and in the properties of a record."""
    for _ in range(60):
        base, topic_at = random.randrange(2 * SECTOR), random.choice((80, SECTOR - 3, SECTOR))
        topic, size = random.choice((1, 7, 127)), random.choice((0, 1, 40, 3 * SECTOR))
        end = topic_at + topic + 2 + size
        buffer = bytearray(b"x" * end)
        low = random.choice(range(-(base % SECTOR), end, SECTOR))
        for at in range(max(low, 0), min(low + random.choice((1, 100, SECTOR)), end)):
            buffer[at] = 0
        parts: dict[tuple[bool, int], set[int]] = {}
        for at in (*range(topic_at, topic_at + topic), *range(end - size, end)):
            part = (at < topic_at + topic, (base + at) // SECTOR)
            parts.setdefault(part, set()).add(buffer[at])
        for asks in (True, False):
            properties = bytes(buffer[end - size :])
            told = _late_damage(bytes(buffer), 0, base, topic_at, properties, end, asks)
            is_lost = asks and {0} in parts.values()
            assert bool(told) == is_lost, f"sectors: {told!r}: {parts}, asked {asks}"
    for pair, is_checksum in (
        ("__CRC32#", True),
        ("x__CRC32#", False),
        ("K\x01v\x02__CRC32#", True),
    ):
        wrong = f"{pair}\x010123456789\x02".encode()
        told = _late_damage(wrong, 0, 0, 0, wrong, len(wrong), False)
        assert ("checksum" in told) == is_checksum, f"checksum: {told!r} of {wrong!r}"


def ask_sizes() -> None:
    """What a mark says, else what is set, else the longest file, and nothing that differs."""
    for noted, is_set, lengths in product(
        (None, 512, 1024), (SEGMENT_SIZE, 512), ({}, {0: 0}, {0: 512}, {0: 512, 512: 9}, {256: 1})
    ):
        config = StoreConfig(root="/s", segment_size=is_set)
        mark: Any = None if noted is None else SimpleNamespace(sizes=(noted,))
        most = max(lengths.values(), default=0)
        want: int | None = noted or (most if most and is_set == SEGMENT_SIZE else is_set)
        fits = all(length <= (want or 0) and not at % (want or 1) for at, length in lengths.items())
        if not fits or (noted and is_set not in (SEGMENT_SIZE, noted)):
            want = None
        try:
            found: int | None = segment_size(config, mark, lengths)
        except NotHealed:
            found = None
        assert found == want, f"files: {lengths}, marked {noted}, set {is_set}: {found}"
    empty: Any = SimpleNamespace(sizes=())
    assert segment_size(StoreConfig(root="/s"), empty, {0: 300}) == 300, "files: an old mark"
    limits: tuple[tuple[dict[str, Any], bool], ...] = (
        ({"segment_size": 256}, True), ({"segment_size": 255}, False),
        ({"index_entries": 2, "index_slots": 1}, True), ({"index_entries": 1}, False),
        ({"index_slots": 0}, False), ({"index_entries": (1 << 31) - 1}, True),
        ({"index_entries": 1 << 31}, False),
    )  # fmt: skip
    for changes, is_taken in limits:
        values: Any = {"root": "/s", **changes}
        try:
            was_taken = StoreConfig(**values) is not None
        except BadStoreDirectory:
            was_taken = False
        assert was_taken == is_taken, f"sizes: {changes}: taken {was_taken}"
    for asked, queue, batch in ((1, 20, 46), (20, 20, 46), (21, 40, 46), (92, 100, 92)):
        one = StoreConfig(root="/s", queue_segment_size=asked, batch_queue_segment_size=asked)
        told = one.queue_segment_size, one.batch_queue_segment_size
        assert told == (queue, batch), f"sizes: {asked}: {told}"
    heal = "rocketbed store heal /s --from HOST:PORT"
    texts: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, ""), ({"commitlog_dir": "/s/commitlog"}, ""), ({"segment_size": SEGMENT_SIZE}, ""),
        ({"commitlog_dir": "/l"}, " --set storePathCommitLog=/l"),
        ({"segment_size": 512}, " --set mappedFileSizeCommitLog=512"),
    )  # fmt: skip
    for changes, more in texts:
        values = {"root": "/s", **changes}
        assert StoreConfig(**values).heal_command == heal + more, f"sizes: {changes}"
    for allowed, segment, most in ((0, 1 << 20, 65_536), (99, 1 << 20, 65_635), (99, 300, 292)):
        one = StoreConfig(root="/s", max_message_size=allowed, segment_size=segment)
        assert one.record_max == most, f"sizes: a record of {one.record_max}, not {most}"
    levels = [1000, 120_000, 3 * HOUR_MS, 4 * 24 * HOUR_MS, 0]
    found_ms = parse_delay_levels(" 1s 2m\t3h 4d 0s")
    assert found_ms == levels, f"sizes: levels of {found_ms} ms"
    for text in ("1", "s", "1.5s", "-1s", "1s 2x", "\u0663s"):
        try:
            parse_delay_levels(text)
        except ValueError:
            continue
        raise AssertionError(f"sizes: {text!r} is a delay")


# --- when a file of the log goes


def ask_retention(world: World, random: Random, config: StoreConfig) -> None:
    """The oldest ones, in their hour or where the disk is full; none that is young, not marked as
    on disk, read by somebody for less than a while; and never the newest."""
    size, now = 256, world.clock.wall_ms()
    config = replace(
        config,
        reserved_ms=10_000,
        delete_when=random.choice(((), tuple(range(24)), (_hour(world),), (_hour(world) + 1,))),
        delete_batch_max=random.randrange(1, 4),
        clean_forcibly_enabled=random.random() < 0.7,
        disk_max_used_percent=random.choice((9, 10, 50, 95, 96)),
        disk_clean_forcibly_percent=random.choice((29, 30, 60, 85, 86)),
        disk_warning_percent=random.choice((34, 35, 70, 90, 91)),
    )
    starts = [size * number for number in range(3, 3 + random.randrange(6))]
    ages = [random.choice((9_999, 10_000, 10_001, 30_000, -HOUR_MS, -HOUR_MS - 1)) for _ in starts]
    times = {
        start: now - age for start, age in zip(starts, sorted(ages, reverse=True), strict=True)
    }
    if starts and random.random() < 0.3:
        times[random.choice(starts)] = random.choice((0, now - 10_000, now + 2 * HOUR_MS))
    pinned = {start for start in starts if random.random() < 0.1}
    end = starts[-1] + size if starts else 0
    segments = SimpleNamespace(
        starts=starts, size=size, end=end, directory="/l",
        has=lambda at: bool(starts) and starts[0] <= at < end, path=lambda start: f"/l/{start}",
        pinned=lambda start: start in pinned, read=lambda start, size: _head(start, times[start]),
    )  # fmt: skip
    written = end - random.choice((0, 1, size, size + 1)) if starts else 0
    marked = max(written - random.choice((0, 0, 1, size)), 0)
    marks = SimpleNamespace(mark=SimpleNamespace(offset=marked))
    log = SimpleNamespace(segments=segments, written=SimpleNamespace(value=written))
    parts: Any = SimpleNamespace(world=world, config=config, log=log, marks=marks)
    nobody: Any = None
    retention = Retention(parts, nobody)
    is_ordered = random.random() < 0.2
    if is_ordered:
        retention.delete_now()
    used = random.choice((9, 10, 11, 30, 31, 35, 36, 50, 51, 60, 61, 70, 71, 85, 86, 90, 91, 96))
    usage = DiskUsage(total=100, free=100 - used)
    assert usage.used_percent == used, f"load: {usage} is {used} percent"
    retention._watch(usage)
    is_full = used > sorted((35, config.disk_warning_percent, 90))[1]
    assert retention.disk_full == is_full, f"retention: full at {used}: {retention.disk_full}"
    forced = config.clean_forcibly_enabled
    forced = forced and used > sorted((30, config.disk_clean_forcibly_percent, 85))[1]
    tight = used > sorted((10, config.disk_max_used_percent, 95))[1]
    want = list[int]()
    for start in (
        starts if forced or tight or is_ordered or _hour(world) in config.delete_when else ()
    ):
        later = [times[one] for one in starts if one > start]
        known = [one for one in later if times[start] <= one <= now + HOUR_MS]
        is_old = bool(known) and bool(known[0]) and now - known[0] >= 10_000
        is_safe = start + size <= min(marked, written, end - 1)
        if not is_safe or not (forced or is_old) or start in pinned:
            break
        want.append(start)
    want = want[: config.delete_batch_max]
    found = retention._doomed(usage)
    assert found == want, f"retention: {found} go, not {want} of {times} at {used} percent"


def _hour(world: World) -> int:
    return (world.clock.wall_ms() + world.clock.utc_offset_ms()) // HOUR_MS % 24


def _head(start: int, stored_ms: int) -> bytes:
    """The beginning of a record."""
    head = bytearray(HEAD.size + 96)
    head[0:8] = b"\0\0\0\x60\xda\xa3\x20\xa7"
    head[28:36], head[56:64] = start.to_bytes(8, "big"), stored_ms.to_bytes(8, "big")
    return bytes(head)
