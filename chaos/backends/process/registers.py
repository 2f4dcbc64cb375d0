"""The register of a controller as a file that is copied, lost, and restored.

It is renamed rather than copied: what a process with the open file still writes is then in the
newest one, as an operator would find it.
"""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from rocketbed.chaos.plan.verbs import RegisterFault

PARTS: Final = ("", "-wal", "-shm")
"""Parts of a SQLite file that is open, or whose process was killed."""
SPOILT: Final = 4096
"""Bytes at its beginning that are damaged."""


class RegisterFile:
    """Register file, with its copies beside it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._copied = path.with_name(f"{path.name}.copied")
        self._newest = path.with_name(f"{path.name}.newest")

    def copy(self) -> bool:
        """Keep a copy. Return False if there is no register. Raises `OSError`, `sqlite3.Error`."""
        if not self._path.exists():
            return False
        _remove(self._copied)
        for part in PARTS[:2]:  # a commit meanwhile is written after the copied part
            if _part(self._path, part).exists():
                shutil.copyfile(_part(self._path, part), _part(self._copied, part))
        with closing(sqlite3.connect(self._copied)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
        return True

    def lose(self, fault: RegisterFault) -> bool:
        """Put the register aside and replace it, as `Backend.lose_register`. Raises `OSError`."""
        if not self._path.exists():
            return False
        _remove(self._newest)
        owner = self._path.stat()
        for part in PARTS:
            if _part(self._path, part).exists():
                _part(self._path, part).rename(_part(self._newest, part))
        if fault == "old":
            shutil.copyfile(self._copied, self._path)
        elif fault == "damage":
            content = self._newest.read_bytes()
            self._path.write_bytes(bytes(SPOILT) + content[SPOILT:])
        if self._path.exists() and os.geteuid() == 0:
            os.chown(self._path, owner.st_uid, owner.st_gid)
        return True

    def bring_back(self) -> None:
        """Restore the newest register. Raises `OSError`."""
        _remove(self._path)
        for part in PARTS:
            if _part(self._newest, part).exists():
                _part(self._newest, part).rename(_part(self._path, part))


def _part(path: Path, part: str) -> Path:
    return path.with_name(path.name + part)


def _remove(path: Path) -> None:
    for part in PARTS:
        _part(path, part).unlink(missing_ok=True)
