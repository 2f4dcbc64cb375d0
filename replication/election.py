"""The changes of a group's register entry: who leads, who is in sync. Pure.

Each takes an entry and gives the next one, or refuses. Whether a change is accepted depends on the
entry alone, so that a request that is repeated, or comes late, is answered alike for as long as
the version is the same (replication.md 7.5, R6 to R9).
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
    """Of the entry that it was made from."""
    in_sync: Members


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica that is alive, as it was heard last."""

    incarnation: int
    epoch: int = 0
    """Newest of its log."""
    end: int = 0
    """Of its log, bytes."""
    is_unfit: bool = False
    """It says that it would be a bad leader; one that is better loses nothing."""


def registered(entry: GroupEntry, number: int, replica: Replica, *, lossless: bool) -> GroupEntry:
    """A replica has started; `lossless` if it holds everything that it ever acknowledged (7.6).

    Its former life leaves both sets. A group's first replica is its first member. Raises
    `ChangeRefused` for the number of another one that counts, and for a life that is known already.
    """
    known = entry.replicas.get(number)
    if known is not None:
        _check_identity(entry, number, known, replica)
    replicas = {**entry.replicas, number: replica}
    if not entry.replicas:
        return _next(entry, replicas=replicas, in_sync={number: replica.incarnation})
    left = _without(entry, number)
    if not lossless:
        return _next(_lossy(left, number), version=entry.version + 1, replicas=replicas)
    eligible = dict(left.eligible)
    if number in eligible:
        eligible[number] = replica.incarnation
    return _next(left, version=entry.version + 1, replicas=replicas, eligible=eligible)


def counts(entry: GroupEntry, number: int) -> bool:
    """Whether a replica may hold what no other one has."""
    return number in {*entry.in_sync, *entry.eligible, *entry.last_known}


def altered(entry: GroupEntry, proposal: Proposal) -> GroupEntry:
    """What a leader proposed. Raises `Superseded` if it was made from another version or by a
    former leader, `ChangeRefused` if it adds a life that is not registered or leaves itself out."""
    asked = (proposal.leader, proposal.epoch, proposal.version)
    if asked != (entry.leader, entry.epoch, entry.version):
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
    left = {one: life for one, life in entry.in_sync.items() if one not in proposal.in_sync}
    stays = {one: life for one, life in entry.eligible.items() if one not in proposal.in_sync}
    return _next(entry, in_sync=dict(proposal.in_sync), eligible=stays | left)


def may_be_member(entry: GroupEntry, number: int, incarnation: int) -> bool:
    """R8: a member stays, and only a replica's newest life is added."""
    if entry.in_sync.get(number) == incarnation:
        return True
    return entry.is_registered(number, incarnation)


def fenced(entry: GroupEntry, number: int) -> GroupEntry:
    """A replica is not heard any more, or stops: it leaves, and leads no longer."""
    if number not in entry.in_sync:
        return entry
    return replace(_without(entry, number), version=entry.version + 1)


def elected(entry: GroupEntry, alive: Mapping[int, Candidate]) -> GroupEntry | None:
    """With a new leader and epoch; None if nobody who is alive may lead (R6).

    Any member of the in-sync set holds every confirmed byte; of those that would be good leaders
    the longest log is preferred, since the others then have the least to cut. Invariant: never
    while there is a leader.
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
    """From a leader that has stopped to write to a member that has all of its log.

    Raises `Superseded` if somebody else leads, `ChangeRefused` if `to` is no member.
    """
    if (leader, epoch) != (entry.leader, entry.epoch):
        raise Superseded(f"replica {leader} does not lead group {entry.name!r} at epoch {epoch}")
    if to not in entry.in_sync:
        raise ChangeRefused(f"replica {to} of group {entry.name!r} is not in sync")
    return _led_by(entry, to)


def forced(entry: GroupEntry, number: int, alive: Mapping[int, Candidate]) -> GroupEntry:
    """With a leader that an operator chose although nobody complete is there (R9).

    The epoch is on record as one that may have lost acknowledged bytes. Raises `ChangeRefused`
    while somebody complete is alive, or one with a longer log, or if this replica is not.
    """
    complete = sorted(
        one
        for one, life in {**entry.in_sync, **entry.eligible}.items()
        if one in alive and alive[one].incarnation == life
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
    refuse_shorter(entry.name, number, {one: (it.epoch, it.end) for one, it in alive.items()})
    alone = replace(entry, leader=None, in_sync={}, eligible={number: incarnation})
    chosen = _led_by(alone, number)
    return replace(chosen, unclean=(*entry.unclean, chosen.epoch))


def refounded(new: GroupEntry, number: int, replica: Replica, *, epoch: int) -> GroupEntry:
    """A group whose entry is lost, with a leader that an operator chose (R9).

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
    """Of each replica that is there the newest epoch of its log, and its end: raises
    `ChangeRefused` if one has more than this one, whose messages would be cut."""
    longest = max(ends, key=lambda one: (ends[one], one == number))
    if longest != number:
        mine, theirs = ends[number], ends[longest]
        raise ChangeRefused(
            f"replica {longest} of group {group!r} has a longer log, up to {theirs[1]} in epoch"
            f" {theirs[0]}, than replica {number}, up to {mine[1]} in epoch {mine[0]}: force that"
            " one, or stop it first, and lose what only it has"
        )


def _check_identity(entry: GroupEntry, number: int, known: Replica, replica: Replica) -> None:
    if replica.uuid != known.uuid and counts(entry, number):
        raise ChangeRefused(
            f"replica {number} of group {entry.name!r} counts with another directory"
        )
    if replica.incarnation <= known.incarnation:
        raise ChangeRefused(
            f"life {replica.incarnation} of replica {number} of group {entry.name!r} is known"
            " already: is its directory a copy of one that runs, or an old one brought back?"
        )


def _led_by(entry: GroupEntry, number: int) -> GroupEntry:
    incarnation = entry.replicas[number].incarnation
    stays = {one: life for one, life in entry.eligible.items() if one != number}
    members = {**entry.in_sync, number: incarnation}
    return _next(entry, epoch=entry.epoch + 1, leader=number, in_sync=members, eligible=stays)


def _without(entry: GroupEntry, number: int) -> GroupEntry:
    """Without a member, which stays eligible where the set is below its minimum now (R7)."""
    if number not in entry.in_sync:
        return entry
    rest = {one: life for one, life in entry.in_sync.items() if one != number}
    leader = None if entry.leader == number else entry.leader
    eligible = dict(entry.eligible)
    if len(rest) < entry.min_in_sync:
        eligible[number] = entry.in_sync[number]
    return replace(entry, leader=leader, in_sync=rest, eligible=eligible)


def _lossy(entry: GroupEntry, number: int) -> GroupEntry:
    """Without one that may have lost bytes."""
    if number not in entry.eligible:
        return entry
    rest = {one: life for one, life in entry.eligible.items() if one != number}
    return replace(entry, eligible=rest, last_known=entry.last_known | {number})


def _next(entry: GroupEntry, **changes: Any) -> GroupEntry:
    """The next version. A set at its minimum needs nobody in reserve."""
    changes = {"version": entry.version + 1, **changes}
    if len(changes.get("in_sync", entry.in_sync)) >= entry.min_in_sync:
        changes |= {"eligible": {}, "last_known": frozenset()}
    return replace(entry, **changes)
