"""Clients of a cluster of processes: tasks of this process, each on its machine's network."""

from dataclasses import dataclass, field

import trio

from rocketbed.chaos.trial.api import Program, State
from rocketbed.world.api import World


@dataclass(slots=True, eq=False)
class _Client:
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)


class Clients:
    def __init__(self) -> None:
        self._running: dict[str, _Client] = {}

    def start(self, nursery: trio.Nursery, name: str, program: Program, world: World) -> None:
        """Run a program in that nursery."""
        client = self._running[name] = _Client()
        nursery.start_soon(self._run, name, program, world, client)

    async def _run(self, name: str, program: Program, world: World, client: _Client) -> None:
        try:
            with client.scope:
                await program(world)
        finally:
            if self._running.get(name) is client:
                del self._running[name]
            client.ended.set()

    async def kill(self, name: str) -> None:
        """End a program if it runs, and wait; its connections close."""
        client = self._running.get(name)
        if client is not None:
            client.scope.cancel()
            await client.ended.wait()

    def state(self, name: str) -> State:
        return "running" if name in self._running else "down"
