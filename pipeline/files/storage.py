"""Where a store's files lie: on this machine, or in an object store or another file system.

The readers ask for little: what a directory lists, a small file, and bytes by position. Local files
are asked as ever; everything that has a scheme (`s3a://bucket/store`) through pyarrow, which the
pipeline needs anyway and which brings S3, Azure, Google and HDFS with it. Paths keep their scheme,
so that rows and errors show what the user wrote. A file elsewhere is taken not to change while it
is read: no such store lets anybody write in the middle of one.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from rocketbed.inspect.files import (
    NAME_SIZE,
    FilePool,
    Listing,
    list_segments,
    listing_of,
    read_regular,
)
from rocketbed.pipeline.errors import PipelineError
from rocketbed.pipeline.option_table import Settings

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

T = TypeVar("T")
R = TypeVar("R")

S3_SCHEMES: Final = ("s3", "s3a", "s3n")
BLOCK: Final = 256 << 10
"""Bytes of a request for less: a request costs as long as some hundred KiB of transfer."""
BLOCKS_MAX: Final = 64
AHEAD: Final = 8
"""Requests at once where nothing but zeros is expected."""
AHEAD_SIZE: Final = 8 << 20
AT_ONCE: Final = 32
"""Files or stores that are asked at once while a read is planned."""
CONNECT_S: Final = 10.0
REQUEST_S: Final = 60.0
TOLD_MAX: Final = 300
"""Characters of another library's error that are shown."""


class StorageError(PipelineError):
    """A scheme that cannot be read, or what needs local files."""


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
        """How many bytes were read; 0 at the end."""

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


@dataclass(frozen=True, slots=True)
class RemoteStorage(Storage):
    """Files behind a scheme."""

    scheme: str
    authority: str
    settings: Settings = field(default=(), repr=False)
    """May hold secrets."""
    seen: dict[str, list[Entry]] | None = field(default=None, repr=False, compare=False)
    """What was listed, while a read is planned; None: nothing is kept."""

    is_local = False
    queues_max = 16

    def __reduce__(self) -> tuple[type, tuple[str, str, Settings]]:
        return RemoteStorage, (self.scheme, self.authority, self.settings)

    def entries(self, directory: str) -> list[Entry]:
        if self.seen is None:
            return self._listed(directory)
        if directory not in self.seen:
            self.seen[directory] = self._listed(directory)
        return self.seen[directory]

    def _listed(self, directory: str) -> list[Entry]:
        from pyarrow.fs import FileSelector, FileType

        place, inner = self._at(directory)
        found = place.get_file_info(FileSelector(inner, allow_not_found=True))
        return sorted(
            Entry(
                one.base_name,
                f"{directory.rstrip('/')}/{one.base_name}",
                one.type == FileType.Directory,
                one.size or 0,
            )
            for one in found
        )

    def segments(self, directory: str, digits: int = NAME_SIZE) -> Listing:
        files = [one for one in self.entries(directory) if not one.is_dir]
        return listing_of(((one.name, one.path, one.size) for one in files), digits)

    def is_dir(self, path: str) -> bool:
        from pyarrow.fs import FileType

        if self.seen is not None and self.entries(path):
            return True
        return bool(self._type(path) == FileType.Directory)

    def is_file(self, path: str) -> bool:
        from pyarrow.fs import FileType

        return bool(self._type(path) == FileType.File)

    def content(self, path: str, size: int) -> bytes:
        place, inner = self._at(path)
        with place.open_input_stream(inner) as file:
            return bytes(file.read(size))

    def pool(self) -> FilePool:
        return RemotePool(self)

    def open(self, path: str) -> "_RemoteFile":
        return _RemoteFile(self, path)

    def identity(self, path: str) -> object:
        return self.scheme, path

    def _type(self, path: str) -> Any:
        place, inner = self._at(path)
        return place.get_file_info(inner).type

    def _at(self, path: str) -> "tuple[FileSystem, str]":
        """The file system, and the path in it."""
        inner = path.removeprefix(f"{self.scheme}://").rstrip("/")
        place, is_by_bucket = _file_system(self.scheme, self.authority, self.settings)
        return place, inner if is_by_bucket else inner.removeprefix(self.authority) or "/"


class _RemoteFile:
    def __init__(self, storage: RemoteStorage, path: str) -> None:
        self._storage = storage
        self._path = path
        place, inner = storage._at(path)
        self._place, self._inner = place, inner
        self._file = place.open_input_file(inner)
        self._size: int | None = self._file.size()

    def size(self) -> int:
        """Of the first time, what was told at the opening."""
        if self._size is not None:
            size, self._size = self._size, None
            return size
        found = self._place.get_file_info(self._inner)
        if found.size is None:
            raise FileNotFoundError(self._path)
        return int(found.size)

    def read_into(self, view: memoryview, position: int) -> int:
        self._file.seek(position)
        return int(self._file.readinto(view))

    def close(self) -> None:
        self._file.close()


class RemotePool(FilePool):
    """Bytes by position of files elsewhere, by few and large requests.

    What was read stays in memory, some MiB of it, and several requests are under way at once where
    a file may only be prepared.
    """

    def __init__(self, storage: RemoteStorage) -> None:
        super().__init__()
        self._storage = storage
        self._files: OrderedDict[str, Any] = OrderedDict()
        self._blocks: OrderedDict[tuple[str, int], bytes] = OrderedDict()

    def read(self, path: str, position: int, size: int) -> bytes:
        file = self._file_of(path)
        if file is None or size <= 0:
            return b""
        if size > BLOCK:
            return bytes(file.read_at(max(min(size, file.size() - position), 0), position))
        first = position // BLOCK
        blocks = range(first, (position + size - 1) // BLOCK + 1)
        data = b"".join(self._block(path, file, number) for number in blocks)
        return data[position - first * BLOCK :][:size]

    def data_ranges(self, path: str, position: int, end: int) -> Iterator[tuple[int, int]]:
        """One range, that begins with the first byte which is not zero."""
        file = self._file_of(path)
        end = min(end, file.size()) if file is not None else 0
        if self.read(path, position, min(BLOCK, end - position)).strip(b"\0"):
            yield position, end
            return
        starts = range(position, end, AHEAD_SIZE)

        def filled(start: int) -> int:
            data = file.read_at(min(AHEAD_SIZE, end - start), start)
            return start + len(data) - len(data.lstrip(b"\0"))

        with ThreadPoolExecutor(AHEAD) as threads:
            for first in range(0, len(starts), AHEAD):
                for start, at in zip(
                    starts[first : first + AHEAD],
                    threads.map(filled, starts[first : first + AHEAD]),
                    strict=True,
                ):
                    if at < min(start + AHEAD_SIZE, end):
                        yield at, end
                        return

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._blocks.clear()
        super().close()

    def _file_of(self, path: str) -> Any:
        """The open file; None when it is not there."""
        if path not in self._files:
            try:
                place, inner = self._storage._at(path)
                self._files[path] = place.open_input_file(inner)
            except FileNotFoundError:
                return None
            if len(self._files) > BLOCKS_MAX:
                self._files.popitem(last=False)[1].close()
        return self._files[path]

    def _block(self, path: str, file: Any, number: int) -> bytes:
        key = path, number
        if key in self._blocks:
            self._blocks.move_to_end(key)
            return self._blocks[key]
        length = max(min(BLOCK, file.size() - number * BLOCK), 0)
        data = self._blocks[key] = bytes(file.read_at(length, number * BLOCK)) if length else b""
        if len(self._blocks) > BLOCKS_MAX:
            self._blocks.popitem(last=False)
        return data


def spread(function: Callable[[T], R], items: Sequence[T], *, is_local: bool) -> list[R]:
    """What a function gives for each: elsewhere many at once, since each waits for answers."""
    if is_local or len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(len(items), AT_ONCE)) as threads:
        return list(threads.map(function, items))


def storage_of(
    path: str, settings: Settings = (), seen: dict[str, list[Entry]] | None = None
) -> Storage:
    """Where a path lies. `seen`: what is listed once is not listed again."""
    scheme, separator, rest = path.partition("://")
    if not separator or not scheme.isalnum():
        return LOCAL
    return RemoteStorage(scheme.lower(), rest.split("/", 1)[0], settings, seen)


def local_path(path: str) -> str:
    """A path of this machine without `file:`; any other one as it is."""
    for start in ("file://", "file:"):
        if path.lower().startswith(start) and path[len(start) : len(start) + 1] == "/":
            return path[len(start) :]
    return path


def need_local(roots: Iterable[str], what: str) -> None:
    """Raises `StorageError` for what can only be done with local files."""
    for root in roots:
        if not storage_of(root).is_local:
            raise StorageError(f"{what} reads local directories only, not {root}")


@cache
def _file_system(scheme: str, authority: str, settings: Settings) -> "tuple[FileSystem, bool]":
    """pyarrow's file system for a scheme, and whether paths in it begin with the authority.

    Raises `StorageError`.
    """
    from pyarrow import fs

    try:
        if scheme in S3_SCHEMES:
            return fs.S3FileSystem(**s3_arguments(dict(settings), authority)), True
        if scheme in ("gs", "gcs"):
            return fs.GcsFileSystem(), True
        found, inner = fs.FileSystem.from_uri(f"{scheme}://{authority}/")
        return found, bool(inner.strip("/"))
    except Exception as exc:
        told = " ".join(str(exc).splitlines())[:TOLD_MAX]
        raise StorageError(f"{scheme}://{authority} cannot be opened: {told}") from exc


def s3_arguments(settings: dict[str, str], bucket: str) -> dict[str, Any]:
    """What the settings of Hadoop's S3A mean for pyarrow; what is not set is left to AWS's own
    environment and files."""
    names = {
        "access_key": "fs.s3a.access.key",
        "secret_key": "fs.s3a.secret.key",
        "session_token": "fs.s3a.session.token",
        "endpoint_override": "fs.s3a.endpoint",
        "region": "fs.s3a.endpoint.region",
    }
    found: dict[str, Any] = {
        name: settings[key] for name, key in names.items() if settings.get(key)
    }
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        if os.environ.get(name):
            found.setdefault("endpoint_override", os.environ[name])
    if settings.get("fs.s3a.connection.ssl.enabled", "true") == "false":
        found["scheme"] = "http"
    if settings.get("fs.s3a.path.style.access", "true") == "false":
        found["force_virtual_addressing"] = True
    if "Anonymous" in settings.get("fs.s3a.aws.credentials.provider", ""):
        found["anonymous"] = True
    if "endpoint_override" not in found and "region" not in found and not _has_region():
        from pyarrow.fs import resolve_s3_region

        found["region"] = resolve_s3_region(bucket)
    return found | {"connect_timeout": CONNECT_S, "request_timeout": REQUEST_S}


def _has_region() -> bool:
    return any(os.environ.get(name) for name in ("AWS_REGION", "AWS_DEFAULT_REGION"))
