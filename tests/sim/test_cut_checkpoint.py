"""After a cut RocketMQ's checkpoint speaks of nothing that was cut off."""

import trio

from rocketbed.node.store.store import MessageStore
from tests.support.sim.store_session import put, session, settings, settle

KEYS = 20


async def fill(store: MessageStore, first: int) -> None:
    """Fill one index file, at a later time."""
    await trio.sleep(1)
    for number in range(first, first + KEYS):
        put(store, keys=(f"k{number}",))
    await settle(store)


def test_index_time_falls_with_the_removed_files() -> None:
    async def work(store: MessageStore) -> tuple[int, int, int]:
        witnesses = store._parts.witnesses
        await fill(store, 0)
        cut_end = store.max_offset
        put(store, keys=("next",))
        await fill(store, KEYS)
        put(store, keys=("next",))
        await settle(store)
        before = witnesses.load_checkpoint().index_ms
        await store.removal.cut(cut_end)
        put(store)
        await settle(store)
        after = witnesses.load_checkpoint()
        return before, after.index_ms, after.physic_ms

    config = settings(index_entries=KEYS + 1, mark_interval_ms=10_000_000)
    before, after, last = session(work, config=config).value
    assert before > 0
    assert after < before
    assert after <= last
