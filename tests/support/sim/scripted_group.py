"""A controller beside scripted replicas of one group, in simulation."""

from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any, Final

import orjson
import trio

from rocketbed.chaos.backends.sim.clock import SECOND
from rocketbed.chaos.backends.sim.memory_cas import MemoryCas, Shelf
from rocketbed.chaos.backends.sim.simulation import Simulation
from rocketbed.remoting.server import Server
from rocketbed.replication.controller import Controller
from rocketbed.replication.entry import GroupEntry
from rocketbed.replication.register.form import loaded
from rocketbed.wire.codes import ResponseCode
from rocketbed.wire.command import Command, RequestCode
from rocketbed.wire.headers_failover import ReplicaRequest
from rocketbed.world.api import World
from tests.model.script import Script
from tests.support.peers.replica import GROUP, ScriptedReplica

CONTROLLER, PEERS = "controller", "peers"
PORT: Final = 9800
REPLICAS: Final = 4
DONE, REFUSED, SUPERSEDED, UNKNOWN, BUSY, NOT_ACTIVE = (
    int(ResponseCode.SUCCESS),
    int(ResponseCode.CONTROLLER_INVALID_REQUEST),
    int(ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH),
    int(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST),
    int(ResponseCode.SYSTEM_ERROR),
    int(ResponseCode.CONTROLLER_NOT_LEADER),
)
"""Codes of a controller's answers."""


class ScriptedGroup:
    """Scripted replicas 0 to 3, the controller that they ask, and its register."""

    def __init__(self, world: World, nursery: trio.Nursery, script: Script, shelf: Shelf) -> None:
        self.script, self.shelf = script, shelf
        simulation = script.simulation
        self.controller = (simulation.host(CONTROLLER).address, PORT)
        host = simulation.host(PEERS).address
        self.replicas = [ScriptedReplica(world, nursery, host, one) for one in range(REPLICAS)]

    @property
    def entry(self) -> GroupEntry:
        """Newest entry in the register."""
        newest = self.shelf.values[GROUP][-1]
        return loaded(newest.value, name=GROUP, version=newest.version)

    async def wait_active(self) -> None:
        """Wait until the controller holds its claim."""
        replica = self.replicas[-1]
        await replica.dial(self.controller)
        while (await replica.ask(RequestCode.RB_GROUPS)).code != DONE:  # noqa: ASYNC110
            await trio.sleep(0.01)
        replica.hang_up()

    async def dial_all(self) -> None:
        await self.wait_active()
        for replica in self.replicas:
            await replica.dial(self.controller)

    async def restart_controller(self) -> None:
        """Kill the controller and start another one on the same register."""
        simulation = self.script.simulation

        def restart() -> None:
            simulation.kill(CONTROLLER)
            self.shelf.holder = ""
            simulation.start(CONTROLLER, _control, self.shelf)

        for replica in self.replicas:
            replica.hang_up()
        await self.script.outside(restart)
        await self.wait_active()

    async def lose_register(self) -> None:
        """Restart the controller with an empty register."""
        self.shelf.replace({})
        await self.restart_controller()
        for replica in self.replicas:
            await replica.dial(self.controller)

    async def status(self) -> dict[str, Any]:
        """Return what the controller tells of its groups."""
        replica = next(one for one in self.replicas if one.connection is not None)
        groups: dict[str, Any] = orjson.loads((await replica.ask(RequestCode.RB_GROUPS)).body)
        return groups


async def force(replica: ScriptedReplica, number: int) -> Command:
    """Request, as an operator does, that a replica leads."""
    header = ReplicaRequest(group=GROUP, replica=number, op=f"force {number}")
    return await replica.ask(RequestCode.RB_FORCE_LEADER, header)


def check_code(response: Command, code: int, case: object) -> None:
    assert response.code == code, (
        f"answer: {case}: {response.code}, expected {code}: {response.remark}"
    )


def run_group(name: str, main: Callable[[ScriptedGroup, Random], Awaitable[None]]) -> str:
    """Run a test beside a controller and return the digest of the simulation."""
    simulation = Simulation(name)
    shelf = Shelf(lambda: simulation.timeline.now / SECOND)

    async def play(world: World) -> None:
        async with trio.open_nursery() as nursery:
            await main(ScriptedGroup(world, nursery, script, shelf), Random(name))
            nursery.cancel_scope.cancel()

    with simulation:
        script = Script(simulation)
        simulation.start(CONTROLLER, _control, shelf)
        script.play(PEERS, play)
        failed = [line for line in simulation.log if line.event == "remoting.handler_failed"]
        assert not failed, f"handler: {failed[:1]}"
        return simulation.digest()


def scenario(test: Callable[[ScriptedGroup], Awaitable[None]]) -> Any:
    """Make a test of a function that gets a group whose replicas are connected."""

    def run() -> None:
        async def main(group: ScriptedGroup, _random: Random) -> None:
            await group.dial_all()
            await test(group)

        run_group(test.__name__, main)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def found_group(replicas: list[ScriptedReplica], incarnation: int = 1) -> None:
    """Register replicas and let the first one lead."""
    for replica in replicas:
        replica.incarnation = incarnation
        check_code(await replica.register(), DONE, "registration")
    check_code(await replicas[0].beat(), DONE, "first beat")
    await trio.sleep(0.1)


async def _control(world: World, shelf: Shelf) -> None:
    controller = Controller(world, MemoryCas(world, shelf))
    server = Server(world, ("", PORT), controller.handlers(), on_close=controller.on_close)
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(server.run))
        nursery.start_soon(controller.run)
