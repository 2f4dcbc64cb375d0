"""Consumer groups: did every member together get everything, and are positions true? (chaos.md 2.5)

Groups are taken to begin at a queue's first message; a RESET_OFFSET row says otherwise.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

from rocketbed.chaos.checkers import passes
from rocketbed.chaos.checkers.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checkers.evidence import SENDS, Evidence, Rows, targets_of
from rocketbed.chaos.checkers.keys import OFFSET_BITS, OFFSET_MASK, pack
from rocketbed.chaos.checkers.logs import NodeLog
from rocketbed.chaos.checkers.loss_bound import Losses
from rocketbed.chaos.checkers.reads import example_of
from rocketbed.chaos.checkers.result import Severity
from rocketbed.chaos.history import Function, Outcome

PERSIST_NS = 6_000_000_000
"""A position committed so long before its node's end is on disk: the interval of 5 s and some."""
VIOLENT = frozenset({"kill", "powercut", "crash", "wipe"})
"""Ends of a node that leave it no time to write positions."""
_NO_GROUPS = "no consumer group took part"
Place = tuple[int, int]
"""Number of the consumer group, and of the queue."""


@check("A22 group skip", "messages below committed positions", final=True)
def group_skips(case: Case, found: Findings) -> int:
    """A22: a committed position has not passed a stored message that no member ever got."""
    evidence, stored = case.evidence, case.evidence.stored
    commits = case.some((Function.COMMIT_OFFSET,), Outcome.OK, without=_NO_GROUPS)
    deliveries = evidence.rows((Function.DELIVER,))
    groups, values = deliveries.column("operation"), deliveries.column("value")
    starts = _starts(evidence)
    committed: dict[int, dict[int, int]] = defaultdict(dict)
    for group, queue, offset, _ in _positions(evidence, commits):
        known = committed[group]
        known[queue] = max(known.get(queue, 0), offset)
    numbers = passes.column([int(key) >> OFFSET_BITS for key in stored.keys])
    offsets = passes.column([int(key) & OFFSET_MASK for key in stored.keys])
    examined = 0
    for group, limits in sorted(committed.items()):
        ends = passes.column(list(limits)), passes.column(list(limits.values()))
        passed = passes.below(offsets, passes.lookup(numbers, *ends, 0))
        examined += len(passed)
        got = passes.take(values, passes.where(groups, (group,)))
        for at in passes.missing(passes.take(stored.values, passed), got):
            number = passed[at]
            queue, offset = int(numbers[number]), int(offsets[number])
            if offset < starts.get((group, queue), 0):
                continue
            value, name = int(stored.values[number]), evidence.queues.names[queue]
            found.add(
                f"group {group} committed {limits[queue]} of {name.topic}/{name.queue}, and none"
                f" of its members got value {value} at offset {offset}",
                excused=_given_again(case, group, queue, offset, value),
                value=value,
                topic=name.topic,
                queue=name.queue,
                offset=offset,
                distance=limits[queue] - offset,
            )
    return examined


@check("A23 redelivery", "deliveries", severity=Severity.METRIC)
def redeliveries(case: Case, found: Findings) -> int:
    """A23: how often a group got a message again; a figure."""
    deliveries = case.some((Function.DELIVER,), without=_NO_GROUPS)
    names = ("operation", "value")
    counts = Counter(zip(*(map(int, deliveries.column(name)) for name in names), strict=True))
    again, most = counts.total() - len(counts), max(counts.values())
    found.figures = {"again": again, "copies_max": most}
    found.note = f"{again} deliveries were repetitions, a message came at most {most} x"
    return len(deliveries)


@check("A24 offset regress", "beginnings", severity=Severity.WARNING)
def offset_regress(case: Case, found: Findings) -> int:
    """A24: a member that begins anew begins no earlier than what was committed and kept.

    A master keeps what was committed 6 s before its end, and all of it if it stopped cleanly; the
    commits of the last 6 s may be under way, so nothing is asked of them.
    """
    evidence, losses = case.evidence, case.losses
    deliveries = case.some((Function.DELIVER,), without=_NO_GROUPS)
    commits: dict[Place, list[tuple[int, int]]] = defaultdict(list)
    rows = evidence.rows((Function.COMMIT_OFFSET,), Outcome.OK)
    for group, queue, offset, time_ns in _positions(evidence, rows):
        commits[group, queue].append((time_ns, offset))
    resets = _starts(evidence)
    ends = _violent_ends(evidence, losses)
    begun: set[tuple[int, int, int]] = set()
    processes = deliveries.column("process")
    places = zip(_positions(evidence, deliveries), map(int, processes), strict=True)
    for number, ((group, queue, offset, time_ns), process) in enumerate(places):
        if (process, group, queue) in begun:
            continue
        begun.add((process, group, queue))
        row = deliveries.row(number)
        brokers = evidence.group_of(row.node)
        old = [
            (offset_, at)
            for at, offset_ in commits[group, queue]
            # The first end behind it, or the beginning if that came first.
            if at + PERSIST_NS <= min([e for e in ends[brokers] if at < e < time_ns] or [time_ns])
        ]
        if not old or (group, queue) in resets or offset >= max(old)[0]:
            continue
        committed, at = max(old)
        text = (
            f"was the first that process {process} of group {group} got, after {committed} had"
            f" been committed {(time_ns - at) / 1e9:.1f} s before"
        )
        example = example_of(evidence, row, text, committed - offset)
        found.add(example, excused=losses.loss_between(brokers, at, time_ns))
    return len(begun)


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


@check("A25 offset overrun", "committed positions", final=True)
def offset_overrun(case: Case, found: Findings) -> int:
    """A25: no committed position lies beyond the end of its queue, in the history or on disk."""
    evidence, losses, ends = case.evidence, case.losses, case.evidence.stored.ends
    commits = evidence.rows((Function.COMMIT_OFFSET,), Outcome.OK)
    places = _positions(evidence, commits)
    for number, (group, queue, offset, time_ns) in enumerate(places):
        if queue < 0 or offset <= ends[queue]:
            continue
        row = commits.row(number)
        example = evidence.example(
            row,
            f"group {group} committed {offset} of {evidence.history.topic(row)}/{row.queue}, which"
            f" ends at {ends[queue]}",
            value=None,
            distance=offset - ends[queue],
        )
        later = losses.loss_between(evidence.group_of(row.node), time_ns, 1 << 62)
        found.add(example, excused=later)
    examined = len(places)
    for node, topic, queue_id, who, committed in _stored_positions(evidence):
        examined += 1
        end = ends[evidence.queues.number(node.group, topic, queue_id)]
        if committed > end:
            text = f"{node.name} keeps {committed} for group {who} of {topic}/{queue_id}, which"
            text += f" ends at {end}"
            lost, far = losses.loss_between(node.group, -1, 1 << 62), committed - end
            place = {"node": node.name, "topic": topic, "queue": queue_id, "offset": committed}
            found.add(text, excused=lost, distance=far, **place)
    if not examined:
        raise NotApplicable(_NO_GROUPS)
    return examined


@check("A15 order violation", "ordered messages read")
def order_violations(case: Case, found: Findings) -> int:
    """A15: of one producer's messages in one queue of an ordered topic the first deliveries come in
    the order in which they were sent one after the other.

    A loss in between excuses it: positions of the group may have been of the log before.
    """
    evidence = case.evidence
    topics = set(evidence.record.ordered_topics)
    if not topics:
        raise NotApplicable("no topic is ordered")
    sent = _ordered_operations(evidence, topics)
    firsts: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    names = ("function", "process", "operation", "value")
    columns = [evidence.reads.column(name) for name in names]
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
        raise NotApplicable("no message of an ordered topic was read")
    for (function, number), ranks in sorted(firsts.items()):
        name = f"group {number}" if function == Function.DELIVER else f"reader {number}"
        _add_disorder(case, found, sent, ranks, name)
    return examined


_Operation = tuple[int, int, int, set[int]]
"""Number of producer and queue together, when it was begun, when acknowledged, its values."""


def _ordered_operations(evidence: Evidence, topics: set[str]) -> dict[int, _Operation]:
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


def _add_disorder(
    case: Case, found: Findings, sent: dict[int, _Operation], ranks: dict[int, int], who: str
) -> None:
    """What one reader got too soon; `ranks` are places among the reads, by operation."""
    evidence, reads, losses = case.evidence, case.evidence.reads, case.losses
    operations = list(ranks)
    lines = passes.column([sent[one][0] for one in operations])
    begins = passes.column([sent[one][1] for one in operations])
    ends = passes.column([sent[one][2] for one in operations])
    order = passes.column(list(ranks.values()))
    for before, after in passes.overtaken(lines, begins, ends, order):
        first, second = operations[before], operations[after]
        text = (
            f"was delivered to {who} before operation {first}, which its producer had"
            " finished before it began this one"
        )
        row, late = reads.row(ranks[second]), reads.row(ranks[first])
        example = example_of(evidence, row, text, ranks[first] - ranks[second])
        group = evidence.group_of(row.node)
        lost = losses.loss_between(group, sent[first][1], late.returned_ns)
        found.add(example, excused=lost or example.value in losses.gone)


def _positions(evidence: Evidence, rows: Rows) -> list[tuple[int, int, int, int]]:
    """Consumer group, queue number, queue offset and time of each row."""
    offsets, times = rows.column("queue_offset"), rows.column("returned_ns")
    columns = (rows.column("operation"), evidence.queue_numbers(rows), offsets, times)
    return list(zip(*(map(int, column) for column in columns), strict=True))


def _starts(evidence: Evidence) -> dict[Place, int]:
    """Where groups were told to begin."""
    found: dict[Place, int] = {}
    resets = evidence.rows((Function.RESET_OFFSET,))
    for group, queue, offset, _ in _positions(evidence, resets):
        found[group, queue] = max(found.get((group, queue), 0), offset)
    return found


def _given_again(case: Case, group: int, queue: int, offset: int, value: int) -> bool:
    """Whether another message stood here, or the group passed this offset before a loss and the
    message came after it."""
    evidence, losses = case.evidence, case.losses
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


def _stored_positions(evidence: Evidence) -> Iterator[tuple[NodeLog, str, int, str, int]]:
    """Positions in `consumerOffset.json` of the last masters, of queues that have messages: node,
    topic, queue, group, offset."""
    known = set(evidence.queues.names)
    for node in evidence.finals():
        table = node.directory.config("consumerOffset.json")
        offsets = table.get("offsetTable") if isinstance(table, dict) else None
        for name, row in sorted(offsets.items()) if isinstance(offsets, dict) else ():
            topic, _, group = str(name).rpartition("@")
            for queue, committed in row.items() if isinstance(row, dict) else ():
                if not str(queue).isdigit() or not isinstance(committed, int):
                    continue
                if (node.group, topic, int(queue)) in known:
                    yield node, topic, int(queue), group, committed
