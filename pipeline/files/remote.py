"""Files of an object store or another file system, through pyarrow: see `storage`."""

import errno
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rocketbed.inspect.files import NAME_SIZE, FilePool, Listing, listing_of
from rocketbed.pipeline.files.places import asked, check_authority, file_system
from rocketbed.pipeline.files.storage import (
    LOCAL,
    Entry,
    ListedOnce,
    Replaced,
    Storage,
    StorageError,
)
from rocketbed.pipeline.option_table import Settings, one_host

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

ALIASES: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs"}
"""Schemes under which the same places are reached as under another one."""
BLOCK: Final = 256 << 10
"""Bytes of a request for less: a request costs as long as some hundred KiB of transfer."""
BLOCKS_MAX: Final = 64
AHEAD: Final = 8
"""Requests at once where nothing but zeros is expected."""
AHEAD_SIZE: Final = 8 << 20


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

        place, inner = self.at(directory)
        with asked(directory):
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
        place, inner = self.at(path)
        with asked(path), place.open_input_stream(inner) as file:
            return bytes(file.read(size))

    def pool(self) -> FilePool:
        return RemotePool(self)

    def open(self, path: str) -> "_RemoteFile":
        return _RemoteFile(self, path)

    def identity(self, path: str) -> object:
        scheme, rest = ALIASES.get(self.scheme, self.scheme), path.partition("://")[2]
        host, slash, inner = rest.partition("/")
        return scheme, one_host(host) + slash + inner if scheme == "abfs" else rest

    def _type(self, path: str) -> Any:
        place, inner = self.at(path)
        with asked(path):
            return place.get_file_info(inner).type

    def at(self, path: str) -> "tuple[FileSystem, str]":
        """The file system, and the path in it."""
        place, root = file_system(self.scheme, self.authority, self.settings)
        rest = path.partition("://")[2].rstrip("/").removeprefix(self.authority)
        return place, f"{root}{rest}" or "/"


class _RemoteFile:
    """A file as it was when it was opened: what is read is right only if it is that still."""

    def __init__(self, storage: RemoteStorage, path: str) -> None:
        self._path = path
        self._place, self._inner = storage.at(path)
        with asked(path):
            self._file = self._place.open_input_file(self._inner)
        self._opened = self._info()

    def size(self) -> int:
        return int(self._info().size)

    def read_into(self, view: memoryview, position: int) -> int:
        """Raises `Replaced`: pyarrow takes a short answer for what was asked for."""
        with asked(self._path):
            self._file.seek(position)
            count = int(self._file.readinto(view))
        now = self._info()
        if (now.size, now.mtime_ns) != (self._opened.size, self._opened.mtime_ns):
            raise Replaced(errno.ESTALE, "it was replaced while it was read", self._path)
        return count

    def close(self) -> None:
        self._file.close()

    def _info(self) -> Any:
        with asked(self._path):
            found = self._place.get_file_info(self._inner)
        if found.size is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._path)
        return found


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
            with asked(path):
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
            with asked(path):
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
                place, inner = self._storage.at(path)
                with asked(path):
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
        with asked(path):
            data = bytes(file.read_at(length, number * BLOCK)) if length else b""
        self._blocks[key] = data
        if len(self._blocks) > BLOCKS_MAX:
            self._blocks.popitem(last=False)
        return data


def storage_of(
    path: str, settings: Settings = (), seen: dict[str, list[Entry]] | None = None
) -> Storage:
    """Where a path lies. `seen`: what is listed once is not listed again.

    Raises `StorageError`.
    """
    scheme, separator, rest = path.partition("://")
    if not separator or not scheme.isalnum():
        return LOCAL if seen is None else ListedOnce()
    authority = rest.split("/", 1)[0]
    check_authority(scheme, authority)
    return RemoteStorage(scheme.lower(), authority, settings, seen)


def need_local(roots: Iterable[str], what: str) -> None:
    """Raises `StorageError` for what can only be done with local files."""
    for root in roots:
        if not storage_of(root).is_local:
            raise StorageError(f"{what} reads local directories only, not {root}")
