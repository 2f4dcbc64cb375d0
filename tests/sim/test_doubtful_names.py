"""Files that a killed process made keep their names, though it never synced their directories."""

from random import Random

from rocketbed.chaos.sim.disk_image import DiskImage
from rocketbed.node.store.store import MessageStore
from tests.support.sim.store_session import pull, put, session, settle


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
