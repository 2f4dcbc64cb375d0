"""Damage all over a log: the scrub keeps to its rate, and what it says and notes is bounded."""

import pytest
import trio

from rocketbed.chaos.backends.sim.disk import SimDisk, SimFile
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.node.store.damage import RANGES_MAX, SHOWN, Damage
from rocketbed.node.store.errors import CorruptRecord
from rocketbed.node.store.marks import CKPT_NAME
from rocketbed.node.store.store import MessageStore
from rocketbed.wire.message import HEAD
from tests.support.sim.filled_store import segments_of
from tests.support.sim.store_session import ROOT, edited, put, session, settings, settle

SEGMENT = 1 << 20
RATE = 1 << 20
SLACK = 2 * SEGMENT
"""Bytes of a few steps, which are paid for after they were read."""


def few_and_many(count: int) -> DiskImage:
    """A closed store of so many small records."""

    async def work(store: MessageStore) -> None:
        for number in range(count):
            put(store, body=b"%06d" % number + bytes(100))
        await settle(store)
        await store.close()

    return session(work, config=settings(segment_size=SEGMENT)).image


def damage_every(disk: SimDisk, distance: int) -> int:
    """Change a byte of each such record but the last; how many."""
    hits = 0
    for path in segments_of(disk.image()):
        data = bytearray(disk.contents(path))
        at = number = 0
        while (size := HEAD.unpack_from(data, at)[0]) > 0:
            next_is_record = HEAD.unpack_from(data, at + size)[0] > 0
            if number % distance == 0 and next_is_record:
                data[at + 90] ^= 1
                hits += 1
            at, number = at + size, number + 1
        disk.replace_contents(path, bytes(data))
    return hits


async def scrub(store: MessageStore) -> tuple[list[Damage], dict[str, str]]:
    await store.scrubber.finished.wait()
    return store.scrubber.damage, store.runtime_info()


def test_scrub_keeps_its_rate_and_saves_its_findings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = 0
    read_at = SimFile.read_at

    def count(file: SimFile, offset: int, size: int) -> bytes:
        nonlocal read
        data = read_at(file, offset, size)
        read += len(data) if "commitlog" in file.path else 0
        return data

    disk = SimDisk(few_and_many(400))
    hits = damage_every(disk, 2)
    config = settings(segment_size=SEGMENT, scrub_rate=RATE)
    monkeypatch.setattr(SimFile, "read_at", count)
    run = session(scrub, config=config, image=disk.image())
    damage_found, info = run.value
    assert len(damage_found) == hits == 200
    assert read <= RATE * run.seconds + SLACK
    assert run.marks["store.mark_stored"] <= run.seconds + 5
    assert info["damagedRanges"].count("-") == SHOWN
    assert info["damagedRanges"].endswith(f" and {hits - SHOWN} more")
    assert info["damageCount"] == str(hits)
    assert len(damage_found) == len({one.start for one in damage_found})


def test_records_between_damage_are_served_up_to_a_limit() -> None:
    """Then what is close together is one stretch, for the mark holds them all."""
    config = settings(segment_size=SEGMENT, scrub_rate=1 << 40)

    async def look(store: MessageStore) -> tuple[int, int, int]:
        await scrub(store)
        good = 0
        for number in range(store.queue_max("T", 0)):
            try:
                store.get_messages("T", 0, number, 1)
                good += 1
            except CorruptRecord:
                continue
        return len(store.scrubber.damage), store._parts.damaged.count, good

    disk = SimDisk(few_and_many(900))
    hits = damage_every(disk, 2)
    assert session(look, config=config, image=disk.image()).value == (hits, hits, 900 - hits)
    disk = SimDisk(few_and_many(1300))
    hits = damage_every(disk, 2)
    run = session(look, config=config, image=disk.image())
    ranges, count, good = run.value
    assert hits > RANGES_MAX > ranges
    assert count == hits
    assert 0 < good < 1300 - hits
    assert len(run.image.contents(f"{ROOT}/{CKPT_NAME}")) < 100 * RANGES_MAX
    result = session(look, config=config, image=run.image).value
    assert result[0] <= RANGES_MAX


def test_joined_range_stays_damaged_after_a_partial_heal() -> None:
    config = settings(segment_size=SEGMENT, scrub_rate=1 << 40)
    whole = few_and_many(1300)
    disk = SimDisk(whole)
    damage_every(disk, 2)
    first = session(scrub, config=config, image=disk.image())
    path = segments_of(whole)[0]

    def heal_the_first(disk: SimDisk) -> None:
        good, bad = whole.contents(path), disk.contents(path)
        disk.replace_contents(path, good[:1000] + bad[1000:])

    async def look(store: MessageStore) -> tuple[int, int]:
        await trio.sleep(1)  # it has looked again at what is noted, and waits after its first step
        damage = store.scrubber.damage[0]
        return damage.start, damage.end

    slow = settings(segment_size=SEGMENT, scrub_rate=1)
    start, end = session(look, config=slow, image=edited(first.image, heal_the_first)).value
    assert start > 900
    assert end == first.value[0][0].end
