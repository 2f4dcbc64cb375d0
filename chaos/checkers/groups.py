"""Consumer groups: did every member together get everything, and are positions true? (chaos.md 2.5)

Groups are taken to begin at a queue's first message; a RESET_OFFSET row says otherwise.
"""

from collections import defaultdict

from rocketbed.chaos.checkers import passes
from rocketbed.chaos.checkers.evidence import READS, SENDS, Evidence, Rows, targets_of
from rocketbed.chaos.checkers.keys import OFFSET_BITS, OFFSET_MASK, pack
from rocketbed.chaos.checkers.loss_bound import Losses
from rocketbed.chaos.checkers.reads import example_of, stored_messages
from rocketbed.chaos.checkers.result import (
    CheckResult,
    Example,
    Severity,
    judged,
    not_applicable,
    not_run,
)
from rocketbed.chaos.history import Function, Outcome

PERSIST_NS = 6_000_000_000
"""A position committed so long before its node's end is on disk: the interval of 5 s and some."""
VIOLENT = frozenset({"kill", "powercut", "crash", "wipe"})
"""Ends of a node that leave it no time to write positions."""
_NO_GROUPS = "no consumer group took part"
Place = tuple[int, int]
"""Number of the consumer group, and of the queue."""


def group_skips(evidence: Evidence, losses: Losses) -> CheckResult:
    """A22: a committed position has not passed a stored message that no member ever got."""
    title, unit = "A22 group skip", "messages below committed positions"
    if missing := evidence.no_final():
        return not_run(title, unit, missing)
    commits = evidence.rows((Function.COMMIT_OFFSET,), (Outcome.OK,))
    if not len(commits):
        return not_applicable(title, unit, _NO_GROUPS)
    stored = stored_messages(evidence)
    deliveries = evidence.rows((Function.DELIVER,))
    groups = deliveries.column("operation")
    values = deliveries.column("value")
    starts = _starts(evidence)
    committed: dict[int, dict[int, int]] = defaultdict(dict)
    for group, queue, offset, _ in _positions(evidence, commits):
        known = committed[group]
        known[queue] = max(known.get(queue, 0), offset)
    findings: list[Example] = []
    allowed: list[Example] = []
    examined = 0
    for group, limits in sorted(committed.items()):
        numbers = passes.column([int(key) >> OFFSET_BITS for key in stored.keys])
        offsets = passes.column([int(key) & OFFSET_MASK for key in stored.keys])
        limit = passes.lookup(
            numbers, passes.column(list(limits)), passes.column(list(limits.values())), 0
        )
        passed = passes.below(offsets, limit)
        examined += len(passed)
        got = passes.take(values, passes.where(groups, (group,)))
        for at in passes.missing(passes.take(stored.values, passed), got):
            number = passed[at]
            queue, offset = int(numbers[number]), int(offsets[number])
            if offset < starts.get((group, queue), 0):
                continue
            value = int(stored.values[number])
            name, _ = evidence.queues.place(int(stored.keys[number]))
            example = Example(
                f"group {group} committed {limits[queue]} of {name.topic}/{name.queue}, and none"
                f" of its members got value {value} at offset {offset}",
                value=value,
                topic=name.topic,
                queue=name.queue,
                offset=offset,
                distance=limits[queue] - offset,
            )
            excused = _given_again(evidence, losses, group, queue, offset, value)
            (allowed if excused else findings).append(example)
    return judged(title, examined, unit, findings, allowed=allowed)


def redeliveries(evidence: Evidence) -> CheckResult:
    """A23: how often a group got a message again; a figure."""
    title, unit = "A23 redelivery", "deliveries"
    deliveries = evidence.rows((Function.DELIVER,))
    if not len(deliveries):
        return not_applicable(title, unit, _NO_GROUPS, severity=Severity.METRIC)
    counts: dict[tuple[int, int], int] = defaultdict(int)
    pairs = zip(deliveries.column("operation"), deliveries.column("value"), strict=True)
    for group, value in pairs:
        counts[int(group), int(value)] += 1
    again = sum(counts.values()) - len(counts)
    figures = {"again": again, "copies_max": max(counts.values())}
    note = f"{again} deliveries were repetitions, a message came at most {max(counts.values())} x"
    return judged(title, len(deliveries), unit, [], note, severity=Severity.METRIC, figures=figures)


def offset_regress(evidence: Evidence, losses: Losses) -> CheckResult:
    """A24: a member that begins anew begins no earlier than what was committed and kept.

    A master keeps what was committed 6 s before its end, and all of it if it stopped cleanly; the
    commits of the last 6 s may be under way, so nothing is asked of them.
    """
    title, unit = "A24 offset regress", "beginnings"
    deliveries = evidence.rows((Function.DELIVER,))
    if not len(deliveries):
        return not_applicable(title, unit, _NO_GROUPS, severity=Severity.WARNING)
    commits: dict[Place, list[tuple[int, int]]] = defaultdict(list)
    rows = evidence.rows((Function.COMMIT_OFFSET,), (Outcome.OK,))
    for group, queue, offset, time_ns in _positions(evidence, rows):
        commits[group, queue].append((time_ns, offset))
    resets = _starts(evidence)
    ends = _violent_ends(evidence, losses)
    begun: set[tuple[int, int, int]] = set()
    findings: list[Example] = []
    allowed: list[Example] = []
    processes = deliveries.column("process")
    places = _positions(evidence, deliveries)
    for number, ((group, queue, offset, time_ns), process) in enumerate(
        zip(places, processes, strict=True)
    ):
        if (int(process), group, queue) in begun:
            continue
        begun.add((int(process), group, queue))
        row = deliveries.row(number)
        old = [
            (offset_, at)
            for at, offset_ in commits[group, queue]
            if at <= _next_end(ends[evidence.group_of(row.node)], at, time_ns) - PERSIST_NS
        ]
        if not old or (group, queue) in resets or offset >= max(old)[0]:
            continue
        committed, at = max(old)
        example = example_of(
            evidence,
            row,
            f"was the first that process {process} of group {group} got, after {committed} had"
            f" been committed {(time_ns - at) / 1e9:.1f} s before",
        )
        example.distance = committed - offset
        excused = losses.loss_between(evidence.group_of(row.node), at, time_ns)
        (allowed if excused else findings).append(example)
    return judged(title, len(begun), unit, findings, severity=Severity.WARNING, allowed=allowed)


def _violent_ends(evidence: Evidence, losses: Losses) -> dict[int, list[int]]:
    """By group of brokers: when its master of that time ended without a clean stop, rising."""
    found: dict[int, list[int]] = defaultdict(list)
    for event in evidence.history.events:
        cause = event.fields.get("cause") if event.what == "exit" else event.what
        if cause not in VIOLENT:
            continue
        for node in targets_of(event):
            group = evidence.group_of_name(node)
            if group >= 0 and losses.lineages[group].era(event.time_ns - 1).master == node:
                found[group].append(event.time_ns)
    return found


def _next_end(ends: list[int], after_ns: int, limit_ns: int) -> int:
    """The first of the ends behind a moment, or the limit if that comes first."""
    return min([end for end in ends if after_ns < end < limit_ns] or [limit_ns])


def offset_overrun(evidence: Evidence, losses: Losses) -> CheckResult:
    """A25: no committed position lies beyond the end of its queue, in the history or on disk."""
    title, unit = "A25 offset overrun", "committed positions"
    if missing := evidence.no_final():
        return not_run(title, unit, missing)
    ends: dict[int, int] = defaultdict(int)
    for key in stored_messages(evidence).keys:
        queue = int(key) >> OFFSET_BITS
        ends[queue] = max(ends[queue], (int(key) & OFFSET_MASK) + 1)
    commits = evidence.rows((Function.COMMIT_OFFSET,), (Outcome.OK,))
    findings: list[Example] = []
    allowed: list[Example] = []
    places = _positions(evidence, commits)
    for number, (group, queue, offset, time_ns) in enumerate(places):
        if queue < 0 or offset <= ends[queue]:
            continue
        row = commits.row(number)
        example = Example(
            f"group {group} committed {offset} of {evidence.history.topic(row)}/{row.queue}, which"
            f" ends at {ends[queue]}",
            topic=evidence.history.topic(row),
            queue=row.queue,
            offset=offset,
            time_ns=time_ns,
            distance=offset - ends[queue],
        )
        later = losses.loss_between(evidence.group_of(row.node), time_ns, 1 << 62)
        (allowed if later else findings).append(example)
    examined = len(places) + _stored_positions(evidence, losses, ends, findings, allowed)
    if not examined:
        return not_applicable(title, unit, _NO_GROUPS)
    return judged(title, examined, unit, findings, allowed=allowed)


def order_violations(evidence: Evidence, losses: Losses) -> CheckResult:
    """A15: of one producer's messages in one queue of an ordered topic the first deliveries come in
    the order in which they were sent one after the other.

    A loss in between excuses it: positions of the group may have been of the log before.
    """
    title, unit = "A15 order violation", "ordered messages read"
    topics = set(evidence.record.ordered_topics)
    if not topics:
        return not_applicable(title, unit, "no topic is ordered")
    sent = _ordered_operations(evidence, topics)
    firsts: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    reads = evidence.rows(READS)
    names = ("function", "process", "operation", "value")
    columns = [reads.column(name) for name in names]
    operation_of = {value: operation for operation, entry in sent.items() for value in entry[3]}
    examined = 0
    for rank, (function, process, operation, value) in enumerate(zip(*columns, strict=True)):
        wanted = operation_of.get(int(value))
        if wanted is None:
            continue
        examined += 1
        is_group = function == Function.DELIVER
        who = (int(function), int(operation) if is_group else int(process))
        firsts[who].setdefault(wanted, rank)
    if not examined:
        return not_applicable(title, unit, "no message of an ordered topic was read")
    findings: list[Example] = []
    allowed: list[Example] = []
    for (function, number), ranks in sorted(firsts.items()):
        name = f"group {number}" if function == Function.DELIVER else f"reader {number}"
        for example, begun, delivered, node in _disorder(evidence, sent, ranks, name, reads):
            lost = losses.loss_between(evidence.group_of(node), begun, delivered)
            (allowed if lost or example.value in losses.gone else findings).append(example)
    return judged(title, examined, unit, findings, allowed=allowed)


_Operation = tuple[int, int, int, set[int]]
"""Number of producer and queue together, when it was begun, when acknowledged, its values."""


def _ordered_operations(evidence: Evidence, topics: set[str]) -> dict[int, _Operation]:
    """Acknowledged operations of ordered topics."""
    begun: dict[int, int] = {}
    values: dict[int, set[int]] = defaultdict(set)
    done: dict[int, tuple[int, int]] = {}
    lines: dict[tuple[int, int], int] = {}
    sends = evidence.rows(SENDS)
    queues = evidence.queue_numbers(sends)
    for number in range(len(sends)):
        row = sends.row(number)
        if evidence.history.topic(row) not in topics:
            continue
        begun[row.operation] = min(begun.get(row.operation, row.invoked_ns), row.invoked_ns)
        values[row.operation].add(row.value)
        if row.outcome == Outcome.OK:
            line = lines.setdefault((row.process, int(queues[number])), len(lines))
            done[row.operation] = line, row.returned_ns
    return {
        operation: (line, begun[operation], ended, values[operation])
        for operation, (line, ended) in done.items()
    }


def _disorder(
    evidence: Evidence,
    sent: dict[int, _Operation],
    ranks: dict[int, int],
    who: str,
    reads: Rows,
) -> list[tuple[Example, int, int, int]]:
    """What came too soon; with when the overtaken one was begun, and delivered, and the node."""
    operations = list(ranks)
    lines = passes.column([sent[operation][0] for operation in operations])
    begins = passes.column([sent[operation][1] for operation in operations])
    ends = passes.column([sent[operation][2] for operation in operations])
    order = passes.column([ranks[operation] for operation in operations])
    findings: list[tuple[Example, int, int, int]] = []
    for before, after in passes.overtaken(lines, begins, ends, order):
        row = reads.row(ranks[operations[after]])
        example = example_of(
            evidence,
            row,
            f"was delivered to {who} before operation {operations[before]}, which its producer had"
            " finished before it began this one",
        )
        example.distance = ranks[operations[before]] - ranks[operations[after]]
        late = reads.row(ranks[operations[before]])
        findings.append((example, sent[operations[before]][1], late.returned_ns, row.node))
    return findings


def _positions(evidence: Evidence, rows: Rows) -> list[tuple[int, int, int, int]]:
    """Consumer group, queue number, queue offset and time of each row."""
    columns = (
        rows.column("operation"),
        evidence.queue_numbers(rows),
        rows.column("queue_offset"),
        rows.column("returned_ns"),
    )
    return [
        (int(group), int(queue), int(offset), int(time_ns))
        for group, queue, offset, time_ns in zip(*columns, strict=True)
    ]


def _starts(evidence: Evidence) -> dict[Place, int]:
    """Where groups were told to begin."""
    found: dict[Place, int] = {}
    resets = evidence.rows((Function.RESET_OFFSET,))
    for group, queue, offset, _ in _positions(evidence, resets):
        found[group, queue] = max(found.get((group, queue), 0), offset)
    return found


def _given_again(
    evidence: Evidence, losses: Losses, group: int, queue: int, offset: int, value: int
) -> bool:
    """Whether another message stood here, or the group passed this offset before a loss and the
    message came after it."""
    if pack(queue, offset) in losses.gone_keys:
        return True
    sends = evidence.sends
    places = passes.where(sends.column("value"), (value,))
    if not len(places):
        return False
    row = sends.row(int(places[0]))
    broker_group = evidence.queues.names[queue].group
    rows = evidence.rows((Function.COMMIT_OFFSET, Function.DELIVER))
    return any(
        losses.loss_between(broker_group, time_ns, row.returned_ns)
        for who, where, at, time_ns in _positions(evidence, rows)
        if who == group and where == queue and at > offset - 1
    )


def _stored_positions(
    evidence: Evidence,
    losses: Losses,
    ends: dict[int, int],
    findings: list[Example],
    allowed: list[Example],
) -> int:
    """Positions in `consumerOffset.json` of the last masters; how many were looked at."""
    examined = 0
    known = {name: number for number, name in enumerate(evidence.queues.names)}
    for node in evidence.finals():
        table = node.directory.config("consumerOffset.json")
        offsets = table.get("offsetTable") if isinstance(table, dict) else None
        for name, row in sorted(offsets.items()) if isinstance(offsets, dict) else ():
            topic, _, group = str(name).rpartition("@")
            for queue_id, committed in row.items() if isinstance(row, dict) else ():
                queue = str(queue_id).isdigit() and (node.group, topic, int(queue_id))
                number = known.get(queue) if queue else None  # type: ignore[call-overload]
                if number is None or not isinstance(committed, int):
                    continue
                examined += 1
                if committed <= ends[number]:
                    continue
                example = Example(
                    f"{node.name} keeps {committed} for group {group} of {topic}/{queue_id}, which"
                    f" ends at {ends[number]}",
                    node=node.name,
                    topic=topic,
                    queue=int(queue_id),
                    offset=committed,
                    distance=committed - ends[number],
                )
                lost = losses.loss_between(node.group, -1, 1 << 62)
                (allowed if lost else findings).append(example)
    return examined
