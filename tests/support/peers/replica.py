"""A replica as its controller sees it: it registers, beats, is notified, and falls silent."""

from functools import partial
from typing import Any, Final

import trio

from rocketbed.remoting.client import dial
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.handlers import Handlers
from rocketbed.remoting.server import Server
from rocketbed.replication.entry import GroupEntry
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
BASE_PORT: Final = 20_000
REQUEST_S: Final = 5.0


class ScriptedReplica:
    """Replica `number` of the group, which listens at two ports of one host."""

    def __init__(self, world: World, nursery: trio.Nursery, host: str, number: int) -> None:
        self.number, self.uuid = number, f"directory {number}"
        self.incarnation = 0
        self.group_uid = ""
        """Empty until a controller names it."""
        self.promised, self.epoch, self.end = 0, 0, 0
        self.is_unfit = False
        self.beats = False
        """True while it is one of those that beat."""
        self.entry: GroupEntry | None = None
        """Newest entry that it was sent."""
        self.connection: Connection | None = None
        self.notices: list[int] = []
        """Versions that the newest connection was notified of."""
        port = BASE_PORT + 10 * number
        self.addresses = (f"{host}:{port}", f"{host}:{port + 1}")
        self._world, self._nursery = world, nursery
        self._listening: list[trio.CancelScope] = []

    @property
    def position(self) -> tuple[int, int]:
        """Newest epoch and end of its log."""
        return self.epoch, self.end

    async def listen(self) -> None:
        for address in self.addresses[len(self._listening) :]:
            scope = trio.CancelScope()
            self._listening.append(scope)
            await self._nursery.start(partial(self._serve, scope, int(address.split(":")[1])))

    async def _serve(
        self, scope: trio.CancelScope, port: int, task_status: trio.TaskStatus[Any]
    ) -> None:
        with scope:
            await Server(self._world, ("", port), Handlers()).run(task_status=task_status)

    def stop_listening(self, count: int = 2) -> None:
        """Close the last `count` of its ports."""
        for scope in self._listening[len(self._listening) - count :]:
            scope.cancel()
        del self._listening[len(self._listening) - count :]

    async def dial(self, controller: Address) -> None:
        handlers = Handlers(inline={RequestCode.RB_GROUP_CHANGED: self._notice})
        self.notices = []
        self.connection = await dial(self._world, controller, handlers)
        self._nursery.start_soon(self.connection.run)

    def hang_up(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = None

    def _notice(self, command: Command, _connection: Connection) -> None:
        self.notices.append(GroupEntryResponse.decode(command.raw_fields).version)
        self._read_entry(command)

    def _read_entry(self, command: Command) -> None:
        if not command.body:
            return
        header = GroupEntryResponse.decode(command.raw_fields)
        if header.group == GROUP:
            self.entry = loaded(command.body, name=GROUP, version=header.version)
            self.group_uid = self.entry.uid

    async def ask(self, code: RequestCode, header: Header | None = None) -> Command:
        """Return the response, whatever its code, and keep an entry that it holds."""
        assert self.connection is not None
        fields = {} if header is None else header.encode()
        response = await self.connection.request(request(code, fields), timeout_s=REQUEST_S)
        if response.code == 0 and code != RequestCode.RB_GROUPS:
            self._read_entry(response)
        return response

    async def beat(self) -> Command:
        header = BeatRequest(
            group=GROUP, replica=self.number, incarnation=self.incarnation, epoch=self.epoch,
            end=self.end, version=0 if self.entry is None else self.entry.version,
            unfit=True if self.is_unfit else None,
        )  # fmt: skip
        return await self.ask(RequestCode.RB_BEAT, header)

    async def register(self, **changes: Any) -> Command:
        """Request registration, by default with its own fields."""
        values: dict[str, Any] = {
            "group": GROUP, "replica": self.number, "uuid": self.uuid,
            "incarnation": self.incarnation, "address": self.addresses[0],
            "haAddress": self.addresses[1], "lossless": True, "replicas": 3, "policy": "memory",
            "founds": True, "groupUid": self.group_uid, "promised": self.promised,
            "epoch": self.epoch, "end": self.end, **changes,
        }  # fmt: skip
        values.setdefault("op", f"register {values['uuid']} {values['incarnation']}")
        return await self.ask(RequestCode.RB_REGISTER_REPLICA, RegisterReplicaRequest(**values))
