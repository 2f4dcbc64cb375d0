"""Deletion of old segments, or for lack of room on the disk (store.md 9).

A segment's age is that of its last record, not of its file: copying a directory must not make old
data young, and restoring it with old times must not delete it (T16). The first record of the next
segment is at least as young, and can be read without the whole segment.
"""

import trio

from rocketbed.node.store.checkpointer import Checkpointer, store_ms_at
from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.parts import StoreParts
from rocketbed.world.api import DiskUsage

HOUR_MS = 3_600_000
_DAY_MS = 24 * HOUR_MS
_MANUAL_ROUNDS = 20
"""Rounds for which an operator's order to delete expired segments holds (as upstream)."""


class Retention:
    """Deletes segments, then queues and index that point only to them. Never the newest, nothing
    above W."""

    def __init__(self, parts: StoreParts, checkpointer: Checkpointer) -> None:
        self._parts = parts
        self._checkpointer = checkpointer
        self._timed: set[int] = set()
        """Segments whose files have the right time."""
        self._blind: set[int] = set()
        """Segments of unknown age; logged once each."""
        self._manual_rounds = 0
        self._hanged_since: tuple[int, float] | None = None
        self.disk_full = False
        """True if the file system is above the warning level: sends are refused."""
        self.deleted = 0
        """Segments deleted since the start."""

    async def run(self) -> None:
        """Work in rounds until cancelled."""
        while True:
            await trio.sleep(self._parts.config.clean_interval_ms / 1000)
            await self.round()

    def delete_now(self) -> None:
        """Delete expired segments at any hour for the next rounds (an operator's order)."""
        self._manual_rounds = _MANUAL_ROUNDS

    async def round(self) -> None:
        """Run one round. Failures are retried in the next one, except for a failed fsync:
        `StoreFailed`."""
        parts = self._parts
        try:
            usage = parts.world.disk.usage(parts.log.segments.directory)
            self._watch(usage)
            self._keep_times()
            doomed = self._doomed(usage)
            if doomed:
                # Recorded before it is done: a start then knows why these segments are missing.
                beginning = doomed[-1] + parts.log.segment_size
                await self._checkpointer.note(first=beginning, queue_first=-1)
                await self._delete(doomed)
                # If a power loss brings a name back, its units and keys must still exist.
                await parts.pool.sync_names()
                log_min = parts.log.min_offset
                parts.queues.delete_before(log_min)
                parts.index.delete_before(log_min)
        except OSError as exc:
            parts.world.log.warning("store.retention_failed", error=exc.strerror)
        self._manual_rounds = max(0, self._manual_rounds - 1)

    def _watch(self, usage: DiskUsage) -> None:
        full = usage.used_percent > _bounded(self._parts.config.disk_warning_percent, 35, 90)
        if full != self.disk_full:
            self.disk_full = full
            self._parts.world.log.warning("store.disk_full", full=full, used=usage.used_percent)

    def _doomed(self, usage: DiskUsage) -> list[int]:
        """Return segments that can be deleted now, oldest first."""
        config, segments = self._parts.config, self._parts.log.segments
        at_once = self._at_once(usage)
        if not (at_once or self._manual_rounds or self._in_hour(config) or self._tight(usage)):
            return []
        doomed: list[int] = []
        for start in segments.starts[: config.delete_batch_max]:
            if not self._may_go(start, at_once=at_once):
                break
            doomed.append(start)
        return doomed

    async def _delete(self, doomed: list[int]) -> None:
        segments = self._parts.log.segments
        for start in doomed:
            # One name after another: a power loss that brought back an older one without the next
            # would leave a hole, which stops the next boot.
            await self._parts.pool.sync_names(to=segments.directory)
            # Meanwhile a reader may have pinned it, or a cut removed it.
            if not segments.starts or segments.starts[0] != start:
                return
            if segments.pinned(start) and not self._hanged(start):
                return
            self._parts.world.log.info("store.segment_deleted", path=segments.path(start))
            segments.remove(start)
            # A pull of deleted messages must not get later ones in their place.
            self._parts.queues.correct_min(self._parts.log.min_offset)
            self._parts.world.mark("store.retention_removed")
            self.deleted += 1

    def _may_go(self, start: int, *, at_once: bool) -> bool:
        """True if this segment can be deleted once those before it are deleted."""
        parts = self._parts
        segments = parts.log.segments
        after = start + segments.size
        if not segments.has(after):
            return False
        if after > parts.marks.mark.offset or after > parts.log.written.value:
            return False
        if not at_once and not self._expired(start):
            return False
        return not segments.pinned(start) or self._hanged(start)

    def _expired(self, start: int) -> bool:
        """True if the last record of the segment is older than the reserved time."""
        youngest_ms = self._youngest_ms(start)
        if not youngest_ms:
            return False
        return youngest_ms + self._parts.config.reserved_ms <= self._parts.world.clock.wall_ms()

    def _youngest_ms(self, start: int) -> int:
        """Return a time not before the segment's last record; 0 if it is unknown.

        No checksum covers a record's store time. A time that is earlier than its own segment's
        first, or in the future, is skipped: a later segment's will do, and deletes later.
        """
        parts, segments = self._parts, self._parts.log.segments
        own_ms = store_ms_at(parts, start)
        latest_ms = parts.world.clock.wall_ms() + HOUR_MS
        for after in segments.starts:
            if after > start and own_ms <= (after_ms := store_ms_at(parts, after)) <= latest_ms:
                return after_ms
        if start not in self._blind:
            self._blind.add(start)
            parts.world.log.warning("store.retention_blind", path=segments.path(start))
        return 0

    def _hanged(self, start: int) -> bool:
        """True if a segment has been read for too long to wait; its reader keeps the open file."""
        now = trio.current_time()
        if self._hanged_since is None or self._hanged_since[0] != start:
            self._hanged_since = (start, now)
        if now - self._hanged_since[1] < self._parts.config.hanged_file_ms / 1000:
            return False
        self._parts.world.log.warning("store.hanged_segment_deleted", offset=start)
        return True

    def _keep_times(self) -> None:
        """Correct the files' own times, for a RocketMQ that relies on them."""
        segments = self._parts.log.segments
        self._timed &= set(segments.starts)
        for start in segments.starts[:-1]:
            if start in self._timed or not (store_ms := self._youngest_ms(start)):
                continue
            file = segments.file(start)
            if abs(file.modified_ms() - store_ms) > HOUR_MS:
                file.set_modified_ms(store_ms)
            self._timed.add(start)
            return  # one per round: each is a read of the disk in the loop

    def _at_once(self, usage: DiskUsage) -> bool:
        config = self._parts.config
        level = _bounded(config.disk_clean_forcibly_percent, 30, 85)
        return config.clean_forcibly_enabled and usage.used_percent > level

    def _tight(self, usage: DiskUsage) -> bool:
        return usage.used_percent > _bounded(self._parts.config.disk_max_used_percent, 10, 95)

    def _in_hour(self, config: StoreConfig) -> bool:
        clock = self._parts.world.clock
        local_ms = clock.wall_ms() + clock.utc_offset_ms()
        return local_ms % _DAY_MS // HOUR_MS in config.delete_when


def _bounded(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)
