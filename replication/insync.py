"""What the leader of an epoch may confirm, and whom it may add or leave out. Pure.

The leader asks the register before a change of the in-sync set counts. Until it knows the answer,
both sets may be the register's, so a byte is confirmed only when all of both have it
(replication.md 7.5, R1 to R5).
"""

from dataclasses import dataclass

from rocketbed.replication.election import Proposal
from rocketbed.replication.entry import GroupEntry, Members


@dataclass(frozen=True, slots=True)
class Position:
    """How far a follower is, by its newest acknowledgement on a link of this epoch."""

    incarnation: int
    end: int
    """Synced under the policy `fsync`, else written; bytes, a whole message's end."""


class InSyncView:
    """The in-sync set as the leader of one epoch knows it.

    Invariant: `confirm` never falls, and rises only to what each member of `need()` has. While
    the register still names this leader and epoch, `need()` has all that its entry has.
    """

    def __init__(self, me: int, start: int, entry: GroupEntry) -> None:
        """`start` is where the epoch's marker stands; `entry` the register's, as it was read."""
        assert entry.leader == me, entry
        self.me = me
        self.epoch = entry.epoch
        self.start = start
        self.known = entry
        """The newest version that was read."""
        self.pending: Proposal | None = None
        """Asked of the register, with an answer that is not known yet."""
        self.joining: tuple[int, int] | None = None
        """A follower and its life that waits to be asked for: nothing is confirmed without it, or
        it would never have all that is confirmed while more is written."""
        self.positions: dict[int, Position] = {}
        self.confirm = 0
        """Offset below which every byte is confirmed; what earlier epochs confirmed may be more."""

    def need(self) -> set[tuple[int, int]]:
        """Who has to have a byte before it is confirmed, each with its incarnation (R1)."""
        members = set(self.known.in_sync.items())
        if self.pending:
            members |= set(self.pending.in_sync.items())
        return members | {self.joining} if self.joining else members

    def has_enough(self) -> bool:
        """Whether anything may be confirmed. A set that is only asked for does not count (R2)."""
        return len(self.known.in_sync) >= self.known.min_in_sync

    def acknowledged(self, replica: int, incarnation: int, end: int) -> None:
        """A follower has everything below `end`. What is older than known is passed over."""
        known = self.positions.get(replica)
        new = Position(incarnation, end)
        if known is None or (known.incarnation, known.end) < (incarnation, end):
            self.positions[replica] = new

    def raise_confirm(self, own_end: int) -> int:
        """The confirm offset now; `own_end` is the leader's own, as `Position.end` (R2)."""
        if self.has_enough():
            self.confirm = max(self.confirm, min(self._ends(own_end)))
        return self.confirm

    def may_join(self, replica: int) -> bool:
        """Whether a follower is complete: it has the epoch's marker, hence all that earlier epochs
        confirmed, and all that this one did (R5)."""
        position = self.positions.get(replica)
        if position is None or replica in self.known.in_sync:
            return False
        registered = self.known.is_registered(replica, position.incarnation)
        return registered and self._is_complete(position.end)

    def has_marker(self, replica: int) -> bool:
        """Whether a registered follower has all that earlier epochs confirmed."""
        position = self.positions.get(replica)
        if position is None or replica in self.known.in_sync:
            return False
        registered = self.known.is_registered(replica, position.incarnation)
        return registered and position.end > self.start

    def join(self, replica: int) -> Proposal:
        """Ask that a follower be added. Invariant: one request at a time."""
        self.joining = None
        life = self.positions[replica].incarnation
        return self._propose({**self.known.in_sync, replica: life})

    def leave(self, replica: int) -> Proposal:
        """Ask that a member be left out (R4)."""
        assert replica != self.me, "a leader does not leave out itself"
        rest = {one: life for one, life in self.known.in_sync.items() if one != replica}
        return self._propose(rest)

    def read(self, entry: GroupEntry) -> bool:
        """The register's entry was read, or came with an answer. False: another one leads.

        Only a higher version ends a request: it can change nothing any more. A time-out does not,
        it may still arrive (R3).
        """
        if entry.epoch != self.epoch or entry.leader != self.me:
            return False
        if entry.version > self.known.version:
            self.known = entry
        if self.pending and self._is_over(self.pending):
            self.pending = None
        return True

    def refused(self, proposal: Proposal) -> None:
        """The register's rules forbid it, and will as long as the version is the same."""
        if self.pending == proposal:
            self.pending = None

    def _is_over(self, proposal: Proposal) -> bool:
        return self.known.version > proposal.version

    def _is_complete(self, end: int) -> bool:
        return end > self.start and end >= self.confirm

    def _ends(self, own_end: int) -> list[int]:
        others = self.need() - {(self.me, self.known.in_sync[self.me])}
        return [own_end, *(self._end_of(*one) for one in others)]

    def _end_of(self, replica: int, incarnation: int) -> int:
        position = self.positions.get(replica)
        if position is None or position.incarnation != incarnation:
            return 0
        return position.end

    def _propose(self, in_sync: Members) -> Proposal:
        assert self.pending is None, self.pending
        self.pending = Proposal(self.me, self.epoch, self.known.version, in_sync)
        return self.pending
