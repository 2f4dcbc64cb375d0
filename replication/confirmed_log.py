"""What slaves of the classic protocol see of a log whose end may be cut: what is confirmed of it.

So they never hold a byte that a failover takes away, though they know nothing of epochs
(replication.md 7.13).
"""

from contextlib import AbstractContextManager

from rocketbed.replication.api import ReplicaLog
from rocketbed.replication.watermark import Watermark
from rocketbed.world.api import File


class ConfirmedLog:
    """A `ReplicaLog` that ends where it is confirmed."""

    def __init__(self, log: ReplicaLog, confirmed: Watermark) -> None:
        self._log = log
        self.written = confirmed
        self.flushed = log.flushed

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

    def append_raw(self, offset: int, data: bytes | memoryview) -> None:
        raise NotImplementedError("a view, which nobody writes to")
