"""The controller's register: what is on record of each group, and the operations that change it.

The decisions are those of `replication.election`; here they are made durable by compare-and-swap.
Every operation has an id of its caller's, so that one that is repeated, or whose answer was lost,
changes nothing a second time, and every answer is the entry as it stands (replication.md 7.9).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from rocketbed.replication.election import (
    Candidate,
    Proposal,
    altered,
    elected,
    fenced,
    forced,
    handed_over,
    refounded,
    registered,
)
from rocketbed.replication.entry import GroupEntry, Policy, Replica
from rocketbed.replication.errors import ChangeRefused, EntryDamaged, GroupUnknown
from rocketbed.replication.register.cas import CasStore, CasUnknown
from rocketbed.replication.register.form import dumped, loaded

UNKNOWN_MAX = 5
"""Answers in a row that are lost before the caller is told that the outcome is not known."""


class Register:
    """All groups of one cluster. Operations on it may overlap."""

    def __init__(self, store: CasStore) -> None:
        self._store = store

    async def get(self, name: str) -> GroupEntry | None:
        """The newest entry of a group. Raises `CasError`, `EntryDamaged`."""
        found = await self._store.read(name)
        return None if found is None else loaded(found.value, name=name, version=found.version)

    async def groups(self) -> tuple[dict[str, GroupEntry], dict[str, EntryDamaged]]:
        """The newest entry of each, and why some cannot be read. Raises `CasError`."""
        entries: dict[str, GroupEntry] = {}
        damaged: dict[str, EntryDamaged] = {}
        for name in await self._store.names():
            try:
                entry = await self.get(name)
            except EntryDamaged as exc:
                damaged[name] = exc
            else:
                if entry is not None:
                    entries[name] = entry
        return entries, damaged

    async def history(self, name: str) -> list[GroupEntry]:
        """The newest thousand versions of a group, oldest first. Raises as `get`."""
        return [
            loaded(one.value, name=name, version=one.version)
            for one in await self._store.changes(name)
        ]

    async def register(
        self, number: int, replica: Replica, new: GroupEntry, *, lossless: bool, op: str
    ) -> GroupEntry:
        """A replica has started; see `election.registered`. `new` is what becomes of its group if
        this is the first of it. Raises as `get`, `ChangeRefused`, `CasUnknown`."""

        def change(entry: GroupEntry) -> GroupEntry:
            if entry.replicas.get(number) == replica:
                return entry  # said before, by a request whose answer was lost
            return registered(entry, number, replica, lossless=lossless)

        return await self._change(new.name, change, op, new)

    async def alter(self, name: str, proposal: Proposal, *, op: str) -> GroupEntry:
        """See `election.altered`. Raises also `Superseded`."""
        return await self._change(name, lambda entry: altered(entry, proposal), op)

    async def fence(self, name: str, number: int, incarnation: int, *, op: str) -> GroupEntry:
        """This life of a replica is not heard any more, or stops; see `election.fenced`."""

        def change(entry: GroupEntry) -> GroupEntry:
            lives = entry.in_sync.get(number) == incarnation
            return fenced(entry, number) if lives else entry

        return await self._change(name, change, op)

    async def elect(self, name: str, alive: Mapping[int, Candidate], *, op: str) -> GroupEntry:
        """A leader where there is none; the entry is the same if nobody may lead."""

        def change(entry: GroupEntry) -> GroupEntry:
            if entry.leader is not None:
                return entry
            return elected(entry, alive) or entry

        return await self._change(name, change, op)

    async def hand_over(
        self, name: str, *, leader: int, epoch: int, to: int, op: str
    ) -> GroupEntry:
        """See `election.handed_over`."""
        return await self._change(
            name, lambda entry: handed_over(entry, leader=leader, epoch=epoch, to=to), op
        )

    async def force(
        self, name: str, number: int, alive: Mapping[int, Candidate], *, op: str
    ) -> GroupEntry:
        """See `election.forced`: an operator accepts that bytes may be lost."""
        return await self._change(name, lambda entry: forced(entry, number, alive), op)

    async def refound(
        self, number: int, replica: Replica, new: GroupEntry, *, epoch: int, op: str
    ) -> GroupEntry:
        """See `election.refounded`."""
        return await self._change(
            new.name, lambda entry: refounded(entry, number, replica, epoch=epoch), op, new
        )

    async def _made_by(self, name: str, op: str) -> GroupEntry | None:
        """The version that a request made, if it did."""
        return next((one for one in await self.history(name) if one.op == op), None)

    async def _change(
        self,
        name: str,
        change: Callable[[GroupEntry], GroupEntry],
        op: str,
        new: GroupEntry | None = None,
    ) -> GroupEntry:
        if not op:
            raise ChangeRefused("an operation needs an id, by which its repetition is known")
        unknown = 0
        while True:
            # Somebody else's change may stand on top of ours by now.
            if unknown and (made := await self._made_by(name, op)) is not None:
                return made
            before = await self.get(name) or new
            if before is None:
                raise GroupUnknown(f"no replica of group {name!r} ever registered")
            if before.op == op:
                return before
            after = change(before)
            if after is before:
                return before
            assert after.version == before.version + 1, (before, after)
            after = replace(after, op=op)
            value = dumped(after)
            try:
                loaded(value, name=name, version=after.version)
            except EntryDamaged as exc:
                raise ChangeRefused(f"nobody could read the entry of group {name!r} then") from exc
            try:
                if await self._store.swap(name, value, after=before.version):
                    return after
            except CasUnknown:
                unknown += 1
                if unknown == UNKNOWN_MAX:
                    raise


def new_group(
    name: str, *, replicas: int, policy: Policy | None = None, uid: str = ""
) -> GroupEntry:
    """The entry of a group that nobody registered in yet, by how many replicas it is to have.

    Two copies of each message where there are three; where there are fewer, one survivor may have
    to do, so that without a `policy` only disks protect what is acknowledged (replication.md 7.5).
    """
    assert replicas >= 1, replicas
    if policy is None:
        policy = Policy.MEMORY if replicas >= 3 else Policy.FSYNC
    return GroupEntry(name, policy, min_in_sync=min_in_sync(replicas), uid=uid)


def min_in_sync(replicas: int) -> int:
    """How many have to be in sync where so many are to be there."""
    return 2 if replicas >= 3 else 1
