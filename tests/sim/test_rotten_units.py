"""Queue units have no checksum: a rotten one is refused or mended, and hides no other message."""

from collections.abc import Callable

import pytest
import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.node.store.errors import CorruptRecord, DamagedLog
from rocketbed.node.store.store import MessageStore
from rocketbed.node.store.unit_queue import UNIT
from rocketbed.wire.message import HEAD, decode_messages
from tests.support.sim.filled_store import (
    COUNT,
    body_in_the_middle,
    check,
    fill,
    fill_and_close,
    newest_segment_deleted,
    segments_of,
)
from tests.support.sim.store_session import ROOT, edited, flip_bit, put, session, settings, settle

ROTTEN = 6
PER_FILE = 10
Unit = tuple[int, int, int]
ROT: dict[str, Callable[[int, int, int], Unit]] = {
    "size bit 12": lambda offset, size, code: (offset, size ^ 1 << 12, code),
    "size bit 20": lambda offset, size, code: (offset, size ^ 1 << 20, code),
    "size sign": lambda offset, size, code: (offset, size - (1 << 31), code),
    "offset bit 4": lambda offset, size, code: (offset ^ 16, size, code),
    "offset bit 40": lambda offset, size, code: (offset ^ 1 << 40, size, code),
    "offset sign": lambda offset, size, code: (offset - (1 << 63), size, code),
    "zeros": lambda *_: (0, 0, 0),
}


def rot(disk: SimDisk, number: int, change: Callable[[int, int, int], Unit]) -> None:
    path = f"{ROOT}/consumequeue/T/0/{number // PER_FILE * PER_FILE * UNIT.size:020d}"
    data, at = bytearray(disk.image().contents(path)), number % PER_FILE * UNIT.size
    UNIT.pack_into(data, at, *change(*UNIT.unpack_from(data, at)))
    disk.replace_contents(path, bytes(data))


async def deliver(store: MessageStore) -> tuple[list[int], list[int]]:
    """Queue offsets that a reader gets, and those that are refused to it."""
    got: list[int] = []
    refused: list[int] = []
    offset, most = store.queue_min("T", 0), 32
    while offset < store.queue_max("T", 0):
        try:
            result = store.get_messages("T", 0, offset, most)
            records = store.read_cached(result.ranges)
            if records is None:
                records = await store.read(result.ranges)
        except CorruptRecord:
            if most == 1:
                refused.append(offset)
                offset += 1
            most = 1
            continue
        got += [message.queue_offset for message in decode_messages(records)]
        assert result.next_offset > offset
        offset, most = result.next_offset, 32
    return got, refused


@pytest.mark.parametrize("number", [ROTTEN, 12])  # 12 is the first that halving looks at
@pytest.mark.parametrize("kind", ROT)
def test_rotten_unit_is_refused_and_hides_no_other_message(kind: str, number: int) -> None:
    image = edited(session(fill_and_close).image, lambda disk: rot(disk, number, ROT[kind]))
    got, refused = session(deliver, image=image, config=settings(scrub_rate=0)).value
    assert (refused, sorted([*got, *refused])) == ([number], list(range(COUNT)))


@pytest.mark.parametrize("kinds", [("size sign",), ("offset bit 40", "offset sign")])
def test_rotten_unit_does_not_make_a_start_reread_all(kinds: tuple[str, ...]) -> None:
    good = session(fill_and_close).image

    async def reason(store: MessageStore) -> str:
        return store.recovery.reason

    for number in range(COUNT - len(kinds)):

        def spoil(disk: SimDisk, number: int = number) -> None:
            for distance, kind in enumerate(kinds):
                rot(disk, number + distance, ROT[kind])

        reasons = session(reason, image=edited(good, spoil), config=settings(scrub_rate=0)).value
        assert not reasons, (number, reasons)


@pytest.mark.parametrize("kind", ["offset sign", "zeros"])
def test_mended_unit_restores_the_queue_beginning(kind: str) -> None:
    async def look(store: MessageStore) -> tuple[list[int], list[int]]:
        store.queue_min("T", 0)
        await store.scrubber.finished.wait()
        return await deliver(store)

    image = edited(session(fill_and_close).image, lambda disk: rot(disk, 12, ROT[kind]))
    result = session(look, image=image, config=settings(scrub_rate=1 << 30)).value
    assert result == (list(range(COUNT)), [])


@pytest.mark.parametrize("kind", ["zeros", "offset bit 12"])
def test_retention_keeps_a_queue_file_with_a_rotten_last_unit(kind: str) -> None:
    disks: list[SimDisk] = []

    def lower(offset: int, size: int, code: int) -> Unit:
        return (offset ^ 1 << 12 if kind == "offset bit 12" else 0), size if offset else 0, code

    async def look(store: MessageStore) -> tuple[int, int]:
        rot(disks[0], 19, lower)
        store.delete_expired()
        await trio.sleep(5)
        await store._retention.round()
        return store.min_offset, store.queue_min("T", 0)

    config = settings(reserved_ms=1, delete_batch_max=1)
    image = session(fill_and_close).image
    log_min, queue_min = session(look, image=image, config=config, prepare=disks.append).value
    kept_records = list(records_from(image, log_min))
    assert 0 < queue_min <= COUNT - len(kept_records)


def records_from(image: DiskImage, log_min: int) -> list[int]:
    """Return the offsets of the records at or above a beginning of the log."""
    offsets = []
    for path in segments_of(image):
        start, data, at = int(path.rpartition("/")[2]), image.contents(path), 0
        while at + HEAD.size <= len(data) and HEAD.unpack_from(data, at)[6] == start + at:
            offsets.append(start + at)
            at += HEAD.unpack_from(data, at)[0]
    return [offset for offset in offsets if offset >= log_min]


@pytest.mark.parametrize("byte", [0, 6, 34])  # size, magic, physical offset
def test_a_query_refuses_a_damaged_record(byte: int) -> None:
    async def look(store: MessageStore) -> None:
        with pytest.raises(CorruptRecord, match="the index names a record at offset"):
            await store.query("T", "k5", 9, 0, 1 << 60)

    def flip(disk: SimDisk) -> None:
        path = segments_of(disk.image())[0]
        at = records_from(disk.image(), 0)[5]
        flip_bit(disk, path, (at + byte) * 8)

    image = edited(session(fill_and_close).image, flip)
    session(look, image=image, config=settings(scrub_rate=0))


def test_scrub_without_descriptors_reports_no_damage() -> None:
    disks: list[SimDisk] = []

    async def look(store: MessageStore) -> tuple[list[object], str, tuple[list[int], list[int]]]:
        disks[0].descriptors = 0
        await trio.sleep(2)
        disks[0].descriptors = None
        await store.scrubber.finished.wait()
        return [*store.scrubber.damage], store.scrubber.index_damage, await deliver(store)

    image = session(fill_and_close).image
    run = session(look, image=image, config=settings(scrub_rate=3000), prepare=disks.append)
    assert run.value == ([], "", (list(range(COUNT)), []))


def no_marks(disk: SimDisk) -> None:
    for path in ("rocketbed.ckpt", "rocketbed.flushed"):
        disk.remove_name(f"{ROOT}/{path}")


async def findings(store: MessageStore) -> list[str]:
    return store.recovery.findings


def test_lost_end_is_reported_though_the_start_is_killed() -> None:
    image = edited(session(fill_and_close).image, newest_segment_deleted)
    image = edited(image, no_marks)
    events = session(findings, image=image).events
    for event in range(1, events, 3):
        first = session(findings, image=image, crash_at=event, kind="kill")
        warnings = [line for line in first.log if "queues named" in str(line.fields)]
        findings_later = session(findings, image=first.image).value
        assert warnings or any("queues named" in finding for finding in findings_later), event


def test_check_knows_the_hole_that_a_start_would_fill() -> None:
    image = edited(session(fill).image, body_in_the_middle)
    image = edited(image, no_marks)
    with pytest.raises(DamagedLog, match="rbFillHole=") as caught:
        session(findings, image=image)
    offset = int(str(caught.value).partition("rbFillHole=")[2].split()[0])
    config = settings(fill_hole_at=offset)
    assert any("would be closed" in line for line in run_solo(check, config, image=image).value)
    assert any(
        "closed with a filler" in f for f in session(findings, image=image, config=config).value
    )


def test_order_is_recorded_once() -> None:
    """Also where the damage is found below the mark and by the scan."""

    async def cuts(store: MessageStore) -> list[str]:
        return store.runtime_info()["acceptedCuts"].split(";")

    async def write(store: MessageStore) -> None:
        for number in range(12):
            put(store, body=bytes(300))
            if number == 7:
                await settle(store)
        await store._flusher.flush()

    def rot_the_last_below_the_mark(disk: SimDisk) -> None:
        flip_bit(disk, segments_of(disk.image())[0], (records_from(disk.image(), 0)[7] + 100) * 8)

    image = edited(session(write).image, rot_the_last_below_the_mark)
    with pytest.raises(DamagedLog, match="rbAcceptCut=") as caught:
        session(cuts, image=image)
    offset = int(str(caught.value).partition("rbAcceptCut=")[2].split()[0])
    cut_list = session(cuts, image=image, config=settings(accept_cut_at=offset)).value
    assert len(cut_list) == 1
    assert cut_list[0].startswith(f"{offset}:")
