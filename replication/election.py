"""Changes of a group's register entry: its leader, its in-sync set. Pure.

Each takes an entry and returns the next one, or refuses. A change depends on the entry alone, so
that a request that is repeated, or late, gets the same answer as long as the version is the same
(replication.md 7.5, R6 to R9).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rocketbed.replication.entry import GroupEntry, Members, Replica
from rocketbed.replication.errors import ChangeRefused, Superseded


@dataclass(frozen=True, slots=True)
class Proposal:
    """A leader's request for another in-sync set."""

    leader: int
    epoch: int
    version: int
    """Of the entry that it is based on."""
    in_sync: Members


@dataclass(frozen=True, slots=True)
class Candidate:
    """A live replica, by its latest beat."""

    incarnation: int
    epoch: int = 0
    """Newest epoch of its log."""
    end: int = 0
    """End of its log, bytes."""
    is_unfit: bool = False
    """True if it reports that it would be a bad leader; a better one loses nothing."""


def registered(entry: GroupEntry, number: int, replica: Replica, *, lossless: bool) -> GroupEntry:
    """Register a started replica; `lossless` if it holds everything that it ever acknowledged
    (7.6).

    Its earlier incarnation leaves both sets. A group's first replica is its first member. Raises
    `ChangeRefused` for the number of another directory that counts, and for an incarnation that is
    known already.
    """
    former = entry.replicas.get(number)
    if former is not None:
        _check_identity(entry, number, former, replica)
    replicas = {**entry.replicas, number: replica}
    if not entry.replicas:
        return _next(entry, replicas=replicas, in_sync={number: replica.incarnation})
    remaining = _without(entry, number)
    if not lossless:
        return _next(_lossy(remaining, number), version=entry.version + 1, replicas=replicas)
    eligible = dict(remaining.eligible)
    if number in eligible:
        eligible[number] = replica.incarnation
    return _next(remaining, version=entry.version + 1, replicas=replicas, eligible=eligible)


def counts(entry: GroupEntry, number: int) -> bool:
    """True if a replica may hold something that no other one has."""
    return number in {*entry.in_sync, *entry.eligible, *entry.last_known}


def altered(entry: GroupEntry, proposal: Proposal) -> GroupEntry:
    """Apply a leader's proposal. Raises `Superseded` if it is based on another version or from a
    former leader, `ChangeRefused` if it adds an unregistered incarnation or omits the leader
    itself."""
    basis = (proposal.leader, proposal.epoch, proposal.version)
    if basis != (entry.leader, entry.epoch, entry.version):
        raise Superseded(
            f"replica {proposal.leader} proposes a set for version {proposal.version} of group"
            f" {entry.name!r} in epoch {proposal.epoch}, which is at version {entry.version} in"
            f" epoch {entry.epoch}, led by {entry.leader}"
        )
    if proposal.leader not in proposal.in_sync:
        raise ChangeRefused(
            f"replica {proposal.leader} of group {entry.name!r} proposes a set without itself:"
            f" {sorted(proposal.in_sync)}"
        )
    for number, incarnation in proposal.in_sync.items():
        if not may_be_member(entry, number, incarnation):
            text = f"replica {number} of group {entry.name!r} has no registered life {incarnation}"
            raise ChangeRefused(text)
    leaving = {
        member: life for member, life in entry.in_sync.items() if member not in proposal.in_sync
    }
    stays = {
        member: life for member, life in entry.eligible.items() if member not in proposal.in_sync
    }
    return _next(entry, in_sync=dict(proposal.in_sync), eligible=stays | leaving)


def may_be_member(entry: GroupEntry, number: int, incarnation: int) -> bool:
    """True if an incarnation may be in the set: a member stays, and only a replica's newest one is
    added (R8)."""
    if entry.in_sync.get(number) == incarnation:
        return True
    return entry.is_registered(number, incarnation)


def fenced(entry: GroupEntry, number: int) -> GroupEntry:
    """Remove a replica that is silent, or stops, from the set and from the lead."""
    if number not in entry.in_sync:
        return entry
    return replace(_without(entry, number), version=entry.version + 1)


def elected(entry: GroupEntry, alive: Mapping[int, Candidate]) -> GroupEntry | None:
    """Elect a leader in a new epoch; None if no live replica may lead (R6).

    Any member of the in-sync set holds every confirmed byte; of the good leaders among them the
    longest log is preferred, since the remaining replicas then have the least to cut. Invariant:
    never while there is a leader.
    """
    assert entry.leader is None, entry
    for members in (entry.in_sync, entry.eligible):
        can = [
            (not alive[number].is_unfit, alive[number].epoch, alive[number].end, -number)
            for number, incarnation in members.items()
            if number in alive and alive[number].incarnation == incarnation
        ]
        if can:
            return _led_by(entry, -max(can)[3])
    return None


def handed_over(entry: GroupEntry, *, leader: int, epoch: int, to: int) -> GroupEntry:
    """Pass the lead from a leader that has stopped writing to a member that has all of its log.

    Raises `Superseded` if another replica leads, `ChangeRefused` if `to` is not a member.
    """
    if (leader, epoch) != (entry.leader, entry.epoch):
        raise Superseded(f"replica {leader} does not lead group {entry.name!r} at epoch {epoch}")
    if to not in entry.in_sync:
        raise ChangeRefused(f"replica {to} of group {entry.name!r} is not in sync")
    return _led_by(entry, to)


def forced(entry: GroupEntry, number: int, alive: Mapping[int, Candidate]) -> GroupEntry:
    """Make an operator's choice the leader although no complete replica is present (R9).

    The epoch is recorded as one that may have lost acknowledged bytes. Raises `ChangeRefused` while
    a complete replica is alive, or one with a longer log, or if this replica is not.
    """
    complete = sorted(
        member
        for member, life in {**entry.in_sync, **entry.eligible}.items()
        if member in alive and alive[member].incarnation == life
    )
    if number not in entry.replicas:
        raise ChangeRefused(f"group {entry.name!r} has no replica {number}")
    if complete:
        raise ChangeRefused(
            f"replicas {complete} of group {entry.name!r} have lost nothing, and are there"
        )
    incarnation = entry.replicas[number].incarnation
    if number not in alive or alive[number].incarnation != incarnation:
        raise ChangeRefused(
            f"replica {number} of group {entry.name!r} is not there: start it first"
        )
    refuse_shorter(
        entry.name,
        number,
        {member: (candidate.epoch, candidate.end) for member, candidate in alive.items()},
    )
    alone = replace(entry, leader=None, in_sync={}, eligible={number: incarnation})
    chosen = _led_by(alone, number)
    return replace(chosen, unclean=(*entry.unclean, chosen.epoch))


def refounded(new: GroupEntry, number: int, replica: Replica, *, epoch: int) -> GroupEntry:
    """Recreate a group whose entry is lost, with an operator's choice as the leader (R9).

    `epoch` has to be higher than any that the group ever had. Raises `ChangeRefused` if the group
    is known after all.
    """
    if new.version:
        raise ChangeRefused(f"group {new.name!r} is known, at version {new.version}")
    members = {number: replica.incarnation}
    return _next(
        new,
        replicas={number: replica},
        epoch=epoch,
        leader=number,
        in_sync=members,
        unclean=(epoch,),
    )


def refuse_shorter(group: str, number: int, ends: Mapping[int, tuple[int, int]]) -> None:
    """Raise `ChangeRefused` if a present replica has more than this one: its messages would be cut.
    `ends`: newest epoch and end of each present replica's log."""
    longest = max(ends, key=lambda replica: (ends[replica], replica == number))
    if longest != number:
        mine, theirs = ends[number], ends[longest]
        raise ChangeRefused(
            f"replica {longest} of group {group!r} has a longer log, up to {theirs[1]} in epoch"
            f" {theirs[0]}, than replica {number}, up to {mine[1]} in epoch {mine[0]}: force that"
            " one, or stop it first, and lose what only it has"
        )


def _check_identity(entry: GroupEntry, number: int, former: Replica, replica: Replica) -> None:
    if replica.uuid != former.uuid and counts(entry, number):
        raise ChangeRefused(
            f"replica {number} of group {entry.name!r} counts with another directory"
        )
    if replica.incarnation <= former.incarnation:
        raise ChangeRefused(
            f"life {replica.incarnation} of replica {number} of group {entry.name!r} is known"
            " already: is its directory a copy of one that runs, or an old one brought back?"
        )


def _led_by(entry: GroupEntry, number: int) -> GroupEntry:
    incarnation = entry.replicas[number].incarnation
    stays = {member: life for member, life in entry.eligible.items() if member != number}
    members = {**entry.in_sync, number: incarnation}
    return _next(entry, epoch=entry.epoch + 1, leader=number, in_sync=members, eligible=stays)


def _without(entry: GroupEntry, number: int) -> GroupEntry:
    """Remove a member, which stays eligible if the set is below its minimum now (R7)."""
    if number not in entry.in_sync:
        return entry
    remaining = {member: life for member, life in entry.in_sync.items() if member != number}
    leader = None if entry.leader == number else entry.leader
    eligible = dict(entry.eligible)
    if len(remaining) < entry.min_in_sync:
        eligible[number] = entry.in_sync[number]
    return replace(entry, leader=leader, in_sync=remaining, eligible=eligible)


def _lossy(entry: GroupEntry, number: int) -> GroupEntry:
    """Remove a replica that may have lost bytes from the eligible ones."""
    if number not in entry.eligible:
        return entry
    remaining = {member: life for member, life in entry.eligible.items() if member != number}
    return replace(entry, eligible=remaining, last_known=entry.last_known | {number})


def _next(entry: GroupEntry, **changes: Any) -> GroupEntry:
    """Return the next version. A set at its minimum needs no eligible replicas."""
    changes = {"version": entry.version + 1, **changes}
    if len(changes.get("in_sync", entry.in_sync)) >= entry.min_in_sync:
        changes |= {"eligible": {}, "last_known": frozenset()}
    return replace(entry, **changes)
