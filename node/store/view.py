"""The log's files read as one row, whatever their lengths: to judge a damaged log before a change.

`SegmentRow` expects intact files. Here a file may be short or missing: missing bytes read as zeros,
and bytes from elsewhere can be laid over it.
"""

from rocketbed.node.store.cursor import LogCursor
from rocketbed.node.store.parts import StoreParts
from rocketbed.node.store.scan import crc_scanner
from rocketbed.node.store.segments import NAME_DIGITS, SegmentRow
from rocketbed.node.store.tail import next_good
from rocketbed.world.api import World

_CHUNK = 1 << 20


class Staged:
    """Bytes for the log that are not in it yet: one file of ranges, which may remain after a kill.

    It is not durable, and is removed by `close`, or by the next one at its path.
    """

    def __init__(self, world: World, path: str) -> None:
        self._disk, self._path = world.disk, path
        if self._disk.exists(path):
            self._disk.unlink(path)
        self._disk.makedirs(path.rpartition("/")[0])
        self._file = self._disk.open(path, create=True)
        self._ranges: list[tuple[int, int, int]] = []
        """Start and end in the log, start in the file; they do not overlap."""
        self._size = 0

    def add(self, offset: int, data: bytes) -> None:
        """Add bytes that belong at `offset` of the log. Raises `OSError`."""
        self._file.write_at(self._size, data)
        start, at = offset, self._size
        if self._ranges and self._ranges[-1][1] == offset:
            start, _, at = self._ranges.pop()
        self._ranges.append((start, offset + len(data), at))
        self._size += len(data)

    def lay_over(self, offset: int, data: bytearray) -> None:
        """Overwrite the staged parts of `data`, which begins at `offset` of the log."""
        for start, end, at in self._ranges:
            low, high = max(start, offset), min(end, offset + len(data))
            if low < high:
                piece = self._file.read_at(at + low - start, high - low)
                data[low - offset : high - offset] = piece

    def pieces(self, segment_size: int) -> list[tuple[int, int]]:
        """Return offset and size of pieces that together are everything, each within one
        segment."""
        pieces = []
        for position, end, _ in self._ranges:
            while position < end:
                size = min(_CHUNK, end - position, segment_size - position % segment_size)
                pieces.append((position, size))
                position += size
        return pieces

    def close(self) -> None:
        """Discard everything."""
        self._file.close()
        if self._disk.exists(self._path):
            self._disk.unlink(self._path)


class LogView(SegmentRow):
    """Segments of the log that exist, are short, or are missing."""

    def __init__(self, parts: StoreParts, starts: list[int], lengths: dict[int, int]) -> None:
        """`lengths`: of the existing files, by start."""
        super().__init__(
            parts.world,
            parts.pool,
            parts.config.log_dir,
            parts.config.segment_size,
            staging=parts.staging,
            sparse=False,
        )
        self.starts = starts
        self.lengths = lengths
        self.staged: Staged | None = None
        """Bytes laid over the files."""

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes as a row does; zeros where no file has a byte."""
        if not self.has(offset):
            return b""
        start = self.start_of(offset)
        size = min(size, start + self.size - offset)
        held = b""
        if self.lengths.get(start, 0) > offset - start:
            held = super().read(offset, size)
        data = bytearray(held.ljust(size, b"\0"))
        if self.staged is not None:
            self.staged.lay_over(offset, data)
        return bytes(data)

    def read_all(self, start: int, end: int) -> bytes:
        """Return bytes over any number of segments; for few."""
        data = bytearray()
        while start + len(data) < end:
            data += self.read(start + len(data), end - start - len(data))
        return bytes(data)

    @property
    def incomplete(self) -> list[int]:
        """Segments whose file is missing or short."""
        return [start for start in self.starts if self.lengths.get(start, 0) < self.size]


class ViewCursor(LogCursor):
    """A cursor over a view; it shares no loop, so it reads directly."""

    async def read_in_thread(self, world: World, offset: int, size: int) -> bytes:
        return self.segments.read(offset, size)


def is_segment_name(name: str) -> bool:
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()


async def holds_record(parts: StoreParts, start: int, length: int) -> bool:
    """Return True if the file named as the segment at `start` has any good record of that position.

    Raises `OSError`.
    """
    view = LogView(parts, [start], {start: length})
    return await next_good(parts.world, ViewCursor(view, crc_scanner(parts.config)), start) >= 0
