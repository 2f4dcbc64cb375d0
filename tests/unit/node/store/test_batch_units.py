"""Trust in single units of a batch queue, and a topic that began anew."""

from random import Random

import pytest

from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.node.store.batch_queue import BATCH_UNIT, BatchConsumeQueue
from rocketbed.node.store.entry import Entry
from rocketbed.node.store.segments import SegmentRow
from rocketbed.node.store.store import MessageStore
from rocketbed.world.api import World
from tests.support.sim.small_store import BATCH_TOPIC, ROOT, Topics, small_config

SIZE = BATCH_UNIT.size
OFFSET, LENGTH, QUEUE_OFFSET, COUNT = 0, 1, 4, 5
"""Fields of a unit."""


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("topic", ["trust", "beginning"])
def test_units_of_a_queue(topic: str, seed: int) -> None:
    async def check(world: World) -> None:
        store, random = await MessageStore.open(world, small_config(), Topics()), Random(seed)
        row = SegmentRow(
            world, store._parts.pool, f"{ROOT}/C/0", SIZE * random.randrange(2, 5),
            staging=f"{ROOT}/t",
        )  # fmt: skip
        queue = BatchConsumeQueue(BATCH_TOPIC, 0, row)
        (check_trust if topic == "trust" else check_new_beginning)(random, queue)
        store._parts.pool.close()

    run_solo(check)


def check_trust(random: Random, queue: BatchConsumeQueue) -> None:
    """Trust a unit that can name a record and lies between its trusted neighbours."""
    first, count = queue.first_unit, random.randrange(1, 6)
    rows, at, base = list[list[int]](), 0, 0
    for _ in range(count):
        rows.append([at, 10, 0, 0, base, random.choice((1, 2)), -1, 0])
        at, base = at + 10, base + rows[-1][COUNT]
        if random.random() < 0.3:
            rows[-1][random.choice((0, 1, 4, 5))] += random.choice((-11, -1, 1))
        queue.put_batch(Entry(BATCH_TOPIC, 0, queue.max_offset, 0, 1, 0, 0, (), 1))
    queue.write_pending()
    for number, row in enumerate(rows, first):
        queue.row.write(number * SIZE, BATCH_UNIT.pack(*row))
    queue.max_offset = base - random.randrange(2)
    good = [row[OFFSET] >= 0 < row[LENGTH] and row[QUEUE_OFFSET] >= 0 < row[COUNT] for row in rows]

    def fits(left: int, right: int) -> bool:
        if left < 0 or right == count or not (good[left] and good[right]):
            return True
        before, after = rows[left], rows[right]
        is_after = before[OFFSET] + before[LENGTH] <= after[OFFSET]
        return is_after and before[QUEUE_OFFSET] + before[COUNT] <= after[QUEUE_OFFSET]

    for number, row in enumerate(rows):
        is_inside = row[QUEUE_OFFSET] + row[COUNT] <= queue.max_offset
        expected = good[number] and is_inside and fits(number - 1, number)
        for ignores in (True, False):
            actual = queue.trusted_unit(first + number, ignore_next=ignores) is not None
            assert actual == (expected and (ignores or fits(number, number + 1)))
    for end in range(count + 1):
        assert queue.offset_after(first + end) == (sum(rows[end - 1][4:6]) if end else 0)
    queue.set_end(first + count)
    assert queue.max_offset == sum(rows[-1][4:6])


def check_new_beginning(random: Random, queue: BatchConsumeQueue) -> None:
    """Offsets 0 and 1 outside of units show where a topic began anew."""
    at, zero, anew = random.choice((0, 0, 70)), -1, -1
    first = at
    for number in range(random.randrange(1, 9)):
        offset = random.choice((0, 0, 1, 1, 2))
        if offset == 1 and zero >= 0 and anew < 0:
            anew = zero
        zero = -1 if offset else at
        queue.keep_outside(offset, at)
        assert (queue.outside, queue.first_outside, queue.anew_at) == (number + 1, first, anew)
        at += random.randrange(90, 200)
