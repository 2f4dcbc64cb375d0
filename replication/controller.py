"""The controller: keeps the register, hears the replicas, names leaders (replication.md 7.8, 7.9).

It runs beside a nameserver. Of several, the one with the claim is active; the others answer that
they are not. What it decides is in `election.py` and `lease.py`; what was decided is on record
before anybody is told. It can die at any moment: leaders go on as long as their whole in-sync set
acknowledges, and the next one begins with what is on record.
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
"""To find out whether anybody listens at a replica's addresses."""
PROBE_PAUSE_S: Final = 0.01
"""Before somebody who still listens is asked again."""
RETRY_S: Final = 0.2
"""After a change whose outcome the store does not tell."""


class _Group:
    """One group, as the active controller knows it."""

    def __init__(self, entry: GroupEntry, now: float) -> None:
        self.entry = entry
        """The newest that was read or made."""
        self.roll = Roll(now)
        self.links: dict[int, Connection] = {}
        """On which each replica was heard last."""
        self._second: dict[int, tuple[str, float]] = {}
        """By number, another directory that came for it last, and when it did so first."""
        self.changed = trio.Event()
        """Set when something happened on which a decision may depend."""

    def came_first(self, replica: int, uuid: str, now: float) -> float:
        """When another directory first came for a number, if none did since."""
        if self._second.get(replica, ("", now))[0] != uuid:
            self._second[replica] = uuid, now
        return self._second[replica][1]


class Controller:
    """One controller. `run` serves until cancelled."""

    def __init__(self, world: World, store: CasStore) -> None:
        self._world = world
        self._store = store
        self._register = Register(store)
        self._groups: dict[str, _Group] = {}
        self._damaged: dict[str, EntryDamaged] = {}
        """Groups whose entries cannot be read, and why."""
        self._lost_groups = LostGroups(world.clock.monotonic)
        self._saying = Seldom()
        self._nursery: trio.Nursery | None = None
        """Of the tasks of an active one; None while it is not."""
        self._lost: list[tuple[_Group, int]] = []
        """Replicas whose connections have ended, and that nobody has looked for yet."""
        self._lost_one = trio.Event()
        self._refusal: CasError = CasSuperseded("this controller is not active yet")
        """Why it answers nothing, while it is not active."""

    @property
    def is_active(self) -> bool:
        """Whether it has the claim."""
        return self._nursery is not None

    def handlers(self) -> Handlers:
        """For the port of the server that it lives in."""
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
        """A connection has ended: whose replica it was may be dead, which its machine can tell."""
        for group in self._groups.values():
            for number, link in list(group.links.items()):
                if link is connection:
                    del group.links[number]
                    self._lost.append((group, number))
                    self._lost_one.set()

    async def run(self) -> None:
        """Be active whenever that is possible. Returns only if the register cannot be used, which
        is logged and told to all who ask."""
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
        finally:
            self._nursery = None
            self._groups, self._damaged = {}, {}
            self._lost_groups.clear()

    async def _watch_readable(self, group: _Group) -> None:
        """One group whose entry was spoilt meanwhile stands still, and no other one."""
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
                    with trio.move_on_after(max(left_s, 0.0)):
                        await group.changed.wait()
                    now = self._world.clock.monotonic()
                    if until is not None and now > until + LEASE_S / 2:
                        # It was this process that stood still: nobody could be heard meanwhile.
                        group.roll.since = now
                case Fence(number, incarnation):
                    self._world.log.warning(
                        "controller.leader_silent", group=name, replica=number, op=op
                    )
                    fence = partial(self._register.fence, name, number, incarnation, op=op)
                    self._publish(group, await self._patiently(fence))
                case Elect(alive):
                    elect = partial(self._register.elect, name, alive, op=op)
                    self._publish(group, await self._patiently(elect))

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Until its outcome is known; repeated, it does nothing twice."""
        while True:
            try:
                return await work()
            except CasUnknown as exc:
                if self._saying.is_due():
                    self._world.log.warning("controller.register_silent", error=str(exc))
                await trio.sleep(RETRY_S)

    def _publish(self, group: _Group, entry: GroupEntry) -> None:
        """Tell the replicas of a newer entry."""
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
            await self._lost_one.wait()
            self._lost_one = trio.Event()
            lost, self._lost = self._lost, []
            for group, number in lost:
                nursery.start_soon(self._probe, group, number)

    async def _probe(self, group: _Group, number: int) -> None:
        """A connection ended. If nobody listens at either address of the replica, its process is
        dead, and nobody has to wait for its lease; a wrong guess costs no message (7.11).

        Asked again for a while: what is being killed may still listen when its connections end.
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
                    group.roll.gone(number, replica.incarnation)
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

    # --- what replicas and operators ask

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
        group.roll.heard(beat.replica, candidate, now)
        group.links[beat.replica] = connection
        if entry.leader is None:
            group.changed.set()
        body = dumped(entry) if entry.version > beat.version else b""
        alive = group.roll.alive(now)
        rival = any(
            one != beat.replica and one in alive and alive[one].incarnation == life
            for one, life in entry.eligible.items()
        )
        return answer(command, fields=_fields(entry, rival=rival or None), body=body)

    async def _register_replica(self, command: Command, connection: Connection) -> Command:
        asked = RegisterReplicaRequest.decode(command.raw_fields)
        self._check_active()
        check_words(asked)
        now, group = self._world.clock.monotonic(), self._groups.get(asked.group)
        if group is not None:
            refuse_copy(asked, group.entry, group.roll, group.links, now)
        replica = Replica(asked.uuid, asked.incarnation, asked.address, asked.haAddress)
        policy = Policy(asked.policy)
        new = new_group(asked.group, replicas=asked.replicas, policy=policy, uid=founded_uid(asked))
        known = await self._register.get(asked.group)
        if known is None and (
            max(asked.promised, asked.epoch) > 0 or self._lost_groups.of(asked.group, asked.replica)
        ):
            raise self._lost_groups.refusal(asked)
        refuse_stranger(asked, known)
        former = None
        if known is not None:
            self._refuse_older(asked, known)
            refuse_other_promise(asked, known)
            former = known.replicas.get(asked.replica)
        is_new = former is not None and former.uuid != asked.uuid
        if known is not None and former is not None and is_new:
            roll = None if group is None else group.roll
            since = now if group is None else group.came_first(asked.replica, asked.uuid, now)
            refuse_second(asked, known, former, roll, since=since, now=now)
            if asked.incarnation <= former.incarnation:
                # No life of the new directory is taken for one of the lost one.
                return answer(command, fields=LifeResponse(lifeAbove=former.incarnation).encode())
        lossless = asked.lossless and (is_new or not self._fell_back(asked))
        entry = await self._register.register(
            asked.replica, replica, new, lossless=lossless, op=asked.op
        )
        group = self._known(entry)
        group.links[asked.replica] = connection
        self._world.log.info(
            "controller.registered",
            group=entry.name,
            replica=asked.replica,
            incarnation=asked.incarnation,
            lossless=lossless,
        )
        return self._answered(command, group, entry)

    def _refuse_older(self, asked: RegisterReplicaRequest, known: GroupEntry) -> None:
        """A register that was put back from an old copy: who is in sync by it may lack what was
        acknowledged since. The group stands still, for all of its replicas."""
        # Whoever is not in the register, or cannot name the group's id, may be anybody: none of
        # them stops a group.
        former, newest = known.replicas.get(asked.replica), max(asked.promised, asked.epoch)
        if asked.groupUid == known.uid and known.epoch < newest:
            older = RegisterOlder(
                f"the register has group {asked.group!r} as it was in epoch {known.epoch}, and"
                f" replica {asked.replica} knows of epoch {newest}: bring its newest copy back, or"
                " empty it and have a leader forced once all are here. Or is that replica wrong?"
                " Then move its epoch.rb away, and start the nameserver again"
            )
            if former is None or former.uuid != asked.uuid:
                raise older
            if not isinstance(self._damaged.get(asked.group), RegisterOlder):
                self._world.log.error("controller.older_register", reason=str(older))
            self._damaged[asked.group] = older
            group = self._groups.pop(asked.group, None)
            if group is not None:
                group.changed.set()
        damaged = self._damaged.get(asked.group)
        if isinstance(damaged, RegisterOlder):
            raise damaged

    def _fell_back(self, asked: RegisterReplicaRequest) -> bool:
        """Whether its log ends before where it was heard to end, though nothing says why: its
        disk was put back, or lost a part. Synced logs may lose what was not acknowledged."""
        group = self._groups.get(asked.group)
        known = None if group is None else group.roll.last_end(asked.replica)
        if known is None or asked.policy != Policy.MEMORY or (asked.epoch, asked.end) >= known:
            return False
        self._world.log.error(
            "controller.fell_back",
            group=asked.group,
            replica=asked.replica,
            epoch=asked.epoch,
            end=asked.end,
            before=f"{known[1]} in epoch {known[0]}",
        )
        return True

    async def _alter(self, command: Command, _: Connection) -> Command:
        asked = AlterInSyncRequest.decode(command.raw_fields)
        group = self._group(asked.group)
        members = _members(asked.inSync)
        proposal = Proposal(asked.leader, asked.epoch, asked.version, members)
        entry = await self._register.alter(asked.group, proposal, op=asked.op)
        return self._answered(command, group, entry)

    async def _hand_over(self, command: Command, _: Connection) -> Command:
        asked = HandOverRequest.decode(command.raw_fields)
        group = self._group(asked.group)
        entry = await self._register.hand_over(
            asked.group, leader=asked.leader, epoch=asked.epoch, to=asked.to, op=asked.op
        )
        return self._answered(command, group, entry)

    async def _leave(self, command: Command, _: Connection) -> Command:
        asked = ReplicaRequest.decode(command.raw_fields)
        group = self._group(asked.group)
        if asked.incarnation is None:
            raise RemoteProtocolError("which life of the replica stops?")
        entry = await self._register.fence(
            asked.group, asked.replica, asked.incarnation, op=asked.op
        )
        group.roll.gone(asked.replica, asked.incarnation)
        return self._answered(command, group, entry)

    async def _force(self, command: Command, _: Connection) -> Command:
        asked = ReplicaRequest.decode(command.raw_fields)
        self._check_active()
        if asked.group in self._groups or asked.group in self._damaged:
            group = self._group(asked.group)
            alive = group.roll.alive(self._world.clock.monotonic())
            entry = await self._register.force(asked.group, asked.replica, alive, op=asked.op)
        else:
            how = self._lost_groups.refounding(asked.group, asked.replica)
            entry = await self._register.refound(
                asked.replica, how.replica, how.new, epoch=how.epoch, op=asked.op
            )
            group = self._known(entry)
        self._world.log.warning(
            "controller.forced", group=asked.group, replica=asked.replica, epoch=entry.epoch
        )
        return self._answered(command, group, entry)

    def _all_groups(self, command: Command, _: Connection) -> Command:
        self._check_active()
        now = self._world.clock.monotonic()
        found: dict[str, Any] = {
            name: {"damaged": reason} for name, reason in self._lost_groups.reasons().items()
        }
        found |= {
            name: {
                "entry": orjson.loads(dumped(group.entry)),
                "silent_s": {
                    str(number): group.roll.last_heard(number, now)
                    for number in group.entry.replicas
                },
            }
            for name, group in sorted(self._groups.items())
        }
        found |= {name: {"damaged": str(exc)} for name, exc in self._damaged.items()}
        return answer(command, body=orjson.dumps(found))

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

    def _known(self, entry: GroupEntry) -> _Group:
        """The group of an entry that this controller has just made or read."""
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


def _fields(entry: GroupEntry, *, rival: bool | None = None) -> dict[str, str]:
    return GroupEntryResponse(group=entry.name, version=entry.version, rival=rival).encode()


def _members(text: str) -> Members:
    """Of `replica:incarnation,...`. Raises `RemoteProtocolError`."""
    try:
        pairs = [one.split(":") for one in text.split(",")]
        return {int(number): int(incarnation) for number, incarnation in pairs}
    except ValueError as exc:
        raise RemoteProtocolError(f"not an in-sync set: {text[:200]!r}") from exc


def _text(group: BaseExceptionGroup[CasError]) -> str:
    """The first of what ended it."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)
