"""Replication's view of a log. Offsets are bytes from the beginning of the log.

The node's store implements these protocols; replication never imports it.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from rocketbed.replication.watermark import Watermark
from rocketbed.world.api import File


class SentLog(Protocol):
    """A commit log as its sender sees it.

    Invariant: `min_offset <= written`; an empty log has `min_offset == written`.
    """

    @property
    def segment_size(self) -> int:
        """Bytes of a segment; equal on a master and its slaves."""
        ...

    @property
    def min_offset(self) -> int:
        """First byte that still exists."""
        ...

    @property
    def written(self) -> Watermark:
        """End of what is written (page cache)."""
        ...

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes, to the end of the segment or of the log. May block on the
        disk; in the loop only, since nothing pins the file meanwhile (a thread uses `pinned`)."""
        ...

    def read_cached(self, offset: int, size: int) -> bytes | None:
        """Return the same, or None if the page cache does not hold all of it."""
        ...

    def pinned(self, offset: int) -> AbstractContextManager[tuple[File, int]]:
        """Yield the file of the segment that holds `offset`, and the position in it.

        It is neither closed nor removed inside the block. Raises `FileNotFoundError`.
        """
        ...


class ReplicaLog(SentLog, Protocol):
    """A commit log that replication also writes to. Invariant: `flushed <= written`."""

    @property
    def flushed(self) -> Watermark:
        """End of what is on disk."""
        ...

    def append_raw(self, offset: int, data: bytes | memoryview) -> None:
        """Append bytes unchanged, within one segment; `offset` is the end of the log.

        An empty log accepts any offset and begins there. Raises `OSError`, and `RecordRefused` for
        bytes from a leader.
        """
        ...


@dataclass(frozen=True, slots=True)
class WholeRecord:
    """A record of the log. Physical offsets."""

    start: int
    end: int
    """Start of the next record: after this one, or after the blank one that ends its segment."""


class MasterMemory(Protocol):
    """Record of the master whose log a slave has. The node's store holds it."""

    @property
    def followed(self) -> str | None:
        """Master that this log followed last, empty if none, None if the record of it was lost."""
        ...

    async def note(self, master: str) -> None:
        """Record, durably, that the log is this master's now. Raises `OSError`, and the error of a
        store that fails meanwhile."""
        ...


class LogCutter(Protocol):
    """Cuts the end of a slave's log. Implemented by the node's store."""

    cut_at: int
    """Offset that an operator ordered, at which the log is cut whatever master it follows; -1 for
    none."""
    promotion: int
    """Number of the last promotion, 0 if none is recorded."""

    async def last_record(self, offset: int) -> WholeRecord | None:
        """Return the last record that ends at or below `offset`; None if there is none. May take
        long."""
        ...

    async def cut(self, offset: int) -> tuple[str, int]:
        """Make `offset`, the end of a record, the end of the log, and save a copy of what followed.

        Returns the path of the copy and its size in bytes. A cancellation leaves all or nothing
        done. Raises `CutRefused` if nothing was changed; any other error has to end the node.
        """
        ...


class EpochLog(ReplicaLog, Protocol):
    """A log whose epochs begin with marker records (replication.md 7.3)."""

    @property
    def copied_from(self) -> str | None:
        """`host:port` of the replication port from which the log was copied before it had epochs;
        empty if it is not a copy, None if that is no longer known."""
        ...

    def whole_end(self) -> int:
        """Return the end of the last whole record; the log itself may end inside the next one."""
        ...

    async def begin_epoch(self, number: int, leader: int) -> int:
        """Append the marker of an epoch, durably; return its offset. Raises `NoRoom`, `OSError`."""
        ...

    async def filler_before(self, below: int) -> int:
        """Return the start of the filler that ends at `below`; `below` itself if there is none or
        it is unknown. May take long. Raises `OSError`."""
        ...

    async def epochs(self, since: int) -> list[tuple[int, int]]:
        """Return number and start of each marker from an offset on, oldest first. May take long."""
        ...

    async def cut_to(self, offset: int) -> None:
        """Make `offset`, the end of a record, the end of the log. A cancellation leaves all or
        nothing done. Raises `NoRoom`, `OSError`."""
        ...
