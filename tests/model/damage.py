"""A store with several damages at once, over some starts, with repairs and a cut in between.

The scrub has to name each range of adjacent bad records, up to the next good one, and remember it;
every other record is served as it was, and everything is back once a replica has healed the log.
"""

from functools import partial
from random import Random
from typing import Final

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.node.store.errors import CorruptRecord
from rocketbed.node.store.store import MessageStore
from tests.model.at_rest import BATCH_UNIT, UNIT, AtRest, Ranges, edit_file, edited, lived
from tests.model.model import Kept, Model
from tests.model.store import Life

STEPS: Final = 30
FEWEST: Final = 8
"""Records: where nearly all have expired, another life is drawn."""
OTHER_SEED: Final = 1_000_003
FIELDS: Final = (None, None, 3, 5, 35, 87)
"""Bytes of a record: in its body (None), size, magic, physical offset and body length."""
CRC_BYTE: Final = -9
"""A byte that only the checksum of the whole record covers."""
UNIT_FIELDS, BATCH_FIELDS = (11, 19), (11, 27, 35, 37)
"""Last bytes of size and tag code in a unit; of size, time, first offset and count in a batch's."""
PUTS: Final = 6


def run_damage(seed: int) -> str:
    random = Random(f"damage/{seed}")
    at_rest = lived(f"damage/{seed}", STEPS, append_property_crc=bool(seed % 2))
    if len(at_rest.model.kept) < FEWEST:
        return run_damage(seed + OTHER_SEED)
    return _ranges(at_rest, random) + _units(at_rest, random)


def run_cuts(seed: int) -> str:
    random = Random(f"cuts/{seed}")
    at_rest = lived(f"cuts/{seed}", STEPS, append_property_crc=False)
    if len(at_rest.model.kept) <= FEWEST:
        return run_cuts(seed + OTHER_SEED)
    return _cut_between(at_rest, random)


def _changes(at_rest: AtRest, fields: dict[int, int | None]) -> SimDisk:
    """Return a disk on which records, by their number, are damaged at a byte."""
    disk = SimDisk(at_rest.image)
    for number, at in sorted(fields.items()):
        at_rest.damage(at_rest.model.kept[number], at)(disk)
    return disk


def _ranges(at_rest: AtRest, random: Random) -> str:
    """Damage adjacent and separate records; a range is forgotten once its first one is repaired."""
    records = at_rest.model.kept
    last = len(records) - 1  # a start refuses if the last record is bad
    first = random.randrange(last - 1)
    bad = {*random.sample(range(last), 3), first, first + 1}
    fields = [*FIELDS, *[CRC_BYTE] * at_rest.config.append_property_crc]
    image = _changes(at_rest, {number: random.choice(fields) for number in bad}).image()
    digest = ""
    for _ in range(2):
        run = at_rest.start(partial(_check, at_rest=at_rest, bad=bad), image=image)
        image, digest = run.image, digest + run.digest
    while first - 1 in bad:
        first -= 1
    image = edited(image, at_rest.write(records[first].physical, at_rest.contents(records[first])))
    bad.discard(first)
    run = at_rest.start(partial(_check, at_rest=at_rest, bad=bad), image=image)
    return digest + run.digest + at_rest.heal(run.image)


async def _check(store: MessageStore, at_rest: AtRest, bad: set[int], healed: int = 0) -> None:
    """Compare what the scrub names and what readers get, where these records are bad."""
    ranges = at_rest.ranges(bad)
    _check_ranges(store, ranges)
    text = ";".join(f"{start}-{end}" for start, end in ranges)
    assert store.damaged_ranges == text, f"scrub: {store.damaged_ranges!r}, expected {text!r}"
    unexpected = (store.scrubber.healed, store.scrubber.unqueued, store.scrubber.index_damage)
    assert unexpected == (healed, {}, ""), f"scrub: of what is good: {unexpected}"
    places = {at_rest.model.kept[number].physical for number in bad}
    for records in at_rest.model.queues().values():
        for record in records:
            await _check_pull(store, record, ranges, is_bad=record.physical in places)


def _check_ranges(store: MessageStore, ranges: Ranges) -> None:
    actual = [(damage.start, damage.end) for damage in store.scrubber.damage]
    assert actual == ranges, f"scrub: {actual}, expected {ranges}"


async def _check_pull(store: MessageStore, record: Kept, ranges: Ranges, *, is_bad: bool) -> None:
    where = f"{record.place} at {record.offset}"
    try:
        data = await store.read(store.get_messages(*record.place, record.offset, 1).ranges)
    except CorruptRecord as exc:
        assert is_bad, f"pull: {where} is refused: {exc}"
        assert exc.offset in dict(ranges), f"pull: {where} is refused for {exc.offset}"
    else:
        assert not is_bad, f"pull: {where} is damaged, and was served"
        assert data == record.data, f"pull: {where}: another record"


def _units(at_rest: AtRest, random: Random) -> str:
    """Damage some units of queues and one record: each unit is repaired once."""
    model = at_rest.model
    bad = random.randrange(len(model.kept) - 1)
    physical = model.kept[bad].physical
    good = {record.physical for records in model.queues().values() for record in records} - {
        physical
    }
    units: dict[str, list[int]] = {}
    for path in at_rest.image.paths():
        if "consumequeue/" not in path:
            continue
        data, width = at_rest.image.contents(path), _width(path)
        places = [
            at
            for at in range(0, len(data) - width + 1, width)
            if any(data[at + 8 : at + 12]) and int.from_bytes(data[at : at + 8]) in good
        ]
        if len(places) > 1:  # the last unit tells where the queue ends
            begin = random.randrange(len(places) - 1)
            units[path] = places[begin : min(begin + random.choice((1, 2)), len(places) - 1)]
    chosen = dict(random.sample(sorted(units.items()), min(2, len(units))))

    def damage(disk: SimDisk) -> None:
        for path, places in chosen.items():
            fields = UNIT_FIELDS if _width(path) == UNIT else BATCH_FIELDS

            def edit(
                data: bytearray, places: list[int] = places, fields: tuple[int, ...] = fields
            ) -> None:
                for at in places:
                    data[at + random.choice(fields)] ^= 1 << random.randrange(3)

            edit_file(path, edit)(disk)
        at_rest.damage(model.kept[bad])(disk)

    count = sum(map(len, chosen.values()))

    async def look(store: MessageStore) -> None:
        healed = store.scrubber.healed
        assert healed == count, f"scrub: {healed} units are repaired, expected {count}"
        _check_ranges(store, at_rest.ranges({bad}))

    run = at_rest.start(look, image=edited(at_rest.image, damage))
    restarted = at_rest.start(partial(_check, at_rest=at_rest, bad={bad}), image=run.image)
    return run.digest + restarted.digest + at_rest.heal(restarted.image)


def _width(path: str) -> int:
    return BATCH_UNIT if "/batchconsumequeue/" in path else UNIT


def _cut_between(at_rest: AtRest, random: Random) -> str:
    """Cut the log between bad records: what is cut is not named any more, and later records at
    those offsets are served."""
    model = at_rest.model.copy()
    last = len(model.kept) - 1
    keeps = random.randint(2, last - 1)
    below, above = range(keeps - 1), range(keeps, last)  # the log has to end with a good record
    bad = {number for part in (below, above) for number in random.sample(part, min(len(part), 2))}
    end = model.kept[keeps - 1].end
    image = _changes(at_rest, dict.fromkeys(bad)).image()
    ranges = [(start, min(stop, end)) for start, stop in at_rest.ranges(bad) if start < end]

    async def look(store: MessageStore) -> None:
        _check_ranges(store, at_rest.ranges(bad))
        at = model.cut(last + 1 - keeps)
        await store.removal.cut(at)
        model.was_cut()
        actual = [(damage.start, damage.end) for damage in store.scrubber.damage]
        assert actual == ranges, f"cut: {actual} are named after a cut at {at}, expected {ranges}"
        await _put(store, model)
        for record in model.kept:
            is_bad = any(start <= record.physical < stop for start, stop in ranges)
            if record.physical not in model.hidden and record.place[0] not in model.doubtful:
                await _check_pull(store, record, ranges, is_bad=is_bad)

    return at_rest.start(look, image=image, stops=False).digest


async def _put(store: MessageStore, model: Model) -> None:
    life = Life(model, Random(model.written), 0, power=False)
    for _ in range(PUTS):
        await life.put_any(store)
    await store.dispatched.wait_for(store.max_offset)
    assert store.max_offset == model.written, f"cut: the log ends at {store.max_offset}"
