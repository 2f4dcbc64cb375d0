"""Raising the durable mark W: everything below it is on disk, log, queue units and index (8.6).

About once a second while there is traffic. What is synced is as new as the mark or newer, so
nothing that the mark promises is ever missing.
"""

import trio

from rocketbed.node.store.checkpoint import Checkpoint
from rocketbed.node.store.dispatch import Dispatcher
from rocketbed.node.store.files import SHORTAGES
from rocketbed.node.store.flush import Flusher
from rocketbed.node.store.marks import INDEX_OFF
from rocketbed.node.store.parts import StoreParts
from rocketbed.wire.message import BORN_IPV6, HEAD, MAGIC_V1, MAGIC_V2

_COST_FACTOR = 5
"""Least ratio of the pause to the duration of a rise: with thousands of dirty queues a late mark
only costs boot time."""


class Checkpointer:
    """Moves W and writes RocketMQ's checkpoint; nothing else does."""

    def __init__(self, parts: StoreParts, flusher: Flusher, dispatcher: Dispatcher) -> None:
        self._parts = parts
        self._flusher = flusher
        self._dispatcher = dispatcher
        self.lock = trio.Lock()
        """Held while the mark rises, and while the log is cut."""
        self.leaving: set[str] = set()
        """Topics being deleted: every mark written meanwhile records them as deleted."""

    async def run(self) -> None:
        """Raise the mark until cancelled. Raises `StoreFailed`."""
        pause_s = 0.0
        while True:
            least_s = self._parts.config.mark_interval_ms / 1000
            await trio.sleep(max(least_s, pause_s))
            began = trio.current_time()
            if self._parts.dispatched.value > self._parts.marks.mark.offset:
                await self.raise_mark()
            pause_s = _COST_FACTOR * (trio.current_time() - began)

    async def raise_mark(self) -> bool:
        """Bring W up to what is dispatched now. False while the disk has no room for that, or the
        process no descriptor.

        Queues of topics that are `leaving` are not counted, and the mark says that their records in
        the log are not to be dispatched again. Raises `StoreFailed`.
        """
        async with self.lock:
            parts = self._parts
            if not self._dispatcher.settled:
                return False
            end = parts.dispatched.value
            # The snapshot before the fsyncs: traffic goes on meanwhile, and counts taken later
            # would promise entries that no fsync has covered (T1).
            changes = self._snapshot(end)
            try:
                parts.index.write()
                changes["index_filled_ms"] = parts.index.last_filled_ms()
                changes["index"] = parts.index.mark()
                if not await self._dispatcher.write_queues():
                    return False
                await self._flusher.flush()
                await parts.queues.sync()
                await parts.index.sync()
                await parts.pool.sync_names()
                parts.world.mark("store.mark_backed")
                # F before W, durably: a crash in between must not leave W above F.
                flushed = self._flusher.flushed_mark(parts.log.flushed.value)
                await parts.marks.store_flushed(flushed, durable=True)
                await parts.marks.update(**changes)
                # RocketMQ's checkpoint last: ahead of W it would make RocketMQ dispatch too little.
                await self.store_checkpoint()
            except OSError as exc:
                if exc.errno not in SHORTAGES:
                    raise parts.marks.failed(exc) from exc
                parts.world.log.warning(
                    "store.mark_waits", offset=end, reason=exc.strerror or str(exc.errno)
                )
                return False
            parts.world.mark("store.mark_raised")
            return True

    def _snapshot(self, end: int) -> dict[str, object]:
        """Return the contents of the mark at `end`, as far as they are known before the syncs."""
        parts = self._parts
        last = self._dispatcher.last
        old = parts.marks.mark
        existing = parts.queues.topics_before(old.deleted)
        deleted = {
            name: at
            for name, at in old.deleted.items()
            if at > parts.log.min_offset and name not in existing
        }
        deleted |= dict.fromkeys(self.leaving, parts.log.written.value)
        count, total, first = parts.queues.sums(self.leaving)
        start = old.record_start if last is None else last.physical_offset
        return {
            "offset": end,
            "resend_to": old.resend_to if old.resend_to > end else -1,
            "record_start": start,
            "queue_count": count,
            "queue_total": total,
            "queue_first": first,
            "clean": None,
            "index_damage": old.index_damage or ("" if parts.config.index_enabled else INDEX_OFF),
            "deleted": deleted,
            "remaking": tuple(sorted(parts.queues.remaking)),
            # Retention records a higher one before it deletes anything.
            "first": max(old.first, parts.log.min_offset),
        }

    async def note(self, **changes: object) -> None:
        """Record something else in the mark, durably; raises as `Marks.update` does."""
        async with self.lock:
            await self._parts.marks.update(**changes)

    async def store_checkpoint(self) -> None:
        """Write RocketMQ's checkpoint for the stored mark: never ahead of it."""
        mark = self._parts.marks.mark
        store_ms = self.record_store_ms(mark.record_start)
        await self._parts.witnesses.store_checkpoint(
            Checkpoint(
                physic_ms=store_ms,
                logics_ms=store_ms,
                index_ms=mark.index_filled_ms,
                confirm_offset=max(mark.record_start, 0),
            )
        )

    def record_store_ms(self, record_start: int) -> int:
        """Return the store time of the record that begins there; 0 without one."""
        if record_start < self._parts.log.min_offset:
            return 0
        return store_ms_at(self._parts, record_start)


def store_ms_at(parts: StoreParts, record_start: int) -> int:
    """Return the store time of a record of the log, from its fixed fields; 0 if no record begins
    there."""
    head = parts.log.segments.read(record_start, 96)
    if len(head) < 76:
        return 0
    fields = HEAD.unpack_from(head)
    if fields[1] not in (MAGIC_V1, MAGIC_V2) or fields[6] != record_start:
        return 0
    at = 68 if fields[7] & BORN_IPV6 else 56
    return int.from_bytes(head[at : at + 8], "big")
