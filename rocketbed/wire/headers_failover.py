"""Headers of failover's controller; all ours (replication.md 7.8, 7.9). Answers carry a group's
entry as their body, JSON."""

from dataclasses import dataclass

from rocketbed.wire.encoding.fields import Header, Int, Long


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterReplicaRequest(Header):
    """32101."""

    group: str
    replica: Int
    uuid: str
    incarnation: Long
    address: str
    haAddress: str
    lossless: bool
    replicas: Int
    """How many the group is to have; of meaning for its first replica only."""
    policy: str
    """`memory` or `fsync`; that of its group, or it is refused."""
    founds: bool
    """Whether it may be the first of its group."""
    groupUid: str
    """Of the group that it belongs to; empty if it belongs to none yet."""
    promised: Int
    """No leader of a lower epoch is followed."""
    epoch: Int
    """Newest of its log."""
    end: Long
    """Of its log, bytes."""
    leads: bool | None = None
    """It led that epoch, as far as it knows: all of the epoch that there is, it has."""
    op: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatRequest(Header):
    """32102."""

    group: str
    replica: Int
    incarnation: Long
    epoch: Int
    """Newest of its log."""
    end: Long
    """Of its log, bytes."""
    version: Long
    """Of the entry that it knows; an answer with a newer one has it as its body."""
    unfit: bool | None = None
    """It would be a bad leader: its disk is full, or its log damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeResponse(Header):
    """Answer to 32101 of a new directory under a number that is known, with nothing registered:
    ask again with a higher life. An entry as the body has no such field."""

    lifeAbove: Long | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterInSyncRequest(Header):
    """32103."""

    group: str
    leader: Int
    epoch: Int
    version: Long
    inSync: str
    """`replica:incarnation`, separated by commas."""
    op: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOverRequest(Header):
    """32104."""

    group: str
    leader: Int
    epoch: Int
    to: Int
    op: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRequest(Header):
    """32105, 32106: one replica; without an incarnation, its newest."""

    group: str
    replica: Int
    incarnation: Long | None = None
    op: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEntryResponse(Header):
    """Answer to all of them but 32107, and the notice 32108: whose entry the body is."""

    group: str
    version: Long
    rival: bool | None = None
    """To a leader that beats: somebody else who may lead is heard."""
