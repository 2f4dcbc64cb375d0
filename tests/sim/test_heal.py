"""A heal changes nothing of a log unless what came fits, and makes no segment that is not due."""

from collections.abc import Callable

import pytest

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.node.store.config import SEGMENT_SIZE
from rocketbed.node.store.errors import BadStoreDirectory
from rocketbed.node.store.store import MessageStore
from tests.support.sim.filled_store import (
    COUNT,
    LOG_DIR,
    body_in_the_middle,
    fill_and_close,
    newest_segment_deleted,
    segments_of,
)
from tests.support.sim.healing import a_replica, heal_it, try_to_heal
from tests.support.sim.store_session import ROOT, edited, flip_bit, put, session, settings, settle

Change = Callable[[SimDisk], None]
FAR = f"{LOG_DIR}/{4096 * 3000:020d}"


def log_of(image: DiskImage) -> dict[str, bytes]:
    return {path: image.contents(path) for path in segments_of(image)}


def delete(*numbers: int) -> Change:
    """Remove segments by their number."""

    def change(disk: SimDisk) -> None:
        for path in [segments_of(disk.image())[number] for number in numbers]:
            disk.remove_name(path)

    return change


def both(*changes: Change) -> Change:
    def change(disk: SimDisk) -> None:
        for apply in changes:
            apply(disk)

    return change


def lose_the_mark(disk: SimDisk) -> None:
    flip_bit(disk, f"{ROOT}/rocketbed.ckpt", 60 * 8)


def lose_all_marks(disk: SimDisk) -> None:
    for name in ("rocketbed.ckpt", "rocketbed.flushed"):
        disk.remove_name(f"{ROOT}/{name}")


def goes_on(image: DiskImage | None, body: bytes) -> DiskImage:
    """The directory with as many messages more, all of one kind."""

    async def write(store: MessageStore) -> None:
        for number in range(COUNT):
            put(store, body=b"%02d" % number + body)
        await settle(store)
        await store.close()

    return session(write, image=image).image


@pytest.fixture(scope="module")
def common() -> DiskImage:
    """A history of five segments, before it parts."""
    return goes_on(session(fill_and_close).image, bytes(200))


def parted(common: DiskImage) -> tuple[DiskImage, DiskImage, DiskImage]:
    """A log that lost segments from before two histories part, its history, and the other one."""
    right, wrong = goes_on(common, b"good" * 60), goes_on(common, b"other" * 63)
    count = len(segments_of(common))
    return edited(right, delete(*range(count - 2, len(segments_of(right))))), right, wrong


def test_another_history_leaves_the_log_as_it_was(common: DiskImage) -> None:
    image, right, wrong = parted(common)
    failed = run_solo(try_to_heal, settings(), a_replica(wrong), image=image)
    assert failed.value.endswith("Nothing was changed")
    assert log_of(failed.image) == log_of(image)
    assert all("rocketbed.cut" not in path for path in failed.image.paths())
    assert not any("heal" in path for path in failed.image.paths())
    healed = run_solo(heal_it, settings(), a_replica(right), image=failed.image)
    assert log_of(healed.image) == log_of(right)


@pytest.mark.parametrize("kind", ["kill", "power"])
def test_kill_during_a_foreign_heal_leaves_the_log(common: DiskImage, kind: str) -> None:
    image, right, wrong = parted(common)
    wrong_one = a_replica(wrong)
    events = run_solo(try_to_heal, settings(), wrong_one, image=image).events
    for event in range(1, events, 5):
        crashed = run_solo(
            try_to_heal, settings(), wrong_one, image=image, crash_at=event, kind=kind
        )
        # A power cut may bring back names that the test removed; a heal brings nothing.
        records_after = log_of(crashed.image).items()
        assert log_of(image).items() <= records_after <= log_of(right).items(), event
        assert kind == "power" or records_after == log_of(image).items(), event
    healed = run_solo(heal_it, settings(), a_replica(right), image=crashed.image, boots=2)
    assert log_of(healed.image) == log_of(right)
    assert not any("heal.fetched" in path for path in healed.image.paths())


@pytest.mark.parametrize("damage", [delete(0), delete(1), body_in_the_middle])
def test_history_of_equal_record_sizes_is_another_one(damage: Change) -> None:
    """Also where nothing good stands before the hole, or the record right before it is the same."""
    right, wrong = goes_on(None, b"good" * 80), goes_on(None, b"evil" * 80)
    image = edited(right, damage)
    refusal = run_solo(try_to_heal, settings(), a_replica(wrong), image=image).value
    assert "its log is another one" in refusal
    assert run_solo(try_to_heal, settings(), a_replica(right), image=image).value == ""


def test_heal_compares_more_than_the_last_record() -> None:
    right = goes_on(None, b"good" * 80)
    image = edited(right, newest_segment_deleted)
    wrong = edited(right, lambda disk: flip_bit(disk, segments_of(disk.image())[0], 8 * 150))
    refusal = run_solo(try_to_heal, settings(), a_replica(wrong), image=image).value
    assert "other bytes than this log in the record at 0" in refusal


def test_damage_starting_in_properties_is_healed() -> None:
    """No checksum covers them, so the record before the hole seems good."""
    whole = session(fill_and_close).image

    def hurt(disk: SimDisk) -> None:
        path = segments_of(disk.image())[1]
        data = bytearray(disk.contents(path))
        middle = data.index(b"UNIQ_KEY", 1500) + 4
        data[middle : middle + 200] = b"\xa5" * 200
        disk.replace_contents(path, bytes(data))

    image = edited(whole, hurt)
    healed = run_solo(try_to_heal, settings(), a_replica(whole), image=image)
    assert healed.value == ""
    assert log_of(healed.image) == log_of(whole)


def test_heal_that_does_not_fit_the_disk_is_not_begun(common: DiskImage) -> None:
    image, right, _ = parted(common)

    def fill_disk(disk: SimDisk) -> None:
        disk.quota = disk.allocated() + 4096

    run = run_solo(try_to_heal, settings(), a_replica(right), image=image, prepare=fill_disk)
    assert "bytes of room" in run.value
    assert run.value.endswith("Nothing was changed")
    assert log_of(run.image) == log_of(image)


@pytest.mark.parametrize("damage", [newest_segment_deleted, body_in_the_middle, delete(1)])
@pytest.mark.parametrize("size", [4096, SEGMENT_SIZE])
def test_without_a_mark_the_files_tell_their_size(damage: Change, size: int) -> None:
    whole = session(fill_and_close).image
    image = edited(whole, both(lose_the_mark, damage))
    healed = run_solo(heal_it, settings(segment_size=size), a_replica(whole), image=image)
    assert healed.value
    assert log_of(healed.image) == log_of(whole)


def lengthen(disk: SimDisk) -> None:
    path = segments_of(disk.image())[1]
    disk.replace_contents(path, disk.image().contents(path) + bytes(100))


@pytest.mark.parametrize(
    ("damage", "size"),
    [
        (lengthen, 4096),
        (lengthen, SEGMENT_SIZE),
        (both(lose_the_mark, lengthen), 4096),
        (both(lose_the_mark, lengthen), SEGMENT_SIZE),
        (newest_segment_deleted, 8192),
        (both(lose_the_mark, newest_segment_deleted), 8192),
        (both(lose_the_mark, newest_segment_deleted), 2048),
    ],
)
def test_different_sizes_are_reported_before_any_change(damage: Change, size: int) -> None:
    whole = session(fill_and_close).image
    image = edited(whole, damage)
    run = run_solo(try_to_heal, settings(segment_size=size), a_replica(whole), image=image)
    assert "mappedFileSizeCommitLog" in run.value
    assert run.value.endswith("Nothing was changed")
    assert log_of(run.image) == log_of(image)


def stray(disk: SimDisk) -> None:
    disk.open(FAR, create=True).write_at(0, b"x" * 4096)


@pytest.mark.parametrize("damage", [stray, both(stray, newest_segment_deleted)])
@pytest.mark.parametrize("marks", [lambda disk: None, lose_the_mark, lose_all_marks])
def test_file_far_beyond_the_log_is_named(damage: Change, marks: Change) -> None:
    whole = session(fill_and_close).image
    image = edited(whole, both(damage, marks))
    run = run_solo(try_to_heal, settings(), a_replica(whole), image=image)
    assert f"{FAR} is no part of the log" in run.value
    assert run.value.endswith("Way out: move the file away. Nothing was changed")
    assert log_of(run.image) == log_of(image)


def test_a_start_names_such_a_file_too() -> None:
    async def nothing(store: MessageStore) -> None: ...

    image = edited(session(fill_and_close).image, stray)
    with pytest.raises(BadStoreDirectory, match=f"{FAR} is no part of the log.*move the file away"):
        session(nothing, image=image)


def test_empty_file_far_beyond_the_log_is_left_to_the_start() -> None:
    image = edited(session(fill_and_close).image, lambda disk: disk.open(FAR, create=True).close())
    run = run_solo(heal_it, settings(), a_replica(image), image=image)
    assert run.value == []
    assert log_of(run.image) == log_of(image)


def test_records_decide_where_the_marks_do_not() -> None:
    """A segment after a hole is the log's if a record is in it, however little is known."""
    whole = session(fill_and_close).image
    image = edited(whole, both(lose_all_marks, delete(1)))
    healed = run_solo(heal_it, settings(segment_size=SEGMENT_SIZE), a_replica(whole), image=image)
    assert log_of(healed.image) == log_of(whole)


def test_a_short_segment_keeps_its_good_records(common: DiskImage) -> None:
    """A record above the last offset known to be synced: no replica may have its bytes."""

    def shorten(disk: SimDisk) -> None:
        path = segments_of(disk.image())[-1]
        disk.replace_contents(path, disk.image().contents(path).rstrip(b"\0") + bytes(8))

    image = edited(common, both(lose_all_marks, shorten))
    healed = run_solo(heal_it, settings(), a_replica(common), image=image)
    assert healed.value == []
    assert log_of(healed.image) == log_of(common)
