"""When the leader of an epoch asks for another in-sync set: who is left out, who joins, after how
long (replication.md 7.5, R4, R5). Pure: time and what followers acknowledge come in."""

from collections.abc import Mapping
from typing import Final

import trio

from rocketbed.replication.election import Proposal
from rocketbed.replication.insync import InSyncView
from rocketbed.replication.native_link import NativeLink
from rocketbed.wire.ha_native import Hello

GRACE_S: Final = 0.25
"""For a member without a link to come back."""
LAG_S: Final = 0.5
"""A member whose acknowledgements are that far behind is left out."""
CAUGHT_UP_S: Final = 1.0
"""A follower that was complete for so long is added."""


class Served:
    """A follower that has a link."""

    def __init__(self, link: NativeLink, hello: Hello, position: int) -> None:
        self.link = link
        self.hello = hello
        self.start = self.position = position
        """Up to where it was sent the log, and from where on."""
        self.received = 0
        """End of what it has written."""
        self.acknowledged = 0
        """End of what it has, as the policy says."""
        self.moved = trio.Event()
        """Set, and replaced, with each acknowledgement."""
        self.is_unfit = False
        """Whether it says that it would be a bad leader."""


class Membership:
    """Of one epoch. Changes nothing of the view but `joining`."""

    def __init__(self, view: InSyncView, followers: Mapping[int, Served]) -> None:
        self._view = view
        self._followers = followers
        self._absent_since: dict[int, float] = {}
        self._behind_since: dict[int, tuple[float, int]] = {}
        """Since when each is behind, and the end that it has to reach; a new link does not make it
        less so, or one that cannot write would stay for ever."""
        self._complete_since: dict[int, float] = {}
        self._joining_since = 0.0
        """When `view.joining` was set."""

    def came(self, number: int) -> None:
        """A follower has a link, and has to show anew that it keeps up."""
        self._absent_since.pop(number, None)
        self.left(number)

    def left(self, number: int) -> None:
        """Its link has ended."""
        self._complete_since.pop(number, None)
        self._give_up_joining(number)

    def due(self, end: int, now: float) -> Proposal | None:
        """The change to ask for now, if any; `end` is of what the leader has by the policy."""
        for number in sorted(self._view.known.in_sync):
            if number != self._view.me and self._is_lost(number, end, now):
                return self._view.leave(number)
        for number in sorted(self._followers):
            if self._may_join(number, end, now):
                return self._view.join(number)
        return None

    def _is_lost(self, number: int, end: int, now: float) -> bool:
        """R4: no link within the grace, or acknowledgements that stay behind."""
        follower, known = self._followers.get(number), self._view.known
        if follower is None or follower.hello.incarnation != known.in_sync[number]:
            return now - self._absent_since.setdefault(number, now) > GRACE_S
        self._absent_since.pop(number, None)
        # Without it nothing could be confirmed either: slow disks are no reason to refuse all.
        is_spare = len(known.in_sync) > known.min_in_sync
        return self._is_behind(number, follower, end, now) and is_spare

    def _is_behind(self, number: int, follower: Served, end: int, now: float) -> bool:
        """Whether it did not reach in time what was the end."""
        since, wanted = self._behind_since.get(number, (now, end))
        if follower.acknowledged >= wanted:
            since, wanted = now, end
        self._behind_since[number] = since, wanted
        return now - since > LAG_S

    def _may_join(self, number: int, end: int, now: float) -> bool:
        """R5: complete, after it kept up for long enough not to be left out at once; while nothing
        can be confirmed without it, it is not made to wait."""
        view, follower = self._view, self._followers[number]
        life = (number, follower.hello.incarnation)
        is_behind = self._is_behind(number, follower, end, now)
        if follower.hello.learner or not view.has_marker(number) or is_behind:
            self.left(number)
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
            self.left(number)
        return False

    def _give_up_joining(self, number: int) -> None:
        if self._view.joining and self._view.joining[0] == number:
            self._view.joining = None
