"""Rules for the header of a replica of a group. Pure: they use the request, the register's
entry of the group, and the beats that the active controller received.

A refusal by `ChangeRefused` is final for the requesting process; after any other it asks again.
"""

from collections.abc import Container
from typing import Final

from rocketbed.replication.election import counts
from rocketbed.replication.entry import EPOCH_MAX, GroupEntry, Policy, Replica
from rocketbed.replication.errors import ChangeRefused, GroupUnknown, NumberTaken
from rocketbed.replication.lease import LEASE_S, Roll
from rocketbed.replication.register.register import min_in_sync
from rocketbed.wire.headers_failover import RegisterReplicaRequest

REPLICAS_MAX: Final = 64
"""Most replicas of a group; a higher number is a mistake."""
TEXT_MAX: Final = 255


def check_words(header: RegisterReplicaRequest) -> None:
    """Raise `ChangeRefused` for values that none of our replicas sends."""
    may_be_empty = header.groupUid or "none"
    texts = (
        header.group,
        header.uuid,
        header.address,
        header.haAddress,
        header.op,
        may_be_empty,
    )
    if not all(0 < len(text) <= TEXT_MAX and text.isprintable() for text in texts):
        raise ChangeRefused(f"names, addresses and ids have 1 to {TEXT_MAX} printable characters")
    if not (0 <= header.replica < REPLICAS_MAX and 1 <= header.replicas <= REPLICAS_MAX):
        raise ChangeRefused(f"a group has up to {REPLICAS_MAX} replicas, numbered from 0 on")
    if header.incarnation < 1 or min(header.end, header.epoch, header.promised) < 0:
        raise ChangeRefused("lives are counted from 1 on, ends and epochs from 0")
    if max(header.epoch, header.promised) > EPOCH_MAX:
        raise ChangeRefused(f"no group has seen more than {EPOCH_MAX} epochs")
    if header.policy not in list(Policy):
        raise ChangeRefused(f"no policy: {header.policy!r}")


def refuse_stranger(header: RegisterReplicaRequest, entry: GroupEntry | None) -> None:
    """Raise `GroupUnknown` for a replica of another group of that name, and for one that may not
    found a group that does not exist."""
    if entry is not None and header.groupUid not in ("", entry.uid):
        raise GroupUnknown(
            f"this register has another group of the name {header.group!r} than the one that"
            f" replica {header.replica} is of. Is the register another cluster's, or the"
            " directory? Bring back the right one. Or did an empty node found the group while"
            " this one was away? Then, to go on with what this one holds: stop all nodes, move"
            " the register, and what only the empty one has begun, away, start the nodes that"
            " have the old group, and force-leader the one with the longest log"
        )
    if entry is None and not header.founds:
        raise GroupUnknown(
            f"group {header.group!r} has to begin with the one that replica {header.replica} is"
            " a copy of: start its former master first"
        )


def refuse_other_promise(header: RegisterReplicaRequest, entry: GroupEntry) -> None:
    """Raise `ChangeRefused` for a replica that would acknowledge differently from its group."""
    if entry.policy != header.policy:
        raise ChangeRefused(
            f"group {header.group!r} acknowledges by the policy {entry.policy}, replica"
            f" {header.replica} by {header.policy}: set flushDiskType alike at all of them"
        )
    # A registered replica has had its group's promise all along.
    if header.replica not in entry.replicas and entry.min_in_sync != min_in_sync(header.replicas):
        raise ChangeRefused(
            f"group {header.group!r} was founded to acknowledge with {entry.min_in_sync} in sync at"
            f" least, and rbReplicas={header.replicas} of replica {header.replica} asks for"
            f" {min_in_sync(header.replicas)}: 1 or 2 replicas need 1, more need 2; set rbReplicas"
            " as at the others"
        )


def refuse_copy(
    header: RegisterReplicaRequest,
    entry: GroupEntry,
    roll: Roll,
    linked: Container[int],
    now: float,
) -> None:
    """Refuse a copied directory, which claims to be its replica's next incarnation, while the
    original runs somewhere else. `linked`: replicas with a connection. Raises `ChangeRefused`."""
    former = entry.replicas.get(header.replica)
    if former is None or former.address == header.address:
        return
    if former.uuid != header.uuid or former.incarnation >= header.incarnation:
        return
    silent_s = roll.last_heard(header.replica, now)
    if header.replica in linked and silent_s is not None and silent_s < LEASE_S:
        raise ChangeRefused(
            f"replica {header.replica} of group {header.group!r} runs already, at"
            f" {former.address}: is this directory a copy? Give it another number (rbReplica)"
            " and an empty directory"
        )


def refuse_second(
    header: RegisterReplicaRequest,
    entry: GroupEntry,
    former: Replica,
    roll: Roll | None,
    *,
    since: float,
    now: float,
) -> None:
    """Check that an empty directory may replace a lost one; not one that runs, under the same
    number by mistake, nor may the new directory hold data, and not yet one that counts.

    `roll` is None if the controller has had no beat of the group yet; `since`: time of this
    directory's first request. Raises `ChangeRefused`, `NumberTaken`.
    """
    conflict = f"replica {header.replica} of group {header.group!r} has the directory {former.uuid}"
    if header.epoch or header.end or header.promised:
        raise ChangeRefused(
            f"{conflict}, and this one, {header.uuid}, is not empty: start with an empty one, which"
            " gets everything from the leader"
        )
    if roll is None or now < roll.since + LEASE_S:
        raise NumberTaken(f"{conflict}, and it is not known yet whether that one runs")
    silent_s = roll.last_heard(header.replica, now)
    if silent_s is not None and silent_s < LEASE_S:
        if now - silent_s <= since:
            raise NumberTaken(f"{conflict}, and it is not known yet whether that one runs")
        raise ChangeRefused(
            f"{conflict}, and runs at {former.address}: give this one, {header.uuid}, a number that"
            " no replica had yet (rbReplica)"
        )
    if counts(entry, header.replica):
        raise NumberTaken(
            f"{conflict}, and may hold what no other has: bring that one back, or wait until"
            f" {entry.min_in_sync} others are in sync, or give this one, {header.uuid}, a number"
            " that no replica had yet (rbReplica)"
        )
