"""Check a whole store directory: files, log, queues, index, marks.

It reads the log, each queue file and the index once, in step, and changes nothing. Memory is
bounded by the number of queues (20 KB each) plus one slot table. Rules and severities are defined
next to the checks: `check_files`, `check_queues`, `check_index`, `check_marks`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from rocketbed.inspect.check.files import check_files
from rocketbed.inspect.check.index import IndexChecker
from rocketbed.inspect.check.marks import (
    check_abort,
    check_checkpoint,
    check_config,
    check_lock,
    check_minimum,
    check_offsets,
    check_own_marks,
)
from rocketbed.inspect.check.queues import (
    BatchCursor,
    LogFacts,
    QueueCursor,
    check_empty_segments,
    dispatched_position,
)
from rocketbed.inspect.commitlog import Filler, Hole, LogEnd
from rocketbed.inspect.directory import StoreDirectory
from rocketbed.inspect.dispatch import BATCH, PLAIN, Dispatcher, Target
from rocketbed.inspect.findings import EVERYTHING, HEAL, Finding, Findings, Loss, Severity
from rocketbed.inspect.record import SYS_ROLLBACK, SYS_TRANSACTION, Fault, Scanned

_PROGRESS_BYTES = 16 << 20
_CHECKSUM_RULES = {"record-crc", "record-property-crc"}


@dataclass(frozen=True, slots=True)
class Report:
    root: str
    live: bool
    """True if a process held the store during the check."""
    log_min: int
    log_end: int
    records: int
    queues: int
    index_files: int
    last_store_ms: int
    """Latest store time in the log, milliseconds; 0 for an empty log."""
    unreadable_bytes: int
    """Bytes within the log that are no record, or that the log had on disk and lacks."""
    losses: tuple[Loss, ...]
    """Messages that were in the log and are not, by queue."""
    findings: tuple[Finding, ...]

    @property
    def worst(self) -> Severity:
        """Highest severity of the findings, which is the exit status of `rocketbed store fsck`."""
        return max((finding.severity for finding in self.findings), default=Severity.NOTE)

    @property
    def verdict(self) -> str:
        """`good`, `torn tail` or `damage`."""
        return ("good", "torn tail", "damage")[self.worst]

    def as_row(self) -> dict[str, object]:
        return {
            "directory": self.root,
            "verdict": self.verdict,
            "live": self.live,
            "logMin": self.log_min,
            "logEnd": self.log_end,
            "records": self.records,
            "queues": self.queues,
            "indexFiles": self.index_files,
            "lastStoreTimestamp": self.last_store_ms,
            "unreadableBytes": self.unreadable_bytes,
            "lost": [loss.as_row() for loss in self.losses],
            "findings": [finding.as_row() for finding in self.findings],
        }


def check_store(
    directory: StoreDirectory, progress: Callable[[int, int], None] | None = None
) -> Report:
    """Check everything that a single directory can show.

    `progress(done, total)` is called with bytes of the log, every 16 MiB.
    """
    findings = Findings()
    live = check_lock(directory, findings)
    check_files(directory, findings)
    unclean = live or directory.has_abort
    facts = LogFacts(directory.log.min_offset, 0, unclean, *dispatched_position(directory))
    moving = facts.dispatched if unclean else EVERYTHING
    checker = _LogChecker(directory, findings, facts, moving)
    checker.run(progress)
    facts = checker.facts
    check_empty_segments(directory, findings, unclean=facts.unclean)
    check_checkpoint(directory, facts, checker.last_store_ms, findings)
    check_own_marks(directory, facts, findings)
    if not live:
        check_abort(directory, findings, torn=checker.torn, lacks_end=checker.lacks_end)
    check_config(directory, checker.dispatcher.topic_names(), findings)
    maxima = {key: cursor.next for key, cursor in checker.cursors.items() if cursor.next >= 0}
    check_offsets(directory, maxima, findings)
    check_minimum(directory, facts, findings)
    return Report(
        root=directory.root,
        live=live,
        log_min=facts.minimum,
        log_end=facts.end,
        records=checker.records,
        queues=len(directory.queues) + len(directory.batch_queues),
        index_files=len(directory.index_listing.segments),
        last_store_ms=checker.last_store_ms,
        unreadable_bytes=checker.unreadable_bytes,
        losses=findings.losses(),
        findings=findings.all(),
    )


@dataclass
class _LogChecker:
    """Reads the log, with queues and index in step."""

    directory: StoreDirectory
    findings: Findings
    facts: LogFacts
    """Complete, with the end of the log, after the log has been read."""
    moving: int
    """Log offset from which on units may appear during the check, or at the next start."""
    records: int = 0
    last_store_ms: int = 0
    torn: bool = False
    unreadable_bytes: int = 0
    lacks_end: bool = False
    """True if queues or index lack the end of the log."""
    remade: set[str] = field(init=False)
    cursors: dict[tuple[str, int], QueueCursor] = field(default_factory=dict)
    batches: dict[tuple[str, int], BatchCursor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        files = self.directory.index_files
        names = [self.directory.relative(index.file.path) for index in files]
        self.index = None
        if files:
            marks = self.directory.marks
            was_off = marks is not None and marks.trusted and marks.index_off
            self.index = IndexChecker(files, names, self.findings, self.facts, was_off=was_off)
        self.dispatcher = Dispatcher(self.directory)
        self.remade = self.directory.remade_topics()
        self._steps_back = self._keys = 0

    def run(self, progress: Callable[[int, int], None] | None) -> None:
        log = self.directory.log
        total = sum(segment.size for segment in log.segments)
        reported = first = log.min_offset
        for item in log.scan():
            if type(item) is Scanned:
                self._record(item)
                if progress is not None and item.offset - reported > _PROGRESS_BYTES:
                    reported = item.offset
                    progress(reported - first, total)
            elif isinstance(item, Hole):
                self._hole(item)
            elif isinstance(item, LogEnd):
                self._end(item)
            else:
                assert isinstance(item, Filler)
        facts = self.facts
        for cursor in self._all_cursors():
            self.lacks_end |= cursor.finish(facts)
        if self.index is not None:
            self.lacks_end |= self.index.finish(facts)
        elif self._keys and self.directory.index_layout is not None:
            text = "there is no index: nothing is found by key"
            self.findings.add(
                "index-complete", Severity.NOTE, "index", text, advice="rebuild, if wanted"
            )
        if self._steps_back:
            text = f"store times step back {self._steps_back} times: the clock or old bytes"
            self.findings.add("log-files-tile", Severity.NOTE, "commitlog", text)

    def _record(self, entry: Scanned) -> None:
        self.records += 1
        if entry.store_ms >= self.last_store_ms:
            self.last_store_ms = entry.store_ms
        else:
            self._steps_back += 1
        if entry.topic == b"!" and entry.sys_flag & SYS_TRANSACTION == SYS_ROLLBACK:
            text = (
                f"{entry.size} bytes at {entry.offset} are a closed hole; messages were lost here"
            )
            self.findings.add_damage(entry.offset, entry.offset + entry.size)
            self.findings.add(
                "no-silent-damage", Severity.NOTE, "commitlog", text, offset=entry.offset
            )
        dispatch = self.dispatcher.dispatch(entry)
        if not dispatch.topic.is_usable:
            text = f"the topic of the record at {entry.offset} can be no directory's name: no queue"
            file = self._file_at(entry.offset)
            self.findings.add(
                "no-silent-damage", Severity.DAMAGE, file, text, offset=entry.offset, advice=HEAL
            )
        for target in dispatch.targets:
            self._expect(target, entry)
        self._keys += len(dispatch.keys)
        if self.index is not None and (dispatch.keys or dispatch.tags):
            topic_hash = dispatch.topic.hash
            hashes = [topic_hash.key_hash(key) for key in dispatch.keys]
            self.index.expect(
                entry.offset,
                entry.store_ms,
                hashes,
                topic_hash,
                dispatch.tags,
                deleted=dispatch.deleted,
            )

    def _expect(self, target: Target, entry: Scanned) -> None:
        key = target.topic, target.queue_id
        if target.kind is PLAIN:
            cursor = self.cursors.get(key)
            if cursor is None:
                cursor = self._cursor(key)
                cursor.begin(target.slot, entry.offset, self.directory.log.min_offset)
            cursor.expect(target.slot, entry.offset, entry.size, target.tag_code)
        else:
            assert target.kind is BATCH
            batch = self.batches.get(key)
            if batch is None:
                batch = self._batch_cursor(key)
            batch.expect(target.batch_unit(entry), self.facts)

    def _cursor(self, key: tuple[str, int]) -> QueueCursor:
        queue = self.directory.queues.get(key)
        extension = self.directory.extensions.get(key)
        name = f"consumequeue/{key[0]}/{key[1]}"
        cursor = self.cursors[key] = QueueCursor(
            name, queue, extension, self._findings_of(key), self.moving
        )
        return cursor

    def _batch_cursor(self, key: tuple[str, int]) -> BatchCursor:
        queue = self.directory.batch_queues.get(key)
        name = f"batchconsumequeue/{key[0]}/{key[1]}"
        cursor = self.batches[key] = BatchCursor(name, queue, self._findings_of(key))
        return cursor

    def _findings_of(self, key: tuple[str, int]) -> Findings:
        """Return the collector for a queue's findings; those of a queue that the next start
        recreates are dropped."""
        return Findings() if key[0] in self.remade else self.findings

    def _all_cursors(self) -> list[QueueCursor | BatchCursor]:
        for key in self.directory.queues.keys() - self.cursors.keys():
            self._cursor(key)
        for key in self.directory.batch_queues.keys() - self.batches.keys():
            self._batch_cursor(key)
        return [
            *(cursor for _, cursor in sorted(self.cursors.items())),
            *(cursor for _, cursor in sorted(self.batches.items())),
        ]

    def _hole(self, hole: Hole) -> None:
        size = hole.end - hole.offset
        text = (
            f"{size} bytes from {hole.offset} are no record ({_say(hole.fault)}), good ones follow,"
            " which recovery by RocketMQ would truncate"
        )
        self.unreadable_bytes += size
        self.findings.add_damage(hole.offset, hole.end)
        rule = "record-checksums" if hole.fault.rule in _CHECKSUM_RULES else "no-silent-damage"
        if hole.fault.rule == "log-gap":
            rule = "log-files-tile"
        file = self._file_at(hole.offset)
        self.findings.add(rule, Severity.DAMAGE, file, text, offset=hole.offset, advice=HEAL)

    def _end(self, end: LogEnd) -> None:
        self.facts = self.facts._replace(end=end.offset)
        flushed = self.directory.log.flushed_offset
        is_short = flushed is not None and end.offset < flushed
        if flushed is not None and is_short:
            text = (
                f"the log ends at {end.offset}, it was on disk up to {flushed}: acknowledged"
                " messages are missing"
            )
            file = self._file_at(end.offset)
            self.unreadable_bytes += flushed - end.offset
            self.findings.add_damage(end.offset)
            self.findings.add(
                "no-silent-damage", Severity.DAMAGE, file, text, offset=end.offset, advice=HEAL
            )
        if end.torn_at is None or end.fault is None:
            return
        self.torn = True
        text = f"the log ends at {end.offset}; behind it are bytes of no record ({_say(end.fault)})"
        if not is_short:
            self.findings.add_damage(end.offset)
        self.findings.add(
            "log-end",
            Severity.TAIL,
            self._file_at(end.offset),
            text,
            offset=end.offset,
            cause=end.offset if is_short else None,
        )

    def _file_at(self, offset: int) -> str:
        log = self.directory.log
        number = log.index_at(offset)
        if number is None:
            return "commitlog"
        return self.directory.relative(log.segments[number].path)


def _say(fault: Fault) -> str:
    return f"{fault.rule}: {fault.reason}"
