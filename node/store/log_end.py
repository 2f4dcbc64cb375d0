"""The end of the log, and whether it may end there (store.md 8.6, Boot; design.md 24).

A log that is bad, or ends, below what this node knew to be on disk is damaged, whatever wrote
since: the node does not start as a master, and reports which bytes, how many messages at most, and
the ways out. A slave has a way of its own: the master sends it the missing part again.
"""

from rocketbed.node.store.boot_report import RecoveryReport
from rocketbed.node.store.cursor import LogCursor, Step, Verdict
from rocketbed.node.store.cut import (
    boundary_below,
    cut_log,
    keep_cut_bytes,
    keep_file,
    last_nonzero,
)
from rocketbed.node.store.dispatch import Dispatcher
from rocketbed.node.store.errors import BadStoreDirectory, DamagedLog
from rocketbed.node.store.evidence import UNKNOWN, BadEnd, Evidence
from rocketbed.node.store.files import file_size
from rocketbed.node.store.filler import fill_hole
from rocketbed.node.store.marks import AcceptedCut
from rocketbed.node.store.parts import StoreParts
from rocketbed.node.store.scan import crc_scanner
from rocketbed.node.store.tail import good_records_after
from rocketbed.node.store.view import holds_record
from rocketbed.wire.message import RECORD_MIN


class LogEnd:
    """Decides about one end of one log, and makes it permanent."""

    def __init__(
        self, parts: StoreParts, evidence: Evidence, dispatcher: Dispatcher, report: RecoveryReport
    ) -> None:
        self._parts = parts
        self._evidence = evidence
        self._dispatcher = dispatcher
        self._report = report
        self.durable_end = evidence.flushed
        """F, or the lower end that an operator ordered, or that a slave falls back to."""
        self.accepted = evidence.mark.accepted if evidence.mark is not None else ()
        """Cuts below F that operators ordered, recorded for ever."""
        self.resend_to = evidence.mark.resend_to if evidence.mark is not None else UNKNOWN
        """Offset up to which a master has to send this slave's log again (`Mark.resend_to`)."""
        self._ordered = UNKNOWN
        """Offset at which this start was ordered to end the log, once it has reached that."""

    async def judge_below(self, bad_end: BadEnd) -> None:
        """Check a log that ends below the durable mark: returns if it may. Raises `DamagedLog`."""
        parts = self._parts
        # The witness is the last record below the mark; the damage may begin before it.
        below = await boundary_below(parts, bad_end.offset, crc_scanner(parts.config))
        end = below.end if below else parts.log.min_offset
        good = (await good_records_after(parts, end)).good_records
        if good and parts.config.fill_hole_at == end:
            return  # the scan meets it again
        ends = parts.queues.find_ends(end, thorough=False, deleted={})
        total = parts.queues.totals(ends)[1]
        if not self._may_end_at(end, good, total):
            raise self._damage(end, bad_end.reason, good, total)

    async def after_hole(self, step: Step) -> int:
        """Return where the log continues after the hole at the end of a scan, if the operator
        ordered to close it; else -1."""
        parts = self._parts
        if parts.config.fill_hole_at != step.end or not self._is_damage(step.end, 1):
            return -1
        following = await good_records_after(parts, step.end)
        return following.first_good if following.good_records else -1

    async def filled(self, step: Step) -> bool:
        """Close the hole at the end of a scan on the operator's order; True if that was done."""
        good = await self.after_hole(step)
        if good < 0:
            return False
        await fill_hole(self._parts, step.end, good)
        self._find(f"the hole from {step.end} to {good} was closed with a filler")
        return True

    async def remember(self) -> None:
        """Record the cuts that were ordered, for ever, and what has to be sent again."""
        mark = self._parts.marks.mark
        if (self.accepted, self.resend_to) != (mark.accepted, mark.resend_to):
            await self._parts.marks.update(accepted=self.accepted, resend_to=self.resend_to)

    async def settle(self, step: Step) -> None:
        """Decide about the end of the scan, and make it the end of the log. Raises `DamagedLog`."""
        parts, end = self._parts, step.end
        tail_end = await self.judge(step, parts.queues.total)
        await self.remember()
        size = parts.log.segment_size
        if tail_end > end or parts.log.segments.end > -(-end // size) * size:
            await self._cut(end, tail_end)
        self._advance(end)

    async def judge(self, step: Step, total: int) -> int:
        """Check that the log may end at the end of a scan. Nothing is changed. Raises `DamagedLog`.

        `total` is the sum of the queues' next offsets there. Returns the end of the bytes after it
        that are to be cut.
        """
        parts, end = self._parts, step.end
        if (
            step.verdict is Verdict.END
            and end >= self.durable_end
            and end == parts.log.segments.end
        ):
            return end
        # Zeros are read once, not searched for records too: they may be a gigabyte.
        tail_end = last_nonzero(parts, end)
        good = (
            (await good_records_after(parts, end, tail_end)).good_records if tail_end > end else 0
        )
        if self._is_damage(end, good) and not self._may_end_at(end, good, total):
            raise self._damage(end, step.reason, good, total)
        self._report.cut_records = good
        return tail_end

    def _is_damage(self, end: int, good: int) -> bool:
        """True if an end is damage: always below F; above it a power loss leaves at most good
        records after a bad one."""
        return end < self.durable_end or (good > 0 and not self._evidence.may_be_torn)

    def _may_end_at(self, end: int, good: int, total: int) -> bool:
        """True if a damaged log may end at `end`: on a slave, or by an operator's order."""
        parts = self._parts
        if parts.config.accept_cut_at == end:
            messages = self._missing(end, total)
            order = AcceptedCut(end, self.durable_end, messages, parts.world.clock.wall_ms())
            if self._ordered != end:  # an end that was accepted below the mark meets the scan again
                self._ordered = end
                self._find(f"by rbAcceptCut={end} {self._loss(end, messages)}")
                # A start that was killed meanwhile is repeated, and cuts the same again.
                if (end, self.durable_end) not in [
                    (cut.offset, cut.flushed) for cut in self.accepted
                ]:
                    self.accepted = (*self.accepted, order)
                self.resend_to = UNKNOWN
        elif parts.config.is_slave and not good:
            self.resend_to = max(self.resend_to, self.durable_end)
            self._find(
                f"this slave's log was on disk up to offset {self.durable_end}, but is good up to"
                f" {end} only; the master sends the rest again"
            )
        else:
            return False
        self.durable_end = min(self.durable_end, end)
        return True

    def _missing(self, end: int, total: int) -> int:
        """Return how many acknowledged messages may be lost; `total`: next offsets summed at
        `end`."""
        mark = self._evidence.mark
        above = max(self.durable_end - max(end, mark.offset if mark else 0), 0) // RECORD_MIN
        if mark is None or end >= mark.offset or (self._evidence.derived and not self._scanned):
            return max(self.durable_end - end, 0) // RECORD_MIN
        return max(mark.queue_total - total, 0) + above

    def _loss(self, end: int, messages: int) -> str:
        if self.durable_end <= end:
            return f"the log ends at {end}"
        return (
            f"the log ends at {end}: {self.durable_end - end} bytes that were on disk, at most"
            f" {messages} acknowledged messages, are given up"
        )

    def _damage(self, end: int, reason: str, good: int, total: int) -> DamagedLog:
        parts = self._parts
        path = parts.log.segments.path(parts.log.segments.start_of(end))
        if self.durable_end == UNKNOWN:
            extent = "nothing is known of what was on disk"
        elif end < self.durable_end:
            extent = (
                f"the log was on disk up to offset {self.durable_end}:"
                f" {self.durable_end - end} bytes, at most {self._missing(end, total)}"
                " acknowledged messages, cannot be read"
            )
        else:
            extent = f"it is above the last offset known to be on disk, {self.durable_end}"
        ways = [
            f"`{parts.config.heal_command}` copies what is missing from a replica's log",
            "brokerRole=SLAVE with a brokerId above 0 has a master send it again"
            if not good
            else "",
            f"--set rbFillHole={end} closes the hole with a filler" if good else "",
            f"--set rbAcceptCut={end} ends the log there, and keeps what is truncated",
        ]
        return DamagedLog(
            f"no record at offset {end} in {path} ({reason or 'the log ends there'}), {good} good"
            f" records behind it; {extent}. {self._changed()} Ways out: "
            + "; ".join(way for way in ways if way),
            offset=end,
        )

    def _changed(self) -> str:
        if self._scanned:
            return "Nothing of the log was changed; queues and index are built again at a start."
        return "Nothing was changed."

    @property
    def _scanned(self) -> bool:
        """True if queues and index were emptied, and rebuilt up to the end of the scan."""
        return self._report.took_over

    def remind_of_orders(self) -> None:
        """Warn that an order is for one start: later damage should be decided separately."""
        config = self._parts.config
        for key, offset in (
            ("rbAcceptCut", config.accept_cut_at),
            ("rbAcceptStart", config.accept_start_at),
            ("rbFillHole", config.fill_hole_at),
        ):
            if offset >= 0:
                self._find(
                    f"{key}={offset} is set: take it out of the configuration now, or damage that"
                    " comes to that offset later is dealt with so without a question"
                )

    def _find(self, sentence: str) -> None:
        self._report.findings.append(sentence)
        self._parts.world.log.warning("store.recovery_finding", finding=sentence)

    def _advance(self, end: int) -> None:
        self._parts.log.written.reset(end)
        self._parts.dispatched.reset(self._parts.dispatchable(end))

    async def _cut(self, end: int, tail_end: int) -> None:
        parts, report = self._parts, self._report
        report.cut_copy, report.cut_bytes = await keep_cut_bytes(parts, end, end=tail_end)
        if report.cut_bytes:
            self._find(
                f"{report.cut_bytes} bytes behind offset {end} were no whole part of the log"
                f" ({report.cut_records} whole records among them) and were truncated; they are"
                f" kept in {report.cut_copy}; last offset known to be on disk:"
                f" {report.last_durable}"
            )
        parts.world.mark("store.recovery_cut")
        self._advance(end)
        last = self._dispatcher.last
        start = last.physical_offset if last else parts.marks.mark.record_start
        await cut_log(parts, end, record_start=start)


async def judge_suspects(parts: StoreParts, evidence: Evidence) -> None:
    """Refuse log segments that are short or follow a hole, unless nothing there was durable."""
    segments = parts.log.segments
    _suspect_beginning(parts, evidence)
    if not segments.suspects:
        return
    first = segments.suspects[0]
    whole = segments.end if segments.starts else first
    if evidence.may_be_torn and whole >= evidence.flushed:
        return
    length = file_size(parts.world, segments.path(first))
    if first == segments.suspects[-1] and not length:
        return
    if parts.config.accept_cut_at == whole:
        return
    if first > whole >= evidence.flushed and not await holds_record(parts, first, length):
        raise BadStoreDirectory(
            f"{segments.path(first)} is no part of the log: its segments end at {whole}, where all"
            " is that this node knew to be on disk, and no record stands in the file. Nothing was"
            " changed. Way out: move the file away"
        )
    raise BadStoreDirectory(
        f"{segments.path(first)} has not the length of a segment, or a file before it is missing,"
        " and nothing shows that a power loss did it. Nothing was changed. Ways out:"
        f" `{parts.config.heal_command}` copies it from a replica's log; a copy of the file;"
        f" --set rbAcceptCut={whole} ends the log before it, and keeps what is truncated"
    )


def _suspect_beginning(parts: StoreParts, evidence: Evidence) -> None:
    """Doubt the beginning of a log that was never synced: a power loss may leave only a segment
    created ahead of time, or a torn one, and a log that began there would look longer than one that
    holds messages. A slave starts afresh although there are good records: it would never request
    those before them, and count as a complete copy."""
    segments, mark = parts.log.segments, evidence.mark
    if mark is None or max(mark.first, mark.offset, evidence.flushed) > 0 or not segments.starts:
        return
    first = segments.starts[0]
    if first == 0 or not evidence.may_be_torn:
        return
    step = LogCursor(segments, crc_scanner(parts.config)).record_at(first)
    if step.verdict is not Verdict.GOOD or parts.config.is_slave:
        segments.suspects = segments.starts + segments.suspects
        segments.starts = []


async def keep_suspects(parts: StoreParts) -> list[str]:
    """Copy segments that are not in the row, before they are removed, if they hold good records or
    an operator's cut removes them; return the paths of the copies."""
    segments, is_ordered = parts.log.segments, parts.config.accept_cut_at >= 0
    copies = []
    for start in segments.suspects:
        path = segments.path(start)
        if is_ordered or await holds_record(parts, start, file_size(parts.world, path)):
            copies.append(await keep_file(parts, path))
    return copies


def judge_beginning(parts: StoreParts, evidence: Evidence) -> None:
    """Check missing segments at the beginning: retention records their deletion in the mark
    first."""
    mark, first = evidence.mark, parts.log.min_offset
    if mark is None or mark.first in (UNKNOWN, first):
        return
    if evidence.hand:  # such as RocketMQ's own retention
        if first > mark.first:
            parts.world.log.warning(
                "store.recovery_finding",
                finding=f"the log began at offset {mark.first} when this node wrote its mark, and"
                f" begins at {first} now: another program had the directory ({evidence.hand})",
            )
        return
    if mark.offset <= mark.first or first < mark.first or parts.config.accept_start_at == first:
        return
    raise BadStoreDirectory(
        f"{parts.log.segments.directory} begins at offset {first}, but retention had kept"
        f" everything from {mark.first}: {first - mark.first} bytes are missing. Nothing was"
        f" changed. Ways out: `{parts.config.heal_command}` copies them from a"
        f" replica's log; a copy of the files; --set rbAcceptStart={first} goes on without them"
    )
