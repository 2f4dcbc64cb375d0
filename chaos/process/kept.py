"""What a run keeps of its nodes' disks: images after power cuts, stores and traces at the end."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from rocketbed.chaos.process.machine.plain import PlainMachine
from rocketbed.chaos.record import IMAGES, STORES, Image
from rocketbed.chaos.trace import Trace


class Keeping:
    def __init__(
        self, machines: Mapping[str, PlainMachine], directory: Path, began_ns: int
    ) -> None:
        self.images: list[Image] = []
        self._machines = machines
        self._directory = directory
        self._began_ns = began_ns

    def image(self, name: str, time_ns: int, cause: str) -> None:
        """Keep a node's disk as it is now, after `cause`."""
        number = 1 + sum(image.node == name for image in self.images)
        where = f"{IMAGES}/{name}-{number}"
        self._machines[name].copy_store(self._directory / where)
        self.images.append(
            Image(node=name, number=number, time_ns=time_ns, cause=cause, directory=where)
        )

    def stores(self, directory: Path) -> dict[str, str]:
        """Copy stores off their machines, into `directory`; where each is there."""
        stores: dict[str, str] = {}
        for name, machine in self._machines.items():
            where = f"{STORES}/{name}"
            with suppress(FileNotFoundError):
                machine.copy_store(directory / where)
                stores[name] = where
        return stores

    def trace(self) -> Trace:
        """What was seen of the logs' ends."""
        trace = Trace()
        for name, machine in self._machines.items():
            machine.read_trace(trace.node(name), self._began_ns)
        trace.nodes = {name: node for name, node in trace.nodes.items() if node.times}
        return trace
