"""A directory that RocketMQ had: what it closed in order is taken as it is, everything else is
built again, and an index that holds tags is known as one."""

import struct
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.node.store.store import MessageStore
from rocketbed.wire.properties import tag_key
from rocketbed.world.api import World
from tests.model.alone import run_alone
from tests.model.beginnings import (
    ABORT,
    CHECKPOINT,
    COUNT,
    FLUSHED,
    MARK,
    Change,
    checkpoint,
    filled_twice,
    starts,
)
from tests.model.damage import BATCH_UNIT, Filled
from tests.model.mending import UNIT, edited, serve
from tests.model.model import Kept, Model
from tests.model.store import BATCHES, Life, Topics, settings

CLOSED_TOLD: Final = "RocketMQ closed it"
LAST: Final = "without its last unit"


def run_taken_over(seed: int) -> str:
    full, _ = filled_twice(seed)
    return _of_rocketmq(full, Random(f"taken over/{seed}")) + _with_tags(seed)


# --- of RocketMQ


def _theirs(disk: SimDisk, last_ms: int, logics_ms: int | None = None) -> None:
    """As RocketMQ leaves it: no file of ours, and its own checkpoint."""
    for path in (MARK, FLUSHED):
        disk.remove_name(path)
    data = checkpoint(last_ms, last_ms if logics_ms is None else logics_ms)
    disk.replace_contents(CHECKPOINT, data)


def _of_rocketmq(full: Filled, random: Random) -> str:
    """What it closed is taken as it is; what it did not, or might not have, is built again."""
    last_ms = full.model.kept[-1].stored_ms
    last = full.model.kept[-1]
    flushed, mark = full.image.contents(FLUSHED), full.image.contents(MARK)
    path, at = _unit_of(full, last)
    one = random.choice([kept[-1] for place, kept in full.model.queues().items()
                         if place[0] not in BATCHES and len(kept) > 1])  # fmt: skip
    other_path, other_at = _unit_of(full, one)

    def changed(where: str, at: int, by: int) -> Change:
        def change(disk: SimDisk) -> None:
            data = bytearray(disk.contents(where))
            data[at] ^= by
            disk.replace_contents(where, bytes(data))

        return change

    def nothing(_disk: SimDisk) -> None:
        pass

    def abort(disk: SimDisk) -> None:
        disk.replace_contents(ABORT, b"77\n")

    kinds: tuple[tuple[str, int, int | None, Change, bool], ...] = (
        ("closed", last_ms, None, nothing, False),
        ("without a time", 0, None, nothing, True),
        ("with another time of queues", last_ms, last_ms - 1, nothing, True),
        ("with times of no record", last_ms + 1, None, nothing, True),
        (LAST, last_ms, None, _zeroed(path, at), True),
        ("with a unit of another size", last_ms, None, changed(other_path, other_at + 11, 1), True),
        ("with a unit of no record", last_ms, None, changed(other_path, other_at + 7, 8), True),
        ("after a kill", last_ms, None, abort, True),
        ("where F is", last_ms, None, lambda d: d.replace_contents(FLUSHED, flushed), True),
        (
            "where half a mark is",
            last_ms,
            None,
            lambda d: d.replace_contents(MARK, mark[:20]),
            True,
        ),
    )
    digest = ""
    for what, physic_ms, logics_ms, change, again in kinds:
        if what == LAST and last.physical % full.size == 0:
            continue  # what fills a file stands before it: the log is read from there

        def both(
            disk: SimDisk,
            physic_ms: int = physic_ms,
            logics_ms: int | None = logics_ms,
            change: Change = change,
        ) -> None:
            _theirs(disk, physic_ms, logics_ms)
            change(disk)

        says = "" if again else CLOSED_TOLD
        digest += starts(full, f"of RocketMQ, {what}", both, again=again, says=says)
    wider = replace(full.config, index_slots=full.config.index_slots + 1)
    other = replace(full, config=wider)
    change = partial(_theirs, last_ms=last_ms)
    return digest + starts(other, "of RocketMQ, of another index", change, again=True)


def _unit_of(full: Filled, one: Kept) -> tuple[str, int]:
    """File and place of a unit."""
    width = BATCH_UNIT if one.put.topic in BATCHES else UNIT
    for path in full.image.paths():
        if f"consumequeue/{one.put.topic}/{one.put.queue}/" in path:
            data = full.image.contents(path)
            for at in range(0, len(data), width):
                if struct.unpack_from(">qi", data, at) == (one.physical, one.size):
                    return path, at
    raise AssertionError(one)


def _zeroed(path: str, at: int) -> Change:
    width = BATCH_UNIT if "/batchconsumequeue/" in path else UNIT

    def change(disk: SimDisk) -> None:
        data = bytearray(disk.contents(path))
        data[at : at + width] = bytes(width)
        disk.replace_contents(path, bytes(data))

    return change


# --- an index with tags


def _with_tags(seed: int) -> str:
    """Of an index with tags, as RocketMQ 5.5.0 makes it, this is seen in what is there, also where
    no file of ours is; new messages are found by tag then, and those of another index are not."""
    digest = ""
    for has in (True, False):
        config = settings(Random(f"tags/{seed}"), append_property_crc=False)
        model = Model(segment=config.segment_size)
        life = Life(model, Random(f"tags/{seed}"), 0, power=False)
        image = run_alone(partial(_fill_tagged, life=life, has=has), config).image
        last_ms = model.kept[-1].stored_ms
        for change in (None, partial(_theirs, last_ms=last_ms), partial(_theirs, last_ms=1)):
            found = image if change is None else edited(image, change)
            run = run_alone(serve, config, partial(_by_tag, model=model, has=has), image=found)
            digest += run.digest
    return digest


async def _fill_tagged(world: World, config: Any, *, life: Life, has: bool) -> None:
    store = await MessageStore.open(world, config, Topics())
    parts = store._parts
    parts.scanner.index_tags = parts.log.tail.index_tags = has
    await parts.marks.update(index_tags=has)
    await life.filled(store, COUNT, mixed=False)


async def _by_tag(store: MessageStore, model: Model, has: bool) -> None:
    tags = {(one.put.topic, one.put.tag) for one in model.kept if one.put.tag}
    for topic, tag in sorted(tags):
        wanted = [o.data for o in model.kept if (o.put.topic, o.put.tag) == (topic, tag)]
        found = (await store.query(topic, tag_key(tag), 64, 0, 1 << 50)).records
        assert found == (wanted if has else []), f"tags: {topic} {tag}: {len(found)} records"
