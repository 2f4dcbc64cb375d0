"""Members that a leader leaves out, and followers that join, over drawn histories."""

from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from rocketbed.replication.entry import GroupEntry, Policy, Replica
from rocketbed.replication.insync import InSyncView
from rocketbed.replication.membership import CAUGHT_UP_S, GRACE_S, LAG_S, Membership, Served

LEADER, FOLLOWER = 1, 2
START = 10
"""Offset of the epoch's marker."""
TICK_S = 1 / 16
"""Each time limit is a multiple of it."""
STEPS = 80


class Model:
    """The follower's history, and the change that is due."""

    def __init__(self, view: InSyncView) -> None:
        self.view, self.is_member = view, FOLLOWER in view.entry.in_sync
        self.absent_since: float | None = None
        self.goal: tuple[float, int] | None = None
        """Start of the lag, and the end to reach."""
        self.complete_since: float | None = None
        self.joining_since: float | None = None

    def link_changed(self) -> None:
        self.complete_since = self.joining_since = None

    def due(self, link: Served | None, end: int, now: float) -> str:
        """Return `leave`, `join` or nothing."""
        view = self.view
        registered = view.entry.in_sync.get(FOLLOWER, 1)
        if self.is_member and (link is None or link.hello.incarnation != registered):
            if self.absent_since is None:
                self.absent_since = now
            if now - self.absent_since > GRACE_S:
                return "leave"
        if link is None:
            return ""
        since, target = self.goal or (now, end)
        self.goal = (now, end) if link.acknowledged >= target else (since, target)
        lags = now - self.goal[0] > LAG_S
        if link.hello.incarnation != registered:
            self.link_changed()
            return ""
        self.absent_since = None
        if self.is_member:
            is_spare = len(view.entry.in_sync) > view.entry.min_in_sync
            return "leave" if lags and is_spare else ""
        if link.hello.learner or not view.has_marker(FOLLOWER) or lags:
            self.link_changed()
            return ""
        if not view.has_enough():
            return "join" if view.may_join(FOLLOWER) else ""
        if self.complete_since is None:
            self.complete_since = now
        if now - self.complete_since <= CAUGHT_UP_S:
            return ""
        if view.may_join(FOLLOWER):
            return "join"
        if self.joining_since is None:
            self.joining_since = now
        elif now - self.joining_since > LAG_S:
            self.link_changed()
        return ""


def check_history(
    random: Random, *, is_member: bool = False, min_in_sync: int = 1, learner: bool = False
) -> None:
    """Compare the leader's requests with the model's."""
    in_sync = {LEADER: 1} | ({FOLLOWER: 1} if is_member else {})
    replicas = {number: Replica(f"u{number}", 1) for number in (LEADER, FOLLOWER)}
    entry = GroupEntry(
        "g", Policy.MEMORY, min_in_sync, replicas, 3, 5, leader=LEADER, in_sync=in_sync
    )
    view, followers = InSyncView(LEADER, START, entry), dict[int, Served]()
    model, membership = Model(view), Membership(view, followers)
    now, end = random.randrange(9) * 1.0, START
    for _ in range(STEPS):
        now += TICK_S * random.choice((0, 1, 1, 2, 5))
        draw, link = random.random(), followers.get(FOLLOWER)
        if draw < (0.08 if link is None else 0.02):
            life = random.choice((1, 1, 1, 1 + is_member))
            hello: Any = SimpleNamespace(incarnation=life, learner=learner)
            connection: Any = None
            followers[FOLLOWER] = Served(connection, hello, 0)
            membership.link_opened(FOLLOWER)
            model.absent_since = None
            model.link_changed()
        elif draw < 0.12 and link is not None:
            del followers[FOLLOWER]
            membership.link_closed(FOLLOWER)
            model.link_changed()
        elif draw < 0.5:
            end += random.randrange(3)
        elif draw < 0.9 and link is not None:
            link.acknowledged = min(end, link.acknowledged + random.randrange(START))
            view.acknowledged(FOLLOWER, link.hello.incarnation, link.acknowledged)
        view.raise_confirm(end)
        due = model.due(followers.get(FOLLOWER), end, now)
        proposal = membership.next_change(end, now)
        change = "" if proposal is None else "leave" if FOLLOWER not in proposal.in_sync else "join"
        assert change == due, f"requests {change!r}, expected {due!r}"
        if proposal is not None:
            view.refused(proposal)
            model.joining_since = None if change == "join" else model.joining_since
        assert (view.joining == (FOLLOWER, 1)) == (model.joining_since is not None)


def check_histories(**options: Any) -> None:
    for seed in range(60):
        check_history(Random(seed), **options)


@pytest.mark.parametrize(
    ("is_member", "min_in_sync", "learner"), list(product((True, False), (1, 2), (True, False)))
)
def test_requests_changes_when_they_are_due(
    is_member: bool, min_in_sync: int, learner: bool
) -> None:
    check_histories(is_member=is_member, min_in_sync=min_in_sync, learner=learner)


def test_finds_a_lag_that_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Membership, "_is_behind", lambda self, *follower: False)
    with pytest.raises(AssertionError, match="requests"):
        check_histories(is_member=True)
