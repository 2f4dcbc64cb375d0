"""A log with more bad records than are told apart: which of them are joined, in what order, and
that what lies outside of the joined stretches is given."""

from functools import partial
from random import Random
from typing import Final

import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.errors import CorruptRecord
from rocketbed.node.store.store import MessageStore
from rocketbed.world.api import World
from tests.model.alone import run_alone
from tests.model.damage import spoil_byte
from tests.model.mending import edited, serve
from tests.model.model import Kept, Model
from tests.model.store import Life, Topics, settings

MOST: Final = 512
"""Stretches that are told apart; beyond, ..."""
GAP: Final = 64 << 10
"""... those are joined that lie so close, then within twice that, and so on."""
SHOWN: Final = 8
MORE: Final = 12
SEGMENT: Final = 1 << 19
LONG: Final = 9000


def run_scattered(seed: int) -> str:
    random = Random(f"scattered/{seed}")
    wide = {"segment_size": SEGMENT, "queue_segment_size": 40_000, "index_enabled": False}
    config = settings(Random(f"scattered/{seed}"), append_property_crc=False, **wide)
    model = Model(segment=SEGMENT)
    life = Life(model, random, 0, power=False)
    # What lies far from the next one is not joined with it.
    far = sorted(random.sample(range(MOST), 2))
    run = run_alone(partial(_fill, life=life, far=far), config)
    if life.wrong is not None:
        raise life.wrong
    short = [one for one in model.kept if one.size < LONG]
    bad = short[: 2 * (MOST + MORE) : 2]

    def spoil(disk: SimDisk) -> None:
        for one in bad:
            spoil_byte(disk, one, None, SEGMENT)

    want = _stretches(model, bad)
    look = partial(_sees, want=want, count=len(bad), model=model)
    found = run_alone(partial(serve, stops=True), config, look, image=edited(run.image, spoil))
    return run.digest + found.digest


async def _fill(world: World, config: StoreConfig, *, life: Life, far: list[int]) -> None:
    store = await MessageStore.open(world, config, Topics())
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        for number in range(2 * (MOST + MORE) + 2):
            life.put_body(store, b"b%03d of many" % (number % 1000))
            if number % 2 and number // 2 in far:
                for _ in range(GAP // LONG + 1):
                    life.put_body(store, b"long" + bytes(LONG))
                life.put_body(store, b"again of many")
                life.put_body(store, b"again of many")
        await store.dispatched.wait_for(store.max_offset)
        await store.close()
        nursery.cancel_scope.cancel()


def _stretches(model: Model, bad: list[Kept]) -> list[tuple[int, int]]:
    """One after the other is found; each time that they are too many, near ones are joined."""
    after = {
        one.physical: other.physical for one, other in zip(model.kept, model.kept[1:], strict=False)
    }
    found: list[tuple[int, int]] = []
    for one in bad:
        found.append((one.physical, after[one.physical]))
        gap = GAP
        while len(found) > MOST:
            joined = found[:1]
            for start, end in found[1:]:
                if start - joined[-1][1] <= gap:
                    joined[-1] = (joined[-1][0], end)
                else:
                    joined.append((start, end))
            found, gap = joined, 2 * gap
    return found


async def _sees(store: MessageStore, want: list[tuple[int, int]], count: int, model: Model) -> None:
    found = [(one.start, one.end) for one in store.scrubber.damage]
    assert found == want, f"scrub: {found[:3]}.. {len(found)} for {want[:3]}.. {len(want)}"
    shown = ";".join(f"{start}-{end}" for start, end in want[:SHOWN])
    shown += f" and {len(want) - SHOWN} more" if len(want) > SHOWN else ""
    assert store.damaged_ranges == shown, f"scrub: {store.damaged_ranges!r} for {shown!r}"
    assert store._parts.damaged.count == count, f"scrub: {store._parts.damaged.count} times"
    reasons = [one.reason for one in store.scrubber.damage if one.end - one.start > GAP // 2]
    right = all(reason.endswith(", and more behind it") for reason in reasons)
    assert right and all(one.count("and more") == 1 for one in reasons), f"scrub: {reasons}"
    for one in model.kept:
        is_bad = any(start <= one.physical < end for start, end in want)
        try:
            data = await store.read(store.get_messages(*one.place, one.offset, 1).ranges)
        except CorruptRecord:
            assert is_bad, f"pull: {one.physical} is refused"
        else:
            assert not is_bad and data == one.data, f"pull: {one.physical} is given"
