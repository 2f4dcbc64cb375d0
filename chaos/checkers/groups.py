"""Consumer groups: did their members together get everything? (chaos.md 2.5)"""

from collections import Counter, defaultdict

from rocketbed.chaos.checkers import passes
from rocketbed.chaos.checkers.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checkers.keys import OFFSET_BITS, OFFSET_MASK, pack
from rocketbed.chaos.checkers.positions import NO_GROUPS, positions, stored_positions
from rocketbed.chaos.checkers.result import Excuse, Severity
from rocketbed.chaos.history import Function, Outcome


@check("A22 group skip", "messages below committed positions", final=True)
def group_skips(case: Case, found: Findings) -> int:
    """A22: a committed position has not passed a stored message that no member ever got, of those
    with a tag that the group asks for."""
    evidence, stored = case.evidence, case.evidence.stored
    commits = evidence.rows((Function.COMMIT_OFFSET,), Outcome.OK)
    if not len(commits) and not evidence.record.consumer_groups:
        raise NotApplicable(NO_GROUPS)
    deliveries = evidence.rows((Function.DELIVER,))
    groups, values = deliveries.column("operation"), deliveries.column("value")
    committed: dict[int, dict[int, int]] = defaultdict(dict)
    for group, queue, offset, _ in positions(evidence, commits):
        known = committed[group]
        known[queue] = max(known.get(queue, 0), offset)
    of_name = evidence.record.consumer_groups
    for _, queue, who, offset in stored_positions(evidence):
        if who in of_name:
            known = committed[of_name[who]]
            known[queue] = max(known.get(queue, 0), offset)
    numbers = passes.column([int(key) >> OFFSET_BITS for key in stored.keys])
    offsets = passes.column([int(key) & OFFSET_MASK for key in stored.keys])
    examined = 0
    for group, limits in sorted(committed.items()):
        ends = passes.column(list(limits)), passes.column(list(limits.values()))
        passed = passes.below(offsets, passes.lookup(numbers, *ends, 0))
        examined += len(passed)
        if group in evidence.wanted_tags:
            tags = passes.take(stored.column("tags"), passed)
            passed = [passed[int(at)] for at in passes.where(tags, evidence.wanted_tags[group])]
        got = passes.take(values, passes.where(groups, (group,)))
        for at in passes.missing(passes.take(stored.values, passed), got):
            number = passed[at]
            queue, offset = int(numbers[number]), int(offsets[number])
            value, name = int(stored.values[number]), evidence.queues.names[queue]
            found.add(
                f"group {group} committed {limits[queue]} of {name.topic}/{name.queue}, and none"
                f" of its members got value {value} at offset {offset}",
                excuse=_given_again(case, group, queue, offset, value),
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
    deliveries = case.some((Function.DELIVER,), without=NO_GROUPS)
    names = ("operation", "value")
    counts = Counter(zip(*(map(int, deliveries.column(name)) for name in names), strict=True))
    again, most = counts.total() - len(counts), max(counts.values())
    found.figures = {"again": again, "copies_max": most}
    found.note = f"{again} deliveries were repetitions, a message came at most {most} x"
    return len(deliveries)


def _given_again(case: Case, group: int, queue: int, offset: int, value: int) -> Excuse | None:
    """Why another message may have stood here, or the group have passed this offset before a loss
    that the message came after."""
    evidence, losses = case.evidence, case.losses
    if excuse := losses.gone_keys.get(pack(queue, offset)):
        return excuse
    sends = evidence.sends
    places = passes.where(sends.column("value"), (value,))
    if not len(places):
        return None
    row = sends.row(int(places[0]))
    broker_group = evidence.queues.names[queue].group
    rows = evidence.rows((Function.COMMIT_OFFSET, Function.DELIVER))
    for who, where, at, time_ns in positions(evidence, rows):
        if (who, where) == (group, queue) and at > offset - 1 and time_ns < row.returned_ns:
            excuse = losses.loss_between(broker_group, time_ns, row.returned_ns)
            if excuse is not None:
                return excuse
    return None
