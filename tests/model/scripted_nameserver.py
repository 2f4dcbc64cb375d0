"""A nameserver by script: it accepts registrations, refuses them, or is silent."""

import zlib
from collections.abc import Callable
from typing import Final

import trio

from rocketbed.remoting.connection import Connection
from rocketbed.remoting.handlers import Handlers
from rocketbed.remoting.server import Server
from rocketbed.wire.bodies import (
    BrokerMemberGroup,
    MemberGroupBody,
    RegisterBrokerBody,
    TopicConfig,
)
from rocketbed.wire.command import Command, RequestCode, ResponseCode, answer
from rocketbed.wire.headers_admin import RegisterBrokerRequest, RegisterBrokerResponse
from rocketbed.wire.message import CRC_MASK
from rocketbed.world.api import World

Code = RequestCode
NAMESERVER_PORT: Final = 9870
"""Port of nameserver 0; each has its own."""
MASTER_PORT: Final = 12_000
"""Replication port of master 0; its main port is one below."""


class ScriptedNameserver:
    """A nameserver that accepts registrations, refuses them, or is silent."""

    def __init__(self, number: int, host: str) -> None:
        self.port = NAMESERVER_PORT + number
        self._host = host
        self.mode = "accepts"
        """Or `refuses`, `is silent`."""
        self.knows_groups = True
        """False for 4.x, which does not answer who the members of a group are."""
        self.master: int | None = None
        self.registrations: list[tuple[RegisterBrokerRequest, dict[str, TopicConfig]]] = []
        self.attempts: list[float] = []
        self.connections = 0
        self.wrong_checksums = 0
        self.registered_on: dict[Connection, None] = {}
        self._links: dict[Connection, None] = {}

    async def serve(self, world: World, nursery: trio.Nursery) -> None:
        inline: dict[int, Callable[[Command, Connection], Command | None]] = {
            Code.REGISTER_BROKER: self._register,
            Code.GET_BROKER_MEMBER_GROUP: self._members,
        }
        server = Server(world, ("", self.port), Handlers(inline=inline), on_close=self._close)
        await nursery.start(server.run)

    def _close(self, connection: Connection) -> None:
        self._links.pop(connection, None)

    @property
    def is_linked(self) -> bool:
        return bool(self._links)

    def hang_up(self) -> None:
        for link in list(self._links):
            link.close()

    def address_of(self, master: int, *, ha: bool) -> str:
        return f"{self._host}:{MASTER_PORT + 10 * master - (not ha)}"

    def _register(self, command: Command, connection: Connection) -> Command | None:
        self.attempts.append(trio.current_time())
        if connection not in self._links:
            self._links[connection] = None
            self.connections += 1
        if self.mode == "is silent":
            return None
        if self.mode == "refuses":
            return answer(command, ResponseCode.SYSTEM_ERROR, "not now")
        header = RegisterBrokerRequest.decode(command.raw_fields)
        self.wrong_checksums += header.bodyCrc32 != zlib.crc32(command.body) & CRC_MASK
        wrapper = RegisterBrokerBody.decode(command.body).topic_config_serialize_wrapper
        self.registered_on[connection] = None
        self.registrations.append((header, wrapper.topic_config_table))
        reply = RegisterBrokerResponse()
        if self.master is not None:
            reply = RegisterBrokerResponse(
                haServerAddr=self.address_of(self.master, ha=True),
                masterAddr=self.address_of(self.master, ha=False),
            )
        return answer(command, ResponseCode.SUCCESS, None, reply.encode())

    def _members(self, command: Command, _connection: Connection) -> Command:
        if not self.knows_groups:
            return answer(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "4.9")
        master = {} if self.master is None else {0: self.address_of(self.master, ha=False)}
        group = BrokerMemberGroup(cluster="c", broker_name="broker-a", broker_addrs=master)
        return answer(command, body=MemberGroupBody(broker_member_group=group).encode())
