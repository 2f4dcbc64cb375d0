"""Disks that fail, fill up, or lie after a failed fsync: what the store says, and what it keeps."""

import errno
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import pytest
import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.faults import SimFault
from rocketbed.chaos.backends.sim.simulation import Simulation
from rocketbed.node.store.errors import BadStoreDirectory, PutFailed, StoreFailed
from rocketbed.node.store.failure import Failure
from rocketbed.node.store.files import LOOKED_MAX, FilePool
from rocketbed.node.store.segments import SegmentRow, sync_rows
from rocketbed.node.store.status import GetStatus, PutStatus
from rocketbed.node.store.store import MessageStore
from rocketbed.world.api import World
from tests.support.sim.store_session import HOST, ROOT, edited, pull, put, session, settings, settle

LOG = f"{ROOT}/commitlog/*"
QUEUES = f"{ROOT}/consumequeue/*"


@dataclass(slots=True, kw_only=True)
class LaterFault(SimFault):
    """A fault that lets some of its calls pass first."""

    skip: int

    def fires(self, operation: str, path: str) -> bool:
        if not SimFault.fires(self, operation, path):
            return False
        self.skip -= 1
        self.fired -= self.skip >= 0
        return self.skip < 0


async def put_some(store: MessageStore, count: int = 8) -> None:
    """Messages over several segments, all below the mark."""
    for number in range(count):
        put(store, body=(b"%d" % number).ljust(1000))
    await settle(store)


async def numbers(store: MessageStore) -> list[int]:
    """Return the numbers of the messages that can be pulled."""
    return [int(message.body) for message in pull(store)]


@pytest.mark.parametrize("name", ["abort.new", "rocketbed.ckpt.new"])
def test_start_on_a_full_disk_leaves_no_abort_file(name: str) -> None:
    async def put_and_close(store: MessageStore) -> None:
        await put_some(store)
        await store.close()

    image = session(put_and_close).image
    disks: list[SimDisk] = []

    def fill(disk: SimDisk) -> None:
        disks.append(disk)
        path = f"{ROOT}/rocketbed.tmp/{name}"
        disk.faults.append(SimFault(operation="write", path=path, error=errno.ENOSPC, times=None))

    with pytest.raises(BadStoreDirectory, match=r"No space left .*make room, then start again"):
        session(numbers, image=image, prepare=fill)
    abort = f"{ROOT}/abort"
    assert abort not in disks[0].paths() or b"boot_id=" in disks[0].contents(abort)

    async def look(store: MessageStore) -> object:
        report = store.recovery
        return report.took_over, report.records, await numbers(store)

    half = edited(image, lambda disk: disk.replace_contents(f"{ROOT}/abort", b""))
    for full_image in (disks[0].image(), half):
        assert session(look, image=full_image).value == (False, 0, list(range(8)))


def test_reader_gets_messages_whose_units_wait_for_space() -> None:
    disks: list[SimDisk] = []

    async def work(store: MessageStore) -> object:
        for _ in range(3):
            put(store)
        await settle(store)
        full = SimFault(operation="write", path=QUEUES, error=errno.ENOSPC, times=None)
        disks[0].faults.append(full)
        put(store)
        await trio.sleep(2)
        assert store._dispatcher.stuck
        result = store.get_messages("T", 0, 3, 32)
        queue_end = store.queue_max("T", 0)
        disks[0].faults.remove(full)
        await store.dispatched.wait_for(store.max_offset)
        return result.status, result.next_offset, queue_end, store.queue_max("T", 0)

    status, next_offset, queue_end, later = session(work, prepare=disks.append).value
    assert (status, next_offset, queue_end, later) == (GetStatus.FOUND, 4, 4, 4)


def test_store_out_of_descriptors_closes_the_least_needed() -> None:
    disks: list[SimDisk] = []

    async def work(store: MessageStore) -> object:
        await put_some(store)
        disks[0].descriptors = disks[0].open_files
        for number in range(8, 40):
            put(store, topic=f"T{number % 5}", body=(b"%d" % number).ljust(1000))
            await store.flushed.wait_above(store.max_offset - 1)
        await store.dispatched.wait_for(store.max_offset)
        return await numbers(store), [len(pull(store, f"T{number}")) for number in range(5)]

    assert session(work, prepare=disks.append).value == (list(range(8)), [6, 6, 6, 7, 7])


def test_bad_sector_is_scrub_damage_and_not_fatal() -> None:
    image = session(put_some).image

    def bad(disk: SimDisk) -> None:
        disk.faults.append(
            SimFault(operation="read", path=f"{ROOT}/commitlog/{0:020d}", times=None)
        )

    async def look(store: MessageStore) -> object:
        await store.scrubber.finished.wait()
        damage = store.scrubber.damage[0]
        put(store, body=b"99")
        await settle(store)
        return damage.start, damage.end, damage.reason, store.queue_max("T", 0)

    start, end, reason, count = session(look, image=image, boots=2, prepare=bad).value
    assert (start, end) == (0, 4096)
    assert "Input/output error" in reason
    assert count == 9


def test_unreadable_queue_is_no_damage_of_the_log() -> None:
    disks: list[SimDisk] = []

    async def look(store: MessageStore) -> object:
        await put_some(store)
        await store._parts.marks.update(damage=((0, 1000, "healed since"),))
        disks[0].faults.append(SimFault(operation="read", path=QUEUES, times=None))
        await store.scrubber.run(store.max_offset)
        return store.scrubber.damage, store.scrubber.unqueued

    damage, unqueued = session(look, prepare=disks.append).value
    assert [(one.start, one.end) for one in damage] == [(0, 1000)]
    assert unqueued == {"T": [0, 8]}


def test_dispatch_reports_an_unreadable_log_and_retries() -> None:
    disks: list[SimDisk] = []

    async def work(store: MessageStore) -> object:
        put(store)
        await settle(store)
        put(store)
        store._dispatcher._ring.clear()
        store._dispatcher._lost = True
        fault = SimFault(operation="read", path=LOG, times=None)
        disks[0].faults.append(fault)
        await trio.sleep(2)
        stuck = store._dispatcher.stuck
        disks[0].faults.remove(fault)
        await store.dispatched.wait_for(store.max_offset)
        return stuck, store.queue_max("T", 0), store.refusal()

    stuck, count, refusal = session(work, prepare=disks.append).value
    assert "Input/output error" in stuck
    assert (count, refusal) == (2, None)


@pytest.mark.parametrize("effect", ["error", "error_clean"])
def test_page_cache_is_not_trusted_after_a_failed_fsync(
    effect: Literal["error", "error_clean"],
) -> None:
    """Linux marks pages clean when their fsync fails: the next one succeeds without them."""

    disks: list[SimDisk] = []
    config = settings(sync_flush=True)

    async def write(store: MessageStore) -> None:
        put(store, body=b"0".ljust(1000))
        await store.flushed.wait_for(store.max_offset)
        disks[0].faults.append(SimFault(operation="sync", path=LOG, effect=effect))
        put(store, body=b"1".ljust(1000))
        await store.flushed.wait_for(store.max_offset)

    with pytest.RaisesGroup(StoreFailed, flatten_subgroups=True):
        session(write, config=config, prepare=disks.append)

    async def go_on(store: MessageStore) -> list[int]:
        put(store, body=b"2".ljust(1000))
        await store.flushed.wait_for(store.max_offset)
        await settle(store)
        return await numbers(store)

    acknowledged = session(go_on, config=config, image=disks[0].image()).value

    def cut(disk: SimDisk) -> None:
        disk.power_cut("strict")

    run = session(go_on, config=config, image=disks[0].image())
    after = session(numbers, config=config, image=edited(run.image, cut), boots=2)
    assert after.value == acknowledged
    assert after.value[0] == 0
    assert after.value[-1] == 2


def test_index_entries_are_complete_after_an_unreadable_page() -> None:
    disks: list[SimDisk] = []

    async def work(store: MessageStore) -> object:
        put(store, keys=("first",))
        await settle(store)
        fault = LaterFault(operation="read", path=f"{ROOT}/index/*", skip=3, times=2)
        disks[0].faults.append(fault)
        for number in range(20):
            put(store, keys=(f"a{number}", f"b{number}", f"c{number}"))
        await trio.sleep(5)
        await store.dispatched.wait_for(store.max_offset)
        await settle(store)
        counts = []
        for number in range(20):
            for letter in "abc":
                result = await store.query("T", f"{letter}{number}", 10, 0, 1 << 60)
                counts.append(len(result.records))
        return fault.fired, counts, store._parts.index.files[0].next_entry

    config = settings(index_slots=20_000, index_entries=100)
    fired, counts, next_entry = session(work, config=config, prepare=disks.append).value
    assert fired == 2
    assert counts == [1] * 60
    assert next_entry == 62


@pytest.mark.parametrize("path", [QUEUES, f"{ROOT}/index/*"])
def test_failed_fsync_of_queues_is_not_retried(path: str) -> None:
    """Thinly provisioned disks say ENOSPC only now; what was to be written may be gone."""
    disks: list[SimDisk] = []

    async def work(store: MessageStore) -> None:
        put(store, keys=("k",))
        await store.dispatched.wait_for(store.max_offset)
        disks[0].faults.append(
            SimFault(operation="sync", path=path, effect="error_clean", error=errno.ENOSPC)
        )
        with pytest.raises(StoreFailed):
            await settle(store)

    with pytest.RaisesGroup(StoreFailed, flatten_subgroups=True):
        session(work, prepare=disks.append)


@pytest.mark.parametrize("skip", range(3))
def test_index_file_written_in_parts_is_complete_when_stopped(skip: int) -> None:
    disks: list[SimDisk] = []

    async def work(store: MessageStore) -> None:
        put(store, keys=("k",))
        await store.dispatched.wait_for(store.max_offset)
        disks[0].faults.append(
            LaterFault(operation="write", path=f"{ROOT}/index/*", error=errno.ENOSPC, skip=skip)
        )
        assert not await store._checkpointer.raise_mark()
        await store.close()

    async def look(store: MessageStore) -> object:
        assert store.recovery.was_clean
        put(store, keys=("l",))
        await settle(store)
        return [len((await store.query("T", key, 9, 0, 1 << 60)).records) for key in "kl"]

    image = session(work, prepare=disks.append).image
    assert session(look, image=image).value == [1, 1]


def test_kill_during_an_undone_run_leaves_no_hole() -> None:
    """The run goes over three segments, and its last write fails."""
    disks: list[SimDisk] = []

    async def work(store: MessageStore) -> tuple[int, int]:
        put(store, body=b"before")
        await settle(store)
        third = f"{ROOT}/commitlog/{2 * store.log.segment_size:020d}"
        disks[-1].faults.append(SimFault(operation="write", path=third))
        run = store.begin()
        for number in range(6):
            run.add(
                "T", 0, bytes([number + 65]) * 1800, b"", flag=0, sys_flag=0, born_ms=1,
                born_host=HOST,
            )  # fmt: skip
        assert len(run.chunks) == 3
        begin = disks[-1].events
        with pytest.raises(PutFailed):
            store.commit(run)
        return begin, disks[-1].events

    async def count(store: MessageStore) -> int:
        return len(pull(store))

    begin, end = session(work, prepare=disks.append).value
    for event in range(begin + 1, end + 1):
        crashed = session(work, prepare=disks.append, crash_at=event)
        assert 1 <= session(count, image=crashed.image).value <= 5


def test_waiter_does_not_retry_a_failed_fsync() -> None:
    """The next one would succeed, and promise what this one lost."""
    failure = Failure()
    with Simulation() as simulation:

        async def main(world: World) -> None:
            pool = FilePool(world, failure)
            pool.create("/d/f", 100, staging="/d", allocate=False)
            failure.set(StoreFailed("lost"))
            for sync in (pool.sync_names, partial(pool.sync, "/d/f")):
                with pytest.raises(StoreFailed, match="lost"):
                    await sync()

        process = simulation.start("node", main)
        simulation.run(1)
        process.value()


def test_failing_file_of_a_batch_sync_is_named() -> None:
    with Simulation() as simulation:

        async def main(world: World) -> None:
            pool = FilePool(world, Failure())
            rows = [SegmentRow(world, pool, f"/d/{name}", 100, staging="/d/new") for name in "abc"]
            for row in rows:
                row.create(0)
                row.write(0, b"data")
            assert isinstance(world.disk, SimDisk)
            world.disk.faults.append(SimFault(operation="sync", path="/d/b/*"))
            with pytest.raises(StoreFailed, match=rf"/d/b/{0:020d} failed: Input/output error"):
                await sync_rows(pool, rows)
            assert [list(row.dirty) for row in rows] == [[0]] * 3

        process = simulation.start("node", main)
        simulation.run(1)
        process.value()


def test_file_stays_open_while_read_and_after_the_pool_closed() -> None:
    """The newest was the only one that could be closed, so that it was; and the end of a node
    closed what its scrub was reading (seed 900940)."""
    with Simulation() as simulation:

        async def main(world: World) -> None:
            world.process.descriptors = 2
            pool = FilePool(world, Failure())
            paths = [f"/d/{number}" for number in range(12)]
            for path in paths:
                pool.create(path, 100, staging="/d", allocate=False)
            files = [pool.pin(path) for path in paths[:-1]]
            assert pool.get(paths[-1]).size() == 100
            pool.close()
            assert [file.size() for file in files] == [100] * 11
            for path in paths[:-1]:
                pool.unpin(path)
            for file in files:
                with pytest.raises(ValueError, match="is closed"):
                    file.size()

        process = simulation.start("node", main)
        simulation.run(1)
        process.value()


def test_open_files_are_checked_in_turn() -> None:
    """All at once, they stopped the loop for 20 ms, four times a second."""
    with Simulation() as simulation:

        async def main(world: World) -> None:
            pool = FilePool(world, Failure())
            paths = [f"/d/{number}" for number in range(2 * LOOKED_MAX + 1)]
            for path in paths:
                pool.create(path, 100, staging="/d", allocate=False)
                pool.get(path)
            for removed in (paths[0], paths[LOOKED_MAX], paths[-1]):
                assert [pool.lost_name() for _ in range(3)] == [None] * 3
                world.disk.unlink(removed)
                assert removed in [pool.lost_name() for _ in range(3)]
                pool.create(removed, 100, staging="/d", allocate=False)
                pool.remove(removed)

        process = simulation.start("node", main)
        simulation.run(1)
        process.value()


def test_task_after_a_failed_fsync_appends_no_master_bytes() -> None:
    """The log of a slave took what its connection had in hand (seed 1321183)."""
    disks: list[SimDisk] = []
    ends: list[int] = []

    async def write(store: MessageStore) -> None:
        put(store)
        await store.flushed.wait_for(store.max_offset)

    log = session(write, config=settings(sync_flush=True)).image.contents(
        f"{ROOT}/commitlog/{0:020d}"
    )

    async def follow(store: MessageStore) -> None:
        store.log.append_raw(0, log[:100])
        ends.append(store.max_offset)
        disks[0].faults.append(SimFault(operation="sync", effect="error_clean", path=LOG))
        with pytest.raises(StoreFailed):
            await store._flusher.flush()
        with pytest.raises(StoreFailed, match="check the disk"):
            store.log.append_raw(100, log[100:200])
        ends.append(store.max_offset)

    with pytest.RaisesGroup(StoreFailed, flatten_subgroups=True):
        session(follow, prepare=disks.append, config=settings(is_slave=True))
    assert ends == [100, 100]


def test_task_after_a_failed_fsync_stores_nothing() -> None:
    """A master took what somebody had in hand: a delayed message that was read meanwhile."""
    disks: list[SimDisk] = []
    ends: list[object] = []

    def look(store: MessageStore) -> None:
        ends.append((store.max_offset, store.queue_max("T", 0, committed=False)))

    async def work(store: MessageStore) -> None:
        put(store)
        look(store)
        disks[0].faults.append(SimFault(operation="sync", effect="error_clean", path=LOG))
        with pytest.raises(StoreFailed):
            await store._flusher.flush()
        with pytest.raises(PutFailed, match=r"fsync of .* failed: .*check the disk") as refused:
            put(store)
        assert refused.value.status is PutStatus.SERVICE_NOT_AVAILABLE
        with pytest.raises(StoreFailed, match="check the disk"):
            await store.epochs.begin_epoch(2, 1)
        look(store)

    with pytest.RaisesGroup(StoreFailed, flatten_subgroups=True):
        session(work, prepare=disks.append, config=settings(flush_interval_ms=10**6))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("path", [LOG, QUEUES])
@pytest.mark.parametrize("operation", ["delete", "learn", "cut"])
def test_any_failed_fsync_fails_the_store(path: str, operation: str) -> None:
    """A deletion was refused, and the next fsync promised what was lost (seed 856158)."""
    disks: list[SimDisk] = []

    async def work(store: MessageStore) -> object:
        await put_some(store)
        end = store.max_offset
        put(store, topic="Other")
        put(store)
        disks[0].faults.append(SimFault(operation="sync", effect="error_clean", path=path))
        removal = store.removal
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "delete": lambda: removal.delete_topic("T"),
            "learn": lambda: removal.learn_deletions({"T": store.dispatched.value}),
            "cut": lambda: removal.cut(end),
        }
        with pytest.raises(StoreFailed, match=rf"fsync of {path[:-2]}/.* failed: .*check the disk"):
            await calls[operation]()
        return store.trouble()

    failed = pytest.RaisesExc(StoreFailed, match="check the disk")
    with pytest.RaisesGroup(failed, flatten_subgroups=True):
        session(work, prepare=disks.append, config=settings(flush_interval_ms=10**6))


def test_log_waits_only_for_its_own_names() -> None:
    """With slow disks on both slaves a send that made queues waited for the names of these on top,
    longer than its second (disk-sick, seed 11)."""
    waited: list[float] = []
    with Simulation() as simulation:
        simulation.host("node").sync_seconds = (0.1, 0.1)

        async def main(world: World) -> None:
            pool = FilePool(world, Failure())

            def make(path: str) -> None:
                pool.create(path, 100, staging="/d", allocate=False)

            async def log_and_wait(path: str) -> None:
                make(path)
                began = trio.current_time()
                await pool.sync_names(to="/d/log")
                waited.append(trio.current_time() - began)

            make("/d/log/0")
            for number in range(20):
                make(f"/d/queues/{number}/0")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pool.sync_names)
                await trio.sleep(0.05)  # within the sync of the first one
                nursery.start_soon(log_and_wait, "/d/log/1")
            assert list(pool.new_names) == []
            async with trio.open_nursery() as nursery:
                make("/d/log/2")
                nursery.start_soon(pool.sync_names)
                await trio.sleep(0.05)
                make("/d/log/3")  # within the sync of its directory
            assert list(pool.new_names) == ["/d/log"]

        process = simulation.start("node", main)
        simulation.run(10)
        process.value()
    assert waited[0] < 0.5, "20 directories of queues are not on its way"


def test_followed_master_is_recorded_while_the_mark_rises() -> None:
    """A slave acknowledges nothing before that, and a rise takes a sync for each segment, queue and
    index file: sends waited for it longer than their three seconds (seed 1511007)."""
    disks: list[SimDisk] = []

    async def note_meanwhile(store: MessageStore) -> tuple[float, float]:
        for queue_id in range(20):
            put(store, queue_id=queue_id)
        await store.dispatched.wait_for(store.max_offset)
        disks[0].sync_seconds = (0.1, 0.1)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store._checkpointer.raise_mark)
            await trio.sleep(0.05)  # within its first sync
            await store.note("master:10912")
            noted_s = trio.current_time()
            assert store._parts.marks.mark.offset == 0
        assert store._parts.marks.mark.offset == store.max_offset
        return noted_s - began, trio.current_time() - began

    async def followed(store: MessageStore) -> str | None:
        return store.followed

    run = session(note_meanwhile, prepare=disks.append)
    noted_s, raised_s = run.value
    assert noted_s < 0.5, "the syncs of the rise are not on its way"
    assert raised_s > 1.5
    assert session(followed, image=run.image).value == "master:10912"


@pytest.mark.parametrize(
    ("operation", "path"),
    [("sync", f"{ROOT}/rocketbed.tmp/rocketbed.ckpt.new"), ("sync_dir", ROOT)],
)
def test_failed_sync_of_the_followed_master_stops_the_store(operation: str, path: str) -> None:
    """It was taken for a connection that broke: nothing of it may be believed afterwards."""
    disks: list[SimDisk] = []

    async def note(store: MessageStore) -> None:
        disks[0].faults.append(SimFault(operation=operation, path=path))
        with pytest.raises(StoreFailed, match="mark of /store cannot be written: Input/output"):
            await store.note("master:10912")

    with pytest.RaisesGroup(StoreFailed, flatten_subgroups=True):
        session(note, prepare=disks.append)


def test_recording_the_followed_master_is_retried_without_room() -> None:
    disks: list[SimDisk] = []

    async def note(store: MessageStore) -> str | None:
        disks[0].faults.append(
            SimFault(operation="write", path=f"{ROOT}/rocketbed.tmp/*", error=errno.ENOSPC)
        )
        with pytest.raises(OSError, match="No space left"):
            await store.note("master:10912")
        assert store.followed == ""
        await store.note("master:10912")
        return store.followed

    assert session(note, prepare=disks.append).value == "master:10912"


def test_record_of_a_cancelled_write_waits_for_its_sync() -> None:
    """A connection broke before the new mark's name was on disk: a power loss may leave either."""
    disks: list[SimDisk] = []

    async def work(store: MessageStore) -> list[str | None]:
        await store.note("a:10912")
        followed = [store.followed]
        disks[0].sync_seconds = (0.1, 0.1)
        with trio.move_on_after(0.05):  # within the file's sync; that of its name is not begun
            await store.note("b:10912")
        followed.append(store.followed)
        await store.note("a:10912")
        return [*followed, store.followed]

    assert session(work, prepare=disks.append).value == ["a:10912", None, "a:10912"]


def test_followed_master_is_known_during_an_equal_write() -> None:
    """A slave whose log had parted meanwhile was refused, as one that has lost its mark."""
    disks: list[SimDisk] = []

    async def work(store: MessageStore) -> list[str | None]:
        await store.note("a:10912")
        put(store)
        await store.dispatched.wait_for(store.max_offset)
        disks[0].sync_seconds = (0.1, 0.1)
        followed: list[str | None] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store._checkpointer.raise_mark)
            while store._parts.marks.mark.offset < store.max_offset:
                followed.append(store.followed)
                await trio.sleep(0.02)
        assert len(followed) > 20, "all syncs of a rise"
        return followed

    assert {*session(work, prepare=disks.append).value} == {"a:10912"}
