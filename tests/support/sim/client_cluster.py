"""Nameservers and whole nodes in simulation, and programs that use the client beside them."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Self

import trio

from rocketbed.chaos.backends.sim.process import SimProcess
from rocketbed.chaos.backends.sim.simulation import Simulation
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.node.node import Node, run_node
from rocketbed.node.store.config import StoreConfig
from rocketbed.remoting.client import parse_address
from rocketbed.routing.config import NameserverConfig
from rocketbed.routing.nameserver import Nameserver
from rocketbed.world.api import World

PORT = 10911
NAMESERVERS = "ns-1:9876;ns-2:9876"
Program = Callable[[World], Awaitable[Any]]


class SimCluster:
    """Two nameservers; nodes `a-0` (a master), `a-1` (its slave), `b-0`, ..."""

    def __init__(self, seed: int = 0) -> None:
        self.simulation = Simulation(seed)
        self.nodes: dict[str, Node] = {}
        self._sync: dict[str, bool] = {}
        self._programs = 0

    def __enter__(self) -> Self:
        self.simulation.__enter__()
        for name in ("ns-1", "ns-2"):
            self.start_nameserver(name)
        return self

    def __exit__(self, *_: object) -> None:
        self.simulation.close()

    def start_nameserver(self, name: str) -> None:
        """Start a nameserver, or start it again."""

        async def main(world: World) -> None:
            await Nameserver(world, NameserverConfig()).run()

        self.simulation.start(name, main)

    def start(self, *names: str, sync: bool = False, **settings: Any) -> None:
        """Start nodes, or start them again; `sync` masters wait for one slave."""
        for name in names:
            config = self._config(name, sync, settings)
            self.simulation.start(name, self._main, name, config)

    async def _main(self, world: World, name: str, config: NodeConfig) -> None:
        async with trio.open_nursery() as nursery:
            self.nodes[name] = await nursery.start(partial(run_node, world, config))

    def _config(self, name: str, sync: bool, settings: dict[str, Any]) -> NodeConfig:
        broker, _, number = name.partition("-")
        self._sync.setdefault(name, sync)
        is_slave = number != "0"
        address = self.simulation.host(name).address
        store = StoreConfig(
            root="/store",
            segment_size=64 * 1024,
            queue_segment_size=4000,
            index_slots=50,
            index_entries=400,
            max_message_size=16 * 1024,
            is_slave=is_slave,
            store_host=address,
            store_port=PORT,
        )
        role = "SLAVE" if is_slave else "SYNC_MASTER" if self._sync[name] else "ASYNC_MASTER"
        values: dict[str, Any] = {
            "store": store,
            "broker_name": broker,
            "broker_id": int(number),
            "broker_role": role,
            "in_sync_replicas": 2 if self._sync[name] else 1,
            "ip1": address,
            "listen_port": PORT,
            "nameservers": tuple(parse_address(text) for text in NAMESERVERS.split(";")),
            "metadata_sync_ms": 500,
            "slave_timeout_ms": 1000,
        }
        return NodeConfig(**{**values, **settings})

    def program(self, main: Program) -> SimProcess:
        """Start a program on a host of its own."""
        self._programs += 1
        return self.simulation.start(f"program-{self._programs}", main)

    def run(self, main: Program, seconds: float = 120.0) -> Any:
        """Run a program to its end; what it returned."""
        return self.simulation.run_process(self.program(main), seconds)
