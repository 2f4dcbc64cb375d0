"""Where a store's files lie: on this machine, or in an object store or another file system.

The readers ask for little: what a directory lists, a small file, and bytes by position. Local files
are asked as ever; everything that has a scheme (`s3a://bucket/store`) through pyarrow, which the
pipeline needs anyway and which brings S3, Azure, Google and HDFS with it. Paths keep their scheme,
so that rows and errors show what the user wrote. A file elsewhere that changes while it
is read is another one: no such store lets anybody write in the middle of one.
"""

import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeVar

from rocketbed.inspect.files import (
    NAME_SIZE,
    FilePool,
    Listing,
    list_segments,
    read_regular,
)
from rocketbed.pipeline.errors import PipelineError
from rocketbed.pipeline.option_table import OptionError, Settings

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE: Final = 32
"""Files or stores that are asked at once while a read is planned."""


class StorageError(PipelineError):
    """A scheme that cannot be read, or what needs local files."""


class UnknownScheme(StorageError, OptionError):
    """A scheme that nobody has."""


class Replaced(OSError):
    """A file is another one than when it was opened."""


class Entry(NamedTuple):
    """What a directory lists: a file with its length in bytes, or a directory."""

    name: str
    path: str
    is_dir: bool
    size: int


class OpenFile(Protocol):
    """One file, read by position."""

    def size(self) -> int:
        """Its length now, in bytes. Raises `FileNotFoundError`."""

    def read_into(self, view: memoryview, position: int) -> int:
        """How many bytes were read; 0 at the end. Raises `Replaced`."""

    def close(self) -> None:
        """May be called twice."""


@dataclass(frozen=True, slots=True)
class Storage:
    """Files of this machine."""

    is_local = True
    settings = Settings()
    queues_max = 256
    """Consume queues that a task looks into for the nearest record that one knows."""

    def entries(self, directory: str) -> list[Entry]:
        """By name; none of a directory that is not there."""
        found = []
        try:
            for entry in os.scandir(directory):
                is_dir = entry.is_dir()
                size = 0 if is_dir or not entry.is_file() else entry.stat().st_size
                found.append(Entry(entry.name, entry.path, is_dir, size))
        except (FileNotFoundError, NotADirectoryError):
            pass
        return sorted(found)

    def segments(self, directory: str, digits: int = NAME_SIZE) -> Listing:
        """See `list_segments`."""
        return list_segments(directory, digits)

    def folders(self, directory: str) -> list[str]:
        """Names of the directories in one."""
        return [entry.name for entry in self.entries(directory) if entry.is_dir]

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def is_file(self, path: str) -> bool:
        return os.path.isfile(path)

    def content(self, path: str, size: int) -> bytes:
        """The first bytes of a small file. Raises `OSError`."""
        return read_regular(path, size)

    def pool(self) -> FilePool:
        return FilePool()

    def open(self, path: str) -> OpenFile:
        """Raises `FileNotFoundError`."""
        return _LocalFile(path)

    def identity(self, path: str) -> object:
        """What two ways to one directory have in common. Raises `OSError`."""
        found = os.stat(path)
        return found.st_dev, found.st_ino


@dataclass(frozen=True, slots=True)
class ListedOnce(Storage):
    """Files of this machine, for the time that a read is planned: 50,000 segments take 0.4 s."""

    seen: dict[tuple[str, int], Listing] = field(default_factory=dict, repr=False, compare=False)

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Storage, ()

    def segments(self, directory: str, digits: int = NAME_SIZE) -> Listing:
        key = directory, digits
        if key not in self.seen:
            self.seen[key] = list_segments(directory, digits)
        return self.seen[key]


class _LocalFile:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def size(self) -> int:
        return os.fstat(self._file).st_size

    def read_into(self, view: memoryview, position: int) -> int:
        return os.preadv(self._file, [view], position)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


LOCAL: Final = Storage()


def spread(function: Callable[[T], R], items: Sequence[T], *, is_local: bool) -> list[R]:
    """What a function gives for each: elsewhere many at once, since each waits for answers."""
    if is_local or len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(len(items), AT_ONCE)) as threads:
        return list(threads.map(function, items))


def plain_path(path: str) -> str:
    """A path of this machine without `file:`; one elsewhere with single slashes and without `..`,
    as Hadoop has them; others as they are. What looks percent-encoded is not decoded, nor is it by
    Spark's own sources."""
    scheme, separator, rest = path.partition("://")
    if separator and scheme.isalnum() and scheme.lower() != "file":
        authority, slash, inner = re.sub("/+", "/", rest).partition("/")
        if {".", ".."} & set(inner.split("/")):
            inner = os.path.normpath(f"/{inner}").lstrip("/")
        return f"{scheme.lower()}://{authority}{slash}{inner}"
    for start in ("file://localhost", "file://", "file:"):
        if path.lower().startswith(start) and path[len(start) : len(start) + 1] == "/":
            return path[len(start) :]
    return path
