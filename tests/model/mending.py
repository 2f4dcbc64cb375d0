"""A store that lost something at rest: what it says, what it still gives, and how it is mended.

The disk of a store that stopped is changed behind its back. What a start then gives has to be
right, or it has to have said what is wrong; and whoever heals it from a replica, closes the hole or
ends the log has to have just what the model says.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any, Final

import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.chaos.backends.sim.solo import SoloRun
from rocketbed.node.store.config import SEGMENT_SIZE, StoreConfig
from rocketbed.node.store.errors import BadStoreDirectory, CorruptRecord, DamagedLog
from rocketbed.node.store.heal import Fetch, heal
from rocketbed.node.store.heal_files import NotHealed
from rocketbed.node.store.store import MessageStore
from rocketbed.wire.message import RECORD_MIN, TRANSACTION_ROLLBACK, decode_message
from rocketbed.world.api import World
from tests.model.alone import run_alone
from tests.model.answers import ask
from tests.model.durable import Loss, ensure_durable
from tests.model.model import Kept, Model
from tests.model.store import (
    BATCHES,
    ROOT,
    Life,
    Topics,
    ensure_closed,
    look_at,
    run_lives,
    settings,
)

MARK: Final = f"{ROOT}/rocketbed.ckpt"
LOG: Final = f"{ROOT}/commitlog/"
DERIVED: Final = ("consumequeue/", "batchconsumequeue/", "index/")
ALARMS: Final = ("warning", "error")
UNIT: Final = 20
"""Bytes of a unit of an ordinary queue."""


def run_mending(seed: int) -> str:
    """All of it for a store of this seed; a digest of what happened."""
    random = Random(f"mending/{seed}")
    image, model, digest = run_lives(seed, lives=2)
    config = settings(Random(f"lives/{seed}"))
    for _ in range(4):
        digest += _derived(image, model, config, random)
    digest += _wrong_unit(image, model, config, random)
    digest += _rotten(image, model, config, random)
    digest += _short(image, model, config)
    digest += _several(image, model, config, random)
    return digest + _hole(seed, random)


async def serve(
    world: World,
    config: StoreConfig,
    look: Callable[[MessageStore], Any] | None = None,
    *,
    stops: bool = False,
) -> Any:
    """A start, its scrub, and what `look` makes of it; with `stops` a clean end."""
    before = Loss(world.disk)  # of a life that was killed
    store = await MessageStore.open(world, config, Topics())
    ensure_durable(world, "a start", since=before)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await store.scrubber.finished.wait()
        await store.dispatched.wait_for(store.max_offset)
        found = await look(store) if look is not None else None
        if stops:
            await store.close()
        nursery.cancel_scope.cancel()
    if stops:
        ensure_closed(world)
        ensure_durable(world, "a clean stop", since=before)
    return found


async def answers_of(store: MessageStore, model: Model) -> str:
    """What is wrong with the answers; empty: nothing."""
    try:
        await ask(store, model, Random(1), BATCHES)
    except (AssertionError, CorruptRecord) as exc:
        return str(exc)
    return ""


async def _cut(store: MessageStore, model: Model) -> tuple[str, str]:
    """The same, and what is told of a cut."""
    return await answers_of(store, model), store.runtime_info()["acceptedCuts"]


def edited(image: DiskImage, change: Callable[[SimDisk], None]) -> DiskImage:
    disk = SimDisk(image)
    change(disk)
    return disk.image()


def _derived(image: DiskImage, model: Model, config: StoreConfig, random: Random) -> str:
    """A file that can be made again from the log: served right, or told; right at the second
    start, if the file was lost as a whole. A bit of a unit whose record is gone may go unseen: its
    queue begins one earlier then, where nothing is."""
    places = [p for p in image.paths() if p.removeprefix(f"{ROOT}/").startswith(DERIVED)]
    path = random.choice(places)
    data = image.contents(path)
    kind = random.choice(("lost", "zeros", "short", "bit"))
    at = random.randrange(len(data)) if kind == "bit" else 0
    first = min((kept.physical for kept in model.kept), default=0)
    unit = data[at // UNIT * UNIT :][:8]
    is_gone = kind == "bit" and "/consumequeue/" in path and int.from_bytes(unit) < first

    def change(disk: SimDisk) -> None:
        if kind == "lost":
            disk.remove_name(path)
        elif kind == "zeros":
            disk.replace_contents(path, bytes(len(data)))
        elif kind == "short":
            disk.replace_contents(path, data[: len(data) // 2])
        else:
            bit = bytes((data[at] ^ 1 << random.randrange(8),))
            disk.replace_contents(path, data[:at] + bit + data[at + 1 :])

    run = run_alone(serve, config, partial(answers_of, model=model), image=edited(image, change))
    told = any(line.level in ALARMS for line in run.log)
    assert not run.value or told or is_gone, f"silence: {path}, {kind}: {run.value}"
    if kind == "lost":
        again = run_alone(serve, config, partial(answers_of, model=model), image=run.image)
        assert not again.value, f"mending: {path} was lost: {again.value}"
    return run.digest


def _wrong_unit(image: DiskImage, model: Model, config: StoreConfig, random: Random) -> str:
    """One bit of a unit whose record is there: the scrub mends it from the log, and counts that."""
    first = min((kept.physical for kept in model.kept), default=0)
    units = [
        (path, at)
        for path in image.paths()
        if "/consumequeue/" in path
        for at in range(0, len(image.contents(path)), UNIT)
        if int.from_bytes(image.contents(path)[at + 8 : at + 12])
        and int.from_bytes(image.contents(path)[at : at + 8]) >= first
    ]
    if not units:
        return ""
    path, at = random.choice(units)
    data = bytearray(image.contents(path))
    data[at + random.randrange(8, UNIT)] ^= 1 << random.randrange(8)
    bad = edited(image, lambda disk: disk.replace_contents(path, bytes(data)))
    run = run_alone(serve, config, partial(_mended, model=model), image=bad)
    again = run_alone(serve, config, partial(answers_of, model=model), image=run.image)
    told = any(line.level in ALARMS for line in run.log)
    mended, wrong = run.value
    assert mended > 0 or told or not wrong, f"silence: {path} at {at}: {wrong}"
    assert not again.value, f"mending: {path} at {at}: {again.value}"
    return run.digest


async def _mended(store: MessageStore, model: Model) -> tuple[int, str]:
    return store.scrubber.healed, await answers_of(store, model)


def _rotten(image: DiskImage, model: Model, config: StoreConfig, random: Random) -> str:
    """One byte of a body: the scrub names the record, and nobody gets it; a replica mends it."""
    if len(model.kept) < 2:
        return ""
    one = random.choice(model.kept[:-1])  # over the last one a start refuses
    bad = edited(image, partial(_flip, one=one, size=config.segment_size))
    found = run_alone(serve, config, partial(_refused, one=one, model=model), image=bad)
    return found.digest + healed(bad, image, model, config).digest


async def _refused(store: MessageStore, one: Kept, model: Model) -> None:
    ranges = [(damage.start, damage.end) for damage in store.scrubber.damage]
    after = min(kept.physical for kept in model.kept if kept.physical > one.physical)
    is_named = len(ranges) == 1 and ranges[0][0] == one.physical
    assert is_named and one.end <= ranges[0][1] <= after, f"scrub: {ranges} for {one.physical}"
    assert str(one.physical) in store.damaged_ranges, "scrub: the ranges do not say it"
    for kept in model.kept:
        if kept.physical in model.hidden or kept.put.topic in model.doubtful:
            continue
        try:
            found = store.get_messages(*kept.place, kept.offset, 1)
            data = await store.read(found.ranges)
        except CorruptRecord as exc:
            # A batch behind it cannot show that it is the next one.
            is_beside = kept.place == one.place and kept.put.topic in BATCHES
            assert kept is one or is_beside, f"pull: {kept.physical} is refused: {exc}"
        else:
            assert kept is not one, f"pull: the damaged {one.physical} was given"
            assert data == kept.data, f"pull: another record for {kept.physical}"


def _flip(disk: SimDisk, one: Kept, size: int) -> None:
    path, at = place_of(one.physical, size)
    data = bytearray(disk.contents(path))
    data[at + one.data.index(one.put.body) + 2] ^= 8
    disk.replace_contents(path, bytes(data))


def place_of(physical: int, size: int) -> tuple[str, int]:
    return f"{LOG}{physical // size * size:020d}", physical % size


def _short(image: DiskImage, model: Model, config: StoreConfig) -> str:
    """The last file of the log is gone: no start without a word; a replica has it."""
    last = place_of(model.kept[-1].physical, config.segment_size)[0]
    bad = edited(image, lambda disk: disk.remove_name(last))
    try:
        run_alone(serve, config, image=bad)
    except (DamagedLog, BadStoreDirectory) as exc:
        begins = {str(model.written), str(int(last.removeprefix(LOG)))}
        is_named = getattr(exc, "offset", None) is not None or any(at in str(exc) for at in begins)
        assert is_named, f"refusal: {exc!s}"
    else:
        assert last == f"{LOG}{0:020d}", f"silence: {last} is gone, and the store started"
    _is_no_part(bad, model, config, image)
    return healed(bad, image, model, config).digest


def _is_no_part(bad: DiskImage, model: Model, config: StoreConfig, good: DiskImage) -> None:
    """A file that lies far behind the log, and holds no record of it: nothing is healed before
    somebody has moved it away, and nothing is changed."""
    size = config.segment_size
    path = place_of((model.written // size + 3) * size, size)[0]
    with_it = edited(bad, lambda disk: disk.replace_contents(path, b"mine".ljust(size, b"\0")))
    disks: list[SimDisk] = []
    try:
        run_alone(heal, config, _replica(good, size), image=with_it, prepare=disks.append)
    except NotHealed as exc:
        assert path in str(exc), f"heal: {exc} does not name {path}"
    else:
        raise AssertionError(f"heal: {path} was taken for a part of the log")
    assert _files(disks[0].image()) == _files(with_it), "heal: it changed something"


def _several(image: DiskImage, model: Model, config: StoreConfig, random: Random) -> str:
    """Rotten records in some files of the log, and one of its files gone."""
    files = sorted({kept.physical // config.segment_size for kept in model.kept})
    lost = random.choice(files)
    rest = [kept for kept in model.kept if kept.physical // config.segment_size != lost]
    rotten = random.sample(rest, min(len(rest), 3))

    def change(disk: SimDisk) -> None:
        for one in rotten:
            _flip(disk, one, config.segment_size)
        disk.remove_name(place_of(lost * config.segment_size, config.segment_size)[0])

    bad = edited(image, change)
    digest = healed(bad, image, model, config).digest
    if len(files) < 3 or lost in (files[0], files[-1]):
        return digest
    # Without a mark the files tell how long they are, or the settings do.
    bare = edited(bad, lambda disk: disk.remove_name(MARK))
    for size in (config.segment_size, SEGMENT_SIZE):
        known = replace(config, segment_size=size)
        mended = run_alone(_heal, known, _replica(image, config.segment_size), image=bare)
        _same_log(mended.image, image)
        digest += mended.digest
    return digest


def healed(bad: DiskImage, good: DiskImage, model: Model, config: StoreConfig) -> SoloRun:
    """Healed, the log is what it was, byte for byte, and gives what it gave."""
    told, bad = config, edited(bad, _strays)
    if MARK in bad.paths() and len(model.kept) % 2:  # the command may know no settings
        told = replace(config, segment_size=SEGMENT_SIZE)
    mended = run_alone(_heal, told, _replica(good, config.segment_size), image=bad)
    _same_log(mended.image, good)
    _kept(mended.image, bad, good, config.segment_size)
    after = run_alone(serve, config, partial(answers_of, model=model), image=mended.image)
    assert not after.value, f"heal: {after.value!s}"
    return after


async def _heal(world: World, config: StoreConfig, fetch: Fetch) -> None:
    await heal(world, config, fetch)
    ensure_durable(world, "a heal", LOG, f"{ROOT}/rocketbed.cut/")


def _strays(disk: SimDisk) -> None:
    """Files beside those of the log, some of whose names look like theirs."""
    for name in ("007", "x" * 20, f"{1:019d}x"):
        disk.replace_contents(LOG + name, b"mine")


def _kept(mended: DiskImage, bad: DiskImage, good: DiskImage, size: int) -> None:
    """What was replaced, and was not zero, is kept."""
    kept: dict[int, int] = {}
    for path in mended.paths():
        name = path.rpartition("/")[2]
        if "/rocketbed.cut/" in path and ".healed" in name:
            data = mended.contents(path)
            kept |= {int(name[:20]) + at: byte for at, byte in enumerate(data)}
    for path in bad.paths():
        if path.startswith(LOG) and path in good.paths():
            start = int(path.removeprefix(LOG))
            both = zip(bad.contents(path), good.contents(path), strict=False)
            lost = [start + at for at, (old, new) in enumerate(both)
                    if old not in (0, new) and kept.get(start + at) != old]  # fmt: skip
            assert not lost, f"heal: bytes at {lost[:3]} were replaced, and are kept nowhere"


def _same_log(mended: DiskImage, good: DiskImage) -> None:
    for path in good.paths():
        if path.startswith(LOG):
            same = mended.contents(path) == good.contents(path)
            assert same, f"heal: {path} is not what the replica has"


def _replica(image: DiskImage, size: int) -> Fetch:
    """A replica as `heal` asks it: whatever it wants, in pieces of odd lengths."""

    async def fetch(start: int, end: int, take: Callable[[int, bytes], None]) -> None:
        while start < end:
            path, at = place_of(start, size)
            data = image.contents(path)[at : at + min(333, end - start)]
            take(start, data)
            start += len(data)
            await trio.lowlevel.checkpoint()

    return fetch


def run_holes(seed: int) -> str:
    """Holes that end with a file of the log, and some above what is known."""
    random = Random(f"holes/{seed}")
    return _hole(seed, random, to_the_end=True) + _torn(seed, random)


def _torn(seed: int, random: Random) -> str:
    """Nothing is known to be on disk, and a record in the middle is bad: after a kill that is
    damage; a power cut may leave it, and the log ends there, whatever an operator has ordered."""
    late = {"flush_interval_ms": 10**8, "flush_thorough_interval_ms": 10**8}
    late |= {"mark_interval_ms": 10**8, "sync_flush": False, "append_property_crc": False}
    config = settings(Random(f"torn/{seed}"), **late)
    model = Model(segment=config.segment_size)
    life = Life(model, Random(f"torn/{seed}"), 0, power=False)
    run = run_alone(partial(life.fill, count=12, is_flushed=False), config)
    if life.wrong is not None:
        raise life.wrong
    here = random.randrange(1, len(model.kept) - 1)
    one = model.kept[here]
    bad = edited(run.image, partial(_flip, one=one, size=config.segment_size))
    _refuses(bad, config, one)
    behind = len(model.kept) - here - 1
    model.kept, model.written = model.kept[:here], one.physical
    for order in (-1, one.physical):
        ordered = replace(config, fill_hole_at=order)
        look = partial(_ends, model=model)
        ended = run_alone(partial(serve, stops=True), ordered, look, image=bad, boots=2)
        assert ended.value == (behind, ""), f"torn: ordered at {order}: {ended.value}, {behind}"
        look_at(ended.image)
    return run.digest + ended.digest


async def _ends(store: MessageStore, model: Model) -> tuple[int, str]:
    """How many good records a start has cut off, and what is wrong with its answers."""
    return store.recovery.cut_records, await answers_of(store, model)


def _hole(seed: int, random: Random, *, to_the_end: bool = False) -> str:
    """A record that nobody can read, above the mark and below what was on disk: a start refuses
    and names it; a filler keeps what is behind it, a cut what is before it."""
    rare = {"mark_interval_ms": 10_000_000, "delete_when": (), "sync_flush": False}
    config = settings(Random(f"lives/{seed}"), **rare)
    model = Model(segment=config.segment_size)
    life = Life(model, Random(f"hole/{seed}"), 0, power=False)
    run = run_alone(partial(life.fill, count=20), config)
    if life.wrong is not None:
        raise life.wrong
    files = [(here, kept.physical // config.segment_size) for here, kept in enumerate(model.kept)]
    lasts = [here for (here, file), (_, after) in pairwise(files) if file != after]
    one = model.kept[random.choice(lasts) if to_the_end else random.randrange(3, len(files) - 3)]
    bad = edited(run.image, partial(_flip, one=one, size=config.segment_size))
    _refuses(bad, config, one)
    # Nothing stands behind the last one: only what was on disk (F) tells it from a torn end.
    last = model.kept[-1]
    end = edited(run.image, partial(_flip, one=last, size=config.segment_size))
    _refuses(end, config, last)
    for spoilt in (bad, end):
        healed(spoilt, run.image, model, config)
    orders = run_alone(MessageStore.check, replace(config, fill_hole_at=one.physical), image=bad)
    assert bool(orders.value), "preview: an order is not told"
    assert _files(orders.image) == _files(bad), "preview: it changed something"
    filled = replace(config, fill_hole_at=one.physical)
    look = partial(_all_but, one=one, model=model)
    run = run_alone(partial(serve, stops=True), filled, look, image=bad)
    _is_filler(run.image, one, config.segment_size)
    look_at(run.image, but=("queue-entry-places",))  # the queue lacks one message, as it has to
    cut = replace(config, accept_cut_at=one.physical)
    gone = sum(kept.physical >= one.physical for kept in model.kept)
    known = model.written
    model.kept = [kept for kept in model.kept if kept.physical < one.physical]
    model.written = one.physical
    ended = run_alone(partial(serve, stops=True), cut, partial(_cut, model=model), image=bad)
    answers, told = ended.value
    assert not answers, f"cut: {answers}"
    offset, was_known, most, _ = map(int, told.split(":"))
    most_ever = (known - one.physical) // RECORD_MIN
    right = (offset, was_known) == (one.physical, known) and gone <= most <= most_ever
    assert right, f"cut: {told}: {gone} messages from {one.physical} to {known}"
    kept = any("rocketbed.cut" in path for path in ended.image.paths())
    assert kept, "cut: what was cut is not kept"
    look_at(ended.image)
    # The order was for one start; what it did is known to the next, whatever came between.
    killed = run_alone(serve, cut, image=bad)
    after = run_alone(serve, config, partial(answers_of, model=model), image=killed.image)
    assert not after.value, f"cut: after a kill: {after.value}"
    return run.digest + ended.digest + after.digest


def _is_filler(image: DiskImage, one: Kept, size: int) -> None:
    """A record of no queue, up to the next good one, that holds what was there."""
    path, at = place_of(one.physical, size)
    data = image.contents(path)[at:]
    data = data[: int.from_bytes(data[:4])]
    assert len(data) >= one.size, f"filler: {len(data)} bytes for {one.size}"
    found = decode_message(data)
    told = (found.topic, found.queue_id, found.queue_offset, found.flag, found.reconsume_times,
            found.sys_flag, found.physical_offset)  # fmt: skip
    want = ("!", 0, 0, 0, 0, TRANSACTION_ROLLBACK, one.physical)
    assert told == want, f"filler: {told} for {want}"
    assert one.put.body[:2] in data, "filler: what was there is not kept"


def _refuses(bad: DiskImage, config: StoreConfig, one: Kept) -> None:
    try:
        run_alone(serve, config, image=bad)
    except DamagedLog as exc:
        assert exc.offset == one.physical, f"refusal: {exc.offset} for {one.physical}"
    else:
        raise AssertionError(f"silence: a hole at {one.physical}, and the store started")


def _files(image: DiskImage) -> dict[str, bytes]:
    return {path: image.contents(path) for path in image.paths() if not path.endswith("lock")}


async def _all_but(store: MessageStore, one: Kept, model: Model) -> None:
    assert store.max_offset == model.written, f"filler: the log ends at {store.max_offset}"
    for kept in model.kept:
        found = store.get_messages(*kept.place, kept.offset, 1)
        data = await store.read(found.ranges)
        same = (data == kept.data) == (kept is not one)
        assert same, f"filler: {kept.place} {kept.offset} of {one.physical}: {found}"
