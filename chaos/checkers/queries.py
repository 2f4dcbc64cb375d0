"""Are the answers to questions true? By key (A17), bounds of queues (A18), by time (A19)."""

from collections import defaultdict

from rocketbed.chaos.checkers import passes
from rocketbed.chaos.checkers.evidence import Evidence
from rocketbed.chaos.checkers.keys import OFFSET_BITS, OFFSET_MASK, pack
from rocketbed.chaos.checkers.loss_bound import Losses
from rocketbed.chaos.checkers.reads import FINAL_READER, stored_messages
from rocketbed.chaos.checkers.result import (
    CheckResult,
    Example,
    Severity,
    judged,
    not_applicable,
    not_run,
)
from rocketbed.chaos.history import Function, Outcome, Row

INDEX_LAG_NS = 2_000_000_000
"""A message acknowledged so long ago is in the index."""
_ENDLESS_NS = 1 << 62


def key_queries(evidence: Evidence) -> list[CheckResult]:
    """A17: a query by key finds the message, where it is. A17w: in the storm too, soon enough.

    While faults go on a master may have to dispatch first what it recovered, so that a miss is a
    warning then; in the calm phase and at the end it is none.
    """
    title, miss, unit = "A17 query mismatch", "A17w query misses in storm", "queries"
    if missing := evidence.no_final():
        return [
            not_run(title, unit, missing),
            not_run(miss, unit, missing, severity=Severity.WARNING),
        ]
    queries = evidence.rows((Function.QUERY_KEY,), (Outcome.OK,))
    if not len(queries):
        reason = "no message was queried by key"
        return [
            not_applicable(title, unit, reason),
            not_applicable(miss, unit, reason, severity=Severity.WARNING),
        ]
    stored = stored_messages(evidence)
    sends = evidence.acknowledged
    values = queries.column("value")
    sent = passes.lookup(values, sends.column("value"), sends.column("returned_ns"), -1)
    places = passes.lookup(values, stored.values, stored.keys, -1)
    wrong: list[Example] = []
    missed: list[Example] = []
    for number in range(len(queries)):
        row = queries.row(number)
        if row.status < 0 or int(places[number]) < 0:
            continue
        queue, offset = evidence.queues.place(int(places[number]))
        at = f"{queue.topic}/{queue.queue} offset {offset}"
        example = Example(
            "",
            value=row.value,
            topic=queue.topic,
            queue=queue.queue,
            offset=offset,
            time_ns=row.returned_ns,
        )
        if row.queue_offset >= 0:
            if (row.queue, row.queue_offset) != (queue.queue, offset):
                example.text = (
                    f"the query for value {row.value} gave {queue.topic}/{row.queue} offset"
                    f" {row.queue_offset}; it is at {at}"
                )
                wrong.append(example)
        elif 0 <= int(sent[number]) <= row.invoked_ns - INDEX_LAG_NS:
            example.text = f"the query for value {row.value}, which is at {at}, did not find it"
            example.distance = row.invoked_ns - int(sent[number])
            (wrong if _is_calm(evidence, row) else missed).append(example)
    return [
        judged(title, len(queries), unit, wrong),
        judged(miss, len(queries), unit, missed, severity=Severity.WARNING),
    ]


def bounds(evidence: Evidence, losses: Losses) -> CheckResult:
    """A18: the minimum is not above the maximum, neither goes back, none is beyond the end."""
    title, unit = "A18 bound error", "answers"
    if missing := evidence.no_final():
        return not_run(title, unit, missing)
    answers = evidence.rows((Function.BOUNDS, Function.PULL), (Outcome.OK,))
    told = [number for number in range(len(answers)) if answers.row(number).value >= 0]
    if not told:
        return not_applicable(title, unit, "no response reported the bounds of a queue")
    ends: dict[int, int] = defaultdict(int)
    for key in stored_messages(evidence).keys:
        queue = int(key) >> OFFSET_BITS
        ends[queue] = max(ends[queue], (int(key) & OFFSET_MASK) + 1)
    queues = evidence.queue_numbers(answers)
    judge = _Bounds(evidence, losses)
    for number in told:
        queue = int(queues[number])
        if queue >= 0:
            judge.take(answers.row(number), queue, ends[queue])
    return judged(title, len(told), unit, judge.findings, allowed=judge.allowed)


class _Bounds:
    """The bounds that were told, in order."""

    def __init__(self, evidence: Evidence, losses: Losses) -> None:
        self.findings: list[Example] = []
        self.allowed: list[Example] = []
        self._evidence = evidence
        self._losses = losses
        self._last: dict[tuple[int, int], Row] = {}

    def take(self, row: Row, queue: int, end: int) -> None:
        maximum, minimum = row.value, row.operation
        if minimum > maximum:
            self._find(row, f"minimum {minimum} is above maximum {maximum}", minimum - maximum)
        if maximum > end:
            what = f"maximum {maximum} was reported, the queue ends at {end}"
            self._find(row, what, maximum - end, row.returned_ns, _ENDLESS_NS)
        if row.function != Function.BOUNDS:
            return  # Which replica answered a pull is not known, so it cannot go back.
        before = self._last.get((row.node, queue))
        self._last[row.node, queue] = row
        if before is None or before.returned_ns > row.invoked_ns:
            return
        span = before.returned_ns, row.returned_ns
        if maximum < before.value:
            what = f"maximum {maximum} was reported after {before.value}"
            self._find(row, what, before.value - maximum, *span)
        if minimum < before.operation:
            what = f"minimum {minimum} was reported after {before.operation}"
            self._find(row, what, before.operation - minimum, *span)

    def _find(self, row: Row, what: str, distance: int, begin_ns: int = 0, end_ns: int = 0) -> None:
        evidence = self._evidence
        topic = evidence.history.topic(row)
        node = evidence.history.nodes.get(row.node, "")
        example = Example(
            f"{topic}/{row.queue} at {node}: {what}",
            node=node,
            topic=topic,
            queue=row.queue,
            time_ns=row.returned_ns,
            distance=distance,
        )
        group = evidence.group_of(row.node)
        lost = self._losses.loss_between(group, begin_ns, end_ns) or self._node_lost(
            node, begin_ns, end_ns
        )
        (self.allowed if lost else self.findings).append(example)

    def _node_lost(self, node: str, begin_ns: int, end_ns: int) -> bool:
        """Whether this very node lost something; a slave's own cut is no turn of its group."""
        ends = self._losses.ends.get(node)
        fell = ends is not None and ends.lowest_fall(begin_ns, end_ns) is not None
        return fell or any(
            change.node == node and begin_ns < change.time_ns <= end_ns
            for lineage in self._losses.lineages
            for change in lineage.changes
        )


def time_searches(evidence: Evidence) -> CheckResult:
    """A19: the offset for a time is the first message stored at or after it."""
    title, unit = "A19 time search", "searches"
    if missing := evidence.no_final():
        return not_run(title, unit, missing, severity=Severity.WARNING)
    searches = evidence.rows((Function.SEARCH_TIME,), (Outcome.OK,))
    if not len(searches):
        return not_applicable(title, unit, "no search by time was made", severity=Severity.WARNING)
    if evidence.clock_stepped:
        reason = "a wall clock was changed"
        return not_applicable(title, unit, reason, severity=Severity.WARNING)
    stored = stored_messages(evidence)
    times = dict(zip(map(int, stored.keys), map(int, stored.store_ms), strict=True))
    findings: list[Example] = []
    queues = evidence.queue_numbers(searches)
    for number in range(len(searches)):
        row = searches.row(number)
        wrong = _contradiction(times, int(queues[number]), row)
        if wrong:
            topic = evidence.history.topic(row)
            text = f"{topic}/{row.queue}: for time {row.value} offset {row.queue_offset}, {wrong}"
            findings.append(
                Example(
                    text,
                    topic=topic,
                    queue=row.queue,
                    offset=row.queue_offset,
                    time_ns=row.returned_ns,
                )
            )
    return judged(title, len(searches), unit, findings, severity=Severity.WARNING)


def store_times(evidence: Evidence) -> CheckResult:
    """A19s: along each log store times never fall, whatever the wall clock did (T17)."""
    title, unit = "A19s store times rise", "messages"
    findings: list[Example] = []
    allowed: list[Example] = []
    examined = 0
    for node in evidence.nodes:
        times = node.messages.store_ms
        examined += len(times)
        for number in range(1, len(times)):
            fall = times[number - 1] - times[number]
            if fall <= 0:
                continue
            value = node.messages.values[number]
            example = Example(
                f"{node.name}: value {value} was stored at {times[number]}, {fall} ms before the"
                " one in front of it",
                node=node.name,
                value=value,
                physical=node.messages.physicals[number],
                distance=fall,
            )
            (allowed if node.name in evidence.damaged else findings).append(example)
    if not examined:
        return not_applicable(title, unit, "no message is stored")
    return judged(title, examined, unit, findings, allowed=allowed)


def _contradiction(times: dict[int, int], queue: int, row: Row) -> str:
    if queue < 0 or row.queue_offset < 0:
        return ""
    here = times.get(pack(queue, row.queue_offset))
    before = times.get(pack(queue, row.queue_offset - 1))
    behind = times.get(pack(queue, row.queue_offset + 1))
    if here is not None and here < row.value and behind is not None:
        return f"but that message is of {here}"
    if before is not None and before >= row.value:
        return f"but the one before it is of {before}"
    return ""


def _is_calm(evidence: Evidence, row: Row) -> bool:
    calm = evidence.record.calm_ns
    return row.process == FINAL_READER or (calm > 0 and row.invoked_ns >= calm)
