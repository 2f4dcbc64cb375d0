"""Rules of an epoch's leader: what it may confirm, and whom it may add or leave out. Pure.

The leader asks the register before a change of the in-sync set counts. Until it knows the answer,
both sets may be the register's, so a byte is confirmed only when all of both have it
(replication.md 7.5, R1 to R5).
"""

from dataclasses import dataclass

from rocketbed.replication.election import Proposal
from rocketbed.replication.entry import GroupEntry, Members


@dataclass(frozen=True, slots=True)
class Position:
    """A follower's progress, by its newest acknowledgement on a link of this epoch."""

    incarnation: int
    end: int
    """Synced under the policy `fsync`, else written; bytes, a whole message's end."""


class InSyncView:
    """The in-sync set as the leader of one epoch knows it.

    Invariant: `confirm` never falls, and rises only to what each member of `need()` has. While the
    register still names this leader and epoch, `need()` has all that its entry has.
    """

    def __init__(self, me: int, start: int, entry: GroupEntry) -> None:
        """`start` is the offset of the epoch's marker; `entry` the register's, as it was read."""
        assert entry.leader == me, entry
        self.me = me
        self.epoch = entry.epoch
        self.start = start
        self.entry = entry
        """Newest version that was read."""
        self.pending: Proposal | None = None
        """Requested of the register, without a known answer yet."""
        self.joining: tuple[int, int] | None = None
        """A follower and its incarnation that waits to be requested: nothing is confirmed without
        it, or it would never have all that is confirmed while more is written."""
        self.positions: dict[int, Position] = {}
        self.confirm = 0
        """Offset below which every byte is confirmed; earlier epochs may have confirmed more."""

    def need(self) -> set[tuple[int, int]]:
        """Return the replicas that need a byte before it is confirmed, each with its incarnation
        (R1)."""
        members = set(self.entry.in_sync.items())
        if self.pending:
            members |= set(self.pending.in_sync.items())
        return members | {self.joining} if self.joining else members

    def has_enough(self) -> bool:
        """True if anything may be confirmed. A set that is only requested does not count (R2)."""
        return len(self.entry.in_sync) >= self.entry.min_in_sync

    def acknowledged(self, replica: int, incarnation: int, end: int) -> None:
        """Record that a follower has everything below `end`. Older acknowledgements are ignored."""
        former = self.positions.get(replica)
        new = Position(incarnation, end)
        if former is None or (former.incarnation, former.end) < (incarnation, end):
            self.positions[replica] = new

    def raise_confirm(self, own_end: int) -> int:
        """Return the confirm offset now; `own_end` is the leader's own, as `Position.end` (R2)."""
        if self.has_enough():
            self.confirm = max(self.confirm, min(self._ends(own_end)))
        return self.confirm

    def may_join(self, replica: int) -> bool:
        """True if a follower is complete: it has the epoch's marker, hence all that earlier epochs
        confirmed, and all that this one did (R5)."""
        position = self.positions.get(replica)
        if position is None or replica in self.entry.in_sync:
            return False
        registered = self.entry.is_registered(replica, position.incarnation)
        return registered and self._is_complete(position.end)

    def has_marker(self, replica: int) -> bool:
        """True if a registered follower has all that earlier epochs confirmed."""
        position = self.positions.get(replica)
        if position is None or replica in self.entry.in_sync:
            return False
        registered = self.entry.is_registered(replica, position.incarnation)
        return registered and position.end > self.start

    def join(self, replica: int) -> Proposal:
        """Request that a follower be added. Invariant: one request at a time."""
        self.joining = None
        life = self.positions[replica].incarnation
        return self._propose({**self.entry.in_sync, replica: life})

    def leave(self, replica: int) -> Proposal:
        """Request that a member be left out (R4)."""
        assert replica != self.me, "a leader does not leave out itself"
        remaining = {
            member: life for member, life in self.entry.in_sync.items() if member != replica
        }
        return self._propose(remaining)

    def read(self, entry: GroupEntry) -> bool:
        """Take an entry of the register, read or in an answer. False: another replica leads.

        Only a higher version ends a request, which can then change nothing any more. A time-out
        does not: it may still arrive (R3).
        """
        if entry.epoch != self.epoch or entry.leader != self.me:
            return False
        if entry.version > self.entry.version:
            self.entry = entry
        if self.pending and self._is_over(self.pending):
            self.pending = None
        return True

    def refused(self, proposal: Proposal) -> None:
        """Drop a proposal that the register's rules forbid, as they will until the version
        changes."""
        if self.pending == proposal:
            self.pending = None

    def _is_over(self, proposal: Proposal) -> bool:
        return self.entry.version > proposal.version

    def _is_complete(self, end: int) -> bool:
        return end > self.start and end >= self.confirm

    def _ends(self, own_end: int) -> list[int]:
        followers = self.need() - {(self.me, self.entry.in_sync[self.me])}
        return [own_end, *(self._end_of(*follower) for follower in followers)]

    def _end_of(self, replica: int, incarnation: int) -> int:
        position = self.positions.get(replica)
        if position is None or position.incarnation != incarnation:
            return 0
        return position.end

    def _propose(self, in_sync: Members) -> Proposal:
        assert self.pending is None, self.pending
        self.pending = Proposal(self.me, self.epoch, self.entry.version, in_sync)
        return self.pending
