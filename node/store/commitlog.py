"""The commit log: all messages of all topics as one sequence of bytes.

Appends are positioned writes into preallocated segments, done in the loop: the page cache takes
them (design.md 7). Between a run's beginning and its commit nothing awaits, so there is no lock.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.entry import Entry
from rocketbed.node.store.errors import CorruptRecord, PutFailed
from rocketbed.node.store.files import FilePool
from rocketbed.node.store.run import LogTail, Run
from rocketbed.node.store.segments import SegmentRow
from rocketbed.node.store.status import PutStatus
from rocketbed.replication.watermark import Watermark
from rocketbed.world.api import File, World

SLOW_WRITE_S = 0.05
"""A write into the page cache that takes longer is logged (design.md 7: p99.9 is 0.13 ms)."""


class CommitLog:
    """Append, read and cut. Offsets are bytes from the beginning of the log.

    Invariant: `flushed <= written`; `written` is in or at the end of the last record's segment, or
    at the beginning of the next.
    """

    def __init__(self, world: World, pool: FilePool, config: StoreConfig, staging: str) -> None:
        self._world = world
        self._pool = pool
        self._staging = staging
        self.segment_size = config.segment_size
        self.tail = LogTail(config)
        """Settings and queue offsets of this log, for runs."""
        self.segments = SegmentRow(
            world, pool, config.log_dir, config.segment_size, staging=staging, sparse=False
        )
        self.written = Watermark()
        """End of the log: position of the next record."""
        self.flushed = Watermark()
        """End of the log that is known to be on disk."""
        self.cuts = 0
        """Changes when a cut begins and when it ends: bytes read meanwhile may be zeros."""
        self.last_store_ms = 0
        """Store time of the last record; store times never fall (T17)."""
        self.on_appended: Callable[[list[Entry]], None] | None = None
        """Called after each commit with its entries, before `written` rises."""
        self.on_begun: Callable[[int], None] | None = None
        """Called when an empty log begins at another offset than its own."""
        self.no_room = ""
        """Reason why the last attempt to create the next segment failed; empty if it did not."""
        self.last_write_s = 0.0
        """Seconds the last write took, for the page-cache-busy test."""
        self._ends = False
        """True once no segment is created ahead of time any more."""

    @property
    def min_offset(self) -> int:
        """Offset of the first byte that still exists."""
        return self.segments.starts[0] if self.segments.starts else self.written.value

    def begin(self) -> Run:
        """Return a new run at the end of the log; commit it before anything awaits."""
        now_ms = self._world.clock.wall_ms()
        return Run(self.tail, self.written.value, max(now_ms, self.last_store_ms))

    def commit(self, run: Run) -> None:
        """Write a run. Readers of this process see it at once; it is durable once `flushed` has
        passed it.

        Raises `PutFailed`: nothing of the run is in the log then, and its offsets are free again;
        `StoreFailed` once the store has failed: a task that was not cancelled yet appends no more.
        """
        self._pool.failure.check()
        assert run.start == self.written.value, "a run is committed before another begins"
        if not run.entries:
            return
        # Segments first: a full disk then refuses the run before any of its bytes is in the log.
        self._make_room(run)
        began = trio.current_time()
        try:
            for offset, pieces in run.chunks:
                if pieces:
                    self.segments.write(offset, b"".join(pieces))
        except OSError as exc:
            self._undo(run, exc)
        self.last_write_s = trio.current_time() - began
        if self.last_write_s > SLOW_WRITE_S:
            self._world.log.warning(
                "store.slow_write", seconds=round(self.last_write_s, 3), offset=run.start
            )
        # Offsets are taken only now: a write that failed must leave no gap in a queue.
        self.tail.next_queue_offsets.update(run.queue_offsets)
        self.last_store_ms = run.now_ms
        # The ring before `written`, so that it never lacks what may be dispatched.
        if self.on_appended is not None:
            self.on_appended(run.entries)
        self.written.advance(run.position)

    def _make_room(self, run: Run) -> None:
        """Create the segments that a run needs. Raises `PutFailed` when the disk is full."""
        try:
            for offset, _ in run.chunks:
                if not self.segments.has(offset):
                    self.segments.create(offset - offset % self.segment_size)
                    self._world.mark("store.segment_made")
                    self.no_room = ""
        except OSError as exc:
            self.lacks_room(exc)
            raise PutFailed(PutStatus.CREATE_MAPPED_FILE_FAILED, self.no_room) from exc

    def lacks_room(self, cause: OSError) -> None:
        """Log once that the disk has no room for the next segment."""
        if not self.no_room:
            self._world.log.warning("store.no_next_segment", error=cause.strerror)
        self.no_room = (
            f"no new segment of {self.segment_size} bytes in {self.segments.directory}:"
            f" {cause.strerror}; free some space"
        )

    def _undo(self, run: Run, cause: OSError) -> None:
        """Write zeros after a short write, so that no crash revives a part of the run.

        From the end on, so that a kill in between leaves no record after a hole.
        """
        for offset, pieces in reversed(run.chunks):
            self.segments.zero(offset, offset + sum(map(len, pieces)))
        raise PutFailed(
            PutStatus.UNKNOWN_ERROR,
            f"writing to {self.segments.path(self.segments.start_of(run.start))} failed:"
            f" {cause.strerror}",
        ) from cause

    def append_raw(self, offset: int, data: bytes | memoryview) -> None:
        """Append bytes of a master's log unchanged, within one segment.

        Raises `CorruptRecord` when `offset` is not the end of this log, `OSError` from the disk,
        `StoreFailed` once the store has failed: a task that was not cancelled yet appends no more.
        """
        self._pool.failure.check()
        if not self.segments.starts and self.written.value == self.flushed.value:
            # An empty log begins where the master begins to send, not at 0.
            self.written.reset(offset)
            self.flushed.reset(offset)
            if self.on_begun is not None:
                self.on_begun(offset)
        if offset != self.written.value:
            raise CorruptRecord(
                f"the master sent offset {offset}, this log ends at {self.written.value}",
                offset=offset,
            )
        if not data:
            return
        if not self.segments.has(offset):
            self.segments.create(self.segments.start_of(offset))
        self.segments.write(offset, data)
        self.written.advance(offset + len(data))

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes at `offset` within its segment and below the end of the log."""
        return self.segments.read(offset, min(size, max(self.written.value - offset, 0)))

    def read_cached(self, offset: int, size: int) -> bytes | None:
        """Return the same from the page cache, or None."""
        return self.segments.read_cached(offset, min(size, max(self.written.value - offset, 0)))

    @contextmanager
    def pinned(self, offset: int) -> Iterator[tuple[File, int]]:
        """Yield the file that holds `offset`, and the position in it; it stays open inside the
        block.

        Raises `FileNotFoundError`.
        """
        segments = self.segments
        if not segments.has(offset):
            raise FileNotFoundError(f"no segment of {segments.directory} holds offset {offset}")
        start = segments.start_of(offset)
        file = segments.pin(start)
        try:
            yield file, offset - start
        finally:
            segments.unpin(start)

    async def prepare_next(self) -> None:
        """Create the segment after the last one ahead of time, durable before it gets its name.

        A run that reaches the end of its segment first creates it itself; then this does nothing.
        """
        start = self.segments.end
        if not self.segments.starts or start - self.written.value >= self.segment_size:
            return
        path = self.segments.path(start)
        temporary = f"{self._staging}/ahead.new"
        disk = self._world.disk
        disk.makedirs(self._staging)
        file = disk.open(temporary, create=True)
        try:
            await self._world.offload(file.allocate, self.segment_size)
            await file.sync()
        finally:
            file.close()
        # A run may have created this segment itself while we waited; renaming over it would lose
        # its records. A clean stop leaves no file after the end of the log: the next start would
        # take it for a file that is on disk, and a power loss could remove it with the records
        # written there.
        if self.segments.end == start and not disk.exists(path) and not self._ends:
            disk.rename(temporary, path)
            self.segments.starts.append(start)
            self._world.mark("store.segment_made_ahead")
            self.no_room = ""
            self._pool.named(path)
            await self._pool.sync_names(to=self.segments.directory)

    def drop_unused(self) -> None:
        """Remove segments created ahead of time, and create no more (clean stop)."""
        self._ends = True
        end = self.written.value
        self.segments.drop_from(end if end % self.segment_size == 0 else end + 1)
