"""Directories for temporary files of runs: in memory, if the system has such a place.

Each place is on record of the janitor before it is made, so that it goes with the harness that made
it, however that ends. A process begins its record when it needs the first place.
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
    """A directory of its own, empty at first. Closing takes it away, and so does our end."""

    def __init__(self, *, in_memory: bool = True) -> None:
        """Make the directory, in memory or among the system's temporary files. Raises `OSError`."""
        root = MEMORY if in_memory and os.access(MEMORY, os.W_OK) else tempfile.gettempdir()
        self._keeper = keeper()
        self.path = Path(root) / f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        self._number = self._keeper.note("directory", self.path)
        self.path.mkdir(mode=0o700)

    def close(self) -> None:
        """Take it away, with all that is in it. What is gone already is gone."""
        shutil.rmtree(self.path, ignore_errors=True)
        if not self.path.exists():
            self._keeper.forget(self._number)


def keeper() -> Ledger:
    """This process's record of what it has to take away. Raises `OSError`."""
    return _keeper_of(os.getpid())


@cache
def _keeper_of(_pid: int) -> Ledger:
    """A forked process has one of its own: what its parent keeps is not its to take away."""
    run = Ledger.begin()
    atexit.register(run.close)
    return run
