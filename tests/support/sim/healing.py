"""A replica as `heal` asks it, and a heal in simulation that says why it did nothing."""

from collections.abc import Callable

import trio

from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.heal import Fetch, Hole, heal
from rocketbed.node.store.heal_files import NotHealed
from rocketbed.world.api import World
from tests.support.sim.filled_store import LOG_DIR


def a_replica(image: DiskImage) -> Fetch:
    """A replica's log as `heal` gets it."""

    async def fetch(start: int, end: int, take: Callable[[int, bytes], None]) -> None:
        while start < end:
            at = start % 4096
            data = image.contents(f"{LOG_DIR}/{start - at:020d}")[at : at + min(700, end - start)]
            take(start, data)
            start += len(data)
            await trio.lowlevel.checkpoint()

    return fetch


async def heal_it(world: World, config: StoreConfig, fetch: Fetch) -> list[Hole]:
    return await heal(world, config, fetch)


async def try_to_heal(world: World, config: StoreConfig, fetch: Fetch) -> str:
    """Reason why it was not healed, so that the disk can be looked at afterwards."""
    try:
        await heal(world, config, fetch)
    except NotHealed as exc:
        return str(exc)
    return ""
