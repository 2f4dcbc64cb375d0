"""Positioned reads of a store's files.

A broker's directories can hold thousands of files, and files of a gigabyte that are mostly holes.
So descriptors are pooled, reads are positioned, and zeros are skipped if the file system reports
them as holes. A file that vanishes after listing (a live broker deletes old ones) reads as empty.
"""

import errno
import os
import stat
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

READ_SIZE = 4 << 20
_ZEROS = bytes(READ_SIZE)
NAME_SIZE = 20
"""Digits of a segment's name, which is its start offset."""
INDEX_NAME_SIZE = 17
"""Digits of an index file's name, a time in milliseconds."""
OFFSET_END = 1 << 63
"""First number above every valid offset."""
NO_FILE = "no regular file, but a pipe, a device or a folder"
_OPEN_MAX = 64


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment: start offset (bytes, from its name), path, and length when listed."""

    start: int
    path: str
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


@dataclass(frozen=True, slots=True)
class Listing:
    """Content of a segment directory: segments by start, and other paths."""

    segments: tuple[SegmentFile, ...]
    strays: tuple[str, ...]


def read_regular(path: str, size: int = -1) -> bytes:
    """Read a small file, or its first `size` bytes, without ever waiting for another process.

    Raises `OSError` when it does not exist or is no regular file: a pipe, a device, a folder.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, NO_FILE, path)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(size)


class FilePool:
    """Positioned reads from any number of files with a bounded number of descriptors."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, int] = OrderedDict()

    def read(self, path: str, position: int, size: int) -> bytes:
        """Read up to `size` bytes: fewer at the end of the file, none when the file has vanished.

        Raises `OSError` when the disk fails.
        """
        descriptor = self._descriptor(path)
        if descriptor is None:
            return b""
        data = os.pread(descriptor, size, position)
        while data and len(data) < size:
            more = os.pread(descriptor, size - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def data_ranges(self, path: str, position: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of the file that may hold non-zero bytes, in order."""
        while position < end:
            descriptor = self._descriptor(path)
            if descriptor is None:
                return
            try:
                first = os.lseek(descriptor, position, os.SEEK_DATA)
                last = min(os.lseek(descriptor, first, os.SEEK_HOLE), end)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return
                first, last = position, end
            if first >= end:
                return
            yield max(first, position), last
            position = last

    def first_data(self, path: str, position: int, end: int) -> int | None:
        """Return the position of the first non-zero byte, or None."""
        for first, last in self.data_ranges(path, position, end):
            while first < last:
                chunk = self.read(path, first, min(READ_SIZE, last - first))
                if not chunk:
                    break
                if chunk != _ZEROS[: len(chunk)]:  # ten times as fast as stripping
                    return first + len(chunk) - len(chunk.lstrip(b"\0"))
                first += len(chunk)
        return None

    def close(self) -> None:
        """Close every descriptor; the pool can be used again."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def _descriptor(self, path: str) -> int | None:
        descriptor = self._open.get(path)
        if descriptor is not None:
            self._open.move_to_end(path)
            return descriptor
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        self._open[path] = descriptor
        if len(self._open) > _OPEN_MAX:
            _, oldest = self._open.popitem(last=False)
            os.close(oldest)
        return descriptor


class SegmentRow:
    """Segments of one log or queue, addressed by offset in bytes."""

    def __init__(self, pool: FilePool, segments: tuple[SegmentFile, ...]) -> None:
        self.pool = pool
        self.segments = segments
        self._starts = [segment.start for segment in segments]

    def index_at(self, offset: int) -> int | None:
        """Return the number of the segment that holds an offset, or None."""
        number = bisect_right(self._starts, offset) - 1
        if number < 0 or offset >= self.segments[number].end:
            return None
        return number

    def read(self, offset: int, size: int) -> bytes:
        """Read bytes at an offset, at most up to the end of its segment."""
        number = self.index_at(offset)
        if number is None:
            return b""
        segment = self.segments[number]
        return self.pool.read(segment.path, offset - segment.start, size)


def list_segments(directory: str, digits: int = NAME_SIZE) -> Listing:
    """List the segments of a directory, whose names have `digits` digits; empty if it is
    missing."""
    files: list[tuple[str, str, int]] = []
    strays: list[str] = []
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return Listing((), ())
    for entry in entries:
        try:
            if entry.is_file():
                files.append((entry.name, entry.path, entry.stat().st_size))
            elif not entry.is_dir():
                strays.append(entry.path)
        except FileNotFoundError:
            continue
    listing = listing_of(files, digits)
    return Listing(listing.segments, tuple(sorted((*listing.strays, *strays))))


def listing_of(files: Iterable[tuple[str, str, int]], digits: int = NAME_SIZE) -> Listing:
    """Sort files, given by name, path and length, into segments and strays by their names."""
    segments: list[SegmentFile] = []
    strays: list[str] = []
    for name, path, size in files:
        if name.isascii() and name.isdigit() and len(name) == digits and int(name) < OFFSET_END:
            segments.append(SegmentFile(int(name), path, size))
        else:
            strays.append(path)
    return Listing(tuple(sorted(segments, key=lambda segment: segment.start)), tuple(strays))
