"""A batch queue: its units, records without a unit, and one unit that is damaged."""

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.node.store.batch_check import BatchCheck
from rocketbed.node.store.batch_queue import BATCH_UNIT, MESSAGES_MAX, BatchConsumeQueue
from rocketbed.node.store.damage import Damage, DamagedRanges
from rocketbed.node.store.entry import Entry
from rocketbed.node.store.errors import CorruptRecord
from rocketbed.node.store.picker import GetResult, pick_batches
from rocketbed.node.store.segments import SegmentRow
from rocketbed.node.store.status import GetStatus
from rocketbed.node.store.store import MessageStore
from rocketbed.world.api import World
from tests.support.sim.small_store import BATCH_TOPIC, ROOT, Topics, small_config

SIZE = BATCH_UNIT.size
LOW = 7
"""Start of the log: a unit of zeros names no record in it."""
OFFSET, LENGTH, QUEUE_OFFSET, COUNT = 0, 1, 4, 5
"""Fields of a unit."""
BAD_FIELDS = (
    {OFFSET: -1}, {LENGTH: 0}, {LENGTH: -1}, {QUEUE_OFFSET: -1}, {COUNT: 0}, {COUNT: -1},
    {OFFSET: 0, LENGTH: 0, QUEUE_OFFSET: 0, COUNT: 0},
)  # fmt: skip


def end_of(entry: Entry) -> int:
    """Return the queue offset after the last message."""
    return entry.queue_offset + abs(entry.units)


class Filled:
    """A queue with drawn records: those with a unit, and those outside."""

    def __init__(self, world: World, store: MessageStore, random: Random) -> None:
        self.random = random
        row = SegmentRow(
            world, store._parts.pool, f"{ROOT}/C/0", SIZE * random.randrange(2, 5),
            staging=f"{ROOT}/t",
        )  # fmt: skip
        self.queue = BatchConsumeQueue(BATCH_TOPIC, 0, row)
        self.units, self.outside = list[Entry](), list[Entry]()
        self._refused: Entry | None = None
        self._first_outside = -1
        at, base = LOW, random.choice((0, 0, 1, 2, 5))
        for _ in range(random.randrange(2, 16)):
            count, draw = random.choice((1, 2, 3, MESSAGES_MAX)), random.random()
            entry = Entry(BATCH_TOPIC, 0, base, at, random.randrange(90, 200), 9, at, (), -count)
            at += entry.size + random.choice((0, 0, 100))
            if self.units and draw < 0.2:
                entry = entry._replace(queue_offset=self.end - random.randrange(1, 3))
            elif draw < 0.3:
                entry = entry._replace(units=-MESSAGES_MAX - 1)
            self._put(entry)
            base = max(base, self.end) + (random.choice((0, 0, 2)) if self.units else 0)
            if random.random() < 0.3:
                self.queue.write_pending()
        if not self.units:
            self._put(Entry(BATCH_TOPIC, 0, base, at, 99, 9, at, (), 1))
        self.queue.write_pending()
        assert self.queue.outside == len(self.outside)
        assert self.queue.first_outside == self._first_outside

    @property
    def end(self) -> int:
        return end_of(self.units[-1]) if self.units else 0

    def _put(self, entry: Entry) -> None:
        """Compare what the queue reports of the record, and its bounds."""
        problem, report = self.queue.put_batch(entry), ""
        if -entry.units > MESSAGES_MAX:
            report = f"holds {MESSAGES_MAX + 1} m"
            self._leave_outside(entry)
        else:
            is_first = not self.units
            report = self._settle(entry.queue_offset)
            self._refused = None
            placed = [unit.physical_offset for unit in self.units]
            self.outside = [one for one in self.outside if one.physical_offset not in placed]
            if entry.queue_offset < self.end:
                report, self._refused = f"is {self.end}", entry
                self._leave_outside(entry)
            else:
                if entry.queue_offset > self.end and not is_first:
                    last = entry.queue_offset - 1
                    report = f"queue offsets {self.end} to {last} have no record"
                self.units.append(entry)
        assert report in problem if report else not problem
        low = self.units[0].queue_offset if self.units else 0
        assert (self.queue.min_offset, self.queue.max_offset) == (low, self.end)

    def _leave_outside(self, entry: Entry) -> None:
        if not self.outside:
            self._first_outside = entry.physical_offset
        self.outside.append(entry)

    def _settle(self, base: int) -> str:
        """Correct the last record where the next offset disproves it; return the report."""
        refused = self._refused
        if refused is not None and self.end + abs(refused.units) == base:
            report = f"its neighbours say {self.end}"
            self.units.append(refused._replace(queue_offset=self.end))
            return report
        if base >= self.end:
            return ""
        last = self.units[-1]
        due = end_of(self.units[-2]) if len(self.units) > 1 else 0
        if due < last.queue_offset and due + abs(last.units) == base:
            self.units[-1] = last._replace(queue_offset=due)
            return f"its neighbours say {due}"
        if refused and last.queue_offset < refused.queue_offset and end_of(refused) == base:
            count = refused.queue_offset - last.queue_offset
            self.units[-1:] = [last._replace(units=-count), refused]
            return f"its neighbours say {count}"
        return ""

    def unit(self, number: int) -> list[int]:
        return [*(self.queue.unit_at(number) or ())]

    def rewrite(self, number: int, changes: dict[int, int]) -> None:
        """Change fields of a unit on disk."""
        unit = self.unit(number)
        for field, value in changes.items():
            unit[field] = value
        self.queue.row.write(number * SIZE, BATCH_UNIT.pack(*unit))


@pytest.mark.parametrize("seed", range(90))
def test_finds_units_beside_a_damaged_one(seed: int) -> None:
    run_solo(check_queue, Random(seed))


async def check_queue(world: World, random: Random) -> None:
    store = await MessageStore.open(world, small_config(), Topics())
    filled = Filled(world, store, random)
    queue, units = filled.queue, filled.units
    check_lookups(filled, None)
    damaged = random.randrange(len(units)) if random.random() < 0.8 else -1
    if damaged >= 0:
        filled.rewrite(damaged, random.choice(BAD_FIELDS))
        check_lookups(filled, damaged)
    else:
        check_short_end(filled)
    check_records(filled, damaged)
    end = random.randrange(len(units) + 1)
    queue.cut_units(end)
    if damaged < 0 or damaged != end - 1:
        assert queue.max_offset == (end_of(units[end - 1]) if end else 0)
    queue.destroy()
    assert queue.max_offset == queue.min_offset == 0
    store._parts.pool.close()


def check_lookups(filled: Filled, damaged: int | None) -> None:
    """Search, trust, pulls and the first offset; near the damaged unit both sides are possible."""
    queue, units = filled.queue, filled.units
    for number in range(len(units)):
        assert (queue.trusted_unit(number) is not None) == (number != damaged)
    ends = sorted({unit.queue_offset for unit in units} | {end_of(unit) for unit in units})
    for offset in [at + more for at in ends for more in (-1, 0, 1) if 0 <= at + more < ends[-1]]:
        number = next(number for number, unit in enumerate(units) if end_of(unit) > offset)
        near = damaged is not None and damaged <= number <= damaged + 1
        actual = queue.find(offset)
        assert actual in ({damaged, (damaged or 0) + 1} if near else {number})
        check_pull(filled, damaged, offset, min(actual, len(units) - 1))
    for entry in units:
        for low in (entry.physical_offset, entry.physical_offset + 1):
            queue.correct_min(low)
            left = [number for number, unit in enumerate(units) if unit.physical_offset >= low]
            at = left[0] if left else len(units)
            expected = {units[at].queue_offset if left else queue.max_offset}
            if damaged is not None and damaged <= at <= damaged + 1:
                expected -= {units[at].queue_offset} if at == damaged else set()
                expected |= {end_of(units[damaged - 1]) if damaged else 0}
            assert queue.min_offset in expected


def pull(
    queue: BatchConsumeQueue, offset: int, most: int, *, room: int, low: int, ranges: DamagedRanges
) -> tuple[GetResult, int | None]:
    """Return the result, and the offset of a corrupt record."""
    result = GetResult(
        status=GetStatus.NO_MATCHED_MESSAGE, next_offset=offset, min_offset=0, max_offset=0
    )
    parts: Any = SimpleNamespace(
        config=SimpleNamespace(transfer_bytes_memory=room),
        log=SimpleNamespace(min_offset=low), damaged=ranges,
    )  # fmt: skip
    try:
        pick_batches(parts, queue, result, most)
    except CorruptRecord as exc:
        return result, exc.offset
    return result, None


def check_pull(filled: Filled, damaged: int | None, offset: int, begin: int) -> None:
    """Whole batches up to the limits, and to the first damage."""
    units, random = filled.units, filled.random
    ranges, bad = DamagedRanges(), -1
    low = random.choice((0, 0, units[-1].physical_offset, random.choice(units).physical_offset))
    if random.random() < 0.3:
        bad = random.randrange(len(units))
        start = units[bad].physical_offset + random.choice((0, units[bad].size - 1))
        ranges.add(Damage(start, start + 1, "bad"))
    room = random.choice((1000, sum(u.size for u in units[begin : begin + random.randrange(1, 4)])))
    most = random.choice((1, 3, 9, 1 << 20))
    picked, after, count, refused, expired = list[tuple[int, int]](), offset, 0, False, False
    for number, unit in enumerate(units[begin:], begin):
        if count >= most:
            break
        is_hidden = number - 1 == damaged and after == offset < unit.queue_offset
        held = sum(size for _, size in picked)
        if number in (damaged, bad) or is_hidden:
            refused = not picked and not (number == bad != damaged and held)
            break
        if picked and held + unit.size > room:
            break
        after = end_of(unit)
        if unit.physical_offset < low:
            expired = True
            continue
        picked.append((unit.physical_offset, unit.size))
        count += abs(unit.units)
    result, corrupt = pull(filled.queue, offset, most, room=room, low=low, ranges=ranges)
    assert (corrupt is not None) == refused
    assert (result.ranges, result.next_offset) == (picked, after)
    status = GetStatus.MESSAGE_WAS_REMOVING if expired else GetStatus.NO_MATCHED_MESSAGE
    assert result.status == (GetStatus.FOUND if picked else status)


def check_short_end(filled: Filled) -> None:
    """Treat a last unit that ends before the queue's end as damaged."""
    number, queue = len(filled.units) - 1, filled.queue
    unit = filled.unit(number)
    if unit[COUNT] == 1:
        return
    filled.rewrite(number, {COUNT: unit[COUNT] - 1})
    for back, is_given in ((2, True), (1, False)):
        offset = queue.max_offset - back
        result, corrupt = pull(queue, offset, 1, room=1000, low=0, ranges=DamagedRanges())
        assert bool(result.ranges) == is_given
        assert corrupt == (None if is_given else unit[OFFSET])
    filled.rewrite(number, {COUNT: unit[COUNT]})


def check_records(filled: Filled, damaged: int) -> None:
    """Match each record of the log to its unit."""
    units, random, queue = filled.units, filled.random, filled.queue
    records = {entry.physical_offset: entry for entry in (*units, *filled.outside)}
    expired = random.randrange(len(units)) if random.random() < 0.3 else 0
    expired = expired if expired != damaged + 1 and not 0 <= damaged < expired else 0
    low, ranges, bad, foreign = units[expired].physical_offset, DamagedRanges(), -1, -1
    if random.random() < 0.4 and (number := random.randrange(expired, len(units))) != damaged:
        bad = number
        ranges.add(Damage(units[bad].physical_offset, units[bad].physical_offset + 9, "bad"))
    if damaged < 0 and bad < 0 and len(units) > expired + 1:
        # A unit that points into a record, or to one of another queue.
        damaged = random.randrange(expired + 1, len(units))
        foreign = units[damaged].physical_offset + random.choice((1, 89))
        filled.rewrite(damaged, {OFFSET: foreign})
        entry = units[damaged]._replace(physical_offset=foreign)
        records[foreign] = entry._replace(**random.choice(({"topic": "X"}, {"queue_id": 1})))

    def record_at(offset: int) -> SimpleNamespace:
        entry = records.get(offset)
        return SimpleNamespace(entries=[entry] if entry and offset >= low else [])

    log: Any = SimpleNamespace(min_offset=low)
    cursor: Any = SimpleNamespace(record_at=record_at)
    check = BatchCheck(log, ranges, cursor)
    for at, entry in sorted(records.items()):
        expected = units.index(entry) if entry in units else None
        if at < low or expected == bad or at == foreign:
            continue
        after = [unit.physical_offset > at for unit in units]
        if expected is None and True in after and after.index(True) == damaged:
            continue  # the damaged unit may be the record's
        assert check.find(queue, entry) == expected
