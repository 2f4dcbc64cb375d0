"""A store that lost files or records: what a start refuses, and how it is repaired.

A heal from a replica, a filler over a hole and a cut at it have to leave just what the model says.
"""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any, Final

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.node.store.config import SEGMENT_SIZE, StoreConfig
from rocketbed.node.store.errors import BadStoreDirectory, DamagedLog
from rocketbed.node.store.heal import heal
from rocketbed.node.store.heal_files import NotHealed
from rocketbed.node.store.store import MessageStore
from rocketbed.wire.message import RECORD_MIN, TRANSACTION_ROLLBACK, decode_message
from tests.model.alone import run_alone
from tests.model.at_rest import (
    LOG,
    MARK,
    UNFLUSHED,
    AtRest,
    check_answers,
    edited,
    filled,
    serve,
)
from tests.model.lives import check_directory, run_lives
from tests.model.model import Kept, Model
from tests.model.store import settings

__all__ = ["edited", "run_holes", "run_mending", "serve"]
RARE: Final[dict[str, Any]] = {"mark_interval_ms": 10_000_000, "sync_flush": False}


def run_mending(seed: int) -> str:
    """Heal a store without its last file, and record with several damages."""
    random = Random(f"mending/{seed}")
    image, model, digest = run_lives(seed, lives=2)
    at_rest = AtRest(image, model, settings(Random(f"lives/{seed}")))
    return digest + _without_last_file(at_rest) + _several_damages(at_rest, random)


def _without_last_file(at_rest: AtRest) -> str:
    model = at_rest.model
    last = at_rest.place(model.kept[-1].physical)[0]
    bad = edited(at_rest.image, lambda disk: disk.remove_name(last))
    try:
        run_alone(serve, at_rest.config, image=bad)
    except (DamagedLog, BadStoreDirectory) as exc:
        offsets = {str(model.written), str(int(last.removeprefix(LOG)))}
        is_named = getattr(exc, "offset", None) is not None or any(at in str(exc) for at in offsets)
        assert is_named, f"refusal: {exc!s}"
    else:
        assert last == f"{LOG}{0:020d}", f"silence: {last} is missing, and the store started"
    _far_file_stops_a_heal(at_rest, bad)
    return at_rest.heal(bad)


def _far_file_stops_a_heal(at_rest: AtRest, bad: DiskImage) -> None:
    """A file far beyond the log, without a record of it, has to be moved away first."""
    size = at_rest.config.segment_size
    path = at_rest.place((at_rest.model.written // size + 3) * size)[0]
    image = edited(bad, lambda disk: disk.replace_contents(path, b"mine".ljust(size, b"\0")))
    disks: list[SimDisk] = []
    try:
        run_alone(heal, at_rest.config, at_rest.fetch(), image=image, prepare=disks.append)
    except NotHealed as exc:
        assert path in str(exc), f"heal: {exc} does not name {path}"
    else:
        raise AssertionError(f"heal: {path} was taken for a part of the log")
    assert _files(disks[0].image()) == _files(image), "heal: it changed something"


def _files(image: DiskImage) -> dict[str, bytes]:
    return {path: image.contents(path) for path in image.paths() if not path.endswith("lock")}


def _several_damages(at_rest: AtRest, random: Random) -> str:
    """Damage records in some files of the log, and remove another file."""
    config, records = at_rest.config, at_rest.model.kept
    files = sorted({record.physical // config.segment_size for record in records})
    lost = random.choice(files)
    remaining = [record for record in records if record.physical // config.segment_size != lost]

    def change(disk: SimDisk) -> None:
        for record in random.sample(remaining, min(len(remaining), 3)):
            at_rest.damage(record)(disk)
        disk.remove_name(at_rest.place(lost * config.segment_size)[0])

    bad = edited(at_rest.image, change)
    digest = at_rest.heal(bad)
    if len(files) < 3 or lost in (files[0], files[-1]):
        return digest
    # Without a mark the files tell how long they are, or the settings do.
    bare = edited(bad, lambda disk: disk.remove_name(MARK))
    for size in (config.segment_size, SEGMENT_SIZE):
        resized = replace(config, segment_size=size)
        healed = run_alone(heal, resized, at_rest.fetch(), image=bare)
        at_rest.check_log(healed.image)
        digest += healed.digest
    return digest


def run_holes(seed: int) -> str:
    """Fill or cut at an unreadable record, which is the last of a file or any, flushed or not."""
    random = Random(f"holes/{seed}")
    digest = "".join(_hole(f"hole/{seed}", random, is_last=is_last) for is_last in (False, True))
    return digest + _unflushed_hole(f"torn/{seed}", random)


def _unflushed_hole(name: str, random: Random) -> str:
    """Nothing is resized to be synced: after a kill a bad record is damage; after a power cut the
    log ends there, whatever an operator has ordered."""
    at_rest = filled(name, 12, is_flushed=False, **UNFLUSHED)
    model = at_rest.model
    here = random.randrange(1, len(model.kept) - 1)
    record = model.kept[here]
    bad = edited(at_rest.image, at_rest.damage(record))
    _check_refused(bad, at_rest.config, record)
    cut_records = len(model.kept) - here - 1
    _end_at(model, record)

    async def look(store: MessageStore) -> None:
        actual = store.recovery.cut_records
        assert actual == cut_records, f"torn: {actual} records are cut, expected {cut_records}"
        await check_answers(store, model)

    digest = ""
    for order in (-1, record.physical):
        run = at_rest.start(
            look, image=bad, boots=2, config=replace(at_rest.config, fill_hole_at=order)
        )
        check_directory(run.image)
        digest += run.digest
    return digest


def _end_at(model: Model, record: Kept) -> None:
    model.kept = [former for former in model.kept if former.physical < record.physical]
    model.written = record.physical


def _hole(name: str, random: Random, *, is_last: bool) -> str:
    """A record above the mark, but resized to be synced, is bad: a start refuses and names it, a
    filler keeps the records after it, a cut those before it."""
    at_rest = filled(name, 20, **RARE)
    model, config = at_rest.model, at_rest.config
    files = [record.physical // config.segment_size for record in model.kept]
    lasts = [here for here, (file, after) in enumerate(pairwise(files)) if file != after]
    record = model.kept[random.choice(lasts) if is_last else random.randrange(3, len(files) - 3)]
    bad = edited(at_rest.image, at_rest.damage(record))
    _check_refused(bad, config, record)
    # Only the flushed offset tells the last record from a torn end.
    end = edited(at_rest.image, at_rest.damage(model.kept[-1]))
    _check_refused(end, config, model.kept[-1])
    digest = at_rest.heal(bad) + at_rest.heal(end)
    return digest + _fill(at_rest, bad, record) + _cut(at_rest, bad, record)


def _fill(at_rest: AtRest, bad: DiskImage, record: Kept) -> str:
    config = replace(at_rest.config, fill_hole_at=record.physical)
    preview = run_alone(MessageStore.check, config, image=bad)
    assert preview.value, "preview: an order is not reported"
    assert _files(preview.image) == _files(bad), "preview: it changed something"

    async def look(store: MessageStore) -> None:
        end = store.max_offset
        assert end == at_rest.model.written, f"filler: the log ends at {end}"
        for each in at_rest.model.kept:
            ranges = store.get_messages(*each.place, each.offset, 1).ranges
            is_same = await store.read(ranges) == each.data
            assert is_same == (each is not record), f"filler: {each.place} {each.offset}"

    run = at_rest.start(look, image=bad, config=config)
    check_directory(run.image, but=("queue-entry-places",))  # the queue lacks record message
    path, at = at_rest.place(record.physical)
    data = run.image.contents(path)[at:]
    data = data[: int.from_bytes(data[:4])]
    assert len(data) >= record.size, f"filler: {len(data)} bytes for {record.size}"
    filler = decode_message(data)
    actual = (filler.topic, filler.queue_id, filler.queue_offset, filler.flag,
              filler.reconsume_times, filler.sys_flag, filler.physical_offset)  # fmt: skip
    expected = ("!", 0, 0, 0, 0, TRANSACTION_ROLLBACK, record.physical)
    assert actual == expected, f"filler: {actual}, expected {expected}"
    assert record.put.body[:2] in data, "filler: the damaged bytes are not kept"
    return run.digest


def _cut(at_rest: AtRest, bad: DiskImage, record: Kept) -> str:
    config = replace(at_rest.config, accept_cut_at=record.physical)
    model = at_rest.model.copy()
    end = model.written
    count = sum(later.physical >= record.physical for later in model.kept)
    _end_at(model, record)

    async def look(store: MessageStore) -> None:
        await check_answers(store, model)
        text = store.runtime_info()["acceptedCuts"]
        offset, former_end, most, _ = map(int, text.split(":"))
        assert (offset, former_end) == (record.physical, end), f"cut: {text}"
        assert count <= most <= (end - record.physical) // RECORD_MIN, (
            f"cut: {text}, {count} records"
        )

    run = at_rest.start(look, image=bad, config=config)
    is_saved = any("rocketbed.cut" in path for path in run.image.paths())
    assert is_saved, "cut: the removed bytes are not kept"
    check_directory(run.image)
    # The order holds for record start; the next record knows what it did, even after a kill.
    killed = run_alone(serve, config, image=bad)
    restarted = at_rest.start(partial(check_answers, model=model), image=killed.image)
    return run.digest + restarted.digest


def _check_refused(bad: DiskImage, config: StoreConfig, record: Kept) -> None:
    try:
        run_alone(serve, config, image=bad)
    except DamagedLog as exc:
        assert exc.offset == record.physical, f"refusal: {exc.offset}, expected {record.physical}"
    else:
        raise AssertionError(f"silence: a hole at {record.physical}, and the store started")
