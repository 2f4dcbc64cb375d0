"""Duration of a leader's lease, and the time at which the controller may name another one
(replication.md 7.8). Pure.

Safety does not depend on any of this: it bounds the time for which two nodes believe that they
lead. Beats that came late tell a starved process from a dead one: they lengthen the lease.
"""

from collections import defaultdict, deque
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Final

from rocketbed.replication.election import Candidate, elected
from rocketbed.replication.entry import GroupEntry

BEAT_S: Final = 0.1
"""Interval of a replica's beats."""
LEASE_S: Final = 0.6
"""Shortest lease by the controller's clock: no replica is taken for dead before this has passed
since its beat."""
LEASE_MAX_S: Final = 2.4
"""Longest lease that is granted."""
LATE_S: Final = 0.05
"""Least lateness of a beat that is remembered."""
MEMORY_S: Final = 60.0
"""Time for which it is."""
RANK: Final = 3
"""Number of late beats that it takes: one or two say nothing of the next."""
MARGIN: Final = 6.0
"""Ratio of the lease to the lateness that at least `RANK` beats had."""
GUARD_S: Final = 0.02
"""Longest time from a leader's reading of its clock to the action that it allows."""
DRIFT: Final = 0.001
"""Clocks run at a rate between 1 - DRIFT and 1 + DRIFT; NTP corrects by half of it at most."""


def leader_s(lease_s: float) -> float:
    """Return a granted lease by a leader's clock, from before it sent the beat that was answered:
    578.8 ms of 600."""
    return lease_s * (1 - DRIFT) / (1 + DRIFT) - GUARD_S


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
    lease_s: float = LEASE_S
    """Lease that the answer to it granted."""
    may_act_until: float = float("-inf")
    """End of the last lease that its replica may hold: if the answer to it is lost, an earlier
    one."""

    @property
    def until(self) -> float:
        return self.at + self.lease_s


@dataclass(slots=True)
class Roll:
    """Latest beats of the replicas of one group, in seconds of the controller's clock."""

    since: float
    """Time at which this controller became active, or ran again after a suspension: it does not
    know of earlier beats."""
    inherited: tuple[int, int] | None = None
    """Leader that an earlier controller may have granted a lease, which may be the longest: replica
    and incarnation."""
    _beats: dict[int, _Beat] = field(default_factory=dict)
    _late: dict[int, deque[tuple[float, float]]] = field(default_factory=lambda: defaultdict(deque))
    """Late beats of each replica: time, lateness."""

    def record_beat(self, replica: int, candidate: Candidate, now: float) -> float:
        """Record a beat; return the lease that its answer grants.

        An interval that is longer than the lease is an outage, as of a process that was stopped: it
        says nothing of a busy machine.
        """
        former, late = self._beats.get(replica), self._late[replica]
        is_inherited = self.inherited == (replica, candidate.incarnation)
        held_until = self.since + LEASE_MAX_S if is_inherited else now
        if former is not None and former.candidate.incarnation == candidate.incarnation:
            held_until = former.may_act_until
            late_s = now - max(former.at, self.since) - BEAT_S
            if late_s > LATE_S and now <= former.until:
                late.append((now, late_s))
        while late and late[0][0] < now - MEMORY_S:
            late.popleft()
        lease_s = LEASE_S
        if len(late) >= RANK:
            typical = nlargest(RANK, (late_s for _, late_s in late))[-1]
            lease_s = round(min(max(LEASE_S, MARGIN * typical), LEASE_MAX_S), 3)
        held_until = max(held_until, now + lease_s)
        self._beats[replica] = _Beat(candidate, now, lease_s, held_until)
        return lease_s

    def record_death(self, replica: int, incarnation: int) -> None:
        """Record that its machine reports that it does not run any more."""
        beat = self._beats.get(replica)
        if beat is None or beat.candidate.incarnation == incarnation:
            candidate = Candidate(incarnation) if beat is None else beat.candidate
            self._beats[replica] = _Beat(candidate, float("-inf"))

    def alive(self, now: float) -> dict[int, Candidate]:
        """Return the replicas with a beat within the lease."""
        return {number: beat.candidate for number, beat in self._beats.items() if now < beat.until}

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
            return self.since + LEASE_MAX_S  # an earlier controller may have granted as much
        if beat.at == float("-inf"):
            return beat.at  # its machine reports that it is dead
        return max(beat.may_act_until, self.since + beat.lease_s)
