"""Units of many queues wait in memory for a while: they are read there, and nothing is lost."""

import errno

import pytest
import trio
import trio.lowlevel

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.faults import SimFault
from rocketbed.node.store.status import GetStatus
from rocketbed.node.store.store import MessageStore
from tests.support.sim.store_script import derived
from tests.support.sim.store_session import ROOT, edited, pull, put, session, settings, settle

QUEUES = 30
MESSAGES = 3
CONFIG = settings(segment_size=65_536)
Bodies = dict[int, list[bytes]]

EXPECTED: Bodies = {
    queue: [b"%d of %d" % (number, queue) for number in range(MESSAGES)] for queue in range(QUEUES)
}


def put_all(store: MessageStore) -> None:
    """Some messages to each queue, all in one round of dispatch."""
    for number in range(MESSAGES):
        for queue in range(QUEUES):
            put(store, "Many", queue, body=EXPECTED[queue][number])


def read(store: MessageStore) -> Bodies:
    return {
        queue: [message.body for message in pull(store, "Many", queue)] for queue in range(QUEUES)
    }


def in_files(disk: SimDisk) -> int:
    """Queues that have a file with anything in it."""
    paths = [f"{ROOT}/consumequeue/Many/{queue}/{0:020d}" for queue in range(QUEUES)]
    return sum(1 for path in paths if disk.exists(path) and any(disk.contents(path)))


def test_units_are_readable_before_they_are_written() -> None:
    disks: list[SimDisk] = []

    async def work(store: MessageStore) -> object:
        put_all(store)
        assert store._dispatcher.step() == QUEUES * MESSAGES
        early, units_read, bounds = in_files(disks[0]), read(store), store.queue_max("Many", 29)
        times = [await store.offset_by_time("Many", 29, at, upper=False) for at in (0, 1 << 60)]
        after_end = store.get_messages("Many", 29, MESSAGES, 32).status
        await trio.sleep(0.1)
        return early, units_read, bounds, times, after_end, in_files(disks[0]), read(store)

    early, units_read, bounds, times, after_end, late, read_again = session(
        work, config=CONFIG, prepare=disks.append
    ).value
    assert 0 < early < QUEUES
    assert units_read == read_again == EXPECTED
    assert (bounds, times, after_end) == (MESSAGES, [0, MESSAGES], GetStatus.OFFSET_OVERFLOW_ONE)
    assert late == QUEUES


@pytest.mark.slow
@pytest.mark.parametrize("is_full", [False, True])
def test_files_are_made_a_few_at_a_time(is_full: bool) -> None:
    """To make one takes a hundred times as long as a write, and others run in the same loop."""
    disks: list[SimDisk] = []
    most = 0

    async def work(store: MessageStore) -> int:
        nonlocal most
        full = SimFault(operation="write", path=f"{ROOT}/*", error=errno.ENOSPC, times=None)
        put_many(store)
        store._dispatcher.step()
        if is_full:
            disks[0].faults.append(full)
            await trio.sleep(3)
            assert store._dispatcher.stuck
            disks[0].faults.remove(full)
        before = count = file_count(disks[0])
        with trio.move_on_after(3):
            while True:
                await trio.lowlevel.checkpoint()
                most, before = max(most, file_count(disks[0]) - before), file_count(disks[0])
        assert not store._dispatcher.stuck
        return before - count

    def put_many(store: MessageStore) -> None:
        for queue in range(10 * QUEUES):
            put(store, "Many", queue)

    def file_count(disk: SimDisk) -> int:
        return len(disk.listdir(f"{ROOT}/consumequeue/Many"))

    assert session(work, config=CONFIG, prepare=disks.append).value > 8 * QUEUES
    assert 0 < most <= 40


def test_files_equal_those_of_single_messages() -> None:
    async def at_once(store: MessageStore) -> None:
        put_all(store)
        await settle(store)

    async def one_by_one(store: MessageStore) -> None:
        for number in range(MESSAGES):
            for queue in range(QUEUES):
                put(store, "Many", queue, body=EXPECTED[queue][number])
                store._dispatcher.step()
        await settle(store)

    images = [session(work, config=CONFIG).image for work in (at_once, one_by_one)]
    assert derived(images[0]) == derived(images[1])


@pytest.mark.parametrize("kind", ["kill", "power"])
def test_a_crash_at_any_moment_loses_none(kind: str) -> None:
    acknowledged: list[bool] = []

    async def fill(store: MessageStore) -> None:
        put_all(store)
        await store._flusher.flush()
        acknowledged.append(True)
        store._dispatcher.step()
        await trio.sleep(0.1)
        await store._checkpointer.raise_mark()

    async def look(store: MessageStore) -> Bodies:
        return read(store)

    events = session(fill, config=CONFIG).events
    assert events > 5 * QUEUES
    for event in range(1, events + 1, 11):
        acknowledged.clear()
        image = session(fill, config=CONFIG, crash_at=event, kind=kind).image
        units_read = session(look, config=CONFIG, image=image, boots=2).value
        if acknowledged:
            assert units_read == EXPECTED, event
        else:
            assert all(
                units_read[queue] == EXPECTED[queue][: len(units_read[queue])]
                for queue in units_read
            )


def test_a_full_disk_stops_dispatch_and_hides_nothing() -> None:
    disks: list[SimDisk] = []

    async def work(store: MessageStore) -> object:
        path = f"{ROOT}/consumequeue/Many/2*"
        full = SimFault(operation="write", path=path, error=errno.ENOSPC, times=None)
        disks[0].faults.append(full)
        put_all(store)
        store._dispatcher.step()
        await trio.sleep(3)
        stuck, refusal, units_read = store._dispatcher.stuck, store.refusal(), read(store)
        marked = await store._checkpointer.raise_mark()
        disks[0].faults.remove(full)
        await trio.sleep(3)
        state_after = store._dispatcher.stuck, store.refusal()
        raised = await store._checkpointer.raise_mark()
        return stuck, refusal, units_read, marked, state_after, raised, in_files(disks[0])

    run = session(work, config=CONFIG, prepare=disks.append)
    stuck, refusal, units_before, marked, state_later, raised, written = run.value
    assert "cannot be written" in stuck
    assert refusal is not None
    assert units_before == EXPECTED
    assert (marked, state_later, raised, written) == (False, ("", None), True, QUEUES)


def test_a_mark_holds_for_every_queue() -> None:
    """Units written a moment ago are synced once W is above them: a start rewrites nothing."""

    async def fill(store: MessageStore) -> None:
        put_all(store)
        store._dispatcher.step()
        await store._checkpointer.raise_mark()

    def cut(disk: SimDisk) -> None:
        disk.power_cut("strict")

    image = edited(session(fill, config=CONFIG).image, cut)

    async def look(store: MessageStore) -> tuple[int, Bodies]:
        return store.recovery.records, read(store)

    assert session(look, config=CONFIG, image=image, boots=2).value == (0, EXPECTED)
