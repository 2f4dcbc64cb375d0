"""Duration of a leader's lease, and the time at which the controller may name another one
(replication.md 7.8). Pure.

Safety does not depend on any of this: it bounds the time for which two nodes believe that they
lead.
"""

from dataclasses import dataclass, field
from typing import Final

from rocketbed.replication.election import Candidate, elected
from rocketbed.replication.entry import GroupEntry

BEAT_S: Final = 0.1
"""Interval of a replica's beats."""
LEASE_S: Final = 0.6
"""Lease by the controller's clock: no replica is taken for dead before this has passed since its
beat."""
GUARD_S: Final = 0.02
"""Longest time from a leader's reading of its clock to the action that it allows."""
DRIFT: Final = 0.001
"""Clocks run at a rate between 1 - DRIFT and 1 + DRIFT; NTP corrects by half of it at most."""
LEADER_S: Final = LEASE_S * (1 - DRIFT) / (1 + DRIFT) - GUARD_S
"""Lease by a leader's clock, from before it sent the beat that was answered: 578.8 ms."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Take the leader for dead."""

    replica: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Elect:
    """Name a leader: one of these can lead."""

    alive: dict[int, Candidate]


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing before this moment, or before the next beat (None)."""

    until: float | None


@dataclass(frozen=True, slots=True)
class _Beat:
    candidate: Candidate
    at: float


@dataclass(slots=True)
class Roll:
    """Latest beats of the replicas of one group, in seconds of the controller's clock."""

    since: float
    """Time at which this controller became active, or ran again after a suspension: it does not
    know of earlier beats."""
    _beats: dict[int, _Beat] = field(default_factory=dict)

    def record_beat(self, replica: int, candidate: Candidate, now: float) -> None:
        """Record a beat."""
        self._beats[replica] = _Beat(candidate, now)

    def record_death(self, replica: int, incarnation: int) -> None:
        """Record that its machine reports that it does not run any more."""
        beat = self._beats.get(replica)
        if beat is not None and beat.candidate.incarnation == incarnation:
            self._beats[replica] = _Beat(beat.candidate, float("-inf"))

    def alive(self, now: float) -> dict[int, Candidate]:
        """Return the replicas with a beat within the lease."""
        return {
            number: beat.candidate
            for number, beat in self._beats.items()
            if now < beat.at + LEASE_S
        }

    def last_heard(self, replica: int, now: float) -> float | None:
        """Return the seconds since a replica's last beat; None without any, or if it is known to be
        dead."""
        beat = self._beats.get(replica)
        return None if beat is None or beat.at == float("-inf") else now - beat.at

    def last_end(self, replica: int) -> tuple[int, int] | None:
        """Return the newest epoch and end of a replica's log by its last beat, in any
        incarnation."""
        beat = self._beats.get(replica)
        return None if beat is None else (beat.candidate.epoch, beat.candidate.end)

    def next(self, entry: GroupEntry, now: float) -> Fence | Elect | Wait:
        """Return the controller's next step."""
        if entry.leader is not None:
            incarnation = entry.in_sync[entry.leader]
            until = self._may_act_until(entry.leader, incarnation)
            return Wait(until) if now < until else Fence(entry.leader, incarnation)
        if entry.epoch and now < self.since + LEASE_S:
            return Wait(self.since + LEASE_S)  # all live replicas have sent a beat by then
        alive = self.alive(now)
        return Wait(None) if elected(entry, alive) is None else Elect(alive)

    def _may_act_until(self, replica: int, incarnation: int) -> float:
        beat = self._beats.get(replica)
        if beat is None or beat.candidate.incarnation != incarnation:
            return self.since + LEASE_S
        if beat.at == float("-inf"):
            return beat.at  # its machine reports that it is dead
        return max(beat.at, self.since) + LEASE_S
