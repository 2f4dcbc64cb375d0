"""Times at which a controller fences and elects, by the heartbeats."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketbed.replication.election import Candidate
from rocketbed.replication.entry import GroupEntry, Policy, Replica
from rocketbed.replication.lease import (
    BEAT_S,
    DRIFT,
    LEASE_MAX_S,
    LEASE_S,
    MARGIN,
    MEMORY_S,
    Elect,
    Fence,
    Roll,
    Wait,
    leader_s,
)


def group(*, leader: int | None = 0, epoch: int = 3, **in_sync: int) -> GroupEntry:
    return GroupEntry(
        "g",
        Policy.MEMORY,
        2,
        replicas={number: Replica(f"u{number}", 1) for number in range(3)},
        epoch=epoch,
        leader=leader,
        in_sync={int(name[1:]): life for name, life in in_sync.items()},
    )


def test_leader_is_fenced_exactly_a_lease_after_its_beat() -> None:
    entry, roll = group(r0=1, r1=1), Roll(0.0)
    roll.record_beat(0, Candidate(1), 10.0)
    assert roll.next(entry, 10.0 + LEASE_S - 0.001) == Wait(10.0 + LEASE_S)
    assert roll.next(entry, 10.0 + LEASE_S) == Fence(0, 1)


def test_lease_of_an_unheard_replica_runs_from_the_beginning() -> None:
    entry, roll = group(r0=1, r1=1), Roll(5.0)
    assert roll.next(entry, 5.0) == Wait(5.0 + LEASE_MAX_S), "which it may have been granted"
    roll.record_beat(0, Candidate(2), 50.0)
    assert roll.next(entry, 5.5) == Wait(5.0 + LEASE_MAX_S)
    assert roll.next(entry, 50.0) == Fence(0, 1)


def test_departed_replica_is_fenced_unless_of_another_life() -> None:
    entry, roll = group(r0=1, r1=1), Roll(0.0)
    roll.record_beat(0, Candidate(1), 10.0)
    roll.record_death(0, 7)
    assert roll.next(entry, 10.1) == Wait(10.0 + LEASE_S)
    assert roll.last_heard(0, 10.1) == pytest.approx(0.1)
    roll.record_death(0, 1)
    assert roll.next(entry, 10.1) == Fence(0, 1)
    assert roll.last_heard(0, 10.1) is None
    assert roll.last_heard(1, 10.1) is None
    roll.record_beat(0, Candidate(1), 10.2)
    assert roll.next(entry, 10.3) == Wait(10.2 + LEASE_S)


def test_leader_of_an_earlier_controller_keeps_what_that_granted() -> None:
    """The first answer of this controller, which grants less, may be lost."""
    entry, roll = group(r0=1, r1=1), Roll(5.0, inherited=(0, 1))
    roll.record_beat(0, Candidate(1), 5.1)
    roll.record_beat(0, Candidate(1), 5.2)
    assert roll.next(entry, 5.3) == Wait(5.0 + LEASE_MAX_S)
    roll.record_beat(0, Candidate(1), 8.0)
    assert roll.next(entry, 8.1) == Wait(8.0 + LEASE_S)


def test_death_of_an_unheard_replica_is_believed() -> None:
    entry, roll = group(r0=1, r1=1), Roll(5.0)
    roll.record_death(0, 1)
    assert roll.next(entry, 5.1) == Fence(0, 1)
    assert roll.alive(5.1) == {}
    roll.record_beat(0, Candidate(1), 5.2)
    assert roll.next(entry, 5.3) == Wait(5.2 + LEASE_S)


def beats(roll: Roll, *lateness: float, replica: int = 0, at: float = 10.0) -> tuple[float, float]:
    """Record beats with these latenesses; return the time of the last one and its lease."""
    lease_s = roll.record_beat(replica, Candidate(1), at)
    for late_s in lateness:
        at += BEAT_S + late_s
        lease_s = roll.record_beat(replica, Candidate(1), at)
    return at, lease_s


def test_late_beats_lengthen_the_lease() -> None:
    entry, roll = group(r0=1, r1=1), Roll(0.0)
    assert beats(Roll(0.0), 0.3, 0.0, 0.35)[1] == LEASE_S, "two say nothing of the next"
    at, lease_s = beats(roll, 0.3, 0.2, 0.0, 0.25)
    assert lease_s == pytest.approx(MARGIN * 0.2)
    assert roll.next(entry, at + LEASE_S) == Wait(at + lease_s)
    assert roll.next(entry, at + lease_s) == Fence(0, 1)
    assert 0 in roll.alive(at + lease_s - 0.001)
    assert roll.alive(at + lease_s) == {}


def test_lease_has_a_longest_and_belongs_to_one_replica() -> None:
    roll = Roll(0.0)
    assert beats(roll, *[0.45] * 9)[1] == LEASE_MAX_S
    assert beats(roll, *[0.01] * 9, replica=1)[1] == LEASE_S


def test_punctual_beats_shorten_the_lease_again() -> None:
    roll = Roll(0.0)
    at, lease_s = beats(roll, 0.3, 0.3, 0.3)
    assert lease_s > LEASE_S
    assert beats(roll, *[0.0] * int((MEMORY_S + 1) / BEAT_S), at=at + BEAT_S)[1] == LEASE_S


def test_shorter_lease_does_not_end_before_an_earlier_one() -> None:
    """The answer that grants the shorter one may be lost."""
    entry, roll = group(r0=1, r1=1), Roll(0.0)
    at, lease_s = beats(roll, 0.3, 0.3, 0.3)
    until = at + lease_s
    while lease_s > LEASE_S:
        until, at = at + lease_s, at + BEAT_S
        lease_s = roll.record_beat(0, Candidate(1), at)
    assert roll.next(entry, until - 0.001) == Wait(until)
    assert roll.next(entry, until) == Fence(0, 1)


def test_outage_of_a_replica_is_no_lateness() -> None:
    """A process that is stopped again and again is no busy machine."""
    roll = Roll(0.0)
    assert beats(roll, *[LEASE_S] * 9)[1] == LEASE_S
    roll = Roll(0.0)
    at = 10.0
    for incarnation in range(1, 9):
        lease_s = roll.record_beat(0, Candidate(incarnation), at)
        at += 0.4
    assert lease_s == LEASE_S, "nor is a restart"


def test_new_controller_elects_only_after_hearing_all() -> None:
    roll = Roll(100.0)
    roll.record_beat(1, Candidate(1, 3, 50), 100.1)
    entry = group(leader=None, r0=1, r1=1)
    assert roll.next(entry, 100.2) == Wait(100.0 + LEASE_S)
    roll.record_beat(0, Candidate(1, 3, 90), 100.3)
    both = {0: Candidate(1, 3, 90), 1: Candidate(1, 3, 50)}
    assert roll.next(entry, 100.0 + LEASE_S) == Elect(both)
    assert roll.next(entry, 100.1 + LEASE_S) == Elect({0: both[0]}), "the other is silent again"
    assert roll.next(entry, 101.0) == Wait(None)
    new = group(leader=None, epoch=0, r1=1)
    assert roll.next(new, 100.2) == Elect(both), "a new group has a candidate already"


def test_ineligible_replicas_are_not_elected() -> None:
    roll = Roll(0.0)
    roll.record_beat(2, Candidate(1), 10.0)
    roll.record_beat(1, Candidate(2), 10.0)
    assert roll.next(group(leader=None, r0=1, r1=1), 10.0) == Wait(None)


def test_a_new_controller_grants_a_whole_lease() -> None:
    entry, roll = group(r0=1, r1=1), Roll(0.0)
    roll.record_beat(0, Candidate(1, epoch=2, end=50), 5.0)
    roll.since = 5.0 + LEASE_S
    assert roll.next(entry, roll.since) == Wait(roll.since + LEASE_S)


def test_the_end_of_a_dead_replica_is_remembered() -> None:
    roll = Roll(0.0)
    roll.record_beat(0, Candidate(1, epoch=2, end=50), 5.0)
    roll.record_death(0, 1)
    assert roll.alive(5.0) == {}
    assert roll.last_end(0) == (2, 50)
    assert roll.last_end(1) is None


@given(
    lease_s=st.floats(LEASE_S, LEASE_MAX_S),
    sent=st.floats(0, 1e6),
    way=st.floats(0, 10),
    leader_rate=st.floats(1 - DRIFT, 1 + DRIFT),
    controller_rate=st.floats(1 - DRIFT, 1 + DRIFT),
)
def test_leader_lease_ends_before_the_controllers(
    lease_s: float, sent: float, way: float, leader_rate: float, controller_rate: float
) -> None:
    """In true time, whatever the clocks' rates and however long the heartbeat travels."""
    assert sent + leader_s(lease_s) / leader_rate < sent + way + lease_s / controller_rate
