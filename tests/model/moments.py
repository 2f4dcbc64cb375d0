"""Files that are synced at each mark of a store's work, and once it is closed.

A power cut between two steps shows a wrong order of them now and then; to look at what one would
leave, at each mark, shows it always.
"""

import json
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.node.store.config import StoreConfig
from rocketbed.world.api import World
from tests.model.alone import run_alone
from tests.model.durable import Loss, ensure_durable
from tests.model.model import Model
from tests.model.store import ROOT, Life, settings

STEPS: Final = (25, 25, 0)
"""Of each life; each but the last one ends by a power cut, or is killed."""
POWER: Final = 0.7
ALL: Final = ("",)
OWN: Final = ("rocketbed.ckpt", "rocketbed.flushed")
LOG: Final = ("commitlog/",)
RENAMED: Final = "store.mark_renamed"
ON_DISK: Final = {
    "store.abort_created": ("abort",),
    "store.recovery_scan": ("abort", OWN[0]),
    "store.recovery_cut": ("rocketbed.cut/",),
    "store.recovery_finished": ALL,
    RENAMED: (),
    "store.mark_stored": OWN[:1],
    "store.cut_recorded": OWN,
    "store.cut_zeroed": (*OWN, *LOG),
    "store.cut_done": (*OWN, *LOG),
    "store.retention_removed": OWN,
    "store.stop_flushed": LOG,
    "store.abort_removed": ALL,
}
"""Mark -> what has to be on disk then: files below the root whose paths begin so."""
GONE: Final = {
    "store.recovery_finished": ALL,
    "store.cut_done": LOG,
}
"""The same of names that were removed."""
CUT: Final = ("store.cut_recorded", "store.cut_zeroed", "store.cut_done")
RAISED: Final = "store.mark_raised"


def run_moments(seed: int) -> str:
    random, power = Random(f"moments/{seed}"), False
    config = settings(random)
    model, digest = Model(segment=config.segment_size), ""
    image: DiskImage | None = None
    for number, steps in enumerate(STEPS):
        is_last = number == len(STEPS) - 1
        life = Life(model, Random(f"moments/{seed}/{number}"), steps, power=power)
        main = partial(
            _main, life=life, config=config, stops=is_last, killed=number > 0 and not power
        )
        run = run_alone(main, image=image, boots=number + 1, seed=f"{seed}/{number}")
        if life.wrong is not None:
            raise life.wrong
        image, digest = run.image, digest + run.digest
        if power := random.random() < POWER:
            disk = SimDisk(image, random=random)
            disk.power_cut(random.choice(("random", "strict", "reorder")))
            image = disk.image()
    return digest


async def _main(
    world: World, life: Life, config: StoreConfig, *, stops: bool, killed: bool
) -> None:
    def mark(name: str) -> None:
        _look(world.disk, name, life.model, killed=killed)
        world.mark(name)

    await life.main(replace(world, mark=mark), config, stops=stops)
    if stops:
        ensure_durable(world, "a store that was closed")


def _look(disk: Any, mark: str, model: Model, *, killed: bool) -> None:
    """At a mark; `killed`: what the life before had not synced is still in the cache."""
    on_disk, removed = ON_DISK.get(mark), GONE.get(mark)
    if mark == RAISED and _raised_to(disk) == model.written:
        on_disk = ALL  # nothing came meanwhile
    if mark in CUT and model.cutting is not None:
        on_disk = ALL  # not that of a start, which continues with queues and index
    elif mark in CUT and killed:
        on_disk = OWN[:1]
    if on_disk is None:
        return
    loss = Loss(disk)
    if mark == RENAMED:
        path = f"{ROOT}/rocketbed.flushed"
        flushed = int.from_bytes(loss.left.contents(path)[:8]) if path in loss.left.paths() else 0
        assert flushed >= _raised_to(disk), f"durable: {mark}: F is {flushed} on disk"
    unsynced = [path for path in loss.behind if on_disk and path.startswith(_below(on_disk))]
    assert not unsynced, f"durable: {mark}: {unsynced} are not on disk"
    back = [path for path in loss.back if removed and path.startswith(_below(removed))]
    assert not back, f"durable: {mark}: {back} would be back"


def _below(places: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{ROOT}/{place}" for place in places)


def _raised_to(disk: Any) -> int:
    return int(json.loads(disk.contents(f"{ROOT}/rocketbed.ckpt").split(b"\n")[1])["w"])
