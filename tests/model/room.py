"""Files that expire: in their hours, when the disk is tight, and those that somebody reads."""

from functools import partial
from random import Random
from typing import Final

import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.status import PutStatus
from rocketbed.node.store.store import MessageStore
from rocketbed.wire.message import BORN_IPV6
from rocketbed.world.api import World
from tests.model.mending import edited
from tests.model.model import Model, longer_by
from tests.model.store import Life, Topics, settings

HOUR_MS: Final = 3_600_000
STORED_AT: Final = 56
"""Where a record has the time at which it was stored."""
AGES: Final = {True: 1000, False: 1000 * HOUR_MS}
"""Whether everything is old -> how long files are kept."""
PRESSURE: Final = (
    (74, False, False, False),
    (74, True, False, False),
    (75, True, False, False),
    (77, False, False, False),
    (77, True, True, False),
    (84, False, False, False),
    (85, False, False, False),
    (87, False, True, False),
    (89, True, True, False),
    (90, False, True, False),
    (92, False, True, True),
)
"""Percent of the disk in use, whether files are old, whether they go, whether sends are refused:
above 75 what is old goes at any hour, above 85 whatever there is, above 90 nothing is taken."""


def run_room(seed: int) -> str:
    """Every degree of pressure, every hour of a day, a file that is read."""
    digest = ""
    for percent, is_old, goes, refuses in PRESSURE:
        room = Room(seed, percent)
        config = room.config(reserved_ms=AGES[is_old])
        digest += room.run(config)
        assert (room.low > 0) == goes, f"retention: {percent} %, old {is_old}: {room.low}"
        wanted = PutStatus.SERVICE_NOT_AVAILABLE if refuses else None
        assert room.refusal is wanted, f"retention: {percent} %: {room.refusal}"
        assert room.after is None, "retention: refused when there was room again"
        assert not goes or room.low <= 2 * config.segment_size, "retention: more than a round's"
    forbidden = Room(seed, 87)
    digest += forbidden.run(forbidden.config(clean_forcibly_enabled=False))
    assert forbidden.low == 0, "retention: young files went, which is forbidden"
    return digest + _hours(seed) + _pinned(seed) + _ageless(seed)


class Room:
    """A store of some files on a disk of which so much is used."""

    def __init__(self, seed: int, percent: int = 0) -> None:
        self._seed, self._percent = seed, percent
        self._disk: SimDisk | None = None
        self.low = 0
        self.refusal: PutStatus | None = None
        self.after: PutStatus | None = None

    def config(self, **changes: object) -> StoreConfig:
        values = {"reserved_ms": AGES[False], "delete_when": (), "segment_size": 2048, **changes}
        return settings(Random(1), **values)

    def run(self, config: StoreConfig) -> str:
        image = filled(config, self._seed)
        run = run_solo(self._main, config, image=image, prepare=self._take)
        assert run.outcome == "ended", f"hang: {run.outcome}"
        return run.digest

    def _take(self, disk: SimDisk) -> None:
        self._disk = disk

    async def _main(self, world: World, config: StoreConfig) -> None:
        disk = self._disk
        assert disk is not None
        store = await MessageStore.open(world, config, Topics())
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            await trio.sleep(5.2)
            disk.quota = -(-disk.allocated() * 100 // self._percent)
            await trio.sleep(0.4)  # one round
            self.low, self.refusal = store.min_offset, _refusal(store)
            disk.quota = None
            await trio.sleep(1)
            self.after = _refusal(store)
            nursery.cancel_scope.cancel()


def _refusal(store: MessageStore) -> PutStatus | None:
    refusal = store.refusal()
    return refusal[0] if refusal else None


def filled(config: StoreConfig, seed: int) -> DiskImage:
    """A disk with a store of some ten files of the log, as a kill left it."""
    life = Life(Model(segment=config.segment_size), Random(f"room/{seed}"), 0, power=False)
    image = run_solo(partial(life.fill, count=30), config).image
    if life.wrong is not None:
        raise life.wrong
    return image


def _hours(seed: int) -> str:
    """Old files go in the hour that is set, by the local clock, and in no other."""
    went: list[int] = []
    hour = Random(f"hours/{seed}").randrange(24)

    async def main(world: World, config: StoreConfig) -> None:
        store = await MessageStore.open(world, config, Topics())
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            low = store.min_offset
            for _ in range(24 * 12):
                await trio.sleep(300)
                now_ms = world.clock.wall_ms() + world.clock.utc_offset_ms()
                if store.min_offset > low:
                    # What goes in a round that is a moment old went in that round's hour.
                    went.append((now_ms - 300_000) // HOUR_MS % 24)
                    went.append(now_ms // HOUR_MS % 24)
                    low = store.min_offset
            nursery.cancel_scope.cancel()

    slow = {"flush_interval_ms": 20_000, "flush_thorough_interval_ms": 60_000}
    slow |= {"mark_interval_ms": 60_000, "clean_interval_ms": 60_000}
    config = Room(seed).config(reserved_ms=1000, delete_when=(hour,), **slow)
    run = run_solo(main, config, image=filled(config, seed), seconds=200_000)
    assert hour in went, f"retention: nothing went in hour {hour}"
    assert all(at in (hour, (hour - 1) % 24, (hour + 1) % 24) for at in went), (
        f"retention: files went at {went}, not in {hour}"
    )
    return run.digest


def _pinned(seed: int) -> str:
    """A file that somebody reads stays, two minutes and no longer; its reader goes on."""

    async def main(world: World, config: StoreConfig) -> tuple[bool, bool, int]:
        store = await MessageStore.open(world, config, Topics())
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            await trio.sleep(5)
            segments, low = store.log.segments, store.min_offset
            file = segments.pin(low)
            gone = []
            for seconds in (60, 90):
                for _ in range(seconds // 5):
                    store.delete_expired()
                    await trio.sleep(5)
                gone.append(store.min_offset > low)
            size = len(file.read_at(0, 64))
            segments.unpin(low)
            nursery.cancel_scope.cancel()
        return gone[0], gone[1], size

    config = Room(seed).config(reserved_ms=1000)
    run = run_solo(main, config, image=filled(config, seed))
    early, late, size = run.value
    assert not early, "retention: a file went that somebody reads"
    assert late, "retention: a reader keeps a file for ever"
    assert size == 64, "retention: the reader of a file that went cannot go on"
    return run.digest


def _ageless(seed: int) -> str:
    """A file whose age nothing tells stays: the times in all files behind it are older than it."""
    config = Room(seed).config(reserved_ms=1000)

    def change(disk: SimDisk) -> None:
        for path in image.paths():
            if "/commitlog/" in path and not path.endswith(f"/{0:020d}"):
                data = bytearray(disk.contents(path))
                at = STORED_AT + longer_by(bytes(data), BORN_IPV6)
                data[at : at + 8] = (1).to_bytes(8, "big")
                disk.replace_contents(path, bytes(data))

    async def main(world: World, config: StoreConfig) -> int:
        store = await MessageStore.open(world, config, Topics())
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            await trio.sleep(5)
            for _ in range(3):
                store.delete_expired()
                await trio.sleep(5)
            nursery.cancel_scope.cancel()
        return store.min_offset

    image = filled(config, seed)
    run = run_solo(main, config, image=edited(image, change))
    assert run.value == 0, f"retention: files below {run.value} went, whose age nobody knows"
    return run.digest
