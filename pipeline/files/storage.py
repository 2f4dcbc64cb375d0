"""Access to a store's files: local, in an object store, or in another file system.

The readers need little: the list of a directory, a small file, and bytes by position. Paths with a
scheme (`s3a://bucket/store`) are read through pyarrow, which the pipeline needs anyway and which
supports S3, Azure, Google and HDFS. Paths keep their scheme, so that rows and errors show the
user's text. A remote file that changes while it is read was replaced: object stores do not write
into files.
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
"""Concurrent requests for files or stores while a read is planned."""


class StorageError(PipelineError):
    """A scheme cannot be read, or a feature needs local files."""


class UnknownScheme(StorageError, OptionError):
    """A scheme that no library supports."""


class Replaced(OSError):
    """A file was replaced after it was opened."""


class Entry(NamedTuple):
    """Entry of a directory: a file with its length in bytes, or a directory."""

    name: str
    path: str
    is_dir: bool
    size: int


class OpenFile(Protocol):
    """File that is read by position."""

    def size(self) -> int:
        """Present length in bytes. Raises `FileNotFoundError`."""

    def read_into(self, view: memoryview, position: int) -> int:
        """Read and return the number of bytes; 0 at the end. Raises `Replaced`."""

    def close(self) -> None:
        """May be called twice."""


@dataclass(frozen=True, slots=True)
class Storage:
    """Files of this machine."""

    is_local = True
    settings = Settings()
    queues_max = 256
    """Maximum consume queues that a task searches for the nearest known record."""

    def entries(self, directory: str) -> list[Entry]:
        """Return the entries by name; empty if the directory does not exist."""
        entries = []
        try:
            for entry in os.scandir(directory):
                is_dir = entry.is_dir()
                size = 0 if is_dir or not entry.is_file() else entry.stat().st_size
                entries.append(Entry(entry.name, entry.path, is_dir, size))
        except (FileNotFoundError, NotADirectoryError):
            pass
        return sorted(entries)

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
        """Return a key that all paths to one directory share. Raises `OSError`."""
        status = os.stat(path)
        return status.st_dev, status.st_ino


@dataclass(frozen=True, slots=True)
class ListedOnce(Storage):
    """Files of this machine with cached listings, while a read is planned: to list 50,000 segments
    takes 0.4 s."""

    listings: dict[tuple[str, int], Listing] = field(
        default_factory=dict, repr=False, compare=False
    )

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Storage, ()

    def segments(self, directory: str, digits: int = NAME_SIZE) -> Listing:
        key = directory, digits
        if key not in self.listings:
            self.listings[key] = list_segments(directory, digits)
        return self.listings[key]


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
    """Map a function over items; concurrently for remote files, since each call waits for
    answers."""
    if is_local or len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(len(items), AT_ONCE)) as threads:
        return list(threads.map(function, items))


def plain_path(path: str) -> str:
    """Normalize a path: a local one loses `file:`, a remote one gets single slashes and no `..`, as
    in Hadoop. Percent-encoding is not decoded; Spark's own sources do not decode it either."""
    scheme, separator, remainder = path.partition("://")
    if separator and scheme.isalnum() and scheme.lower() != "file":
        authority, slash, inner = re.sub("/+", "/", remainder).partition("/")
        if {".", ".."} & set(inner.split("/")):
            inner = os.path.normpath(f"/{inner}").lstrip("/")
        return f"{scheme.lower()}://{authority}{slash}{inner}"
    for start in ("file://localhost", "file://", "file:"):
        if path.lower().startswith(start) and path[len(start) : len(start) + 1] == "/":
            return path[len(start) :]
    return path
