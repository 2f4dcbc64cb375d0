"""Crash points by name in real processes: the node dies when it reaches a mark.

A node's `World.mark` does nothing in production. The launcher of a tied process
(`rocketbed.host.parent_death`) replaces it by a function that reads a small mapped file, so the
node's code stays unchanged.
"""

import mmap
import os
import signal
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

VARIABLE: Final = "ROCKETBED_MARKS"
SIZE: Final = 256
"""Bytes of the file: a pattern, then zeros. All zeros: no crash."""


class Marks:
    """Harness's side: sets the mark at which a node dies."""

    def __init__(self, directory: Path) -> None:
        self._path = directory.absolute() / "marks"

    def environment(self) -> dict[str, str]:
        """Return the environment for a start; create the file if missing."""
        if not self._path.exists():
            self.crash_at(None)
        return {VARIABLE: str(self._path)}

    def crash_at(self, pattern: str | None) -> None:
        """Die at the next mark that matches this pattern; None: at none."""
        data = (pattern or "").encode().ljust(SIZE, b"\0")
        if len(data) > SIZE:
            raise ValueError(f"a mark pattern is limited to {SIZE} bytes")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, data, 0)
        finally:
            os.close(descriptor)


def watched(path: str) -> Callable[[str], None]:
    """Node's side: return a `World.mark` that dies where the file says so."""
    with open(path, "rb") as file:
        view = mmap.mmap(file.fileno(), SIZE, access=mmap.ACCESS_READ)

    def mark(name: str) -> None:
        if view[0] and fnmatchcase(name, view[:].rstrip(b"\0").decode()):
            os.kill(os.getpid(), signal.SIGKILL)

    return mark
