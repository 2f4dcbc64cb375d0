"""Recovery of a directory: proof instead of timestamps (store.md 8.6).

In order: weigh the evidence; refuse a log that is bad below what was on disk (log_end.py); write
`abort`, so that from here on a crash counts as one; cut queues and index to the durable mark W;
scan the log from W, dispatching good records; end the log where the scan ends, so that nothing
after it can come back; raise W to the end.
"""

from dataclasses import replace

import trio

from rocketbed.node.store.aside import CUT_DIR
from rocketbed.node.store.boot_report import RecoveryReport
from rocketbed.node.store.checkpoint import Checkpoint
from rocketbed.node.store.checkpointer import Checkpointer
from rocketbed.node.store.config import SIZE_KEYS
from rocketbed.node.store.cursor import LogCursor, Step, Verdict
from rocketbed.node.store.cut import cut_log
from rocketbed.node.store.dispatch import Dispatcher
from rocketbed.node.store.entry import NO_UNIT, Entry
from rocketbed.node.store.errors import BadStoreDirectory
from rocketbed.node.store.evidence import (
    UNKNOWN,
    ClosedByRocketMQ,
    Evidence,
    closed_by_rocketmq,
    gather,
    indexes_tags,
)
from rocketbed.node.store.flush import Flusher
from rocketbed.node.store.log_end import LogEnd, judge_beginning, judge_suspects, keep_suspects
from rocketbed.node.store.marks import FLUSHED_NAME, Mark
from rocketbed.node.store.parts import StoreParts
from rocketbed.node.store.scan import crc_scanner
from rocketbed.node.store.segments import segment_name

READ_SIZE = 4 << 20
MARK_EVERY = 256 << 20
"""Bytes scanned between two rises of W, so that a recovery that is killed continues there (T24)."""
PROGRESS_S = 1.0
"""Interval of progress messages of a start that takes longer."""


class Recovery:
    """Boot of a directory; the lock is held by the caller."""

    def __init__(
        self,
        parts: StoreParts,
        flusher: Flusher,
        dispatcher: Dispatcher,
        checkpointer: Checkpointer,
    ) -> None:
        self._parts = parts
        self._flusher = flusher
        self._dispatcher = dispatcher
        self._checkpointer = checkpointer
        self._scanner = crc_scanner(parts.config)
        self._with_queues: set[str] = set()
        """Topics that had a queue when the boot began."""
        self._written_again = 0
        """End of the part that was not known to be on disk and was written once more."""
        self.report = RecoveryReport()

    async def run(self) -> RecoveryReport:
        """Recover. Raises `BadStoreDirectory` or `DamagedLog`, leaving log and queues alone."""
        began = trio.current_time()
        parts = self._parts
        self._load()
        parts.world.mark("store.recovery_begun")
        evidence = gather(parts)
        self._with_queues = {queue.topic for queue in parts.queues.all() if queue.row.starts}
        claimed = parts.marks.mark.claimed
        self._with_queues.update(queue.rpartition("/")[0] for queue in claimed)
        self.report.was_clean = evidence.was_clean and evidence.trusted
        self.report.reason = evidence.reason
        self.report.by_hand = evidence.mark is not None and bool(evidence.hand)
        self.report.last_durable = evidence.flushed
        self._tell_of_lost_flushed(evidence)
        ending = LogEnd(parts, evidence, self._dispatcher, self.report)
        await judge_suspects(parts, evidence)
        judge_beginning(parts, evidence)
        if evidence.bad_end is not None:
            await ending.judge_below(evidence.bad_end)
            # Before F is lowered: a start that is killed in between would report a smaller loss.
            await ending.remember()
        ending.remind_of_orders()
        with_tags = indexes_tags(parts, evidence.mark, evidence.hand)
        parts.log.tail.index_tags = with_tags
        parts.scanner.index_tags = self._scanner.index_tags = with_tags
        if not self.report.was_clean:
            self._doubt_names()
        if evidence.trusted:
            await self._resume(evidence)
        else:
            await self._take_over(evidence, ending)
        self._flusher.floor = max(ending.durable_end, 0)
        start = self._position(parts.marks.mark, evidence, ending.durable_end)
        self.report.scanned_from = start
        parts.world.mark("store.recovery_scan")
        again_from = None if evidence.was_clean or evidence.hand else max(ending.durable_end, 0)
        step = await self._scan(start, evidence, ending, again_from)
        while await ending.filled(step):
            step = await self._scan(step.end, evidence, ending, again_from)
        await ending.settle(step)
        # Before the last rise of W, in `_finish`: its fsync has to cover these bytes (T10).
        if again_from is not None:
            await self._write_again(again_from)
        await self._finish()
        if evidence.may_be_torn:
            await parts.witnesses.store_abort(parts.marks.mark.store_id)
        parts.world.mark("store.recovery_finished")
        self.report.seconds = trio.current_time() - began
        return self.report

    async def preview(self) -> list[str]:
        """Return what `run` would do, without changing anything. Raises what it would raise."""
        parts = self._parts
        self._load()
        evidence = gather(parts)
        self._tell_of_lost_flushed(evidence)
        ending = LogEnd(parts, evidence, self._dispatcher, self.report)
        await judge_suspects(parts, evidence)
        judge_beginning(parts, evidence)
        if evidence.bad_end is not None:
            await ending.judge_below(evidence.bad_end)
        ending.remind_of_orders()
        mark = evidence.mark
        start = parts.log.min_offset
        if evidence.trusted and mark is not None:
            start = max(mark.offset, start)
        lines = [f"the log was known to be on disk up to offset {evidence.flushed}"]
        closed = self._closed(evidence, ending)
        if closed is not None:
            start = closed.end
            lines.append("RocketMQ closed it: queues and index would be taken as they are")
        elif not evidence.trusted and parts.log.segments.starts:
            lines.append(f"queues and index would be built again: {evidence.reason}")
        cursor = LogCursor(parts.log.segments, self._scanner, read_size=READ_SIZE)
        zero_rule_from = None if evidence.same_boot else max(ending.durable_end, 0)
        step = cursor.step(start, parts.log.segments.end, zero_rule_from=zero_rule_from)
        records = 0
        while True:
            records += len(step.entries)
            await trio.lowlevel.checkpoint()
            position = step.end
            if step.verdict not in (Verdict.GOOD, Verdict.BLANK):
                position = await ending.after_hole(step)
                if position < 0:
                    break
                lines.append(f"the hole from {step.end} to {position} would be closed")
            step = cursor.step(position, parts.log.segments.end, zero_rule_from=zero_rule_from)
        lines.append(f"{records} records would be dispatched again, from offset {start}")
        claimed = {}
        if (evidence.hand and closed is None) or evidence.flushed_lost:
            claimed = self._claims(evidence.deleted)
        ends = parts.queues.find_ends(step.end, thorough=False, deleted={})
        self._compare_claims(claimed, parts.queues.claims(ends), step.end)
        ends_to_keep = parts.queues.find_ends(step.end, thorough=False, deleted=evidence.deleted)
        lines += parts.topics.remarks(parts.queues.keys(ends_to_keep))
        tail_end = await ending.judge(step, parts.queues.totals(ends)[1])
        if tail_end > step.end:
            lines.append(
                f"{tail_end - step.end} bytes behind offset {step.end} would be kept in"
                " rocketbed.cut and truncated"
            )
        return [*lines, *self.report.findings, f"the log would end at offset {step.end}"]

    def _load(self) -> None:
        parts = self._parts
        for directory in (parts.staging, f"{parts.config.root}/{CUT_DIR}"):
            if parts.world.disk.exists(directory) and not parts.world.disk.is_dir(directory):
                raise BadStoreDirectory(
                    f"{directory} is no directory, and the store keeps one there: move it away"
                )
        mark = parts.marks.load()
        tolerant = mark is not None and self._same_sizes(mark)
        for stray in parts.log.segments.load(key="mappedFileSizeCommitLog", tolerant=tolerant):
            self._judge_stray(stray)
        parts.queues.load(tolerant=tolerant)
        if parts.config.index_enabled:
            parts.index.load()

    def _judge_stray(self, name: str) -> None:
        """Judge a name in the log's directory that is not a segment. Raises `BadStoreDirectory`."""
        segments = self._parts.log.segments
        path = f"{segments.directory}/{name}"
        if name == segment_name(segments.end) and self._parts.world.disk.exists(path):
            raise BadStoreDirectory(
                f"{path} is no file, and stands where a segment of the log belongs: move it away"
            )
        self._find(
            f"{path} is no segment: ignored here, but RocketMQ refuses to start while it is there;"
            " move it away"
        )

    def _doubt_names(self) -> None:
        """Treat all names as not durable: a process that was killed may have created files whose
        directories it had not synced.

        New data in them would be lost with their names by a power loss, synced or not.
        """
        parts = self._parts
        rows = [parts.log.segments, *(queue.row for queue in parts.queues.all())]
        paths = [row.path(start) for row in rows for start in row.starts]
        for path in [*paths, *(file.path for file in parts.index.files)]:
            parts.pool.doubt(path, parts.config.root)

    def _same_sizes(self, mark: Mark) -> bool:
        """True if the settings are those that the directory was written with; raises if they are
        not."""
        sizes = self._parts.config.sizes
        for key, ours, theirs in zip(SIZE_KEYS, sizes, mark.sizes, strict=True):
            if ours != theirs:
                raise BadStoreDirectory(
                    f"{self._parts.config.root} was written with {key}={theirs}, but {key}={ours}"
                    " is set: set it to what it was, files of another length cannot be read"
                )
        return True

    def _tell_of_lost_flushed(self, evidence: Evidence) -> None:
        if evidence.flushed_lost and not evidence.was_clean:
            self._find(
                f"{FLUSHED_NAME} is gone or damaged: the log is known to have been on disk up to"
                f" {evidence.flushed}, and may have been further; acknowledged messages behind that"
                " which the disk lost are seen only where a queue names them"
            )

    def _find(self, sentence: str) -> None:
        self.report.findings.append(sentence)
        self._parts.world.log.warning("store.recovery_finding", finding=sentence)

    async def _resume(self, evidence: Evidence) -> None:
        """Continue from our own mark."""
        parts, mark = self._parts, evidence.mark
        assert mark is not None
        # `abort` before `clean` is removed: a crash in between must not leave a directory without
        # either, which would look like another broker's clean stop.
        await self._store_abort(evidence, mark.store_id)
        # The units above W may be the only trace of an end that F would have recorded.
        claimed = self._claims(evidence.deleted) if evidence.flushed_lost else mark.claimed
        await parts.marks.update(clean=None, claimed=claimed)
        await self._remove_suspects()
        if evidence.was_clean:
            # All files match the mark: a clean stop wrote them, and nothing after it.
            parts.queues.set_ends(evidence.ends)
            parts.index.extend()
        else:
            parts.queues.cut_units(evidence.ends, keeps_first=True, deleted=evidence.deleted)
            if parts.config.index_enabled:
                parts.index.restore(mark.index)
        parts.index.filled_ms = mark.index_filled_ms
        if mark.cut_to is not None:
            parts.world.log.warning("store.cut_resumed", offset=mark.cut_to)
            await parts.queues.sync()
            await parts.index.sync()
            await cut_log(parts, mark.cut_to, record_start=mark.record_start)

    async def _remove_suspects(self) -> None:
        if copies := await keep_suspects(self._parts):
            self._find(
                f"the log does not reach the messages in {', '.join(copies)}, which were taken out"
                f" of it; last offset known to be on disk: {self.report.last_durable}"
            )
        self._parts.log.segments.remove_suspects()

    async def _store_abort(self, evidence: Evidence, store_id: str) -> None:
        """Write `abort`; until this start has repaired it, a possibly torn end counts as such for
        the next start too."""
        boot_id = evidence.boot_id if evidence.may_be_torn else None
        await self._parts.witnesses.store_abort(store_id, boot_id)

    async def _take_over(self, evidence: Evidence, ending: LogEnd) -> None:
        """Rebuild everything that is derived from the log, or use what RocketMQ closed."""
        parts = self._parts
        fresh = not parts.log.segments.starts and not any(parts.queues.all())
        self.report.took_over = not fresh
        if not fresh:
            parts.world.log.info("store.taking_over", reason=evidence.reason)
        if evidence.mark is not None and evidence.mark.cut_to is not None:
            self._find(
                f"a truncation at {evidence.mark.cut_to} was pending, but the directory was"
                " changed since; it was not done"
            )
        closed = self._closed(evidence, ending)
        # The queues may be the only trace of a lost end of the log.
        claimed = evidence.mark.claimed if evidence.mark else {}
        if (evidence.hand and closed is None) or evidence.flushed_lost:
            claimed = self._claims(evidence.deleted) | claimed
        inherited = evidence.mark.inherited if evidence.mark else UNKNOWN
        if evidence.hand and not fresh:
            inherited = parts.log.segments.end
        # Our own directory's id stays: if this start is killed, the next one has to recognize our
        # `abort`.
        if evidence.mark is not None and not evidence.hand:
            identity = evidence.mark.store_id
        else:
            identity = f"{parts.world.random.getrandbits(128):032x}"
        mark = Mark(
            store_id=identity,
            sizes=parts.config.sizes,
            offset=parts.log.min_offset,
            first=parts.log.min_offset,
            accepted=ending.accepted,
            index_tags=self._scanner.index_tags,
            followed=evidence.mark.followed if evidence.mark else "" if fresh else None,
            resend_to=ending.resend_to,
            claimed=claimed,
            inherited=inherited,
        )
        if closed is not None:
            mark = replace(
                mark,
                offset=closed.end,
                inherited=closed.end,
                record_start=closed.record_start,
                index=closed.index,
                index_filled_ms=closed.filled_ms,
            )
            mark = replace(mark, resend_to=UNKNOWN)
            ending.durable_end, ending.resend_to = closed.end, UNKNOWN
        else:
            mark = replace(mark, deleted=evidence.deleted)
        ends = parts.queues.find_ends(mark.offset, thorough=True, deleted={})
        count, total = parts.queues.totals(ends)
        # In this order, a crash between any two leads to the same scan or a longer one: F, W,
        # checkpoint, and our `abort`, which vouches for the mark, last.
        flushed = None if ending.durable_end == UNKNOWN else ending.durable_end
        await parts.marks.store_flushed(flushed, durable=True)
        await parts.marks.store(replace(mark, queue_count=count, queue_total=total))
        await parts.witnesses.store_checkpoint(Checkpoint())
        await self._store_abort(evidence, identity)
        await self._remove_suspects()
        parts.queues.cut_units(ends)
        parts.index.restore(mark.index)
        parts.index.extend()
        parts.index.filled_ms = mark.index_filled_ms

    def _closed(self, evidence: Evidence, ending: LogEnd) -> ClosedByRocketMQ | None:
        """Return the state that RocketMQ closed if it can be used without a rebuild.

        Never where rocketbed was before: an older copy of some of the files looks the same.
        """
        if not (evidence.was_clean and evidence.hand) or evidence.bad_end is not None:
            return None
        if self._parts.marks.has_traces:
            return None
        closed = closed_by_rocketmq(self._parts, self._parts.witnesses.load_checkpoint())
        return closed if closed is not None and closed.end >= ending.durable_end else None

    def _claims(self, deleted: dict[str, int]) -> dict[str, int]:
        queues = self._parts.queues
        return queues.claims(queues.find_ends(1 << 62, thorough=True, deleted=deleted))

    def _compare_claims(self, claimed: dict[str, int], now: dict[str, int], end: int) -> None:
        """Report messages that queues named and the log, which ends at `end`, does not have."""
        lost = {
            queue: offset - now.get(queue, 0)
            for queue, offset in claimed.items()
            if offset > now.get(queue, 0)
        }
        if lost:
            queue, count = next(iter(lost.items()))
            self._find(
                f"{sum(lost.values())} messages that the queues named are not in the log, which"
                f" ends at {end} ({count} of {queue}): its end was lost, unless a replica has it"
            )

    def _position(self, mark: Mark, evidence: Evidence, durable_end: int) -> int:
        """Start the in-memory state at W. Data not proved durable is dirty from here on. Return the
        start of the scan."""
        parts = self._parts
        segments = parts.log.segments
        # A person who copies files back may not have synced them, below F either.
        unsure = segments.start_of(max(durable_end, 0)) if evidence.trusted else 0
        segments.dirty.update(dict.fromkeys(s for s in segments.starts if s >= unsure))
        if not evidence.trusted:
            parts.queues.mark_all_dirty()
            parts.index.mark_all_dirty()
        parts.log.written.reset(max(mark.offset, parts.log.min_offset))
        parts.log.flushed.reset(parts.log.written.value)
        parts.dispatched.reset(parts.log.written.value)
        if mark.record_start >= 0:
            parts.log.last_store_ms = self._checkpointer.record_store_ms(mark.record_start)
        return parts.log.written.value

    async def _scan(
        self, start: int, evidence: Evidence, ending: LogEnd, again_from: int | None
    ) -> Step:
        """Dispatch every good record from `start`; return the step that ended this."""
        log = self._parts.log
        position, marked, said_at = start, start, trio.current_time()
        zero_rule_from = None if evidence.same_boot else max(ending.durable_end, 0)
        cursor = LogCursor(log.segments, self._scanner, read_size=READ_SIZE)
        while True:
            step = cursor.step(position, log.segments.end, zero_rule_from=zero_rule_from)
            if step.entries:
                self._dispatch(step.entries)
            elif step.verdict is not Verdict.BLANK:
                return step
            elif (
                self._parts.config.is_slave
                and self._parts.confirmed is None
                and not log.segments.has(step.end)
                and step.end > ending.durable_end
            ):
                # The blank record itself may be resent by the master, unless it is known to be on
                # disk. A replica of a group may have acknowledged it, and all that a leader writes
                # after its head is zeros, so no part of it can be missing.
                return Step(Verdict.END, position)
            position = step.end
            if position - marked >= MARK_EVERY:
                marked = position
                self._advance(position)
                if again_from is not None:
                    await self._write_again(again_from)
                await self._checkpointer.raise_mark()
            if trio.current_time() - said_at >= PROGRESS_S:
                said_at = trio.current_time()
                self._parts.world.log.info(
                    "store.scanning", offset=position, end=log.segments.end, start=start
                )
            await trio.lowlevel.checkpoint()

    def _dispatch(self, entries: list[Entry]) -> None:
        parts, report = self._parts, self.report
        mark = parts.marks.mark
        # Including unconfirmed records: a leader's times continue after them (T17).
        last_ms = parts.log.last_store_ms
        for entry in entries:
            if entry.store_ms < last_ms:
                report.clock_steps += 1
            last_ms = entry.store_ms
        parts.log.last_store_ms = max(last_ms, parts.log.last_store_ms)
        if parts.confirmed is not None:
            bound = parts.dispatchable(parts.log.segments.end)
            entries = [entry for entry in entries if entry.physical_offset + entry.size <= bound]
            if not entries:
                return
        if mark.deleted or entries[0].physical_offset < mark.inherited:
            entries = [self._keep_out(entry, mark) for entry in entries]
        report.records += len(entries)
        self._dispatcher.put(entries)

    def _keep_out(self, entry: Entry, mark: Mark) -> Entry:
        """Return a record's entry, without queue unit and keys if its topic was deleted (T14).

        The mark records deletions. Those of another program, in a directory that was taken over,
        left neither a queue nor a row of the table; a missing row alone may be damage.
        """
        if entry.units == NO_UNIT:
            return entry
        if entry.physical_offset >= mark.deleted.get(entry.topic, -1):
            if not (
                entry.physical_offset < mark.inherited
                and entry.topic not in self._with_queues
                and not self._parts.config.is_slave
                and self._parts.topics.exists(entry.topic) is False
            ):
                return entry
            self.report.unknown_topics[entry.topic] = None
        self.report.dropped_records += 1
        return entry._replace(units=NO_UNIT, keys=())

    def _advance(self, position: int) -> None:
        log = self._parts.log
        log.written.reset(position)
        self._parts.dispatched.reset(self._parts.dispatchable(position))

    async def _write_again(self, start: int) -> None:
        """Write the part that was not known to be on disk once more, unchanged.

        After a failed fsync, Linux treated pages as clean that never reached the disk; the next
        fsync, ours, would succeed without them (T10).
        """
        log = self._parts.log
        position, end = max(start, self._written_again, log.min_offset), log.written.value
        while position < end:
            data = log.read(position, READ_SIZE)
            log.segments.write(position, data)
            position += len(data)
            await trio.lowlevel.checkpoint()
        self._written_again = max(position, self._written_again)

    async def _finish(self) -> None:
        """Complete the boot, once everything up to the end is dispatched: raise W to it."""
        parts, report = self._parts, self.report
        if report.clock_steps:
            self._find(
                f"{report.clock_steps} records have an earlier store time than the one before: the"
                " clock was set back, or an old tail came back; search by time may miss some"
            )
        if report.dropped_records:
            unknown = ", ".join(sorted(report.unknown_topics))
            why = f"; neither topics.json nor a queue knows {unknown}" if unknown else ""
            self._find(
                f"{report.dropped_records} records of deleted topics stay out of queues{why}"
            )
        mark, end = parts.marks.mark, parts.log.written.value
        if mark.inherited > end:
            await parts.marks.update(inherited=end)
        if (deleted := mark.deleted_below(end)) != mark.deleted:
            await parts.marks.update(deleted=deleted)
        if not parts.config.is_slave:
            parts.queues.adopt()
        if claimed := parts.marks.mark.claimed:
            nexts = parts.queues.next_offsets()
            now = {f"{topic}/{queue_id}": offset for (topic, queue_id), offset in nexts.items()}
            self._compare_claims(claimed, now, parts.log.written.value)
            await parts.marks.update(claimed={})
        if parts.queues.odd:
            self._find(
                f"queue offsets of {parts.queues.odd} records are not what comes next in their"
                f" queue, as after damage to that field, or lost messages: {parts.queues.first_odd}"
            )
        for queue in parts.queues.all():
            if queue.anew_at >= 0:
                name, at = f"{queue.topic}/{queue.queue_id}", queue.anew_at
                self._find(
                    f"the queue offsets of {name} begin at 0 again at {at}, and {queue.outside} of"
                    f" its messages stand in no queue: if {queue.topic} was deleted and made again"
                    f" there, start the node with --set rbTopicDeleted={queue.topic}:{at}, which"
                    " builds its queues without what is below"
                )
        parts.log.tail.next_queue_offsets = parts.queues.next_offsets()
        parts.queues.correct_min(parts.log.min_offset)
        report.end = parts.log.written.value
        self._dispatcher.restart()
        # The scan is over: from here on F follows the fsyncs again.
        self._flusher.floor = 0
        await self._checkpointer.raise_mark()
