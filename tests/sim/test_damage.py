"""Damage that a disk or a hand leaves in a store between two starts: never silently shorter.

Every test here failed, or hung, with a store that forgot what it knew as soon as one part of a
directory was not as it should be.
"""

from collections.abc import Callable

import pytest
import trio

from rocketbed.chaos.backends.sim.disk import SimDisk, SimFile
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.chaos.backends.sim.solo import SoloRun, run_solo
from rocketbed.node.store import scrub
from rocketbed.node.store.errors import BadStoreDirectory, CorruptRecord, DamagedLog
from rocketbed.node.store.heal_files import NotHealed
from rocketbed.node.store.segments import SegmentRow
from rocketbed.node.store.store import MessageStore
from rocketbed.wire.message import HEAD
from tests.support.sim.damage import topic_at
from tests.support.sim.filled_store import (
    COUNT,
    body_in_the_middle,
    check,
    fill,
    fill_and_close,
    last_record,
    newest_segment_deleted,
    segments_of,
)
from tests.support.sim.healing import a_replica, heal_it
from tests.support.sim.store_session import (
    ROOT,
    edited,
    flip_bit,
    pull,
    put,
    session,
    settings,
    settle,
)

Change = Callable[[SimDisk], None]


STOPS = {"clean": fill_and_close, "kill": fill}


async def numbers(store: MessageStore) -> list[int]:
    return [message.queue_offset for message in pull(store)]


def newest_segment_short(disk: SimDisk) -> None:
    path, at, _ = last_record(disk)
    disk.replace_contents(path, disk.image().contents(path)[:at])


def tail_zeroed(disk: SimDisk) -> None:
    path, at, _ = last_record(disk)
    data = disk.image().contents(path)
    disk.replace_contents(path, data[: at // 2].ljust(len(data), b"\0"))


def bit_of_the_last_body(disk: SimDisk) -> None:
    path, at, _ = last_record(disk)
    flip_bit(disk, path, (at + 100) * 8)


def bit_of_the_last_size(disk: SimDisk) -> None:
    path, at, _ = last_record(disk)
    flip_bit(disk, path, (at + 2) * 8)


def oldest_segment_deleted(disk: SimDisk) -> None:
    disk.remove_name(segments_of(disk.image())[0])


def middle_segment_deleted(disk: SimDisk) -> None:
    disk.remove_name(segments_of(disk.image())[1])


def everything_deleted(disk: SimDisk) -> None:
    for path in segments_of(disk.image()):
        disk.remove_name(path)


def newest_from_an_old_copy(disk: SimDisk) -> None:
    """The newest segment as it was a few messages earlier."""
    path, at, _ = last_record(disk)
    data = disk.image().contents(path)
    disk.replace_contents(path, data[:at].ljust(len(data), b"\0"))


DAMAGES = [
    newest_segment_deleted,
    newest_segment_short,
    tail_zeroed,
    bit_of_the_last_body,
    bit_of_the_last_size,
    oldest_segment_deleted,
    middle_segment_deleted,
    everything_deleted,
    newest_from_an_old_copy,
]


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_log_without_its_flushed_end_is_not_served(stop: str, damage: Change) -> None:
    image = edited(session(STOPS[stop]).image, damage)
    for boots in (1, 2):
        with pytest.raises((DamagedLog, BadStoreDirectory), match="Nothing was changed") as caught:
            session(numbers, image=image, boots=boots)
        assert "rocketbed store heal" in str(caught.value)


@pytest.mark.parametrize("trace", ["rocketbed.ckpt", "consumequeue", "index", "checkpoint"])
@pytest.mark.parametrize("damage", [newest_segment_deleted, bit_of_the_last_body, tail_zeroed])
def test_alteration_is_remembered_after_further_losses(damage: Change, trace: str) -> None:
    """A lost queue, index, mark or checkpoint is a verdict of its own."""

    def change(disk: SimDisk) -> None:
        damage(disk)
        for path in list(disk.paths()):
            if path.startswith(f"{ROOT}/{trace}"):
                disk.remove_name(path)

    image = edited(session(fill_and_close).image, change)
    with pytest.raises((DamagedLog, BadStoreDirectory), match="was changed"):
        session(numbers, image=image)


@pytest.mark.parametrize("content", [None, b"", bytes(16)])
@pytest.mark.parametrize("damage", [newest_segment_deleted, tail_zeroed, newest_from_an_old_copy])
def test_lost_flushed_offset_is_reported_with_the_queues_end(
    damage: Change, content: bytes | None
) -> None:
    path = f"{ROOT}/rocketbed.flushed"

    def lose(disk: SimDisk) -> None:
        disk.remove_name(path)
        if content is not None:
            disk.replace_contents(path, content)

    async def look(store: MessageStore) -> tuple[int, list[str]]:
        return len(await numbers(store)), store.recovery.findings

    async def fill_above_the_mark(store: MessageStore) -> None:
        for number in range(COUNT):
            put(store, body=b"%d" % number + bytes(300))
        await store._flusher.flush()
        await store.dispatched.wait_for(store.max_offset)

    killed = edited(session(fill_above_the_mark).image, lose)
    hurt = edited(killed, damage)
    count, findings = session(look, image=hurt).value
    assert count < COUNT
    named = f"{COUNT - count} messages that the queues named are not in the log"
    assert findings[0].startswith("rocketbed.flushed is gone or damaged")
    assert any(named in finding for finding in findings)
    lines = run_solo(check, settings(), image=hurt).value
    assert findings[0] in lines
    assert any(named in line for line in lines)
    count, findings = session(look, image=killed).value
    assert count == COUNT
    assert [finding.partition(":")[0] for finding in findings] == [
        "rocketbed.flushed is gone or damaged"
    ]
    clean = edited(session(fill_and_close).image, lose)
    assert session(look, image=clean).value == (COUNT, [])


@pytest.mark.parametrize("damage", [newest_segment_deleted, tail_zeroed, newest_from_an_old_copy])
def test_queues_reveal_a_lost_end_without_a_mark(damage: Change) -> None:
    """For example a directory of RocketMQ that lost its newest segment before our first start."""

    def change(disk: SimDisk) -> None:
        damage(disk)
        for path in ("rocketbed.ckpt", "rocketbed.flushed"):
            disk.remove_name(f"{ROOT}/{path}")

    async def look(store: MessageStore) -> tuple[int, list[str]]:
        return len(await numbers(store)), store.recovery.findings

    image = edited(session(fill_and_close).image, change)
    count, findings = session(look, image=image).value
    finding = next(sentence for sentence in findings if "queues named" in sentence)
    assert f"{COUNT - count} messages that the queues named are not in the log" in finding
    assert finding in run_solo(check, settings(), image=image).value


SMALL = ("rocketbed.ckpt", "rocketbed.flushed", "checkpoint")


def small_files_of_the_clean_stop_before() -> tuple[DiskImage, Change]:
    """A directory that was stopped cleanly twice, and the change that brings back the small files
    of the first time."""
    first = session(fill_and_close).image
    old = SimDisk(first)

    def bring_back(disk: SimDisk) -> None:
        for name in SMALL:
            disk.replace_contents(f"{ROOT}/{name}", old.contents(f"{ROOT}/{name}"))

    return session(fill_and_close, image=first).image, bring_back


def test_old_mark_with_a_longer_log_means_another_broker() -> None:
    """Nothing may stand behind the mark of a clean stop."""

    async def look(store: MessageStore) -> tuple[list[int], list[int], str]:
        bodies_read = [
            len((await store.query("T", f"k{n}", 9, 0, 1 << 60)).records) for n in range(COUNT)
        ]
        return await numbers(store), bodies_read, store.recovery.reason

    image, bring_back = small_files_of_the_clean_stop_before()
    bodies_read, queried, reason = session(look, image=edited(image, bring_back)).value
    assert (bodies_read, queried) == (list(range(2 * COUNT)), [2] * COUNT)
    assert "behind the durable mark" in reason
    assert session(look, image=image).value == (bodies_read, queried, "")


@pytest.mark.parametrize("count", range(8, 14))
def test_old_mark_is_noticed_anywhere_in_a_segment(count: int) -> None:
    """Also before the filler at its end."""

    async def put_some(store: MessageStore) -> None:
        for number in range(count):
            put(store, body=bytes(300), keys=(f"k{number}",))
        await settle(store)
        await store.close()

    async def look(store: MessageStore) -> tuple[int, list[int], str]:
        queried = [
            len((await store.query("T", f"k{n}", 9, 0, 1 << 60)).records) for n in range(count)
        ]
        return len(await numbers(store)), queried, store.recovery.reason

    first = session(put_some).image
    second, old = session(put_some, image=first).image, SimDisk(first)

    def bring_back(disk: SimDisk) -> None:
        parts = tuple(f"{ROOT}/{name}" for name in (*SMALL, "consumequeue/"))
        for path in list(disk.paths()):
            if path.startswith(parts):
                disk.remove_name(path)
        for path in old.paths():
            if path.startswith(parts):
                disk.replace_contents(path, old.contents(path))

    read_count, queried, reason = session(look, image=edited(second, bring_back)).value
    assert (read_count, queried) == (2 * count, [2] * count)
    assert "behind the durable mark" in reason


def mark_gone(disk: SimDisk) -> None:
    disk.remove_name(f"{ROOT}/rocketbed.ckpt")


def mark_rotten(disk: SimDisk) -> None:
    flip_bit(disk, f"{ROOT}/rocketbed.ckpt", 400)


@pytest.mark.parametrize("trace", ["consumequeue/T/", "index/"])
@pytest.mark.parametrize("damage", [mark_gone, mark_rotten])
def test_our_directory_is_not_taken_for_rocketmqs(damage: Change, trace: str) -> None:
    """The longest queue reaches the end of the log; another one, or the index, is gone."""

    async def fill_two(store: MessageStore) -> None:
        for number in range(COUNT):
            put(store, "T" if number < COUNT - 2 else "U", body=bytes(300), keys=(f"k{number}",))
        await settle(store)
        await store.close()

    async def look(store: MessageStore) -> tuple[int, int, list[int]]:
        queried = [
            len((await store.query("T", f"k{n}", 9, 0, 1 << 60)).records) for n in range(COUNT - 2)
        ]
        return len(pull(store)), len(pull(store, "U")), queried

    def change(disk: SimDisk) -> None:
        damage(disk)
        for path in list(disk.paths()):
            if path.startswith(f"{ROOT}/{trace}"):
                disk.remove_name(path)

    image = edited(session(fill_two).image, change)
    assert session(look, image=image).value == (COUNT - 2, 2, [1] * (COUNT - 2))


def two_segments_deleted(disk: SimDisk) -> None:
    for _ in range(2):
        newest_segment_deleted(disk)


def all_behind_the_first_stop_zeroed(disk: SimDisk) -> None:
    while last_record(disk)[0] != segments_of(disk.image())[2]:
        newest_segment_deleted(disk)
    path, data = segments_of(disk.image())[2], bytes(300)
    whole = disk.contents(path)
    end = whole.index(b"%d" % (COUNT - 1) + data)
    end = whole.index(b"k%d" % (COUNT - 1), end) + len(b"k%d\2" % (COUNT - 1))
    disk.replace_contents(path, whole[:end].ljust(len(whole), b"\0"))


@pytest.mark.parametrize(
    "damage", [newest_segment_deleted, two_segments_deleted, all_behind_the_first_stop_zeroed]
)
def test_old_mark_does_not_hide_a_lost_end(damage: Change) -> None:
    async def look(store: MessageStore) -> tuple[int, list[str]]:
        return len(await numbers(store)), store.recovery.findings

    image, bring_back = small_files_of_the_clean_stop_before()

    def change(disk: SimDisk) -> None:
        bring_back(disk)
        damage(disk)

    hurt = edited(image, change)
    count, findings = session(look, image=hurt).value
    assert COUNT <= count < 2 * COUNT
    named = f"{2 * COUNT - count} messages that the queues named are not in the log"
    assert any(named in finding for finding in findings)
    assert any(named in line for line in run_solo(check, settings(), image=hurt).value)


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("trace", ["consumequeue", "index"])
def test_derived_files_alone_are_built_again(stop: str, trace: str) -> None:
    def change(disk: SimDisk) -> None:
        for path in list(disk.paths()):
            if path.startswith(f"{ROOT}/{trace}/"):
                disk.remove_name(path)

    async def look(store: MessageStore) -> tuple[list[int], list[int]]:
        bodies_read = [
            len((await store.query("T", f"k{number}", 9, 0, 1 << 60)).records)
            for number in range(COUNT)
        ]
        return await numbers(store), bodies_read

    image = edited(session(STOPS[stop]).image, change)
    assert session(look, image=image).value == (list(range(COUNT)), [1] * COUNT)


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize(
    "damage", [newest_segment_deleted, tail_zeroed, bit_of_the_last_body, newest_segment_short]
)
def test_operator_cut_ends_the_log_and_stays_on_record(stop: str, damage: Change) -> None:
    whole = session(STOPS[stop]).image
    image = edited(whole, damage)
    with pytest.raises((DamagedLog, BadStoreDirectory)) as caught:
        session(numbers, image=image)
    word = next(word for word in str(caught.value).split() if word.startswith("rbAcceptCut="))
    offset = int(word.partition("=")[2].rstrip(",;"))

    async def look(store: MessageStore) -> tuple[list[int], str]:
        return await numbers(store), store.runtime_info()["acceptedCuts"]

    first = session(look, image=image, config=settings(accept_cut_at=offset))
    bodies_read, cut_text = first.value
    assert bodies_read == list(range(len(bodies_read)))
    assert len(bodies_read) < COUNT
    assert cut_text.startswith(f"{offset}:")
    missing = int(cut_text.split(":")[2])
    assert COUNT - len(bodies_read) <= missing

    async def after(store: MessageStore) -> tuple[list[int], str]:
        put(store, body=b"new")
        await settle(store)
        return await look(store)

    bodies_again, still = session(after, image=first.image).value
    assert (bodies_again, still) == ([*bodies_read, len(bodies_read)], cut_text)


def test_order_left_in_the_configuration_is_reported() -> None:
    async def look(store: MessageStore) -> list[str]:
        return store.recovery.findings

    config = settings(fill_hole_at=4096)
    (finding,) = session(look, image=session(fill_and_close).image, config=config).value
    assert "rbFillHole=4096 is set: take it out" in finding


def test_order_executed_twice_is_recorded_twice() -> None:
    async def look(store: MessageStore) -> list[str]:
        put(store, body=b"again".ljust(300))
        await store.flushed.wait_above(store.max_offset - 1)
        await store.close()
        return [cut.split(":")[0] for cut in store.runtime_info()["acceptedCuts"].split(";")]

    image = session(fill_and_close).image
    offset = last_record(SimDisk(image))[1]
    offset += int(last_record(SimDisk(image))[0].rpartition("/")[2])
    config = settings(sync_flush=True, accept_cut_at=offset)
    for times in (1, 2):
        image = edited(image, bit_of_the_last_body)
        run = session(look, image=image, config=config)
        assert run.value == [str(offset)] * times
        image = run.image


def test_foreign_index_files_are_rebuilt_in_our_size() -> None:
    def no_mark(disk: SimDisk) -> None:
        disk.remove_name(f"{ROOT}/rocketbed.ckpt")

    async def look(store: MessageStore) -> list[int]:
        return [len((await store.query("T", f"k{n}", 9, 0, 1 << 60)).records) for n in range(COUNT)]

    image = edited(session(fill_and_close).image, no_mark)
    for slots in (10, 20):
        assert session(look, image=image, config=settings(index_slots=slots)).value == [1] * COUNT


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("damage", [newest_segment_deleted, tail_zeroed, bit_of_the_last_body])
def test_a_slave_has_the_rest_sent_again(stop: str, damage: Change) -> None:
    image = edited(session(STOPS[stop]).image, damage)

    async def look(store: MessageStore) -> tuple[int, str]:
        return len(await numbers(store)), " ".join(store.recovery.findings)

    count, findings = session(look, image=image, config=settings(is_slave=True)).value
    assert count < COUNT
    assert "the master sends the rest again" in findings


def test_damaged_last_record_of_a_killed_node_is_damage() -> None:
    """F was known; that the page cache survived must not lower it."""
    image = edited(session(fill).image, bit_of_the_last_body)
    with pytest.raises(DamagedLog, match="1 acknowledged"):
        session(numbers, image=image, boots=1)


BIG = 16 << 20
"""A segment in which a wrong size may say more than any reader wants to read."""


async def fill_big(store: MessageStore) -> None:
    for number in range(40):
        put(store, body=b"%d" % number + bytes(1000))
    await store._flusher.flush()


def size_bit(number: int, bit: int) -> Change:
    """Flip one bit of the size of a record of `fill_big`."""

    def change(disk: SimDisk) -> None:
        path = segments_of(disk.image())[0]
        data, at = disk.image().contents(path), 0
        for _ in range(number):
            at += HEAD.unpack_from(data, at)[0]
        flip_bit(disk, path, at * 8 + 31 - bit)

    return change


@pytest.mark.parametrize("bit", [4, 12, 16, 20, 22, 23, 31])
def test_wrong_size_ends_no_start_in_a_loop(bit: int) -> None:
    config = settings(segment_size=BIG)
    image = edited(session(fill_big, config=config).image, size_bit(20, bit))
    with pytest.raises(DamagedLog, match="19 good records"):
        session(numbers, config=config, image=image)
    power = edited(session(fill_big, config=config, crash_at=10_000).image, size_bit(20, bit))
    with pytest.raises(DamagedLog):
        session(numbers, config=config, image=power, boots=2)


@pytest.mark.parametrize("bit", [4, 12, 20, 23])
def test_scrub_reports_a_wrong_size_and_continues(bit: int) -> None:
    config = settings(segment_size=BIG, scrub_rate=1 << 30)

    async def write(store: MessageStore) -> None:
        await fill_big(store)
        await settle(store)
        await store.close()

    async def look(store: MessageStore) -> list[tuple[int, int]]:
        await store.scrubber.finished.wait()
        return [(damage.start, damage.end) for damage in store.scrubber.damage]

    image = edited(session(write, config=config).image, size_bit(20, bit))
    damage_found = session(look, config=config, image=image).value
    assert len(damage_found) == 1
    assert damage_found[0][1] - damage_found[0][0] in range(1000, 1200)


def test_records_above_the_current_size_limit_are_read() -> None:
    large = settings(segment_size=BIG, max_message_size=10 << 20)

    async def write(store: MessageStore) -> None:
        put(store, body=b"small")
        put(store, body=bytes(9 << 20))
        put(store, body=b"small too")
        await store._flusher.flush()

    image = session(write, config=large).image
    small = settings(segment_size=BIG, max_message_size=1000, scrub_rate=1 << 30)
    assert session(numbers, config=small, image=image).value == [0, 1, 2]

    async def from_a_master(store: MessageStore) -> list[int]:
        log = image.contents(segments_of(image)[0])
        end = log.index(b"small too") + 50
        for at in range(0, end, 1 << 20):
            store.log.append_raw(at, log[at : min(at + (1 << 20), end)])
        await store._flusher.flush()
        await store.dispatched.wait_above(9 << 20)
        return await numbers(store)

    follower = settings(segment_size=BIG, max_message_size=1000, is_slave=True)
    assert session(from_a_master, config=follower).value == [0, 1, 2]


def test_torn_body_of_magic_numbers_does_not_delay_a_start() -> None:
    """The producer chooses the body; a read for each place in it took over a minute."""
    config = settings(segment_size=BIG)

    async def write(store: MessageStore) -> None:
        put(store, body=b"first")
        await settle(store)
        put(store, body=b"\xda\xa3\x20\xa7" * 1_000_000 + b"end")

    def torn(disk: SimDisk) -> None:
        path = segments_of(disk.image())[0]
        data = disk.image().contents(path)
        disk.replace_contents(path, data.replace(b"end", b"\0\0\0"))

    image = edited(session(write, config=config).image, torn)
    assert session(numbers, config=config, image=image, boots=2).value == [0]


def test_node_refuses_damage_and_serves_the_rest() -> None:
    image = session(fill_and_close).image
    path = segments_of(image)[0]
    data, at = image.contents(path), 0
    for _ in range(5):
        at += HEAD.unpack_from(data, at)[0]
    bad = edited(image, lambda disk: flip_bit(disk, path, (at + 100) * 8))

    async def look(store: MessageStore) -> object:
        await store.scrubber.finished.wait()
        before = store.get_messages("T", 0, 0, 32)
        with pytest.raises(CorruptRecord, match=rf"bytes {at} to .*store heal"):
            store.get_messages("T", 0, before.next_offset, 32)
        with pytest.raises(CorruptRecord):
            await store.query("T", "k5", 9, 0, 1 << 60)
        other_tag = store.get_messages("T", 0, 5, 32, tag_codes={1}).next_offset
        good = (await store.query("T", "k6", 9, 0, 1 << 60)).records
        past_batch = store.get_messages("T", 0, 6, 32)
        return before.next_offset, len(before.ranges), other_tag, len(good), past_batch.next_offset

    config = settings(scrub_rate=1 << 30)
    assert session(look, config=config, image=bad).value == (5, 5, COUNT, 1, COUNT)


def test_misplaced_segment_is_not_served() -> None:
    """Nor before the scrub has come there: no checksum of a client would tell."""
    image = session(fill_and_close).image
    first, second = segments_of(image)[:2]

    def swap(disk: SimDisk) -> None:
        contents = disk.image().contents(first), disk.image().contents(second)
        disk.replace_contents(first, contents[1])
        disk.replace_contents(second, contents[0])

    async def look(store: MessageStore) -> None:
        ranges = store.get_messages("T", 0, 0, 1).ranges
        with pytest.raises(CorruptRecord, match=r"no record of .* at offset 0, where its queue"):
            store.read_cached(ranges)
        with pytest.raises(CorruptRecord, match="at offset 0"):
            await store.read(ranges)
        last = store.get_messages("T", 0, COUNT - 1, 1).ranges
        assert store.read_cached(last) == await store.read(last) != b""

    session(look, config=settings(scrub_rate=0), image=edited(image, swap))


def test_a_unit_that_names_no_record_is_refused() -> None:
    image = session(fill_and_close).image
    path = next(p for p in image.paths() if "/consumequeue/" in p)

    def shrink(disk: SimDisk) -> None:
        data = disk.image().contents(path)
        disk.replace_contents(path, data[:8] + (5).to_bytes(4, "big") + data[12:])

    async def look(store: MessageStore) -> None:
        with pytest.raises(CorruptRecord, match="names 5 bytes at offset 0"):
            store.read_cached(store.get_messages("T", 0, 0, 1).ranges)

    session(look, config=settings(scrub_rate=0), image=edited(image, shrink))


GAP = 299_990


def test_queue_with_an_initial_gap_does_not_delay_a_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = settings(queue_segment_size=6_000_000)

    async def write(store: MessageStore) -> None:
        store.log.tail.next_queue_offsets["T", 0] = GAP
        for number in range(5):
            put(store, body=b"%d" % number)
        await settle(store)
        await store.close()

    writes: list[int] = []
    written = SegmentRow.write

    def wrote(row: SegmentRow, offset: int, data: bytes) -> None:
        writes.append(len(data))
        written(row, offset, data)

    monkeypatch.setattr(SegmentRow, "write", wrote)
    image = session(write, config=config).image
    assert max(writes) < 100_000, "a gap that is held in memory"
    reads: list[int] = []
    original = SegmentRow.read

    def counted(row: SegmentRow, offset: int, size: int) -> bytes:
        if row.directory.startswith(f"{ROOT}/consumequeue"):
            reads.append(size)
        return original(row, offset, size)

    async def look(store: MessageStore) -> tuple[int, int, list[int]]:
        return len(reads), store.queue_min("T", 0), await numbers(store)

    monkeypatch.setattr(SegmentRow, "read", counted)
    count, low, bodies_read = session(look, config=config, image=image).value
    assert count < 100
    assert low == GAP
    assert bodies_read == list(range(GAP, GAP + 5))
    assert sum(reads) < 3 * 6_000_000


@pytest.mark.parametrize("torn", [b"", b"half a record"])
@pytest.mark.parametrize("stop", ["clean", "kill"])
def test_start_reads_the_empty_end_of_the_log_once(
    monkeypatch: pytest.MonkeyPatch, stop: str, torn: bytes
) -> None:
    """It has a gigabyte by default, and is searched for good records and for what is to be cut."""
    size = 16 << 20
    config = settings(segment_size=size)
    image = session(fill_and_close if stop == "clean" else fill, config=config).image

    def tear(disk: SimDisk) -> None:
        path = segments_of(image)[0]
        disk.open(path).write_at(len(disk.contents(path).rstrip(b"\0")), torn)

    reads: list[int] = []
    original = SimFile.read_at

    def counted(file: SimFile, offset: int, count: int) -> bytes:
        if file.path.startswith(f"{ROOT}/commitlog"):
            reads.append(count)
        return original(file, offset, count)

    async def look(store: MessageStore) -> int:
        return len(await numbers(store))

    before = session(look, config=config, image=edited(image, tear)).value
    monkeypatch.setattr(SimFile, "read_at", counted)

    async def count_reads(store: MessageStore) -> tuple[int, int]:
        return sum(reads), len(await numbers(store))

    read, bytes_read = session(count_reads, config=config, image=edited(image, tear)).value
    assert bytes_read == before > 0
    assert read < 1.5 * size


TOPICS = [b"../../../evil", b"a/b", b"a\0b", b"\xff\xfe", b".."]


@pytest.mark.parametrize("topic", TOPICS)
def test_impossible_topic_name_is_kept_and_reported(topic: bytes) -> None:
    async def write(store: MessageStore) -> bytes:
        put(store, "T" * len(topic), body=b"odd", keys=("k",))
        put(store, body=b"good")
        return store.log.read(0, store.max_offset)

    log = session(write).value.replace(b"T" * len(topic), topic)

    async def follow(store: MessageStore) -> tuple[list[bytes], list[tuple[str, int]], bytes]:
        store.log.append_raw(0, log)
        await settle(store)
        bodies = [message.body for message in pull(store)]
        return bodies, store.queues(), store.log.read(0, store.max_offset)

    config = settings(is_slave=True)
    run = session(follow, config=config)
    bodies, queues, log_after = run.value
    assert bodies == [b"good"]
    assert queues == [("T", 0)]
    assert log_after == log
    assert all(path.startswith(f"{ROOT}/") for path in run.image.paths())
    assert session(numbers, config=config, image=run.image).value == [0]
    assert session(numbers, image=run.image, boots=2).value == [0]


@pytest.mark.parametrize("byte", [12, -1], ids=["queue id", "topic"])
def test_scrub_reports_a_record_lost_to_its_queue(byte: int) -> None:
    """A bit of its topic, or the sign of its queue id: no checksum covers them (seed 855273)."""
    image = session(fill_and_close).image

    def rot(disk: SimDisk) -> None:
        path = segments_of(image)[0]
        flip_bit(disk, path, 8 * (byte if byte >= 0 else topic_at(image, path, 0)) + 7)

    async def look(store: MessageStore) -> list[int]:
        await store.scrubber.finished.wait()
        return [first for first, _ in store.scrubber.unqueued.values()]

    assert session(look, config=settings(scrub_rate=1 << 30), image=edited(image, rot)).value == [0]


@pytest.mark.parametrize(
    "name",
    [
        "commitlog/5",
        "commitlog/20251120",
        "commitlog/00000000000000000000.bak",
        "consumequeue/.DS_Store",
        "consumequeue/T/.DS_Store",
        "consumequeue/T/0/7",
        "consumequeue/T/00",
        "index/.DS_Store",
        "index/5",
    ],
)
@pytest.mark.parametrize("stop", STOPS)
def test_stray_names_are_reported_and_left(name: str, stop: str) -> None:
    path = f"{ROOT}/{name}"

    def stray(disk: SimDisk) -> None:
        disk.open(path, create=True).write_at(0, b"stray")

    image = edited(session(STOPS[stop]).image, stray)
    run = session(numbers, image=image)
    assert run.value == list(range(COUNT))
    assert run.image.contents(path) == b"stray"


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("damage", [*DAMAGES, body_in_the_middle])
def test_a_healed_log_is_what_it_was(stop: str, damage: Change) -> None:
    whole = session(STOPS[stop]).image
    image = edited(whole, damage)
    healed = run_solo(heal_it, settings(), a_replica(whole), image=image)
    assert healed.value, "there was nothing to heal"
    for path in segments_of(whole):
        assert healed.image.contents(path) == whole.contents(path)
    assert session(numbers, image=healed.image).value == list(range(COUNT))
    healed_run = run_solo(heal_it, settings(), a_replica(whole), image=healed.image)
    assert healed_run.value == []


def test_another_history_heals_nothing() -> None:
    whole = session(fill_and_close).image
    image = edited(whole, tail_zeroed)

    async def fill_otherwise(store: MessageStore) -> None:
        for number in range(COUNT):
            put(store, body=b"%d" % number + b"other".ljust(300))
        await settle(store)

    with pytest.raises(NotHealed, match="its log is another one"):
        run_solo(heal_it, settings(), a_replica(session(fill_otherwise).image), image=image)


@pytest.mark.parametrize("kind", ["kill", "power"])
def test_a_heal_that_is_killed_is_done_again(kind: str) -> None:
    whole = session(fill_and_close).image
    image = edited(whole, newest_segment_short)
    events = run_solo(heal_it, settings(), a_replica(whole), image=image).events
    for event in range(1, events):
        crashed = run_solo(
            heal_it, settings(), a_replica(whole), image=image, crash_at=event, kind=kind
        )
        healed = run_solo(heal_it, settings(), a_replica(whole), image=crashed.image, boots=2)
        assert session(numbers, image=healed.image, boots=2).value == list(range(COUNT)), event


async def nothing(store: MessageStore) -> None:
    """A start, and no more."""


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("damage", [None, *DAMAGES, body_in_the_middle])
def test_check_predicts_the_start_and_changes_nothing(stop: str, damage: Change | None) -> None:
    image = session(STOPS[stop]).image
    if damage is not None:
        image = edited(image, damage)

    def outcome(start: Callable[[], SoloRun]) -> tuple[str, SoloRun | None]:
        try:
            return "", start()
        except (DamagedLog, BadStoreDirectory) as exc:
            return str(exc), None

    refused, _ = outcome(lambda: session(nothing, image=image))
    checked, run = outcome(lambda: run_solo(check, settings(), image=image))
    assert checked == refused
    if run is not None:
        assert run.value[-1].startswith("the log would end at offset ")
        assert {path: image.contents(path) for path in image.paths()} == {
            path: run.image.contents(path) for path in run.image.paths()
        }


def test_an_index_with_tags_is_continued_with_tags() -> None:
    """RocketMQ 5.5.0 indexes tags, 5.3 does not: who comes after it follows the index."""

    async def write(store: MessageStore) -> None:
        store.log.tail.index_tags = True
        for number in range(5):
            put(store, body=b"%d" % number, tag="red", keys=(f"k{number}",))
        await settle(store)
        await store.close()

    def forget_us(disk: SimDisk) -> None:
        disk.remove_name(f"{ROOT}/rocketbed.ckpt")
        disk.remove_name(f"{ROOT}/rocketbed.flushed")

    async def go_on(store: MessageStore) -> int:
        for number in range(5, 8):
            put(store, body=b"%d" % number, tag="red", keys=(f"k{number}",))
        await settle(store)
        return len((await store.query("T", "T#red", 32, 0, 1 << 60)).records)

    theirs = edited(session(write).image, forget_us)
    run = session(go_on, image=theirs)
    assert run.value == 8

    def no_index(disk: SimDisk) -> None:
        for path in list(disk.paths()):
            if path.startswith(f"{ROOT}/index/"):
                disk.remove_name(path)

    async def count(store: MessageStore) -> int:
        return len((await store.query("T", "T#red", 32, 0, 1 << 60)).records)

    assert session(count, image=run.image).value == 8
    assert session(count, image=edited(run.image, no_index)).value == 8


def test_scrub_findings_survive_a_restart_until_healed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = session(fill_and_close).image
    image = edited(whole, body_in_the_middle)
    slow = settings(scrub_rate=2000)
    monkeypatch.setattr(scrub, "NOTE_EVERY", 1)

    async def some(store: MessageStore) -> int:
        await trio.sleep(5)
        assert store.scrubber.damage
        return store.scrubber.position

    first = session(some, config=slow, image=image)

    async def look(store: MessageStore) -> tuple[int, str]:
        await trio.sleep(0.01)
        return store.scrubber.position, store.runtime_info()["damagedRanges"]

    position, damage = session(look, config=slow, image=first.image).value
    assert position >= first.value - 1200
    assert damage.count("-") == 1
    healed = run_solo(heal_it, settings(), a_replica(whole), image=first.image)
    assert session(look, config=slow, image=healed.image).value[1] == ""


def test_hole_at_the_durable_mark_may_be_filled() -> None:
    async def write(store: MessageStore) -> int:
        for number in range(4):
            put(store, body=b"%d" % number + bytes(300))
        await settle(store)
        mark = store.max_offset
        for number in range(4, 8):
            put(store, body=b"%d" % number + bytes(300))
        await store._flusher.flush()
        return mark

    run = session(write)
    image = edited(
        run.image, lambda disk: flip_bit(disk, segments_of(disk.image())[0], 8 * (run.value - 100))
    )
    with pytest.raises(DamagedLog, match="4 good records behind it") as caught:
        session(numbers, image=image)
    config = settings(fill_hole_at=caught.value.offset)
    filled = session(numbers, image=image, config=config)
    assert filled.value == [0, 1, 2, 4, 5, 6, 7]
    assert session(numbers, image=filled.image).value == filled.value
