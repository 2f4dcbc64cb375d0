"""Reports of a replica that may have lost bytes, until its register has received one."""

import pytest

from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.replication.entry import Policy
from rocketbed.replication.identity import ReplicaFile
from rocketbed.world.api import World

ROOT = "/store"


async def life(world: World, *, trusts_cache: bool, tells: bool, stops: bool) -> bool:
    """True if it holds everything that a former life acknowledged."""
    world.disk.makedirs(ROOT)
    file = ReplicaFile(world, ROOT)
    is_lossless = await file.begin(
        group="g", number=1, policy=Policy.MEMORY, trusts_cache=trusts_cache
    )
    if tells:
        await file.clear_loss()
    if stops:
        await file.stopped()
    return is_lossless


def lives(*rows: tuple[int, bool, bool], trusts_cache: bool = True) -> list[bool]:
    """Run one life for each row: number of the boot, whether the register hears of it, whether it
    stops.
    """
    image: DiskImage | None = None
    results = []
    for boots, tells, stops in rows:

        async def main(world: World, tells: bool = tells, stops: bool = stops) -> bool:
            return await life(world, trusts_cache=trusts_cache, tells=tells, stops=stops)

        run = run_solo(main, image=image, boots=boots)
        image = run.image
        results.append(run.value)
    return results


@pytest.mark.parametrize("stops", [True, False])
def test_loss_is_reported_in_later_incarnations(stops: bool) -> None:
    """The life that began without what the power took ended in order, unheard."""
    results = lives((1, True, False), (2, False, stops), (2, False, stops), (2, True, stops))
    assert results == [True, False, False, False]
    assert lives((1, True, False), (2, True, stops), (2, True, stops)) == [True, False, True]


@pytest.mark.parametrize("stops", [True, False])
def test_loss_is_reported_when_a_kill_loses_memory(stops: bool) -> None:
    results = lives((1, True, False), (1, False, stops), (1, True, True), (1, True, True),
                  trusts_cache=False)  # fmt: skip
    assert results == [True, False, False, True]
