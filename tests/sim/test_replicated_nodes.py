"""Whole nodes, master and slaves, in simulation: acknowledged means held, and logs are equal."""

from random import Random

import pytest
import trio

from rocketbed.remoting.client import dial
from rocketbed.wire.command import Command, ResponseCode
from rocketbed.wire.ha import TransferReader, encode_report
from rocketbed.world.api import World
from tests.support.sim.replicated import PORT, SEGMENT, Cluster, send_request


def test_slaves_hold_what_was_acknowledged_and_index_it() -> None:
    with Cluster(seed=1) as cluster:
        for name in ("master", "slave-1", "slave-2"):
            cluster.start(name)
        cluster.run(1)
        cluster.produce(300)
        cluster.simulation.run(30, until=lambda: cluster.producer.done)
        assert set(cluster.answers) == {0}
        held = max(cluster.nodes[name].store.max_offset for name in ("slave-1", "slave-2"))
        assert held == cluster.nodes["master"].store.max_offset
        cluster.run_until_equal("slave-1", "slave-2")
        cluster.run(4)
        for name in ("master", "slave-1", "slave-2"):
            cluster.check_queue(name)
            assert cluster.nodes[name].tables.topics.get("T") is not None


def test_synchronous_send_without_slaves_times_out() -> None:
    with Cluster(seed=2) as cluster:
        cluster.start("master")
        cluster.run(1)
        cluster.produce(1)
        cluster.run(4)
        assert set(cluster.answers) == {ResponseCode.FLUSH_SLAVE_TIMEOUT}
        cluster.start("slave-1")
        cluster.simulation.run(10, until=lambda: cluster.producer.done)
        assert cluster.answers[-1] == 0


async def lose_a_connection_unnoticed(world: World) -> None:
    """A slave that acknowledges a message, loses the connection and dials again at once; of the
    old connection the master hears nothing."""
    old, at = await world.network.connect("master", PORT + 1), 0
    await old.send_all(encode_report(0))
    reader = TransferReader()
    while not at:
        at = max(len(frame.data) for frame in reader.feed(await old.receive_some()))
    await old.send_all(encode_report(at))
    new = await world.network.connect("master", PORT + 1)
    while True:
        await new.send_all(encode_report(at))
        await trio.sleep(0.1)


def test_three_copies_are_not_one_redialling_slave() -> None:
    with Cluster(seed=1, in_sync=3) as cluster:
        cluster.start("master")
        cluster.run(1)
        cluster.simulation.start("slave", lose_a_connection_unnoticed)
        cluster.produce(1)
        cluster.run(1.5)
        assert len(cluster.nodes["master"].replication.master.slaves) == 2
        assert set(cluster.answers) == {ResponseCode.FLUSH_SLAVE_TIMEOUT}
        for name in ("slave-1", "slave-2"):
            cluster.start(name)
        cluster.simulation.run(10, until=lambda: cluster.producer.done)
        assert cluster.answers[-1] == 0


@pytest.mark.parametrize("sync_flush", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("seed", range(6))
def test_nothing_acknowledged_is_lost_when_processes_are_killed(
    seed: int, sync_flush: bool
) -> None:
    with Cluster(seed, sync_flush=sync_flush) as cluster:
        for name in ("master", "slave-1", "slave-2"):
            cluster.start(name)
        cluster.run(1)
        cluster.produce(400)
        for victim in ("master", "slave-1", "master", "slave-2"):
            cluster.run(0.05 + 0.013 * seed)
            cluster.simulation.kill(victim)
            cluster.run(0.1)
            cluster.start(victim)
            cluster.run(0.5)
        cluster.simulation.run(60, until=lambda: cluster.producer.done)
        cluster.run_until_equal("slave-1", "slave-2")
        for name in ("master", "slave-1", "slave-2"):
            cluster.check_queue(name)
        events = {line.event for line in cluster.simulation.log}
        assert not events & {"replication.refused", "replication.slave_refused"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_kill_of_any_node_loses_nothing_acknowledged(seed: int) -> None:
    """Kills in any order, of nodes that are recovering too."""
    random = Random(seed)
    names = ("master", "slave-1", "slave-2")
    with Cluster(seed, sync_flush=seed % 2 == 0) as cluster:
        for name in names:
            cluster.start(name)
        cluster.run(1)
        cluster.produce(300)
        for _ in range(8):
            cluster.run(random.random() * 0.15)
            victim = random.choice(names)
            cluster.simulation.kill(victim)
            cluster.run(random.random() * 0.3)
            cluster.start(victim)
            cluster.run(random.random() * 0.01)
            if random.random() < 0.3:
                cluster.simulation.kill(victim)
                cluster.start(victim)
            cluster.run(random.random() * 0.4)
        cluster.simulation.run(100, until=lambda: cluster.producer.done)
        cluster.run_until_equal("slave-1", "slave-2")
        for name in names:
            cluster.check_queue(name)
        events = {line.event for line in cluster.simulation.log}
        assert not events & {"replication.refused", "replication.slave_refused"}


@pytest.mark.parametrize("seed", range(6))
def test_power_cut_of_a_sync_flush_group_loses_nothing(seed: int) -> None:
    with Cluster(seed, sync_flush=True) as cluster:
        for name in ("master", "slave-1", "slave-2"):
            cluster.start(name)
        cluster.run(1)
        cluster.produce(150)
        for victim in ("slave-1", "slave-2"):
            cluster.run(0.1 + 0.017 * seed)
            cluster.simulation.power_cut(victim)
            cluster.run(0.2)
            cluster.start(victim)
            cluster.run(1)
        cluster.simulation.run(60, until=lambda: cluster.producer.done)
        cluster.run_until_equal("slave-1", "slave-2")
        for name in ("master", "slave-1", "slave-2"):
            cluster.check_queue(name)


@pytest.mark.parametrize("start_at", ["first", "last_file"])
def test_an_empty_slave_of_an_upstream_like_master(start_at: str) -> None:
    """Such a master gives an empty slave its last file; ours asks for the whole log if it may."""
    with Cluster(seed=6) as cluster:
        cluster.start("master", slaves=0, fresh="last_file")
        cluster.run(1)
        cluster.produce(200)
        cluster.simulation.run(30, until=lambda: cluster.producer.done)
        end = cluster.nodes["master"].store.max_offset
        assert end > 2 * SEGMENT
        cluster.start("slave-1", fresh=start_at)
        cluster.run(3)
        slave = cluster.nodes["slave-1"].store
        assert slave.max_offset == end
        assert slave.min_offset == (0 if start_at == "first" else end - end % SEGMENT)
        if start_at == "first":
            cluster.run_until_equal("slave-1")
            cluster.check_queue("slave-1")


def test_empty_slave_begins_at_the_masters_first_offset() -> None:
    with Cluster(seed=7) as cluster:
        cluster.start("master", slaves=0, fresh="last_file")
        cluster.run(1)
        cluster.produce(300)
        cluster.simulation.run(30, until=lambda: cluster.producer.done)
        store = cluster.nodes["master"].store
        cluster.simulation.process("master").call(store.log.segments.remove, 0)
        cluster.start("slave-1")
        cluster.run(3)
        slave = cluster.nodes["slave-1"].store
        assert (slave.min_offset, slave.max_offset) == (SEGMENT, store.max_offset)


def test_a_slave_refuses_sends() -> None:
    with Cluster(seed=3) as cluster:
        cluster.start("master")
        cluster.start("slave-1")
        cluster.run(1)

        async def main(world: World) -> Command:
            connection = await dial(world, ("slave-1", PORT))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connection.run)
                response = await connection.request(send_request("T", b"x"))
                connection.close()
            return response

        process = cluster.simulation.start("client", main)
        response = cluster.simulation.run_process(process)
        assert response.code not in (0, ResponseCode.FLUSH_SLAVE_TIMEOUT)
        assert cluster.nodes["slave-1"].store.max_offset == 0


def test_same_seed_same_run() -> None:
    digests = []
    for _ in range(2):
        with Cluster(seed=4) as cluster:
            for name in ("master", "slave-1"):
                cluster.start(name)
            cluster.run(1)
            cluster.produce(50)
            cluster.simulation.run(30, until=lambda c=cluster: c.producer.done)  # type: ignore[misc]
            digests.append(cluster.simulation.digest())
    assert digests[0] == digests[1]
