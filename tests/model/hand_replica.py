"""A replica by hand, as its controller sees it: it registers, beats, hears, falls silent."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import trio

from rocketbed.remoting.client import dial
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.handlers import Handlers
from rocketbed.remoting.server import Server
from rocketbed.replication.register.form import loaded
from rocketbed.wire.command import Command, RequestCode, request
from rocketbed.wire.encoding.fields import Header
from rocketbed.wire.headers_failover import (
    BeatRequest,
    GroupEntryResponse,
    RegisterReplicaRequest,
)
from rocketbed.world.api import Address, World

GROUP: Final = "g"
BASE: Final = 20_000
"""Its ports are 10 * number above that, and one more."""
ASK_S: Final = 5.0


class HandReplica:
    """Number `number` of the group, in the process `world`. It listens at two addresses."""

    def __init__(self, world: World, nursery: trio.Nursery, host: str, number: int) -> None:
        self.number = number
        self.uuid = f"directory {number}"
        self.life = 0
        self.uid = ""
        """Of the group, as far as it was told."""
        self.promised = 0
        self.epoch = 0
        self.end = 0
        self.is_unfit = False
        self.beats = False
        """Whether it is one of those that say that they live."""
        self.entry: Any = None
        """The newest that it was told of."""
        self.connection: Connection | None = None
        self.noticed: list[int] = []
        """The versions that its newest connection was told of without a question."""
        port = BASE + 10 * number
        self.addresses = (f"{host}:{port}", f"{host}:{port + 1}")
        self._world = world
        self._nursery = nursery
        self._listening: list[trio.CancelScope] = []

    async def listen(self) -> None:
        """At both addresses."""
        for text in self.addresses[len(self._listening) :]:
            scope = trio.CancelScope()
            self._listening.append(scope)
            await self._nursery.start(partial(self._serve, scope, int(text.rpartition(":")[2])))

    async def _serve(
        self, scope: trio.CancelScope, port: int, task_status: trio.TaskStatus[None]
    ) -> None:
        server = Server(self._world, ("", port), Handlers())
        with scope:
            await server.run(task_status=task_status)  # type: ignore[arg-type]

    def deafen(self, count: int = 2) -> None:
        """Listen no more at so many of its addresses, the last ones first."""
        for scope in self._listening[len(self._listening) - count :]:
            scope.cancel()
        del self._listening[len(self._listening) - count :]

    async def dial(self, controller: Address) -> None:
        handlers = Handlers(inline={RequestCode.RB_GROUP_CHANGED: self._noticed})
        self.noticed = []
        self.connection = await dial(self._world, controller, handlers)
        self._nursery.start_soon(self.connection.run)

    def hang_up(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = None

    def _noticed(self, command: Command, _connection: Connection) -> None:
        self.noticed.append(GroupEntryResponse.decode(command.raw_fields).version)
        self._took(command)

    def _took(self, command: Command) -> None:
        if not command.body:
            return
        header = GroupEntryResponse.decode(command.raw_fields)
        if header.group == GROUP:
            entry = loaded(command.body, name=GROUP, version=header.version)
            self.uid = entry.uid
            self.entry = entry

    async def ask(self, code: RequestCode, header: Header | None = None) -> Command:
        """Its answer, whatever the code; an entry in it is taken in."""
        assert self.connection is not None
        fields = {} if header is None else header.encode()
        found = await self.connection.request(request(code, fields), timeout_s=ASK_S)
        if found.code == 0 and code != RequestCode.RB_GROUPS:
            self._took(found)
        return found

    async def beat(self) -> Command:
        """Says that it lives."""
        header = BeatRequest(
            group=GROUP,
            replica=self.number,
            incarnation=self.life,
            epoch=self.epoch,
            end=self.end,
            version=0 if self.entry is None else self.entry.version,
            unfit=True if self.is_unfit else None,
        )
        return await self.ask(RequestCode.RB_BEAT, header)

    async def register(self, change: Callable[[dict[str, Any]], None] | None = None) -> Command:
        """Asks to be taken in, as it is or changed."""
        values: dict[str, Any] = {
            "group": GROUP, "replica": self.number, "uuid": self.uuid, "incarnation": self.life,
            "address": self.addresses[0], "haAddress": self.addresses[1], "lossless": True,
            "replicas": 3, "policy": "memory", "founds": True, "groupUid": self.uid,
            "promised": self.promised, "epoch": self.epoch, "end": self.end,
        }  # fmt: skip
        if change is not None:
            change(values)
        values.setdefault("op", f"register {values['uuid']} {values['incarnation']}")
        return await self.ask(RequestCode.RB_REGISTER_REPLICA, RegisterReplicaRequest(**values))
