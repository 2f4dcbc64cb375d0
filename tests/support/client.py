"""Peers that answer what a test tells them to, for tests of what a client makes of it.

One simulated host holds the client, a nameserver and brokers on ports of their own. A broker's
answers come from a function; `requests` keeps what was asked.
"""

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from rocketbed.chaos.backends.sim.solo import SoloRun, run_solo
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.handlers import Handlers
from rocketbed.remoting.server import Server
from rocketbed.wire.bodies import BrokerData, ClusterInfo, QueueData, TopicRouteData
from rocketbed.wire.codes import RequestCode, ResponseCode
from rocketbed.wire.command import Command, Encoding, answer
from rocketbed.world.api import World

HOST = "10.0.0.1"
NAMESERVER = f"{HOST}:9876"
NAMESERVER_PORT = 9876
Answering = Callable[[Command], Command | None]
"""A request's answer; None leaves it without one."""


def route(
    *brokers: str, queues: int = 2, perm: int = 6, ids: tuple[int, ...] = (0,)
) -> TopicRouteData:
    """A route over brokers `a`, `b`, ...; see `port_of` for where their members listen."""
    return TopicRouteData(
        broker_datas=[
            BrokerData(
                cluster="c",
                broker_name=name,
                broker_addrs={number: f"{HOST}:{port_of(name, number)}" for number in ids},
            )
            for name in brokers
        ],
        queue_datas=[
            QueueData(broker_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
            for name in brokers
        ],
    )


def port_of(broker: str, number: int = 0) -> int:
    """Port of a member of a broker."""
    return 10_000 + 100 * (ord(broker) - ord("a")) + number


class Peer:
    """A listening port that answers from a function."""

    def __init__(self, world: World, port: int, answering: Answering) -> None:
        self.world = world
        self.answering = answering
        self.requests: list[Command] = []
        """What was asked, heartbeats and goodbyes left out."""
        self.heartbeats: list[Command] = []
        self.is_dead = False
        """Answers nothing at all, heartbeats neither."""
        codes = [int(code) for code in RequestCode]
        self.server = Server(
            world, (HOST, port), Handlers(inline=dict.fromkeys(codes, self._answer))
        )
        self._scope = trio.CancelScope()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with self._scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.server.run)
                task_status.started()
                await trio.sleep_forever()

    def stop(self) -> None:
        """Close the port and its connections."""
        self._scope.cancel()

    def hang_up(self) -> None:
        """Close the connections; the port stays."""
        for connection in list(self.server.connections):
            connection.close()

    def codes(self) -> list[int]:
        """Codes of the requests."""
        return [command.code for command in self.requests]

    def encodings(self) -> list[Encoding]:
        """Encodings of the requests."""
        return [command.encoding for command in self.requests]

    def _answer(self, command: Command, _: Connection) -> Command | None:
        if self.is_dead:
            return None
        if command.code in (RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT):
            self.heartbeats.append(command)
            return answer(command, fields={})
        self.requests.append(command)
        return self.answering(command)


class Stage:
    """A nameserver and brokers under a test's control."""

    def __init__(self, world: World, nursery: trio.Nursery) -> None:
        self.world = world
        self.nursery = nursery
        self.routes: dict[str, TopicRouteData] = {}
        """Topic -> what the nameserver answers; others are unknown."""
        self.nameserver: Peer
        self._offsets = itertools.count()

    async def peer(self, port: int, answering: Answering) -> Peer:
        """Another listening port."""
        peer = Peer(self.world, port, answering)
        await self.nursery.start(peer.run)
        return peer

    async def broker(self, name: str = "a", answering: Answering | None = None) -> Peer:
        """A master; by default it takes every message."""
        return await self.peer(port_of(name), answering or self.sent)

    def sent(self, command: Command) -> Command:
        """Success of a send, at the next offset."""
        offset = next(self._offsets)
        fields = {
            "msgId": f"{offset:032X}",
            "queueId": command.fields.get("e", "0"),
            "queueOffset": str(offset),
        }
        return answer(command, ResponseCode.SUCCESS, None, fields)

    def name_service(self, command: Command) -> Command:
        """Answer for a nameserver."""
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            brokers = {b.broker_name: b for r in self.routes.values() for b in r.broker_datas}
            info = ClusterInfo(broker_addr_table=brokers, cluster_addr_table={"c": sorted(brokers)})
            return answer(command, body=info.encode())
        route = self.routes.get(command.fields.get("topic", ""))
        if route is None:
            return answer(command, ResponseCode.TOPIC_NOT_EXIST, "No topic route info")
        return answer(command, fields={}, body=route.encode())


Scenario = Callable[[Stage], Awaitable[Any]]


def on_stage(scenario: Scenario, *, seconds: float = 3600.0, seed: int = 0) -> SoloRun:
    """Run a scenario in virtual time, with a nameserver at `NAMESERVER`."""

    async def main(world: World) -> Any:
        async with trio.open_nursery() as nursery:
            stage = Stage(world, nursery)
            stage.nameserver = await stage.peer(NAMESERVER_PORT, stage.name_service)
            value = await scenario(stage)
            nursery.cancel_scope.cancel()
        return value

    run = run_solo(main, seed=seed, seconds=seconds)
    assert run.outcome == "ended"
    return run
