"""Which bodies the two loops over all records have: `RecordScanner.scan` and
`IndexFile.put_entries` in Python, which are always there, or native ones for most of their work.

As for plain sends (plain_body.py): both do the same (tests/property/test_log_native.py),
and a simulation runs the Python ones.
"""

from collections.abc import Callable
from typing import NamedTuple


class LogBodies(NamedTuple):
    """The native functions; their arguments and results are described in `log_native.pyi`."""

    scan: Callable[..., int]
    put_keys: Callable[..., tuple[int, int, int, int, int, int, int]]


def log_bodies(*, wanted: bool) -> LogBodies | None:
    """The native bodies, or None: not wanted, or not built."""
    if not wanted:
        return None
    try:
        from rocketbed.node.store import log_native
    except ImportError:
        return None
    return LogBodies(log_native.scan, log_native.put_keys)
