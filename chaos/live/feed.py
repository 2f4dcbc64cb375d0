"""Values that browsers show: a table of small values, and for each reader the changes since its
last update.

A reader gets the newest value of each changed key, never a list of all changes. So a slow or dead
reader costs nothing: no queue can grow for it.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import trio

PAUSE_S: Final = 0.12
"""Time between two updates of a reader; changes meanwhile are combined."""


class Update(NamedTuple):
    """Changes that a reader has not had yet."""

    whole: bool
    """True if this is everything, so that older values are to be dropped."""
    values: dict[str, Any]
    """Values by key. A browser drops the oldest of numbered keys on its own."""


class Feed:
    """The table of values. Values are JSON and must not change once they are in it."""

    def __init__(self) -> None:
        self.readers = 0
        """Number of browsers that are connected."""
        self._values: OrderedDict[str, tuple[int, Any]] = OrderedDict()
        """Values in order of their last change, each with the number of that change."""
        self.version = 0
        self._changed = trio.Event()
        self._readers_changed = trio.Event()

    def put(self, key: str, value: Any) -> None:
        """Set a value; an equal value is no change."""
        current = self._values.get(key)
        if current is not None and current[1] == value:
            return
        self.version += 1
        self._values[key] = self.version, value
        self._values.move_to_end(key)
        self._changed.set()

    def drop(self, key: str) -> None:
        """Remove a value, so that new readers do not get it. Readers that have it are not
        notified."""
        self._values.pop(key, None)

    def get(self, key: str) -> Any:
        current = self._values.get(key)
        return None if current is None else current[1]

    async def wait_nobody(self, grace_s: float) -> None:
        """Wait until no browser has been connected for `grace_s`."""
        while True:
            while self.readers:
                await self._readers_changed.wait()
            with trio.move_on_after(grace_s):
                await self._readers_changed.wait()
                continue
            return

    @contextmanager
    def reader(self) -> Iterator["Reader"]:
        self._count(1)
        try:
            yield Reader(self)
        finally:
            self._count(-1)

    def since(self, version: int) -> dict[str, Any]:
        """Return the values that changed after a version, in order of their changes."""
        changes: list[tuple[str, Any]] = []
        for key in reversed(self._values):
            changed, value = self._values[key]
            if changed <= version:
                break
            changes.append((key, value))
        return dict(reversed(changes))

    async def wait_changed(self, version: int) -> None:
        while self.version <= version:
            if self._changed.is_set():
                self._changed = trio.Event()
            await self._changed.wait()

    def _count(self, change: int) -> None:
        self.readers += change
        self._readers_changed.set()
        self._readers_changed = trio.Event()


class Reader:
    """View of one browser."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._version = -1

    async def next(self) -> Update:
        """Wait for the next update; the first one is everything."""
        feed, whole = self._feed, self._version < 0
        if not whole:
            await trio.sleep(PAUSE_S)
            await feed.wait_changed(self._version)
        values = feed.since(max(self._version, 0))
        self._version = feed.version
        return Update(whole, values)
