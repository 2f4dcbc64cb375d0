"""A store of some messages over three segments, and what a hand does to its log."""

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.store import MessageStore
from rocketbed.wire.message import HEAD
from rocketbed.world.api import World
from tests.support.sim.store_session import ROOT, flip_bit, put, settle

COUNT = 24
"""Messages, over three segments: some 10 in each."""
LOG_DIR = f"{ROOT}/commitlog"


async def fill(store: MessageStore) -> None:
    for number in range(COUNT):
        put(store, body=b"%d" % number + bytes(300), keys=(f"k{number}",))
    await settle(store)


async def fill_and_close(store: MessageStore) -> None:
    await fill(store)
    await store.close()


def segments_of(image: DiskImage) -> list[str]:
    return sorted(path for path in image.paths() if path.startswith(f"{LOG_DIR}/"))


def last_record(disk: SimDisk) -> tuple[str, int, int]:
    """Path, place in the file and size of the last record."""
    image = disk.image()
    for path in reversed(segments_of(image)):
        data, at, last = image.contents(path), 0, (0, 0)
        while at + HEAD.size <= len(data) and (size := HEAD.unpack_from(data, at)[0]) > 0:
            if HEAD.unpack_from(data, at)[6] != int(path.rpartition("/")[2]) + at:
                break
            last = (at, size)
            at += size
        if last[1]:
            return path, *last
    raise AssertionError("no record")


def newest_segment_deleted(disk: SimDisk) -> None:
    disk.remove_name(last_record(disk)[0])


def body_in_the_middle(disk: SimDisk) -> None:
    flip_bit(disk, segments_of(disk.image())[1], 8 * 2000)


async def check(world: World, config: StoreConfig) -> list[str]:
    return await MessageStore.check(world, config)
