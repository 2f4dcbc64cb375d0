"""Where the log ends, and whether it may end there (store.md 8.6, Boot; design.md 24).

A log that is bad, or ends, below what this node knew to be on disk is damage, whoever wrote since:
the node does not start as a master, and says which bytes, how many messages at most, and the ways
out. A slave has one of its own: the master sends it the rest again.
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
from rocketbed.node.store.tail import look_behind
from rocketbed.node.store.view import holds_record
from rocketbed.wire.message import RECORD_MIN


class LogEnd:
    """Judges one end of one log, and makes it the end for good."""

    def __init__(
        self, parts: StoreParts, evidence: Evidence, dispatcher: Dispatcher, report: RecoveryReport
    ) -> None:
        self._parts = parts
        self._evidence = evidence
        self._dispatcher = dispatcher
        self._report = report
        self.known = evidence.flushed
        """F, or what an operator, or a slave's part, brought it down to."""
        self.accepted = evidence.mark.accepted if evidence.mark is not None else ()
        """Cuts below F that operators ordered, for ever."""
        self.owed = evidence.mark.owed if evidence.mark is not None else UNKNOWN
        """What a master has to send this slave again (`Mark.owed`)."""
        self._ordered = UNKNOWN
        """Where this start was told to end the log, once it has come to that."""

    async def judge_below(self, bad_end: BadEnd) -> None:
        """The log ends below the durable mark: returns if it may. Raises `DamagedLog`."""
        parts = self._parts
        # The witness is the last record below the mark; the damage may begin before it.
        below = await boundary_below(parts, bad_end.offset, crc_scanner(parts.config))
        end = below.end if below else parts.log.min_offset
        good = (await look_behind(parts, end)).good_records
        if good and parts.config.fill_hole_at == end:
            return  # the scan comes to it again
        ends = parts.queues.find_ends(end, thorough=False, deleted={})
        total = parts.queues.totals(ends)[1]
        if not self._may_end_at(end, good, total):
            raise self._damage(end, bad_end.reason, good, total)

    async def behind_hole(self, step: Step) -> int:
        """Where the log goes on behind the hole at the end of a scan, if the operator ordered to
        close that; else -1."""
        parts = self._parts
        if parts.config.fill_hole_at != step.end or not self._is_damage(step.end, 1):
            return -1
        behind = await look_behind(parts, step.end)
        return behind.first_good if behind.good_records else -1

    async def filled(self, step: Step) -> bool:
        """Close the hole at the end of a scan on the operator's order; whether that was done."""
        good = await self.behind_hole(step)
        if good < 0:
            return False
        await fill_hole(self._parts, step.end, good)
        self._find(f"the hole from {step.end} to {good} was closed with a filler")
        return True

    async def remember(self) -> None:
        """Put the cuts that were ordered on record, for ever, and what is owed."""
        mark = self._parts.marks.mark
        if (self.accepted, self.owed) != (mark.accepted, mark.owed):
            await self._parts.marks.update(accepted=self.accepted, owed=self.owed)

    async def settle(self, step: Step) -> None:
        """Decide what stands at the end of the scan, and make it the end. Raises `DamagedLog`."""
        parts, end = self._parts, step.end
        behind = await self.judge(step, parts.queues.total)
        await self.remember()
        size = parts.log.segment_size
        if behind > end or parts.log.segments.end > -(-end // size) * size:
            await self._cut(end, behind)
        self._advance(end)

    async def judge(self, step: Step, total: int) -> int:
        """Whether the log may end where a scan ended. Nothing is changed. Raises `DamagedLog`.

        `total` is the sum of the queues' next offsets there. Returns the end of the bytes behind it
        that are to be cut.
        """
        parts, end = self._parts, step.end
        if step.verdict is Verdict.END and end >= self.known and end == parts.log.segments.end:
            return end
        # What is empty is read once, not searched for records too: it may be a gigabyte.
        behind = last_nonzero(parts, end)
        good = (await look_behind(parts, end, behind)).good_records if behind > end else 0
        if self._is_damage(end, good) and not self._may_end_at(end, good, total):
            raise self._damage(end, step.reason, good, total)
        self._report.cut_records = good
        return behind

    def _is_damage(self, end: int, good: int) -> bool:
        """Below F always; above it good records behind a bad one are what a power loss may leave,
        and nothing else is."""
        return end < self.known or (good > 0 and not self._evidence.may_be_torn)

    def _may_end_at(self, end: int, good: int, total: int) -> bool:
        """Whether a damaged log may end at `end`: on a slave, or by an operator's order."""
        parts = self._parts
        if parts.config.accept_cut_at == end:
            messages = self._missing(end, total)
            order = AcceptedCut(end, self.known, messages, parts.world.clock.wall_ms())
            if self._ordered != end:  # what was judged below the mark is judged by the scan too
                self._ordered = end
                self._find(f"by rbAcceptCut={end} {self._loss(end, messages)}")
                # A start that was killed on the way is repeated, and cuts the same again.
                if (end, self.known) not in [(cut.offset, cut.known) for cut in self.accepted]:
                    self.accepted = (*self.accepted, order)
                self.owed = UNKNOWN
        elif parts.config.is_slave and not good:
            self.owed = max(self.owed, self.known)
            self._find(
                f"this slave's log was on disk up to offset {self.known}, but is good up to {end}"
                " only; the master sends the rest again"
            )
        else:
            return False
        self.known = min(self.known, end)
        return True

    def _missing(self, end: int, total: int) -> int:
        """How many acknowledged messages can be gone; `total`: next offsets summed at `end`."""
        mark = self._evidence.mark
        above = max(self.known - max(end, mark.offset if mark else 0), 0) // RECORD_MIN
        if mark is None or end >= mark.offset or (self._evidence.derived and not self._scanned):
            return max(self.known - end, 0) // RECORD_MIN
        return max(mark.queue_total - total, 0) + above

    def _loss(self, end: int, messages: int) -> str:
        if self.known <= end:
            return f"the log ends at {end}"
        return (
            f"the log ends at {end}: {self.known - end} bytes that were on disk, at most"
            f" {messages} acknowledged messages, are given up"
        )

    def _damage(self, end: int, reason: str, good: int, total: int) -> DamagedLog:
        parts = self._parts
        path = parts.log.segments.path(parts.log.segments.start_of(end))
        if self.known == UNKNOWN:
            known = "nothing is known of what was on disk"
        elif end < self.known:
            known = (
                f"the log was on disk up to offset {self.known}: {self.known - end} bytes, at"
                f" most {self._missing(end, total)} acknowledged messages, cannot be read"
            )
        else:
            known = f"it is above the last offset known to be on disk, {self.known}"
        ways = [
            f"`{parts.config.heal_command}` copies what is missing from a replica's log",
            "brokerRole=SLAVE with a brokerId above 0 has a master send it again"
            if not good
            else "",
            f"--set rbFillHole={end} closes the hole with a filler" if good else "",
            f"--set rbAcceptCut={end} ends the log there, and keeps what is cut",
        ]
        return DamagedLog(
            f"no record at offset {end} in {path} ({reason or 'the log ends there'}), {good} good"
            f" records behind it; {known}. {self._changed()} Ways out: "
            + "; ".join(way for way in ways if way),
            offset=end,
        )

    def _changed(self) -> str:
        if self._scanned:
            return "Nothing of the log was changed; queues and index are built again at a start."
        return "Nothing was changed."

    @property
    def _scanned(self) -> bool:
        """Whether queues and index were emptied, and built again up to where the scan ended."""
        return self._report.took_over

    def remind_of_orders(self) -> None:
        """An order is for one start: what is damaged later should be asked about again."""
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

    async def _cut(self, end: int, behind: int) -> None:
        parts, report = self._parts, self._report
        report.cut_copy, report.cut_bytes = await keep_cut_bytes(parts, end, end=behind)
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


async def judge_suspects(parts: StoreParts, evidence: Evidence) -> None:
    """Log segments that are short or behind a hole are fine only where nothing was durable."""
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
        f" --set rbAcceptCut={whole} ends the log before it, and keeps what is cut"
    )


def _suspect_beginning(parts: StoreParts, evidence: Evidence) -> None:
    """Of a log that was never synced, a power loss may leave only a segment made ahead of it, or a
    torn one: a log that began there would look longer than one that holds messages (swarm seeds
    861152, 866709). A slave begins again although there are good records: it would never ask for
    those before them, and count as a whole copy (872035)."""
    segments, mark = parts.log.segments, evidence.mark
    if mark is None or max(mark.first, mark.offset, evidence.flushed) > 0 or not segments.starts:
        return
    first = segments.starts[0]
    if first == 0 or not evidence.may_be_torn:
        return
    step = LogCursor(segments, crc_scanner(parts.config)).one(first)
    if step.verdict is not Verdict.GOOD or parts.config.is_slave:
        segments.suspects = segments.starts + segments.suspects
        segments.starts = []


async def keep_suspects(parts: StoreParts) -> list[str]:
    """Copy segments that are no part of the row, before they are removed, if they hold good records
    or an operator's cut takes them away; the paths of the copies."""
    segments, is_ordered = parts.log.segments, parts.config.accept_cut_at >= 0
    kept = []
    for start in segments.suspects:
        path = segments.path(start)
        if is_ordered or await holds_record(parts, start, file_size(parts.world, path)):
            kept.append(await keep_file(parts, path))
    return kept


def judge_beginning(parts: StoreParts, evidence: Evidence) -> None:
    """Segments at the beginning go by retention, which says so in the mark first, or by a hand."""
    mark, first = evidence.mark, parts.log.min_offset
    if mark is None or mark.first in (UNKNOWN, first):
        return
    if evidence.hand:  # RocketMQ's own retention is such a hand
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
