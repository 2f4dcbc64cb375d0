"""Destination of an export: a local directory, or one of a remote file system with a scheme.

Spark writes the messages, and pyarrow the manifest: both have to support the scheme.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocketbed.pipeline.errors import Unwritable
from rocketbed.pipeline.files.remote import RemoteStorage, storage_of
from rocketbed.pipeline.files.storage import Storage, plain_path
from rocketbed.pipeline.jobs.common import WrongUsage
from rocketbed.pipeline.option_table import Settings
from rocketbed.pipeline.report import write_whole

LOCK: Final = "_rocketbed_lock"
SIZE_MAX: Final = 1 << 30
"""Maximum bytes of a manifest."""


@dataclass(frozen=True, slots=True)
class Place:
    """An output directory."""

    path: str
    storage: Storage

    @classmethod
    def of(cls, text: str, settings: Settings, stores: Iterable[str] = ()) -> "Place":
        """Parse a path outside the input `stores`. Raises `StorageError`, `WrongUsage`."""
        path = plain_path(text).rstrip("/") or "/"
        storage = storage_of(path, settings)
        if ":" in path.partition("/")[0] and storage.is_local:
            raise WrongUsage(f"--out {text}: expected a directory, or SCHEME://... in Spark's form")
        place = cls(path if not storage.is_local else str(Path(path).absolute()), storage)
        place._check_apart(stores)
        return place

    def _check_apart(self, stores: Iterable[str]) -> None:
        """Raise `WrongUsage` for a directory in a store, whose broker owns all files in it.

        `stores` are the input roots; on this machine any other store is recognised too.
        """
        if not self.is_local:
            roots = [root.rstrip("/") for root in stores]
            stores_around = [root for root in roots if f"{self.path}/".startswith(f"{root}/")]
        else:
            real = Path(os.path.realpath(self.path))
            stores_around = [
                str(root) for root in (real, *real.parents) if (root / "commitlog").is_dir()
            ]
        if stores_around:
            raise WrongUsage(
                f"--out {self.path} is in the store {stores_around[0]}: give a directory outside"
                f" it, as {stores_around[0]}-out"
            )

    @property
    def is_local(self) -> bool:
        return self.storage.is_local

    @property
    def for_spark(self) -> str:
        """Path for Spark, independent of its default file system."""
        return f"file:{self.path}" if self.is_local else self.path

    def at(self, name: str) -> str:
        return f"{self.path.rstrip('/')}/{name}"

    def names(self) -> list[str]:
        """Return the names of its entries. Raises `OSError`."""
        return [entry.name for entry in self.storage.entries(self.path) if entry.name != LOCK]

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of every file below it, by path. Raises `OSError`."""
        if isinstance(self.storage, RemoteStorage):
            from pyarrow.fs import FileSelector

            system, inner = self.storage.at(self.path)
            listed = system.get_file_info(FileSelector(inner, recursive=True))
            begin = len(inner.rstrip("/")) + 1
            return {
                str(info.path[begin:]): int(info.size) for info in listed if info.size is not None
            }
        by_path: dict[str, int] = {}
        for folder, _, names in os.walk(self.path, followlinks=True):
            for name in names:
                path = os.path.join(folder, name)
                with suppress(OSError):
                    by_path[os.path.relpath(path, self.path)] = os.stat(path).st_size
        return by_path

    def read(self, name: str) -> bytes | None:
        """Read a file of it; None if it is missing. Raises `OSError`."""
        with suppress(FileNotFoundError):
            return self.storage.content(self.at(name), SIZE_MAX)
        return None

    def write(self, name: str, data: str | bytes) -> None:
        """Write a file in it. Raises `OSError`."""
        if isinstance(self.storage, RemoteStorage):
            system, inner = self.storage.at(self.at(name))
            with system.open_output_stream(inner) as file:
                file.write(data.encode() if isinstance(data, str) else data)
        else:
            write_whole(Path(self.at(name)), data)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock it against other exports; a remote directory is protected by its manifest only.

        Raises `WrongUsage`, `Unwritable`.
        """
        if not self.is_local:
            yield
            return
        try:
            Path(self.path).mkdir(parents=True, exist_ok=True)
            file = open(self.at(LOCK), "w")  # noqa: SIM115 (closed below)
        except OSError as error:
            raise Unwritable(self.path, error) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise WrongUsage(f"another export is writing to {self.path}") from error
            yield
