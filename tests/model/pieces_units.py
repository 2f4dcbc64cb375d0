"""A batch queue by itself: what each of its units is for, one of them spoilt or none."""

from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, Final

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
from tests.model.store import ROOT

TOPIC: Final = "C"
SIZE: Final = BATCH_UNIT.size
WRONG: Final = (((0, -1),), ((1, 0),), ((1, -1),), ((4, -1),), ((5, 0),), ((5, -1),))
BEGIN: Final = 7
"""Of the log: a spoilt unit of zeros names no record of it."""


def ask_batches(world: World, random: Random, store: MessageStore) -> None:
    disk: Any = world.disk
    for path in [one for one in disk.paths() if one.startswith(f"{ROOT}/C/")]:
        disk.unlink(path)
    row = SegmentRow(
        world, store._parts.pool, f"{ROOT}/C/0", SIZE * random.randrange(2, 5), staging=f"{ROOT}/t"
    )
    queue = BatchConsumeQueue(TOPIC, 0, row)
    units, outside = _filled(random, queue)
    _asked(random, queue, units, None)
    spoilt = random.randrange(len(units))
    if random.random() < 0.8:
        row.write(spoilt * SIZE, BATCH_UNIT.pack(*_spoilt(random, queue, spoilt)))
        _asked(random, queue, units, spoilt)
    else:
        spoilt = -1
        _short(queue, units)
    _compared(random, queue, units, outside, spoilt)
    end = random.randrange(len(units) + 1)
    queue.cut_units(end)
    if spoilt < 0 or spoilt != end - 1:
        want = _end(units[end - 1]) if end else 0
        assert queue.max_offset == want, f"units: cut at {end}, {queue.max_offset} for {want}"
    _trusted(random, queue)
    queue.destroy()
    assert queue.max_offset == queue.min_offset == 0, "units: something is left"
    _begin_anew(random, BatchConsumeQueue(TOPIC, 0, row))
    store._parts.pool.close()


def _filled(random: Random, queue: BatchConsumeQueue) -> tuple[list[Entry], list[Entry]]:
    """Records with a unit, and those that have none, since their offsets are taken. One whose
    offset the next record disproves has the offset that was due."""
    units, outside, at, base = list[Entry](), list[Entry](), BEGIN, random.choice((0, 0, 1, 2, 5))
    after, first, refused = 0, -1, None
    for _ in range(random.randrange(2, 16)):
        count, draw = random.choice((1, 2, 3, MESSAGES_MAX)), random.random()
        entry = Entry(TOPIC, 0, base, at, random.randrange(90, 200), 9, at, (), -count)
        at += entry.size + random.choice((0, 0, 100))
        if units and draw < 0.2:
            entry = entry._replace(queue_offset=after - random.randrange(1, 3))
        elif draw < 0.3:
            entry = entry._replace(units=-MESSAGES_MAX - 1)
        problem, says, is_new = queue.put_batch(entry), "", not units
        if -entry.units > MESSAGES_MAX:
            says = f"holds {MESSAGES_MAX + 1} m"
            first = first if outside else entry.physical_offset
            outside.append(entry)
        else:
            says, settled = _settled(units, refused, entry.queue_offset)
            units, refused = settled or units, None
            placed = [one.physical_offset for one in units]
            outside = [one for one in outside if one.physical_offset not in placed]
            after = _end(units[-1]) if units else 0
            if entry.queue_offset < after:
                says, refused = f"is {after}", entry
                first = first if outside else entry.physical_offset
                outside.append(entry)
            else:
                if entry.queue_offset > after and not is_new:
                    says = f"queue offsets {after} to {entry.queue_offset - 1} have no record"
                units.append(entry)
                base = after = entry.queue_offset + count
        assert says in problem if says else not problem, f"units: {problem!r} for {says!r}"
        assert queue.max_offset == after, f"units: {queue.max_offset} for {after}"
        base = max(base, after)
        low = units[0].queue_offset if units else 0
        assert queue.min_offset == low, f"units: {queue.min_offset} is the first, not {low}"
        base += random.choice((0, 0, 2)) if units else 0
        if random.random() < 0.3:
            queue.write_pending()
    if not units:
        entry = Entry(TOPIC, 0, base, at, 99, 9, at, (), 1)
        assert queue.put_batch(entry) == "", "units: the first one"
        units.append(entry)
    queue.write_pending()
    places = [one.physical_offset for one in outside]
    told = queue.outside, queue.first_outside
    assert told == (len(places), first), f"units: {told}: {places}, {first}"
    return units, outside


def _settled(
    units: list[Entry], refused: Entry | None, base: int
) -> tuple[str, list[Entry] | None]:
    """What an offset shows of the records before it: what is told, and the units then."""
    after = _end(units[-1]) if units else 0
    if refused is not None and after + abs(refused.units) == base:
        return f"its neighbours say {after}", [*units, refused._replace(queue_offset=after)]
    if base >= after:
        return "", None
    *kept, last = units
    due = _end(kept[-1]) if kept else 0
    if due < last.queue_offset and due + abs(last.units) == base:
        return f"its neighbours say {due}", [*kept, last._replace(queue_offset=due)]
    if refused is not None and last.queue_offset < refused.queue_offset and _end(refused) == base:
        count = refused.queue_offset - last.queue_offset
        return f"its neighbours say {count}", [*kept, last._replace(units=-count), refused]
    return "", None


def _spoilt(random: Random, queue: BatchConsumeQueue, number: int) -> list[int]:
    """A unit of which one field says what no record does, or all."""
    found = [*(queue.unit_at(number) or ())]
    for field, value in random.choice((*WRONG, ((0, 0), (1, 0), (4, 0), (5, 0)))):
        found[field] = value
    return found


def _trusted(random: Random, queue: BatchConsumeQueue) -> None:
    """A unit is believed that can name a record, and lies between those beside it that can."""
    queue.cut_units(0)
    first, count = queue.first_unit, random.randrange(1, 6)
    rows, at, base = list[list[int]](), 0, 0
    for number in range(count):
        rows.append([at, 10, 0, 0, base, random.choice((1, 2)), -1, 0])
        at, base = at + 10, base + rows[-1][5]
        if random.random() < 0.3:
            field, by = random.choice((0, 1, 4, 5)), random.choice((-11, -1, 1))
            rows[-1][field] = rows[-1][field] + by
        queue.put_batch(Entry(TOPIC, 0, queue.max_offset, 0, 1, 0, 0, (), 1))
        if number % 2:
            queue.write_pending()
    queue.write_pending()
    for number, row in enumerate(rows, first):
        queue.row.write(number * SIZE, BATCH_UNIT.pack(*row))
    queue.max_offset = base - random.randrange(2)
    good = [row[0] >= 0 and row[1] >= 1 and row[4] >= 0 and row[5] >= 1 for row in rows]

    def fits(one: int, other: int) -> bool:
        if one < 0 or other == count or not (good[one] and good[other]):
            return True
        ends = rows[one][0] + rows[one][1], rows[one][4] + rows[one][5]
        return ends[0] <= rows[other][0] and ends[1] <= rows[other][4]

    for number in range(count):
        is_low = rows[number][4] + rows[number][5] <= queue.max_offset
        want = good[number] and is_low and fits(number - 1, number)
        for ignores in (True, False):
            found = queue.trusted_unit(first + number, ignore_next=ignores) is not None
            fits_next = ignores or fits(number, number + 1)
            assert found == (want and fits_next), f"units: {number} of {rows}: {found}"
    for end in range(count + 1):
        after = sum(rows[end - 1][4:6]) if end else 0
        assert queue.offset_after(first + end) == after, f"units: {after} is behind {end}"
    queue.set_end(first + count)
    assert queue.max_offset == sum(rows[-1][4:6]), f"units: {queue.max_offset} at its end"


def _begin_anew(random: Random, queue: BatchConsumeQueue) -> None:
    """Of records without a unit a 0 and a 1 behind it say where a topic began again."""
    at, zero, anew = random.choice((0, 0, 70)), -1, -1
    first = at
    for number in range(random.randrange(1, 9)):
        offset = random.choice((0, 0, 1, 1, 2))
        if offset == 1 and zero >= 0 and anew < 0:
            anew = zero
        zero = -1 if offset else at
        queue.keep_outside(offset, at)
        told = queue.outside, queue.first_outside, queue.anew_at
        assert told == (number + 1, first, anew), f"units: {told} for {first}, {anew}"
        at += random.randrange(90, 200)


def _end(entry: Entry) -> int:
    return entry.queue_offset + abs(entry.units)


def _asked(
    random: Random, queue: BatchConsumeQueue, units: Sequence[Entry], spoilt: int | None
) -> None:
    """Where an offset is, which units are believed, where the queue begins, what a pull gets."""
    ends = sorted({one.queue_offset for one in units} | {_end(one) for one in units})
    offsets = [at + more for at in ends for more in (-1, 0, 1) if 0 <= at + more < ends[-1]]
    for number, one in enumerate(units):
        is_true = queue.trusted_unit(number) is not None
        assert is_true == (number != spoilt), f"units: {number} is believed: {is_true}, {one}"
    for offset in offsets:
        want = next(number for number, one in enumerate(units) if _end(one) > offset)
        found, passes = queue.find(offset), {want}
        if spoilt is not None and spoilt <= want <= spoilt + 1:
            passes = {spoilt, spoilt + 1}
        assert found in passes, f"units: {offset} is in {found}, not {want}, {spoilt} is spoilt"
        _picked(random, queue, units, spoilt, offset, min(found, len(units) - 1))
    for entry in units:
        for low in (entry.physical_offset, entry.physical_offset + 1):
            queue.correct_min(low)
            first = [number for number, one in enumerate(units) if one.physical_offset >= low]
            at = first[0] if first else len(units)
            mins = {units[at].queue_offset if first else queue.max_offset}
            if spoilt is not None and spoilt <= at <= spoilt + 1:
                mins -= {units[at].queue_offset} if at == spoilt else set()
                mins |= {_end(units[spoilt - 1]) if spoilt else 0}
            assert queue.min_offset in mins, f"units: from {low}: {queue.min_offset} for {mins}"


def _picked(
    random: Random,
    queue: BatchConsumeQueue,
    units: Sequence[Entry],
    spoilt: int | None,
    offset: int,
    begin: int,
) -> None:
    damaged, bad = DamagedRanges(), -1
    low = random.choice((0, 0, units[-1].physical_offset, random.choice(units).physical_offset))
    if random.random() < 0.3:
        bad = random.randrange(len(units))
        start = units[bad].physical_offset + random.choice((0, units[bad].size - 1))
        damaged.add(Damage(start, start + 1, "bad"))
    room = sum(one.size for one in random.sample(units, min(len(units), 3))) if begin % 2 else 1000
    if begin % 3:
        room = sum(one.size for one in units[begin : begin + random.randrange(1, 4)])
    many = random.choice((1, 3, 9, 1 << 20))
    ranges, after, count, refused, is_gone = list[tuple[int, int]](), offset, 0, False, False
    for number, one in enumerate(units[begin:], begin):
        if count >= many:
            break
        is_hidden = number - 1 == spoilt and after == offset < one.queue_offset
        held = sum(size for _, size in ranges)
        if number in (spoilt, bad) or is_hidden:
            refused = not ranges and not (number == bad != spoilt and held)
            break
        if ranges and held + one.size > room:
            break
        after = _end(one)
        if one.physical_offset < low:
            is_gone = True
            continue
        ranges.append((one.physical_offset, one.size))
        count += abs(one.units)
    parts, result = _parts(room, low, damaged), _miss(offset)
    try:
        pick_batches(parts, queue, result, many)
        was_refused = False
    except CorruptRecord:
        was_refused = True
    status = GetStatus.MESSAGE_WAS_REMOVING if is_gone else GetStatus.NO_MATCHED_MESSAGE
    status = GetStatus.FOUND if ranges else status
    found = was_refused, result.ranges, result.next_offset, result.status
    want = refused, ranges, after, status
    assert found == want, f"pick: {found} for {want} from {offset}, {spoilt} and {bad} are bad"


def _parts(room: int, low: int, damaged: DamagedRanges) -> Any:
    log = SimpleNamespace(min_offset=low)
    return SimpleNamespace(
        config=SimpleNamespace(transfer_bytes_memory=room), log=log, damaged=damaged
    )


def _miss(offset: int) -> GetResult:
    nothing = GetStatus.NO_MATCHED_MESSAGE
    return GetResult(status=nothing, next_offset=offset, min_offset=0, max_offset=0)


def _short(queue: BatchConsumeQueue, units: Sequence[Entry]) -> None:
    """Below the end all is covered, so a last unit that ends before it is damaged."""
    number = len(units) - 1
    row, unit = queue.row, list(queue.unit_at(number) or ())
    if unit[5] == 1:
        return
    row.write(number * SIZE, BATCH_UNIT.pack(*unit[:5], unit[5] - 1, *unit[6:]))
    for more, is_given in ((2, True), (1, False)):
        offset = queue.max_offset - more
        parts, result = _parts(1000, 0, DamagedRanges()), _miss(offset)
        try:
            pick_batches(parts, queue, result, 1)
            was_given = bool(result.ranges)
        except CorruptRecord as exc:
            was_given = False
            assert exc.offset == unit[0], f"pick: {exc!s}"
        assert was_given == is_given, f"pick: {more} before the end: {was_given}"
    row.write(number * SIZE, BATCH_UNIT.pack(*unit))


def _compared(
    random: Random,
    queue: BatchConsumeQueue,
    units: Sequence[Entry],
    outside: Sequence[Entry],
    spoilt: int,
) -> None:
    """Beside the log each record finds its unit, or where it has to be, and others find none."""
    records = {one.physical_offset: one for one in (*units, *outside)}
    foreign = list[int]()
    expired = random.randrange(len(units)) if random.random() < 0.3 else 0
    expired = expired if expired != spoilt + 1 and not 0 <= spoilt < expired else 0
    low = units[expired].physical_offset
    damaged, bad = DamagedRanges(), -1
    if random.random() < 0.4:
        bad = random.randrange(expired, len(units))
        bad = -1 if bad == spoilt else bad
    if bad >= 0:
        damaged.add(Damage(units[bad].physical_offset, units[bad].physical_offset + 9, "bad"))

    def one(offset: int) -> SimpleNamespace:
        known = records.get(offset)
        return SimpleNamespace(entries=[known] if known and offset >= low else [])

    if spoilt < 0 and bad < 0 and len(units) > expired + 1:
        # One that names the beginning of no record, or of another queue's.
        spoilt = random.randrange(expired + 1, len(units))
        unit = [*(queue.unit_at(spoilt) or ())]
        unit[0] += random.choice((1, 89))  # the shortest record has 90 bytes
        queue.row.write(spoilt * SIZE, BATCH_UNIT.pack(*unit))
        other = units[spoilt]._replace(physical_offset=unit[0])
        records[unit[0]] = other._replace(**random.choice(({"topic": "X"}, {"queue_id": 1})))
        foreign.append(unit[0])
    parts: Any = SimpleNamespace(min_offset=low), SimpleNamespace(record_at=one)
    check = BatchCheck(parts[0], damaged, parts[1])
    for at in sorted(records):
        entry = records[at]
        number = units.index(entry) if entry in units else None
        if at < low or number == bad or at in foreign:
            continue
        behind = [one.physical_offset > at for one in units]
        if number is None and True in behind and behind.index(True) == spoilt:
            continue  # that unit may be its
        found = check.find(queue, entry)
        assert found == number, f"units: {at} is {found}, not {number}; {bad}, {spoilt} are bad"
