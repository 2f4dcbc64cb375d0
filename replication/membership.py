"""Timing of a leader's changes of the in-sync set: which replica is left out, which one joins
(replication.md 7.5, R4, R5). Pure: the time and the followers' acknowledgements are arguments."""

from collections.abc import Mapping
from typing import Final

import trio

from rocketbed.replication.election import Proposal
from rocketbed.replication.insync import InSyncView
from rocketbed.replication.native_link import NativeLink
from rocketbed.wire.ha_native import Hello

GRACE_S: Final = 0.25
"""Time for a member without a link to come back."""
LAG_S: Final = 0.5
"""Lag of a member's acknowledgements after which it is left out."""
CAUGHT_UP_S: Final = 1.0
"""Time for which a follower has to be complete before it is added."""


class Served:
    """A follower that has a link."""

    def __init__(self, link: NativeLink, hello: Hello, position: int) -> None:
        self.link = link
        self.hello = hello
        self.start = self.position = position
        """End of the part of the log that it was sent, and its start."""
        self.received = 0
        """End of what it has written."""
        self.acknowledged = 0
        """End of what it has by the policy."""
        self.moved = trio.Event()
        """Set, and replaced, with each acknowledgement."""
        self.is_unfit = False
        """True if it reports that it would be a bad leader."""


class Membership:
    """Rules of one epoch. Changes nothing of the view but `joining`."""

    def __init__(self, view: InSyncView, followers: Mapping[int, Served]) -> None:
        self._view = view
        self._followers = followers
        self._absent_since: dict[int, float] = {}
        self._behind_since: dict[int, tuple[float, int]] = {}
        """Start of each one's lag, and the end that it has to reach; a new link does not reset it,
        or a replica that cannot write would stay for ever."""
        self._complete_since: dict[int, float] = {}
        self._joining_since = 0.0
        """Time at which `view.joining` was set."""

    def link_opened(self, number: int) -> None:
        """Note a follower's new link: it has to show again that it keeps up."""
        self._absent_since.pop(number, None)
        self.link_closed(number)

    def link_closed(self, number: int) -> None:
        """Note the end of its link."""
        self._complete_since.pop(number, None)
        self._give_up_joining(number)

    def next_change(self, end: int, now: float) -> Proposal | None:
        """Return the change to request now, if any; `end` is that of the leader by the policy."""
        for number in sorted(self._view.entry.in_sync):
            if number != self._view.me and self._is_lost(number, end, now):
                return self._view.leave(number)
        for number in sorted(self._followers):
            if self._may_join(number, end, now):
                return self._view.join(number)
        return None

    def _is_lost(self, number: int, end: int, now: float) -> bool:
        """True if a member has had no link within the grace time, or lags with its acknowledgements
        (R4)."""
        follower, entry = self._followers.get(number), self._view.entry
        if follower is None or follower.hello.incarnation != entry.in_sync[number]:
            return now - self._absent_since.setdefault(number, now) > GRACE_S
        self._absent_since.pop(number, None)
        # Without it nothing could be confirmed either: slow disks are no reason to refuse
        # everything.
        is_spare = len(entry.in_sync) > entry.min_in_sync
        return self._is_behind(number, follower, end, now) and is_spare

    def _is_behind(self, number: int, follower: Served, end: int, now: float) -> bool:
        """True if it did not reach an earlier end in time."""
        since, target = self._behind_since.get(number, (now, end))
        if follower.acknowledged >= target:
            since, target = now, end
        self._behind_since[number] = since, target
        return now - since > LAG_S

    def _may_join(self, number: int, end: int, now: float) -> bool:
        """True if a follower may join (R5): complete, after it kept up for long enough not to be
        left out at once; while nothing can be confirmed without it, it does not have to wait."""
        view, follower = self._view, self._followers[number]
        life = (number, follower.hello.incarnation)
        is_behind = self._is_behind(number, follower, end, now)
        if follower.hello.learner or not view.has_marker(number) or is_behind:
            self.link_closed(number)
            return False
        if not view.has_enough():
            return view.may_join(number)
        if now - self._complete_since.setdefault(number, now) <= CAUGHT_UP_S:
            return False
        if view.may_join(number):
            return True
        if view.joining is None:
            view.joining, self._joining_since = life, now
        elif view.joining == life and now - self._joining_since > LAG_S:
            self.link_closed(number)
        return False

    def _give_up_joining(self, number: int) -> None:
        if self._view.joining and self._view.joining[0] == number:
            self._view.joining = None
