"""A store with damage of several kinds at once, over some starts: what the scrub names, what
readers get meanwhile, what is remembered, and what is there again when a replica has mended it.

Every stretch that is named has to be the bad records that stand beside each other, from the first
to the next good one, and everything else has to be given as it was.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from random import Random
from typing import Final

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.errors import CorruptRecord
from rocketbed.node.store.store import MessageStore
from tests.model.alone import run_alone
from tests.model.mending import UNIT, answers_of, edited, healed, place_of, serve
from tests.model.model import Kept, Model, longer_by
from tests.model.store import BATCHES, ROOT, Life, look_at, settings

STEPS: Final = 30
FEWEST: Final = 3
"""Records: where nearly all have expired there is nothing to be damaged."""
ANOTHER: Final = 1_000_003
"""To the seed of another life then."""
SIZE_AT, MAGIC_AT, QUEUE_OFFSET_AT, PHYSICAL_AT = 0, 4, 20, 28
BODY_LENGTH_AT: Final = 84
BATCH_UNIT: Final = 46
FIELDS: Final = (11, 19)
"""Last bytes of size and tag code in a unit, ..."""
BATCH_FIELDS: Final = (11, 27, 35, 37)
"""... and of size, time, first queue offset and count in one of a batch."""
Stretches = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Filled:
    """A store after a clean stop."""

    image: DiskImage
    model: Model
    config: StoreConfig

    @property
    def size(self) -> int:
        return self.config.segment_size


def run_damage(seed: int) -> str:
    random = Random(f"damage/{seed}")
    full = filled(seed, append_property_crc=bool(seed % 2))
    if len(full.model.kept) < FEWEST:
        return run_damage(seed + ANOTHER)
    digest = _stretches(full, random)
    digest += _units(full, random)
    plain = filled(seed, append_property_crc=False) if seed % 2 else full
    digest += _misplaced(plain, random)
    digest += _renumbered(plain, random) + _outside(plain)
    return digest + _bare(full, random)


def filled(seed: int, **changes: object) -> Filled:
    """A store that lived once."""
    config = settings(Random(f"damage/{seed}"), **changes)
    model = Model(segment=config.segment_size)
    life = Life(model, Random(f"damage/{seed}"), STEPS, power=False)
    run = run_alone(partial(life.main, stops=True), config)
    if life.wrong is not None:
        raise life.wrong
    return Filled(run.image, model, config)


# --- stretches of the log


def _stretches(full: Filled, random: Random) -> str:
    """Some bad records, beside each other and apart. They are named, and remembered; one that is
    mended is not; when a replica has mended all, all is as it was."""
    records = full.model.kept[:-1]  # over the last one a start refuses
    first = random.randrange(len(records) - 1)
    bad = {*random.sample(range(len(records)), min(3, len(records))), first, first + 1}
    kinds = {here: random.choice(_kinds(full.config)) for here in sorted(bad)}

    def spoil(disk: SimDisk, kinds: dict[int, int | None]) -> None:
        for here, at in kinds.items():
            spoil_byte(disk, records[here], at, full.size)

    image = edited(full.image, partial(spoil, kinds=kinds))
    digest, told = "", stretches_of(full.model, bad)
    for _ in range(2):
        look = partial(_sees, told=told, bad={records[here].physical for here in bad}, full=full)
        run = run_alone(partial(serve, stops=True), full.config, look, image=image)
        image, digest = run.image, digest + run.digest
    while first - 1 in bad:  # of a stretch only what is mended from its beginning on counts
        first -= 1
    left = {here: at for here, at in kinds.items() if here != first}
    whole = run_alone(partial(serve, stops=True), full.config, image=full.image).image
    mended = partial(_lay_back, good=whole, one=records[first], size=full.size)
    image = edited(image, mended)
    bad.discard(first)
    look = partial(_sees, told=stretches_of(full.model, bad),
                   bad={records[here].physical for here in left}, full=full)  # fmt: skip
    run = run_alone(partial(serve, stops=True), full.config, look, image=image)
    healed(run.image, full.image, full.model, full.config)
    return digest + run.digest


def _kinds(config: StoreConfig) -> list[int | None]:
    """Where a byte is changed: in the body (None), in a field that says where something is, or from
    the end on, which only the checksum of the record covers."""
    last: list[int | None] = [-9] if config.append_property_crc else []
    return [None, None, SIZE_AT + 3, MAGIC_AT + 1, PHYSICAL_AT + 7, BODY_LENGTH_AT + 3, *last]


def spoil_byte(disk: SimDisk, one: Kept, at: int | None, size: int) -> None:
    """Change one byte of a record in the log."""
    path, begin = place_of(one.physical, size)
    data = bytearray(disk.contents(path))
    if at is None:
        at = one.data.index(one.put.body) + 2
    elif at >= BODY_LENGTH_AT:
        at += longer_by(one.data)
    at %= one.size
    data[begin + at] ^= 4
    disk.replace_contents(path, bytes(data))


def _lay_back(disk: SimDisk, good: DiskImage, one: Kept, size: int) -> None:
    path, at = place_of(one.physical, size)
    data = bytearray(disk.contents(path))
    data[at : at + one.size] = good.contents(path)[at : at + one.size]
    disk.replace_contents(path, bytes(data))


def stretches_of(model: Model, bad: Iterable[int]) -> Stretches:
    """From the first of bad records beside each other to the next good one."""
    found: Stretches = []
    wrong = set(bad)
    for here, (one, after) in enumerate(pairwise(model.kept)):
        if here in wrong:
            begin = found.pop()[0] if here - 1 in wrong else one.physical
            found.append((begin, after.physical))
    return found


async def _sees(store: MessageStore, told: Stretches, bad: set[int], full: Filled) -> None:
    """The scrub names just these; nobody gets what lies there, and everybody the rest."""
    found = [(one.start, one.end) for one in store.scrubber.damage]
    assert found == told, f"scrub: {found} for {told}"
    shown = ";".join(f"{start}-{end}" for start, end in told)
    assert store.damaged_ranges == shown, f"scrub: {store.damaged_ranges!r} for {shown!r}"
    others = (store.scrubber.healed, store.scrubber.unqueued, store.scrubber.index_damage)
    assert others == (0, {}, ""), f"scrub: of what is good: {others}"
    for (topic, queue), kept in sorted(full.model.queues().items()):
        for one in kept:
            what = f"{topic}/{queue} at {one.offset}"
            try:
                found_ = store.get_messages(topic, queue, one.offset, 1)
                data = await store.read(found_.ranges)
            except CorruptRecord as exc:
                assert one.physical in bad, f"pull: {what} is refused: {exc}"
                assert exc.offset in dict(told), f"pull: {exc.offset} is named for {what}"
            else:
                assert one.physical not in bad, f"pull: {what} is damaged, and was given"
                assert data == one.data, f"pull: {what}: another record"


# --- the log alone


def _bare(full: Filled, random: Random) -> str:
    """Everything else is gone: it is made from the log, wherever that begins."""
    more = ["index/"] if full.model.hidden else ["index/", "rocketbed.ckpt"]  # which has deletions
    kinds = [
        "consumequeue/",
        "batchconsumequeue/",
        *random.sample(more, random.randint(0, len(more))),
    ]
    lost = tuple(f"{ROOT}/{name}" for name in kinds)

    def change(disk: SimDisk) -> None:
        for path in full.image.paths():
            if path.startswith(lost):
                disk.remove_name(path)

    digest, image = "", edited(full.image, change)
    for _ in range(2):
        look = partial(answers_of, model=full.model)
        run = run_alone(partial(serve, stops=True), full.config, look, image=image)
        assert not run.value, f"bare: without {lost}: {run.value}"
        image, digest = run.image, digest + run.digest
    look_at(image)
    return digest


# --- units of queues, beside a bad record


def _units(full: Filled, random: Random) -> str:
    """Units that say something else, some beside each other, and a bad record in the same store:
    the units are mended, each once, and of the record nothing is given."""
    records = full.model.kept[:-1]
    bad = random.randrange(len(records))
    physical = records[bad].physical
    there = {one.physical for kept in full.model.queues().values() for one in kept} - {physical}
    lost: dict[str, list[int]] = {}
    for path in full.image.paths():
        width = BATCH_UNIT if "/batchconsumequeue/" in path else UNIT
        if "consumequeue/" not in path:
            continue
        data = full.image.contents(path)
        units = [at for at in range(0, len(data) - width + 1, width)
                 if int.from_bytes(data[at + 8 : at + 12])
                 and int.from_bytes(data[at : at + 8]) in there]  # fmt: skip
        units = units[:-1]  # by its last unit a queue is known
        if units:
            begin = random.randrange(len(units))
            lost[path] = units[begin : begin + random.choice((1, 2))]
    changed = dict(random.sample(sorted(lost.items()), min(2, len(lost))))

    def spoil(disk: SimDisk) -> None:
        for path, units in changed.items():
            data = bytearray(disk.contents(path))
            fields = BATCH_FIELDS if "/batchconsumequeue/" in path else FIELDS
            for at in units:
                data[at + random.choice(fields)] ^= 1 << random.randrange(3)
            disk.replace_contents(path, bytes(data))
        spoil_byte(disk, records[bad], None, full.size)

    count = sum(map(len, changed.values()))
    look = partial(_mends, count=count, told=stretches_of(full.model, {bad}))
    run = run_alone(partial(serve, stops=True), full.config, look, image=edited(full.image, spoil))
    seen = partial(_sees, told=stretches_of(full.model, {bad}), bad={physical}, full=full)
    again = run_alone(partial(serve, stops=True), full.config, seen, image=run.image)
    healed(again.image, full.image, full.model, full.config)
    return run.digest + again.digest


async def _mends(store: MessageStore, count: int, told: Stretches) -> None:
    scrubber = store.scrubber
    assert scrubber.healed == count, f"mending: {scrubber.healed} units for {count}"
    found = [(one.start, one.end) for one in scrubber.damage]
    assert found == told, f"scrub: {found} for {told}"


# --- records that say another queue offset


def _renumbered(full: Filled, random: Random) -> str:
    """One record of each queue says another queue offset, and all queues have to be built from the
    log: its neighbours say what it is."""
    model, changed = full.model, list(full.model.kept)
    for place, kept in sorted(model.queues().items()):
        # What comes later than what is read at once finds the units written already.
        sure = [one for one, after in pairwise(kept)
                if one.physical // full.size == after.physical // full.size]  # fmt: skip
        if place[0] in BATCHES or kept[0].offset or not sure:
            continue
        one = random.choice(sure)
        far = random.choice((1, 2, 5, 1 << 23, 1 << 40))
        number = one.offset + far if random.random() < 0.5 else one.offset - far
        data = bytearray(one.data)
        data[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8] = number.to_bytes(8, "big", signed=True)
        here = next(h for h, known in enumerate(changed) if known.physical == one.physical)
        changed[here] = replace(one, data=bytes(data))
    other = replace_records(model, changed)

    def renumber(disk: SimDisk) -> None:
        _write(disk, changed, full.size)
        for path in full.image.paths():
            below = path.removeprefix(f"{ROOT}/")
            if below.startswith("consumequeue/"):
                disk.remove_name(path)

    look = partial(answers_of, model=other)
    run = run_alone(serve, full.config, look, image=edited(full.image, renumber))
    assert not run.value, f"renumbered: {run.value!s}"
    return run.digest


def _outside(full: Filled) -> str:
    """The last two of a queue say numbers that are taken: nobody knows which of them is right, and
    both stay outside."""
    model = full.model.copy()
    last = model.kept[-1].physical
    queues = [kept for place, kept in sorted(model.queues().items())
              if place[0] not in BATCHES and len(kept) > 3 and kept[0].offset == 0
              and kept[-1].physical != last]  # fmt: skip
    if not queues:
        return ""
    wrong = {one.physical for one in queues[0][-2:]}
    for here, one in enumerate(model.kept):
        if one.physical in wrong:
            data = one.data[:QUEUE_OFFSET_AT] + bytes(8) + one.data[QUEUE_OFFSET_AT + 8 :]
            model.kept[here] = replace(one, data=data)
    model.hidden |= wrong

    def change(disk: SimDisk) -> None:
        _write(disk, model.kept, full.size)
        for path in full.image.paths():
            if path.removeprefix(f"{ROOT}/").startswith("consumequeue/"):
                disk.remove_name(path)

    look = partial(answers_of, model=model)
    run = run_alone(serve, full.config, look, image=edited(full.image, change))
    assert not run.value, f"outside: {run.value!s}"
    return run.digest


def replace_records(model: Model, kept: list[Kept]) -> Model:
    """The same with other bytes."""
    return replace(model, kept=kept)


def _write(disk: SimDisk, kept: list[Kept], size: int) -> None:
    for one in kept:
        path, at = place_of(one.physical, size)
        data = bytearray(disk.contents(path))
        data[at : at + one.size] = one.data
        disk.replace_contents(path, bytes(data))


def _misplaced(full: Filled, random: Random) -> str:
    """A record whose queue offset has changed since its queue was built is named, and is served
    where it stands."""
    last = full.model.kept[-1].physical  # over which a start refuses
    kept = [
        one
        for (topic, _), kept in full.model.queues().items()
        for one in kept
        if topic not in BATCHES and one.physical != last
    ]
    if not kept:
        return ""
    one = random.choice(kept)
    number = one.offset + random.choice((1, 3, 1000))
    data = bytearray(one.data)
    data[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8] = number.to_bytes(8, "big")
    other = replace(one, data=bytes(data))

    image = edited(full.image, lambda disk: _write(disk, [other], full.size))
    look: Callable[[MessageStore], object] = partial(_names, one=other)
    digest = ""
    for _ in range(2):
        run = run_alone(partial(serve, stops=True), full.config, look, image=image)
        image, digest = run.image, digest + run.digest
    return digest


async def _names(store: MessageStore, one: Kept) -> None:
    found = [(damage.start, damage.end, damage.is_readable) for damage in store.scrubber.damage]
    want = [(one.physical, one.end, True)]
    assert found == want, f"scrub: {found} for {want}"
    ranges = store.get_messages(*one.place, one.offset, 1).ranges
    data = await store.read(ranges)
    assert data == one.data, f"pull: {one.place} {one.offset}: what is readable is not given"
