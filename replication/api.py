"""What replication asks of a log. Offsets are bytes from the beginning of the log.

The node's store fills this in; replication never imports it.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from rocketbed.replication.watermark import Watermark
from rocketbed.world.api import File


class SentLog(Protocol):
    """A commit log as one sees it that sends it.

    Invariant: `min_offset <= written`; an empty log has `min_offset == written`.
    """

    @property
    def segment_size(self) -> int:
        """Bytes of a segment; equal on a master and its slaves."""
        ...

    @property
    def min_offset(self) -> int:
        """First byte that is kept."""
        ...

    @property
    def written(self) -> Watermark:
        """End of what is written (page cache)."""
        ...

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes, to the end of the segment or of the log. May block on the disk; in
        the loop only, since nothing holds the file meanwhile (a thread takes `pinned`)."""
        ...

    def read_cached(self, offset: int, size: int) -> bytes | None:
        """The same, or None when the page cache does not hold all of it."""
        ...

    def pinned(self, offset: int) -> AbstractContextManager[tuple[File, int]]:
        """The file of the segment that holds `offset`, and where in it that is.

        It is neither closed nor removed inside the block. Raises `FileNotFoundError`.
        """
        ...


class ReplicaLog(SentLog, Protocol):
    """One that is received, too. Invariant: `flushed <= written`."""

    @property
    def flushed(self) -> Watermark:
        """End of what is on disk."""
        ...

    def append_raw(self, offset: int, data: bytes | memoryview) -> None:
        """Append bytes as they are, within one segment; `offset` is the end of the log.

        An empty log takes any offset and begins there. Raises `OSError`, and `RecordRefused` where
        it is a leader that sent them.
        """
        ...


@dataclass(frozen=True, slots=True)
class WholeRecord:
    """A record of the log. Physical offsets."""

    start: int
    end: int
    """Where the next one begins: behind it, or behind the blank one that ends its segment."""


class MasterMemory(Protocol):
    """Whose log a slave has. The node's store keeps it."""

    @property
    def followed(self) -> str | None:
        """The master that this log followed last, empty if none, None if what said so is lost."""
        ...

    async def note(self, master: str) -> None:
        """Put on record, durably, that the log is this master's now. Raises `OSError`, and what
        a store raises that has failed by it."""
        ...


class LogCutter(Protocol):
    """How a slave's log loses its end. The node's store fills this in."""

    cut_at: int
    """Offset that an operator named, where the log is cut whosever it is; -1 for none."""
    promotion: int
    """Number of the last promotion, 0 if none is on record."""

    async def last_record(self, offset: int) -> WholeRecord | None:
        """The last record that ends at or below `offset`; None if there is none. May take long."""
        ...

    async def cut(self, offset: int) -> tuple[str, int]:
        """Make `offset`, the end of a record, the end of the log, and keep what stood behind it.

        Returns the path of what is kept and its size in bytes. A cancellation finds all or nothing
        done. Raises `CutRefused` when nothing was changed; any other error has to end the node.
        """
        ...


class EpochLog(ReplicaLog, Protocol):
    """A log whose epochs begin with marker records (replication.md 7.3)."""

    @property
    def copied_from(self) -> str | None:
        """`host:port` of the replication port that it was copied from before it had epochs; empty
        if it is nobody's copy, None if that is not known any more."""
        ...

    def whole_end(self) -> int:
        """End of the last whole record; the log itself may end inside the next one."""
        ...

    async def begin_epoch(self, number: int, leader: int) -> int:
        """Append the marker of an epoch, durably; where it stands. Raises `NoRoom`, `OSError`."""
        ...

    async def filler_before(self, below: int) -> int:
        """Where what fills a file up to an offset begins; the offset itself where nothing does, or
        what stands there cannot be told. May take long. Raises `OSError`."""
        ...

    async def epochs(self, since: int) -> list[tuple[int, int]]:
        """Number and start of each marker from an offset on, oldest first. May take long."""
        ...

    async def cut_to(self, offset: int) -> None:
        """Make `offset`, the end of a record, the end of the log. Cancelled, it has done all or
        nothing. Raises `NoRoom`, `OSError`."""
        ...
