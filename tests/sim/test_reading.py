"""Records of a pull, read from the page cache: neighbours, near and far ones come out alike."""

import random

import pytest

from rocketbed.node.store.reader import GAP_MAX, SPAN_MAX
from rocketbed.node.store.store import MessageStore
from tests.support.sim.store_session import put, session, settings, settle


@pytest.mark.parametrize("seed", range(6))
def test_pull_returns_the_bytes_of_the_log(seed: int) -> None:
    """Over several segments or reads, with gaps on both sides of what is read in one go."""
    drawn = random.Random(seed)
    queues = drawn.choice([1, 2, 5])

    async def work(store: MessageStore) -> None:
        placed: dict[int, list[int]] = {queue: [] for queue in range(queues)}
        for _ in range(120):
            queue = drawn.randrange(queues)
            size = drawn.choice([1, 100, 900, GAP_MAX - 200, GAP_MAX, 2 * GAP_MAX])
            placed[queue].append(put(store, queue_id=queue, body=b"x" * size)[0])
        await settle(store)
        assert store.max_offset > 2 * SPAN_MAX
        assert store.read_cached([]) == b""
        for queue, offsets in placed.items():
            at = 0
            while at < len(offsets):
                result = store.get_messages("T", queue, at, drawn.choice([1, 7, 32]))
                end = result.next_offset
                records = [await store.record_at(place) or b"" for place in offsets[at:end]]
                assert all(records)
                assert store.read_cached(result.ranges) == b"".join(records)
                assert await store.read(result.ranges) == store.read_cached(result.ranges)
                at = result.next_offset

    segment_size = drawn.choice([1 << 16, 4 * SPAN_MAX])
    session(work, config=settings(segment_size=segment_size, max_message_size=1 << 15))
