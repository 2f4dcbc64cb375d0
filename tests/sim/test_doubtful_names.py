"""Files that a killed process made keep their names, though it never synced their directories."""

from random import Random

import pytest
import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
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


def test_data_flushed_after_a_kill_survives_a_power_loss() -> None:
    """The segment was made by the killed process; its name has to be synced by the next one."""
    killed = session(put_unsynced).image
    flushed = session(put_and_flush, image=killed)
    assert flushed.value > 0
    lost = without_power(flushed.image)
    assert session(bodies, image=lost, boots=2).value == [b"first", b"second"]


def test_no_segment_is_prepared_after_a_clean_stop() -> None:
    """A start after a clean stop takes every name for synced: what it put into that file would be
    lost with the name."""

    async def stop(store: MessageStore) -> list[int]:
        put(store, body=b"first")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.log.prepare_next)
            await trio.lowlevel.checkpoint()  # it makes the file
            store.log.drop_unused()
        return store.log.segments.starts

    run = session(stop)
    assert run.value == [0]
    assert f"{LOG}/{4096:020d}" not in run.image.paths()


@pytest.mark.parametrize(("boots", "begin"), [(2, 0), (1, 4096)], ids=["power loss", "kill"])
def test_prepared_segment_after_a_lost_one(boots: int, begin: int) -> None:
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


def test_torn_segment_after_a_lost_one() -> None:
    """Swarm seed 866709: a whole record further on does not make it the beginning of a log."""

    def tear(disk: SimDisk) -> None:
        without_the_first(disk)
        flip_bit(disk, f"{LOG}/{4096:020d}", 8 * 500)

    assert session(ends, image=edited(session(fill_two_segments).image, tear), boots=2).value == (
        0,
        0,
    )


@pytest.mark.parametrize("is_slave", [False, True])
def test_complete_segment_after_a_lost_one(is_slave: bool) -> None:
    """Swarm seed 872035: a slave that went on there would count as a whole copy. What it has goes
    to `rocketbed.cut`; a master serves it."""
    filled = session(fill_two_segments, config=settings(is_slave=is_slave)).image
    end = session(ends, image=filled).value[1]
    image = edited(filled, without_the_first)
    run = session(ends, image=image, boots=2, config=settings(is_slave=is_slave))
    assert run.value == ((0, 0) if is_slave else (4096, end))
    set_aside = [path for path in run.image.paths() if path.startswith(f"{ROOT}/rocketbed.cut/")]
    assert set_aside == ([f"{ROOT}/rocketbed.cut/{4096:020d}.segment"] if is_slave else [])


def test_reported_log_above_0_stays() -> None:
    """Bytes that a slave has flushed are acknowledged: no power loss may let it begin again."""

    async def fill(store: MessageStore) -> bytes:
        store.log.written.reset(8192)
        store.log.flushed.reset(8192)
        put(store, body=b"kept")
        put(store, body=b"more")
        return store.log.read(8192, store.log.written.value - 8192)

    data = session(fill).value

    acknowledged: list[int] = []

    async def follow(store: MessageStore) -> None:
        first = len(data) // 2
        store.log.append_raw(8192, data[:first])
        while store._dispatcher.step():
            await trio.lowlevel.checkpoint()
        acknowledged.append(await store._flusher.flush())
        store.log.append_raw(8192 + first, data[first:])
        await trio.lowlevel.checkpoint()

    config = settings(is_slave=True)
    for event in range(1, session(follow, config=config).events + 1):
        acknowledged.clear()
        cut = session(follow, config=config, crash_at=event, kind="power", mode="strict")
        end = max(acknowledged, default=0)
        bounds = session(ends, image=cut.image, boots=2, config=config).value
        assert bounds[1] >= end, event
    assert acknowledged


def test_operator_cut_keeps_segments_without_good_records() -> None:
    async def fill(store: MessageStore) -> None:
        for size in (1000, 1000, 1000, 3500):
            put(store, body=b"x" * size)
        await settle(store)

    def truncate(disk: SimDisk) -> None:
        path = f"{LOG}/{4096:020d}"
        disk.replace_contents(path, disk.contents(path)[:3000])

    image = edited(session(fill).image, truncate)
    run = session(ends, image=image, config=settings(accept_cut_at=4096))
    assert run.value == (0, 4096)
    assert f"{ROOT}/rocketbed.cut/{4096:020d}.segment" in run.image.paths()


def test_kill_during_a_takeover_after_a_power_loss() -> None:
    """Its own id is in the mark before `abort` names it; each boot draws another one."""

    async def fill(store: MessageStore) -> int:
        put(store, body=b"first")
        await settle(store)
        await store._flusher.flush()
        begun = store.log.written.value
        for _ in range(3):
            put(store, body=b"torn")
        return begun

    filled = session(fill)

    def tear(disk: SimDisk) -> None:
        flip_bit(disk, f"{LOG}/{0:020d}", 8 * (filled.value + 30))
        for path in filled.image.paths():
            if "/index/" in path:
                disk.remove_name(path)

    image = edited(filled.image, tear)
    whole = session(ends, image=image, boots=2)
    assert whole.value == (0, filled.value)
    for event in range(1, whole.events + 1):
        killed = session(ends, image=image, boots=2, seed=event, crash_at=event)
        rerun = session(ends, image=killed.image, boots=2, seed=-event)
        assert rerun.value == whole.value, event
