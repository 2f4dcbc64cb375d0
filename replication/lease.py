"""How long a leader may act, and when the controller may name another one (replication.md 7.8).
Pure.

Safety does not depend on any of this: it bounds how long two nodes believe that they lead.
"""

from dataclasses import dataclass, field
from typing import Final

from rocketbed.replication.election import Candidate, elected
from rocketbed.replication.entry import GroupEntry

BEAT_S: Final = 0.1
"""How often a replica says that it is alive."""
LEASE_S: Final = 0.6
"""The controller, by its clock: whoever was heard is not taken for dead before this is over."""
GUARD_S: Final = 0.02
"""From a leader's look at its clock to what it does on the strength of it."""
DRIFT: Final = 0.001
"""Clocks run by a rate between 1 - DRIFT and 1 + DRIFT; NTP corrects by half of it at most."""
LEADER_S: Final = LEASE_S * (1 - DRIFT) / (1 + DRIFT) - GUARD_S
"""A leader, by its clock, from before it sent the beat that was answered: 578.8 ms."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Take the leader for dead."""

    replica: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Elect:
    """Name a leader: one of these can."""

    alive: dict[int, Candidate]


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before this moment, or before something is heard (None)."""

    until: float | None


@dataclass(frozen=True, slots=True)
class _Heard:
    candidate: Candidate
    at: float


@dataclass(slots=True)
class Roll:
    """Which replicas of one group were heard when, in seconds of the controller's clock."""

    since: float
    """When this controller became the active one, or ran again after it had stood still: what was
    to be heard before, it does not know."""
    _heard: dict[int, _Heard] = field(default_factory=dict)

    def heard(self, replica: int, candidate: Candidate, now: float) -> None:
        """A replica is alive."""
        self._heard[replica] = _Heard(candidate, now)

    def gone(self, replica: int, incarnation: int) -> None:
        """Its machine says that it does not run any more."""
        known = self._heard.get(replica)
        if known is not None and known.candidate.incarnation == incarnation:
            self._heard[replica] = _Heard(known.candidate, float("-inf"))

    def alive(self, now: float) -> dict[int, Candidate]:
        """Who was heard within the lease."""
        return {
            number: one.candidate for number, one in self._heard.items() if now < one.at + LEASE_S
        }

    def last_heard(self, replica: int, now: float) -> float | None:
        """Seconds since a replica was heard; None if it never was, or is gone."""
        known = self._heard.get(replica)
        return None if known is None or known.at == float("-inf") else now - known.at

    def last_end(self, replica: int) -> tuple[int, int] | None:
        """Newest epoch and end of the log of a replica, as it said last in any life."""
        known = self._heard.get(replica)
        return None if known is None else (known.candidate.epoch, known.candidate.end)

    def next(self, entry: GroupEntry, now: float) -> Fence | Elect | Wait:
        """What the controller has to do."""
        if entry.leader is not None:
            incarnation = entry.in_sync[entry.leader]
            until = self._may_act_until(entry.leader, incarnation)
            return Wait(until) if now < until else Fence(entry.leader, incarnation)
        if entry.epoch and now < self.since + LEASE_S:
            return Wait(self.since + LEASE_S)  # all that are alive are heard until then
        alive = self.alive(now)
        return Wait(None) if elected(entry, alive) is None else Elect(alive)

    def _may_act_until(self, replica: int, incarnation: int) -> float:
        known = self._heard.get(replica)
        if known is None or known.candidate.incarnation != incarnation:
            return self.since + LEASE_S
        if known.at == float("-inf"):
            return known.at  # its machine says that it is gone
        return max(known.at, self.since) + LEASE_S
