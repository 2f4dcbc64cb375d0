"""Check that the consume queues agree with the log, in one pass in log order.

Each queue has a cursor at its next record. As the log is read, every queued record must find its
unit at the slot of its QUEUEOFFSET, so no table of records is needed, however long the log. Rules
S3 to S7 of chaos.md 2.7.
"""

from typing import NamedTuple

from rocketbed.inspect.consumequeue import (
    EMPTY,
    EXTENSION_ADDRESS_MAX,
    PRE_BLANK,
    UNIT,
    BatchConsumeQueue,
    BatchUnit,
    ConsumeQueue,
    extension_tag,
)
from rocketbed.inspect.directory import StoreDirectory
from rocketbed.inspect.files import SegmentRow
from rocketbed.inspect.findings import (
    EVERYTHING,
    HEAL,
    REBUILD,
    Findings,
    Severity,
)

WINDOW_UNITS = 1024
"""Units held per queue: 20 KB, so that ten thousand queues need at most 200 MB."""
_pack = UNIT.pack


class LogFacts(NamedTuple):
    """Facts about the log by which queues and index are judged."""

    minimum: int
    end: int
    unclean: bool
    """True if the last stop left an abort file, or the store is in use."""
    dispatched: int = 0
    """Log offset below which queues must be complete even after an unclean stop; the next start
    completes the rest."""
    indexed: int = 0
    """The same offset for the index, never above `dispatched`."""

    def may_lack_unit(self, offset: int) -> bool:
        """True if a record may lack its unit because it was not dispatched yet."""
        return self.unclean and offset >= self.dispatched

    def may_lack_entries(self, offset: int) -> bool:
        """True if a record may lack its index entries because it was not dispatched yet."""
        return self.unclean and offset >= self.indexed


class _Run:
    """A run of neighbouring slots whose units are missing."""

    __slots__ = ("count", "first_slot", "offset")

    def __init__(self, slot: int, offset: int) -> None:
        self.first_slot = slot
        self.offset = offset
        self.count = 1


class QueueCursor:
    """Position of the check in one queue while the log is read."""

    __slots__ = (
        "_base",
        "_findings",
        "_moving",
        "_window",
        "extension",
        "missing",
        "name",
        "next",
        "queue",
    )

    def __init__(
        self,
        name: str,
        queue: ConsumeQueue | None,
        extension: SegmentRow | None,
        findings: Findings,
        moving: int = EVERYTHING,
    ) -> None:
        """Units of records from offset `moving` on may still be missing: a live store is writing
        them, or the next start rebuilds them. A power loss may take one unit and leave a later
        one."""
        self.name = name
        self.queue = queue
        self.extension = extension
        self._moving = moving
        self.next = -1
        """Slot of the queue's next record; -1 before the first."""
        self.missing: _Run | None = None
        self._base = 0
        self._window = b""
        self._findings = findings

    def expect(self, slot: int, offset: int, size: int, tag_code: int) -> None:
        """Check the next record of this queue: its unit must be at its slot."""
        if slot == self.next and self.missing is None:
            at = (slot - self._base) * 20
            if self._window[at : at + 20] == _pack(offset, size, tag_code):
                self.next = slot + 1
                return
        self._expect_slowly(slot, offset, size, tag_code)

    def finish(self, facts: LogFacts) -> bool:
        """Report units that are missing at the end of the log, and those beyond it.

        Returns True when the queue lacks the end of the log.
        """
        lacks_end = self.missing is not None
        if lacks_end:
            self._report_missing(facts)
        if self.queue is None:
            return lacks_end
        if self.next < 0:
            self._judge_expired(None, facts.minimum)
            return False
        for unit in self.queue.units(self.next):
            if not unit.is_pre_blank:
                self._judge_beyond(unit.slot, unit.offset, unit.size, facts)
        return lacks_end

    def begin(self, slot: int, offset: int, log_minimum: int) -> None:
        """Start at the queue's first record in the log; all units before it must be older."""
        slot = self._place_of(slot, offset)
        self.next = slot
        if self.queue is not None and slot > 0:
            self._judge_expired(slot, log_minimum)

    def _place_of(self, slot: int, offset: int) -> int:
        """Return the slot whose unit points to the first record, which itself claims `slot`."""
        if self.queue is None:
            return slot
        if slot >= 0:
            for unit in self.queue.units(slot, slot + 1):
                if unit.offset == offset:
                    return slot
        for unit in self.queue.units(0):
            if not unit.is_pre_blank and unit.offset >= offset:
                return unit.slot if unit.offset == offset else slot
        return slot

    def _is_misplaced(self, slot: int, offset: int, size: int, tag_code: int) -> bool:
        """True if the queue has the record at the next slot, although the record claims another.

        No checksum covers the queue offset, while the queue agrees with the neighbouring records.
        """
        expected = _pack(offset, size, tag_code)
        if slot == self.next or self.missing is not None:
            return False
        if self._unit(self.next, expected) != expected:
            return False
        text = f"the record at {offset} says queue offset {slot}, it is {self.next} of {self.name}"
        advice = "take the record from a replica; it is served as it is"
        self._findings.add(
            "no-silent-damage", Severity.DAMAGE, "commitlog", text, offset=offset, advice=advice
        )
        self.next += 1
        return True

    def _expect_slowly(self, slot: int, offset: int, size: int, tag_code: int) -> None:
        if self._is_misplaced(slot, offset, size, tag_code):
            return
        if slot < self.next:
            text = f"queue offset {slot} of the record at {offset} was given out before"
            advice = "the later message is found by id and key only; send it again"
            self._findings.add(
                "queue-entry-places", Severity.DAMAGE, self.name, text, offset=slot, advice=advice
            )
            return
        if slot > self.next:
            self._gap(slot, offset)
        expected = _pack(offset, size, tag_code)
        unit = self._unit(slot, expected)
        self.next = slot + 1
        if unit == expected or self._is_extended(unit, expected):
            if self.missing is not None:
                self._report_missing(None)
        elif unit in (b"", EMPTY, PRE_BLANK):
            if self.missing is None:
                self.missing = _Run(slot, offset)
            else:
                self.missing.count += 1
        else:
            if self.missing is not None:
                self._report_missing(None)
            self._judge_unit(slot, unit, expected)

    def _unit(self, slot: int, expected: bytes) -> bytes:
        """Return the unit of a slot, read again from the file when the window does not have the
        expected one."""
        at = (slot - self._base) * 20
        unit = self._window[at : at + 20] if at >= 0 else b""
        if unit != expected and self.queue is not None:
            self._window = self.queue.window(slot, WINDOW_UNITS)
            self._base = slot
            unit = self._window[:20]
        return unit

    def _is_extended(self, unit: bytes, expected: bytes) -> bool:
        if self.extension is None or unit[:12] != expected[:12]:
            return False
        address = UNIT.unpack(unit)[2]
        if address > EXTENSION_ADDRESS_MAX:
            return False
        return extension_tag(self.extension, address) == int(UNIT.unpack(expected)[2])

    def _gap(self, slot: int, offset: int) -> None:
        """Report queue offsets from `next` up to `slot`, which no record of the log has."""
        text = f"queue offsets {self.next} to {slot - 1} are missing in the log before {offset}"
        cause = self._findings.cause_before(offset)
        self._findings.add_loss(_queue_of(self.name), self.next, slot - 1)
        self._findings.add(
            "queue-entry-places",
            Severity.DAMAGE,
            self.name,
            text,
            offset=self.next,
            advice=HEAL,
            cause=cause,
        )
        if self.queue is not None:
            for unit in self.queue.units(self.next, slot):
                if not unit.is_pre_blank:
                    text = f"unit {unit.slot} points to {unit.offset}, where no such record is"
                    self._findings.add(
                        "queue-entries-match-log",
                        Severity.DAMAGE,
                        self.name,
                        text,
                        offset=unit.slot,
                        advice=HEAL,
                        cause=cause,
                    )
        self.next = slot

    def _judge_unit(self, slot: int, unit: bytes, expected: bytes) -> None:
        """Report how a unit differs from the one that its record gives."""
        offset, size, tag_code = UNIT.unpack(unit)
        want_offset, want_size, want_tag = UNIT.unpack(expected)
        if offset != want_offset:
            rule = "queue-entry-places"
            text = f"unit {slot} points to {offset}, its record is at {want_offset}"
        elif size != want_size:
            rule = "queue-entries-match-log"
            text = f"unit {slot} says {size} bytes, the record at {offset} has {want_size}"
        else:
            rule = "queue-tag-codes"
            text = f"unit {slot} has tag code {tag_code}, its record's is {want_tag}"
        self._findings.add(rule, Severity.DAMAGE, self.name, text, offset=slot, advice=REBUILD)

    def _report_missing(self, facts: LogFacts | None) -> None:
        """Report a run of missing units; `facts` is given at the end of the queue."""
        run = self.missing
        assert run is not None
        last = run.first_slot + run.count - 1
        text = f"no unit for queue offsets {run.first_slot} to {last} (log {run.offset} on)"
        severity = Severity.DAMAGE
        if facts is not None and facts.may_lack_unit(run.offset):
            text = f"{text}: not dispatched yet"
            severity = Severity.TAIL
        elif run.offset >= self._moving:  # a live store wrote later units after the read here
            text = f"{text}: not there yet, though later ones are"
            severity = Severity.TAIL
        self._findings.add(
            "queue-entries-complete",
            severity,
            self.name,
            text,
            offset=run.first_slot,
            advice=REBUILD,
            count=run.count,
        )
        self.missing = None

    def _judge_expired(self, slot: int | None, log_minimum: int) -> None:
        """Units before the queue's first record must point below the log's start."""
        assert self.queue is not None
        for unit in self.queue.units(0, slot):
            if not unit.is_pre_blank and unit.offset + unit.size > log_minimum:
                text = f"unit {unit.slot} points to {unit.offset}, where no record of this queue is"
                self._findings.add(
                    "queue-entries-match-log",
                    Severity.DAMAGE,
                    self.name,
                    text,
                    offset=unit.slot,
                    advice=REBUILD,
                    cause=self._lost_by(unit.slot, unit.offset),
                )

    def _lost_by(self, slot: int, offset: int) -> int | None:
        """Return the start of the damage at a unit's log offset, which took the unit's message."""
        cause = self._findings.cause_at(offset)
        if cause is not None:
            self._findings.add_loss(_queue_of(self.name), slot, slot)
        return cause

    def _judge_beyond(self, slot: int, offset: int, size: int, facts: LogFacts) -> None:
        text = f"unit {slot} points to {offset} ({size} bytes), "
        cause = self._lost_by(slot, offset)
        if offset + size > facts.end:
            severity = Severity.TAIL if facts.unclean else Severity.DAMAGE
            text += f"the log ends at {facts.end}"
            self._findings.add(
                "nothing-beyond-log",
                severity,
                self.name,
                text,
                offset=slot,
                advice=REBUILD,
                cause=cause,
            )
        else:
            text += "where no record of this queue is"
            self._findings.add(
                "queue-entries-match-log",
                Severity.DAMAGE,
                self.name,
                text,
                offset=slot,
                advice=REBUILD,
                cause=cause,
            )


class BatchCursor:
    """Position of the check in one batch queue, whose units follow each other without slots."""

    __slots__ = ("_findings", "_lacks_end", "_seen_next", "_units", "name", "pending")

    def __init__(self, name: str, queue: BatchConsumeQueue | None, findings: Findings) -> None:
        self.name = name
        self._units = iter(queue.units() if queue is not None else ())
        self._findings = findings
        self._lacks_end = False
        self._seen_next: int | None = None
        self.pending: BatchUnit | None = next(self._units, None)

    def expect(self, expected: BatchUnit, facts: LogFacts) -> None:
        """Check the next record of this queue; `number` of the expected unit is ignored."""
        while self.pending is not None and self.pending.offset < expected.offset:
            self._judge_extra(self.pending)
        if self._seen_next is not None and expected.base != self._seen_next:
            text = (
                f"record at {expected.offset} begins with {expected.base}, {self._seen_next} is due"
            )
            self._findings.add(
                "queue-entry-places",
                Severity.DAMAGE,
                self.name,
                text,
                offset=expected.base,
                advice=HEAL,
                cause=self._findings.cause_before(expected.offset),
            )
            if expected.base > self._seen_next:
                self._findings.add_loss(_queue_of(self.name), self._seen_next, expected.base - 1)
        self._seen_next = expected.base + expected.messages
        unit = self.pending
        if unit is None or unit.offset != expected.offset:
            self._lacks_end = unit is None
            is_repaired = unit is None and facts.may_lack_unit(expected.offset)
            severity = Severity.TAIL if is_repaired else Severity.DAMAGE
            text = f"no unit for the batch at {expected.offset}"
            self._findings.add(
                "queue-entries-complete",
                severity,
                self.name,
                text,
                offset=expected.base,
                advice=REBUILD,
            )
            return
        if unit[1:] != expected[1:]:
            text = f"unit {unit.number} is {unit[1:]}, its record gives {expected[1:]}"
            rule = (
                "queue-tag-codes"
                if unit.tag_code != expected.tag_code
                else "queue-entries-match-log"
            )
            self._findings.add(
                rule, Severity.DAMAGE, self.name, text, offset=unit.base, advice=REBUILD
            )
        self.pending = next(self._units, None)

    def finish(self, facts: LogFacts) -> bool:
        """Report units beyond the log's end. Returns True when the queue lacks the end of the
        log."""
        while self.pending is not None:
            if self.pending.offset + self.pending.size > facts.end:
                severity = Severity.TAIL if facts.unclean else Severity.DAMAGE
                text = f"unit {self.pending.number} points beyond the log's end {facts.end}"
                self._findings.add(
                    "nothing-beyond-log",
                    severity,
                    self.name,
                    text,
                    offset=self.pending.base,
                    advice=REBUILD,
                    cause=self._lost_by(self.pending),
                )
                self.pending = next(self._units, None)
            else:
                self._judge_extra(self.pending, facts.minimum)
        return self._lacks_end

    def _judge_extra(self, unit: BatchUnit, log_minimum: int | None = None) -> None:
        if self._seen_next is not None or (log_minimum is not None and unit.offset >= log_minimum):
            text = f"unit {unit.number} points to {unit.offset}, where no batch of this queue is"
            # A gap before a later batch counts the messages of this one.
            is_last = log_minimum is not None
            self._findings.add(
                "queue-entries-match-log",
                Severity.DAMAGE,
                self.name,
                text,
                offset=unit.base,
                advice=REBUILD,
                cause=self._lost_by(unit) if is_last else self._findings.cause_at(unit.offset),
            )
        self.pending = next(self._units, None)

    def _lost_by(self, unit: BatchUnit) -> int | None:
        """Return the start of the damage at a unit's log offset, which took the unit's messages."""
        cause = self._findings.cause_at(unit.offset)
        if cause is not None:
            last = unit.base + unit.messages - 1
            self._findings.add_loss(_queue_of(self.name), unit.base, last)
        return cause


def _queue_of(name: str) -> str:
    """Return `TOPIC/ID` of a queue's folder."""
    return name.partition("/")[2]


def dispatched_position(directory: StoreDirectory) -> tuple[int, int]:
    """Return the log offsets, bytes, up to which queues and index must be complete; 0 when unknown.

    These are rocketbed's durable mark, if it can be trusted. Otherwise the end of the highest
    record that any queue has, since dispatch follows the log, and for the index the start of that
    record, since a broker may have been killed between the two. If no queue has a record although
    the checkpoint says that units were written, somebody has removed them, and all of the log
    counts.
    """
    if directory.marks is not None and directory.marks.trusted:
        return directory.marks.durable_offset, directory.marks.durable_offset
    furthest = 0, 0
    for queue in directory.queues.values():
        slot = queue.end_slot() - 1
        for unit in queue.units(max(slot, 0), slot + 1):
            if not unit.is_pre_blank:
                furthest = max(furthest, (unit.offset + unit.size, unit.offset))
    for batch_queue in directory.batch_queues.values():
        for batch in batch_queue.units():
            furthest = max(furthest, (batch.offset + batch.size, batch.offset))
    if not furthest[0] and directory.checkpoint is not None and directory.checkpoint.logics_ms > 0:
        return EVERYTHING, EVERYTHING
    return furthest


def check_empty_segments(directory: StoreDirectory, findings: Findings, *, unclean: bool) -> None:
    """Report all-zero segments of a queue, which mislead a broker unless it is the only one
    (T3)."""
    for (topic, queue_id), queue in sorted(directory.queues.items()):
        for number, segment in enumerate(queue.segments):
            if number == 0 and len(queue.segments) == 1:
                continue
            if directory.pool.first_data(segment.path, 0, segment.size) is None:
                findings.add(
                    "queue-entry-places",
                    Severity.TAIL
                    if unclean and number + 1 == len(queue.segments)
                    else Severity.DAMAGE,
                    directory.relative(segment.path),
                    f"no unit of {topic} queue {queue_id} in it; RocketMQ may refuse to start",
                    offset=segment.start // UNIT.size,
                    advice="delete the file while the broker is stopped, or rebuild",
                )
