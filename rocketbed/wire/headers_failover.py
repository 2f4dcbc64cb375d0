"""Headers of failover's controller, rocketbed's own (replication.md 7.8, 7.9). The body of an
answer is a group's entry, JSON."""

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
    """Number of replicas that the group is to have; used only from its first replica."""
    policy: str
    """`memory` or `fsync`; must be that of its group."""
    founds: bool
    """True if it may be the first of its group."""
    groupUid: str
    """Uid of the group that it belongs to; empty if it belongs to none yet."""
    promised: Int
    """Epoch below which it follows no leader."""
    epoch: Int
    """Newest epoch of its log."""
    end: Long
    """End of its log, bytes."""
    leads: bool | None = None
    """True if it led that epoch, as far as it knows, and so has the whole of it."""
    op: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatRequest(Header):
    """32102."""

    group: str
    replica: Int
    incarnation: Long
    epoch: Int
    """Newest epoch of its log."""
    end: Long
    """End of its log, bytes."""
    version: Long
    """Version of the entry that it knows; an answer with a newer entry has it as its body."""
    unfit: bool | None = None
    """True if it would be a bad leader: its disk is full, or its log damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeResponse(Header):
    """Answer to 32101 of a new directory under a known number, with nothing registered: ask again
    with a higher life. It is told from an entry by this field."""

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
    """Answer to all of them except 32107, and the notice 32108: the group of the entry in the
    body."""

    group: str
    version: Long
    rival: bool | None = None
    """Set for a leader that beats: another candidate for leader sends beats."""
    lease: Int | None = None
    """Lease that the answer to a beat grants, ms; 600 if it is absent."""
