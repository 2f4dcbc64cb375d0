"""Whole nodes in simulation, master and slaves, and a producer that keeps what it was told."""

from dataclasses import dataclass, field

import trio

from rocketbed.chaos.backends.sim.simulation import Simulation
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
    name: str,
    *,
    slaves: int = 2,
    sync_flush: bool = False,
    fresh: str = "first",
    in_sync: int = 2,
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
        in_sync_replicas=in_sync if slaves else 1,
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
    in_sync: int = 2
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
        config = settings(
            name, slaves=slaves, sync_flush=self.sync_flush, fresh=fresh, in_sync=self.in_sync
        )

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
        """The whole commit log of a node."""
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
        """Check that every acknowledged message is at its offset in a node's consume queue."""
        store = self.nodes[name].store
        units: dict[int, bytes] = {}
        process = self.simulation.process(name)
        offset = 0
        while offset < store.queue_max("T", 0):
            result = process.call(store.get_messages, "T", 0, offset, 32)
            joined = process.call(store.read_cached, result.ranges)
            assert joined
            while joined:
                size = int.from_bytes(joined[:4], "big")
                units[offset], joined = joined[:size], joined[size:]
                offset += 1
        for offset, body in self.acknowledged.items():
            assert body in units[offset]


async def _run_node(world: World, config: NodeConfig, task_status: trio.TaskStatus[Node]) -> None:
    await run_node(world, config, task_status=task_status)
