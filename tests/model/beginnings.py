"""A directory as a start may find it: one that another program had, one with an
older mark, half-written files, strays, a torn end.

What a start says of it, from where it reads the log again, and that its answers are right. Files
are changed as others would leave them, in the form that docs/reference/formats.md gives.
"""

import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.node.store.errors import BadStoreDirectory
from rocketbed.node.store.store import MessageStore
from tests.model.alone import run_alone
from tests.model.damage import Filled
from tests.model.mending import answers_of, edited, place_of, serve
from tests.model.model import Kept, Model
from tests.model.store import ROOT, Life, Topics, look_at, settings

MARK, FLUSHED = f"{ROOT}/rocketbed.ckpt", f"{ROOT}/rocketbed.flushed"
CHECKPOINT, ABORT = f"{ROOT}/checkpoint", f"{ROOT}/abort"
STRAYS: Final = "strays"
QUEUE_STRAYS: Final = (
    "consumequeue/A/x",
    "consumequeue/A/007",
    "consumequeue/A/1/notes",
    "consumequeue/notes",
    "batchconsumequeue/C/-1",
    "batchconsumequeue/C/0/notes",
    "index/notes",
)
COUNT: Final = 14
SECTOR: Final = 512
Change = Callable[[SimDisk], None]


def run_beginnings(seed: int) -> str:
    full, older = filled_twice(seed)
    digest = _of_others(full, older)
    digest += _in_the_way(full, Random(f"beginnings/{seed}"))
    digest += _orders(full, Random(f"orders/{seed}"))
    return digest + _headless(full) + _torn(seed) + _missing(seed)


def filled_twice(seed: int) -> tuple[Filled, DiskImage]:
    """After a second clean stop, and its disk after the first."""
    config = settings(Random(f"beginnings/{seed}"), append_property_crc=False)
    model, image, before = Model(segment=config.segment_size), None, None
    for number in range(2):
        life = Life(model, Random(f"beginnings/{seed}/{number}"), 0, power=False)
        run = run_alone(partial(life.fill, count=COUNT, mixed=True), config, image=image)
        if life.wrong is not None:
            raise life.wrong
        before, image = image, run_alone(partial(serve, stops=True), config, image=run.image).image
    assert image is not None
    assert before is not None
    return Filled(image, model, config), before


async def _found(store: MessageStore, model: Model) -> tuple[Any, str]:
    return store.recovery, await answers_of(store, model)


def starts(full: Filled, what: str, change: Change, *, again: bool, says: str = "") -> str:
    """A start of a directory that was changed so: whether it builds queues and index again, and
    what it says; that all answers are right, and the independent reader finds nothing later."""
    image = edited(full.image, change)
    told = run_alone(MessageStore.check, full.config, Topics(), image=image).value
    look = partial(_found, model=full.model)
    run = run_alone(partial(serve, stops=True), full.config, look, image=image)
    report, wrong = run.value
    assert not wrong, f"answers: {what}: {wrong}"
    named = {str(line.fields["path"]) for line in run.log if line.event == "store.stray"}
    strays = {f"{ROOT}/{stray}" for stray in QUEUE_STRAYS} if what == STRAYS else set()
    strays -= {one for one in strays if not _is_seen(full.image, one)}
    assert named == strays, f"strays: {named} for {strays}"
    end, low = full.model.written, full.model.kept[0].physical
    want = low // full.size * full.size if again else end
    assert report.scanned_from == want, f"start: {what}: read from {report.scanned_from}"
    lines = " ".join([*told, *report.findings, report.reason])
    assert says in lines, f"start: {what}: {lines!r} does not say {says!r}"
    others = struct.unpack_from(">6q", run.image.contents(CHECKPOINT))[3:]
    last = full.model.kept[-1].physical
    assert others == (0, last, 0), f"checkpoint: {what}: {others}, the last record is at {last}"
    count = sum(one.physical >= want for one in full.model.kept)
    previewed = f"{count} records would be dispatched again, from offset {want}" in lines
    assert previewed, f"preview: {what}: {told} for {want}"
    look_at(run.image, but=("sizes",) if what == STRAYS else ())
    return run.digest


def _is_seen(image: DiskImage, stray: str) -> bool:
    """Whether a start looks where a stray is: in a queue's folder only if there is that queue."""
    folder = stray.rpartition("/")[0]
    is_queue = folder.rpartition("/")[2].isdigit()
    return not is_queue or any(path.startswith(f"{folder}/") for path in image.paths())


# --- of others, or half-written


def checkpoint(physic_ms: int, logics_ms: int) -> bytes:
    return struct.pack(">6q", physic_ms, logics_ms, physic_ms, 0, 0, 0).ljust(4096, b"\0")


def _of_others(full: Filled, older: DiskImage) -> str:
    """What another program left in a directory of ours, and what a full disk did."""
    index = max(path for path in full.image.paths() if "/index/" in path)
    mark = full.image.contents(MARK)

    def spoilt(disk: SimDisk) -> None:
        disk.replace_contents(CHECKPOINT, checkpoint(5, 5))

    def both(disk: SimDisk) -> None:
        spoilt(disk)
        disk.replace_contents(ABORT, b"")

    def aged(disk: SimDisk) -> None:
        for path in (MARK, FLUSHED, CHECKPOINT):
            disk.replace_contents(path, older.contents(path))

    def halved(disk: SimDisk) -> None:
        disk.replace_contents(MARK, mark[: len(mark) // 2])

    def strays(disk: SimDisk) -> None:
        for stray in QUEUE_STRAYS:
            if stray.endswith("notes"):
                disk.replace_contents(f"{ROOT}/{stray}", b"mine")
            else:
                disk.makedirs(f"{ROOT}/{stray}")
        disk.replace_contents(f"{ROOT}/commitlog/notes", b"mine")

    kinds: tuple[tuple[str, Change, bool, str], ...] = (
        ("an empty abort file", lambda d: d.replace_contents(ABORT, b""), False, ""),
        ("an empty abort file, another checkpoint", both, True, "another broker's"),
        ("an abort file", lambda d: d.replace_contents(ABORT, b"1\n"), True, "another broker's"),
        ("another checkpoint", spoilt, True, "no clean stop of rocketbed"),
        ("an older mark", aged, True, "an old copy"),
        ("half a mark", halved, True, "no durable mark"),
        ("no F", lambda d: d.remove_name(FLUSHED), False, ""),
        ("no index file", lambda d: d.remove_name(index), True, "an index file was removed"),
        (STRAYS, strays, False, "is no segment"),
    )
    digest = "".join(
        starts(full, what, change, again=again, says=says) for what, change, again, says in kinds
    )
    return digest


# --- something in the way of a queue


def _in_the_way(full: Filled, random: Random) -> str:
    """A file or a folder with the name that a queue needs: it is kept, and the queue is made."""

    def change(disk: SimDisk) -> None:
        disk.replace_contents(f"{ROOT}/consumequeue/N1", b"mine")
        disk.makedirs(f"{ROOT}/consumequeue/N2")
        disk.replace_contents(f"{ROOT}/consumequeue/N2/0", b"mine")
        disk.makedirs(f"{ROOT}/consumequeue/N3/1/{0:020d}/mine")

    model = full.model.copy()
    life = Life(model, random, 0, power=False)

    async def look(store: MessageStore) -> str:
        for topic in ("N1", "N2", "N3"):
            for queue in (0, 1):
                life.put_in(store, topic, queue)
        return await answers_of(store, model)

    run = run_alone(partial(serve, stops=True), full.config, look, image=edited(full.image, change))
    assert not run.value, f"answers: in the way of a queue: {run.value}"
    kept = [path for path in run.image.paths() if "/rocketbed.cut/" in path]
    mine = [path for path in kept if run.image.contents(path) == b"mine"]
    assert len(mine) == 2, f"aside: {kept}: what stood in the way"
    return run.digest


# --- settings of a start


def _orders(full: Filled, random: Random) -> str:
    """An index that was switched off for a while is built again, also after a start that ended
    soon; a topic that the operator says was deleted is, and the next start builds nothing again."""
    model = full.model.copy()
    life = Life(model, random, 0, power=False)

    async def put(store: MessageStore) -> None:
        for topic in ("A", "B"):
            life.put_in(store, topic, 0)

    off = replace(full.config, index_enabled=False)
    run = run_alone(partial(serve, stops=True), off, put, image=full.image)
    run = run_alone(partial(serve, stops=True), off, image=run.image)
    look = partial(_found, model=model)
    found = run_alone(partial(serve, stops=True), full.config, look, image=run.image)
    report, wrong = found.value
    assert not wrong, f"answers: the index was off: {wrong}"
    assert report.took_over, "start: the index was off, and is taken as it is"
    look_at(found.image)
    ordered = replace(full.config, topics_deleted=(("D", model.written),))
    model.deleting = "D"
    model.was_deleted()
    image = found.image
    for number in range(2):
        run = run_alone(partial(serve, stops=True), ordered, look, image=image)
        report, wrong = run.value
        assert not wrong, f"answers: a deletion that was ordered: {wrong}"
        again = f"{number}: {report.reason!r}"
        assert report.took_over == (not number), f"start: a deletion that was ordered, {again}"
        image = run.image
    return found.digest + run.digest


# --- a log without its beginning


def _headless(full: Filled) -> str:
    """The first file of the log is gone, which retention never took: a start says what is missing,
    and goes on without it by an operator's order; the next one needs none."""
    first, size = full.model.kept[0].physical // full.size * full.size, full.size
    low = first + size
    model = full.model.copy()
    model.kept = [one for one in model.kept if one.physical >= low]
    if len(model.kept) < 2:
        return ""
    image = edited(full.image, lambda disk: disk.remove_name(place_of(first, size)[0]))
    for order in (-1, low + size):
        try:
            run_alone(serve, replace(full.config, accept_start_at=order), image=image)
        except BadStoreDirectory as exc:
            says = f"at offset {low}, but retention had kept everything from {first}: {size} bytes"
            assert says in str(exc), f"refusal: {exc}: not {says!r}"
        else:
            raise AssertionError(
                f"silence: the log begins at {low} for {first}, ordered at {order}"
            )
    digest = ""
    for order in (low, -1):
        config, look = replace(full.config, accept_start_at=order), partial(_found, model=model)
        run = run_alone(partial(serve, stops=True), config, look, image=image)
        report, wrong = run.value
        assert not wrong, f"answers: without the first file, ordered at {order}: {wrong}"
        said = f"rbAcceptStart={low} is set" in " ".join(report.findings)
        assert said == (order == low), f"start: {report.findings}, ordered at {order}"
        image, digest = run.image, digest + run.digest
    return digest


# --- a torn end


def _torn(seed: int) -> str:
    """The power went, and of the sector in which a record ends nothing had come to the disk: its
    topic or its properties are zero, which no checksum covers."""
    late = {"flush_interval_ms": 10**8, "flush_thorough_interval_ms": 10**8}
    late |= {"mark_interval_ms": 10**8, "sync_flush": False, "append_property_crc": False}
    config = settings(Random(f"torn/{seed}"), **late)
    digest = ""
    for number in range(2):
        model = Model(segment=config.segment_size)
        life = Life(model, Random(f"torn/{seed}/{number}"), 0, power=False)
        life.own = "own\x01\0\x02" * (number + 1)  # which are no lost sector
        run = run_alone(partial(life.fill, count=COUNT, is_flushed=False), config)
        if life.wrong is not None:
            raise life.wrong
        power = Life(_unflushed(model), Random(f"torn/{seed}"), 0, power=True)
        whole = run_alone(partial(power.main, stops=True), config, image=run.image, boots=2)
        if power.wrong is not None:
            raise power.wrong
        assert power.model.written == model.written, "loss: zeros in properties, all is there"
        digest += whole.digest
        crossing = [one for one in model.kept if _crosses(one)]
        if not crossing:
            continue
        one = crossing[len(crossing) // 2]
        bad = edited(run.image, partial(_lose, one=one, size=config.segment_size))
        model.flushed = 0
        again = Life(model, Random(f"torn/{seed}"), 0, power=True)
        found = run_alone(partial(again.main, stops=True), config, image=bad, boots=2)
        if again.wrong is not None:
            raise again.wrong
        gone = [o for o in model.kept if o.physical >= one.physical]
        assert not gone, f"log: a record at {one.physical} with a lost sector is given"
        digest += found.digest
    return digest


def _unflushed(model: Model) -> Model:
    """The same, of which nothing is known to be on disk."""
    other = model.copy()
    other.flushed = 0
    return other


def _missing(seed: int) -> str:
    """The power went, and the name of a file in the middle of the log: what is behind it is kept
    aside where it holds messages, and what holds none is not."""
    late = {"flush_interval_ms": 10**8, "flush_thorough_interval_ms": 10**8}
    late |= {"mark_interval_ms": 10**8, "sync_flush": False, "segment_size": 2048}
    config = settings(Random(f"missing/{seed}"), **late)
    model = Model(segment=config.segment_size)
    life = Life(model, Random(f"missing/{seed}"), 0, power=False)
    run = run_alone(partial(life.fill, count=COUNT, is_flushed=False), config)
    if life.wrong is not None:
        raise life.wrong
    size = config.segment_size
    files = sorted({one.physical // size * size for one in model.kept})
    lost, last = files[len(files) // 2], files[-1]
    empty = place_of(last + size, size)[0]

    def change(disk: SimDisk) -> None:
        disk.remove_name(place_of(lost, size)[0])
        disk.replace_contents(empty, bytes(size))

    model.kept = [one for one in model.kept if one.physical < lost]
    model.written = lost  # with what fills the file before it
    bad = edited(run.image, change)
    found = run_alone(partial(serve, stops=True), config, partial(_found, model=model),
                      image=bad, boots=2)  # fmt: skip
    report, wrong = found.value
    assert not wrong, f"answers: a file of the log was lost with the power: {wrong}"
    kept = {found.image.contents(path) for path in found.image.paths() if "/rocketbed.cut/" in path}
    behind = {bad.contents(place_of(at, size)[0]) for at in files if at > lost}
    assert kept == behind, f"aside: {len(kept)} files for {len(behind)} behind the one lost"
    told = "does not reach the messages" in " ".join(report.findings)
    assert told == bool(behind), f"start: {report.findings}"
    return found.digest


def _crosses(one: Kept) -> bool:
    """Whether a sector begins in its properties, and some of them stand before that."""
    sector = (one.end - 1) // SECTOR * SECTOR
    return one.end - len(one.put.properties) < sector < one.end - 1


def _lose(disk: SimDisk, one: Kept, size: int) -> None:
    path, at = place_of(one.physical, size)
    data = disk.contents(path)
    sector = (at + one.size - 1) // SECTOR * SECTOR
    disk.replace_contents(path, data[:sector] + bytes(len(data) - sector))
    for place in disk.image().paths():
        if place.startswith(f"{ROOT}/commitlog/") and place > path:
            disk.remove_name(place)
