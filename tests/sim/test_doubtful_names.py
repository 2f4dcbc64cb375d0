"""Files that a killed process made keep their names, though it never synced their directories."""

from random import Random

import pytest

from rocketbed.chaos.sim.disk import SimDisk
from rocketbed.chaos.sim.disk_image import DiskImage
from rocketbed.node.store.store import MessageStore
from tests.support.sim.store_session import (
    ROOT,
    edited,
    flip_bit,
    pull,
    put,
    session,
    settings,
    settle,
)

LOG = f"{ROOT}/commitlog"


async def put_unsynced(store: MessageStore) -> None:
    put(store, body=b"first")


async def put_and_flush(store: MessageStore) -> int:
    put(store, body=b"second")
    await settle(store)
    await store._flusher.flush()
    return store.flushed.value


async def bodies(store: MessageStore) -> list[bytes]:
    await settle(store)
    return [message.body for message in pull(store)]


def without_power(image: DiskImage) -> DiskImage:
    """The disk after a power loss that keeps nothing but what was synced."""
    namespace = image.namespace()
    namespace.lose_power("strict", Random(0))
    return DiskImage(namespace)


def test_what_is_flushed_after_a_kill_outlives_a_power_loss() -> None:
    """The segment was made by the killed process; its name has to be synced by the next one."""
    killed = session(put_unsynced).image
    flushed = session(put_and_flush, image=killed)
    assert flushed.value > 0
    lost = without_power(flushed.image)
    assert session(bodies, image=lost, boots=2).value == [b"first", b"second"]


@pytest.mark.parametrize(("boots", "begin"), [(2, 0), (1, 4096)], ids=["power loss", "kill"])
def test_a_segment_made_ahead_of_one_that_is_lost(boots: int, begin: int) -> None:
    """Swarm seed 861152: the first one was never synced, and a power loss takes its name."""

    async def fill(store: MessageStore) -> None:
        put(store, body=b"lost")
        await store.log.prepare_next()
        assert store.log.segments.starts == [0, 4096]

    async def look(store: MessageStore) -> tuple[int, int, list[bytes]]:
        bounds = store.min_offset, store.max_offset
        put(store, body=b"new")
        return *bounds, await bodies(store)

    image = edited(session(fill).image, lambda disk: disk.remove_name(f"{LOG}/{0:020d}"))
    assert session(look, image=image, boots=boots).value == (begin, begin, [b"new"])


async def fill_two_segments(store: MessageStore) -> None:
    for _ in range(6):
        put(store, body=b"x" * 1000)
    assert store.log.segments.starts == [0, 4096]
    assert store.log.written.value > 4096 + 2000


def without_the_first(disk: SimDisk) -> None:
    disk.remove_name(f"{LOG}/{0:020d}")


async def ends(store: MessageStore) -> tuple[int, int]:
    return store.min_offset, store.max_offset


def test_a_torn_segment_behind_one_that_is_lost() -> None:
    """Swarm seed 866709: a whole record further on does not make it the beginning of a log."""

    def tear(disk: SimDisk) -> None:
        without_the_first(disk)
        flip_bit(disk, f"{LOG}/{4096:020d}", 8 * 500)

    assert session(ends, image=edited(session(fill_two_segments).image, tear), boots=2).value == (
        0,
        0,
    )


@pytest.mark.parametrize("is_slave", [False, True])
def test_a_whole_segment_behind_one_that_is_lost(is_slave: bool) -> None:
    """Swarm seed 872035: a slave that went on there would count as a whole copy. What it has goes
    to `rocketbed.cut`; a master serves it."""
    filled = session(fill_two_segments, config=settings(is_slave=is_slave)).image
    end = session(ends, image=filled).value[1]
    image = edited(filled, without_the_first)
    run = session(ends, image=image, boots=2, config=settings(is_slave=is_slave))
    assert run.value == ((0, 0) if is_slave else (4096, end))
    kept = [path for path in run.image.paths() if path.startswith(f"{ROOT}/rocketbed.cut/")]
    assert kept == ([f"{ROOT}/rocketbed.cut/{4096:020d}.segment"] if is_slave else [])
