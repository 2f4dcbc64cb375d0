"""Changes of a group's register entry: each allowed one, and the refused ones."""

import pytest

from rocketbed.replication.election import (
    Candidate,
    Proposal,
    altered,
    counts,
    elected,
    fenced,
    forced,
    handed_over,
    registered,
)
from rocketbed.replication.entry import GroupEntry, Policy, Replica
from rocketbed.replication.errors import ChangeRefused, Superseded


def group(*, members: int = 3, min_in_sync: int = 2, leader: int | None = None) -> GroupEntry:
    """A group of three replicas; the first `in_sync` of them are in sync."""
    entry = GroupEntry(
        "g",
        Policy.MEMORY,
        min_in_sync,
        replicas={number: Replica(f"u{number}", 1) for number in range(3)},
        in_sync=dict.fromkeys(range(members), 1),
    )
    if leader is None:
        return entry
    led = elected(entry, {leader: Candidate(1)})
    assert led is not None
    return led


def proposal(entry: GroupEntry, **in_sync: int) -> Proposal:
    assert entry.leader is not None
    members = {int(number[1:]): life for number, life in in_sync.items()}
    return Proposal(entry.leader, entry.epoch, entry.version, members)


def test_first_replica_of_a_group_is_its_first_member() -> None:
    first = registered(GroupEntry("g", Policy.FSYNC, 1), 7, Replica("u", 3), lossless=False)
    assert first.in_sync == {7: 3}
    second = registered(first, 8, Replica("v", 1), lossless=True)
    assert second.in_sync == {7: 3}
    assert second.version == 2


def test_a_restart_ends_membership_and_mastership() -> None:
    after = registered(group(leader=0), 0, Replica("u0", 2), lossless=True)
    assert (after.leader, after.in_sync, after.eligible) == (None, {1: 1, 2: 1}, {})


def test_complete_restarted_replica_stays_eligible_at_the_minimum() -> None:
    after = registered(group(members=2), 1, Replica("u1", 2), lossless=True)
    assert (after.in_sync, after.eligible) == ({0: 1}, {1: 2})


def test_replica_with_possible_loss_is_only_known() -> None:
    after = registered(group(members=2), 1, Replica("u1", 2), lossless=False)
    assert (after.in_sync, after.eligible) == ({0: 1}, {})
    assert after.last_known == {1}


def test_new_directory_under_a_counting_number_is_refused() -> None:
    with pytest.raises(ChangeRefused, match="replica 1 of group 'g' counts with another directory"):
        registered(group(), 1, Replica("new", 2), lossless=True)


def test_new_directory_continues_a_number_in_a_later_life() -> None:
    after_fence = fenced(group(), 1)
    assert not counts(after_fence, 1)
    with pytest.raises(ChangeRefused, match="life 1 of replica 1"):
        registered(after_fence, 1, Replica("new", 1), lossless=True)
    after = registered(after_fence, 1, Replica("new", 2), lossless=True)
    assert after.replicas[1] == Replica("new", 2)
    assert (after.in_sync, after.eligible) == (after_fence.in_sync, after_fence.eligible)


def test_unfit_replica_leads_where_no_other_can() -> None:
    alone = fenced(group(), 0)
    bad, good = Candidate(1, 9, 900, is_unfit=True), Candidate(1, 9, 100)
    chosen = elected(alone, {1: bad, 2: good})
    assert chosen is not None
    assert chosen.leader == 2
    chosen = elected(alone, {1: bad})
    assert chosen is not None
    assert chosen.leader == 1


@pytest.mark.parametrize("life", [0, 1])
def test_a_copied_directory_is_refused(life: int) -> None:
    with pytest.raises(ChangeRefused, match=f"life {life} of replica 1 .* is its directory a copy"):
        registered(group(), 1, Replica("u1", life), lossless=True)


def test_a_leader_changes_the_set() -> None:
    entry = group(leader=0)
    without = altered(entry, proposal(entry, r0=1, r1=1))
    assert (without.in_sync, without.eligible) == ({0: 1, 1: 1}, {})
    alone = altered(without, proposal(without, r0=1))
    assert (alone.in_sync, alone.eligible) == ({0: 1}, {1: 1})
    grown = altered(alone, proposal(alone, r0=1, r2=1))
    assert (grown.in_sync, grown.eligible) == ({0: 1, 2: 1}, {})
    assert grown.version == entry.version + 3


def test_request_of_another_version_or_leader_is_superseded() -> None:
    entry = group(leader=0)
    proposed = proposal(entry, r0=1, r1=1)
    for changed in (fenced(entry, 2), altered(entry, proposed), group(leader=1)):
        with pytest.raises(Superseded):
            altered(changed, proposed)


def test_unregistered_life_does_not_join() -> None:
    entry = group(members=2, leader=0)
    with pytest.raises(ChangeRefused, match="no registered life 2"):
        altered(entry, proposal(entry, r0=1, r1=1, r2=2))


def test_a_leader_cannot_leave_out_itself() -> None:
    entry = group(leader=0)
    with pytest.raises(ChangeRefused, match="proposes a set without itself"):
        altered(entry, proposal(entry, r1=1, r2=1))


def test_longest_log_of_the_newest_epoch_is_elected() -> None:
    alive = {0: Candidate(1, 3, 900), 1: Candidate(1, 4, 700), 2: Candidate(1, 4, 600)}
    led = elected(group(), alive)
    assert led is not None
    assert (led.leader, led.epoch, led.in_sync) == (1, 1, {0: 1, 1: 1, 2: 1})


def test_eligible_replicas_lead_only_without_living_members() -> None:
    entry = fenced(group(members=2), 1)
    alive = {1: Candidate(1, 9, 999), 2: Candidate(1, 9, 999)}
    led = elected(entry, alive)
    assert led is not None
    assert led.leader == 1
    led = elected(entry, {**alive, 0: Candidate(1)})
    assert led is not None
    assert led.leader == 0


def test_another_life_or_an_outsider_is_not_elected() -> None:
    assert elected(group(members=2), {1: Candidate(2), 2: Candidate(1)}) is None


def test_a_fenced_leader_leads_no_longer() -> None:
    after = fenced(group(leader=0), 0)
    assert (after.leader, after.in_sync, after.epoch) == (None, {1: 1, 2: 1}, 1)
    assert fenced(after, 0) is after


def test_a_leader_hands_over_to_a_member() -> None:
    after = handed_over(group(leader=0), leader=0, epoch=1, to=2)
    assert (after.leader, after.epoch, after.in_sync) == (2, 2, {0: 1, 1: 1, 2: 1})
    with pytest.raises(Superseded):
        handed_over(after, leader=0, epoch=1, to=1)
    with pytest.raises(ChangeRefused, match="is not in sync"):
        handed_over(group(members=2, leader=0), leader=0, epoch=1, to=2)


def test_election_is_forced_only_without_complete_replicas() -> None:
    entry, alive = group(members=1), {0: Candidate(1), 2: Candidate(1)}
    with pytest.raises(ChangeRefused, match=r"replicas \[0\] .* have lost nothing"):
        forced(entry, 2, alive)
    after_force = forced(entry, 2, {2: Candidate(1)})
    assert (after_force.leader, after_force.in_sync, after_force.eligible) == (2, {2: 1}, {})
    assert after_force.unclean == (after_force.epoch,)
    lost = registered(entry, 0, Replica("u0", 2), lossless=False)
    assert (lost.in_sync, lost.eligible) == ({}, {})
    assert lost.last_known == {0}
    assert elected(lost, {0: Candidate(2), 1: Candidate(1)}) is None
    with pytest.raises(ChangeRefused, match="no replica 5"):
        forced(lost, 5, alive)
    for absent in ({}, {2: Candidate(7)}):
        with pytest.raises(ChangeRefused, match=r"2 .* is not there: start it first"):
            forced(lost, 2, absent)
    chosen = forced(lost, 2, alive)
    assert (chosen.leader, chosen.epoch, chosen.unclean) == (2, 1, (1,))
    longer = {1: Candidate(1, 3, 500), 2: Candidate(1, 3, 400)}
    with pytest.raises(ChangeRefused, match=r"replica 1 .* longer log, up to 500 in epoch 3"):
        forced(lost, 2, longer)
    assert forced(lost, 1, longer).leader == 1
