"""A group whose roles change by hand: nodes `b1`, `b2`, `b3`, any of which may be the master."""

import posixpath
from contextlib import closing
from pathlib import Path
from typing import Any

import trio

from rocketbed.client.messages import Message
from rocketbed.client.outcome import Outcome, Sent
from rocketbed.client.producer import Producer
from rocketbed.inspect import check_store, open_directory
from rocketbed.inspect.findings import Severity
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.node.store.config import StoreConfig
from rocketbed.remoting.client import parse_address
from rocketbed.world.api import World
from tests.support.sim.client_cluster import NAMESERVERS, PORT, SimCluster
from tests.support.sim.links import cut

SEGMENT = 64 * 1024
NODES = ("b1", "b2", "b3")
SENDS_MAX = 500
SEND_PAUSE_S = 0.05


class Group(SimCluster):
    """Nodes of broker `b`; `roles` says their ids, b1 begins as the master."""

    def __init__(self, seed: int = 0, *, sync: bool = False, sync_flush: bool = False) -> None:
        super().__init__(seed)
        self.roles = {name: number for number, name in enumerate(NODES)}
        self.sync = sync
        self.sync_flush = sync_flush
        self.outcomes: list[tuple[bytes, Sent]] = []
        self.diverged = "cut"
        self.promotions = 0

    def _config(self, name: str, sync: bool, settings: dict[str, Any]) -> NodeConfig:
        number = self.roles[name]
        address = self.simulation.host(name).address
        store = StoreConfig(
            root="/store",
            segment_size=SEGMENT,
            queue_segment_size=4000,
            index_slots=50,
            index_entries=400,
            max_message_size=16 * 1024,
            sync_flush=self.sync_flush,
            is_slave=number > 0,
            store_host=address,
            store_port=PORT,
        )
        values: dict[str, Any] = {
            "store": store,
            "broker_name": "b",
            "broker_id": number,
            "broker_role": "SLAVE" if number else "SYNC_MASTER" if self.sync else "ASYNC_MASTER",
            "in_sync_replicas": 2 if self.sync and not number else 1,
            "ip1": address,
            "listen_port": PORT,
            "nameservers": tuple(parse_address(text) for text in NAMESERVERS.split(";")),
            "metadata_sync_ms": 500,
            "slave_timeout_ms": 1000,
            "diverged": f"cut:{self.promotions}" if self.diverged == "cut" else self.diverged,
        }
        return NodeConfig(**{**values, **settings})

    async def _main(self, world: World, name: str, config: NodeConfig) -> None:
        self.nodes.pop(name, None)
        await super()._main(world, name, config)

    def end(self, name: str, *, power: str = "") -> None:
        """Kill a node, or cut its power."""
        self.nodes.pop(name, None)
        if power:
            self.simulation.power_cut(name, power)
        else:
            self.simulation.kill(name)

    def promote(self, name: str) -> None:
        """Make a node the master; the former one gets its id. Neither is started."""
        former = next(other for other, number in self.roles.items() if number == 0)
        self.roles[name], self.roles[former] = 0, self.roles[name]
        self.promotions += 1

    def restart(self, name: str) -> None:
        """Stop a node cleanly and start it with the role it has now."""
        process = self.simulation.process(name)
        self.simulation.stop(name)
        self.simulation.run(20, until=lambda: process.done)
        self.start(name)

    def send(self, count: int, *, prefix: str = "m", size: int = 300, **options: Any) -> None:
        """Send messages to topic T, each until it was sent, and note the outcomes."""

        async def main(world: World) -> None:
            async with Producer(world, nameservers=NAMESERVERS, group="pg", **options) as sender:
                for number in range(count):
                    body = f"{prefix}-{number} ".encode().ljust(size, b".")
                    outcome: Outcome = await sender.send(Message("T", body))
                    for _ in range(SENDS_MAX):
                        if isinstance(outcome, Sent):
                            break
                        await trio.sleep(SEND_PAUSE_S)
                        outcome = await sender.send(Message("T", body))
                    assert isinstance(outcome, Sent)
                    self.outcomes.append((body, outcome))

        self.run(main)

    def isolate(self, name: str) -> None:
        """Cut a node from the other nodes until `heal`; clients still reach it."""
        for peer in NODES:
            if peer != name:
                cut(self.simulation.network, name, peer)

    def log_of(self, name: str) -> bytes:
        """A node's commit log up to its end."""
        disk = self.simulation.process(name).disk
        files = [path for path in disk.paths() if path.startswith("/store/commitlog/")]
        return b"".join(disk.contents(path) for path in files)[: self.nodes[name].store.max_offset]

    def kept_of(self, name: str) -> dict[str, bytes]:
        """Cuts that a node keeps, by offset."""
        disk = self.simulation.process(name).disk
        return {
            posixpath.basename(path): disk.contents(path)
            for path in disk.paths()
            if path.startswith("/store/rocketbed.cut/")
        }

    def run_until_equal(self, *names: str, seconds: float = 30) -> None:
        """Go on until these nodes have the master's whole log, dispatched."""
        master = next(other for other, number in self.roles.items() if number == 0)

        def equal() -> bool:
            if any(name not in self.nodes for name in (master, *names)):
                return False
            end = self.nodes[master].store.max_offset
            return all(
                self.nodes[name].store.max_offset == end
                and self.nodes[name].store.dispatched.value == end
                and self.nodes[name].replication.is_following
                for name in names
            )

        self.simulation.run(seconds, until=equal)
        for name in names:
            assert self.log_of(name) == self.log_of(master)

    def events(self, event: str, node: str = "") -> list[dict[str, object]]:
        """Fields of what was logged."""
        return [
            line.fields
            for line in self.simulation.log
            if line.event == event and node in ("", line.node)
        ]

    def check_directory(self, name: str, directory: Path) -> None:
        """The independent reader finds no damage in a node's store."""
        self.simulation.process(name).disk.image().export(str(directory))
        with closing(open_directory(f"{directory}/store")) as opened:
            report = check_store(opened)
        bad = [finding for finding in report.findings if finding.severity is not Severity.NOTE]
        assert bad == [], name
