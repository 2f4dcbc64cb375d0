"""A replica's line to the controller: sends beats, learns the leader, holds the lease.

One connection at a time, to the first controller that is active. A leader's lease ends by its own
clock, counted from before it sent the beat that the controller answered, so that it has always
ended before the controller names another leader (replication.md 7.8).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

import trio

from rocketbed.remoting.client import dial
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.errors import NotConnected, RemotingError
from rocketbed.remoting.handlers import Handlers
from rocketbed.replication.election import Proposal
from rocketbed.replication.entry import GroupEntry, Policy
from rocketbed.replication.errors import (
    ChangeRefused,
    EntryDamaged,
    NoRoom,
    ReplicaExpelled,
    ReplicationError,
    Superseded,
)
from rocketbed.replication.lease import BEAT_S, LEASE_MAX_S, LEASE_S, leader_s
from rocketbed.replication.register.form import loaded
from rocketbed.wire.codes import RequestCode, ResponseCode
from rocketbed.wire.command import Command, request
from rocketbed.wire.encoding.fields import Header
from rocketbed.wire.errors import ProtocolError
from rocketbed.wire.headers_failover import (
    AlterInSyncRequest,
    BeatRequest,
    GroupEntryResponse,
    HandOverRequest,
    LifeResponse,
    RegisterReplicaRequest,
    ReplicaRequest,
)
from rocketbed.world.api import Address, World

DIAL_S: Final = LEASE_S
"""Longest wait for a connection, before the next controller is tried."""
CHANGE_S: Final = 3.0
"""Longest wait for a change, which the controller writes to disk before it answers."""
PAUSE_S: Final = 0.1
"""Pause after all controllers were asked in vain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Identity of the replica that this process is."""

    group: str
    number: int
    uuid: str
    """Of its data directory."""
    incarnation: int
    """Of this process; above that of any earlier one."""
    address: str
    ha_address: str
    lossless: bool
    """True if it holds everything that earlier incarnations acknowledged
    (`restart.lost_nothing`)."""
    replicas: int
    """Intended number of replicas of the group."""
    policy: Policy
    """Condition for this replica's acknowledgements; the same in the whole group."""
    founds: bool
    """True if it may be the first of its group: its log is not a copy of another replica's."""


class Agent:
    """Line of one replica. `run` maintains it until cancelled."""

    def __init__(
        self,
        world: World,
        controllers: list[Address],
        me: Identity,
        log_end: Callable[[], tuple[int, int]],
        promised: Callable[[], tuple[int, str]],
        unfit: Callable[[], str],
        raise_life: Callable[[int], Awaitable[None]],
    ) -> None:
        """`log_end` returns the newest epoch and the end, bytes, of the log; `promised` the epoch
        below which no leader is followed, and the `uid` of its group; `unfit` the reason why
        another replica would lead better, empty if none would; `raise_life` records this as a later
        incarnation."""
        self._world = world
        self._controllers = list(controllers)
        self.me = me
        self._log_end = log_end
        self._promised = promised
        self.unfit = unfit
        self._raise_life = raise_life
        self._connection: Connection | None = None
        """Connection to the active controller, once it has our registration."""
        self.entry: GroupEntry | None = None
        """Newest known entry of our group. Invariant: its epoch never falls, and its version not
        within an epoch: a lost register begins with another epoch."""
        self.changed = trio.Event()
        """Set, and replaced, with each newer entry."""
        self.renewed = trio.Event()
        """Set, and replaced, each time that the lease is renewed."""
        self._lease_until = float("-inf")
        self._granted_s = LEASE_S
        """Lease that the controller granted last; longer if beats come late."""
        self.rival = False
        """True if the controller gets beats of another replica that may lead, while too few are in
        sync."""
        self.trouble = ""
        """Reason why the last connection ended."""
        self.on_registered: Callable[[], None] = lambda: None
        """Called each time that a controller has accepted our registration."""

    def lease_s(self) -> float:
        """Return the seconds for which this replica may act as the leader; 0 or less if it may
        not."""
        if not self.is_leader():
            return 0.0
        return self._lease_until - self._world.clock.monotonic()

    def is_leader(self) -> bool:
        """True if the register named us, as far as we know; that alone allows nothing."""
        entry = self.entry
        return entry is not None and entry.leader == self.me.number and self.is_member()

    def is_member(self) -> bool:
        """True if this incarnation is in sync, as far as we know."""
        entry, me = self.entry, self.me
        return entry is not None and entry.in_sync.get(me.number) == me.incarnation

    def _led(self, epoch: int) -> bool:
        return self.entry is not None and self.entry.epoch == epoch and self.is_leader()

    async def run(self) -> None:
        """Maintain the line. Raises `ReplicaExpelled`: another process is this replica now, or it
        was registered with another directory; the text says which."""
        while True:
            for _ in self._controllers:
                await self._talk(self._controllers[0])
                self._controllers.append(self._controllers.pop(0))
            await trio.sleep(PAUSE_S)

    async def alter(self, proposal: Proposal, *, op: str) -> GroupEntry:
        """Request another in-sync set; see `election.altered`.

        Raises `Superseded` and `ChangeRefused`, which are answers; and `RemotingError`, after which
        the change may have been made, or may be made later: repeat it with the same `op`.
        """
        members = ",".join(f"{number}:{life}" for number, life in proposal.in_sync.items())
        header = AlterInSyncRequest(
            group=self.me.group,
            leader=proposal.leader,
            epoch=proposal.epoch,
            version=proposal.version,
            inSync=members,
            op=op,
        )
        return await self._change(RequestCode.RB_ALTER_IN_SYNC, header)

    async def hand_over(self, *, epoch: int, to: int, op: str) -> GroupEntry:
        """Pass the lead to a member that has all of our log. Raises as `alter`."""
        me = self.me
        header = HandOverRequest(group=me.group, leader=me.number, epoch=epoch, to=to, op=op)
        return await self._change(RequestCode.RB_HAND_OVER, header)

    async def leave(self, *, op: str) -> GroupEntry:
        """Report the orderly end of this incarnation. Raises as `alter`."""
        me = self.me
        header = ReplicaRequest(
            group=me.group, replica=me.number, incarnation=me.incarnation, op=op
        )
        return await self._change(RequestCode.RB_LEAVE, header)

    async def _change(self, code: RequestCode, header: Header) -> GroupEntry:
        if self._connection is None:
            raise NotConnected("no controller is active, as far as this replica knows")
        return self._take_entry(await self._ask(self._connection, code, header, timeout_s=CHANGE_S))

    async def _talk(self, address: Address) -> None:
        """Register at one controller and send beats, until it does not answer or is not active."""
        handlers = Handlers(inline={RequestCode.RB_GROUP_CHANGED: self._on_notice})
        try:
            connection = await dial(self._world, address, handlers, timeout_s=DIAL_S)
        except NotConnected as exc:
            self._world.log.debug("replica.no_controller", error=str(exc))
            return
        expelled: ReplicaExpelled | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            try:
                await self._register(connection)
                self._connection, self.trouble = connection, ""
                self.on_registered()
                await self._beat(connection)
            except ReplicaExpelled as exc:
                expelled = exc
            except _NotActive as exc:
                self.trouble = self.trouble or str(exc)  # the active one's reason says more
            except (RemotingError, ProtocolError, EntryDamaged, NoRoom, _Elsewhere) as exc:
                if self.trouble != str(exc):
                    self._world.log.info(
                        "replica.controller_lost",
                        address=f"{address[0]}:{address[1]}",
                        error=str(exc),
                    )
                self.trouble = str(exc)
            finally:
                self._connection = None
                connection.close()
        if expelled is not None:
            raise expelled

    async def _register(self, connection: Connection) -> None:
        me = self.me
        epoch, end = self._log_end()
        promised, uid = self._promised()
        header = RegisterReplicaRequest(
            group=me.group,
            replica=me.number,
            uuid=me.uuid,
            incarnation=me.incarnation,
            address=me.address,
            haAddress=me.ha_address,
            lossless=me.lossless,
            replicas=me.replicas,
            policy=me.policy,
            founds=me.founds,
            groupUid=uid,
            promised=promised,
            epoch=epoch,
            end=end,
            leads=True if self._led(epoch) else None,
            op=f"register {me.uuid} {me.incarnation}",
        )
        code = RequestCode.RB_REGISTER_REPLICA
        try:
            response = await self._ask(connection, code, header, timeout_s=CHANGE_S)
        except ChangeRefused as exc:
            raise ReplicaExpelled(str(exc)) from exc
        above = LifeResponse.decode(response.raw_fields).lifeAbove
        if above is None:
            self._take_entry(response)
            return
        await self._raise_life(above + 1)
        self.me = replace(me, incarnation=above + 1)
        raise _Elsewhere(f"life {me.incarnation} of its number is another directory's")

    async def _beat(self, connection: Connection) -> None:
        me, clock = self.me, self._world.clock
        while True:
            began = clock.monotonic()
            epoch, end = self._log_end()
            header = BeatRequest(
                group=me.group,
                replica=me.number,
                incarnation=me.incarnation,
                epoch=epoch,
                end=end,
                version=self.entry.version if self.entry else 0,
                unfit=True if self.unfit() else None,
            )
            try:
                response = await self._ask(
                    connection,
                    RequestCode.RB_BEAT,
                    header,
                    timeout_s=max(self._granted_s, LEASE_S),  # a later answer renews nothing
                )
            except ChangeRefused as exc:
                raise ReplicaExpelled(str(exc)) from exc
            granted = GroupEntryResponse.decode(response.raw_fields)
            self.rival = bool(granted.rival)
            lease_s = LEASE_S if granted.lease is None else granted.lease / 1000
            self._granted_s = min(lease_s, LEASE_MAX_S)
            if response.body:
                self._take_entry(response)
            if self.is_leader():
                self._lease_until = began + leader_s(self._granted_s)
                self.renewed.set()
                self.renewed = trio.Event()
            with trio.move_on_after(BEAT_S):
                await self.changed.wait()  # a new leader needs its lease now

    async def _ask(
        self, connection: Connection, code: RequestCode, header: Header, *, timeout_s: float
    ) -> Command:
        """Return the answer of an active controller. Raises its refusal, or `_Elsewhere`."""
        answer = await connection.request(request(code, header.encode()), timeout_s=timeout_s)
        remark = answer.remark or ""
        match answer.code:
            case ResponseCode.SUCCESS:
                return answer
            case ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH:
                raise Superseded(remark)
            case ResponseCode.CONTROLLER_INVALID_REQUEST:
                raise ChangeRefused(remark)
            case ResponseCode.CONTROLLER_NOT_LEADER:
                raise _NotActive(f"code {answer.code}: {remark}")
        raise _Elsewhere(f"code {answer.code}: {remark}")

    def _on_notice(self, command: Command, _: Connection) -> None:
        self._take_entry(command)

    def _take_entry(self, command: Command) -> GroupEntry:
        """Return the entry in a command, and store it if it is newer. Raises `ProtocolError`,
        `EntryDamaged`."""
        header = GroupEntryResponse.decode(command.raw_fields)
        entry = loaded(command.body, name=self.me.group, version=header.version)
        if self._promised()[1] not in ("", entry.uid):
            raise _Elsewhere(f"this register has another group of the name {entry.name!r}")
        old = self.entry
        if old is None or (entry.epoch, entry.version) > (old.epoch, old.version):
            self.entry = entry
            self.changed.set()
            self.changed = trio.Event()
        return entry


class _Elsewhere(ReplicationError):
    """This controller cannot use its register, or refuses this replica: another one may not."""


class _NotActive(ReplicationError):
    """This controller is not the active one."""
