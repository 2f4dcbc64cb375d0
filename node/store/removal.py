"""Removals from a running store: the end of its log, the queues of a topic.

Both are permanent: after a crash at any moment the next start finds all or nothing of it done.
Expired segments are the work of `retention`.
"""

import trio

from rocketbed.node.store.checkpointer import Checkpointer
from rocketbed.node.store.cursor import LogCursor, Verdict
from rocketbed.node.store.cut import Boundary, boundary_below, cut_log, keep_cut_bytes
from rocketbed.node.store.dispatch import Dispatcher
from rocketbed.node.store.errors import StoreError, StoreFailed
from rocketbed.node.store.flush import Flusher
from rocketbed.node.store.parts import StoreParts
from rocketbed.node.store.scrub import Scrubber

_CUT_S = 300.0
"""Time after which a cut counts as hanging: it unlinks segments, clears one and syncs it."""


class Removal:
    """Cuts and deletions of one running store. Offsets are bytes of its log."""

    def __init__(
        self,
        parts: StoreParts,
        flusher: Flusher,
        dispatcher: Dispatcher,
        checkpointer: Checkpointer,
        scrubber: Scrubber,
    ) -> None:
        self._parts = parts
        self._flusher = flusher
        self._dispatcher = dispatcher
        self._checkpointer = checkpointer
        self._scrubber = scrubber
        self._learned: dict[str, int] = {}
        """Deletions of the master that were handled since the start, or the last cut."""
        self._mixed: set[str] = set()
        """Topics with queues of both types, because some of their records hold several messages."""

    async def boundary_below(self, offset: int) -> Boundary | None:
        """Return the last end of a whole record at or below `offset` (see `node.store.cut`)."""
        return await boundary_below(self._parts, offset)

    async def keep_from(self, offset: int) -> tuple[str, int]:
        """Copy the log from `offset` to its end to `rocketbed.cut`, durably; return path and size.

        Raises `OSError`; the log is unchanged then.
        """
        return await keep_cut_bytes(self._parts, offset, end=self._parts.log.written.value)

    async def cut(self, offset: int) -> None:
        """Make `offset`, the end of a record, the end of the log, permanently (store.md 8.6, Cut).

        Nothing may be put meanwhile. A cancellation waits until it is done. Raises `StoreError`
        when the disk has no room for it, `StoreFailed` when the disk fails or hangs.
        """
        with trio.move_on_after(_CUT_S, shield=True) as scope:
            await self._cut(offset)
        if scope.cancelled_caught:
            raise self._failed_cut(offset, f"not done after {_CUT_S:g} s")

    async def _cut(self, offset: int) -> None:
        parts = self._parts
        await self._flusher.flush()
        while self._dispatcher.step():
            await trio.lowlevel.checkpoint()
        # With W at the end, lowering it lowers queues and index too.
        if not await self._checkpointer.raise_mark():
            raise StoreError(f"the log is not truncated at {offset}: no room for the new mark")
        self._scrubber.end = min(self._scrubber.end, offset)
        parts.damaged.cut(offset)
        async with self._checkpointer.lock, self._flusher.lock:
            last = None
            if max(parts.dispatched.value, parts.marks.mark.offset) > offset:
                below = await boundary_below(parts, offset)  # scans all of the segment before it
                last = below.last if below else None
            try:
                await cut_log(parts, offset, record_start=last.physical_offset if last else -1)
            except OSError as exc:
                raise self._failed_cut(offset, exc.strerror) from exc
            if parts.dispatched.value > offset:
                self._dispatcher.rewind(offset, last)
            else:
                self._dispatcher.restart()
            parts.log.tail.next_queue_offsets = parts.queues.next_offsets()
            self._learned.clear()
            for queue in parts.queues.all():
                if queue.first_outside >= offset:
                    queue.outside = 0
            if parts.marks.mark.resend_to > offset:
                await parts.marks.update(resend_to=-1)  # a new master ends the log here

    def _failed_cut(self, offset: int, reason: str | None) -> StoreError:
        return self._parts.failure.set(
            StoreFailed(
                f"truncating the log at {offset} failed on the way: {reason}; the node stops, and"
                " the next start truncates it if that is on record"
            )
        )

    async def delete_topic(self, topic: str) -> int:
        """Destroy the queues of a topic permanently; return their number (T14).

        Repeats until nothing of the topic is put any more. Raises `StoreError` on a full disk; the
        topic's queues stay then.
        """
        before: dict[tuple[str, int], int] | None = None
        self._checkpointer.leaving.add(topic)
        try:
            while before != (now := self.offsets(topic)):
                before = now
                await self._flusher.flush()
                while self._dispatcher.step():
                    await trio.lowlevel.checkpoint()
                if not await self._checkpointer.raise_mark():
                    raise StoreError(f"{topic} is not deleted: the disk has no room for the mark")
            count = self._parts.queues.delete_topic(topic)
        finally:
            self._checkpointer.leaving.discard(topic)
        self.begin_anew(topic)
        return count

    def offsets(self, topic: str) -> dict[tuple[str, int], int]:
        """Return the next offset of each of a topic's queues."""
        offsets = self._parts.log.tail.next_queue_offsets
        return {key: offsets[key] for key in offsets if key[0] == topic}

    def begin_anew(self, topic: str) -> None:
        """Restart the queue offsets of a topic without queues at 0."""
        for key in self.offsets(topic):
            del self._parts.log.tail.next_queue_offsets[key]

    def deletions(self) -> dict[str, int]:
        """Return topics whose deletion is done, each with the end of the log at that moment.

        All records of the topic below it were deleted, none at or above it.
        """
        parts, leaving = self._parts, self._checkpointer.leaving
        deleted = parts.marks.mark.deleted
        if not deleted:
            return {}
        with_queues = {queue.topic for queue in parts.queues.all() if queue.begins_before(deleted)}
        return {
            topic: at
            for topic, at in deleted.items()
            if topic not in leaving and topic not in with_queues
        }

    async def learn_deletions(self, deletions: dict[str, int]) -> None:
        """Apply a master's `deletions`, as far as this log reaches; call again for the remaining
        ones.

        Queues that hold deleted messages are rebuilt from the log after that. Raises `StoreError`
        or `OSError`, and may be cancelled: such a topic's queues are rebuilt at the next call, or
        the next start rebuilds all queues.
        """
        parts = self._parts
        for topic, deleted_at in deletions.items():
            # Never above the end: later records may be another master's.
            at = min(deleted_at, parts.dispatched.value)
            if at <= self._learned.get(topic, -1) and topic not in parts.queues.remaking:
                continue
            async with self._checkpointer.lock:
                await self._learn(topic, at)
            self._learned[topic] = at
            if topic in parts.marks.mark.remaking:
                await self._checkpointer.raise_mark()

    async def _learn(self, topic: str, at: int) -> None:
        parts = self._parts
        mark, remaking = parts.marks.mark, parts.queues.remaking
        deleted = mark.deleted | {topic: max(at, mark.deleted.get(topic, -1))}
        if topic not in remaking and not any(
            queue.begins_before({topic: at}) for queue in parts.queues.all()
        ):
            if at > parts.log.min_offset and deleted != mark.deleted:
                await parts.marks.update(deleted=deleted)
            return
        count = await self._remake(topic, at, deleted)
        parts.world.log.info("store.topic_deletion_learned", topic=topic, offset=at, messages=count)

    async def match_types(self) -> None:
        """Rebuild queues that are of another type than their topic, since messages may arrive
        before the master's tables. Raises and may be cancelled as `learn_deletions`."""
        marks = self._parts.marks
        for topic in sorted(self.topics_to_rebuild()):
            async with self._checkpointer.lock:
                deleted = marks.mark.deleted
                count = await self._remake(topic, deleted.get(topic, 0), deleted)
            self._parts.world.log.info("store.queue_type_learned", topic=topic, messages=count)
            await self._checkpointer.raise_mark()
            if topic in self._of_wrong_type():
                self._mixed.add(topic)

    def topics_to_rebuild(self) -> set[str]:
        """Return topics whose queues have to be rebuilt; a stop may come before that."""
        return self._of_wrong_type() | self._parts.queues.remaking

    def _of_wrong_type(self) -> set[str]:
        """Return topics of BatchCQ that have ordinary queues, and further ones that have batch
        queues: a master may not know the type of a topic that was new when its own master was
        lost."""
        queues = self._parts.queues
        return (queues.of_wrong_type() | queues.unexpected_batch()) - self._mixed

    async def _remake(self, topic: str, start: int, deleted: dict[str, int]) -> int:
        """Rebuild a topic's queues from its records in the log from `start`; return their
        number."""
        parts = self._parts
        remaking = parts.queues.remaking
        names = tuple(sorted({*parts.marks.mark.remaking, topic}))
        await parts.marks.update(deleted=deleted, remaking=names)
        self._refuse_unsettled(topic)
        parts.world.mark("store.queues_remade")
        remaking.add(topic)
        parts.queues.delete_topic(topic)
        self._scrubber.unqueued.pop(topic, None)
        count = await self._rebuild(topic, start)
        self._continue_offsets(topic)
        remaking.discard(topic)
        return count

    def _continue_offsets(self, topic: str) -> None:
        """Set the next offset of each of a topic's queues to follow its last record in the log: a
        leader continues after the records before it. Raises `OSError`."""
        log, nexts = self._parts.log, dict[tuple[str, int], int]()
        cursor = LogCursor(log.segments, self._parts.scanner)
        position = self._parts.dispatched.value
        while position < log.written.value:
            step = cursor.step(position, log.written.value)
            if step.verdict not in (Verdict.GOOD, Verdict.BLANK):
                break  # a follower's last record is incomplete; damage ends dispatch
            for entry in step.entries:
                if entry.topic == topic and entry.units:
                    nexts[topic, entry.queue_id] = entry.queue_offset + abs(entry.units)
            position = step.end
        self.begin_anew(topic)
        offsets = self._parts.queues.next_offsets()
        log.tail.next_queue_offsets |= {
            key: offsets[key] for key in offsets if key[0] == topic
        } | nexts

    async def _rebuild(self, topic: str, start: int) -> int:
        """Put the units of a topic's records from `start` to the dispatched end; return their
        number.

        Returns without an await after the last check, so that dispatch continues right there.
        """
        parts, count = self._parts, 0
        cursor = LogCursor(parts.log.segments, parts.scanner)
        position = max(start, parts.log.min_offset)
        while position < parts.dispatched.value:
            step = cursor.step(position, parts.dispatched.value)
            if step.verdict not in (Verdict.GOOD, Verdict.BLANK):
                reason = step.reason or "the log ends there"
                raise StoreError(
                    f"queues of {topic} lack its messages from {step.end} on, {reason}: stop the"
                    " node and run `rocketbed store fsck`"
                )
            entries = [entry for entry in step.entries if entry.topic == topic]
            parts.queues.put_again(entries)
            parts.queues.write_pending()
            count += len(entries)
            position = max(step.end, parts.log.min_offset)
            await trio.lowlevel.checkpoint()
        # Entries that dispatch holds since then, without this topic's, follow later.
        self._refuse_unsettled(topic)
        return count

    def _refuse_unsettled(self, topic: str) -> None:
        if not self._dispatcher.settled:
            raise StoreError(f"queues of {topic} are not made again: {self._dispatcher.stuck}")
