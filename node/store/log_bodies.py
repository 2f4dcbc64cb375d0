"""Choice of the functions for the two loops over all records: `RecordScanner.scan` and
`IndexFile.put_entries` in Python, always available, or native ones for most of their work.

As for plain sends (plain_body.py): both do the same (tests/property/test_log_native.py), and a
simulation runs the Python ones.
"""

from collections.abc import Callable
from typing import NamedTuple


class LogBodies(NamedTuple):
    """The native functions; `log_native.pyi` describes their arguments and results."""

    scan: Callable[..., int]
    put_keys: Callable[..., tuple[int, int, int, int, int, int, int]]


def log_bodies(*, enabled: bool) -> LogBodies | None:
    """Return the native functions, or None if they are off or were not built."""
    if not enabled:
        return None
    try:
        from rocketbed.node.store import log_native
    except ImportError:
        return None
    return LogBodies(log_native.scan, log_native.put_keys)
