"""Retention: what goes, when, and what happens to those who are still reading it (store.md 9)."""

import errno

import pytest
import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.faults import SimFault
from rocketbed.node.store.status import GetStatus, PutStatus
from rocketbed.node.store.store import MessageStore
from rocketbed.node.store.unit_queue import UNIT
from tests.support.sim.filled_store import segments_of
from tests.support.sim.store_session import ROOT, edited, pull, put, session, settings, settle

DAY_MS = 24 * 3600 * 1000
STORED_AT = 56
"""Offset of the store time in a record with an IPv4 host."""


async def fill(store: MessageStore, segments: int = 4) -> None:
    """About two records a segment, all dispatched and below the mark."""
    for _ in range(2 * segments):
        put(store, body=bytes(1500), keys=("k",))
    await settle(store)


def set_usage(disk: SimDisk, percent: int) -> None:
    """Make the file system look that full."""
    used = disk.allocated()
    disk.quota = used * 100 // percent


@pytest.mark.parametrize(
    ("percent", "reserved_ms", "deleted", "refused"),
    [
        (70, DAY_MS, 0, False),
        (70, 0, 0, False),
        (80, DAY_MS, 0, False),
        (80, 0, 1, False),
        (88, DAY_MS, 1, False),
        (95, DAY_MS, 1, True),
    ],
)
def test_disk_pressure(percent: int, reserved_ms: int, deleted: int, refused: bool) -> None:
    """Above 75 % expired segments go, above 85 % any, above 90 % sends are refused as well."""
    disks: list[SimDisk] = []

    async def work(store: MessageStore) -> object:
        await fill(store)
        set_usage(disks[0], percent)
        await store._retention.round()
        refusal = store.refusal()
        low = store.min_offset // store.log.segment_size
        disks[0].quota = None
        await store._retention.round()
        return low, refusal and refusal[0], store.refusal()

    config = settings(reserved_ms=reserved_ms, delete_batch_max=1)
    low, refusal, after = session(work, config=config, prepare=disks.append).value
    assert low == deleted
    assert refusal == (PutStatus.SERVICE_NOT_AVAILABLE if refused else None)
    assert after is None


def test_young_files_stay_where_cleaning_is_not_forced() -> None:
    disks: list[SimDisk] = []

    async def work(store: MessageStore) -> int:
        await fill(store)
        set_usage(disks[0], 88)
        await store._retention.round()
        return store.min_offset

    config = settings(reserved_ms=DAY_MS, clean_forcibly_enabled=False)
    assert session(work, config=config, prepare=disks.append).value == 0


def test_a_file_of_unknown_age_stays() -> None:
    """The store times in all files after it are earlier than its own."""

    async def close(store: MessageStore) -> None:
        await fill(store)
        await store.close()

    def age(disk: SimDisk) -> None:
        for path in segments_of(disk.image())[1:]:
            data = bytearray(disk.contents(path))
            data[STORED_AT : STORED_AT + 8] = (1).to_bytes(8, "big")
            disk.replace_contents(path, bytes(data))

    async def clean(store: MessageStore) -> int:
        store.delete_expired()
        await store._retention.round()
        return store.min_offset

    config = settings(reserved_ms=0)
    image = edited(session(close, config=config).image, age)
    assert session(clean, config=config, image=image).value == 0


@pytest.mark.slow
def test_expired_segments_go_in_their_hour_only() -> None:
    async def work(store: MessageStore) -> object:
        await fill(store)
        lows = []
        for _ in range(24):
            await store._retention.round()
            lows.append(store.min_offset > 0)
            await trio.sleep(3600)
        return lows

    config = settings(reserved_ms=0, delete_when=(4,))
    lows = session(work, config=config, seconds=200_000).value
    assert lows[0] is False
    assert lows[-1] is True
    assert lows == sorted(lows)


def test_no_reader_skips_a_message_during_deletion() -> None:
    """At each moment in which others run, a pull of what is gone is told that it is."""

    async def work(store: MessageStore) -> object:
        await fill(store)
        pool, states = store._parts.pool, []
        sync_names = pool.sync_names

        async def looked(to: str = "") -> None:
            result = store.get_messages("T", 0, 0, 32)
            states.append((store.min_offset > 0, result.status))
            await sync_names(to)

        pool.sync_names = looked  # type: ignore[method-assign]
        await store._retention.round()
        return states

    config = settings(reserved_ms=0, delete_when=tuple(range(24)))
    states = session(work, config=config).value
    assert {status for is_shorter, status in states if is_shorter} == {GetStatus.OFFSET_TOO_SMALL}


def test_queues_and_index_follow_the_log() -> None:
    async def work(store: MessageStore) -> object:
        for _ in range(14):
            put(store, body=bytes(1500), keys=("a", "b", "c", "d", "e", "f", "g", "h"))
        await settle(store)
        files = len(store._parts.index.files)
        for _ in range(6):
            store.delete_expired()
            await store._retention.round()
        first = store.get_messages("T", 0, 0, 1)
        return files, len(store._parts.index.files), first, len(pull(store))

    config = settings(reserved_ms=0, queue_segment_size=100, delete_batch_max=10)
    run = session(work, config=config)
    files, files_left, first, readable = run.value
    assert first.status is GetStatus.OFFSET_TOO_SMALL
    assert first.next_offset == first.min_offset == 14 - readable
    assert 0 < readable < 14
    assert files_left < files
    assert f"{ROOT}/consumequeue/T/0/{0:020d}" not in run.image.paths()


@pytest.mark.parametrize("units", [1, 2, 3, 4, 5])
def test_queue_keeps_the_file_of_its_first_message(units: int) -> None:
    """Also if that is the file's last unit: a segment of the log holds two messages."""
    count, size = 16, units * UNIT.size

    async def work(store: MessageStore) -> None:
        await fill(store, segments=count // 2)
        (queue,) = store._parts.queues.all()
        firsts = list[int]()
        while not firsts or firsts[-1] < count - 4:
            store.delete_expired()
            await store._retention.round()
            first = store.queue_min("T", 0)
            assert queue.row.starts[0] <= first * UNIT.size
            assert queue.row.starts[0] + size + 2 * UNIT.size > first * UNIT.size
            assert [message.queue_offset for message in pull(store)] == [*range(first, count)]
            firsts.append(first)
        assert firsts == [*range(2, count - 2, 2)]

    config = settings(reserved_ms=0, queue_segment_size=size, delete_batch_max=1)
    session(work, config=config)


def test_power_cut_restores_no_segment_without_the_next() -> None:
    config = settings(reserved_ms=0, delete_batch_max=3)
    disks: list[SimDisk] = []

    async def work(store: MessageStore) -> int:
        await fill(store)
        begin = disks[0].events
        store.delete_expired()
        await store._retention.round()
        assert store.min_offset == 3 * store.log.segment_size
        return begin

    async def count(store: MessageStore) -> int:
        return len(store.log.segments.starts)

    whole = session(work, config=config, prepare=disks.append)
    for event in range(whole.value, whole.events + 1):
        for seed in range(8):
            cut = session(
                work, config=config, prepare=disks.append, crash_at=event, kind="power",
                mode="reorder", seed=seed,
            )  # fmt: skip
            assert session(count, config=config, image=cut.image, boots=2).value >= 1


def test_segment_being_read_waits_for_a_limited_time() -> None:
    async def work(store: MessageStore) -> object:
        await fill(store)
        segments = store.log.segments
        file = segments.pin(0)
        store.delete_expired()
        await store._retention.round()
        held = store.min_offset
        await trio.sleep(121)
        await store._retention.round()
        min_offset = store.min_offset
        still_readable = len(file.read_at(0, 4096))
        segments.unpin(0)
        return held, min_offset > 0, still_readable

    config = settings(reserved_ms=0, delete_batch_max=1)
    assert session(work, config=config).value == (0, True, 4096)


def test_dispatch_resumes_when_there_is_space() -> None:
    disks: list[SimDisk] = []

    async def work(store: MessageStore) -> object:
        put(store)
        await settle(store)
        disk = disks[0]
        queues = f"{ROOT}/consumequeue/Other/*"
        full = SimFault(operation="write", path=queues, error=errno.ENOSPC, times=None)
        disk.faults.append(full)
        for number in range(40):
            put(store, "Other", body=b"%d" % number)
        await trio.sleep(3)
        stuck = store._dispatcher.stuck, store.refusal()
        readable = len(pull(store))
        marked = await store._checkpointer.raise_mark()
        disk.faults.remove(full)
        await store.dispatched.wait_for(store.max_offset)
        return stuck, readable, marked, len(pull(store, "Other")), store.refusal()

    run = session(work, prepare=disks.append)
    (reason, refusal), readable, marked, count, after = run.value
    assert marked is False, "units that are put but not written belong to no mark"
    assert "cannot be written" in reason
    assert refusal is not None
    assert (readable, count, after) == (1, 40, None)
