"""A second process on a running node's store, by an operator's error (T13, S18).

Two processes on one directory are not modelled. But the second one has to give up before it changes
anything, so it is enough to give it the directory as it is now, with the lock held by another: what
it changes in its own copy it would have changed under the feet of the first.
"""

from typing import Any, Final

import trio

from rocketbed.chaos.sim.simulation import Simulation
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.node.node import run_node
from rocketbed.world.api import World

LIMIT_NS: Final = 30_000_000_000
"""It has said by then that the directory is taken."""


class Twins:
    """Second processes, each on a host of its own."""

    def __init__(self, simulation: Simulation, lock: str) -> None:
        self._simulation = simulation
        self._lock = lock

    def start(self, name: str, config: NodeConfig) -> str:
        """Start one beside a node that runs; the name of its host."""
        simulation = self._simulation
        twin = f"{name}-twin"
        if simulation.host(twin).running:
            simulation.kill(twin)
        simulation.host(twin).image = simulation.process(name).disk.image()

        async def main(world: World) -> None:
            with trio.move_on_after(LIMIT_NS / 1e9):
                await run_node(world, config)

        process = simulation.start(twin, main)
        process.disk.hold_lock(self._lock)
        return twin

    def outcome(self, twin: str) -> dict[str, Any]:
        """Changes it made, and why it ended."""
        process = self._simulation.process(twin)
        reason = ""
        if process.crashed:
            try:
                process.value()
            except BaseException as error:
                reason = innermost(error)
        return {"changes": process.disk.events, "reason": reason}


def innermost(error: BaseException) -> str:
    """Kind and text of an error, out of its groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
