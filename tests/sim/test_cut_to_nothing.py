"""A queue whose first messages have expired, and whose last ones are cut off, goes on where it
was: a replica that was not cut would take a lower number for a second message of it (T2)."""

import pytest
import trio

from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.node.store.consumequeue import ConsumeQueue
from rocketbed.node.store.store import MessageStore
from tests.support.sim.store_session import put, session, settings, settle

PER_FILE = 10
"""Units in a queue file by `settings`."""
CONFIG = settings(reserved_ms=1000)


async def expire_and_cut(store: MessageStore) -> int:
    """The queue's first file is removed, and all that the next one has is cut off."""
    for _ in range(PER_FILE):
        put(store, body=bytes(700))
    await settle(store)
    await trio.sleep(5)
    put(store, "another", body=bytes(3000))
    cut_end = store.max_offset
    first = put(store)[1]
    await settle(store)
    store.delete_expired()
    await trio.sleep(12)
    await store._retention.round()
    queue = store._parts.queues.find("T", 0)
    assert queue is not None
    assert first == queue.first_unit == PER_FILE
    await store.removal.cut(cut_end)
    return first


@pytest.mark.parametrize("how", ["at once", "after a stop", "after a kill"])
def test_queue_offsets_continue_after_an_empty_log(how: str) -> None:
    async def work(store: MessageStore) -> tuple[int, int]:
        first = await expire_and_cut(store)
        if how == "at once":
            return first, put(store)[1]
        if how == "after a stop":
            await store.close()
        return first, -1

    run = session(work, config=CONFIG)
    first, number = run.value
    if number < 0:
        number = next_number(run.image)
    assert number == first


def next_number(image: DiskImage) -> int:
    async def work(store: MessageStore) -> int:
        assert not store.recovery.took_over, store.recovery.reason
        return put(store)[1]

    number: int = session(work, config=CONFIG, image=image).value
    return number


def test_records_with_lower_and_higher_queue_offsets() -> None:
    """Behind a file that is empty there is no unit to compare them with: dispatch ended there."""

    async def work(store: MessageStore) -> tuple[list[str], int]:
        first = await expire_and_cut(store)
        queue = store._parts.queues.find("T", 0)
        assert isinstance(queue, ConsumeQueue)
        end = store.max_offset
        accepted = [queue.put(first - 1, end, 100, 0), queue.put(first + 2, end + 100, 100, 0)]
        return accepted, queue.end_unit - first

    (low, high), units = session(work, config=CONFIG).value
    assert "is taken, the next is 10" in low
    assert "queue offsets 10 to 11 have no record" in high
    assert units == 3
