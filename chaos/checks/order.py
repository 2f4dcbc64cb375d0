"""Are messages of an ordered topic delivered in the order in which they were sent (A15)?"""

from collections import defaultdict
from collections.abc import Iterator

from rocketbed.chaos.checks import passes
from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.evidence import SENDS, Evidence
from rocketbed.chaos.checks.reads import example_of
from rocketbed.chaos.evidence.history import Function, Outcome


@check("A15 order violation", "ordered messages read")
def order_violations(case: Case, found: Findings) -> int:
    """A15: of one producer's messages in one queue of an ordered topic the first deliveries come in
    the order in which they were sent one after the other.

    A loss in between excuses it, or one that came after the reader had got something else at the
    place: its positions may have been of the log before. So does a second master that gave it
    something else there, from where it went on.
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
        wanted = operation_of.get(int(value))
        if wanted is None or sent[wanted][4] != int(queue):
            continue  # an attempt without an answer may have gone to another broker's queue
        examined += 1
        is_group = function == Function.DELIVER
        who = (int(function), int(operation) if is_group else int(process))
        firsts[who].setdefault(wanted, rank)
    if not examined:
        raise NotApplicable("no message of an ordered topic was read")
    for who, ranks in sorted(firsts.items()):
        _add_disorder(case, found, sent, ranks, who)
    return examined


_Who = tuple[int, int]
"""DELIVER and the number of a group, or GOT and a process."""
_Operation = tuple[int, int, int, set[int], int]
"""Number of producer and queue together, when it was begun, when acknowledged, its values, and the
number of the queue."""


def _ordered_operations(evidence: Evidence, topics: set[str]) -> dict[int, _Operation]:
    begun: dict[int, int] = {}
    values: dict[int, set[int]] = defaultdict(set)
    done: dict[int, tuple[int, int, int]] = {}
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
            queue = int(queues[number])
            line = lines.setdefault((row.process, queue), len(lines))
            done[row.operation] = line, row.returned_ns, queue
    return {
        operation: (line, begun[operation], ended, values[operation], queue)
        for operation, (line, ended, queue) in done.items()
    }


def _add_disorder(
    case: Case, found: Findings, sent: dict[int, _Operation], ranks: dict[int, int], who: _Who
) -> None:
    """What one reader got too soon; `ranks` are places among the reads, by operation."""
    evidence, reads, losses = case.evidence, case.evidence.reads, case.losses
    name = ("group " if who[0] == Function.DELIVER else "reader ") + str(who[1])
    operations = list(ranks)
    lines = passes.column([sent[one][0] for one in operations])
    begins = passes.column([sent[one][1] for one in operations])
    ends = passes.column([sent[one][2] for one in operations])
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
        got = list(_got(evidence, who, ranks[first]))
        passed = (at_ns for at, _, at_ns in got if at >= late.queue_offset)
        since_ns = min(
            (at_ns for at_ns in passed if at_ns < sent[first][2]), default=sent[first][1]
        )
        excuse = losses.loss_between(group, min(since_ns, sent[first][1]), late.returned_ns)
        back = [one for one in got if one[0] <= late.queue_offset and one[2] < row.returned_ns]
        if back and back[-1][0] == late.queue_offset and back[-1][1] not in sent[first][3]:
            at_ns = back[-1][2]
            excuse = excuse or losses.split_between(group, at_ns, at_ns)
        found.add(example, excuse=excuse or losses.excuse_of(row.value))


def _got(evidence: Evidence, who: _Who, rank: int) -> Iterator[tuple[int, int, int]]:
    """All that a reader got of the queue of one of its reads: queue offset, value, when."""
    reads = evidence.reads
    queues = evidence.queue_numbers(reads)
    same = (*who, int(queues[rank]))
    reader = "operation" if who[0] == Function.DELIVER else "process"
    names = ("function", reader, "queue_offset", "value", "returned_ns")
    columns = (reads.column(name) for name in names)
    for queue, function, number, *what in zip(queues, *columns, strict=True):
        if (function, number, queue) == same:
            at, value, at_ns = map(int, what)
            yield at, value, at_ns
