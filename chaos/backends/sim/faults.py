"""Faults of a simulated disk, as data: which operation, on which file, when, and what happens."""

import errno
import os
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal


@dataclass(slots=True, kw_only=True)
class SimFault:
    """Fault of a disk. It counts down as it fires, so it belongs to one disk."""

    operation: str
    """An event's kind (`write`, `sync`, `create`, `rename`, ...), or `read`; `*` is any of them."""
    effect: Literal["error", "error_clean", "lose", "delay"] = "error"
    """`error` fails the call; `error_clean` fails a sync and marks its pages clean, so that the
    next one succeeds without them; `lose` lets a sync succeed without writing anything; `delay`
    adds `seconds`."""
    error: int = errno.EIO
    path: str = "*"
    """Pattern of the paths it applies to, as a shell writes it."""
    times: int | None = 1
    """Number of times that it fires; None for no limit."""
    seconds: float = 0.0
    fired: int = 0
    """Number of times that it has fired."""

    def fires(self, operation: str, path: str) -> bool:
        """Return whether this call is hit, and count it."""
        if self.operation not in ("*", operation) or not fnmatchcase(path, self.path):
            return False
        if self.times is not None and self.fired >= self.times:
            return False
        self.fired += 1
        return True


def disk_error(number: int, path: str) -> OSError:
    """Return an error as the system would word it; Python makes it the right subclass."""
    return OSError(number, os.strerror(number), path)
