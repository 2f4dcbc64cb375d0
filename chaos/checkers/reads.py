"""What readers saw, and what they should have seen: chaos.md 2.4, A2 and A10 to A16.

Offsets are believed from completed sends only, but all that any reader got counts. What may be gone
by the bound of 2.3 is allowed to have been read.
"""

from dataclasses import dataclass

from rocketbed.chaos.checkers import passes
from rocketbed.chaos.checkers.evidence import READS, Evidence
from rocketbed.chaos.checkers.keys import pack
from rocketbed.chaos.checkers.loss_bound import Losses
from rocketbed.chaos.checkers.passes import Column
from rocketbed.chaos.checkers.result import (
    CheckResult,
    Example,
    Severity,
    judged,
    not_applicable,
    not_run,
)
from rocketbed.chaos.history import Function, Row

FINAL_READER = 1_000_000
"""Process number of the reader that reads everything at the end."""
_NO_PULLS = "the history holds no pulls"


@dataclass(slots=True)
class Stored:
    """Messages of all final logs, column by column."""

    values: Column
    keys: Column
    store_ms: Column
    physicals: Column


def stored_messages(evidence: Evidence) -> Stored:
    logs = [node.messages for node in evidence.finals()]
    queues = passes.join([passes.column(log.queues) for log in logs])
    offsets = passes.join([passes.column(log.offsets) for log in logs])
    return Stored(
        passes.join([passes.column(log.values) for log in logs]),
        passes.pack(queues, offsets),
        passes.join([passes.column(log.store_ms) for log in logs]),
        passes.join([passes.column(log.physicals) for log in logs]),
    )


def unseen(evidence: Evidence) -> CheckResult:
    """A2: an acknowledged message of the final log was got by the reader that read all at the end.

    Without that reader, by some member of a group.
    """
    title, unit = "A2 unseen", "acknowledged messages"
    if missing := evidence.no_final():
        return not_run(title, unit, missing)
    reads = evidence.reads
    process = reads.column("process")
    final = passes.where(process, (FINAL_READER,))
    pulls = evidence.rows((Function.PULL,)).column("process")
    if any(stall.what == "drain" for stall in evidence.record.stalls):
        return not_applicable(title, unit, "the final read did not finish")
    if len(passes.where(pulls, (FINAL_READER,))) or len(final):
        seen = passes.take(reads.column("value"), final)
        who = "the final reader"
    else:
        delivered = evidence.rows((Function.DELIVER,))
        if not len(delivered):
            return not_applicable(title, unit, "nothing was read at the end")
        seen, who = delivered.column("value"), "any group"
    stored = stored_messages(evidence)
    sends = evidence.acknowledged
    values = sends.column("value")
    unseen = passes.missing(values, seen)
    there = set(passes.found(passes.take(values, unseen), stored.values))
    findings = [
        example_of(evidence, sends.row(number), f"is in the final log, and {who} did not get it")
        for position, number in enumerate(unseen)
        if position in there
    ]
    return judged(title, len(sends), unit, findings, f"read by {who}")


def vanished_reads(evidence: Evidence, losses: Losses) -> CheckResult:
    """A13: what was read once is in the final log, unless it may be gone, or expired."""
    title, unit = "A13 vanished read", "messages read"
    if missing := evidence.no_final():
        return not_run(title, unit, missing)
    reads = evidence.rows(READS)
    if not len(reads):
        return not_applicable(title, unit, "nothing was read")
    stored = stored_messages(evidence)
    values = reads.column("value")
    keys = evidence.keys(reads)
    findings: list[Example] = []
    allowed: list[Example] = []
    first_kept: dict[int, int] | None = None
    told: set[int] = set()
    for number in passes.missing(values, stored.values):
        row = reads.row(number)
        if row.value < 0 or row.value in told:
            continue
        told.add(row.value)
        if first_kept is None:
            first_kept = _first_kept(evidence)
        key = int(keys[number])
        if key >= 0 and key < first_kept.get(key >> 44, -1):
            continue
        example = example_of(evidence, row, "was given to a reader and is not in the final log")
        (allowed if row.value in losses.gone else findings).append(example)
    return judged(title, len(reads), unit, findings, allowed=allowed)


def future_reads(evidence: Evidence) -> CheckResult:
    """A14: nothing is read before any attempt that wrote it has begun."""
    title, unit = "A14 future read", "messages read"
    reads = evidence.reads
    if not len(reads):
        return not_applicable(title, unit, "nothing was read")
    sends = evidence.sends
    begun = passes.lookup(
        reads.column("value"), sends.column("value"), sends.column("invoked_ns"), -1
    )
    findings: list[Example] = []
    for number in passes.below(reads.column("returned_ns"), begun):
        row = reads.row(number)
        example = example_of(evidence, row, "was read before it was sent")
        example.distance = int(begun[number]) - row.returned_ns
        findings.append(example)
    return judged(title, len(reads), unit, findings)


def poll_positions(evidence: Evidence) -> CheckResult:
    """A12: a pull begins with the first message at or behind the offset that it asked for."""
    title, unit = "A12 wrong position", "messages pulled"
    if missing := evidence.no_final():
        return not_run(title, unit, missing)
    got = evidence.rows((Function.GOT,))
    if not len(got):
        return not_applicable(title, unit, _NO_PULLS)
    stored = stored_messages(evidence)
    queues = evidence.queue_numbers(got)
    offsets = got.column("queue_offset")
    keys = passes.pack(queues, offsets)
    firsts, _ = passes.edges(got.column("operation"))
    asked = passes.take(got.column("physical_offset"), firsts)
    started = passes.take(offsets, firsts)
    findings: list[Example] = []
    for at in passes.below(started, asked):
        row = got.row(firsts[at])
        findings.append(
            example_of(evidence, row, f"came first in a pull that asked for {int(asked[at])}")
        )
    first_queues = passes.take(queues, firsts)
    lows = [key - 1 for key in _list(passes.pack(first_queues, asked))]
    skipped = passes.between(passes.column(lows), passes.take(keys, firsts), stored.keys)
    for at in passes.above(skipped, 0):
        if int(asked[at]) < 0:
            continue
        row = got.row(firsts[at])
        example = example_of(
            evidence,
            row,
            f"came first in a pull that asked for {int(asked[at])}: {int(skipped[at])} stored"
            " messages lie between",
        )
        example.distance = int(skipped[at])
        findings.append(example)
    return judged(title, len(got), unit, findings)


def polls_rise(evidence: Evidence) -> CheckResult:
    """A10 internal: within one pull every message has a higher offset than the one before it."""
    title, unit = "A10 nonmonotonic poll", "messages pulled"
    got = evidence.rows((Function.GOT,))
    if not len(got):
        return not_applicable(title, unit, _NO_PULLS)
    offsets = got.column("queue_offset")
    before = passes.neighbours(got.column("operation"))
    later = passes.known(before)
    earlier = passes.take(before, later)
    rises = passes.below(passes.take(offsets, earlier), passes.take(offsets, later))
    good = set(rises)
    findings: list[Example] = []
    if len(good) != len(later):
        for at in range(len(later)):
            if at not in good:
                previous = got.row(int(earlier[at]))
                findings.append(
                    example_of(
                        evidence,
                        got.row(int(later[at])),
                        f"came behind offset {previous.queue_offset} in one pull",
                    )
                )
    return judged(title, len(got), unit, findings)


def polls_skip(evidence: Evidence) -> CheckResult:
    """A11 internal: between two messages of one pull no stored one lies."""
    title, unit = "A11 poll skip", "messages pulled"
    if missing := evidence.no_final():
        return not_run(title, unit, missing)
    got = evidence.rows((Function.GOT,))
    if not len(got):
        return not_applicable(title, unit, _NO_PULLS)
    keys = evidence.keys(got)
    before = passes.neighbours(got.column("operation"))
    later = passes.known(before)
    lows = passes.take(keys, passes.take(before, later))
    skipped = passes.between(lows, passes.take(keys, later), stored_messages(evidence).keys)
    findings: list[Example] = []
    for at in passes.above(skipped, 0):
        row = got.row(int(later[at]))
        example = example_of(
            evidence, row, f"was pulled behind {int(skipped[at])} stored messages left out"
        )
        example.distance = int(skipped[at])
        findings.append(example)
    return judged(title, len(got), unit, findings)


def lag(evidence: Evidence) -> CheckResult:
    """A16: how long what a pull returned had not been the newest any more; a figure."""
    title, unit = "A16 real-time lag", "pulls"
    pulls = evidence.rows((Function.PULL,))
    others = passes.unequal(pulls.column("process"), passes.column([FINAL_READER] * len(pulls)))
    pulls.positions = passes.take(pulls.positions, passes.column(others))
    if not len(pulls):
        return not_applicable(title, unit, _NO_PULLS, severity=Severity.METRIC)
    got = evidence.rows((Function.GOT,))
    _, lasts = passes.edges(got.column("operation"))
    newest = passes.lookup(
        pulls.column("number"),
        passes.take(got.column("operation"), lasts),
        passes.take(got.column("queue_offset"), lasts),
        -1,
    )
    asked = pulls.column("queue_offset")
    reached = [
        last if last >= 0 else want - 1
        for last, want in zip(_list(newest), _list(asked), strict=True)
    ]
    queues = _list(evidence.queue_numbers(pulls))
    keys = [
        (pack(queue, 0) - 1) if offset < 0 else pack(queue, offset)
        for queue, offset in zip(queues, reached, strict=True)
    ]
    sends = evidence.acknowledged
    sent = evidence.keys(sends)
    known = passes.known(sent)
    lags = sorted(
        _list(
            passes.staleness(
                passes.take(sent, known),
                passes.take(sends.column("returned_ns"), known),
                passes.column(keys),
                pulls.column("invoked_ns"),
            )
        )
    )
    figures = {
        "lag_p50_ms": round(lags[len(lags) // 2] / 1e6, 3),
        "lag_p99_ms": round(lags[min(len(lags) - 1, len(lags) * 99 // 100)] / 1e6, 3),
        "lag_max_ms": round(lags[-1] / 1e6, 3),
    }
    note = f"p99 {figures['lag_p99_ms']} ms, at most {figures['lag_max_ms']} ms"
    return judged(title, len(pulls), unit, [], note, severity=Severity.METRIC, figures=figures)


def example_of(evidence: Evidence, row: Row, what: str) -> Example:
    """An example about a message that a row names."""
    topic = evidence.history.topic(row)
    return Example(
        f"value {row.value} of {topic}/{row.queue} offset {row.queue_offset} {what}",
        value=row.value,
        operation=row.operation if row.function <= Function.SEND_ONEWAY else None,
        node=evidence.history.nodes.get(row.node, ""),
        topic=topic,
        queue=row.queue,
        offset=row.queue_offset,
        time_ns=row.returned_ns,
    )


def _first_kept(evidence: Evidence) -> dict[int, int]:
    """By queue number the key of the first message that retention has left."""
    found: dict[int, int] = {}
    for node in evidence.finals():
        if not node.log_min:
            continue
        messages = node.messages
        for queue, offset in zip(messages.queues, messages.offsets, strict=True):
            found.setdefault(queue, pack(queue, offset))
    return found


def _list(column: Column) -> list[int]:
    return list(column.tolist() if hasattr(column, "tolist") else column)
