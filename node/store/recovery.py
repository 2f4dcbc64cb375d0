"""Bringing a directory up: proof in place of timestamps (store.md 8.6).

In order: weigh the evidence; write `abort`, so that from here on a crash is a crash; cut queues
and index to the durable mark W; scan the log from W, dispatching what is good; decide what a bad
record is; end the log there so that nothing behind it can come back; raise W to the end.
"""

from dataclasses import dataclass, field, replace

import trio

from rocketbed.node.store.checkpoint import Checkpoint
from rocketbed.node.store.checkpointer import Checkpointer
from rocketbed.node.store.config import SIZE_KEYS
from rocketbed.node.store.cut import cut_log, keep_cut_bytes, last_nonzero
from rocketbed.node.store.dispatch import Dispatcher
from rocketbed.node.store.entry import NO_UNIT, Entry
from rocketbed.node.store.errors import BadStoreDirectory, DamagedLog
from rocketbed.node.store.evidence import UNKNOWN, Evidence, closed_by_rocketmq, gather
from rocketbed.node.store.filler import fill_hole
from rocketbed.node.store.flush import Flusher
from rocketbed.node.store.marks import Mark
from rocketbed.node.store.parts import StoreParts
from rocketbed.node.store.scan import RecordScanner, Stop, parse_delay_levels
from rocketbed.node.store.tail import look_behind

READ_SIZE = 4 << 20
MARK_EVERY = 256 << 20
"""Bytes scanned between two rises of W, so that a recovery that is killed goes on there (T24)."""
_FOREVER = 1 << 62


@dataclass(slots=True, kw_only=True)
class RecoveryReport:
    """What a boot found and did. Offsets and sizes in bytes."""

    was_clean: bool = False
    """The last stop was clean."""
    took_over: bool = False
    """The durable mark was not trusted: something else changed the directory."""
    reason: str = ""
    """Why it was not trusted."""
    scanned_from: int = 0
    end: int = 0
    """End of the log after recovery."""
    records: int = 0
    """Records that were scanned and dispatched."""
    last_durable: int = UNKNOWN
    """Below this the log was known to be on disk before the crash; -1 when nothing was known."""
    cut_bytes: int = 0
    cut_records: int = 0
    """Whole records among the bytes that were cut off (a power loss may leave some)."""
    cut_copy: str = ""
    """Where those bytes were kept."""
    clock_steps: int = 0
    """Records with an earlier store time than the one before."""
    dropped_records: int = 0
    """Records of deleted topics that were not dispatched again (T14)."""
    seconds: float = 0.0
    findings: list[str] = field(default_factory=list)
    """Sentences for the operator."""


class Recovery:
    """One boot of one directory; the lock is held by the caller."""

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
        self._scanner = RecordScanner(
            check_crc=True, delays_ms=parse_delay_levels(parts.config.delay_levels)
        )
        self.report = RecoveryReport()

    async def run(self) -> RecoveryReport:
        """Recover. Raises `BadStoreDirectory` or `DamagedLog`, leaving log and queues alone."""
        began = trio.current_time()
        parts = self._parts
        self._load()
        parts.world.mark("store.recovery_begun")
        evidence = gather(parts)
        self.report.was_clean = evidence.was_clean and evidence.trusted
        self.report.reason = evidence.reason
        self.report.last_durable = evidence.flushed
        self._judge_suspects(evidence)
        if not self.report.was_clean:
            self._doubt_names()
        if evidence.trusted:
            flushed = await self._resume(evidence)
        else:
            flushed = await self._take_over(evidence)
        self._flusher.floor = max(evidence.flushed, 0)
        start = self._position(parts.marks.mark, evidence)
        self.report.scanned_from = start
        parts.world.mark("store.recovery_scan")
        end, reason = await self._scan(start, flushed)
        await self._end_log(end, reason, flushed)
        # Before the last rise of W, in `_finish`: its fsync has to cover these bytes (T10).
        if evidence.trusted and not evidence.was_clean:
            await self._write_again(evidence.flushed)
        await self._finish()
        parts.world.mark("store.recovery_finished")
        self.report.seconds = trio.current_time() - began
        return self.report

    def _load(self) -> None:
        parts = self._parts
        mark = parts.marks.load()
        tolerant = mark is not None and self._same_sizes(mark)
        for stray in parts.log.segments.load(key="mappedFileSizeCommitLog", tolerant=tolerant):
            self._find(
                f"{parts.log.segments.directory}/{stray} is no segment: ignored here, but RocketMQ"
                " refuses to start while it is there; move it away"
            )
        parts.queues.load(tolerant=tolerant)
        if parts.config.index_enabled:
            parts.index.load()

    def _doubt_names(self) -> None:
        """A process that was killed may have made files whose directories it had not synced yet.

        What is written to them now would be lost with their names by a power loss, synced or not.
        """
        parts = self._parts
        rows = [parts.log.segments, *(queue.row for queue in parts.queues.all())]
        paths = [row.path(start) for row in rows for start in row.starts]
        for path in [*paths, *(file.path for file in parts.index.files)]:
            parts.pool.doubt(path, parts.config.root)

    def _same_sizes(self, mark: Mark) -> bool:
        """Whether the settings are those the directory was written with; raises if they are not."""
        sizes = self._parts.config.sizes
        for key, ours, theirs in zip(SIZE_KEYS, sizes, mark.sizes, strict=True):
            if ours != theirs:
                raise BadStoreDirectory(
                    f"{self._parts.config.root} was written with {key}={theirs}, but {key}={ours}"
                    " is set: set it to what it was, files of another length cannot be read"
                )
        return True

    def _find(self, sentence: str) -> None:
        self.report.findings.append(sentence)
        self._parts.world.log.warning("store.recovery_finding", finding=sentence)

    def _judge_suspects(self, evidence: Evidence) -> None:
        """Log segments that are short or behind a hole are fine only where nothing was durable."""
        segments = self._parts.log.segments
        if not segments.suspects:
            return
        first = segments.suspects[0]
        whole = segments.end if segments.starts else first
        if evidence.trusted and not evidence.same_boot and whole >= evidence.flushed:
            return
        if (
            first == segments.suspects[-1]
            and not self._parts.world.disk.open(segments.path(first)).size()
        ):
            return
        raise BadStoreDirectory(
            f"{segments.path(first)} is short, or a file before it is missing, and nothing shows"
            " that a power loss did it: restore it from a copy or a replica"
        )

    async def _resume(self, evidence: Evidence) -> int:
        """Continue from our own mark; returns the offset below which the log is known durable."""
        parts, mark = self._parts, evidence.mark
        assert mark is not None
        # `abort` before `clean` goes: a crash in between must not leave a directory without
        # either, which would look like another broker's clean stop.
        await parts.witnesses.store_abort(mark.store_id)
        await parts.marks.update(clean=None)
        parts.log.segments.remove_suspects()
        if evidence.was_clean:
            # All files are as the mark says: a clean stop wrote them, and nothing after it.
            parts.queues.set_ends(evidence.ends)
        else:
            parts.queues.cut_units(evidence.ends)
            if parts.config.index_enabled:
                parts.index.restore(mark.index)
        parts.index.filled_ms = mark.index_filled_ms
        if mark.cut_to is not None:
            parts.world.log.warning("store.cut_resumed", offset=mark.cut_to)
            await parts.queues.sync()
            await parts.index.sync()
            await cut_log(parts, mark.cut_to, record_start=mark.record_start)
        return _FOREVER if evidence.same_boot else evidence.flushed

    async def _take_over(self, evidence: Evidence) -> int:
        """Take over a directory that is not as we left it."""
        parts = self._parts
        fresh = not parts.log.segments.starts and not any(parts.queues.all())
        self.report.took_over = not fresh
        if not fresh:
            parts.world.log.info("store.taking_over", reason=evidence.reason)
        if evidence.mark is not None and evidence.mark.cut_to is not None:
            self._find(
                f"a cut at offset {evidence.mark.cut_to} was pending, but the directory was"
                " changed since; it was not done"
            )
        checkpoint = parts.witnesses.load_checkpoint()
        closed = closed_by_rocketmq(parts, checkpoint) if evidence.was_clean else None
        identity = f"{parts.world.random.getrandbits(128):032x}"
        if closed is not None:
            mark = Mark(
                store_id=identity,
                sizes=parts.config.sizes,
                offset=closed.end,
                record_start=closed.record_start,
                index=closed.index,
                index_filled_ms=closed.filled_ms,
            )
            ends = parts.queues.find_ends(closed.end, thorough=True, deleted={})
        else:
            start = parts.log.min_offset
            mark = Mark(
                store_id=identity,
                sizes=parts.config.sizes,
                offset=start,
                physic_ms=checkpoint.physic_ms,
                deleted=evidence.deleted,
            )
            ends = parts.queues.find_ends(start, thorough=True, deleted={})
        count, total = parts.queues.totals(ends)
        # In this order, a crash between any two leads to the same scan or a longer one: F, W,
        # checkpoint, and our `abort`, which vouches for the mark, last.
        await parts.marks.store_flushed(None, durable=True)
        await parts.marks.store(replace(mark, queue_count=count, queue_total=total))
        await parts.witnesses.store_checkpoint(Checkpoint())
        await parts.witnesses.store_abort(identity)
        parts.log.segments.remove_suspects()
        parts.queues.cut_units(ends)
        parts.index.restore(mark.index)
        parts.index.filled_ms = mark.index_filled_ms
        return mark.offset if closed is not None else UNKNOWN

    def _position(self, mark: Mark, evidence: Evidence) -> int:
        """Start the in-memory state at W. What nobody has proved durable is dirty from here on."""
        parts = self._parts
        segments = parts.log.segments
        unsure = segments.start_of(max(evidence.flushed, 0))
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

    async def _scan(self, start: int, flushed: int) -> tuple[int, str]:
        """Dispatch every good record from `start`; end of the last one, and why it stopped."""
        log = self._parts.log
        position, marked = start, start
        zero_rule_from = max(flushed, 0) if flushed != _FOREVER else None
        size = READ_SIZE
        while log.segments.has(position):
            segment_end = log.segments.start_of(position) + log.segment_size
            data = log.segments.read(position, size)
            scanned = self._scanner.scan(
                data, position, segment_end=segment_end, zero_rule_from=zero_rule_from
            )
            if scanned.entries:
                self._dispatch(scanned.entries)
                size = READ_SIZE
            elif scanned.stop is Stop.MORE:
                size = max(log.record_max + 8, READ_SIZE * 2)
            position = scanned.end
            if scanned.stop is Stop.BLANK:
                if self._parts.config.is_slave and not log.segments.has(segment_end):
                    return position, ""
                position = segment_end
            elif scanned.stop is Stop.BAD:
                return position, scanned.reason
            if position - marked >= MARK_EVERY:
                marked = position
                self._advance(position)
                await self._checkpointer.raise_mark()
            await trio.lowlevel.checkpoint()
        return position, ""

    def _dispatch(self, entries: list[Entry]) -> None:
        parts, report = self._parts, self.report
        deleted = parts.marks.mark.deleted
        if deleted or report.took_over:
            entries = [self._keep_out(entry, deleted) for entry in entries]
        last_ms = parts.log.last_store_ms
        for entry in entries:
            if entry.store_ms < last_ms:
                report.clock_steps += 1
            last_ms = entry.store_ms
        parts.log.last_store_ms = max(last_ms, parts.log.last_store_ms)
        report.records += len(entries)
        self._dispatcher.put(entries)

    def _keep_out(self, entry: Entry, deleted: dict[str, int]) -> Entry:
        """Without queue unit and keys if its topic was deleted (T14)."""
        gone = entry.physical_offset < deleted.get(entry.topic, -1)
        if self.report.took_over and not self._parts.config.is_slave:
            gone = gone or self._parts.topics.exists(entry.topic) is False
        if not gone or entry.units == NO_UNIT:
            return entry
        self.report.dropped_records += 1
        return entry._replace(units=NO_UNIT, keys=())

    def _advance(self, position: int) -> None:
        log = self._parts.log
        log.written.reset(position)
        self._parts.dispatched.reset(position)

    async def _end_log(self, end: int, reason: str, flushed: int) -> None:
        """Decide what stands at `end`, and make it the end for good."""
        parts, report = self._parts, self.report
        if not parts.log.segments.has(end) and end >= flushed and end == parts.log.segments.end:
            self._advance(end)
            return
        behind = look_behind(parts, end)
        vanished = flushed not in (UNKNOWN, _FOREVER) and end < flushed
        if vanished and parts.config.is_slave and not behind.good_records:
            vanished = False
        damage = behind.good_records and (flushed == UNKNOWN or end < flushed)
        if vanished or damage:
            if parts.config.fill_hole_at == end and behind.good_records:
                await fill_hole(parts, end, behind.first_good)
                self._find(f"the hole from {end} to {behind.first_good} was closed with a filler")
                again, reason = await self._scan(end, flushed)
                await self._end_log(again, reason, flushed)
                return
            if not (flushed == UNKNOWN and parts.config.accept_cut_at == end):
                raise self._damage(end, reason, flushed, behind.good_records)
        report.cut_records = behind.good_records
        if last_nonzero(parts, end) > end or parts.log.segments.end > self._segments_needed(end):
            await self._cut(end)
        self._advance(end)

    def _segments_needed(self, end: int) -> int:
        """End of the last segment that a log of this length needs."""
        size = self._parts.log.segment_size
        return -(-end // size) * size

    async def _cut(self, end: int) -> None:
        parts, report = self._parts, self.report
        report.cut_copy, report.cut_bytes = await keep_cut_bytes(
            parts, end, end=last_nonzero(parts, end)
        )
        if report.cut_bytes:
            self._find(
                f"{report.cut_bytes} bytes behind offset {end} were no whole part of the log"
                f" ({report.cut_records} whole records among them) and were cut off; they are kept"
                f" in {report.cut_copy}; last offset known to be on disk: {report.last_durable}"
            )
        parts.world.mark("store.recovery_cut")
        self._advance(end)
        last = self._dispatcher.last
        start = last.physical_offset if last else parts.marks.mark.record_start
        await cut_log(parts, end, record_start=start)

    def _damage(self, end: int, reason: str, flushed: int, good: int) -> DamagedLog:
        parts = self._parts
        path = parts.log.segments.path(parts.log.segments.start_of(end))
        if flushed == UNKNOWN:
            return DamagedLog(
                f"no record at offset {end} in {path} ({reason}), but {good} good records behind"
                " it, and nothing is known of what was on disk. Nothing was changed. Look at it"
                " with `rocketbed store fsck`; then either restore it from a replica, or start"
                f" with --set rbAcceptCut={end} to end the log there, or with"
                f" --set rbFillHole={end} to keep what is behind",
                offset=end,
            )
        return DamagedLog(
            f"the log was on disk up to offset {min(flushed, parts.log.segments.end)}, but there"
            f" is no record at {end} in {path} ({reason}); {good} good records stand behind it."
            " Nothing was cut off. Restore the hole from a replica, or start with"
            f" --set rbFillHole={end} to close it with a filler and keep what is behind",
            offset=end,
        )

    async def _write_again(self, flushed: int) -> None:
        """Write what was not known to be on disk once more, as it is.

        Where an fsync failed, Linux took pages for clean that never got to the disk; the next
        fsync, ours, would succeed without them (T10).
        """
        log = self._parts.log
        position, end = max(flushed, log.min_offset), log.written.value
        while position < end:
            data = log.read(position, READ_SIZE)
            log.segments.write(position, data)
            position += len(data)
            await trio.lowlevel.checkpoint()

    async def _finish(self) -> None:
        """Everything up to the end is dispatched: raise W, and count on from there."""
        parts, report = self._parts, self.report
        if report.clock_steps:
            self._find(
                f"{report.clock_steps} records have an earlier store time than the one before: the"
                " clock was set back, or an old tail came back; search by time may miss some"
            )
        if report.dropped_records:
            self._find(f"{report.dropped_records} records of deleted topics stay out of queues")
        parts.log.tail.next_queue_offsets = parts.queues.next_offsets()
        parts.queues.correct_min(parts.log.min_offset)
        report.end = parts.log.written.value
        self._dispatcher.restart()
        # The scan is over: from here on F follows the fsyncs again.
        self._flusher.floor = 0
        await self._checkpointer.raise_mark()
