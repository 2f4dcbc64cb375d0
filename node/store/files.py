"""Open files of one store, limited in number, and new names that are not durable yet.

A store with thousands of queues has more files than a process may open; queue and index files are
therefore opened when touched and closed when long untouched. Closing loses nothing: written bytes
are in the page cache, and a later fsync through another descriptor covers the same file.
"""

import errno
from collections import Counter, OrderedDict
from collections.abc import Sequence
from itertools import islice

import trio

from rocketbed.node.store.errors import BadStoreDirectory, StoreError, StoreFailed
from rocketbed.node.store.failure import Failure
from rocketbed.world.api import File, World

FILES_LEAST = 512
"""Half of the usual limit of 1,024 descriptors a process; the remainder is for connections and
log."""
CONNECTIONS = 8192
"""Descriptors beyond that which connections get before files do."""
OPEN_FILES_MAX = 16_384
"""More than a store has queues, if the process may: with fewer than are written in turn each
message costs an open and a close (25 us instead of 11, 800 queues over 384 files)."""
SYNCED_TOGETHER = 256
"""Files that one call syncs. ext4 commits their new blocks at once, after the writes of the log:
8,000 queues under load take 1.5 s that way, and 25 s one by one."""
LOOKED_MAX = 400
"""Names that are checked together, at 1.5 us each, without a turn of other tasks."""
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
"""The process has no descriptor left: the file was not opened, so nothing was attempted."""
SHORTAGES = (errno.ENOSPC, errno.EDQUOT, *NO_DESCRIPTOR)
"""Temporary shortages of a disk or a process."""


def store_files(descriptors: int) -> int:
    """Return how many of a process's descriptors a store may use for its files."""
    preferred = max(FILES_LEAST, descriptors - CONNECTIONS)
    return min(OPEN_FILES_MAX, preferred, descriptors // 2)


def read_whole(world: World, path: str) -> bytes | None:
    """Return a small file, None if there is none. Raises `BadStoreDirectory` for a directory."""
    if not world.disk.exists(path):
        return None
    if world.disk.is_dir(path):
        raise BadStoreDirectory(f"{path} is a directory, where a broker keeps a file: move it away")
    file = world.disk.open(path, writable=False)
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def file_size(world: World, path: str) -> int:
    """Return the length of a file. Raises `OSError`."""
    file = world.disk.open(path, writable=False)
    try:
        return file.size()
    finally:
        file.close()


class FilePool:
    """Opens files on demand; the least recently used unpinned one is closed first."""

    def __init__(self, world: World, failure: Failure) -> None:
        self._world = world
        self.failure = failure
        # Pinned files and short-lived ones (marks, tables) come on top of the pool's.
        files = store_files(world.process.descriptors)
        self._limit = max(files * 3 // 4, files - 128, 8)
        self._open: OrderedDict[str, File] = OrderedDict()
        self._unchecked: list[str] = []
        """Paths whose names `lost_name` has not checked in this round."""
        self._pins: Counter[str] = Counter()
        self._orphans: dict[str, File] = {}
        """Files that were removed, or open at `close`, and are still being read; closed when the
        last pin is released."""
        self._names_lock = trio.Lock()
        self._names = 0
        """Names created or removed so far."""
        self.new_names: dict[str, int] = {}
        """Directories in which a name was created or removed since their last sync; with the newest
        change's number."""

    def get(self, path: str) -> File:
        """Return the open file; opened if need be. Raises `FileNotFoundError`."""
        file = self._open.get(path)
        if file is not None:
            self._open.move_to_end(path)
            return file
        file = self._opened(path)
        self._close_oldest(self._limit - 1)  # not this one, though all others may be pinned
        self._open[path] = file
        return file

    def _opened(self, path: str, *, create: bool = False) -> File:
        """Open a file; if no descriptor is left, close the least recently used file first."""
        while True:
            try:
                return self._world.disk.open(path, create=create)
            except OSError as exc:
                if exc.errno not in NO_DESCRIPTOR:
                    raise
                if not self._close_oldest(len(self._open) - 1):
                    raise

    def _close_oldest(self, limit: int) -> bool:
        """Close files without readers until `limit` are open; True if any was closed."""
        excess = len(self._open) - limit
        unread = (path for path in self._open if path not in self._pins)
        oldest = list(islice(unread, max(excess, 0)))
        for path in oldest:
            self._open.pop(path).close()
        return bool(oldest)

    def pin(self, path: str) -> File:
        """Return the open file, which stays open until `unpin`."""
        self._pins[path] += 1
        try:
            return self.get(path)
        except BaseException:
            self.unpin(path)
            raise

    def unpin(self, path: str) -> None:
        self._pins[path] -= 1
        if not self._pins[path]:
            del self._pins[path]
            orphan = self._orphans.pop(path, None)
            if orphan is not None:
                orphan.close()

    def pinned(self, path: str) -> bool:
        """True if the file is being read or synced now."""
        return path in self._pins

    async def sync(self, *paths: str) -> None:
        """fsync files, in order; those that were removed meanwhile need none.

        Raises `StoreFailed`, and the store has failed, also for want of space: thinly provisioned
        disks notice that only now. Raises `OSError` when a file cannot be opened.
        """
        count = min(SYNCED_TOGETHER, self._limit // 2)
        for first in range(0, len(paths), count):
            await self._sync_together(paths[first : first + count])

    async def _sync_together(self, paths: Sequence[str]) -> None:
        pinned: dict[str, File] = {}
        try:
            for path in paths:
                if path in self._open or self._world.disk.exists(path):
                    self.failure.check()
                    pinned[path] = self.pin(path)
            if pinned:
                await self._wait_synced(pinned)
        finally:
            for path in pinned:
                self.unpin(path)

    async def _wait_synced(self, files: dict[str, File]) -> None:
        try:
            await self._world.disk.sync_files(list(files.values()))
        except OSError as exc:
            raise self._lost(exc.filename or ", ".join(files), exc) from exc

    def create(self, path: str, size: int, *, staging: str, allocate: bool) -> None:
        """Create a file of `size` zero bytes under its name at once, so that it is never short.

        It is built under a temporary name in `staging`, a directory of the same file system. With
        `allocate` its blocks are reserved, else it is sparse. Neither it nor its name is durable
        before `sync` and `sync_names`. Raises `OSError` (ENOSPC), leaving nothing.
        """
        disk = self._world.disk
        temporary = f"{staging}/{path.rpartition('/')[2]}.new"
        disk.makedirs(staging)
        if disk.exists(temporary):
            disk.unlink(temporary)
        file = self._opened(temporary, create=True)
        try:
            if allocate:
                file.allocate(size)
            else:
                file.truncate(size)
        except OSError:
            disk.unlink(temporary)
            raise
        finally:
            file.close()
        self.make_dir(path.rpartition("/")[0])
        disk.rename(temporary, path)
        self.named(path)

    def make_dir(self, directory: str) -> None:
        """Create a directory and record every parent whose new name has to be synced."""
        missing = []
        while directory and not self._world.disk.exists(directory):
            missing.append(directory)
            directory = directory.rpartition("/")[0]
        if missing:
            self._world.disk.makedirs(missing[0])
            for created in missing:
                self.named(created)

    def named(self, path: str) -> None:
        """Record that a name was created or removed."""
        self._names += 1
        self.new_names[path.rpartition("/")[0] or "/"] = self._names

    def doubt(self, path: str, root: str) -> None:
        """Treat every name on the way from `root` to a file as not durable."""
        while path.startswith(f"{root}/"):
            self.named(path)
            path = path.rpartition("/")[0]

    async def sync_names(self, to: str = "") -> None:
        """fsync every directory with a name that may not be durable; with `to`, a directory, only
        those on the way to it and itself.

        When it returns, such names created before the call are durable, also those that another
        caller was syncing. Raises as `sync`.
        """
        way = f"{to}/"
        for directory in [
            directory_
            for directory_ in self.new_names
            if not to or way.startswith(f"{directory_.rstrip('/')}/")
        ]:
            # held for one directory at a time: a caller with few waits for few
            async with self._names_lock:
                self.failure.check()
                newest = self.new_names.get(directory)
                if newest is None:
                    continue
                try:
                    if self._world.disk.is_dir(directory):
                        await self._world.disk.sync_dir(directory)
                except OSError as exc:
                    if exc.errno in NO_DESCRIPTOR:
                        raise
                    raise self._lost(directory, exc) from exc
                if self.new_names[directory] == newest:
                    del self.new_names[directory]

    def _lost(self, path: str, exc: OSError) -> StoreError:
        # No retry: Linux marks the failed pages clean, so the next fsync would succeed without
        # them (T10).
        return self.failure.set(
            StoreFailed(
                f"fsync of {path} failed: {exc.strerror}. What was written there since the last one"
                " may not be on disk, so this node stops and leaves its abort file; check the disk,"
                " then start again"
            )
        )

    def remove(self, path: str) -> None:
        """Unlink a file, and close it once it is no longer read."""
        if self._pins[path] and path in self._open:
            self._orphans[path] = self._open.pop(path)
        self.forget(path)
        self._world.disk.unlink(path)
        self.named(path)

    def forget(self, path: str) -> None:
        file = self._open.pop(path, None)
        if file is not None:
            file.close()

    def lost_name(self) -> str | None:
        """Return the path of an open file whose name another program removed, if there is one
        (T13).

        A call checks `LOOKED_MAX` files, and the next one continues from there.
        """
        if not self._unchecked:
            self._unchecked = [*self._open]
        looked, self._unchecked = self._unchecked[-LOOKED_MAX:], self._unchecked[:-LOOKED_MAX]
        open_now = ((path, self._open.get(path)) for path in looked)
        return next((path for path, file in open_now if file and not file.has_name()), None)

    def close(self) -> None:
        """Close all files; those that are still being read (by the scrub, in a thread) when that is
        done."""
        for path, file in self._open.items():
            if self._pins[path]:
                self._orphans[path] = file
            else:
                file.close()
        self._open.clear()
