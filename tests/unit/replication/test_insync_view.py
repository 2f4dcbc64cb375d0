"""Confirmed offsets of a leader, and its requests to the register."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

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


def drawn_entry(random: Random, **changes: Any) -> GroupEntry:
    lives = {number: random.randrange(1, 3) for number in range(1, 5)}
    in_sync = {number: lives[number] for number in lives if number == 1 or random.random() < 0.5}
    replicas = {number: Replica(f"u{number}", life) for number, life in lives.items()}
    values: dict[str, Any] = {"epoch": 3, "version": 5, "leader": 1, "in_sync": in_sync} | changes
    return GroupEntry("g", Policy.MEMORY, random.randrange(1, 3), replicas=replicas, **values)


@pytest.mark.parametrize("seed", range(120))
def test_confirms_nothing_that_a_member_lacks(seed: int) -> None:
    random = Random(seed)
    entry = drawn_entry(random)
    view, ends, confirm = InSyncView(1, START, entry), dict[int, tuple[int, int]](), 0
    pending: tuple[int, dict[int, int]] | None = None
    joining: tuple[int, int] | None = None
    request: Any = None
    for _ in range(40):
        draw = random.random()
        number, life = random.randrange(2, 5), random.randrange(1, 3)
        if draw < 0.4:
            position = life, random.randrange(START - 2, START + 6)
            view.acknowledged(number, *position)
            ends[number] = max(ends.get(number, position), position)
        elif draw < 0.5 and pending is None and joining is None:
            joining = view.joining = number, ends.get(number, (life, 0))[0]
        elif draw < 0.65 and pending is None:
            members = dict(entry.in_sync)
            if number in members:
                del members[number]
                request = view.leave(number)
            elif number in ends:
                members[number] = ends[number][0]
                request, joining = view.join(number), None
            else:
                continue
            pending = entry.version, members
            values = request.leader, request.epoch, request.version, request.in_sync
            assert values == (1, 3, *pending)
        elif draw < 0.75:
            newer = drawn_entry(random, version=entry.version + random.randrange(-1, 2))
            if random.random() < 0.3:
                epoch, leader = random.choice(((4, 1), (3, 0), (2, 1)))
                in_sync = {**newer.in_sync, leader: 1}
                assert not view.read(
                    replace(newer, epoch=epoch, leader=leader, in_sync=in_sync, eligible={})
                )
            else:
                assert view.read(newer)
                entry = newer if newer.version > entry.version else entry
                pending = None if pending and entry.version > pending[0] else pending
        elif draw < 0.8 and request is not None:
            view.refused(replace(request, version=request.version + 1))
            if random.random() < 0.5:
                view.refused(request)
                pending = None
        own_end = START + random.randrange(8)
        need = {*entry.in_sync.items(), *(pending[1].items() if pending else ())}
        need |= {joining} if joining else set()
        assert view.need() == need
        has_enough = len(entry.in_sync) >= entry.min_in_sync
        if has_enough:
            others = sorted(need - {(1, entry.in_sync[1])})
            held = [ends[at][1] if ends.get(at, (0,))[0] == life else 0 for at, life in others]
            confirm = max(confirm, min([own_end, *held]))
        assert view.has_enough() == has_enough
        assert (view.raise_confirm(own_end), view.confirm) == (confirm, confirm)
        for number in range(2, 5):
            life, end = ends.get(number, (0, 0))
            fits = number not in entry.in_sync and entry.replicas[number].incarnation == life
            has_marker = fits and end > START
            assert view.has_marker(number) == has_marker
            assert view.may_join(number) == (has_marker and end >= confirm)
