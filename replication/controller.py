"""The controller: keeps the register, receives beats, names leaders (replication.md 7.8, 7.9).

It runs beside a nameserver. Of several, the one with the claim is active; all others answer that
they are not. Its decisions are made in `election.py` and `lease.py`; each is recorded before any
replica learns it. It can die at any moment: leaders continue as long as their whole in-sync set
acknowledges, and the next controller begins with the record.
"""

import errno
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

import orjson
import trio

from rocketbed.remoting.client import parse_address
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.handlers import Handlers
from rocketbed.replication.admission import (
    check_words,
    refuse_copy,
    refuse_other_promise,
    refuse_second,
    refuse_stranger,
)
from rocketbed.replication.election import Candidate, Proposal
from rocketbed.replication.entry import GroupEntry, Members, Policy, Replica
from rocketbed.replication.errors import (
    ChangeRefused,
    EntryDamaged,
    GroupUnknown,
    RegisterOlder,
)
from rocketbed.replication.lease import LEASE_S, Elect, Fence, Roll, Wait
from rocketbed.replication.lost_groups import LostGroups, founded_uid
from rocketbed.replication.pace import Seldom
from rocketbed.replication.register.cas import (
    CasBroken,
    CasError,
    CasStore,
    CasSuperseded,
    CasUnknown,
)
from rocketbed.replication.register.form import dumped
from rocketbed.replication.register.register import Register, new_group
from rocketbed.wire.codes import RequestCode
from rocketbed.wire.command import Command, answer, request
from rocketbed.wire.errors import RemoteProtocolError
from rocketbed.wire.headers_failover import (
    AlterInSyncRequest,
    BeatRequest,
    GroupEntryResponse,
    HandOverRequest,
    LifeResponse,
    RegisterReplicaRequest,
    ReplicaRequest,
)
from rocketbed.world.api import World

T = TypeVar("T")

PROBE_S: Final = 1.0
"""Time to find out whether a process listens at a replica's addresses."""
PROBE_PAUSE_S: Final = 0.01
"""Pause before an address that still listens is tried again."""
TURNS: Final = 3
"""Turns of the loop after which all that had come is read."""
RETRY_S: Final = 0.2
"""Pause after a change whose outcome the store does not report."""


class _Group:
    """State of a group in the active controller."""

    def __init__(self, entry: GroupEntry, now: float) -> None:
        self.entry = entry
        """Newest entry that was read or written."""
        leader = entry.leader
        self.roll = Roll(now, None if leader is None else (leader, entry.in_sync[leader]))
        self.links: dict[int, Connection] = {}
        """Connection of the latest beat of each replica."""
        self._second: dict[int, tuple[str, float]] = {}
        """By number, the last other directory that asked for it, and the time of its first
        request."""
        self.changed = trio.Event()
        """Set when something happened on which a decision may depend."""

    def first_request(self, replica: int, directory: str, now: float) -> float:
        """Return the first time that another directory asked for a number, unless a different one
        did since."""
        if self._second.get(replica, ("", now))[0] != directory:
            self._second[replica] = directory, now
        return self._second[replica][1]


class Controller:
    """A controller. `run` serves until cancelled."""

    def __init__(self, world: World, store: CasStore) -> None:
        self._world = world
        self._store = store
        self._register = Register(store)
        self._groups: dict[str, _Group] = {}
        self._damaged: dict[str, EntryDamaged] = {}
        """Groups with unreadable entries, and the reason."""
        self._lost_groups = LostGroups(world.clock.monotonic)
        self._saying = Seldom()
        self._nursery: trio.Nursery | None = None
        """Runs the tasks of an active controller; None while it is not active."""
        self._lost: list[tuple[_Group, int]] = []
        """Replicas whose connections have ended, and that were not probed yet."""
        self._has_lost = trio.Event()
        self._refusal: CasError = CasSuperseded("this controller is not active yet")
        """Answer to every request while it is not active."""

    def handlers(self) -> Handlers:
        """Return handlers for the port of the server that it runs in."""
        code = RequestCode
        return Handlers(
            inline={code.RB_BEAT: self._beat, code.RB_GROUPS: self._all_groups},
            spawned={
                code.RB_REGISTER_REPLICA: self._register_replica,
                code.RB_ALTER_IN_SYNC: self._alter,
                code.RB_HAND_OVER: self._hand_over,
                code.RB_LEAVE: self._leave,
                code.RB_FORCE_LEADER: self._force,
            },
        )

    def on_close(self, connection: Connection) -> None:
        """Probe the replica of a connection that ended: it may be dead, which its machine can
        tell."""
        for group in self._groups.values():
            for number, link in list(group.links.items()):
                if link is connection:
                    del group.links[number]
                    self._lost.append((group, number))
                    self._has_lost.set()

    async def run(self) -> None:
        """Be active whenever possible. Returns only if the register cannot be used, which is logged
        and answered to all requests."""
        usable = True
        while usable:
            try:
                await self._store.claim()
                await self._be_active()
            except* CasSuperseded as lost:
                self._refusal = CasSuperseded(_text(lost))
                self._world.log.warning("controller.superseded", reason=_text(lost))
            except* CasError as broken:
                self._refusal = CasBroken(_text(broken))
                self._world.log.error("controller.stopped", reason=_text(broken))
                usable = False

    async def _be_active(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._store.keep)
                entries, damaged = await self._patiently(self._register.groups)
                for name, reason in damaged.items():
                    self._world.log.error("controller.group_unreadable", reason=str(reason))
                    self._damaged[name] = reason
                now = self._world.clock.monotonic()
                self._groups = {name: _Group(entry, now) for name, entry in entries.items()}
                self._nursery = nursery
                nursery.start_soon(self._look_for_lost, nursery)
                self._world.log.info("controller.active", groups=len(entries))
                for group in self._groups.values():
                    nursery.start_soon(self._watch_readable, group)
                    if group.entry.leader is not None:
                        nursery.start_soon(self._probe, group, group.entry.leader)
        finally:
            self._nursery = None
            self._groups, self._damaged = {}, {}
            self._lost_groups.clear()

    async def _watch_readable(self, group: _Group) -> None:
        """Watch a group; if its entry was damaged meanwhile, only this group stops."""
        try:
            await self._watch(group)
        except EntryDamaged as exc:
            name = group.entry.name
            self._world.log.error("controller.group_unreadable", reason=str(exc))
            self._damaged[name] = exc
            del self._groups[name]

    async def _watch(self, group: _Group) -> None:
        """Fence and elect in one group."""
        while self._groups.get(group.entry.name) is group:
            group.changed = trio.Event()
            step = group.roll.next(group.entry, self._world.clock.monotonic())
            name, op = group.entry.name, self._op()
            match step:
                case Wait(until):
                    left_s = float("inf")
                    if until is not None:
                        left_s = until - self._world.clock.monotonic()
                    with trio.move_on_after(max(left_s, 0.0)) as scope:
                        await group.changed.wait()
                    if scope.cancelled_caught:
                        # Beats that came in time may not have been read yet.
                        for _ in range(TURNS):
                            await trio.lowlevel.checkpoint()
                    now = self._world.clock.monotonic()
                    if until is not None and now > until + LEASE_S / 2:
                        # This process itself was suspended: no beats could arrive meanwhile.
                        group.roll.since = now
                case Fence(number, incarnation):
                    silent_s = group.roll.last_heard(number, self._world.clock.monotonic())
                    self._world.log.warning(
                        "controller.leader_silent",
                        group=name,
                        replica=number,
                        silent_s=None if silent_s is None else round(silent_s, 3),
                        op=op,
                    )
                    fence = partial(self._register.fence, name, number, incarnation, op=op)
                    self._publish(group, await self._patiently(fence))
                case Elect(alive):
                    elect = partial(self._register.elect, name, alive, op=op)
                    self._publish(group, await self._patiently(elect))

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Repeat work until its outcome is known; a repetition does nothing twice."""
        while True:
            try:
                return await work()
            except CasUnknown as exc:
                if self._saying.is_due():
                    self._world.log.warning("controller.register_silent", error=str(exc))
                await trio.sleep(RETRY_S)

    def _publish(self, group: _Group, entry: GroupEntry) -> None:
        """Send a newer entry to the replicas."""
        before = group.entry
        if entry.version <= before.version:
            return
        group.entry = entry
        group.changed.set()
        if entry.epoch != before.epoch:
            self._world.log.info(
                "controller.leader", group=entry.name, replica=entry.leader, epoch=entry.epoch
            )
        notice = request(RequestCode.RB_GROUP_CHANGED, _fields(entry), dumped(entry))
        for link in dict.fromkeys(group.links.values()):
            link.notify(notice)

    async def _look_for_lost(self, nursery: trio.Nursery) -> None:
        while True:
            await self._has_lost.wait()
            self._has_lost = trio.Event()
            lost, self._lost = self._lost, []
            for group, number in lost:
                nursery.start_soon(self._probe, group, number)

    async def _probe(self, group: _Group, number: int) -> None:
        """Check whether a replica without a connection is dead. If no process listens at either of
        its addresses, its lease need not be waited for; a wrong guess costs no message (7.11).

        Repeated for a while: a process that is being killed may still listen when its connections
        end.
        """
        replica = group.entry.replicas.get(number)
        if replica is None:
            return
        with trio.move_on_after(PROBE_S):
            while number not in group.links:
                refused = await self._refuses(replica.address) and await self._refuses(
                    replica.ha_address
                )
                if refused and number not in group.links:
                    group.roll.record_death(number, replica.incarnation)
                    group.changed.set()
                    return
                await trio.sleep(PROBE_PAUSE_S)

    async def _refuses(self, address: str) -> bool:
        try:
            stream = await self._world.network.connect(*parse_address(address))
        except (OSError, ValueError) as exc:
            return getattr(exc, "errno", None) == errno.ECONNREFUSED
        await trio.aclose_forcefully(stream)
        return False

    # --- requests of replicas and operators

    def _beat(self, command: Command, connection: Connection) -> Command:
        beat = BeatRequest.decode(command.raw_fields)
        group = self._group(beat.group)
        entry = group.entry
        if not entry.is_registered(beat.replica, beat.incarnation):
            raise ChangeRefused(
                f"life {beat.incarnation} of replica {beat.replica} of group {beat.group!r} is not"
                " the newest one"
            )
        now = self._world.clock.monotonic()
        candidate = Candidate(beat.incarnation, beat.epoch, beat.end, bool(beat.unfit))
        lease_s = group.roll.record_beat(beat.replica, candidate, now)
        group.links[beat.replica] = connection
        if entry.leader is None:
            group.changed.set()
        body = dumped(entry) if entry.version > beat.version else b""
        alive = group.roll.alive(now)
        rival = any(
            number != beat.replica and number in alive and alive[number].incarnation == life
            for number, life in entry.eligible.items()
        )
        lease_ms = None if lease_s == LEASE_S else int(lease_s * 1000)
        header = GroupEntryResponse(
            group=entry.name, version=entry.version, rival=rival or None, lease=lease_ms
        )
        return answer(command, fields=header.encode(), body=body)

    async def _register_replica(self, command: Command, connection: Connection) -> Command:
        header = RegisterReplicaRequest.decode(command.raw_fields)
        self._check_active()
        check_words(header)
        now, group = self._world.clock.monotonic(), self._groups.get(header.group)
        if group is not None:
            refuse_copy(header, group.entry, group.roll, group.links, now)
        replica = Replica(
            header.uuid,
            header.incarnation,
            header.address,
            header.haAddress,
        )
        policy = Policy(header.policy)
        new = new_group(
            header.group,
            replicas=header.replicas,
            policy=policy,
            uid=founded_uid(header),
        )
        known_entry = await self._register.get(header.group)
        if known_entry is None and (
            max(header.promised, header.epoch) > 0
            or self._lost_groups.of(header.group, header.replica)
        ):
            raise self._lost_groups.refusal(header)
        refuse_stranger(header, known_entry)
        former = None
        if known_entry is not None:
            self._refuse_older(header, known_entry)
            refuse_other_promise(header, known_entry)
            former = known_entry.replicas.get(header.replica)
        is_new = former is not None and former.uuid != header.uuid
        if known_entry is not None and former is not None and is_new:
            roll = None if group is None else group.roll
            since = now if group is None else group.first_request(header.replica, header.uuid, now)
            refuse_second(header, known_entry, former, roll, since=since, now=now)
            if header.incarnation <= former.incarnation:
                # No incarnation of the new directory may be taken for one of the lost directory.
                return answer(command, fields=LifeResponse(lifeAbove=former.incarnation).encode())
        lossless = header.lossless and (is_new or not self._fell_back(header))
        entry = await self._register.register(
            header.replica, replica, new, lossless=lossless, op=header.op
        )
        group = self._group_of(entry)
        group.links[header.replica] = connection
        self._world.log.info(
            "controller.registered",
            group=entry.name,
            replica=header.replica,
            incarnation=header.incarnation,
            lossless=lossless,
        )
        return self._answered(command, group, entry)

    def _refuse_older(self, header: RegisterReplicaRequest, entry: GroupEntry) -> None:
        """Refuse a register that was restored from an old copy: its in-sync replicas may lack what
        was acknowledged since. The whole group stops."""
        # A replica that is not in the register, or cannot name the group's id, may be a stranger:
        # it must not stop a group.
        former, newest = (
            entry.replicas.get(header.replica),
            max(header.promised, header.epoch),
        )
        if header.groupUid == entry.uid and entry.epoch < newest:
            older = RegisterOlder(
                f"the register has group {header.group!r} as it was in epoch {entry.epoch}, and"
                f" replica {header.replica} knows of epoch {newest}: bring its newest copy back, or"
                " empty it and have a leader forced once all are here. Or is that replica wrong?"
                " Then move its epoch.rb away, and start the nameserver again"
            )
            if former is None or former.uuid != header.uuid:
                raise older
            if not isinstance(self._damaged.get(header.group), RegisterOlder):
                self._world.log.error("controller.older_register", reason=str(older))
            self._damaged[header.group] = older
            group = self._groups.pop(header.group, None)
            if group is not None:
                group.changed.set()
        damaged = self._damaged.get(header.group)
        if isinstance(damaged, RegisterOlder):
            raise damaged

    def _fell_back(self, header: RegisterReplicaRequest) -> bool:
        """True if its log ends before its last known end for no known reason: its disk was
        restored, or lost a part. Synced logs may lose what was not acknowledged."""
        group = self._groups.get(header.group)
        last_end = None if group is None else group.roll.last_end(header.replica)
        if (
            last_end is None
            or header.policy != Policy.MEMORY
            or (header.epoch, header.end) >= last_end
        ):
            return False
        self._world.log.error(
            "controller.fell_back",
            group=header.group,
            replica=header.replica,
            epoch=header.epoch,
            end=header.end,
            before=f"{last_end[1]} in epoch {last_end[0]}",
        )
        return True

    async def _alter(self, command: Command, _: Connection) -> Command:
        header = AlterInSyncRequest.decode(command.raw_fields)
        group = self._group(header.group)
        members = _members(header.inSync)
        proposal = Proposal(header.leader, header.epoch, header.version, members)
        entry = await self._register.alter(header.group, proposal, op=header.op)
        return self._answered(command, group, entry)

    async def _hand_over(self, command: Command, _: Connection) -> Command:
        header = HandOverRequest.decode(command.raw_fields)
        group = self._group(header.group)
        entry = await self._register.hand_over(
            header.group, leader=header.leader, epoch=header.epoch, to=header.to, op=header.op
        )
        return self._answered(command, group, entry)

    async def _leave(self, command: Command, _: Connection) -> Command:
        header = ReplicaRequest.decode(command.raw_fields)
        group = self._group(header.group)
        if header.incarnation is None:
            raise RemoteProtocolError("which life of the replica stops?")
        entry = await self._register.fence(
            header.group, header.replica, header.incarnation, op=header.op
        )
        group.roll.record_death(header.replica, header.incarnation)
        return self._answered(command, group, entry)

    async def _force(self, command: Command, _: Connection) -> Command:
        header = ReplicaRequest.decode(command.raw_fields)
        self._check_active()
        if header.group in self._groups or header.group in self._damaged:
            group = self._group(header.group)
            alive = group.roll.alive(self._world.clock.monotonic())
            entry = await self._register.force(header.group, header.replica, alive, op=header.op)
        else:
            how = self._lost_groups.refounding(header.group, header.replica)
            entry = await self._register.refound(
                header.replica, how.replica, how.new, epoch=how.epoch, op=header.op
            )
            group = self._group_of(entry)
        self._world.log.warning(
            "controller.forced", group=header.group, replica=header.replica, epoch=entry.epoch
        )
        return self._answered(command, group, entry)

    def _all_groups(self, command: Command, _: Connection) -> Command:
        self._check_active()
        now = self._world.clock.monotonic()
        groups: dict[str, Any] = {
            name: {"damaged": reason} for name, reason in self._lost_groups.reasons().items()
        }
        groups |= {
            name: {
                "entry": orjson.loads(dumped(group.entry)),
                "silent_s": {
                    str(number): group.roll.last_heard(number, now)
                    for number in group.entry.replicas
                },
            }
            for name, group in sorted(self._groups.items())
        }
        groups |= {name: {"damaged": str(exc)} for name, exc in self._damaged.items()}
        return answer(command, body=orjson.dumps(groups))

    def _answered(self, command: Command, group: _Group, entry: GroupEntry) -> Command:
        self._publish(group, entry)
        return answer(command, fields=_fields(entry), body=dumped(entry))

    def _group(self, name: str) -> _Group:
        self._check_active()
        group = self._groups.get(name)
        if group is None and name in self._damaged:
            raise self._damaged[name]
        if group is None:
            raise GroupUnknown(f"no replica of group {name!r} ever registered")
        return group

    def _group_of(self, entry: GroupEntry) -> _Group:
        """Return the group of an entry that this controller has just written or read."""
        nursery = self._check_active()
        group = self._groups.get(entry.name)
        if group is None:
            group = _Group(entry, self._world.clock.monotonic())
            self._groups[entry.name] = group
            nursery.start_soon(self._watch_readable, group)
        return group

    def _check_active(self) -> trio.Nursery:
        if self._nursery is None:
            raise self._refusal
        return self._nursery

    def _op(self) -> str:
        return f"controller {self._world.random.getrandbits(64):016x}"


def _fields(entry: GroupEntry) -> dict[str, str]:
    return GroupEntryResponse(group=entry.name, version=entry.version).encode()


def _members(text: str) -> Members:
    """Parse `replica:incarnation,...`. Raises `RemoteProtocolError`."""
    try:
        pairs = [pair.split(":") for pair in text.split(",")]
        return {int(number): int(incarnation) for number, incarnation in pairs}
    except ValueError as exc:
        raise RemoteProtocolError(f"not an in-sync set: {text[:200]!r}") from exc


def _text(group: BaseExceptionGroup[CasError]) -> str:
    """Return the text of the first error that ended it."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)
