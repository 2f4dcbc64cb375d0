"""Answers to queries are true: by key, bounds of queues, by time."""

from bisect import bisect_left
from collections import defaultdict

from rocketbed.chaos.checks import passes
from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.context import disk_fault, faults
from rocketbed.chaos.checks.keys import OFFSET_BITS, pack
from rocketbed.chaos.checks.result import Excuse, Severity
from rocketbed.chaos.evidence.history import FINAL_READER, UNKNOWN, Function, Outcome, Row

INDEX_LAG_NS = 2_000_000_000
"""A message acknowledged this long ago is in the index."""
DISPATCH_LAG_NS = 500_000_000
"""A message acknowledged this long ago is in its queue; with asynchronous flush that comes later
than the answer."""
_ENDLESS_NS = 1 << 62


@check(
    "query-mismatch",
    "queries",
    also=(
        "query-miss-under-faults",
        Severity.WARNING,
        "While faults last a query by key finds a message soon after its acknowledgement.",
    ),
    final=True,
)
def key_queries(case: Case, wrong: Findings, missed: Findings) -> int:
    """A query by key finds the message at its place.

    Messages of a deleted topic may be found at their old place until the index is rebuilt; a
    damaged index that was reported is rebuilt at its node's next start. While faults go on a master
    may have to dispatch recovered messages first, so a miss is a warning then, and an anomaly in
    the recovery phase and at the end.
    """
    evidence, stored = case.evidence, case.evidence.stored
    case.require_index()
    failed = evidence.rows((Function.QUERY_KEY,), Outcome.INFO)
    for row in map(failed.row, range(len(failed))):
        if row.process == FINAL_READER:
            text = f"the query for value {row.value} failed, when nothing was broken any more"
            wrong.add(evidence.example(row, text), excuse=evidence.deleted_message(row))
    reason = "no message was queried by key"
    if wrong.anomalies:
        return len(failed)
    queries = case.require_rows((Function.QUERY_KEY,), Outcome.OK, without=reason)
    sends = evidence.acknowledged
    values = queries.column("value")
    sent_times = passes.lookup(values, sends.column("value"), sends.column("returned_ns"), -1)
    places = passes.lookup(values, stored.values, stored.keys, -1)
    for number in range(len(queries)):
        row, key, sent_ns = queries.row(number), int(places[number]), int(sent_times[number])
        if row.status < 0 or key < 0:
            continue
        queue, offset = evidence.queues.place(key)
        at = evidence.queues.show(key)
        example = evidence.example(row, "", topic=queue.topic, queue=queue.queue, offset=offset)
        if row.queue_offset >= 0:
            if (row.queue, row.queue_offset) != (queue.queue, offset):
                example.text = (
                    f"the query for value {row.value} gave {queue.topic}/{row.queue} offset"
                    f" {row.queue_offset}; it is at {at}"
                )
                wrong.add(example)
        elif 0 <= sent_ns <= row.invoked_ns - INDEX_LAG_NS and not evidence.deleted(queue.topic):
            example.text = f"the query for value {row.value}, which is at {at}, did not find it"
            example.distance = row.invoked_ns - sent_ns
            recovery_ns = evidence.record.recovery_ns
            is_in_recovery = row.process == FINAL_READER or (
                recovery_ns > 0 and row.invoked_ns >= recovery_ns
            )
            master = case.losses.lineages[queue.group].era(row.invoked_ns).master
            (wrong if is_in_recovery else missed).add(
                example, excuse=evidence.disks.misses_keys(master, row.invoked_ns)
            )
    return len(queries)


@check("bound-error", "answers", final=True)
def bounds(case: Case, findings: Findings) -> int:
    """Bounds of queues are consistent.

    The minimum is not above the maximum, neither goes back, neither is beyond the end, and the
    offsets of a pull's messages lie between them. At the end the maximum is the queue's end, and
    the minimum is not after its first message. A master's maximum is after everything that it had
    acknowledged half a second before; in simulation only, as a busy machine, or a disk that accepts
    nothing, may write queues later.
    """
    evidence, reached = case.evidence, Reached(case)
    answers = evidence.rows((Function.BOUNDS, Function.PULL), Outcome.OK)
    reporting = [number for number in range(len(answers)) if answers.row(number).value >= 0]
    if not reporting:
        raise NotApplicable("no response reported the bounds of a queue")
    queues = evidence.queue_numbers(answers)
    got = evidence.rows((Function.GOT,))
    spans: dict[int, tuple[int, int]] = {}
    for pull, offset in zip(got.column("operation"), got.column("queue_offset"), strict=True):
        low, high = spans.get(int(pull), (int(offset), int(offset)))
        spans[int(pull)] = min(low, int(offset)), max(high, int(offset))
    last: dict[tuple[int, int], Row] = {}
    for number in reporting:
        row, queue = answers.row(number), int(queues[number])
        if queue < 0:
            continue
        maximum, minimum, end = row.value, row.operation, evidence.ends[queue]
        if minimum > maximum:
            text = f"minimum {minimum} is above maximum {maximum}"
            _add_bound(case, findings, row, text, minimum - maximum)
        if maximum > end:
            text = f"maximum {maximum} was reported, the queue ends at {end}"
            _add_bound(case, findings, row, text, maximum - end, (row.returned_ns, _ENDLESS_NS))
        low, high = spans.get(row.number, (minimum, maximum - 1))
        if not minimum <= low <= high < maximum and row.number in spans:
            text = f"offsets {low} to {high} were given, and {minimum} to {maximum} reported"
            _add_bound(case, findings, row, text, 1)
        begin = evidence.stored.begins.get(queue, minimum)
        if row.process == FINAL_READER and minimum > begin:
            text = f"minimum {minimum} was reported at the end, and the queue begins at {begin}"
            _add_bound(case, findings, row, text, minimum - begin, (row.returned_ns, _ENDLESS_NS))
        if row.function != Function.BOUNDS:
            continue  # the replica that answered a pull is unknown, so its bounds cannot go back
        if row.process == FINAL_READER and maximum < end:
            text = f"maximum {maximum} was reported at the end, and the queue ends at {end}"
            span, loss = (row.returned_ns, _ENDLESS_NS), case.loss_of_last_message(queue)
            _add_bound(case, findings, row, text, end - maximum, span, excuse=loss)
        least, since_ns = reached.least_end(row, queue)
        if maximum < least:
            text = f"maximum {maximum} was reported, after offset {least - 1} was acknowledged"
            disk_excuse = disk_fault(
                reached.fault_spans, evidence.node(row), since_ns, row.returned_ns
            )
            span = since_ns, row.returned_ns
            _add_bound(case, findings, row, text, least - maximum, span, excuse=disk_excuse)
        previous = last.get((row.node, queue))
        last[row.node, queue] = row
        if previous is None or previous.returned_ns > row.invoked_ns:
            continue
        span = previous.returned_ns, row.returned_ns
        pairs = ("maximum", maximum, previous.value), ("minimum", minimum, previous.operation)
        for bound, value, earlier_value in pairs:
            if value < earlier_value and value != UNKNOWN:
                text = f"{bound} {value} was reported after {earlier_value}"
                _add_bound(case, findings, row, text, earlier_value - value, span)
    return len(reporting)


class Reached:
    """End of each queue at its masters, by what they had acknowledged."""

    def __init__(self, case: Case) -> None:
        evidence = case.evidence
        self._case = case
        self.fault_spans = faults(evidence)
        self._times: dict[tuple[int, int], list[int]] = defaultdict(list)
        """Times of acknowledgements by queue and begin of the master's era, ascending."""
        self._best: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        """For each of these times the highest end by then, and the time of its acknowledgement."""
        sends = evidence.acknowledged
        names = ("returned_ns", "invoked_ns", "queue_offset")
        columns = (evidence.queue_numbers(sends), *map(sends.column, names))
        for at, begun, queue, offset in sorted(
            (int(at), int(begun), int(queue), int(offset))
            for queue, at, begun, offset in zip(*columns, strict=True)
            if queue >= 0
        ):
            era = case.losses.lineages[evidence.queues.names[queue].group].era(begun)
            place = queue, era.start_ns
            best = self._best[place]
            self._times[place].append(at)
            best.append(max((offset + 1, at), best[-1]) if best else (offset + 1, at))

    def least_end(self, row: Row, queue: int) -> tuple[int, int]:
        """Return the least end that the master of the time may report in an answer, and when that
        end was acknowledged.

        The end is 0 for answers of other nodes, and while there were two masters.
        """
        evidence, name = self._case.evidence, self._case.evidence.queues.names[queue]
        lineage = self._case.losses.lineages[name.group]
        era = lineage.era(row.invoked_ns)
        is_from_master = era.master == evidence.node(row) and era is lineage.era(row.returned_ns)
        if not is_from_master or evidence.record.backend != "sim" or evidence.deleted(name.topic):
            return 0, 0
        count = bisect_left(self._times[queue, era.start_ns], row.invoked_ns - DISPATCH_LAG_NS)
        if not count:
            return 0, 0
        least, at = self._best[queue, era.start_ns][count - 1]
        if any(begin <= row.returned_ns and at <= end for begin, end, _ in evidence.splits):
            return 0, 0
        return least, at


def _add_bound(
    case: Case,
    findings: Findings,
    row: Row,
    text_of_bound: str,
    distance: int,
    span: tuple[int, int] = (0, 0),
    *,
    excuse: Excuse | None = None,
) -> None:
    """Add a finding that is excused by what the group, or this very node, lost in a period."""
    evidence, losses = case.evidence, case.losses
    node = evidence.node(row)
    text = f"{evidence.history.topic(row)}/{row.queue} at {node}: {text_of_bound}"
    example = evidence.example(row, text, value=None, offset=None, node=node, distance=distance)
    excuse = excuse or losses.loss_between(evidence.group_of(row.node), *span)
    ends = losses.ends.get(node)
    if excuse is None and ends is not None and ends.lowest_fall(*span) is not None:
        excuse = evidence.excuse(f"{node} truncated its log", *span)
    for lineage in losses.lineages:  # a slave's own cut is no loss point of its group
        for change in lineage.changes:
            if change.node == node and span[0] < change.time_ns <= span[1]:
                excuse = excuse or evidence.excuse(f"{change.kind} of {node}", change.time_ns)
    findings.add(example, excuse=excuse)


@check("time-search", "searches", final=True)
def time_searches(case: Case, findings: Findings) -> int:
    """The offset returned for a time is that of the first message stored at or after it."""
    evidence, stored = case.evidence, case.evidence.stored
    reason = "no search by time was made"
    searches = case.require_rows((Function.SEARCH_TIME,), Outcome.OK, without=reason)
    if "target" in evidence.record.facts and evidence.events(Function.NEMESIS, "clock"):
        raise NotApplicable("a wall clock was changed, which store times of RocketMQ follow")
    times = dict(zip(map(int, stored.keys), map(int, stored.column("store_ms")), strict=True))
    expires = evidence.record.reserved_ns is not None
    latest: dict[int, int] = {}
    for key, time_ms in times.items():
        latest[key >> OFFSET_BITS] = max(time_ms, latest.get(key >> OFFSET_BITS, 0))
    queues = evidence.queue_numbers(searches)
    for number in range(len(searches)):
        row = searches.row(number)
        queue = int(queues[number])
        newest = -1 if expires and row.queue_offset >= 0 else latest.get(queue, -1)
        contradiction = _contradiction(times, newest, queue, row)
        if contradiction:
            place = f"{evidence.history.topic(row)}/{row.queue}"
            text = f"{place}: for time {row.value} offset {row.queue_offset}, {contradiction}"
            findings.add(evidence.example(row, text, value=None))
    return len(searches)


@check("store-times-rise", "messages", needs_history=False)
def store_times(case: Case, findings: Findings) -> int:
    """Store times never fall along a log, whatever the wall clock did."""
    examined = 0
    for node in case.evidence.nodes:
        times = node.messages.store_ms
        examined += len(times)
        for number in range(1, len(times)):
            fall = times[number - 1] - times[number]
            if fall <= 0:
                continue
            value = node.messages.values[number]
            text = f"{node.name}: value {value} was stored at {times[number]}, {fall} ms before the"
            text += " one in front of it"
            excuse, place = case.evidence.disks.may_differ(node), node.messages.physicals[number]
            more = {"value": value, "physical": place, "distance": fall}
            findings.add(text, excuse=excuse, node=node.name, **more)
    if not examined:
        raise NotApplicable("no message is stored")
    return examined


def _contradiction(times: dict[int, int], latest: int, queue: int, row: Row) -> str:
    if queue < 0:
        return ""
    this_ms = times.get(pack(queue, row.queue_offset))
    previous_ms = times.get(pack(queue, row.queue_offset - 1))
    next_ms = times.get(pack(queue, row.queue_offset + 1))
    if this_ms is None and row.value <= latest:
        return f"where no message is, and there is one of {latest}"
    if this_ms is not None and this_ms < row.value and next_ms is not None:
        return f"but that message is of {this_ms}"
    if previous_ms is not None and previous_ms >= row.value:
        return f"but the one before it is of {previous_ms}"
    return ""
