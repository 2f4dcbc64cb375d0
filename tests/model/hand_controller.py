"""A controller by hand: says what the script wants, and keeps what it was asked."""

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


@dataclass(slots=True)
class Asked:
    """A change that was asked for, and when."""

    at_s: float
    code: int
    header: Any

    @property
    def members(self) -> dict[int, int]:
        """Of the set that a leader wants."""
        pairs = (one.split(":") for one in self.header.inSync.split(","))
        return {int(number): int(life) for number, life in pairs}


class HandController:
    """Of one group, whose entry is what the script says."""

    def __init__(self, group: str, *, replicas: int, policy: Policy) -> None:
        least = 2 if replicas >= 3 else 1
        self.entry = GroupEntry(group, policy, min_in_sync=least, uid="uid")
        self.registrations: list[RegisterReplicaRequest] = []
        self.beats: list[BeatRequest] = []
        self.changes: list[Asked] = []
        self.takes_in = True
        """Whether it answers who registers."""
        self.answers_beats = True
        self.accepts = True
        """Whether it makes the changes of sets that it is asked for, ..."""
        self.answers = True
        """... and answers."""
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
        """The next version, told to all that it knows."""
        self.entry = replace(self.entry, version=self.entry.version + 1, **changes)
        notice = request(Code.RB_GROUP_CHANGED, self._fields(), dumped(self.entry))
        for link in self._links:
            link.notify(notice)

    def add(self, number: int, uuid: str, ha_address: str, life: int = 1) -> None:
        """A replica by hand, of which clients know nothing."""
        host = ha_address.partition(":")[0]
        replica = Replica(uuid, life, f"{host}:1", ha_address)
        self.publish(replicas={**self.entry.replicas, number: replica})

    def forget(self, number: int) -> None:
        """A replica's place is free again."""
        replicas = {one: known for one, known in self.entry.replicas.items() if one != number}
        sets = (self.entry.in_sync, self.entry.eligible)
        in_sync, eligible = (
            {one: life for one, life in known.items() if one != number} for known in sets
        )
        self.publish(replicas=replicas, in_sync=in_sync, eligible=eligible)

    def lead(self, number: int, **changes: Any) -> None:
        """The next epoch is this one's."""
        life = self.entry.replicas[number].incarnation
        members = {**self.entry.in_sync, number: life, **changes.pop("in_sync", {})}
        self.publish(epoch=self.entry.epoch + 1, leader=number, in_sync=members,
                     eligible={}, **changes)  # fmt: skip

    def _fields(self) -> dict[str, str]:
        return GroupEntryResponse(group=self.entry.name, version=self.entry.version).encode()

    def _answered(self, command: Command) -> Command:
        return answer(command, fields=self._fields(), body=dumped(self.entry))

    def _register(self, command: Command, connection: Connection) -> Command | None:
        asked = RegisterReplicaRequest.decode(command.raw_fields)
        self.registrations.append(asked)
        if not self.takes_in:
            return None
        self._links.append(connection)
        known = self.entry.replicas.get(asked.replica)
        if known is None or known.incarnation != asked.incarnation:
            one = Replica(asked.uuid, asked.incarnation, asked.address, asked.haAddress)
            self.entry = registered(self.entry, asked.replica, one, lossless=asked.lossless)
        return self._answered(command)

    def _beat(self, command: Command, _connection: Connection) -> Command | None:
        beat = BeatRequest.decode(command.raw_fields)
        self.beats.append(beat)
        if not self.answers_beats:
            return None
        body = dumped(self.entry) if self.entry.version > beat.version else b""
        others = [one for one in self.entry.eligible if one != beat.replica]
        fields = self._fields() | ({"rival": "true"} if others else {})
        return answer(command, fields=fields, body=body)

    def _alter(self, command: Command, _connection: Connection) -> Command | None:
        asked = AlterInSyncRequest.decode(command.raw_fields)
        one = Asked(trio.current_time(), command.code, asked)
        self.changes.append(one)
        if self.accepts:
            proposal = Proposal(asked.leader, asked.epoch, asked.version, one.members)
            self.entry = altered(self.entry, proposal)
        return self._answered(command) if self.answers and self.accepts else None

    def _hand_over(self, command: Command, _connection: Connection) -> Command:
        asked = HandOverRequest.decode(command.raw_fields)
        self.changes.append(Asked(trio.current_time(), command.code, asked))
        self.lead(asked.to)
        return self._answered(command)

    def _leave(self, command: Command, _connection: Connection) -> Command:
        asked = ReplicaRequest.decode(command.raw_fields)
        self.changes.append(Asked(trio.current_time(), command.code, asked))
        return self._answered(command)
