"""Messages that readers got, and those that they should have got (chaos.md 2.4).

Offsets are taken from completed sends only, but every message that any reader got counts. A message
that may be missing by the bound of 2.3 may have been read.
"""

from rocketbed.chaos.checks import passes
from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.evidence import READS, Evidence
from rocketbed.chaos.checks.examples import example_of, spread
from rocketbed.chaos.checks.keys import OFFSET_BITS, pack
from rocketbed.chaos.checks.result import Severity
from rocketbed.chaos.evidence.history import FINAL_READER, Function

_NO_PULLS = "the history holds no pulls"


@check("unseen-message", "acknowledged messages", final=True)
def unseen(case: Case, findings: Findings) -> int:
    """An acknowledged message of the final log was read by the reader that read everything at
    the end, or without such a reader by some member of a group."""
    evidence, reads = case.evidence, case.evidence.reads
    final = passes.matching(reads.column("process"), (FINAL_READER,))
    pulls = evidence.rows((Function.PULL,)).column("process")
    if any(stall.what == "drain" for stall in evidence.record.stalls):
        raise NotApplicable("the final read did not finish")
    if len(passes.matching(pulls, (FINAL_READER,))) or len(final):
        received, reader = passes.take(reads.column("value"), final), "the final reader"
    else:
        delivered = evidence.rows((Function.DELIVER,))
        if not len(delivered):
            raise NotApplicable("nothing was read at the end")
        received, reader = delivered.column("value"), "any group"
    sends = evidence.acknowledged
    values = sends.column("value")
    unseen = passes.missing(values, received)
    for position in passes.included(passes.take(values, unseen), evidence.stored.values):
        text = f"is in the final log, and {reader} did not get it"
        row = sends.row(unseen[position])
        excuse = evidence.deleted_message(row) or evidence.disks.altered(row.value)
        findings.add(example_of(evidence, row, text), excuse=excuse)
    findings.note = f"read by {reader}"
    return len(sends)


@check("vanished-read", "messages read", final=True)
def vanished_reads(case: Case, findings: Findings) -> int:
    """A message that was read is in the final log, unless it may be missing, or expired."""
    evidence, losses = case.evidence, case.losses
    reads = case.require_rows(READS, without="nothing was read")
    values, keys = reads.column("value"), evidence.keys(reads)
    first_keys: dict[int, int] | None = None
    reported: set[int] = set()
    for number in passes.missing(values, evidence.stored.values):
        row = reads.row(number)
        if row.value < 0 or row.value in reported:
            continue
        reported.add(row.value)
        if first_keys is None:
            first_keys = _first_keys(evidence)
        key = int(keys[number])
        if key >= 0 and key < first_keys.get(key >> OFFSET_BITS, -1):
            continue
        example = example_of(evidence, row, "was given to a reader and is not in the final log")
        findings.add(example, excuse=losses.excuse_of(row.value))
    return len(reads)


@check("future-read", "messages read")
def future_reads(case: Case, findings: Findings) -> int:
    """Nothing is read before any attempt that wrote it began."""
    evidence, sends = case.evidence, case.evidence.sends
    reads = case.require_rows(READS, without="nothing was read")
    invoked = sends.column("invoked_ns")
    begun = passes.lookup(reads.column("value"), sends.column("value"), invoked, -1)
    for number in passes.below(reads.column("returned_ns"), begun):
        row = reads.row(number)
        early = int(begun[number]) - row.returned_ns
        findings.add(example_of(evidence, row, "was read before it was sent", early))
    return len(reads)


@check("wrong-poll-position", "messages pulled", final=True)
def poll_positions(case: Case, findings: Findings) -> int:
    """A pull starts with the first message at or after the offset that it asked for."""
    evidence, got = case.evidence, case.require_rows((Function.GOT,), without=_NO_PULLS)
    firsts = got.at(passes.edges(got.column("operation"))[0])
    queues, requested = evidence.queue_numbers(firsts), firsts.column("physical_offset")
    for at in passes.below(firsts.column("queue_offset"), requested):
        text = f"came first in a pull that asked for {int(requested[at])}"
        findings.add(example_of(evidence, firsts.row(at), text))
    lows = passes.column([int(key) - 1 for key in passes.pack(queues, requested)])
    skipped = passes.between(lows, evidence.keys(firsts), evidence.stored.keys)
    for at in passes.above(skipped, 0):
        if int(requested[at]) < 0:
            continue
        count = int(skipped[at])
        text = (
            f"came first in a pull that asked for {int(requested[at])}: {count} stored messages lie"
            " between"
        )
        findings.add(example_of(evidence, firsts.row(at), text, count))
    return len(got)


@check("nonmonotonic-poll", "messages pulled")
def polls_rise(case: Case, findings: Findings) -> int:
    """Within one pull every message has a higher offset than the previous one."""
    evidence, got = case.evidence, case.require_rows((Function.GOT,), without=_NO_PULLS)
    offsets = got.column("queue_offset")
    before = passes.neighbours(got.column("operation"))
    later = passes.non_negative(before)
    earlier = passes.take(before, later)
    rising = set(passes.below(passes.take(offsets, earlier), passes.take(offsets, later)))
    for at in range(len(later)) if len(rising) != len(later) else ():
        if at not in rising:
            previous = got.row(int(earlier[at]))
            text = f"came behind offset {previous.queue_offset} in one pull"
            findings.add(example_of(evidence, got.row(int(later[at])), text))
    return len(got)


@check("poll-skip", "messages pulled", final=True)
def polls_skip(case: Case, findings: Findings) -> int:
    """No stored message lies between two consecutive messages of a pull."""
    evidence, got = case.evidence, case.require_rows((Function.GOT,), without=_NO_PULLS)
    keys = evidence.keys(got)
    before = passes.neighbours(got.column("operation"))
    later = passes.non_negative(before)
    lows = passes.take(keys, passes.take(before, later))
    skipped = passes.between(lows, passes.take(keys, later), evidence.stored.keys)
    for at in passes.above(skipped, 0):
        count = int(skipped[at])
        text = f"was pulled behind {count} stored messages left out"
        findings.add(example_of(evidence, got.row(int(later[at])), text, count))
    return len(got)


@check("read-lag", "pulls", severity=Severity.METRIC)
def lag(case: Case, findings: Findings) -> int:
    """Staleness of the newest message of a pull. A metric, not a check."""
    evidence = case.evidence
    pulls = evidence.rows((Function.PULL,))
    final = passes.column([FINAL_READER] * len(pulls))
    pulls = pulls.at(passes.unequal(pulls.column("process"), final))
    if not len(pulls):
        raise NotApplicable(_NO_PULLS)
    got = evidence.rows((Function.GOT,))
    lasts = got.at(passes.edges(got.column("operation"))[1])
    offsets = lasts.column("queue_offset")
    newest = passes.lookup(pulls.column("number"), lasts.column("operation"), offsets, -1)
    next_offsets, queues = pulls.column("queue_offset"), evidence.queue_numbers(pulls)
    keys = []
    for queue, last, next_offset in (
        map(int, row) for row in zip(queues, newest, next_offsets, strict=True)
    ):
        offset = last if last >= 0 else next_offset - 1
        keys.append(pack(queue, 0) - 1 if offset < 0 else pack(queue, offset))
    sends = evidence.acknowledged
    sends = sends.at(passes.non_negative(evidence.keys(sends)))
    sent = evidence.keys(sends), sends.column("returned_ns")
    moments = pulls.column("invoked_ns")
    findings.figures = spread("lag", passes.staleness(*sent, passes.column(keys), moments))
    findings.note = "p99 {lag_p99_ms} ms, at most {lag_max_ms} ms".format_map(findings.figures)
    return len(pulls)


def _first_keys(evidence: Evidence) -> dict[int, int]:
    """Return the key of the first message of each queue that retention has not removed, by queue
    number; the key of the end for a queue that it emptied."""
    stored_ends = evidence.stored.ends
    first_keys = {q: pack(q, end) for q, end in evidence.ends.items() if end and not stored_ends[q]}
    for node in evidence.finals():
        messages = node.messages
        for place in zip(messages.queues, messages.offsets, strict=True) if node.log_min else ():
            first_keys.setdefault(place[0], pack(*place))
    return first_keys
