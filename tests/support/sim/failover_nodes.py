"""A group of whole nodes with failover in simulation: nameservers with controllers, three brokers,
and programs beside them that use the client."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Self

import trio

from rocketbed.chaos.backends.sim.clock import SECOND
from rocketbed.chaos.backends.sim.memory_cas import MemoryCas, Shelf
from rocketbed.chaos.backends.sim.process import SimProcess
from rocketbed.chaos.backends.sim.simulation import Simulation
from rocketbed.client.admin import Admin
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.node.node import Node, run_node
from rocketbed.node.store.config import StoreConfig
from rocketbed.replication.controller import Controller
from rocketbed.replication.entry import GroupEntry
from rocketbed.replication.register.cas import Versioned
from rocketbed.replication.register.form import loaded
from rocketbed.routing.config import NameserverConfig
from rocketbed.routing.nameserver import Nameserver
from rocketbed.world.api import World

PORT = 10911
GROUP = "g"
NAMESERVER = "ns-1:9876"
Program = Callable[[World], Awaitable[Any]]


class FailoverNodes:
    """Nameservers `ns-1`, ...; nodes `g-1`, `g-2`, `g-3`, whose replica numbers these are."""

    def __init__(
        self, seed: int = 0, *, replicas: int = 3, nameservers: int = 1, begin: bool = True
    ) -> None:
        """With `begin` the nodes are started when the block is entered."""
        self.simulation = Simulation(seed)
        self.names = [f"{GROUP}-{number}" for number in range(1, replicas + 1)]
        self.nameservers = [f"ns-{number}" for number in range(1, nameservers + 1)]
        self.nodes: dict[str, Node] = {}
        self.shelf = Shelf(lambda: self.simulation.timeline.now / SECOND)
        self._read: tuple[Versioned, GroupEntry] | None = None
        """The newest entry that was looked at: who waits looks at it with each event."""
        self._programs = 0
        self._begins = begin

    def __enter__(self) -> Self:
        self.simulation.__enter__()
        for name in self.nameservers:
            self.start_nameserver(name)
        if self._begins:
            self.start(*self.names)
        return self

    def __exit__(self, *_: object) -> None:
        self.simulation.close()

    def start_nameserver(self, name: str) -> None:
        async def main(world: World) -> None:
            controller = Controller(world, MemoryCas(world, self.shelf))
            await Nameserver(world, NameserverConfig(), controller).run()

        self.simulation.start(name, main)

    def start(self, *names: str, **settings: Any) -> None:
        """Start nodes, or start them again."""
        for name in names:
            self.nodes.pop(name, None)
            self.simulation.start(name, self._main, name, self.config(name, **settings))

    async def _main(self, world: World, name: str, config: NodeConfig) -> None:
        async with trio.open_nursery() as nursery:
            self.nodes[name] = await nursery.start(partial(run_node, world, config))

    def config(self, name: str, **settings: Any) -> NodeConfig:
        number = int(name.rpartition("-")[2])
        address = self.simulation.host(name).address
        sync = len(self.names) < 3
        store = StoreConfig(
            root="/store",
            segment_size=64 * 1024,
            queue_segment_size=4000,
            index_slots=50,
            index_entries=400,
            max_message_size=16 * 1024,
            is_slave=True,
            sync_flush=sync,
            store_host=address,
            store_port=PORT,
        )
        values: dict[str, Any] = {
            "store": store,
            "broker_name": GROUP,
            "broker_id": number,
            "broker_role": "SLAVE",
            "replica": number,
            "replicas": len(self.names),
            "ip1": address,
            "listen_port": PORT,
            "nameservers": tuple(
                (self.simulation.host(one).address, 9876) for one in self.nameservers
            ),
            "metadata_sync_ms": 500,
            "slave_timeout_ms": 1000,
        }
        return NodeConfig(**{**values, **settings})

    # --- looking

    @property
    def entry(self) -> GroupEntry | None:
        """The register's newest of the group."""
        found = self.shelf.values.get(GROUP)
        if not found:
            return None
        newest = found[-1]
        if self._read is None or self._read[0] is not newest:
            self._read = newest, loaded(newest.value, name=GROUP, version=newest.version)
        return self._read[1]

    def leader(self) -> str:
        """Who takes messages now; empty for nobody."""
        for name, node in self.nodes.items():
            if self.simulation.process(name).state != "running" or node.failover is None:
                continue
            if node.failover.refusal() is None:
                return name
        return ""

    def wait(self, condition: Callable[[], bool], seconds: float = 60.0) -> float:
        """Simulated seconds until it holds."""
        began = self.simulation.timeline.now
        self.simulation.run(seconds, until=condition)
        assert condition(), f"not within {seconds} s"
        return (self.simulation.timeline.now - began) / SECOND

    def settle(self) -> str:
        """Wait for a leader and a full in-sync set; the leader's name."""

        def is_settled() -> bool:
            entry = self.entry
            return (
                entry is not None and bool(self.leader()) and len(entry.in_sync) == len(self.names)
            )

        self.wait(is_settled)
        return self.leader()

    def is_routed(self) -> bool:
        """Whether each nameserver has the newest registration of each node."""
        nodes = [self.nodes[name] for name in self.names]
        return all(all(node.registration.registered.values()) for node in nodes)

    def copy_no_tables(self) -> None:
        """Only the log tells followers of changes from now on."""
        for node in self.nodes.values():
            assert node.replication.metadata is not None
            node.replication.metadata.may_copy = lambda: False

    def run_program(self, main: Program, seconds: float = 60) -> Any:
        """Run a program to its end; what it returns."""
        return self.simulation.run_process(self.program(main), seconds)

    def hand_over(self, leader: str) -> None:
        """As an operator does."""
        assert self.entry is not None
        address, epoch = self.nodes[leader].config.address, self.entry.epoch

        async def ask(world: World) -> None:
            async with Admin(world, nameservers=NAMESERVER) as admin:
                await admin.hand_over(address, GROUP, to=-1, epoch=epoch)

        self.run_program(ask, 30)

    def status(self) -> dict[str, Any]:
        """What the first nameserver's controller says of its groups."""

        async def ask(world: World) -> dict[str, Any]:
            async with Admin(world, nameservers=NAMESERVER) as admin:
                return await admin.failover_groups()

        found: dict[str, Any] = self.run_program(ask, 30)
        return found

    def program(self, main: Program) -> SimProcess:
        """Start a program on a host of its own."""
        self._programs += 1
        return self.simulation.start(f"program-{self._programs}", main)

    def log_of(self, name: str) -> bytes:
        """The commit log of a node, as long as it is."""
        disk = self.simulation.process(name).disk
        files = [path for path in disk.paths() if path.startswith("/store/commitlog/")]
        return b"".join(disk.contents(path) for path in files)[: self.nodes[name].store.max_offset]
