"""The JSON tables under `config/`: loaded at start, written whole at each change (store.md 1.6).

A table is written beside its file, fsynced and renamed into place, the previous one staying as
`<name>.bak`: whatever a power cut leaves, one of the two is whole (trap T11; RocketMQ 5.3
overwrites in place without fsync). A damaged one stays as `<name>.damaged`. The text is legal JSON,
which fastjson reads too.
"""

import contextlib
import errno
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
import trio

from rocketbed.wire.encoding.json_dialect import BodyError, loads
from rocketbed.wire.errors import RocketbedError
from rocketbed.world.api import World

Settling = Callable[[], Callable[[], Awaitable[None]]]
AfterSave = Callable[["ConfigFileError | None"], None]

T = TypeVar("T")

ABSENT, EMPTY = "absent", "empty"
PIECE = 1 << 20
"""Bytes that are written before other tasks run; a million offsets take 20 MB."""
LARGE = 1 << 18
"""Bytes from which a table is not written in RocketMQ's layout: `json` takes 10 ms for as much."""
RETRY_S = 1.0
"""Pause after a failed save (a full disk), before the next try."""


MARKED = {"topics.json": "topics", "consumerOffset.json": "offsets"}
"""Tables whose saves have crash points of their own; those of all other tables are called
`config`."""


class ConfigFileError(RocketbedError):
    """A table that can be neither read nor written; the message says what to do."""


class TableLost(ConfigFileError):
    """Neither a table's file nor its backup can be read."""


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """A file that yields no table, with the reason in words."""

    why: str


class ConfigFile:
    """The file of a table, and its backup."""

    def __init__(self, world: World, directory: str, name: str) -> None:
        self._world = world
        self._directory = directory
        self.path = f"{directory}/{name}"
        self._mark = MARKED.get(name, "config")
        self.is_clean = False
        """True if the last `load` got the file itself, not its backup or nothing."""
        self._kept_as: str | None = "bak"
        """Suffix under which the present file is kept when it is replaced: a damaged one must not
        replace a good backup; None: it is empty, and not kept."""

    def load(self, parse: Callable[[dict[str, Any]], T]) -> T | None:
        """Return the table from the file, else from its backup; None if there is neither.

        `parse` may raise `BodyError`: such a file counts as unreadable. Raises `TableLost` when the
        backup is needed and cannot be read, `ConfigFileError` when a folder has the name of a file
        that `write` needs.
        """
        self._refuse_what_is_in_the_way()
        table = self._read(self.path, parse)
        self.is_clean = not isinstance(table, _Unreadable)
        if not isinstance(table, _Unreadable):
            self._kept_as = "bak"
            return table
        self._kept_as = None if table.why in (ABSENT, EMPTY) else "damaged"
        saved_as = self._kept_as and f"{self.path}.{self._kept_as}"
        backup_path = f"{self.path}.bak"
        backup = self._read(backup_path, parse)
        warning = self._world.log.warning
        if not isinstance(backup, _Unreadable):
            warning("config.from_backup", path=backup_path, reason=table.why, kept=saved_as)
            return backup
        if backup.why == ABSENT:
            if table.why != ABSENT:
                warning("config.defaults", path=self.path, reason=table.why, kept=saved_as)
            return None
        raise TableLost(
            f"{backup_path} cannot be read ({backup.why}) and {self.path} is {table.why}:"
            " restore either of them, or remove both to start with defaults"
        )

    def _refuse_what_is_in_the_way(self) -> None:
        disk, directory = self._world.disk, self._directory
        if disk.exists(directory) and not disk.is_dir(directory):
            raise ConfigFileError(f"{directory} is no directory: move it away, then start again")
        for path in (self.path, f"{self.path}.bak", f"{self.path}.tmp"):
            if disk.exists(path) and not disk.is_file(path):
                raise ConfigFileError(
                    f"{path} is no file, and the node keeps a table there: move it away, then"
                    " start again"
                )

    def _read(self, path: str, parse: Callable[[dict[str, Any]], T]) -> T | _Unreadable:
        try:
            file = self._world.disk.open(path, writable=False)
        except FileNotFoundError:
            return _Unreadable(ABSENT)
        except OSError as exc:
            if exc.errno not in (errno.EMFILE, errno.ENFILE):
                return _Unreadable(f"unreadable: {exc}")
            # The file is not damaged, so its backup, which is older, must not replace it.
            raise ConfigFileError(
                f"{path} cannot be read: {exc.strerror}; raise the limit (ulimit -n), or end what"
                " has so many files open"
            ) from exc
        try:
            data = file.read_at(0, file.size())
        except OSError as exc:
            return _Unreadable(f"unreadable: {exc}")
        finally:
            file.close()
        if not data.strip(b"\0 \t\r\n"):
            return _Unreadable(EMPTY)
        try:
            value = loads(data)
            return parse(value) if isinstance(value, dict) else _Unreadable("no JSON object")
        except BodyError as exc:
            return _Unreadable(str(exc))

    def read_bytes(self) -> bytes:
        """Return the contents of the file. Raises `OSError`."""
        file = self._world.disk.open(self.path, writable=False)
        try:
            return file.read_at(0, file.size())
        finally:
            file.close()

    async def write(self, value: dict[str, Any]) -> None:
        """Replace the table; durable when this returns. Raises `OSError`.

        After a cancellation either the old or the new table is in place.
        """
        await self.replace(_text(value))

    async def replace(self, data: bytes) -> None:
        """Replace the file's bytes, as `write` does."""
        disk = self._world.disk
        disk.makedirs(self._directory)
        temporary = f"{self.path}.tmp"
        file = disk.open(temporary, create=True)
        try:
            file.truncate(0)
            for at in range(0, len(data), PIECE):
                file.write_at(at, data[at : at + PIECE])
                await trio.lowlevel.checkpoint()
            self._world.mark(f"{self._mark}.written")
            await file.sync()
        finally:
            file.close()
        if self._kept_as is not None and disk.exists(self.path):
            disk.rename(self.path, f"{self.path}.{self._kept_as}")
        disk.rename(temporary, self.path)
        self._world.mark(f"{self._mark}.renamed")
        self._kept_as = "bak"
        await disk.sync_dir(self._directory)


def _text(value: dict[str, Any]) -> bytes:
    """Return a table in RocketMQ's layout, with tabs and no blanks (store.md 1.6); a large one with
    blanks, since the loop waits: a million offsets take 0.03 s that way, and 0.8 s with `json`."""
    with contextlib.suppress(TypeError):  # for a number of more than 64 bits
        text = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)
        if len(text) > LARGE:
            return text
    return json.dumps(value, indent="\t", separators=(",", ":"), ensure_ascii=False).encode()


class SavedTable:
    """A table in memory whose changes are written to its file, many at a time."""

    def __init__(
        self, world: World, file: ConfigFile, render: Callable[[], dict[str, Any]]
    ) -> None:
        self._world = world
        self.file = file
        self._render = render
        self._changes = 0
        self._saved = 0
        self._lock = trio.Lock()
        self._changed = trio.Event()

    @property
    def is_dirty(self) -> bool:
        """True if some change is not on disk yet."""
        return self._saved < self._changes

    def touch(self) -> None:
        """Count a change; `run` will write it."""
        self._changes += 1
        self._changed.set()

    async def save(self) -> None:
        """Write until everything changed before the call is durable. Raises `ConfigFileError`."""
        target = self._changes
        async with self._lock:
            if self._saved >= target:
                return
            changes = self._changes
            try:
                await self.file.write(self._render())
            except OSError as exc:
                raise ConfigFileError(f"{self.file.path} cannot be written: {exc}") from exc
            self._saved = changes

    async def run(self, after_save: AfterSave | None = None) -> None:
        """Write changes as they come, until cancelled; `after_save` gets the outcome of each
        try."""
        while True:
            if not self.is_dirty:
                self._changed = trio.Event()
                await self._changed.wait()
            try:
                await self.save()
            except ConfigFileError as exc:
                self._world.log.error("config.save_failed", error=str(exc))
                if after_save is not None:
                    after_save(exc)
                await trio.sleep(RETRY_S)
            else:
                if after_save is not None:
                    after_save(None)
