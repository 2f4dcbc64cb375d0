"""A controller of one group whose entry is whatever the test sets."""

from dataclasses import dataclass, replace
from typing import Any, Final

import trio

from rocketbed.remoting.connection import Connection
from rocketbed.remoting.handlers import Handlers, Inline
from rocketbed.remoting.server import Server
from rocketbed.replication.election import Proposal, altered, registered
from rocketbed.replication.entry import GroupEntry, Policy, Replica
from rocketbed.replication.register.form import dumped
from rocketbed.wire.command import Command, RequestCode, answer, request
from rocketbed.wire.encoding.fields import Header
from rocketbed.wire.headers_failover import (
    AlterInSyncRequest,
    BeatRequest,
    GroupEntryResponse,
    HandOverRequest,
    RegisterReplicaRequest,
    ReplicaRequest,
)
from rocketbed.world.api import World

PORT: Final = 9876
Code = RequestCode


@dataclass(frozen=True, slots=True)
class ChangeRequest:
    """A change of the entry that a replica requested."""

    at_s: float
    code: int
    header: Any

    @property
    def members(self) -> dict[int, int]:
        """Incarnation of each replica in the proposed in-sync set."""
        pairs = (text.split(":") for text in self.header.inSync.split(","))
        return {int(number): int(incarnation) for number, incarnation in pairs}


class ScriptedController:
    """Grants what replicas ask for, unless told not to answer, and records every request."""

    def __init__(self, group: str, *, replicas: int, policy: Policy) -> None:
        least = 2 if replicas >= 3 else 1
        self.entry = GroupEntry(group, policy, min_in_sync=least, uid="uid")
        self.registrations: list[RegisterReplicaRequest] = []
        self.beats: list[BeatRequest] = []
        self.changes: list[ChangeRequest] = []
        self.answers_registrations = True
        self.answers_beats = True
        self.answers_changes = True
        self._links: list[Connection] = []

    async def serve(self, world: World, nursery: trio.Nursery) -> None:
        inline: dict[int, Inline] = {
            Code.RB_REGISTER_REPLICA: self._register,
            Code.RB_BEAT: self._beat,
            Code.RB_ALTER_IN_SYNC: self._alter,
            Code.RB_HAND_OVER: self._hand_over,
            Code.RB_LEAVE: self._leave,
        }
        await nursery.start(Server(world, ("", PORT), Handlers(inline=inline)).run)

    def publish(self, **changes: Any) -> None:
        """Make the next version of the entry and notify all registered replicas."""
        self.entry = replace(self.entry, version=self.entry.version + 1, **changes)
        notice = request(Code.RB_GROUP_CHANGED, self._fields(), dumped(self.entry))
        for link in self._links:
            link.notify(notice)

    def add(self, number: int, uuid: str, ha_address: str) -> None:
        """Register a scripted replica."""
        host = ha_address.partition(":")[0]
        replica = Replica(uuid, 1, f"{host}:1", ha_address)
        self.publish(replicas={**self.entry.replicas, number: replica})

    def forget(self, number: int) -> None:
        """Remove a replica from the entry."""
        fields = {
            name: {key: value for key, value in getattr(self.entry, name).items() if key != number}
            for name in ("replicas", "in_sync", "eligible")
        }
        self.publish(**fields)

    def lead(self, number: int, **changes: Any) -> None:
        """Name a replica the leader of the next epoch."""
        incarnation = self.entry.replicas[number].incarnation
        members = {**self.entry.in_sync, number: incarnation}
        epoch = self.entry.epoch + 1
        self.publish(epoch=epoch, leader=number, in_sync=members, eligible={}, **changes)

    def lead_at(self, number: int, epoch: int, **changes: Any) -> None:
        """Name a replica the leader of an epoch and the only member in sync."""
        self.publish(epoch=epoch - 1, leader=None, in_sync={}, eligible={})
        self.lead(number, **changes)

    def _fields(self) -> dict[str, str]:
        return GroupEntryResponse(group=self.entry.name, version=self.entry.version).encode()

    def _answer(self, command: Command) -> Command:
        return answer(command, fields=self._fields(), body=dumped(self.entry))

    def _record(self, command: Command, header: Header) -> ChangeRequest:
        self.changes.append(ChangeRequest(trio.current_time(), command.code, header))
        return self.changes[-1]

    def _register(self, command: Command, connection: Connection) -> Command | None:
        header = RegisterReplicaRequest.decode(command.raw_fields)
        self.registrations.append(header)
        if not self.answers_registrations:
            return None
        self._links.append(connection)
        former = self.entry.replicas.get(header.replica)
        if former is None or former.incarnation != header.incarnation:
            replica = Replica(header.uuid, header.incarnation, header.address, header.haAddress)
            lossless = header.lossless
            self.entry = registered(self.entry, header.replica, replica, lossless=lossless)
        return self._answer(command)

    def _beat(self, command: Command, _connection: Connection) -> Command | None:
        beat = BeatRequest.decode(command.raw_fields)
        self.beats.append(beat)
        if not self.answers_beats:
            return None
        body = dumped(self.entry) if self.entry.version > beat.version else b""
        rivals = [number for number in self.entry.eligible if number != beat.replica]
        fields = self._fields() | ({"rival": "true"} if rivals else {})
        return answer(command, fields=fields, body=body)

    def _alter(self, command: Command, _connection: Connection) -> Command | None:
        header = AlterInSyncRequest.decode(command.raw_fields)
        change = self._record(command, header)
        proposal = Proposal(header.leader, header.epoch, header.version, change.members)
        self.entry = altered(self.entry, proposal)
        return self._answer(command) if self.answers_changes else None

    def _hand_over(self, command: Command, _connection: Connection) -> Command:
        header = HandOverRequest.decode(command.raw_fields)
        self._record(command, header)
        self.lead(header.to)
        return self._answer(command)

    def _leave(self, command: Command, _connection: Connection) -> Command:
        self._record(command, ReplicaRequest.decode(command.raw_fields))
        return self._answer(command)
