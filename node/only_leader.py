"""Requests that change what the replicas of a group share: only the leader serves them, since no
other replica would get a follower's change."""

from collections.abc import Callable
from functools import partial
from typing import Final

from rocketbed.remoting.client import parse_address
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.errors import RemotingError
from rocketbed.remoting.handlers import Handlers, Inline, Spawned
from rocketbed.replication.fresh import with_connection
from rocketbed.wire.codes import RequestCode, ResponseCode
from rocketbed.wire.command import Command, answer, request
from rocketbed.wire.errors import ProtocolError
from rocketbed.world.api import World

CHANGES: Final = (
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    RequestCode.CLONE_GROUP_OFFSET,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
)
FORWARDED: Final = "rbForwarded"
"""Own field that marks a request which a follower has forwarded, so that it is not forwarded
twice."""


class OnlyLeader:
    """Guard in front of one node's handlers."""

    def __init__(
        self, world: World, elsewhere: Callable[[], str], leader: Callable[[], str]
    ) -> None:
        """`elsewhere` returns a remark that names the leader if it is not this node, else the empty
        string; `leader` returns its address, empty if it is unknown."""
        self._world = world
        self._elsewhere = elsewhere
        self._leader = leader

    def guard(self, handlers: Handlers) -> None:
        """Make these handlers refuse, with code 14, changes that this node may not make."""
        for code in CHANGES:
            if code in handlers.inline:
                handlers.inline[code] = partial(self._inline, handlers.inline[code])
            else:
                handlers.spawned[code] = partial(self._spawned, handlers.spawned[code])

    def _inline(self, handler: Inline, command: Command, connection: Connection) -> Command | None:
        elsewhere = self._elsewhere()
        return _refused(command, elsewhere) if elsewhere else handler(command, connection)

    async def _spawned(
        self, handler: Spawned, command: Command, connection: Connection
    ) -> Command | None:
        elsewhere = self._elsewhere()
        if not elsewhere:
            return await handler(command, connection)
        if command.code == RequestCode.DELETE_TOPIC_IN_BROKER and FORWARDED not in command.fields:
            return await self._forwarded(command)
        return _refused(command, elsewhere)

    async def _forwarded(self, command: Command) -> Command:
        """Return the leader's answer: RocketMQ's tools ask one member after the other and stop at
        the first refusal."""

        async def ask(connection: Connection) -> Command:
            fields = {**command.fields, FORWARDED: "true"}
            return await connection.request(request(command.code, fields, command.body))

        try:
            response = await with_connection(self._world, parse_address(self._leader()), ask)
        except (RemotingError, ProtocolError, ValueError):
            return _refused(command, self._elsewhere() or "this node has begun to lead: ask again")
        return answer(command, response.code, response.remark)


def _refused(command: Command, elsewhere: str) -> Command:
    return answer(command, ResponseCode.SERVICE_NOT_AVAILABLE, elsewhere)
