"""The JSON tables under `config/`: loaded at start, written whole at each change (store.md 1.6).

A table is written beside its file, fsynced and renamed into place, the previous one staying as
`<name>.bak`: whatever a power cut leaves, one of the two is whole (trap T11; RocketMQ 5.3
overwrites in place without fsync). What is written is legal JSON, which fastjson reads too.
"""

import json
from collections.abc import Callable
from typing import Any

import trio

from rocketbed.wire.errors import RocketbedError
from rocketbed.wire.json_dialect import BodyError, loads
from rocketbed.world.api import World

AfterSave = Callable[["ConfigFileError | None"], None]

RETRY_S = 1.0
"""Pause after a failed save (a full disk), before the next try."""


class ConfigFileError(RocketbedError):
    """A table that can be neither read nor written; the message says what to do."""


class ConfigFile:
    """One table's file and its backup."""

    def __init__(self, world: World, directory: str, name: str) -> None:
        self._world = world
        self._directory = directory
        self.path = f"{directory}/{name}"
        self.is_clean = False
        """Whether the last `load` got the file itself, not its backup or nothing."""

    def load(self) -> dict[str, Any] | None:
        """The table, from the file or else from its backup; None when there is neither.

        Raises `ConfigFileError` when the backup is needed and cannot be read.
        """
        found = self._read(self.path)
        self.is_clean = isinstance(found, dict)
        if isinstance(found, dict):
            return found
        backup_path = f"{self.path}.bak"
        backup = self._read(backup_path)
        if isinstance(backup, dict):
            self._world.log.warning("config.from_backup", path=backup_path, reason=found)
            return backup
        if backup == "absent":
            if found != "absent":
                self._world.log.warning("config.defaults", path=self.path, reason=found)
            return None
        raise ConfigFileError(
            f"{backup_path} cannot be read ({backup}) and {self.path} is {found}:"
            " restore either of them, or remove both to start with defaults"
        )

    def _read(self, path: str) -> dict[str, Any] | str:
        """The table, or in words why there is none."""
        try:
            file = self._world.disk.open(path, writable=False)
        except FileNotFoundError:
            return "absent"
        try:
            data = file.read_at(0, file.size())
        except OSError as exc:
            return f"unreadable: {exc}"
        finally:
            file.close()
        if not data.strip(b"\0 \t\r\n"):
            return "empty"
        try:
            value = loads(data)
        except BodyError as exc:
            return str(exc)
        return value if isinstance(value, dict) else "no JSON object"

    async def write(self, value: dict[str, Any]) -> None:
        """Replace the table; durable when this returns. Raises `OSError`.

        After a cancellation either the old or the new table is in place.
        """
        disk = self._world.disk
        disk.makedirs(self._directory)
        data = json.dumps(value, indent="\t", separators=(",", ":"), ensure_ascii=False).encode()
        temporary = f"{self.path}.tmp"
        file = disk.open(temporary, create=True)
        try:
            file.truncate(0)
            file.write_at(0, data)
            await file.sync()
        finally:
            file.close()
        if disk.exists(self.path):
            disk.rename(self.path, f"{self.path}.bak")
        disk.rename(temporary, self.path)
        await disk.sync_dir(self._directory)


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
        """Whether something is not on disk yet."""
        return self._saved < self._changes

    def touch(self) -> None:
        """Note a change; `run` will write it."""
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
        """Write changes as they come, until cancelled; `after_save` hears how each try ended."""
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
