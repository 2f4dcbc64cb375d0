"""Queues that the broker assigns to consumers: 400, and the modes of 401 and 402 (broker.md 1.9).

A consumer that does not compute its queues asks every 20 s. The same rules apply, to the queues of
all brokers that the nameservers name; an answer without a list means "keep what you have".
"""

from typing import Final

import trio

from rocketbed.client.allocate import Allocation, average, circle, consistent_hash
from rocketbed.client.connections import Connections
from rocketbed.client.nameservers import Nameservers
from rocketbed.client.routes import Routes
from rocketbed.node.broker.admin import Fits
from rocketbed.node.broker.clients import BROADCASTING, Clients
from rocketbed.node.broker.groups import Groups
from rocketbed.node.broker.request_modes import POP, PULL, RequestModes
from rocketbed.node.broker.topics import RETRY_PREFIX, Topics
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.remoting.connection import Connection
from rocketbed.wire.bodies import MessageQueue
from rocketbed.wire.bodies_admin import (
    QueryAssignment,
    QueueAssignment,
    QueueAssignments,
    RequestMode,
)
from rocketbed.wire.command import Command, ResponseCode, answer
from rocketbed.wire.errors import RocketbedError
from rocketbed.world.api import World

CLUSTERING: Final = "CLUSTERING"
STRATEGIES: Final[dict[str, Allocation]] = {
    "AVG": average,
    "AVG_BY_CIRCLE": circle,
    "CONSISTENT_HASH": consistent_hash,
}
"""Allocation rules by RocketMQ's names; its own brokers know the first two."""


class Assignments:
    """Answers 400 to 402."""

    def __init__(
        self,
        world: World,
        config: NodeConfig,
        topics: Topics,
        groups: Groups,
        clients: Clients,
        modes: RequestModes,
    ) -> None:
        self._world = world
        self._nameservers = config.nameservers
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._modes = modes
        self.fits: Fits = lambda *_: None
        """As `Admin.fits`."""
        self._nursery: trio.Nursery | None = None
        self._routes: Routes | None = None
        """Created at the first request: most brokers never get one."""

    async def run(self) -> None:
        """Keep the connections to nameservers, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await trio.sleep_forever()

    async def query(self, command: Command, connection: Connection) -> Command:
        """400: the queues of one member. Raises `BodyError`."""
        query = QueryAssignment.decode(command.body)
        queues = await self._share(query)
        if queues is None:
            body = QueueAssignments()
        else:
            body = QueueAssignments(
                message_queue_assignments=[QueueAssignment(message_queue=queue) for queue in queues]
            )
        return answer(command, ResponseCode.SUCCESS, None, {}, body.encode())

    async def _share(self, query: QueryAssignment) -> list[MessageQueue] | None:
        if query.message_model not in (CLUSTERING, BROADCASTING):
            return None
        queues = await self._queues(query.topic)
        if queues is None or query.message_model == BROADCASTING:
            return queues
        group = self._clients.consumers.get(query.consumer_group)
        rule = STRATEGIES.get(query.strategy_name)
        if group is None or rule is None or not queues:
            return None
        members = sorted({client.client_id for client in group.members.values()})
        if query.client_id not in members:
            return []  # as in RocketMQ's rules: a client that is not a member has no queues
        return rule(query.client_id, members, sorted(queues))

    async def _queues(self, topic: str) -> list[MessageQueue] | None:
        """Return the readable queues of a topic on all brokers; None if they are not known.

        Asks only for topics of our own: the consumer found us by such a route, and invented names
        would fill the memory.
        """
        if self._topics.get(topic) is None:
            return None
        if self._routes is None:
            assert self._nursery is not None, "`run` is running"
            connections = Connections(self._world)
            connections.start(self._nursery)
            servers = Nameservers(self._world, self._nameservers, connections)
            self._routes = Routes(self._world, servers, self._nursery.start_soon)
        try:
            return list((await self._routes.get(topic)).readable)
        except RocketbedError as exc:
            self._world.log.info("broker.no_route", topic=topic, error=str(exc))
            return None

    async def set_mode(self, command: Command, connection: Connection) -> Command:
        """401: set how a group gets a topic's messages. Raises `BodyError`, `ConfigFileError`."""
        entry = RequestMode.decode(command.body)
        if entry.topic.startswith(RETRY_PREFIX):
            remark = "retry topic is not allowed to set mode"
            return answer(command, ResponseCode.NO_PERMISSION, remark)
        if self._topics.get(entry.topic) is None:
            remark = f"topic[{entry.topic}] not exist"
            return answer(command, ResponseCode.TOPIC_NOT_EXIST, remark)
        if self._groups.find_or_create(entry.consumer_group) is None:
            remark = "subscription group does not exist"
            return answer(command, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if entry.mode == POP:
            remark = f" request type {command.code} not supported: POP consumption"
            return answer(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        if entry.mode != PULL:
            remark = f"mode is PULL or POP, not {entry.mode}"
            return answer(command, ResponseCode.INVALID_PARAMETER, remark)
        self.fits("modes", f"{entry.topic}@{entry.consumer_group}", entry.to_json())
        self._modes.put(entry)
        await self._modes.save()
        return answer(command)

    def all_modes(self, command: Command, connection: Connection) -> Command:
        """402: the table, for slaves."""
        return answer(command, ResponseCode.SUCCESS, None, None, self._modes.body().encode())
