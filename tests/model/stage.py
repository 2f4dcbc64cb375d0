"""A stage for sessions of replication: nodes, and peers by hand in the place of others."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from random import Random
from typing import Any, Final, Self

import trio

from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.chaos.backends.sim.incarnation import SimulationError
from rocketbed.chaos.backends.sim.simulation import Simulation
from rocketbed.node.config.node_config import make_config, settings_from_options
from rocketbed.node.node import Node, run_node
from rocketbed.node.store.store import MessageStore
from rocketbed.remoting.client import open_connection
from rocketbed.wire.command import RequestCode
from rocketbed.world.api import World
from tests.model.alone import ensure_reasons
from tests.model.broker import Peer
from tests.model.store import HOST
from tests.support.peers.logs import read_log

PORT: Final = 10911
HA_PORT: Final = PORT + 1
SEGMENT: Final = 16 * 1024
COLD_SHARE: Final = 0.2
"""Reads that do not find their pages in memory."""
SETTINGS: Final = {
    "storePathRootDir": "/store",
    "listenPort": PORT,
    "brokerName": "broker-a",
    "mappedFileSizeCommitLog": SEGMENT,
    "mappedFileSizeConsumeQueue": 2000,
    "maxMessageSize": 4096,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
    "haSendHeartbeatInterval": 1000,
    "rbMetadataSync": 500,
}
AS_SLAVE: Final = {
    "brokerRole": "SLAVE",
    "brokerId": 1,
    "haMasterAddress": f"master:{HA_PORT}",
}


class Stage:
    """A simulation with nodes `master` and `slave`, or peers in the place of one."""

    def __init__(self, seed: int | str) -> None:
        self.simulation = Simulation(seed)
        self.nodes: dict[str, Node] = {}
        self._peers = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.simulation.close()
        if kind is None:
            ensure_reasons(self.simulation.log)

    def node(
        self,
        name: str,
        settings: Mapping[str, object],
        *,
        image: DiskImage | None = None,
        descriptors: int = 0,
    ) -> Node:
        """Start a node, and wait until it serves."""
        self.begin(name, settings, image=image, descriptors=descriptors)
        self.until(lambda: name in self.nodes, f"{name} serves")
        return self.nodes[name]

    def begin(
        self,
        name: str,
        settings: Mapping[str, object],
        *,
        image: DiskImage | None = None,
        descriptors: int = 0,
    ) -> None:
        """Start a node."""
        host = self.simulation.host(name)
        host.cold_share = COLD_SHARE
        if image is not None:
            host.image = image
        values = {**SETTINGS, "brokerIP1": host.address, **settings}
        options = [f"{key}={value}" for key, value in values.items()]
        self.nodes.pop(name, None)

        async def main(world: World) -> None:
            config, _ = make_config(settings_from_options(options))
            if descriptors:
                world.process.descriptors = descriptors
            async with trio.open_nursery() as nursery:
                self.nodes[name] = await nursery.start(partial(run_node, world, config))

        self.simulation.start(name, main)

    def stop(self, name: str) -> DiskImage:
        """End a node in order; its disk then."""
        process = self.simulation.process(name)
        self.simulation.stop(name)
        self.until(lambda: process.done, f"{name} stops")
        assert not process.disk.open_files, f"closed: {process.disk.open_files} files are open"
        return self.simulation.host(name).image

    def until(self, holds: Callable[[], bool], event: str, seconds: float = 30) -> None:
        """Go on until it holds."""
        try:
            self.simulation.run(seconds, until=holds)
        except SimulationError as exc:
            raise AssertionError(f"wait: not within {seconds} s: {event}") from exc

    def peer(self, main: Callable[[World], Awaitable[Any]]) -> Any:
        """Run a program on a host of its own to its end; what it returned."""
        self._peers += 1
        process = self.simulation.start(f"peer-{self._peers}", main)
        return self.simulation.run_process(process)

    def ask(self, name: str, ask: Callable[[Peer], Awaitable[Any]]) -> Any:
        """Be a client of a node."""

        async def main(world: World) -> Any:
            peer = Peer()
            async with open_connection(world, (name, PORT), peer.handlers) as connection:
                peer.connection = connection
                try:
                    return await ask(peer)
                except AssertionError as exc:
                    return exc  # raised outside, since a nursery would wrap it in a group

        result = self.peer(main)
        if isinstance(result, AssertionError):
            raise result
        return result

    def ready(self, name: str, code: int, text: str) -> None:
        """Check the answer of a node to `rocketbed health`."""
        answer = self.ask(name, lambda peer: peer.ask(RequestCode.RB_READINESS, {}, code))
        assert text in (answer.remark or ""), f"readiness: {answer.remark!r} for {text!r}"

    def fill(self, name: str, count: int, random: Random) -> None:
        """Put messages into a node's store."""
        self.simulation.process(name).call(fill, self.nodes[name].store, count, random)

    def log(self, name: str) -> tuple[int, bytes]:
        """Return the first offset of a node's log, and its bytes."""
        log = self.nodes[name].store.log
        return self.simulation.process(name).call(read_log, log)

    def told(self, name: str, event: str) -> list[dict[str, object]]:
        """Return the log lines of a node with this name."""
        return [
            line.fields for line in self.simulation.log if (line.node, line.event) == (name, event)
        ]


def fill(store: MessageStore, count: int, random: Random) -> None:
    for _ in range(count):
        run = store.begin()
        body = random.randbytes(random.choice((5, 40, 300, 1500)))
        run.add(
            "T", random.randrange(2), body, b"", flag=0, sys_flag=0, born_ms=1,
            born_host=HOST,
        )  # fmt: skip
        store.commit(run)
