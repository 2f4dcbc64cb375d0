"""Groups in trouble: masters that lost something, full disks of slaves, kills and power cuts."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
import trio

from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.chaos.backends.sim.world import InlineOffloader
from rocketbed.node.node import Node, run_node
from rocketbed.world.api import World
from tests.support.sim.replicated import Cluster, settings

NAMES = ("master", "slave-1", "slave-2")


def wait_for_producer(cluster: Cluster, seconds: float = 60) -> None:
    cluster.simulation.run(seconds, until=lambda: cluster.producer.done)


@pytest.mark.parametrize("sync_flush", [True])
@pytest.mark.parametrize("seed", range(12))
def test_kills_and_power_cuts_lose_nothing_acknowledged(seed: int, sync_flush: bool) -> None:
    random = Random(seed)
    with Cluster(seed, sync_flush=sync_flush) as cluster:
        for name in NAMES:
            cluster.start(name)
        cluster.run(1)
        cluster.produce(250, size=900)
        for _ in range(8):
            cluster.run(random.random() * 0.2)
            victim = random.choice(NAMES)
            if random.random() < 0.5:
                cluster.simulation.kill(victim)
            else:
                cluster.simulation.power_cut(victim, random.choice(["random", "strict", "prefix"]))
            cluster.run(random.random() * 0.3)
            cluster.start(victim)
            cluster.run(random.random() * 0.5)
        cluster.run(8)
        master = cluster.nodes["master"].store
        for name in NAMES[1:]:
            slave = cluster.nodes[name]
            common = min(master.max_offset, slave.store.max_offset)
            if cluster.log_of(name)[:common] != cluster.log_of("master")[:common]:
                assert slave.replication.slave is not None
                assert slave.replication.slave.state == "refused"
        cluster.check_queue("master")


def test_empty_returning_master_is_refused() -> None:
    with Cluster(seed=1) as cluster:
        for name in NAMES[:2]:
            cluster.start(name)
        cluster.run(1)
        cluster.produce(60)
        wait_for_producer(cluster)
        commit = cluster.nodes["master"].tables.offsets.commit
        cluster.simulation.process("master").call(commit, "readers", "T", 0, 17)
        cluster.run(4)
        slave = cluster.nodes["slave-1"]
        assert slave.tables.offsets.get("readers", "T", 0) == 17
        before = cluster.log_of("slave-1")
        cluster.simulation.kill("master")
        cluster.simulation.host("master").image = DiskImage()
        cluster.start("master")
        cluster.run(10)
        cluster.acknowledged.clear()
        cluster.produce(1)
        cluster.run(20)
        assert not cluster.acknowledged
        assert cluster.log_of("slave-1") == before
        assert slave.tables.offsets.get("readers", "T", 0) == 17
        assert slave.tables.topics.get("T") is not None


def test_truncated_master_is_refused_by_a_longer_slave() -> None:
    with Cluster(seed=2) as cluster:
        for name in NAMES[:2]:
            cluster.start(name)
        cluster.run(1)
        cluster.produce(100)
        wait_for_producer(cluster)
        cluster.simulation.power_cut("master", "strict")
        before = cluster.log_of("slave-1")
        cluster.start("master")
        cluster.run(2)
        assert cluster.nodes["master"].store.max_offset < len(before)
        cluster.acknowledged.clear()
        cluster.produce(1)
        cluster.run(20)
        assert not cluster.acknowledged
        assert cluster.log_of("slave-1") == before
        slave = cluster.nodes["slave-1"].replication.slave
        assert slave is not None
        assert slave.state != "following"


def test_slave_with_a_full_disk_resumes_when_it_has_room() -> None:
    with Cluster(seed=3) as cluster:
        for name in NAMES[:2]:
            cluster.start(name)
        cluster.run(1)
        cluster.produce(20)
        wait_for_producer(cluster)
        disk = cluster.simulation.process("slave-1").disk
        disk.quota = disk.allocated() + 3000
        cluster.produce(300)
        cluster.run(20)
        assert not cluster.producer.done
        disk.quota = None
        wait_for_producer(cluster)
        cluster.run_until_equal("slave-1")
        cluster.run(4)
        cluster.check_queue("slave-1")


def test_stopped_slave_with_a_partial_record_can_be_promoted() -> None:
    with Cluster(seed=4) as cluster:
        for name in NAMES[:2]:
            cluster.start(name)
        cluster.run(1)
        cluster.produce(40)
        wait_for_producer(cluster)
        cluster.run_until_equal("slave-1")
        cluster.simulation.kill("master")
        cluster.run(0.1)
        slave = cluster.nodes["slave-1"].store
        whole = slave.max_offset
        process = cluster.simulation.process("slave-1")
        record = bytearray(process.call(slave.log.read, 0, 100))
        record[28:36] = whole.to_bytes(8, "big")
        process.call(slave.log.append_raw, whole, bytes(record))
        cluster.run(0.1)
        cluster.simulation.stop("slave-1")
        cluster.run(5)
        assert process.done

        async def main(world: World) -> None:
            config = settings("slave-1")
            promoted = replace(
                config,
                broker_role="ASYNC_MASTER",
                broker_id=0,
                in_sync_replicas=1,
                ha_master_address="",
                store=replace(config.store, is_slave=False),
            )
            async with trio.open_nursery() as nursery:
                cluster.nodes["new"] = await nursery.start(_run, world, promoted)

        cluster.simulation.start("slave-1", main)
        cluster.run(2)
        assert cluster.nodes["new"].store.max_offset == whole


def test_data_read_for_a_slave_is_pinned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else retention closes the file under the thread, and its number may be another file's."""
    held: list[bool] = []
    run = InlineOffloader.run

    async def watched(self: InlineOffloader, function: Any, *arguments: object) -> Any:
        segments = cluster.nodes["master"].store.log.segments
        held.append(segments.pinned(segments.starts[0]))
        return await run(self, function, *arguments)

    with Cluster(seed=5) as cluster:
        cluster.start("master", slaves=0)
        cluster.run(1)
        cluster.produce(30)
        wait_for_producer(cluster)
        cluster.simulation.process("master").disk.cold_share = 1.0
        monkeypatch.setattr(InlineOffloader, "run", watched)
        cluster.start("slave-1")
        cluster.run_until_equal("slave-1")
    assert held
    assert all(held)


async def _run(world: World, config: object, task_status: trio.TaskStatus[Node]) -> None:
    await run_node(world, config, task_status=task_status)  # type: ignore[arg-type]
