"""Whole nodes, master and slaves, in simulation: acknowledged means held, and logs are equal."""

from dataclasses import dataclass, field
from random import Random

import pytest
import trio

from rocketbed.chaos.sim.simulation import Simulation
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.node.node import Node, run_node
from rocketbed.node.store.config import StoreConfig
from rocketbed.remoting.client import dial
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.command import Command, RequestCode, ResponseCode, request
from rocketbed.world.api import World

PORT = 10911
SEGMENT = 64 * 1024


def settings(
    name: str, *, slaves: int = 2, sync_flush: bool = False, fresh: str = "first"
) -> NodeConfig:
    """A node's configuration with small files. Ids follow the names `master`, `slave-1`, ..."""
    number = 0 if name == "master" else int(name.rpartition("-")[2])
    store = StoreConfig(
        root="/store",
        segment_size=SEGMENT,
        queue_segment_size=4000,
        index_slots=50,
        index_entries=400,
        max_message_size=16 * 1024,
        sync_flush=sync_flush,
        is_slave=number > 0,
    )
    return NodeConfig(
        store=store,
        broker_name="group",
        broker_id=number,
        broker_role="SLAVE" if number else "SYNC_MASTER",
        in_sync_replicas=2 if slaves else 1,
        ha_master_address="master:10912" if number else "",
        slave_timeout_ms=1000,
        classic_fresh=fresh,
    )


def send_request(topic: str, body: bytes) -> Command:
    fields = {
        "producerGroup": "producers",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "1",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "0",
        "flag": "0",
        "properties": "",
    }
    return request(RequestCode.SEND_MESSAGE, fields, body)


@dataclass
class Cluster:
    """A simulation of nodes, and what a producer was told."""

    seed: int
    sync_flush: bool = False
    nodes: dict[str, Node] = field(default_factory=dict)
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    """Queue offset -> body, of sends answered with code 0."""
    answers: list[int] = field(default_factory=list)

    def __enter__(self) -> "Cluster":
        self.simulation = Simulation(self.seed)
        return self

    def __exit__(self, *_: object) -> None:
        self.simulation.close()

    def start(self, name: str, *, slaves: int = 2, fresh: str = "first") -> None:
        config = settings(name, slaves=slaves, sync_flush=self.sync_flush, fresh=fresh)

        self.nodes.pop(name, None)

        async def main(world: World) -> None:
            async with trio.open_nursery() as nursery:
                self.nodes[name] = await nursery.start(_run_node, world, config)

        self.simulation.start(name, main)

    def run(self, seconds: float) -> None:
        self.simulation.run(seconds)

    def produce(self, count: int, size: int = 700) -> None:
        """Start a producer that sends until `count` sends were acknowledged."""

        async def main(world: World) -> None:
            sent = 0
            while len(self.acknowledged) < count:
                try:
                    connection = await dial(world, ("master", PORT), timeout_s=1)
                except RemotingError:
                    await trio.sleep(0.05)
                    continue
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(connection.run)
                    sent = await self._send_all(connection, sent, count, size)
                    connection.close()

        self.producer = self.simulation.start("producer", main)

    async def _send_all(self, connection: Connection, sent: int, count: int, size: int) -> int:
        while len(self.acknowledged) < count:
            sent += 1
            body = (b"%06d" % sent).ljust(size, b".")
            try:
                response = await connection.request(send_request("T", body), timeout_s=2)
            except RemotingError:
                return sent
            self.answers.append(response.code)
            if response.code == ResponseCode.SUCCESS:
                offset = int(response.fields["queueOffset"])
                assert offset not in self.acknowledged
                self.acknowledged[offset] = body
        return sent

    def log_of(self, name: str) -> bytes:
        """The commit log of a node, as long as it is."""
        store = self.nodes[name].store
        disk = self.simulation.process(name).disk
        files = [path for path in disk.paths() if path.startswith("/store/commitlog/")]
        return b"".join(disk.contents(path) for path in files)[: store.max_offset]

    def run_until_equal(self, *names: str) -> None:

        def equal() -> bool:
            if not all(name in self.nodes for name in ("master", *names)):
                return False
            end = self.nodes["master"].store.max_offset
            stores = [self.nodes[name].store for name in ("master", *names)]
            return all(
                store.max_offset == end and store.dispatched.value == end for store in stores
            )

        self.simulation.run(30, until=equal)
        for name in names:
            assert self.log_of(name) == self.log_of("master")

    def check_queue(self, name: str) -> None:
        """Every acknowledged message stands at its offset in a node's consume queue."""
        store = self.nodes[name].store
        found: dict[int, bytes] = {}
        process = self.simulation.process(name)
        offset = 0
        while offset < store.queue_max("T", 0):
            result = process.call(store.get_messages, "T", 0, offset, 32)
            data = process.call(store.read_cached, result.ranges)
            assert data
            joined = b"".join(data)
            while joined:
                size = int.from_bytes(joined[:4], "big")
                found[offset], joined = joined[:size], joined[size:]
                offset += 1
        for offset, body in self.acknowledged.items():
            assert body in found[offset]


async def _run_node(world: World, config: NodeConfig, task_status: trio.TaskStatus[Node]) -> None:
    await run_node(world, config, task_status=task_status)


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


def test_without_slaves_a_synchronous_send_times_out_with_its_own_code() -> None:
    with Cluster(seed=2) as cluster:
        cluster.start("master")
        cluster.run(1)
        cluster.produce(1)
        cluster.run(4)
        assert set(cluster.answers) == {ResponseCode.FLUSH_SLAVE_TIMEOUT}
        cluster.start("slave-1")
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


@pytest.mark.parametrize("seed", range(10))
def test_nothing_acknowledged_is_lost_when_anyone_is_killed_at_any_moment(seed: int) -> None:
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
def test_nothing_acknowledged_is_lost_when_a_power_cut_hits_a_sync_flush_group(seed: int) -> None:
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


@pytest.mark.parametrize("wanted", ["first", "last_file"])
def test_an_empty_slave_of_an_upstream_like_master(wanted: str) -> None:
    """Such a master gives an empty slave its last file; ours asks for the whole log if it may."""
    with Cluster(seed=6) as cluster:
        cluster.start("master", slaves=0, fresh="last_file")
        cluster.run(1)
        cluster.produce(200)
        cluster.simulation.run(30, until=lambda: cluster.producer.done)
        end = cluster.nodes["master"].store.max_offset
        assert end > 2 * SEGMENT
        cluster.start("slave-1", fresh=wanted)
        cluster.run(3)
        slave = cluster.nodes["slave-1"].store
        assert slave.max_offset == end
        assert slave.min_offset == (0 if wanted == "first" else end - end % SEGMENT)
        if wanted == "first":
            cluster.run_until_equal("slave-1")
            cluster.check_queue("slave-1")


def test_an_empty_slave_begins_where_the_masters_log_begins_now() -> None:
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
