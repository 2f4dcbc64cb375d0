"""What browsers see: a table of small values, and for each reader what has changed since it looked.

A reader is given the newest value of whatever changed, never a list of all changes. So one that is
slow, or gone, costs nothing: there is no queue that could grow for it.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import trio

PAUSE_S: Final = 0.12
"""Between two updates of a reader; what changes meanwhile comes together."""


class Update(NamedTuple):
    """What a reader has not seen."""

    whole: bool
    """Whether this is everything, so that what was known before is to be dropped."""
    values: dict[str, Any]
    """By key. Of keys that are numbered, a browser forgets the oldest by itself."""


class Feed:
    """The table. Values are JSON; a value that was handed over is not changed any more."""

    def __init__(self) -> None:
        self.readers = 0
        """Browsers that look now."""
        self._values: OrderedDict[str, tuple[int, Any]] = OrderedDict()
        """Those that changed last stand last, each with the number of its change."""
        self.version = 0
        self._changed = trio.Event()
        self._readers_changed = trio.Event()

    def put(self, key: str, value: Any) -> None:
        """Set a value; the same as before is no change."""
        known = self._values.get(key)
        if known is not None and known[1] == value:
            return
        self.version += 1
        self._values[key] = self.version, value
        self._values.move_to_end(key)
        self._changed.set()

    def drop(self, key: str) -> None:
        """Take a value away, so that new readers do not get it. Those that have it are not told."""
        self._values.pop(key, None)

    def get(self, key: str) -> Any:
        known = self._values.get(key)
        return None if known is None else known[1]

    async def wait_nobody(self, grace_s: float) -> None:
        """Wait until no browser has looked for so long."""
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
        """What changed after a version, in the order of the changes."""
        found: list[tuple[str, Any]] = []
        for key in reversed(self._values):
            changed, value = self._values[key]
            if changed <= version:
                break
            found.append((key, value))
        return dict(reversed(found))

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
    """One browser's view."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._seen = -1

    async def next(self) -> Update:
        """The next update, as soon as there is one; the first one is everything."""
        feed, whole = self._feed, self._seen < 0
        if not whole:
            await trio.sleep(PAUSE_S)
            await feed.wait_changed(self._seen)
        values = feed.since(max(self._seen, 0))
        self._seen = feed.version
        return Update(whole, values)
