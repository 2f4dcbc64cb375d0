"""A row of fixed-size files that together are one long sequence of bytes.

RocketMQ's MappedFileQueue without the mapping (design.md 8). Each file is named by the offset of
its first byte, in 20 digits, and always has its full length: a broker refuses to start otherwise
(store.md 1.2). A write or read never crosses a segment.
"""

from collections.abc import Callable, Iterable

from rocketbed.node.store.aside import IN_THE_WAY
from rocketbed.node.store.errors import BadStoreDirectory
from rocketbed.node.store.files import FilePool, file_size
from rocketbed.world.api import File, World

NAME_DIGITS = 20


def segment_name(start: int) -> str:
    """Return the file name of the segment that begins at `start`."""
    return f"{start:0{NAME_DIGITS}d}"


class SegmentRow:
    """The segments of one directory.

    Invariant: `starts` rises in steps of exactly `size` (asserted where it grows).
    """

    def __init__(
        self,
        world: World,
        pool: FilePool,
        directory: str,
        size: int,
        *,
        staging: str,
        sparse: bool = True,
        clear_the_way: Callable[[str], bool] | None = None,
    ) -> None:
        """`sparse`: blocks are not reserved, as for queues; the log reserves them.

        `clear_the_way`: moves aside what obstructs a segment; returns True if it did.
        """
        self._world = world
        self._pool = pool
        self._staging = staging
        self._sparse = sparse
        self._clear_the_way = clear_the_way
        self.directory = directory
        self.size = size
        """Bytes of each segment."""
        self._named = -1, ""
        """A segment and its path: consecutive messages use the same one."""
        self.starts: list[int] = []
        self.suspects: list[int] = []
        """Segments after the end of the row that a power loss left short or cut off."""
        self.dirty: dict[int, None] = {}
        """Segments written since their last fsync, by start."""

    def load(self, *, key: str, tolerant: bool = False) -> list[str]:
        """Find the existing segments. `key` is the setting of their length.

        Returns the names of files that are not segments (ignored). Raises `BadStoreDirectory` for a
        wrong length or a hole in the row. `tolerant`: the length is known to be right, so a short
        file and a hole are what a power loss left of unsynced segments; the row ends before them,
        and they are in `suspects`. Nothing is changed.
        """
        disk = self._world.disk
        strays: list[str] = []
        starts: list[int] = []
        for name in disk.listdir(self.directory):
            is_file = disk.is_file(f"{self.directory}/{name}")
            if is_file and len(name) == NAME_DIGITS and name.isascii() and name.isdigit():
                starts.append(int(name))
            else:
                strays.append(name)
        starts.sort()
        self.starts, self.suspects = [], []
        for start in starts:
            problem = self._problem(start, key)
            if self.suspects or (problem and tolerant):
                self.suspects.append(start)
            elif problem and not (start == starts[-1] and self._length(start) == 0):
                raise BadStoreDirectory(problem)
            # Empty and the last by name: a crash between create and extend, harmless (T12).
            elif problem:
                self.suspects.append(start)
            else:
                self.starts.append(start)
        return strays

    def _problem(self, start: int, key: str) -> str:
        """Return what is wrong with the next file of the row, empty if nothing."""
        length = self._length(start)
        if length != self.size or start % self.size:
            return (
                f"{self.path(start)} is {length} bytes long, but {key} is {self.size}:"
                f" set {key} to what this directory was written with, or restore the file"
            )
        if self.starts and start != self.starts[-1] + self.size:
            return (
                f"{self.path(self.starts[-1] + self.size)} is missing between its neighbours:"
                " restore it, or move the files on one side of the hole away"
            )
        return ""

    def remove_suspects(self) -> None:
        """Unlink what a power loss left of unsynced segments, from the last to the first."""
        # From the last: a crash in between must not leave a hole, which stops the next boot.
        for start in reversed(self.suspects):
            self._world.log.warning("store.unsynced_segment_removed", path=self.path(start))
            self._pool.remove(self.path(start))
        self.suspects = []

    def _length(self, start: int) -> int:
        return file_size(self._world, self.path(start))

    def path(self, start: int) -> str:
        """Return the path of the segment that begins at `start`."""
        if start != self._named[0]:
            self._named = start, f"{self.directory}/{segment_name(start)}"
        return self._named[1]

    def file(self, start: int) -> File:
        return self._pool.get(self.path(start))

    def start_of(self, offset: int) -> int:
        """Return the start of the segment that holds `offset`."""
        return offset - offset % self.size

    def has(self, offset: int) -> bool:
        """True if there is a segment for `offset`."""
        starts = self.starts
        return bool(starts) and starts[0] <= offset < starts[-1] + self.size

    @property
    def end(self) -> int:
        """End of the last segment, 0 without any."""
        return self.starts[-1] + self.size if self.starts else 0

    def create(self, start: int) -> None:
        """Create the segment that begins at `start`, the next of the row. Raises `OSError`."""
        assert start % self.size == 0
        assert not self.starts or start == self.starts[-1] + self.size, "a row has no hole"
        try:
            self._make(self.path(start))
        except (*IN_THE_WAY, FileNotFoundError):  # the latter for a dangling link
            if self._clear_the_way is None or not self._clear_the_way(self.path(start)):
                raise
            self._make(self.path(start))
        self.starts.append(start)
        self.dirty[start] = None
        if self._sparse:
            self._world.mark("store.queue_segment_made")

    def _make(self, path: str) -> None:
        self._pool.create(path, self.size, staging=self._staging, allocate=not self._sparse)

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write within one segment. Raises `OSError`."""
        start = offset - offset % self.size
        assert offset + len(data) <= start + self.size, "a write never crosses segments"
        self.dirty[start] = None
        self._pool.get(self.path(start)).write_at(offset - start, data)

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes at `offset`, to the end of its segment; empty without a
        segment."""
        if not self.has(offset):
            return b""
        start = offset - offset % self.size
        size = min(size, start + self.size - offset)
        return self._pool.get(self.path(start)).read_at(offset - start, size)

    def read_cached(self, offset: int, size: int) -> bytes | None:
        """Return the same within one segment if the page cache holds it, else None."""
        if not self.has(offset):
            return b""
        start = offset - offset % self.size
        size = min(size, start + self.size - offset)
        return self._pool.get(self.path(start)).read_cached(offset - start, size)

    def fill_cached(self, offset: int, buffer: memoryview) -> bool:
        """Fill a buffer from within one segment; False if the page cache lacks any of it, or the
        segment no longer exists."""
        if not self.has(offset):
            return False
        start = offset - offset % self.size
        return self._pool.get(self.path(start)).fill_cached(offset - start, buffer)

    def zero(self, offset: int, end: int) -> None:
        """Make [offset, end), within one segment, read as zeros."""
        if end > offset:
            start = self.start_of(offset)
            assert end <= start + self.size
            self.dirty[start] = None
            file = self.file(start)
            if self._sparse:
                file.punch(offset - start, end - offset)
            else:
                file.zero(offset - start, end - offset)

    def remove(self, start: int) -> None:
        """Unlink the first or the last segment."""
        assert start in (self.starts[0], self.starts[-1]), "a row has no hole"
        self.starts.remove(start)
        self.dirty.pop(start, None)
        self._pool.remove(self.path(start))

    def drop_from(self, offset: int) -> None:
        """Unlink, from the last to the first, every segment that begins at or after `offset`."""
        # From the last: a crash in between must not leave a hole, which stops the next boot.
        while self.starts and self.starts[-1] >= offset:
            self.remove(self.starts[-1])

    async def sync(self, start: int) -> None:
        """fsync one segment. It is dirty again if it is written meanwhile, or if this fails."""
        await _sync(self._pool, [(self, start)])

    def pinned(self, start: int) -> bool:
        """True if a reader holds the segment."""
        return self._pool.pinned(self.path(start))

    def pin(self, start: int) -> File:
        """Return its open file, which is neither closed nor removed until `unpin`."""
        return self._pool.pin(self.path(start))

    def unpin(self, start: int) -> None:
        self._pool.unpin(self.path(start))


async def sync_rows(pool: FilePool, rows: Iterable[SegmentRow]) -> None:
    """fsync every dirty segment of rows in one pool, in order; as `SegmentRow.sync`."""
    await _sync(pool, [(row, start) for row in rows for start in sorted(row.dirty)])


async def _sync(pool: FilePool, segments: list[tuple[SegmentRow, int]]) -> None:
    for row, start in segments:
        row.dirty.pop(start, None)
    try:
        await pool.sync(*[row.path(start) for row, start in segments])
    except BaseException:
        for row, start in segments:
            row.dirty[start] = None
        raise
