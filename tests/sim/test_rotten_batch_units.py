"""Units of batch queues have no checksum either, and say which queue offsets they cover."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.inspect.directory import open_directory
from rocketbed.inspect.rebuild import rebuild
from rocketbed.node.store.batch_queue import BATCH_UNIT, BatchConsumeQueue, batch_unit
from rocketbed.node.store.entry import Entry
from rocketbed.node.store.errors import CorruptRecord
from rocketbed.node.store.parts import AllTopics
from rocketbed.node.store.queues import BATCH_DIR
from rocketbed.node.store.store import MessageStore
from tests.support.sim.damage import records
from tests.support.sim.store_session import (
    HOST,
    ROOT,
    edited,
    flip_bit,
    put,
    session,
    settings,
    settle,
)

COUNT = 24
"""Records: every other one an inner batch of three messages."""
PER_FILE = 10
MESSAGES = COUNT * 2
CONFIG = settings(scrub_rate=0, batch_queue_segment_size=PER_FILE * BATCH_UNIT.size)
SCRUBBED = settings(scrub_rate=1 << 30, batch_queue_segment_size=PER_FILE * BATCH_UNIT.size)
Change = Callable[[list[int]], list[int]]


class Batches(AllTopics):
    """A topic table of batch topics."""

    def exists(self, topic: str) -> bool | None:
        return True

    def is_batch_queue(self, topic: str) -> bool:
        return True


def flips(field: int, bit: int) -> Change:
    def change(unit: list[int]) -> list[int]:
        unit[field] = unit[field] - (1 << bit) if bit in (31, 63) else unit[field] ^ 1 << bit
        return unit

    return change


KINDS = {
    "zeros": lambda unit: [0] * 8,
    "offset sign": flips(0, 63),
    "offset bit 40": flips(0, 40),
    "offset bit 12": flips(0, 12),
    "offset bit 4": flips(0, 4),
    "size bit 12": flips(1, 12),
    "size bit 3": flips(1, 3),
    "tag": flips(2, 5),
    "time": flips(3, 9),
    "base bit 40": flips(4, 40),
    "base bit 4": flips(4, 4),
    "base bit 0": flips(4, 0),
    "base sign": flips(4, 63),
    "count bit 3": flips(5, 3),
    "count bit 1": flips(5, 1),
    "count bit 0": flips(5, 0),
}
HARMLESS = ("tag", "time")


async def fill(store: MessageStore) -> None:
    for number in range(COUNT):
        if number % 2:
            put(store, body=b"one" + bytes(300))
        else:
            run = store.begin()
            run.add_inner_batch(
                "T", 0, bytes(300), b"", count=3, flag=0, sys_flag=0, born_ms=1, born_host=HOST,
                unique_key=f"u{number}",
            )  # fmt: skip
            store.commit(run)
    await settle(store)
    await store.close()


def rot(disk: SimDisk, number: int, kind: str, per_file: int = PER_FILE) -> None:
    rot_by(disk, number, KINDS[kind], per_file)


def rot_by(disk: SimDisk, number: int, change: Change, per_file: int = PER_FILE) -> None:
    first = number // per_file * per_file
    path = f"{ROOT}/batchconsumequeue/T/0/{first * BATCH_UNIT.size:020d}"
    data, at = bytearray(disk.image().contents(path)), (number - first) * BATCH_UNIT.size
    BATCH_UNIT.pack_into(data, at, *change(list(BATCH_UNIT.unpack_from(data, at))))
    disk.replace_contents(path, bytes(data))


async def deliver(store: MessageStore) -> tuple[int, int, bool]:
    """Return how many records a reader gets from the beginning on, its end, and whether the rest is
    refused to it.
    """
    offset, records = store.queue_min("T", 0), 0
    while offset < store.queue_max("T", 0):
        try:
            result = store.get_messages("T", 0, offset, 4)
            await store.read(result.ranges)
        except CorruptRecord:
            return records, offset, True
        assert result.next_offset > offset
        records += len(result.ranges)
        offset = result.next_offset
    return records, offset, False


def unqueued(store: MessageStore) -> int:
    return sum(count for _, count in store.scrubber.unqueued.values())


async def scrubbed(store: MessageStore) -> tuple[tuple[int, int, bool], int]:
    await store.scrubber.finished.wait()
    return await deliver(store), unqueued(store)


@pytest.mark.parametrize("number", [0, 6, 9, 12, COUNT - 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_rotten_unit_hides_nothing_and_is_mended(kind: str, number: int) -> None:
    good = session(fill, config=CONFIG, topics=Batches()).image
    image = edited(good, lambda disk: rot(disk, number, kind))
    records, offset, is_refused = session(
        deliver, image=image, config=CONFIG, topics=Batches()
    ).value
    if kind in HARMLESS or not is_refused:
        assert (records, offset) == (COUNT, MESSAGES)
    else:
        assert records <= number
    mended = session(scrubbed, image=image, config=SCRUBBED, topics=Batches()).value
    assert mended == ((COUNT, MESSAGES, False), 0)


@pytest.mark.parametrize("change", [lambda unit: [*unit[:5], 0, *unit[6:]], KINDS["base sign"]])
def test_rotten_unit_does_not_make_a_start_reread_all(change: Change) -> None:
    good = session(fill, config=CONFIG, topics=Batches()).image

    async def reason(store: MessageStore) -> str:
        return store.recovery.reason

    for number in range(COUNT - 1):
        image = edited(good, partial(rot_by, number=number, change=change))
        reasons = session(reason, image=image, config=CONFIG, topics=Batches()).value
        assert not reasons, (number, reasons)


def test_whole_batch_queues_are_left_alone() -> None:
    image = session(fill, config=CONFIG, topics=Batches()).image
    result = session(scrubbed, image=image, config=SCRUBBED, topics=Batches()).value
    assert result == ((COUNT, MESSAGES, False), 0)


@pytest.mark.parametrize("kinds", [("zeros", "zeros"), ("base bit 4", "offset bit 4")])
def test_two_adjacent_rotten_units(kinds: tuple[str, str]) -> None:
    def both(disk: SimDisk) -> None:
        rot(disk, 9, kinds[0])
        rot(disk, 10, kinds[1])

    image = edited(session(fill, config=CONFIG, topics=Batches()).image, both)
    records, _, is_refused = session(deliver, image=image, config=CONFIG, topics=Batches()).value
    assert is_refused
    assert records <= 9
    mended = session(scrubbed, image=image, config=SCRUBBED, topics=Batches()).value
    assert mended == ((COUNT, MESSAGES, False), 0)


async def expire(store: MessageStore) -> int:
    store.delete_expired()
    await trio.sleep(5)
    await store._retention.round()
    await store.close()
    return store.queue_min("T", 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("distance", [0, 1])
@pytest.mark.parametrize("per_file", [PER_FILE, COUNT])  # the latter keeps units of expired records
def test_rotten_unit_at_the_beginning_of_kept_records(
    kind: str, distance: int, per_file: int
) -> None:
    config = replace(CONFIG, batch_queue_segment_size=per_file * BATCH_UNIT.size)
    good = session(fill, config=config, topics=Batches()).image
    expired_run = session(
        expire,
        image=good,
        config=replace(config, reserved_ms=1, delete_batch_max=1),
        topics=Batches(),
    )
    assert expired_run.value % 4 == 0 < expired_run.value
    number = expired_run.value // 2 + distance
    image = edited(expired_run.image, lambda disk: rot(disk, number, kind, per_file))
    expected = ((COUNT - expired_run.value // 2, MESSAGES, False), 0)
    scrubbed_run = session(
        scrubbed, image=image, config=replace(config, scrub_rate=1 << 30), topics=Batches()
    )
    assert scrubbed_run.value == expected
    for path in expired_run.image.paths():
        if "batchconsumequeue" in path:
            assert scrubbed_run.image.contents(path) == expired_run.image.contents(path)


def copied_from(image: DiskImage, number: int) -> Change:
    """Make a unit a copy of another one. All units are in one file."""
    (data,) = units(image).values()
    copied = list(BATCH_UNIT.unpack_from(data, number * BATCH_UNIT.size))
    return lambda _: copied


@pytest.mark.parametrize("before", [1, 2, 3, 5])
@pytest.mark.parametrize("change", [*KINDS, 0, 1, 13])
def test_rotten_unit_of_an_expired_record_hides_nothing(change: str | int, before: int) -> None:
    """Nothing tells what it said: the log has its record no more. A number: it is a copy of that
    unit of a kept record."""
    config = replace(CONFIG, batch_queue_segment_size=COUNT * BATCH_UNIT.size)
    good = session(fill, config=config, topics=Batches()).image
    expiring = replace(config, reserved_ms=1, delete_batch_max=1)
    expired_run = session(expire, image=good, config=expiring, topics=Batches())
    first = expired_run.value // 2
    rotten = (
        KINDS[change] if isinstance(change, str) else copied_from(expired_run.image, first + change)
    )
    image = edited(expired_run.image, lambda disk: rot_by(disk, first - before, rotten, COUNT))
    scrubbing = replace(config, scrub_rate=1 << 30)
    for _ in range(2):
        scrubbed_run = session(scrubbed, image=image, config=scrubbing, topics=Batches())
        assert scrubbed_run.value == ((COUNT - first, MESSAGES, False), 0)
        image = scrubbed_run.image


@pytest.mark.parametrize("bit", [40, 61])
@pytest.mark.parametrize("cut_behind", [1, 2, 6])
def test_cut_after_a_rotten_unit_of_an_expired_record(cut_behind: int, bit: int) -> None:
    config = replace(CONFIG, batch_queue_segment_size=COUNT * BATCH_UNIT.size)
    good = session(fill, config=config, topics=Batches()).image
    expiring = replace(config, reserved_ms=1, delete_batch_max=1)
    expired_run = session(expire, image=good, config=expiring, topics=Batches())
    first, (path, at, _) = expired_run.value // 2, records(expired_run.image)[cut_behind]
    begin = int(path.rpartition("/")[2]) + at

    async def cut(store: MessageStore) -> int:
        await store.scrubber.finished.wait()
        await store.removal.cut(begin)
        for _ in range(3):
            put(store, body=b"new")
        await settle(store)
        return (await deliver(store))[0]

    image = edited(expired_run.image, lambda disk: rot_by(disk, first - 1, flips(0, bit), COUNT))
    scrubbing = replace(config, scrub_rate=1 << 30)
    run = session(cut, image=image, config=scrubbing, topics=Batches())
    assert run.value == cut_behind + 3
    scrubbed_run = session(scrubbed, image=run.image, config=scrubbing, topics=Batches())
    assert (scrubbed_run.value[0][0], scrubbed_run.value[1]) == (cut_behind + 3, 0)


@pytest.mark.parametrize("bit", [12, 13])
def test_first_unit_of_a_file_may_be_rotten(bit: int) -> None:
    """It names what lies before the log's beginning, as that of an expired record does."""
    config = replace(CONFIG, batch_queue_segment_size=5 * BATCH_UNIT.size)
    good = session(fill, config=config, topics=Batches()).image
    expiring = replace(config, reserved_ms=1, delete_batch_max=1)
    expired_run = session(expire, image=good, config=expiring, topics=Batches())
    number = expired_run.value // 2
    assert min(units(expired_run.image)).endswith(f"{number * BATCH_UNIT.size:020d}")
    image = edited(expired_run.image, lambda disk: rot_by(disk, number, flips(0, bit), 5))
    scrubbing = replace(config, scrub_rate=1 << 30)
    scrubbed_run = session(scrubbed, image=image, config=scrubbing, topics=Batches())
    assert scrubbed_run.value == ((COUNT - number, MESSAGES, False), 0)


def inner_batch(store: MessageStore, count: int, count_text: str = "") -> None:
    run = store.begin()
    text = f"INNER_NUM\x01{count_text}\x02".encode() if count_text else b""
    run.add_inner_batch(
        "T", 0, b"many", text, count=count, flag=0, sys_flag=0, born_ms=1, born_host=HOST,
        unique_key="many",
    )  # fmt: skip
    store.commit(run)


@pytest.mark.parametrize("count_text", ["", "99999999999", "9" * 5000])
def test_batch_too_large_for_a_unit_ends_no_node(count_text: str) -> None:
    """No checksum covers the count."""

    async def add(store: MessageStore) -> str:
        inner_batch(store, 3)
        inner_batch(store, 40_000, count_text)
        await settle(store)
        return store._parts.queues.first_odd

    async def look(store: MessageStore) -> tuple[int, int]:
        inner_batch(store, 2)
        await settle(store)
        await store.scrubber.finished.wait()
        return (await deliver(store))[0], unqueued(store)

    config = replace(SCRUBBED, segment_size=16_384)
    killed = session(add, config=config, topics=Batches())
    assert "a batch queue's unit takes 32767" in killed.value
    assert session(look, image=killed.image, config=config, topics=Batches()).value == (2, 1)


def test_unit_of_a_bad_record_stays_until_it_is_healed() -> None:
    good = session(fill, config=CONFIG, topics=Batches()).image

    def spoil(disk: SimDisk) -> None:
        path = f"{ROOT}/commitlog/{0:020d}"
        data = bytearray(disk.image().contents(path))
        data[600] ^= 4  # in the body of the second record
        disk.replace_contents(path, bytes(data))

    async def look(store: MessageStore) -> tuple[int, int]:
        await store.scrubber.finished.wait()
        refused = 0
        for offset in range(MESSAGES):
            try:
                await store.read(store.get_messages("T", 0, offset, 1).ranges)
            except CorruptRecord:
                refused += 1
        await store.close()
        return refused, store.scrubber.healed

    bad = session(look, image=edited(good, spoil), config=SCRUBBED, topics=Batches())
    assert bad.value == (1, 0)
    path = f"{ROOT}/commitlog/{0:020d}"
    mended = edited(bad.image, lambda disk: disk.replace_contents(path, good.contents(path)))
    result = session(scrubbed, image=mended, config=SCRUBBED, topics=Batches()).value
    assert result == ((COUNT, MESSAGES, False), 0)


BITS = (0, 1, 2, 4, 25, 40, 62, 63)
QUEUE_OFFSET_AT = 20
"""In a record."""


def flip_queue_offset(image: DiskImage, number: int, bit: int) -> DiskImage:
    path, at, _ = records(image)[number]
    byte = at + QUEUE_OFFSET_AT + 7 - bit // 8
    return edited(image, lambda disk: flip_bit(disk, path, byte * 8 + bit % 8))


async def find_damage(store: MessageStore) -> tuple[list[tuple[int, bool]], int, int]:
    """Return the damage that the scrub reports, how many units it mended, and how many records it
    reports in no queue.
    """
    await store.scrubber.finished.wait()
    assert (await deliver(store))[1:] == (MESSAGES, False)
    damage_found = [(damage.start, damage.is_readable) for damage in store.scrubber.damage]
    return damage_found, store.scrubber.healed, unqueued(store)


def units(image: DiskImage) -> dict[str, bytes]:
    return {path: image.contents(path) for path in image.paths() if "batchconsumequeue" in path}


@pytest.mark.parametrize("number", [0, 1, 9, 10, 12, COUNT - 1])
def test_wrong_queue_offset_is_damage_and_moves_no_unit(number: int) -> None:
    """Seed 1331595: its unit was brought to what it said, and readers were sent away."""
    good = session(fill, config=CONFIG, topics=Batches()).image
    path, at, _ = records(good)[number]
    expected = [(int(path.rpartition("/")[2]) + at, True)], 0, 0
    for bit in BITS:
        image = flip_queue_offset(good, number, bit)
        for boot in range(2):
            run = session(find_damage, image=image, config=SCRUBBED, topics=Batches())
            assert run.value == expected, f"bit {bit}, boot {boot}"
            assert units(run.image) == units(good), f"bit {bit}, boot {boot}"
            image = run.image
        mended = edited(image, lambda disk: disk.replace_contents(path, good.contents(path)))
        scrubbed_run = session(find_damage, image=mended, config=SCRUBBED, topics=Batches())
        assert scrubbed_run.value == ([], 0, 0), f"bit {bit}"


def without_queue(disk: SimDisk) -> None:
    for path in disk.paths():
        if "batchconsumequeue" in path:
            disk.remove_name(path)


@pytest.mark.parametrize("number", [0, 1, 9, 10, 12, COUNT - 2])
def test_rebuilt_queue_places_a_record_by_its_neighbours(number: int) -> None:
    good = session(fill, config=CONFIG, topics=Batches()).image
    path, at, _ = records(good)[number]
    damage = [(int(path.rpartition("/")[2]) + at, True)]
    for bit in BITS:
        image = edited(flip_queue_offset(good, number, bit), without_queue)
        run = session(find_damage, image=image, config=SCRUBBED, topics=Batches())
        assert "store.odd_queue_offset" in {line.event for line in run.log}, f"bit {bit}"
        assert units(run.image) == units(good), f"bit {bit}"
        scrubbed_run = session(find_damage, image=run.image, config=SCRUBBED, topics=Batches())
        assert scrubbed_run.value == (damage, 0, 0), f"bit {bit}"


@pytest.mark.parametrize("number", [0, 2, 10, COUNT - 4])
def test_rebuilt_queue_sizes_a_batch_by_its_neighbours(number: int) -> None:
    """Two of them: one record alone may be the one that is wrong."""
    good = session(fill, config=CONFIG, topics=Batches()).image
    path, at, size = records(good)[number]
    byte = at + SAYS_ANOTHER_PLACE["count"](good.contents(path)[at : at + size])
    hurt = edited(good, lambda disk: flip_bit(disk, path, byte * 8 + 2))
    run = session(find_damage, image=edited(hurt, without_queue), config=SCRUBBED, topics=Batches())
    assert "store.odd_queue_offset" in {line.event for line in run.log}
    assert units(run.image) == units(good)
    scrubbed_run = session(find_damage, image=run.image, config=SCRUBBED, topics=Batches())
    assert scrubbed_run.value == ([(int(path.rpartition("/")[2]) + at, True)], 0, 0)


@pytest.mark.parametrize("number", [0, 1, 9, 12])
def test_start_between_a_wrong_record_and_the_next(number: int) -> None:
    """A slave, which gets the rest from its master later."""
    config = replace(SCRUBBED, segment_size=1 << 16, is_slave=True)
    good = session(fill, config=replace(CONFIG, segment_size=1 << 16), topics=Batches()).image
    rows = records(good)
    data, last = good.contents(rows[0][0]), rows[-1]
    cut, end = rows[number][1] + rows[number][2], last[1] + last[2]

    async def begin(store: MessageStore) -> None:
        store.log.append_raw(0, data[:cut])
        await settle(store)
        await store.close()

    async def go_on(store: MessageStore) -> tuple[int, int, bool]:
        store.log.append_raw(store.max_offset, data[cut:end])
        await settle(store)
        return await deliver(store)

    begun = session(begin, config=config, topics=Batches()).image
    for bit in BITS[:-1]:
        image = edited(flip_queue_offset(begun, number, bit), without_queue)
        at = rows[number][1] + QUEUE_OFFSET_AT
        true, stated = (
            int.from_bytes(one.contents(rows[0][0])[at : at + 8]) for one in (good, image)
        )
        built = session(settle, image=image, config=config, topics=Batches()).image
        result = session(go_on, image=built, config=config, topics=Batches()).value
        is_refused = stated < true or stated > 1 << 32  # it has no unit, and is lost to readers
        assert result[0] >= COUNT - is_refused, f"bit {bit}"


@pytest.mark.parametrize("number", [0, 1, 9, 12, COUNT - 2, COUNT - 1])
def test_queues_rebuilt_without_a_node_are_the_nodes(number: int, tmp_path: Path) -> None:
    good = session(fill, config=CONFIG, topics=Batches()).image
    for bit in BITS:
        hurt = flip_queue_offset(good, number, bit)
        root = tmp_path / str(bit)
        hurt.export(str(root))
        config = {"topicConfigTable": {"T": {"attributes": {"queue.type": "BatchCQ"}}}}
        (root / ROOT[1:] / "config").mkdir()
        (root / ROOT[1:] / "config/topics.json").write_text(json.dumps(config))
        with closing(open_directory(f"{root}{ROOT}")) as opened:
            report = rebuild(opened, f"{root}/new")
        image = edited(hurt, without_queue)
        run = session(scrubbed, image=image, config=SCRUBBED, topics=Batches())
        files = {path: Path(f"{root}/new{path.removeprefix(ROOT)}") for path in units(run.image)}
        assert {path: file.read_bytes() for path, file in files.items()} == units(run.image)
        is_single = number % 2 == 1 and number < COUNT - 1  # a batch says it twice
        assert bool(report.refused or report.corrected) >= is_single, f"bit {bit}"


def test_last_record_of_a_rebuilt_queue_is_reported() -> None:
    async def look(store: MessageStore) -> tuple[int, bool]:
        await store.scrubber.finished.wait()
        return (await deliver(store))[0], store.odd_records > 0

    good = session(fill, config=CONFIG, topics=Batches()).image
    for bit in BITS:
        image = edited(flip_queue_offset(good, COUNT - 1, bit), without_queue)
        records_, is_told = session(look, image=image, config=SCRUBBED, topics=Batches()).value
        assert (records_ >= COUNT - 1, is_told) == (True, True), f"bit {bit}"


@pytest.mark.parametrize("number", [0, 1, 9, 10, 12, COUNT - 1])
def test_unit_with_a_wrong_queue_offset_is_mended(number: int) -> None:
    good = session(fill, config=CONFIG, topics=Batches()).image
    by_scrub = int(number < COUNT - 1)  # the mark tells of the last one: a start makes it anew
    for bit in BITS:
        image = edited(good, partial(rot_by, number=number, change=flips(4, bit)))
        run = session(find_damage, image=image, config=SCRUBBED, topics=Batches())
        assert run.value == ([], by_scrub, 0), f"bit {bit}"
        assert units(run.image) == units(good), f"bit {bit}"


INNER_NUM = b"INNER_NUM\x01"
SAYS_ANOTHER_PLACE: dict[str, Callable[[bytes], int]] = {
    "queue id": lambda _: 15,
    "topic": lambda record: record.index(b"\x01T") + 1,
    "prepared": lambda _: 39,
    "count": lambda record: record.index(INNER_NUM) + len(INNER_NUM),
}
"""Which byte of a record is another one: no checksum covers these."""


@pytest.mark.parametrize("kind", SAYS_ANOTHER_PLACE)
@pytest.mark.parametrize("number", [0, 8, 10, 12, COUNT - 2])
def test_wrong_place_in_a_record_loses_no_unit(number: int, kind: str) -> None:
    good = session(fill, config=CONFIG, topics=Batches()).image
    path, at, size = records(good)[number]
    byte = SAYS_ANOTHER_PLACE[kind](good.contents(path)[at : at + size])
    image = edited(good, lambda disk: flip_bit(disk, path, (at + byte) * 8 + 2))
    for boot in range(2):
        run = session(find_damage, image=image, config=SCRUBBED, topics=Batches())
        damage_found, mended, unqueued_ = run.value
        assert (len(damage_found) + unqueued_, mended) == (1, 0), f"boot {boot}"
        units_after = {file: data for file, data in units(run.image).items() if "/T/0/" in file}
        assert units_after == units(good), f"boot {boot}"
        image = run.image
    healed = edited(image, lambda disk: disk.replace_contents(path, good.contents(path)))
    scrubbed_run = session(find_damage, image=healed, config=SCRUBBED, topics=Batches())
    assert scrubbed_run.value == ([], 0, 0)


@pytest.mark.parametrize(
    ("number", "source"), [(7, 8), (8, 7), (9, 10), (10, 9), (3, 10), (10, 3), (0, 5)]
)
def test_copied_unit_is_mended(number: int, source: int) -> None:
    good = session(fill, config=CONFIG, topics=Batches()).image
    data = b"".join(units(good).values())
    copied = list(BATCH_UNIT.unpack_from(data, source * BATCH_UNIT.size))
    image = edited(good, partial(rot_by, number=number, change=lambda _: copied))
    run = session(find_damage, image=image, config=SCRUBBED, topics=Batches())
    assert run.value == ([], 1, 0)
    assert units(run.image) == units(good)


def test_scrub_starting_after_a_wrong_record_moves_no_unit() -> None:
    async def look(store: MessageStore) -> list[int | None]:
        scrub, (queue,) = store.scrubber, store._parts.queues.batch.values()
        entries = scrub._cursor.record_at(int(path.rpartition("/")[2]) + at).entries
        return [scrub._batches.find(queue, entry) for entry in entries]

    good = session(fill, config=CONFIG, topics=Batches()).image
    path, at, _ = records(good)[11]
    image = flip_queue_offset(good, 10, 2)
    assert session(look, image=image, config=CONFIG, topics=Batches()).value == [11]


@pytest.mark.parametrize("bit", [0, 2, 25])
@pytest.mark.parametrize("kind", KINDS)
def test_rotten_unit_beside_a_wrong_queue_offset(kind: str, bit: int) -> None:
    good = session(fill, config=CONFIG, topics=Batches()).image
    path, _, _ = records(good)[0]
    image = flip_queue_offset(good, 0, bit)
    image = edited(image, lambda disk: rot(disk, 1, kind))
    for boot in range(2):
        run = session(scrubbed, image=image, config=SCRUBBED, topics=Batches())
        (count, offset, is_refused), _ = run.value
        assert is_refused or (count, offset) == (COUNT, MESSAGES), f"boot {boot}"
        image = run.image
    healed = edited(image, lambda disk: disk.replace_contents(path, good.contents(path)))
    scrubbed_run = session(scrubbed, image=healed, config=SCRUBBED, topics=Batches())
    assert scrubbed_run.value == ((COUNT, MESSAGES, False), 0)


async def half(store: MessageStore) -> int:
    """Return the progress of the scrub when it wrote it to disk."""
    for _ in range(1000):
        if store._parts.marks.mark.scrubbed:
            break
        await trio.sleep(0.01)
    return store._parts.marks.mark.scrubbed


def half_scrubbed(image: DiskImage, number: int, per_file: int) -> tuple[DiskImage, int]:
    """A store that was killed under its scrub, which had found a record that is healed since; and
    the first record where the next one goes on."""
    path, at, _ = records(image)[number]
    config = replace(CONFIG, batch_queue_segment_size=per_file * BATCH_UNIT.size, scrub_rate=3000)
    hurt = edited(image, lambda disk: flip_bit(disk, path, (at + 120) * 8))
    run = session(half, image=hurt, config=config, topics=Batches())
    healed = edited(run.image, lambda disk: disk.replace_contents(path, image.contents(path)))
    begins = [int(file.rpartition("/")[2]) + start for file, start, _ in records(image)]
    return healed, sum(begin < run.value for begin in begins)


@pytest.mark.parametrize("kind", ["offset bit 4", "zeros"])
def test_resumed_scrub_hides_nothing_unchecked(kind: str) -> None:
    good = session(fill, config=CONFIG, topics=Batches()).image
    image, number = half_scrubbed(good, 7, PER_FILE)
    assert number > 7
    image = edited(image, lambda disk: rot(disk, number - 1, kind))
    (count, offset, is_refused), _ = session(
        scrubbed, image=image, config=SCRUBBED, topics=Batches()
    ).value
    assert is_refused
    assert 0 < count <= number
    assert offset > 0


def test_scrub_restarts_where_a_queue_beginning_is_unknown() -> None:
    config = replace(CONFIG, batch_queue_segment_size=COUNT * BATCH_UNIT.size)
    good = session(fill, config=config, topics=Batches()).image
    expiring = replace(config, reserved_ms=1, delete_batch_max=1)
    expired_run = session(expire, image=good, config=expiring, topics=Batches())
    first = expired_run.value // 2
    image, number = half_scrubbed(expired_run.image, 5, COUNT)
    assert number > 5
    image = edited(image, lambda disk: rot(disk, first - 1, "zeros", COUNT))
    scrubbing = replace(config, scrub_rate=1 << 30)
    scrubbed_run = session(scrubbed, image=image, config=scrubbing, topics=Batches())
    assert scrubbed_run.value == ((COUNT - first, MESSAGES, False), 0)


@pytest.mark.parametrize(
    ("bases", "number", "stated", "slot"),
    [
        ([0], 0, 4, 0),  # alone: a queue begins with 0
        ([8], 0, 0, 0),
        ([5, 8], 0, 4, 5),  # unless it begins elsewhere
        ([4, 8], 0, 5, 5),
        ([0, 3, 6], 1, 11, 3),
        ([0, 11, 6], 1, 3, 3),
        ([0, 3, 6], 2, 14, 6),
        ([0, 3, 14], 2, 6, 6),
        ([0, 3, 8, 12], 1, 7, 3),  # a gap behind it
        ([0, 3, 8, 12], 2, 0, 0),  # gaps on both sides: the log has the last word
        ([0, 4, 8], 1, 5, 5),
    ],
)
def test_record_or_unit_is_believed_by_the_neighbours(
    bases: list[int], number: int, stated: int, slot: int
) -> None:
    async def look(store: MessageStore) -> tuple[int, int] | None:
        queue = store._parts.queues._make(BATCH_DIR, "T", 0)
        assert isinstance(queue, BatchConsumeQueue)
        entries = [
            Entry("T", 0, base, at * 100, 100, 0, 1, (), -3) for at, base in enumerate(bases)
        ]
        queue._pending += b"".join(BATCH_UNIT.pack(*batch_unit(entry)) for entry in entries)
        queue.end_unit = len(entries)
        assert queue.slot_of(entries[number]._replace(physical_offset=50)) is None
        return queue.slot_of(entries[number]._replace(queue_offset=stated))

    assert session(look).value == (slot, 3)
