"""Deleting what is old, or what the disk has no room for (store.md 9).

A segment's age is that of its last record, not of its file: copying a directory must not make old
data young, and restoring it with old times must not delete it (T16). The first record of the next
segment is at least as young, and it is found without reading the whole segment.
"""

import trio

from rocketbed.node.store.checkpointer import store_ms_at
from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.parts import StoreParts
from rocketbed.world.api import DiskUsage

HOUR_MS = 3_600_000
_DAY_MS = 24 * HOUR_MS
_MANUAL_ROUNDS = 20
"""Rounds for which an operator's order to delete expired segments holds (as upstream)."""


class Retention:
    """Deletes segments, then what points only to them. Never the newest, nothing above W."""

    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts
        self._manual_rounds = 0
        self._hanged_since: tuple[int, float] | None = None
        self.disk_full = False
        """The file system is above the warning level: sends are refused."""
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
        """One round. Never raises for the disk's sake: what fails is tried in the next one."""
        parts = self._parts
        try:
            usage = parts.world.disk.usage(parts.log.segments.directory)
            self._watch(usage)
            self._keep_times()
            if self._delete(usage):
                # A name that a power loss brings back must still find its units and keys.
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

    def _delete(self, usage: DiskUsage) -> int:
        """Delete segments, oldest first; returns how many."""
        config, segments = self._parts.config, self._parts.log.segments
        at_once = self._at_once(usage)
        if not (at_once or self._manual_rounds or self._in_hour(config) or self._tight(usage)):
            return 0
        deleted = 0
        while deleted < config.delete_batch_max and self._may_go(at_once=at_once):
            start = segments.starts[0]
            self._parts.world.log.info("store.segment_deleted", path=segments.path(start))
            segments.remove(start)
            self._parts.world.mark("store.retention_removed")
            deleted += 1
        self.deleted += deleted
        return deleted

    def _may_go(self, *, at_once: bool) -> bool:
        """Whether the oldest segment can be deleted now."""
        parts = self._parts
        segments = parts.log.segments
        if len(segments.starts) < 2:
            return False
        start, after = segments.starts[:2]
        if after > parts.marks.mark.offset or after > parts.log.written.value:
            return False
        if not at_once and not self._expired(after):
            return False
        return not segments.pinned(start) or self._hanged(start)

    def _expired(self, next_start: int) -> bool:
        """Whether the last record before `next_start` is older than the reserved time."""
        youngest_ms = store_ms_at(self._parts, next_start)
        if not youngest_ms:
            return False
        return youngest_ms + self._parts.config.reserved_ms <= self._parts.world.clock.wall_ms()

    def _hanged(self, start: int) -> bool:
        """A segment that somebody reads waits, but not for ever; its reader keeps the open file."""
        now = trio.current_time()
        if self._hanged_since is None or self._hanged_since[0] != start:
            self._hanged_since = (start, now)
        if now - self._hanged_since[1] < self._parts.config.hanged_file_ms / 1000:
            return False
        self._parts.world.log.warning("store.hanged_segment_deleted", offset=start)
        return True

    def _keep_times(self) -> None:
        """Keep the files' own times in step, for a RocketMQ that goes by them."""
        segments = self._parts.log.segments
        for start, after in zip(segments.starts[:-1], segments.starts[1:], strict=True):
            store_ms = store_ms_at(self._parts, after)
            file = segments.file(start)
            if store_ms and abs(file.modified_ms() - store_ms) > HOUR_MS:
                file.set_modified_ms(store_ms)

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
