"""The wall clock of one real process, moved or hurried by libfaketime; its timers are not affected.

The library reads the offset from a file at each look at the clock (about 4 us), so a jump takes
effect at once. `time.sleep` fails under it with Python 3.11; nodes sleep in trio, which does not
use it. Its correction of waits on the monotonic clock is switched off: with it every hop to a
thread took 3 ms (0.07 ms without), and a node needed seconds to start. File times stay real. For
each killed process it leaves two files in /dev/shm: `attach` puts them on record, and the janitor
looks for those of processes it kills.

Settings: chaos.md 3.2 no. 17.
"""

import time
from pathlib import Path
from typing import Final

from rocketbed.host.errors import HostError
from rocketbed.host.files import write_whole
from rocketbed.host.janitor.cleaners import faketime_files
from rocketbed.host.janitor.record import Ledger

LIBRARY_GLOBS: Final = (
    "/usr/lib/*/faketime/libfaketimeMT.so.1",
    "/usr/lib*/faketime/libfaketimeMT.so.1",
    "/usr/local/lib/faketime/libfaketimeMT.so.1",
)
"""Its places after an install by Debian, Fedora and `make install`."""


class ClockFaults:
    """The wall clock of one node, over all its starts."""

    def __init__(self, directory: Path, *, run: Ledger, rate: int = 1) -> None:
        """`directory` gets the file with the offset; `rate` as `Background.wall_rate`. Raises
        `HostError`."""
        self.library = find_library()
        self.offset_path = directory.absolute() / "clock.offset"
        self.offset_path.parent.mkdir(parents=True, exist_ok=True)
        self.offset_s = 0.0
        """Seconds that the node's wall clock is ahead."""
        self._rate = rate
        self._began_s = time.monotonic()
        self._gained_s = 0.0
        """Seconds that it was ahead because of its rate when the latest process began; the library
        counts on from there."""
        self._run = run
        self._pids: dict[int, list[int]] = {}
        self._write()

    def environment(self) -> dict[str, str]:
        """Return the environment of a process that is started now."""
        self._gained_s = (time.monotonic() - self._began_s) * (self._rate - 1)
        self._write()
        return {
            "LD_PRELOAD": self.library,
            "FAKETIME_TIMESTAMP_FILE": str(self.offset_path),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
            "NO_FAKE_STAT": "1",
        }

    def attach(self, pid: int) -> None:
        """Put the files that a running process will leave on record."""
        self._pids[pid] = [self._run.note("file", path) for path in faketime_files(pid)]

    def jump(self, seconds: float) -> float:
        """Move the wall clock by this much, forward or back. Return how far it is ahead now."""
        self.offset_s += seconds
        self._write()
        return self.offset_s

    def close(self) -> None:
        """Remove what the processes left. They have ended."""
        for pid, records in self._pids.items():
            for path in faketime_files(pid):
                path.unlink(missing_ok=True)
            for record in records:
                self._run.forget(record)
        self._pids.clear()

    def _write(self) -> None:
        write_whole(self.offset_path, f"{self.offset_s + self._gained_s:+.6f} x{self._rate}\n")


def find_library() -> str:
    """Return the path of libfaketime's form for threads. Raises `HostError`."""
    for pattern in LIBRARY_GLOBS:
        for path in sorted(Path("/").glob(pattern.lstrip("/"))):
            return str(path)
    raise HostError("libfaketime not found; install it (Debian: apt-get install faketime)")
