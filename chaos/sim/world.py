"""The World of a simulated process."""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, NoReturn, TypeVar

import trio

from rocketbed.chaos.sim.incarnation import Fate
from rocketbed.world.api import Network, World

if TYPE_CHECKING:
    from rocketbed.chaos.sim.process import Process

T = TypeVar("T")

OFFLOAD_SECONDS = 0.00002
"""What a hop to a thread and back takes."""


def build_world(process: "Process", network: Network) -> World:
    """The seams of one process, all bound to its fate."""
    host = process.host
    simulation = host.simulation
    return World(
        name=host.name,
        clock=host.clock,
        disk=process.disk,
        network=network,
        random=Random(f"{simulation.seed}/node/{process.name}"),
        log=SimLog(process),
        process=ProcessSeam(process),
        mark=lambda name: simulation.reached(process, name),
        offloader=InlineOffloader(process.fate),
    )


class SimProcess:
    """Facts about a process that outlive no incarnation."""

    def __init__(self, fate: Fate, boot_id: str, pid: int) -> None:
        self.fate = fate
        self.pid = pid
        self.boot_id = boot_id
        self.stop_requested = trio.Event()


class ProcessSeam:
    """`World.process`."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        self.pid = process.system.pid
        self.boot_id = process.system.boot_id
        self.stop_requested = process.system.stop_requested

    def exit(self, code: int) -> NoReturn:
        """End at once; nothing this process does afterwards has any effect."""
        self._process.fate.check()
        raise self._process.exit(code)


class InlineOffloader:
    """Runs the function in the loop after a short while."""

    def __init__(self, fate: Fate) -> None:
        self._fate = fate

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Result of `function(*arguments)`; cancelled only before it began."""
        self._fate.check()
        await trio.lowlevel.checkpoint()
        with trio.CancelScope(shield=True):
            await trio.sleep(OFFLOAD_SECONDS)
        self._fate.check()
        return function(*arguments)


class SimLog:
    """Events go into the simulation's record."""

    def __init__(self, process: "Process") -> None:
        self._process = process

    def debug(self, event: str, **fields: object) -> None:
        """For someone who follows one message."""
        self._record("debug", event, fields)

    def info(self, event: str, **fields: object) -> None:
        """For someone who follows the node."""
        self._record("info", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Something an operator should look at."""
        self._record("warning", event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Something is broken."""
        self._record("error", event, fields)

    def _record(self, level: str, event: str, fields: dict[str, object]) -> None:
        self._process.fate.check()
        self._process.host.simulation.logged(self._process, level, event, fields)
