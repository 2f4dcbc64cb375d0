"""What the register holds of one replicated group. Pure.

Replicas are named by their number in the group. A replica's *incarnation* is counted up at each of
its starts, so that nothing said of one life is taken for the next (replication.md 7.5).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

Members = Mapping[int, int]
"""Incarnation by replica."""
EPOCH_MAX: Final = 1 << 30
"""No group sees so many elections; frames and headers have 32 bits for one."""


class Policy(StrEnum):
    """What a replica has done with bytes before it acknowledges them."""

    MEMORY = "memory"
    """Written them."""
    FSYNC = "fsync"
    """Synced them."""

    def held(self, *, written: int, flushed: int) -> int:
        """End of what a replica may acknowledge, of what it has written and synced; bytes."""
        return flushed if self is Policy.FSYNC else written


@dataclass(frozen=True, slots=True)
class Replica:
    """One that registered."""

    uuid: str
    """Made with its data directory; another one under the same number is another replica."""
    incarnation: int
    address: str = ""
    """Where clients reach it, `host:port`."""
    ha_address: str = ""
    """Where replicas reach it, `host:port`."""


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """The state of one group; every change is one higher version of it.

    Invariant: whoever is in `in_sync` or `eligible` holds every confirmed byte.
    """

    name: str
    policy: Policy
    min_in_sync: int
    """Members of `in_sync`, its leader among them, below which nothing is confirmed."""
    replicas: Mapping[int, Replica] = field(default_factory=dict)
    epoch: int = 0
    """Of the newest election; 0 before the first."""
    version: int = 0
    leader: int | None = None
    """Invariant: a member of `in_sync`."""
    in_sync: Members = field(default_factory=dict)
    eligible: Members = field(default_factory=dict)
    """Those that left `in_sync` when it was at its minimum: complete, as nothing was confirmed
    since. Invariant: empty while `in_sync` is not below its minimum; disjoint from it."""
    last_known: frozenset[int] = frozenset()
    """Former members that may have lost bytes; the last hope when nobody else is left."""
    unclean: tuple[int, ...] = ()
    """Epochs whose leader an operator forced: bytes may have been lost there."""
    uid: str = ""
    """Directory and life of its founder: a group that began anew, in another register or an empty
    one, is another group, whatever its name and epochs."""
    op: str = ""
    """The request that made this version; its repetition changes nothing."""

    def __post_init__(self) -> None:
        assert self.leader is None or self.leader in self.in_sync, self
        assert not (self.eligible and len(self.in_sync) >= self.min_in_sync), self
        assert not self.in_sync.keys() & self.eligible.keys(), self

    def is_registered(self, replica: int, incarnation: int) -> bool:
        """Whether this is the newest life of a replica."""
        known = self.replicas.get(replica)
        return known is not None and known.incarnation == incarnation
