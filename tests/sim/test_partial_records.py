"""A slave's log may end anywhere inside a record: it waits for the rest, whatever is missing."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
import trio

from rocketbed.chaos.backends.sim.simulation import Simulation
from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.store import MessageStore
from rocketbed.replication.entry import Policy
from rocketbed.replication.watermark import Watermark
from rocketbed.wire.message import MAGIC_BLANK
from rocketbed.world.api import World
from tests.model.stage import Stage
from tests.model.store import HOST, Topics, settings
from tests.support.peers.logs import read_log, record_ends
from tests.support.sim.following_node import NODE, FollowingNode, make_log

PROPERTIES = (b"", b"K\x01v\x02", b"UNIQ_KEY\x0100112233445566\x02")


async def master(world: World, config: StoreConfig) -> bytes:
    store = await MessageStore.open(world, config, Topics())
    for number in range(400):
        run = store.begin()
        run.add(
            "T", 0, b"body!", PROPERTIES[number % 3], flag=0, sys_flag=0, born_ms=1, born_host=HOST
        )
        store.commit(run)
    log: bytes = read_log(store.log)[1]
    return log


async def slave(world: World, config: StoreConfig, log: bytes) -> list[str]:
    """Each record in two pieces, the second as long as its number among those of its kind says."""
    store = await MessageStore.open(world, config, Topics())
    troubles, at = [], 0
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        for number in range(400):
            size = int.from_bytes(log[at : at + 4], "big")
            late = 1 + number // 3 % (size - 1)
            for start, stop in ((at, at + size - late), (at + size - late, at + size)):
                store.log.append_raw(start, log[start:stop])
                await trio.sleep(0.01)
            if trouble := store.trouble():
                troubles.append(f"{late} of {size} missing: {trouble}")
                break
            at += size
            if store.dispatched.value != at:
                troubles.append(f"record {number} is not dispatched")
        nursery.cancel_scope.cancel()
    return troubles


def test_incomplete_record_is_waited_for() -> None:
    config = settings(Random(1), segment_size=1 << 20, sync_flush=False)
    log = run_solo(master, config).value
    assert run_solo(slave, replace(config, is_slave=True), log).value == []


async def flushed_between(
    world: World, config: StoreConfig, log: bytes, confirmed: Watermark | None
) -> tuple[int, list[int]]:
    """Receive pieces while the log is synced; return F after that, and the ends of the records."""
    store = await MessageStore.open(world, config, Topics(), confirmed)
    append = store.log.append_raw if confirmed is None else store.epochs.append_raw
    ends = [0, *record_ends(log)]
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        at = 0
        for piece in (ends[5] + 30, ends[21] + 30):
            if at:
                await trio.sleep(SYNC_S / 4)  # its sync is under way
            append(at, log[at:piece])
            at = piece
        await store.log.flushed.wait_above(ends[5])
        assert store.log.written.value > store.log.flushed.value > ends[5], "more came meanwhile"
        flushed = store._parts.marks.load_flushed()
        nursery.cancel_scope.cancel()
    assert flushed is not None
    return flushed, ends


SYNC_S = 0.2


@pytest.mark.parametrize("with_failover", [False, True])
def test_flushed_offset_is_always_a_record_end(
    with_failover: bool,
) -> None:
    """Else a power cut may leave a record that begins below F and is no whole one, and a start
    takes that for damage."""
    config = settings(Random(1), segment_size=1 << 20, sync_flush=True)
    log = run_solo(master, config).value
    config = replace(config, is_slave=True)

    async def follow(world: World) -> tuple[int, list[int]]:
        confirmed = Watermark(len(log)) if with_failover else None
        return await flushed_between(world, config, log, confirmed)

    with Simulation(1) as simulation:
        simulation.host("n").sync_seconds = (SYNC_S, SYNC_S)
        flushed, ends = simulation.run_process(simulation.start("n", follow))
    assert flushed in ends


async def fillers_by_the_byte(world: World, config: StoreConfig, log: bytes) -> int:
    """A leader's log, whole but for what fills files, which comes by the byte; bytes of the
    shortest."""
    store = await MessageStore.open(world, config, Topics(), Watermark(len(log)))
    at, shortest = 0, config.segment_size
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        for end in record_ends(log):
            is_filler = int.from_bytes(log[at + 4 : at + 8], "big", signed=True) == MAGIC_BLANK
            shortest = min(shortest, end - at) if is_filler else shortest
            for stop in range(at + 1, end + 1) if is_filler else (end,):
                store.epochs.append_raw(at, log[at:stop])
                at = stop
        await store.dispatched.wait_for(len(log))
        nursery.cancel_scope.cancel()
    return shortest


def test_filler_may_arrive_in_pieces() -> None:
    """A follower that has half of one does not take it for damage."""
    shortest: list[int] = []
    for size in range(2000, 3000, 12):
        if len(shortest) > 8 and min(shortest) < 12:
            break
        config = settings(Random(1), segment_size=size, sync_flush=False, max_message_size=512)
        log = run_solo(master, config).value
        shortest.append(run_solo(fillers_by_the_byte, replace(config, is_slave=True), log).value)
    assert min(shortest) < 12, "one that is shorter than what is read beyond the end"


@pytest.mark.parametrize("policy", Policy, ids=str)
def test_a_replica_keeps_what_fills_a_file(policy: Policy) -> None:
    """A filler is confirmed as well: a replica that lost one would report a loss, and not lead."""

    async def restart_after_filler(node: FollowingNode) -> None:
        await node.follow()
        await node.copy_up_to(record_ends(log[0])[0])
        await node.copy_filler()
        node.leader.confirm = node.leader.sent_end
        failover: Any = node.stage.nodes[NODE].failover
        file, end = failover._replica.file, node.leader.sent_end
        await node.until(lambda: file.state.confirm == end, "it is recorded")
        await node.restart(2, power_cut=policy is Policy.FSYNC)

    _, log = make_log("1", None, (), 1, 60)
    with Stage(f"filler/{policy}") as stage:
        node = FollowingNode(stage, policy, {2: log, 3: log})
        node.cut_mode = "strict"
        node.play(restart_after_filler)
        assert not stage.told(NODE, "failover.log_cut")
