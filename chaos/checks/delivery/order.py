"""Messages of an ordered topic are delivered in the order in which they were sent."""

from collections import defaultdict
from collections.abc import Iterator

from rocketbed.chaos.checks import passes
from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.evidence import SENDS, Evidence
from rocketbed.chaos.checks.examples import example_of
from rocketbed.chaos.evidence.history import Function, Outcome


@check("order-violation", "ordered messages read")
def order_violations(case: Case, findings: Findings) -> int:
    """First deliveries of one producer's messages in a queue of an ordered topic come in the
    order in which they were sent, one after the other.

    Excused by a loss in between, or by one that came after the reader had got another message at
    that place: its positions may belong to the former log. Also by a second master that delivered
    another message there, from which the reader went on.
    """
    evidence = case.evidence
    topics = set(evidence.record.ordered_topics)
    if not topics:
        raise NotApplicable("no topic is ordered")
    sent = _ordered_operations(evidence, topics)
    firsts: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    names = ("function", "process", "operation", "value")
    columns = [evidence.reads.column(name) for name in names]
    queues = evidence.queue_numbers(evidence.reads)
    operation_of = {value: operation for operation, entry in sent.items() for value in entry[3]}
    examined = 0
    for rank, (queue, function, process, operation, value) in enumerate(
        zip(queues, *columns, strict=True)
    ):
        sent_operation = operation_of.get(int(value))
        if sent_operation is None or sent[sent_operation][4] != int(queue):
            continue  # an unanswered attempt may have gone to another broker's queue
        examined += 1
        is_group = function == Function.DELIVER
        reader = (int(function), int(operation) if is_group else int(process))
        firsts[reader].setdefault(sent_operation, rank)
    if not examined:
        raise NotApplicable("no message of an ordered topic was read")
    for reader, ranks in sorted(firsts.items()):
        _add_disorder(case, findings, sent, ranks, reader)
    return examined


_Reader = tuple[int, int]
"""DELIVER and the number of a group, or GOT and a process."""
_Operation = tuple[int, int, int, set[int], int]
"""Number of producer and queue together, begin, acknowledgement, values, and the queue's number."""


def _ordered_operations(evidence: Evidence, topics: set[str]) -> dict[int, _Operation]:
    begins: dict[int, int] = {}
    values: dict[int, set[int]] = defaultdict(set)
    finished: dict[int, tuple[int, int, int]] = {}
    lines: dict[tuple[int, int], int] = {}
    sends = evidence.rows(SENDS)
    queues = evidence.queue_numbers(sends)
    for number in range(len(sends)):
        row = sends.row(number)
        if evidence.history.topic(row) not in topics:
            continue
        begins[row.operation] = min(begins.get(row.operation, row.invoked_ns), row.invoked_ns)
        values[row.operation].add(row.value)
        if row.outcome == Outcome.OK:
            queue = int(queues[number])
            line = lines.setdefault((row.process, queue), len(lines))
            finished[row.operation] = line, row.returned_ns, queue
    return {
        operation: (line, begins[operation], ended, values[operation], queue)
        for operation, (line, ended, queue) in finished.items()
    }


def _add_disorder(
    case: Case,
    findings: Findings,
    sent: dict[int, _Operation],
    ranks: dict[int, int],
    reader: _Reader,
) -> None:
    """Add what one reader got too early; `ranks` are positions among the reads, by operation."""
    evidence, reads, losses = case.evidence, case.evidence.reads, case.losses
    name = ("group " if reader[0] == Function.DELIVER else "reader ") + str(reader[1])
    operations = list(ranks)
    lines = passes.column([sent[operation][0] for operation in operations])
    begins = passes.column([sent[operation][1] for operation in operations])
    ends = passes.column([sent[operation][2] for operation in operations])
    order = passes.column(list(ranks.values()))
    for before, after in passes.overtaken(lines, begins, ends, order):
        first, second = operations[before], operations[after]
        text = (
            f"was delivered to {name} before operation {first}, which its producer had"
            " finished before it began this one"
        )
        row, late = reads.row(ranks[second]), reads.row(ranks[first])
        example = example_of(evidence, row, text, ranks[first] - ranks[second])
        group = evidence.group_of(row.node)
        got = list(_received(evidence, reader, ranks[first]))
        passing_times = (at_ns for at, _, at_ns in got if at >= late.queue_offset)
        since_ns = min(
            (at_ns for at_ns in passing_times if at_ns < sent[first][2]), default=sent[first][1]
        )
        excuse = losses.loss_between(group, min(since_ns, sent[first][1]), late.returned_ns)
        earlier = [
            item for item in got if item[0] <= late.queue_offset and item[2] < row.returned_ns
        ]
        if earlier and earlier[-1][0] == late.queue_offset and earlier[-1][1] not in sent[first][3]:
            at_ns = earlier[-1][2]
            excuse = excuse or losses.split_between(group, at_ns, at_ns)
        findings.add(example, excuse=excuse or losses.excuse_of(row.value))


def _received(evidence: Evidence, reader: _Reader, rank: int) -> Iterator[tuple[int, int, int]]:
    """Yield what a reader got in the queue of one of its reads: queue offset, value, time."""
    reads = evidence.reads
    queues = evidence.queue_numbers(reads)
    reader_and_queue = (*reader, int(queues[rank]))
    reader_column = "operation" if reader[0] == Function.DELIVER else "process"
    names = ("function", reader_column, "queue_offset", "value", "returned_ns")
    columns = (reads.column(name) for name in names)
    for queue, function, number, *fields in zip(queues, *columns, strict=True):
        if (function, number, queue) == reader_and_queue:
            at, value, at_ns = map(int, fields)
            yield at, value, at_ns
