"""Confirmed offsets of a leader, and its requests to the register."""

from rocketbed.replication.election import Candidate, altered, elected, fenced, registered
from rocketbed.replication.entry import GroupEntry, Policy, Replica
from rocketbed.replication.insync import InSyncView

START = 100


def entry_of(*members: int) -> GroupEntry:
    """Entry of three replicas led by 0, two of which have to be in sync."""
    entry = GroupEntry(
        "g",
        Policy.MEMORY,
        2,
        replicas={number: Replica(f"u{number}", 1) for number in range(3)},
        in_sync=dict.fromkeys(members, 1),
    )
    led = elected(entry, {0: Candidate(1)})
    assert led is not None
    return led


def view_of(*members: int) -> InSyncView:
    return InSyncView(0, START, entry_of(*members))


def test_the_slowest_member_sets_the_confirm_offset() -> None:
    view = view_of(0, 1, 2)
    view.acknowledged(1, 1, 300)
    assert view.raise_confirm(400) == 0
    view.acknowledged(2, 1, 200)
    assert view.raise_confirm(400) == 200
    view.acknowledged(2, 1, 500)
    assert view.raise_confirm(400) == 300


def test_an_older_acknowledgement_changes_nothing() -> None:
    view = view_of(0, 1)
    view.acknowledged(1, 1, 300)
    view.acknowledged(1, 1, 200)
    view.acknowledged(1, 0, 900)
    assert view.raise_confirm(400) == 300


def test_another_life_does_not_speak_for_a_member() -> None:
    view = view_of(0, 1)
    view.acknowledged(1, 2, 300)
    assert view.raise_confirm(400) == 0


def test_below_the_minimum_nothing_is_confirmed() -> None:
    view = view_of(0)
    assert not view.has_enough()
    assert view.raise_confirm(400) == 0


def test_requested_set_needs_all_and_lowers_no_minimum() -> None:
    view = view_of(0)
    view.acknowledged(1, 1, 300)
    view.join(1)
    assert view.need() == {(0, 1), (1, 1)}
    assert view.raise_confirm(400) == 0
    wider = view_of(0, 1)
    wider.acknowledged(1, 1, 300)
    wider.leave(1)
    assert wider.raise_confirm(400) == 300
    assert wider.need() == {(0, 1), (1, 1)}


def test_joining_replica_has_the_marker_and_all_confirmed() -> None:
    view = view_of(0, 1)
    assert not view.may_join(2)
    view.acknowledged(2, 1, START)
    assert not view.may_join(2)
    view.acknowledged(2, 1, START + 1)
    assert view.may_join(2)
    view.acknowledged(1, 1, 300)
    view.raise_confirm(400)
    assert not view.may_join(2)
    view.acknowledged(2, 1, 300)
    assert view.may_join(2)
    view.acknowledged(2, 2, 300)
    assert not view.may_join(2), "a life that is not registered"
    assert not view.may_join(1), "a member already"


def test_set_below_its_minimum_grows_without_confirmations() -> None:
    view = view_of(0)
    view.acknowledged(1, 1, 200)
    assert view.may_join(1)


def test_only_a_newer_version_ends_a_request() -> None:
    view = view_of(0, 1)
    view.acknowledged(2, 1, 300)
    request = view.join(2)
    assert view.read(view.entry)
    assert view.pending is request
    assert view.read(altered(view.entry, request))
    assert view.pending is None
    assert view.entry.in_sync == {0: 1, 1: 1, 2: 1}


def test_an_older_entry_is_passed_over() -> None:
    view = view_of(0, 1)
    old = view.entry
    new = registered(old, 2, Replica("u2", 2), lossless=True)
    assert view.read(new)
    assert view.read(old)
    assert view.entry is new


def test_a_refused_request_is_over() -> None:
    view = view_of(0, 1)
    view.acknowledged(2, 1, 300)
    request = view.join(2)
    view.refused(request)
    assert view.pending is None
    view.leave(1)
    view.refused(request)
    assert view.pending is not None


def test_other_leader_is_reported() -> None:
    view = view_of(0, 1)
    assert not view.read(fenced(view.entry, 0))
