"""The controller's register: the entry of each group, and the operations that change it.

`replication.election` decides; here its decisions are made durable by compare-and-swap. Every
operation has an id from its caller, so that a repeated one, or one whose answer was lost, changes
nothing a second time, and every answer is the present entry (replication.md 7.9).
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
"""Lost answers in a row before the caller gets `CasUnknown`."""


class Register:
    """The groups of one cluster. Operations may overlap."""

    def __init__(self, store: CasStore) -> None:
        self._store = store

    async def get(self, name: str) -> GroupEntry | None:
        """Return the newest entry of a group. Raises `CasError`, `EntryDamaged`."""
        stored = await self._store.read(name)
        return None if stored is None else loaded(stored.value, name=name, version=stored.version)

    async def groups(self) -> tuple[dict[str, GroupEntry], dict[str, EntryDamaged]]:
        """Return the newest entry of each group, and the errors of unreadable ones. Raises
        `CasError`."""
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
        """Return the newest thousand versions of a group, oldest first. Raises as `get`."""
        return [
            loaded(stored.value, name=name, version=stored.version)
            for stored in await self._store.changes(name)
        ]

    async def register(
        self, number: int, replica: Replica, new: GroupEntry, *, lossless: bool, op: str
    ) -> GroupEntry:
        """Register a started replica; see `election.registered`. `new` is the first entry of its
        group, if it is the first replica. Raises as `get`, `ChangeRefused`, `CasUnknown`."""

        def change(entry: GroupEntry) -> GroupEntry:
            if entry.replicas.get(number) == replica:
                return entry  # done before, by a request whose answer was lost
            return registered(entry, number, replica, lossless=lossless)

        return await self._change(new.name, change, op, new)

    async def alter(self, name: str, proposal: Proposal, *, op: str) -> GroupEntry:
        """Apply a leader's proposal; see `election.altered`. Raises also `Superseded`."""
        return await self._change(name, lambda entry: altered(entry, proposal), op)

    async def fence(self, name: str, number: int, incarnation: int, *, op: str) -> GroupEntry:
        """Fence an incarnation that is silent, or stops; see `election.fenced`."""

        def change(entry: GroupEntry) -> GroupEntry:
            lives = entry.in_sync.get(number) == incarnation
            return fenced(entry, number) if lives else entry

        return await self._change(name, change, op)

    async def elect(self, name: str, alive: Mapping[int, Candidate], *, op: str) -> GroupEntry:
        """Elect a leader if there is none; the entry is unchanged if no replica may lead."""

        def change(entry: GroupEntry) -> GroupEntry:
            if entry.leader is not None:
                return entry
            return elected(entry, alive) or entry

        return await self._change(name, change, op)

    async def hand_over(
        self, name: str, *, leader: int, epoch: int, to: int, op: str
    ) -> GroupEntry:
        """Pass the lead on; see `election.handed_over`."""
        return await self._change(
            name, lambda entry: handed_over(entry, leader=leader, epoch=epoch, to=to), op
        )

    async def force(
        self, name: str, number: int, alive: Mapping[int, Candidate], *, op: str
    ) -> GroupEntry:
        """Make an operator's choice the leader; see `election.forced`: bytes may be lost."""
        return await self._change(name, lambda entry: forced(entry, number, alive), op)

    async def refound(
        self, number: int, replica: Replica, new: GroupEntry, *, epoch: int, op: str
    ) -> GroupEntry:
        """Recreate a lost group; see `election.refounded`."""
        return await self._change(
            new.name, lambda entry: refounded(entry, number, replica, epoch=epoch), op, new
        )

    async def _made_by(self, name: str, op: str) -> GroupEntry | None:
        """Return the version that a request made, if it did."""
        return next((entry for entry in await self.history(name) if entry.op == op), None)

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
            # Another process's change may follow ours by now.
            if unknown and (written := await self._made_by(name, op)) is not None:
                return written
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
    """Return the entry of a group without replicas, by its intended number of them.

    Two copies of each message with three replicas; with fewer, one survivor may have to do, so that
    without a `policy` only disks protect what is acknowledged (replication.md 7.5).
    """
    assert replicas >= 1, replicas
    if policy is None:
        policy = Policy.MEMORY if replicas >= 3 else Policy.FSYNC
    return GroupEntry(name, policy, min_in_sync=min_in_sync(replicas), uid=uid)


def min_in_sync(replicas: int) -> int:
    """Return how many of this many replicas have to be in sync."""
    return 2 if replicas >= 3 else 1
