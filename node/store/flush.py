"""Syncing the log: group commit in sync mode, by interval in async mode (design.md 9).

One fsync at a time. Each takes the present end of the log, syncs the segments from the last flushed
end up to it, in order, and publishes it; tasks that wait for a lower offset are released. So one
fsync serves every producer that queued up during the one before.
"""

from collections.abc import Callable

import trio

from rocketbed.node.store.errors import StoreFailed
from rocketbed.node.store.files import NO_DESCRIPTOR
from rocketbed.node.store.marks import FLUSHED_NAME
from rocketbed.node.store.parts import StoreParts

PAGE = 4096
LOOK_S = 0.25
"""Pause between two checks whether open files were deleted, but for those of the log, which are
checked with each fsync; each check covers some hundred, so thousands take seconds."""


class Flusher:
    """Flushes the log of one store; nothing else moves `log.flushed`."""

    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts
        self._wake = trio.Event()
        self.lock = trio.Lock()
        """Held while an fsync is in flight."""
        self.count = 0
        """Fsync rounds so far."""
        self._recorded_begin = 0
        """Start of the log when F was last written durably, above 0 and before the first mark."""
        self.floor = 0
        """F of the last boot: until recovery has passed it, F on disk stays there."""
        self.whole_end: Callable[[], int] | None = None
        """With failover: returns the end of the log's last whole record. Dispatch ends at the
        confirmed offset, so after a start it would be lower than what was on disk."""
        self._next_check = 0.0
        """Time of the next check of all open files, by the clock of leases."""
        self._whole_at = (0, 0)
        """End of the log at the last fsync, and the end of the last whole record at that time. When
        an fsync returns, a record of which it synced a part may be whole: only the part is on
        disk."""
        parts.log.written.subscribe(self._on_written)

    def _on_written(self, end: int) -> None:
        config = self._parts.config
        if config.sync_flush or end - self._parts.log.flushed.value > config.dirty_max // 2:
            self._wake.set()

    async def run(self) -> None:
        """Flush until cancelled. Raises `StoreFailed`: a failed fsync is never retried."""
        config = self._parts.config
        thorough_at = trio.current_time() + config.flush_thorough_interval_ms / 1000
        while True:
            await self._pause()
            now = trio.current_time()
            if config.sync_flush or self._dirty() >= self._least_dirty() or now >= thorough_at:
                await self.flush()
            if now >= thorough_at:
                thorough_at = now + config.flush_thorough_interval_ms / 1000

    async def _pause(self) -> None:
        """Wait until woken, or in async mode at most one interval."""
        log, config = self._parts.log, self._parts.config
        if config.sync_flush:
            if log.written.value > log.flushed.value:
                return
            await self._wake.wait()
        else:
            with trio.move_on_after(config.flush_interval_ms / 1000):
                await self._wake.wait()
        self._wake = trio.Event()

    def _dirty(self) -> int:
        return self._parts.log.written.value - self._parts.log.flushed.value

    def _least_dirty(self) -> int:
        pages = self._parts.config.flush_least_pages * PAGE
        return 1 if self._dirty() > self._parts.config.dirty_max // 2 else max(pages, 1)

    async def flush(self) -> int:
        """Sync everything written so far; return its end. Raises `StoreFailed`."""
        async with self.lock:
            log = self._parts.log
            # Before the fsync: bytes written while it runs may not be covered by it.
            end = log.written.value
            if end <= log.flushed.value and not log.segments.dirty:
                return end
            whole_end = self._whole_below(end)
            self._check_files()
            for start in sorted(log.segments.dirty):
                await log.segments.sync(start)
            # The data of a new segment is lost with its name if the directory is not synced. Those
            # of queues can wait for the mark: producers do not wait for files that can be rebuilt
            # from the log.
            await self._parts.pool.sync_names(to=log.segments.directory)
            self._parts.failure.check()
            self.count += 1
            self._whole_at = end, whole_end
            await self._publish(end)
            return end

    def _check_files(self) -> None:
        """Check that open files were not deleted or truncated: by an operator, or a broker that
        lost the race for the lock (store.md 1.4). Raises `StoreFailed`."""
        segments, now = self._parts.log.segments, self._parts.world.clock.monotonic()
        lost = [start for start in segments.dirty if not segments.file(start).has_name()]
        path = segments.path(lost[0]) if lost else None
        if path is None and now >= self._next_check:
            self._next_check = now + LOOK_S
            path = self._parts.pool.lost_name()
        if path is not None:
            raise self._parts.failure.set(
                StoreFailed(
                    f"{path} was deleted while this node has it open, by hand or by another broker"
                    " on this directory: see to that, then start this node again; it says what is"
                    " missing"
                )
            )
        for start in segments.dirty:
            size = segments.file(start).size()
            if size < segments.size:
                raise self._parts.failure.set(
                    StoreFailed(
                        f"{segments.path(start)} was truncated while this node writes: it has"
                        f" {size} of {segments.size} bytes, and acknowledged messages in it may be"
                        " gone. The node stops and leaves its abort file; see to the cause, then"
                        " start again: the start says what is missing and how to heal it"
                    )
                )

    def flushed_mark(self, end: int) -> int:
        """Return F for a log that was flushed up to `end`.

        A slave's log may end inside a record, which is not a part of a master's log: its F stays at
        the end of a record, so that the slave can be started as a master.
        """
        flushed, whole = self._whole_at
        return max(whole if end == flushed else self._whole_below(end), self.floor)

    def _whole_below(self, end: int) -> int:
        """Return the end of the last record that is whole now, at most `end`."""
        if self.whole_end is not None:
            return min(end, self.whole_end())
        if self._parts.config.is_slave:
            return min(end, self._parts.dispatched.value)
        return end

    async def _publish(self, end: int) -> None:
        parts = self._parts
        begin, mark = parts.log.min_offset, parts.marks.mark
        # Until the first mark only F shows that a slave's log begins above 0: a start after a power
        # loss would take its first segment for one whose predecessor is lost (`log_end.py`).
        must_last = begin > max(self._recorded_begin, mark.first, mark.offset)
        try:
            await parts.marks.store_flushed(max(self.flushed_mark(end), begin), durable=must_last)
            self._recorded_begin = begin
        except OSError as exc:
            # An older F is true as well; recovery only learns less from it.
            parts.world.log.warning("store.flushed_mark_not_written", error=exc.strerror)
            if must_last and exc.errno in NO_DESCRIPTOR:
                return  # not flushed yet: the next round tries again
            if must_last:
                raise parts.failure.set(
                    StoreFailed(
                        f"{FLUSHED_NAME} of {parts.config.root} cannot be written: {exc.strerror};"
                        " check the disk, then start the node again"
                    )
                ) from exc
        parts.log.flushed.advance(end)
