"""Are the answers to questions true? By key (A17), bounds of queues (A18), by time (A19)."""

from bisect import bisect_left
from collections import defaultdict

from rocketbed.chaos.checks import passes
from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.context import disk_fault, faults
from rocketbed.chaos.checks.keys import OFFSET_BITS, pack
from rocketbed.chaos.checks.result import Excuse, Severity
from rocketbed.chaos.evidence.history import FINAL_READER, UNKNOWN, Function, Outcome, Row

INDEX_LAG_NS = 2_000_000_000
"""A message acknowledged so long ago is in the index."""
DISPATCH_LAG_NS = 500_000_000
"""A message acknowledged so long ago is in its queue: with asynchronous flush that comes after."""
_ENDLESS_NS = 1 << 62


@check(
    "A17 query mismatch",
    "queries",
    also=("A17w query misses in storm", Severity.WARNING),
    final=True,
)
def key_queries(case: Case, wrong: Findings, missed: Findings) -> int:
    """A17: a query by key finds the message, where it is. A17w: in the storm too, soon enough.

    What a deleted topic held may be found where it was, until the index is built again; one that
    was damaged, and told of, is by its node's next start.
    While faults go on a master may have to dispatch first what it recovered, so that a miss is a
    warning then; in the calm phase and at the end it is none.
    """
    evidence, stored = case.evidence, case.evidence.stored
    case.require_index()
    failed = evidence.rows((Function.QUERY_KEY,), Outcome.INFO)
    for row in map(failed.row, range(len(failed))):
        if row.process == FINAL_READER:
            text = f"the query for value {row.value} failed, when nothing was broken any more"
            wrong.add(evidence.example(row, text), excuse=evidence.deleted_message(row))
    why = "no message was queried by key"
    if wrong.anomalies:
        return len(failed)
    queries = case.require_rows((Function.QUERY_KEY,), Outcome.OK, without=why)
    sends = evidence.acknowledged
    values = queries.column("value")
    sent = passes.lookup(values, sends.column("value"), sends.column("returned_ns"), -1)
    places = passes.lookup(values, stored.values, stored.keys, -1)
    for number in range(len(queries)):
        row, key, sent_ns = queries.row(number), int(places[number]), int(sent[number])
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
            calm = evidence.record.calm_ns
            is_calm = row.process == FINAL_READER or (calm > 0 and row.invoked_ns >= calm)
            master = case.losses.lineages[queue.group].era(row.invoked_ns).master
            (wrong if is_calm else missed).add(
                example, excuse=evidence.disks.misses_keys(master, row.invoked_ns)
            )
    return len(queries)


@check("A18 bound error", "answers", final=True)
def bounds(case: Case, found: Findings) -> int:
    """A18: the minimum is not above the maximum, neither goes back, none is beyond the end; what a
    pull gave lies between them; at the end the maximum is the queue's end, and the minimum is not
    behind its first message. A master's maximum is behind all that it had acknowledged half a
    second before, in simulation: a busy machine may write queues later, as a disk does that takes
    nothing."""
    evidence, reached = case.evidence, Reached(case)
    answers = evidence.rows((Function.BOUNDS, Function.PULL), Outcome.OK)
    told = [number for number in range(len(answers)) if answers.row(number).value >= 0]
    if not told:
        raise NotApplicable("no response reported the bounds of a queue")
    queues = evidence.queue_numbers(answers)
    got = evidence.rows((Function.GOT,))
    given: dict[int, tuple[int, int]] = {}
    for pull, offset in zip(got.column("operation"), got.column("queue_offset"), strict=True):
        low, high = given.get(int(pull), (int(offset), int(offset)))
        given[int(pull)] = min(low, int(offset)), max(high, int(offset))
    last: dict[tuple[int, int], Row] = {}
    for number in told:
        row, queue = answers.row(number), int(queues[number])
        if queue < 0:
            continue
        maximum, minimum, end = row.value, row.operation, evidence.ends[queue]
        if minimum > maximum:
            what = f"minimum {minimum} is above maximum {maximum}"
            _add_bound(case, found, row, what, minimum - maximum)
        if maximum > end:
            what = f"maximum {maximum} was reported, the queue ends at {end}"
            _add_bound(case, found, row, what, maximum - end, (row.returned_ns, _ENDLESS_NS))
        low, high = given.get(row.number, (minimum, maximum - 1))
        if not minimum <= low <= high < maximum and row.number in given:
            what = f"offsets {low} to {high} were given, and {minimum} to {maximum} reported"
            _add_bound(case, found, row, what, 1)
        begin = evidence.stored.begins.get(queue, minimum)
        if row.process == FINAL_READER and minimum > begin:
            what = f"minimum {minimum} was reported at the end, and the queue begins at {begin}"
            _add_bound(case, found, row, what, minimum - begin, (row.returned_ns, _ENDLESS_NS))
        if row.function != Function.BOUNDS:
            continue  # Which replica answered a pull is not known, so it cannot go back.
        if row.process == FINAL_READER and maximum < end:
            what = f"maximum {maximum} was reported at the end, and the queue ends at {end}"
            span, lost = (row.returned_ns, _ENDLESS_NS), case.loss_of_last_message(queue)
            _add_bound(case, found, row, what, end - maximum, span, excuse=lost)
        least, since_ns = reached.by(row, queue)
        if maximum < least:
            what = f"maximum {maximum} was reported, after offset {least - 1} was acknowledged"
            kept = disk_fault(reached.struck, evidence.node(row), since_ns, row.returned_ns)
            span = since_ns, row.returned_ns
            _add_bound(case, found, row, what, least - maximum, span, excuse=kept)
        before = last.get((row.node, queue))
        last[row.node, queue] = row
        if before is None or before.returned_ns > row.invoked_ns:
            continue
        span = before.returned_ns, row.returned_ns
        pairs = ("maximum", maximum, before.value), ("minimum", minimum, before.operation)
        for bound, now, then in pairs:
            if now < then and now != UNKNOWN:
                what = f"{bound} {now} was reported after {then}"
                _add_bound(case, found, row, what, then - now, span)
    return len(told)


class Reached:
    """How far the queues of a master reached, by what it had acknowledged."""

    def __init__(self, case: Case) -> None:
        evidence = case.evidence
        self._case = case
        self.struck = faults(evidence)
        self._times: dict[tuple[int, int], list[int]] = defaultdict(list)
        """By queue and the beginning of its master's time: when an answer came, rising."""
        self._best: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        """Beside each the highest end by then, and when what ends there was acknowledged."""
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

    def by(self, row: Row, queue: int) -> tuple[int, int]:
        """The least end that the master of the time may tell in an answer, and when what ends there
        was acknowledged; 0 for an answer of another one, or of one of two masters."""
        evidence, name = self._case.evidence, self._case.evidence.queues.names[queue]
        lineage = self._case.losses.lineages[name.group]
        era = lineage.era(row.invoked_ns)
        is_its_own = era.master == evidence.node(row) and era is lineage.era(row.returned_ns)
        if not is_its_own or evidence.record.backend != "sim" or evidence.deleted(name.topic):
            return 0, 0
        before = bisect_left(self._times[queue, era.start_ns], row.invoked_ns - DISPATCH_LAG_NS)
        if not before:
            return 0, 0
        least, at = self._best[queue, era.start_ns][before - 1]
        if any(begin <= row.returned_ns and at <= end for begin, end, _ in evidence.splits):
            return 0, 0
        return least, at


def _add_bound(
    case: Case,
    found: Findings,
    row: Row,
    what: str,
    distance: int,
    span: tuple[int, int] = (0, 0),
    *,
    excuse: Excuse | None = None,
) -> None:
    """A finding that is excused by what the group, or this very node, lost in a time."""
    evidence, losses = case.evidence, case.losses
    node = evidence.node(row)
    text = f"{evidence.history.topic(row)}/{row.queue} at {node}: {what}"
    example = evidence.example(row, text, value=None, offset=None, node=node, distance=distance)
    excuse = excuse or losses.loss_between(evidence.group_of(row.node), *span)
    ends = losses.ends.get(node)
    if excuse is None and ends is not None and ends.lowest_fall(*span) is not None:
        excuse = evidence.excuse(f"{node} cut its log", *span)
    for lineage in losses.lineages:  # a slave's own cut is no turn of its group
        for change in lineage.changes:
            if change.node == node and span[0] < change.time_ns <= span[1]:
                excuse = excuse or evidence.excuse(f"{change.kind} of {node}", change.time_ns)
    found.add(example, excuse=excuse)


@check("A19 time search", "searches", final=True)
def time_searches(case: Case, found: Findings) -> int:
    """A19: the offset for a time is the first message stored at or after it."""
    evidence, stored = case.evidence, case.evidence.stored
    why = "no search by time was made"
    searches = case.require_rows((Function.SEARCH_TIME,), Outcome.OK, without=why)
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
        wrong = _contradiction(times, newest, queue, row)
        if wrong:
            place = f"{evidence.history.topic(row)}/{row.queue}"
            text = f"{place}: for time {row.value} offset {row.queue_offset}, {wrong}"
            found.add(evidence.example(row, text, value=None))
    return len(searches)


@check("A19s store times rise", "messages", needs_history=False)
def store_times(case: Case, found: Findings) -> int:
    """A19s: along each log store times never fall, whatever the wall clock did (T17)."""
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
            found.add(text, excuse=excuse, node=node.name, **more)
    if not examined:
        raise NotApplicable("no message is stored")
    return examined


def _contradiction(times: dict[int, int], latest: int, queue: int, row: Row) -> str:
    if queue < 0:
        return ""
    here = times.get(pack(queue, row.queue_offset))
    before = times.get(pack(queue, row.queue_offset - 1))
    behind = times.get(pack(queue, row.queue_offset + 1))
    if here is None and row.value <= latest:
        return f"where no message is, and there is one of {latest}"
    if here is not None and here < row.value and behind is not None:
        return f"but that message is of {here}"
    if before is not None and before >= row.value:
        return f"but the one before it is of {before}"
    return ""
