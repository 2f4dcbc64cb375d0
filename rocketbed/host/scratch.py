"""Temporary directories of runs, in memory if the system supports that.

Each directory is recorded for the reaper before it is created, so that it is removed however the
process ends. A process begins its record with its first directory.
"""

import atexit
import os
import secrets
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

from rocketbed.host.closing import Closing
from rocketbed.host.janitor.record import Ledger

MEMORY: Final = "/dev/shm"
PREFIX: Final = "rocketbed-run-"


class Scratch(Closing):
    """A new, empty directory, removed when it is closed or this process ends."""

    def __init__(self, *, in_memory: bool = True) -> None:
        """Create the directory, in memory or among the system's temporary files. Raises
        `OSError`."""
        root = MEMORY if in_memory and os.access(MEMORY, os.W_OK) else tempfile.gettempdir()
        self._keeper = keeper()
        self.path = Path(root) / f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        self._number = self._keeper.note("directory", self.path)
        self.path.mkdir(mode=0o700)

    def close(self) -> None:
        """Remove the directory with its content, if it still exists."""
        shutil.rmtree(self.path, ignore_errors=True)
        if not self.path.exists():
            self._keeper.forget(self._number)


def keeper() -> Ledger:
    """Return this process's record of resources to remove. Raises `OSError`."""
    return _keeper_of(os.getpid())


@cache
def _keeper_of(_pid: int) -> Ledger:
    """Return a record for this process id: a forked process has its own, and must not remove its
    parent's resources."""
    run = Ledger.begin()
    atexit.register(run.close)
    return run
