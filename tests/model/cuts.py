"""A store that is damaged and cut, and a slave's that lacks bytes which were on disk; and what the
scrub says of an index of which a bit is wrong.

Of what a cut took nothing is named any more, and what comes in its place is served. A slave owes
what it has lost over starts, until it has come again, or a new master ends the log below it.
"""

from functools import partial
from itertools import pairwise
from random import Random
from typing import Final

import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.store import MessageStore
from rocketbed.world.api import World
from tests.model.alone import run_alone
from tests.model.damage import Filled, filled, spoil_byte, stretches_of
from tests.model.mending import ALARMS, LOG, answers_of, edited, place_of, serve
from tests.model.model import Kept, Model
from tests.model.store import MARKED_S, ROOT, Life, Topics, settings

PUTS: Final = 6
COUNT: Final = 20
BITS: Final = 2
CRASHES: Final = 3
MODES: Final = ("random", "strict", "prefix", "reorder")
"""What a power cut leaves."""
HEAD, SLOT, ENTRY = 40, 4, 20
"""Bytes of an index file's header, of a slot, of an entry."""
TIME_AT, ENTRY_TIME = 12, 4
"""Where in an entry its time stands, and its bytes."""
Place = tuple[str, int, int]
"""A file, where in it, how many bytes."""


def run_cuts(seed: int) -> str:
    random = Random(f"cuts/{seed}")
    full = filled(seed, append_property_crc=False)
    digest = _damage(full, random)
    digest += _index_bits(full, random)
    digest += _crashes(full, random)
    return digest + _owes(seed, random)


# --- a cut, and damage on both of its sides


def _damage(full: Filled, random: Random) -> str:
    """Some records are bad; the log is cut between them, and goes on."""
    model = full.model.copy()
    records = model.kept[:-1]  # over the last one a start refuses
    if len(records) < 8:
        return ""
    bad = set(random.sample(range(len(records)), 4))
    count = random.randint(2, len(records) - 2)
    keeps = len(model.kept) - count
    if keeps - 1 in bad:  # the end of the log has to be the end of a record that can be read
        bad.discard(keeps - 1)

    def spoil(disk: SimDisk) -> None:
        for here in sorted(bad):
            spoil_byte(disk, records[here], None, full.size)

    told = stretches_of(full.model, bad)
    end = model.kept[keeps - 1].end
    left = [(start, min(stop, end)) for start, stop in told if start < end]
    wrong = {records[here].physical for here in bad if here < keeps}
    look = partial(_is_cut, model=model, count=count, told=told, left=left, wrong=wrong)
    run = run_alone(serve, full.config, look, image=edited(full.image, spoil))
    return run.digest


async def _is_cut(
    store: MessageStore,
    model: Model,
    count: int,
    told: list[tuple[int, int]],
    left: list[tuple[int, int]],
    wrong: set[int],
) -> None:
    found = [(one.start, one.end) for one in store.scrubber.damage]
    assert found == told, f"scrub: {found} for {told}"
    at = model.cut(count)
    await store.removal.cut(at)
    model.was_cut()
    found = [(one.start, one.end) for one in store.scrubber.damage]
    assert found == left, f"cut: {found} are damaged, for {left}, behind a cut at {at}"
    life = Life(model, Random(at), 0, power=False)
    for _ in range(PUTS):
        await life.put_any(store)
    await store.dispatched.wait_for(store.max_offset)
    assert store.max_offset == model.written, f"cut: the log ends at {store.max_offset}"
    for kept in model.kept:
        if kept.physical < at and (kept.physical in wrong or kept.put.topic in model.doubtful):
            continue
        if kept.physical in model.hidden:
            continue
        is_near = any(start <= kept.physical < stop for start, stop in left)
        if kept.physical >= at or not is_near:
            ranges = store.get_messages(*kept.place, kept.offset, 1).ranges
            data = await store.read(ranges)
            assert data == kept.data, f"pull: {kept.place} at {kept.offset} behind a cut at {at}"


# --- a cut that a crash ends


def _crashes(full: Filled, random: Random) -> str:
    """A kill or a power cut at some events of a cut: all or nothing of it is left, and what is put
    into the log then is there after another start."""
    if len(full.model.kept) < 6:
        return ""
    count = random.randint(1, len(full.model.kept) - 2)
    disks: list[SimDisk] = []
    whole = Cut(full.model.copy(), count, disks)
    run = run_alone(whole.main, full.config, image=full.image, prepare=disks.append)
    digest = run.digest
    for _ in range(CRASHES):
        cut, kind = Cut(full.model.copy(), count, []), random.choice(("kill", "power", "power"))
        at, mode = random.randrange(*whole.events), random.choice(MODES)
        crashed = run_solo(
            cut.main, full.config, image=full.image, crash_at=at, kind=kind, mode=mode
        )
        assert crashed.outcome != "ended", f"load: no crash at event {at}"
        image, boots = crashed.image, 2
        for stops in (False, True):
            power = kind == "power" and not stops
            life = Life(cut.model, Random(f"{at}/{stops}"), 2, power=power)
            main = partial(life.main, stops=stops)
            again = run_alone(main, full.config, image=image, boots=boots)
            if life.wrong is not None:
                raise life.wrong
            image, digest = again.image, digest + again.digest
    return digest


class Cut:
    """A start, a cut, and its end."""

    def __init__(self, model: Model, count: int, disks: list[SimDisk]) -> None:
        self.model, self._count, self._disks = model, count, disks
        self.events = (0, 0)
        """Of the disk, at the beginning of the cut and behind it."""

    async def main(self, world: World, config: StoreConfig) -> None:
        model = self.model
        store = await MessageStore.open(world, config, Topics())
        model.closed, model.flushed = False, store.flushed.value
        store.flushed.subscribe(self._flushed_to)
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            await store.scrubber.finished.wait()
            await Life(model, Random(1), 0, power=False).put_any(store)
            begin = self._events()
            at = model.cut(self._count)
            await store.removal.cut(at)
            model.was_cut()
            await Life(model, Random(2), 0, power=False).put_any(store)
            await trio.sleep(MARKED_S)
            self.events = begin, self._events()
            nursery.cancel_scope.cancel()

    def _flushed_to(self, end: int) -> None:
        self.model.flushed = end

    def _events(self) -> int:
        return self._disks[0].events if self._disks else 0


# --- one bit of an index


def _index_bits(full: Filled, random: Random) -> str:
    """Of a slot in use, or of an entry of a message that is there: it is named, and made again."""
    digest = ""
    seen = {one.physical for kept in full.model.queues().values() for one in kept}
    slots, entries, times = list[Place](), list[Place](), list[Place]()
    for path in full.image.paths():
        if not path.startswith(f"{ROOT}/index/"):
            continue
        data = full.image.contents(path)
        entries_at = HEAD + SLOT * full.config.index_slots
        used = int.from_bytes(data[36:40])
        own = [entries_at + ENTRY * number for number in range(1, used)]
        if not own or not all(int.from_bytes(data[at + 4 : at + 12]) in seen for at in own):
            continue  # of messages that are gone nobody can tell
        in_use = [at for at in range(HEAD, entries_at, SLOT) if any(data[at : at + SLOT])]
        slots += [(path, at, SLOT) for at in in_use]
        entries += [(path, at, ENTRY) for at in own]
        # The first counts from the file before, if it has not expired.
        known = own if not any(data[own[0] + 4 : own[0] + 12]) else own[1:]
        times += [(path, at + TIME_AT, ENTRY_TIME) for at in known]
    last = [one for one in slots if one[0] == slots[-1][0]]
    kinds = (slots, entries, last, times)
    chosen = [one for kind in kinds for one in random.sample(kind, min(len(kind), BITS))]
    for path, at, size in chosen:
        where = at + random.randrange(size)

        def change(disk: SimDisk, path: str = path, where: int = where) -> None:
            data = bytearray(disk.contents(path))
            data[where] ^= 1 << random.randrange(8)
            disk.replace_contents(path, bytes(data))

        run = run_alone(partial(serve, stops=True), full.config, _index_damage,
                        image=edited(full.image, change))  # fmt: skip
        told = bool(run.value) or any(line.level in ALARMS for line in run.log)
        assert told, f"index: {path}: a bit of byte {where}, part of {size} at {at}: not a word"
        look = partial(answers_of, model=full.model)
        again = run_alone(serve, full.config, look, image=run.image)
        assert not again.value, f"index: {path}, made again: {again.value}"
        digest += run.digest + again.digest
    return digest


async def _index_damage(store: MessageStore) -> str:
    return store.scrubber.index_damage


# --- a slave that lacks what was on disk


def _owes(seed: int, random: Random) -> str:
    """The last records are zeros; the slave starts without them."""
    rare = {"mark_interval_ms": random.choice((300, 10_000_000)), "index_entries": 400}
    config = settings(Random(f"cuts/{seed}"), **rare, append_property_crc=False)
    model = Model(segment=config.segment_size)
    life = Life(model, Random(f"owes/{seed}"), 0, power=False)
    run = run_alone(partial(life.fill, count=COUNT), config)
    if life.wrong is not None:
        raise life.wrong
    size, whole = config.segment_size, run.image
    same_file = [
        here for here, (one, after) in enumerate(pairwise(model.kept))
        if one.end == after.physical and here > len(model.kept) // 3
    ]  # fmt: skip
    end = model.kept[random.choice(same_file)].end

    def change(disk: SimDisk) -> None:
        for path in whole.paths():
            if not path.startswith(LOG):
                continue
            start = int(path.removeprefix(LOG))
            if start > end:
                disk.remove_name(path)
            elif start + size > end:
                data = disk.contents(path)[: end - start]
                disk.replace_contents(path, data + bytes(size - len(data)))

    own = {"mark_interval_ms": 300, "is_slave": True, "append_property_crc": False}
    slave = settings(Random(f"cuts/{seed}"), **{**rare, **own})
    image, digest = edited(whole, change), ""
    for stops in (False, True):
        run = run_alone(partial(serve, stops=stops), slave, partial(_lacks, end=end), image=image)
        image, digest = run.image, digest + run.digest
    kept = [one for one in model.kept if one.end <= end]
    for way in ("sent", "cut"):
        one = random.choice(kept[len(kept) // 2 :]) if way == "cut" else None
        look = partial(_settles, end=end, whole=whole, size=size, cut=one, model=model)
        run = run_alone(partial(serve, stops=random.random() < 0.5), slave, look, image=image)
        look = partial(_owes_nothing, model=model, cut=one)
        again = run_alone(serve, config, look, image=run.image)  # as a master
        digest += run.digest + again.digest
    return digest


async def _lacks(store: MessageStore, end: int) -> None:
    assert store.max_offset == end, f"slave: its log ends at {store.max_offset}, not {end}"
    await trio.sleep(2 * MARKED_S)
    assert store.lost_bytes, "slave: it owes nothing"


async def _settles(
    store: MessageStore, end: int, whole: DiskImage, size: int, cut: Kept | None, model: Model
) -> None:
    """Its log is ended lower, or it is sent what it lacks, in pieces: it owes that to the end."""
    assert store.lost_bytes, "slave: it owes nothing after a start"
    if cut is not None:
        await store.removal.cut(cut.end)
        assert not store.lost_bytes, f"slave: it owes what a cut at {cut.end} took"
        return
    at = end
    while at < model.written:
        path, where = place_of(at, size)
        piece = whole.contents(path)[where : where + min(700, model.written - at)]
        store.log.append_raw(at, piece)
        at += len(piece)
        await trio.sleep(0.05)
    await store.dispatched.wait_for(model.written)
    await trio.sleep(3)
    assert not store.lost_bytes, "slave: it owes what has come"


async def _owes_nothing(store: MessageStore, model: Model, cut: Kept | None) -> None:
    assert not store.lost_bytes, "slave: it owes what has come, or was cut, after a start"
    known = model.copy()
    if cut is not None:
        known.kept = [one for one in known.kept if one.end <= cut.end]
        known.written = cut.end
    wrong = await answers_of(store, known)
    assert not wrong, f"slave: with its log up to {known.written}: {wrong}"
