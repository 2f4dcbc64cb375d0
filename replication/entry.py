"""The register's entry of one replicated group. Pure.

Replicas are named by their number in the group. A replica's *incarnation* is counted up at each of
its starts, so that a statement about one is never taken for a statement about the next
(replication.md 7.5).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

Members = Mapping[int, int]
"""Incarnation by replica."""
EPOCH_MAX: Final = 1 << 30
"""No group has so many elections; frames and headers have 32 bits for an epoch."""


class Policy(StrEnum):
    """Condition under which a replica acknowledges bytes."""

    MEMORY = "memory"
    """They are written."""
    FSYNC = "fsync"
    """They are synced."""

    def held(self, *, written: int, flushed: int) -> int:
        """Return the end, bytes, of what a replica with these ends may acknowledge."""
        return flushed if self is Policy.FSYNC else written


@dataclass(frozen=True, slots=True)
class Replica:
    """A registered replica."""

    uuid: str
    """Random, created with its data directory; another one under the same number is another
    replica."""
    incarnation: int
    address: str = ""
    """Address for clients, `host:port`."""
    ha_address: str = ""
    """Address for replicas, `host:port`."""


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """State of one group; every change makes a higher version of it.

    Invariant: every replica in `in_sync` or `eligible` holds every confirmed byte.
    """

    name: str
    policy: Policy
    min_in_sync: int
    """Least number of members of `in_sync`, with its leader, for anything to be confirmed."""
    replicas: Mapping[int, Replica] = field(default_factory=dict)
    epoch: int = 0
    """Of the newest election; 0 before the first."""
    version: int = 0
    leader: int | None = None
    """Invariant: a member of `in_sync`."""
    in_sync: Members = field(default_factory=dict)
    eligible: Members = field(default_factory=dict)
    """Replicas that left `in_sync` when it was at its minimum: complete, as nothing was confirmed
    since. Invariant: empty while `in_sync` is not below its minimum; disjoint from it."""
    last_known: frozenset[int] = frozenset()
    """Former members that may have lost bytes; the last resort if no other replica is left."""
    unclean: tuple[int, ...] = ()
    """Epochs whose leader an operator forced: bytes may have been lost there."""
    uid: str = ""
    """Directory and incarnation of its founder: a group that was founded again, in another register
    or an empty one, is another group, whatever its name and epochs."""
    op: str = ""
    """Request that made this version; its repetition changes nothing."""

    def __post_init__(self) -> None:
        assert self.leader is None or self.leader in self.in_sync, self
        assert not (self.eligible and len(self.in_sync) >= self.min_in_sync), self
        assert not self.in_sync.keys() & self.eligible.keys(), self

    def is_registered(self, replica: int, incarnation: int) -> bool:
        """True if this is the newest incarnation of a replica."""
        registered = self.replicas.get(replica)
        return registered is not None and registered.incarnation == incarnation
