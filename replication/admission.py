"""Who may register as which replica of a group. Pure: by what it says of itself, what the register
has of the group, and whom the active controller has heard.

A refusal by `ChangeRefused` is final for the process that asked; after any other it asks again.
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
"""Of one group; a number beyond it is somebody's mistake."""
TEXT_MAX: Final = 255


def check_words(asked: RegisterReplicaRequest) -> None:
    """Raises `ChangeRefused` for what no replica of ours says."""
    may_be_empty = asked.groupUid or "none"
    texts = (asked.group, asked.uuid, asked.address, asked.haAddress, asked.op, may_be_empty)
    if not all(0 < len(text) <= TEXT_MAX and text.isprintable() for text in texts):
        raise ChangeRefused(f"names, addresses and ids have 1 to {TEXT_MAX} printable characters")
    if not (0 <= asked.replica < REPLICAS_MAX and 1 <= asked.replicas <= REPLICAS_MAX):
        raise ChangeRefused(f"a group has up to {REPLICAS_MAX} replicas, numbered from 0 on")
    if asked.incarnation < 1 or min(asked.end, asked.epoch, asked.promised) < 0:
        raise ChangeRefused("lives are counted from 1 on, ends and epochs from 0")
    if max(asked.epoch, asked.promised) > EPOCH_MAX:
        raise ChangeRefused(f"no group has seen more than {EPOCH_MAX} epochs")
    if asked.policy not in list(Policy):
        raise ChangeRefused(f"no policy: {asked.policy!r}")


def refuse_stranger(asked: RegisterReplicaRequest, known: GroupEntry | None) -> None:
    """Raises `GroupUnknown` for a replica of another group of that name, and for one that may not
    found the group where there is none."""
    if known is not None and asked.groupUid not in ("", known.uid):
        raise GroupUnknown(
            f"this register has another group of the name {asked.group!r} than the one that"
            f" replica {asked.replica} is of. Is the register another cluster's, or the"
            " directory? Bring back the right one. Or did an empty node found the group while"
            " this one was away? Then, to go on with what this one holds: stop all nodes, move"
            " the register, and what only the empty one has begun, away, start the nodes that"
            " have the old group, and force-leader the one with the longest log"
        )
    if known is None and not asked.founds:
        raise GroupUnknown(
            f"group {asked.group!r} has to begin with the one that replica {asked.replica} is"
            " a copy of: start its former master first"
        )


def refuse_other_promise(asked: RegisterReplicaRequest, known: GroupEntry) -> None:
    """Raises `ChangeRefused` for one that would acknowledge otherwise than its group."""
    if known.policy != asked.policy:
        raise ChangeRefused(
            f"group {asked.group!r} acknowledges by the policy {known.policy}, replica"
            f" {asked.replica} by {asked.policy}: set flushDiskType alike at all of them"
        )
    # One that is registered has been promising what its group does.
    if asked.replica not in known.replicas and known.min_in_sync != min_in_sync(asked.replicas):
        raise ChangeRefused(
            f"group {asked.group!r} was founded to acknowledge with {known.min_in_sync} in sync at"
            f" least, and rbReplicas={asked.replicas} of replica {asked.replica} asks for"
            f" {min_in_sync(asked.replicas)}: 1 or 2 replicas need 1, more need 2; set rbReplicas"
            " as at the others"
        )


def refuse_copy(
    asked: RegisterReplicaRequest,
    entry: GroupEntry,
    roll: Roll,
    linked: Container[int],
    now: float,
) -> None:
    """A copy of a directory is the newer life of its replica, by what it says: not while the one
    that it was copied from runs somewhere else. `linked`: replicas with a connection. Raises
    `ChangeRefused`."""
    known = entry.replicas.get(asked.replica)
    if known is None or known.address == asked.address:
        return
    if known.uuid != asked.uuid or known.incarnation >= asked.incarnation:
        return
    silent_s = roll.last_heard(asked.replica, now)
    if asked.replica in linked and silent_s is not None and silent_s < LEASE_S:
        raise ChangeRefused(
            f"replica {asked.replica} of group {asked.group!r} runs already, at"
            f" {known.address}: is this directory a copy? Give it another number (rbReplica)"
            " and an empty directory"
        )


def refuse_second(
    asked: RegisterReplicaRequest,
    known: GroupEntry,
    former: Replica,
    roll: Roll | None,
    *,
    since: float,
    now: float,
) -> None:
    """An empty directory goes on for one that is lost; not for one that runs, which has the same
    number by mistake, nor one that holds something, and not yet for one that counts.

    `roll` is None where the controller has heard nobody of the group yet; `since` when this
    directory asked first. Raises `ChangeRefused`, `NumberTaken`.
    """
    what = f"replica {asked.replica} of group {asked.group!r} has the directory {former.uuid}"
    if asked.epoch or asked.end or asked.promised:
        raise ChangeRefused(
            f"{what}, and this one, {asked.uuid}, is not empty: start with an empty one, which"
            " gets everything from the leader"
        )
    if roll is None or now < roll.since + LEASE_S:
        raise NumberTaken(f"{what}, and it is not known yet whether that one runs")
    silent_s = roll.last_heard(asked.replica, now)
    if silent_s is not None and silent_s < LEASE_S:
        if now - silent_s <= since:
            raise NumberTaken(f"{what}, and it is not known yet whether that one runs")
        raise ChangeRefused(
            f"{what}, and runs at {former.address}: give this one, {asked.uuid}, a number that"
            " no replica had yet (rbReplica)"
        )
    if counts(known, asked.replica):
        raise NumberTaken(
            f"{what}, and may hold what no other has: bring that one back, or wait until"
            f" {known.min_in_sync} others are in sync, or give this one, {asked.uuid}, a number"
            " that no replica had yet (rbReplica)"
        )
