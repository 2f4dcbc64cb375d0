"""A log up to a given watermark.

Slaves of the classic protocol see only the confirmed part of a log whose end may be cut, so that
they never hold a byte that a failover removes, though they know nothing about epochs
(replication.md 7.13).
"""

from contextlib import AbstractContextManager

from rocketbed.replication.api import SentLog
from rocketbed.replication.watermark import Watermark
from rocketbed.world.api import File


class LogView:
    """A `SentLog` over another one, which ends at `written`."""

    def __init__(self, log: SentLog, written: Watermark) -> None:
        self._log = log
        self.written = written

    @property
    def segment_size(self) -> int:
        return self._log.segment_size

    @property
    def min_offset(self) -> int:
        return self._log.min_offset

    def read(self, offset: int, size: int) -> bytes:
        return self._log.read(offset, size)

    def read_cached(self, offset: int, size: int) -> bytes | None:
        return self._log.read_cached(offset, size)

    def pinned(self, offset: int) -> AbstractContextManager[tuple[File, int]]:
        return self._log.pinned(offset)
