"""A store at rest beside a model of it: its disk is changed, and the next start is compared."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any, Final

import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.chaos.backends.sim.solo import SoloRun
from rocketbed.node.store.config import SEGMENT_SIZE, StoreConfig
from rocketbed.node.store.errors import CorruptRecord
from rocketbed.node.store.heal import Fetch, heal
from rocketbed.node.store.store import MessageStore
from rocketbed.world.api import World
from tests.model.alone import run_alone
from tests.model.answers import ask
from tests.model.durable import Loss, ensure_durable
from tests.model.lives import raise_wrong
from tests.model.model import Kept, Model, longer_by
from tests.model.store import BATCHES, ROOT, Life, Topics, ensure_closed, settings

LOG: Final = f"{ROOT}/commitlog/"
MARK, FLUSHED = f"{ROOT}/rocketbed.ckpt", f"{ROOT}/rocketbed.flushed"
UNIT, BATCH_UNIT = 20, 46
"""Bytes of a unit of a queue, and of a batch queue."""
BODY_LENGTH_AT: Final = 84
PIECE: Final = 333
Change = Callable[[SimDisk], None]
Look = Callable[[MessageStore], Awaitable[Any]]
Ranges = list[tuple[int, int]]


async def serve(
    world: World, config: StoreConfig, look: Look | None = None, *, stops: bool = False
) -> Any:
    """Start, scrub, and return what `look` returns; with `stops` stop in order."""
    before = Loss(world.disk)  # of a life that was killed
    store = await MessageStore.open(world, config, Topics())
    ensure_durable(world, "a start", since=before)
    result = None
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await store.scrubber.finished.wait()
        await store.dispatched.wait_for(store.max_offset)
        result = await look(store) if look is not None else None
        if stops:
            await store.close()
        nursery.cancel_scope.cancel()
    if stops:
        ensure_closed(world)
        ensure_durable(world, "a clean stop", since=before)
    return result


async def check_answers(store: MessageStore, model: Model) -> None:
    try:
        await ask(store, model, Random(1), BATCHES)
    except CorruptRecord as exc:
        raise AssertionError(f"refused: {exc}") from exc


def edited(image: DiskImage, change: Change) -> DiskImage:
    disk = SimDisk(image)
    change(disk)
    return disk.image()


def edit_file(path: str, edit: Callable[[bytearray], None]) -> Change:
    """Return a change of the contents of one file."""

    def change(disk: SimDisk) -> None:
        data = bytearray(disk.contents(path))
        edit(data)
        disk.replace_contents(path, bytes(data))

    return change


@dataclass(frozen=True, slots=True)
class AtRest:
    """A disk and a model of the store on it."""

    image: DiskImage
    model: Model
    config: StoreConfig

    def start(
        self,
        look: Look | None = None,
        *,
        image: DiskImage | None = None,
        config: StoreConfig | None = None,
        stops: bool = True,
        boots: int = 1,
    ) -> SoloRun:
        """Start from this disk or another one; by default compare every answer."""
        if look is None:
            look = partial(check_answers, model=self.model)
        main = partial(serve, look=look, stops=stops)
        return run_alone(main, config or self.config, image=image or self.image, boots=boots)

    def place(self, physical: int) -> tuple[str, int]:
        """Return file and offset in it of a place of the log."""
        size = self.config.segment_size
        return f"{LOG}{physical // size * size:020d}", physical % size

    def contents(self, record: Kept) -> bytes:
        """Return the bytes that the disk has for a record."""
        path, at = self.place(record.physical)
        return self.image.contents(path)[at : at + record.size]

    def write(self, physical: int, data: bytes) -> Change:
        """Return a change that writes bytes of the log within one file."""
        path, at = self.place(physical)

        def edit(contents: bytearray) -> None:
            contents[at : at + len(data)] = data

        return edit_file(path, edit)

    def damage(self, record: Kept, at: int | None = None) -> Change:
        """Return a change of one byte of a record, by default in its body."""
        if at is None:
            at = record.data.index(record.put.body) + 2
        elif at >= BODY_LENGTH_AT:
            at += longer_by(record.data)
        at %= record.size
        return self.write(record.physical + at, bytes((record.data[at] ^ 4,)))

    def ranges(self, bad: Iterable[int]) -> Ranges:
        """Return ranges from the first of adjacent bad records to the next good one."""
        ranges: Ranges = []
        numbers = set(bad)
        for number, (record, after) in enumerate(pairwise(self.model.kept)):
            if number in numbers:
                start = ranges.pop()[0] if number - 1 in numbers else record.physical
                ranges.append((start, after.physical))
        return ranges

    def heal(self, bad: DiskImage) -> str:
        """Heal a damaged copy from this disk: log and answers are what they were, and replaced
        bytes are kept aside."""
        config, damaged = self.config, edited(bad, _add_strays)
        if MARK in damaged.paths() and len(self.model.kept) % 2:  # an operator may know no settings
            config = replace(config, segment_size=SEGMENT_SIZE)
        healed = run_alone(_heal, config, self.fetch(), image=damaged).image
        self.check_log(healed)
        self._check_kept(healed, damaged)
        return self.start(image=healed).digest

    def fetch(self) -> Fetch:
        """Return a replica with this log, as a heal asks it."""

        async def fetch(start: int, end: int, take: Callable[[int, bytes], None]) -> None:
            while start < end:
                path, at = self.place(start)
                data = self.image.contents(path)[at : at + min(PIECE, end - start)]
                take(start, data)
                start += len(data)
                await trio.lowlevel.checkpoint()

        return fetch

    def check_log(self, healed: DiskImage) -> None:
        for path in self.image.paths():
            if path.startswith(LOG):
                is_same = healed.contents(path) == self.image.contents(path)
                assert is_same, f"heal: {path} differs from the replica's"

    def _check_kept(self, healed: DiskImage, bad: DiskImage) -> None:
        saved: dict[int, int] = {}
        for path in healed.paths():
            name = path.rpartition("/")[2]
            if "/rocketbed.cut/" in path and ".healed" in name:
                data = healed.contents(path)
                saved |= {int(name[:20]) + at: byte for at, byte in enumerate(data)}
        for path in bad.paths():
            if path.startswith(LOG) and path in self.image.paths():
                start = int(path.removeprefix(LOG))
                both = zip(bad.contents(path), self.image.contents(path), strict=False)
                lost = [start + at for at, (old, new) in enumerate(both)
                        if old not in (0, new) and saved.get(start + at) != old]  # fmt: skip
                assert not lost, f"heal: replaced bytes at {lost[:3]} are not kept"


async def _heal(world: World, config: StoreConfig, fetch: Fetch) -> None:
    await heal(world, config, fetch)
    ensure_durable(world, "a heal", LOG, f"{ROOT}/rocketbed.cut/")


def _add_strays(disk: SimDisk) -> None:
    """Add files beside those of the log, some with similar names."""
    for name in ("007", "x" * 20, f"{1:019d}x"):
        disk.replace_contents(LOG + name, b"mine")


def lived(name: str, steps: int, **changes: object) -> AtRest:
    """Return a store after one life and a clean stop."""
    config = settings(Random(name), **changes)
    model = Model(segment=config.segment_size)
    life = Life(model, Random(name), steps, power=False)
    run = run_alone(partial(life.main, stops=True), config)
    raise_wrong(life)
    return AtRest(run.image, model, config)


def filled(name: str, count: int, *, own: str = "", **options: Any) -> AtRest:
    """Return a store as a kill leaves it after `count` writes."""
    flags = {key: options.pop(key) for key in ("mixed", "is_flushed") if key in options}
    config = settings(Random(name), **options)
    model = Model(segment=config.segment_size)
    life = Life(model, Random(name), 0, power=False)
    life.own = own
    run = run_alone(partial(life.fill, count=count, **flags), config)
    raise_wrong(life)
    return AtRest(run.image, model, config)


UNFLUSHED: Final[dict[str, Any]] = {
    "flush_interval_ms": 10**8, "flush_thorough_interval_ms": 10**8, "mark_interval_ms": 10**8,
    "sync_flush": False, "append_property_crc": False,
}  # fmt: skip
"""Settings with which nothing is ever known to be synced."""
