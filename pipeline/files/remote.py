"""Files of an object store or another file system, through pyarrow: see `storage`."""

import errno
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rocketbed.inspect.files import NAME_SIZE, FilePool, Listing, listing_of
from rocketbed.pipeline.files.places import check_authority, file_system, translated_errors
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
"""Schemes that are other names of the same storage."""
BLOCK: Final = 256 << 10
"""Minimum bytes of a request: a request takes as long as the transfer of some hundred KiB."""
BLOCKS_MAX: Final = 64
AHEAD: Final = 8
"""Concurrent requests in a range that is expected to be zeros."""
AHEAD_SIZE: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class RemoteStorage(Storage):
    """Files of a storage with a scheme."""

    scheme: str
    authority: str
    settings: Settings = field(default=(), repr=False)
    """May hold secrets."""
    listings: dict[str, list[Entry]] | None = field(default=None, repr=False, compare=False)
    """Cached listings while a read is planned; None: no cache."""

    is_local = False
    queues_max = 16

    def __reduce__(self) -> tuple[type, tuple[str, str, Settings]]:
        return RemoteStorage, (self.scheme, self.authority, self.settings)

    def entries(self, directory: str) -> list[Entry]:
        if self.listings is None:
            return self._listed(directory)
        if directory not in self.listings:
            self.listings[directory] = self._listed(directory)
        return self.listings[directory]

    def _listed(self, directory: str) -> list[Entry]:
        from pyarrow.fs import FileSelector, FileType

        place, inner = self.at(directory)
        with translated_errors(directory):
            listed = place.get_file_info(FileSelector(inner, allow_not_found=True))
        return sorted(
            Entry(
                one.base_name,
                f"{directory.rstrip('/')}/{one.base_name}",
                one.type == FileType.Directory,
                one.size or 0,
            )
            for one in listed
        )

    def segments(self, directory: str, digits: int = NAME_SIZE) -> Listing:
        files = [one for one in self.entries(directory) if not one.is_dir]
        return listing_of(((one.name, one.path, one.size) for one in files), digits)

    def is_dir(self, path: str) -> bool:
        from pyarrow.fs import FileType

        if self.listings is not None and self.entries(path):
            return True
        return bool(self._type(path) == FileType.Directory)

    def is_file(self, path: str) -> bool:
        from pyarrow.fs import FileType

        return bool(self._type(path) == FileType.File)

    def content(self, path: str, size: int) -> bytes:
        place, inner = self.at(path)
        with translated_errors(path), place.open_input_stream(inner) as file:
            return bytes(file.read(size))

    def pool(self) -> FilePool:
        return RemotePool(self)

    def open(self, path: str) -> "_RemoteFile":
        return _RemoteFile(self, path)

    def identity(self, path: str) -> object:
        scheme, remainder = ALIASES.get(self.scheme, self.scheme), path.partition("://")[2]
        host, slash, inner = remainder.partition("/")
        return scheme, one_host(host) + slash + inner if scheme == "abfs" else remainder

    def _type(self, path: str) -> Any:
        place, inner = self.at(path)
        with translated_errors(path):
            return place.get_file_info(inner).type

    def at(self, path: str) -> "tuple[FileSystem, str]":
        """Return the file system, and the path in it."""
        place, root = file_system(self.scheme, self.authority, self.settings)
        remainder = path.partition("://")[2].rstrip("/").removeprefix(self.authority)
        return place, f"{root}{remainder}" or "/"


class _RemoteFile:
    """File that must stay as it was when it was opened: a read of a replaced file is an error."""

    def __init__(self, storage: RemoteStorage, path: str) -> None:
        self._path = path
        self._place, self._inner = storage.at(path)
        with translated_errors(path):
            self._file = self._place.open_input_file(self._inner)
        self._opened = self._info()

    def size(self) -> int:
        return int(self._info().size)

    def read_into(self, view: memoryview, position: int) -> int:
        """Read and return the number of bytes. Raises `Replaced`: pyarrow does not notice a short
        answer."""
        with translated_errors(self._path):
            self._file.seek(position)
            count = int(self._file.readinto(view))
        now = self._info()
        if (now.size, now.mtime_ns) != (self._opened.size, self._opened.mtime_ns):
            raise Replaced(errno.ESTALE, "it was replaced while it was read", self._path)
        return count

    def close(self) -> None:
        self._file.close()

    def _info(self) -> Any:
        with translated_errors(self._path):
            status = self._place.get_file_info(self._inner)
        if status.size is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._path)
        return status


class RemotePool(FilePool):
    """Read remote files by position, with few and large requests.

    A few MiB of blocks stay cached, and several requests run concurrently where a file may only be
    preallocated.
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
            with translated_errors(path):
                return bytes(file.read_at(max(min(size, file.size() - position), 0), position))
        first = position // BLOCK
        blocks = range(first, (position + size - 1) // BLOCK + 1)
        data = b"".join(self._block(path, file, number) for number in blocks)
        return data[position - first * BLOCK :][:size]

    def data_ranges(self, path: str, position: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield one range, which begins with the first byte that is not zero."""
        file = self._file_of(path)
        end = min(end, file.size()) if file is not None else 0
        if self.read(path, position, min(BLOCK, end - position)).strip(b"\0"):
            yield position, end
            return
        starts = range(position, end, AHEAD_SIZE)

        def filled(start: int) -> int:
            with translated_errors(path):
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
        """Return the open file; None if it does not exist."""
        if path not in self._files:
            try:
                place, inner = self._storage.at(path)
                with translated_errors(path):
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
        with translated_errors(path):
            data = bytes(file.read_at(length, number * BLOCK)) if length else b""
        self._blocks[key] = data
        if len(self._blocks) > BLOCKS_MAX:
            self._blocks.popitem(last=False)
        return data


def storage_of(
    path: str, settings: Settings = (), listings: dict[str, list[Entry]] | None = None
) -> Storage:
    """Return the storage of a path. `listings`: cache of listings.

    Raises `StorageError`.
    """
    scheme, separator, address = path.partition("://")
    if not separator or not scheme.isalnum():
        return LOCAL if listings is None else ListedOnce()
    authority = address.split("/", 1)[0]
    check_authority(scheme, authority)
    return RemoteStorage(scheme.lower(), authority, settings, listings)


def need_local(roots: Iterable[str], purpose: str) -> None:
    """Raises `StorageError` for what can only be done with local files."""
    for root in roots:
        if not storage_of(root).is_local:
            raise StorageError(f"{purpose} reads local directories only, not {root}")
