"""Whole nodes in a failover group: after any death another node leads, and nothing acknowledged is
lost.
"""

from dataclasses import replace
from typing import Any

import pytest
import trio

from rocketbed.client.admin import Admin
from rocketbed.client.consumer import Consumer
from rocketbed.client.messages import Message
from rocketbed.client.producer import Producer
from rocketbed.remoting.client import dial
from rocketbed.replication import follower as follower_module
from rocketbed.replication import leader as leader_module
from rocketbed.wire.bodies import SubscriptionGroupConfig
from rocketbed.wire.ha_native import Ack
from rocketbed.world.api import World
from tests.support.sim.failover_nodes import GROUP, PORT, FailoverNodes
from tests.support.sim.failover_traffic import Traffic, run_seed, waits_longest
from tests.support.sim.replicated import send_request


def test_slave_takes_over_and_the_dead_leader_rejoins() -> None:
    with FailoverNodes(1) as group:
        first = group.settle()
        traffic = Traffic(group)
        traffic.start()
        group.simulation.run(3)
        group.simulation.kill(first)
        group.simulation.run(5)
        second = group.leader()
        assert second not in ("", first)
        assert waits_longest(traffic.when) < 1.0
        group.start(first)
        group.wait(lambda: len(group.entry.in_sync) == 3 if group.entry else False)
        traffic.check()
        assert len(traffic.sent) > 1000


def test_tables_survive_their_leader() -> None:
    """A topic, a group and a commit, and the leader dies as soon as they are answered."""

    async def change(world: World) -> list[int]:
        async with Admin(world, nameservers=nameservers) as admin:
            await admin.create_topic("Made", queues=3)
            await admin.create_group(SubscriptionGroupConfig(group_name="cg", retry_queue_nums=7))
        async with (
            Producer(world, nameservers=nameservers, group="pg") as producer,
            Consumer(world, nameservers=nameservers, group="cg") as reader,
        ):
            for number in range(30):
                await producer.send(Message("Made", b"%d" % number))
            await reader.subscribe("Made", start="first")
            polled = 0
            while polled < 30:
                polled += len(await reader.poll())
            await reader.commit()
            await trio.sleep(1.2)
            return sorted(reader.positions().values())

    async def look(world: World) -> tuple[int, int, list[int]]:
        async with Admin(world, nameservers=nameservers) as admin:
            topic = (await admin.topic_configs(group.nodes[leader].config.address))["Made"]
        async with Consumer(world, nameservers=nameservers, group="cg") as reader:
            await reader.subscribe("Made", start="first")
            retries = group.nodes[leader].tables.groups.get("cg")
            assert retries is not None
            positions = sorted(reader.positions().values())
            return topic.write_queue_nums, retries.retry_queue_nums, positions

    with FailoverNodes(5) as group:
        first = group.settle()
        nameservers = f"{group.simulation.host('ns-1').address}:9876"
        group.copy_no_tables()
        committed = group.simulation.run_process(group.program(change), 60)
        group.simulation.kill(first)
        group.wait(lambda: group.leader() not in ("", first))
        leader = group.leader()
        assert group.simulation.run_process(group.program(look), 60) == (3, 7, committed)


def test_change_made_without_a_leader_applies_at_the_next() -> None:
    async def make(world: World) -> list[str]:
        async with Admin(world, nameservers=nameservers) as admin:
            while 0 in (await admin.cluster()).broker_addr_table[GROUP].broker_addrs:
                pass  # each question takes its time
            await admin.create_group(SubscriptionGroupConfig(group_name="cg"))
            return [*await admin.create_topic("Made"), *await admin.groups()]

    with FailoverNodes(7) as group:
        first = group.settle()
        group.wait(group.is_routed)
        nameservers = f"{group.simulation.host('ns-1').address}:9876"
        program = group.program(make)
        group.simulation.run(1)
        group.simulation.kill(first)
        names = group.simulation.run_process(program, 60)
        assert names[0] == GROUP
        assert "cg" in names
        assert group.leader() not in ("", first)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_nothing_acknowledged_is_lost(seed: int) -> None:
    run_seed(seed)


@pytest.mark.slow
def test_records_in_pieces_on_synced_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two replicas, which have on disk what they acknowledge; a frame ends anywhere in a record."""
    monkeypatch.setattr(leader_module, "LIVE_BODY", 150)
    run_seed(0, replicas=2)


def test_acknowledged_end_is_a_record_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it may have been synced up to the middle of one: else that might be confirmed."""
    acknowledged: list[int] = []

    def ack(received: int, durable: int, incarnation: int) -> Ack:
        acknowledged.extend((received, durable))
        return Ack(received, durable, incarnation)

    monkeypatch.setattr(leader_module, "LIVE_BODY", 150)
    monkeypatch.setattr(follower_module, "Ack", ack)
    with FailoverNodes(0, replicas=2) as group:
        leader = group.settle()
        traffic = Traffic(group)
        traffic.start()
        group.simulation.run(2)
        traffic.stop()
        log, at, ends = group.log_of(leader), 0, {0}
        while at < len(log):
            at += int.from_bytes(log[at : at + 4], "big")
            ends.add(at)
        assert len(set(acknowledged)) > 100
        assert {*acknowledged} <= ends


def test_empty_replica_gets_a_log_with_an_expired_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leader_module, "WINDOW", 32 * 1024)
    with FailoverNodes(3, begin=False) as group:
        group.start("g-1", "g-2")
        group.wait(lambda: bool(group.leader()))
        traffic = Traffic(group)
        traffic.start()
        group.simulation.run(6)
        traffic.stop()
        leader = group.nodes[group.leader()].store
        segments = leader.log.segments
        while len(segments.starts) > 2:
            segments.remove(segments.starts[0])
        assert leader.min_offset > 128 * 1024
        group.start("g-3")
        group.wait(lambda: "g-3" in group.nodes)
        group.wait(lambda: group.nodes["g-3"].store.max_offset == leader.max_offset)
        assert group.nodes["g-3"].store.min_offset == leader.min_offset


@pytest.mark.slow
def test_catch_up_is_rate_limited_and_delays_no_producer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leader_module, "WINDOW", 32 * 1024)
    rate = 250_000
    with FailoverNodes(6, begin=False) as group:
        group.start("g-1", "g-2", catch_up_rate=rate)
        group.wait(lambda: bool(group.leader()))
        traffic = Traffic(group)
        traffic.start()
        group.simulation.run(6)
        size = group.nodes[group.leader()].store.max_offset
        group.start("g-3")
        taken_s = group.wait(lambda: len(group.entry.in_sync) == 3 if group.entry else False)
        assert size > rate
        assert taken_s > (size - 32 * 1024) / rate
        assert waits_longest(traffic.when) < 0.5
        traffic.check()


def test_followers_tell_a_leader_cut_off_from_controllers() -> None:
    with FailoverNodes(7) as group:
        first = group.settle()
        traffic = Traffic(group)
        traffic.start()
        group.simulation.run(1)
        network, pair = group.simulation.network, (first, "ns-1")
        for host, peer in (pair, pair[::-1]):
            network.between(host, peer).cut = True
        fenced = "leader.fenced"
        group.wait(lambda: fenced in [host.event for host in group.simulation.log])
        assert next(host.node for host in group.simulation.log if host.event == fenced) == first
        cut_off = group.nodes[first].failover
        assert cut_off is not None
        group.wait(lambda: cut_off.member.leader is None)
        last_entry, entry = cut_off.agent.entry, group.entry
        assert last_entry is not None
        assert entry is not None
        assert last_entry.epoch < entry.epoch  # no controller has told it
        for host, peer in (pair, pair[::-1]):
            network.between(host, peer).cut = False
            network.changed(host, peer)
        traffic.check()


def test_an_operator_may_accept_a_loss() -> None:
    """All lose power, and with it messages acknowledged in memory; one is told to lead."""
    with FailoverNodes(4) as group:
        group.settle()
        traffic = Traffic(group)
        traffic.start()
        group.simulation.run(3)
        traffic.stop()
        for name in group.names:
            group.simulation.power_cut(name)
        group.start(*group.names)
        group.simulation.run(3)
        assert group.entry is not None
        assert (group.entry.leader, group.leader()) == (None, "")
        ends = {name: group.nodes[name].store.max_offset for name in group.names}
        chosen = max(ends, key=lambda name: ends[name])

        async def force(world: World) -> None:
            async with Admin(world, nameservers=traffic.nameservers) as admin:
                await admin.force_leader("g", int(chosen[-1]))

        group.simulation.run_process(group.program(force), 30)
        assert group.settle() == chosen
        assert group.entry.unclean == (group.entry.epoch,)
        logs = {group.log_of(name) for name in group.names}
        assert len(logs) == 1


def classic(group: FailoverNodes, name: str, *, is_slave: bool) -> None:
    """Start a node as one of a group without failover, whose master is `g-1`."""
    config = group.config(name)
    role = "SLAVE" if is_slave else "SYNC_MASTER"
    settings: dict[str, Any] = {"broker_role": role, "broker_id": 1 if is_slave else 0}
    master = f"{group.simulation.host('g-1').address}:10912" if is_slave else ""
    store = replace(config.store, is_slave=is_slave)
    group.start(
        name, **settings, replica=0, store=store, ha_master_address=master, in_sync_replicas=2
    )


def test_classic_group_converts_to_failover_and_back() -> None:
    with FailoverNodes(7, begin=False) as group:
        classic(group, "g-1", is_slave=False)
        classic(group, "g-2", is_slave=True)
        group.simulation.run(2)
        traffic = Traffic(group)
        traffic.start()
        group.simulation.run(2)
        traffic.stop()
        for name in ("g-2", "g-1"):
            group.simulation.stop(name)
            group.simulation.run(3)
        # A slave's directory founds no group, in any order; an empty one joins later.
        group.start("g-2")
        group.simulation.run(3)
        assert group.entry is None
        group.start("g-1")
        group.wait(lambda: group.leader() == "g-1")
        group.start("g-3")
        group.settle()
        traffic.start()
        group.simulation.run(2)
        group.simulation.kill("g-1")
        group.wait(lambda: group.leader() not in ("", "g-1"))
        group.start("g-1")
        traffic.check()
        leader = group.leader()
        for name in group.names:
            group.simulation.stop(name)
        group.simulation.run(3)
        config = group.config(leader)
        group.start(
            leader,
            broker_role="ASYNC_MASTER",
            broker_id=0,
            replica=0,
            store=replace(config.store, is_slave=False),
        )
        group.simulation.run(2)
        assert len(traffic.read_all()) >= len(traffic.sent)


def test_foreign_writes_in_a_directory_are_cut_off() -> None:
    """A follower's directory was used by another broker meanwhile: nothing of that is kept."""
    with FailoverNodes(9) as group:
        leader = group.settle()
        traffic = Traffic(group)
        traffic.start()
        group.simulation.run(2)
        name = next(one for one in group.names if one != leader)
        group.simulation.stop(name)
        group.simulation.run(2)
        config = group.config(name)
        store = replace(config.store, is_slave=False)
        lone = {"broker_role": "ASYNC_MASTER", "broker_id": 0, "replica": 0, "store": store}
        group.start(name, **lone, broker_name="other")
        group.simulation.run(1)

        async def write(world: World) -> None:
            connection = await dial(world, (config.ip1, PORT))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connection.run)
                for _ in range(20):
                    await connection.request(send_request("T", b"foreign"))
                connection.close()

        group.simulation.run_process(group.program(write), 30)
        group.simulation.stop(name)
        group.simulation.run(2)
        group.start(name)
        group.settle()
        warnings = [line for line in group.simulation.log if line.event == "failover.foreign_hand"]
        kept_bytes = group.simulation.process(name).disk.contents(str(warnings[0].fields["kept"]))
        assert kept_bytes.count(b"foreign") == 20, "what that broker acknowledged"
        traffic.check()


def test_start_remembers_the_flushed_offset() -> None:
    """The replica does not know yet how much is confirmed (`soak-failover` 50013)."""

    def on_disk() -> int:
        data = group.simulation.process(first).disk.contents("/store/rocketbed.flushed")
        return int.from_bytes(data[:8], "big", signed=True)

    with FailoverNodes(1, replicas=2) as group:
        first = group.settle()
        traffic = Traffic(group)
        traffic.start()
        group.simulation.run(3.3)
        before = on_disk()
        group.simulation.kill(first)
        group.simulation.kill("ns-1")
        group.start(first)
        group.wait(lambda: first in group.nodes)
        assert group.nodes[first].store.dispatched.value < before, "all was known to be confirmed"
        group.simulation.run(2)
        assert on_disk() >= before > 0
