"""Members of consumer groups together receive everything (chaos.md 2.5)."""

from bisect import bisect_right
from collections import Counter, defaultdict

from rocketbed.chaos.checks import passes
from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.context import POLL_DELAY_NS, earliest_sending_ns
from rocketbed.chaos.checks.evidence import Evidence
from rocketbed.chaos.checks.groups.positions import (
    NO_GROUPS,
    Place,
    passed_between,
    positions,
    stored_positions,
)
from rocketbed.chaos.checks.keys import OFFSET_BITS, OFFSET_MASK, pack
from rocketbed.chaos.checks.result import Excuse, Severity
from rocketbed.chaos.evidence.history import OWN_ATTEMPTS, Function, Outcome, Row


@check("group-skip", "messages below committed positions", final=True)
def group_skips(case: Case, findings: Findings) -> int:
    """A committed position has not passed a stored message that no member ever got, among
    those with a tag that the group subscribes to."""
    evidence, stored = case.evidence, case.evidence.stored
    commits = evidence.rows((Function.COMMIT_OFFSET,), Outcome.OK)
    if not len(commits) and not evidence.record.consumer_groups:
        raise NotApplicable(NO_GROUPS)
    deliveries = evidence.rows((Function.DELIVER,))
    groups, values = deliveries.column("operation"), deliveries.column("value")
    committed: dict[int, dict[int, int]] = defaultdict(dict)
    for group, queue, offset, _ in positions(evidence, commits):
        offsets_by_queue = committed[group]
        offsets_by_queue[queue] = max(offsets_by_queue.get(queue, 0), offset)
    group_numbers = evidence.record.consumer_groups
    for _, queue, group_name, offset in stored_positions(evidence):
        if group_name in group_numbers:
            offsets_by_queue = committed[group_numbers[group_name]]
            offsets_by_queue[queue] = max(offsets_by_queue.get(queue, 0), offset)
    numbers = passes.column([int(key) >> OFFSET_BITS for key in stored.keys])
    offsets = passes.column([int(key) & OFFSET_MASK for key in stored.keys])
    examined = 0
    for group, limits in sorted(committed.items()):
        ends = passes.column(list(limits)), passes.column(list(limits.values()))
        passed = passes.below(offsets, passes.lookup(numbers, *ends, 0))
        examined += len(passed)
        if group in evidence.subscribed_tags:
            tags = passes.take(stored.column("tags"), passed)
            passed = [
                passed[int(at)] for at in passes.matching(tags, evidence.subscribed_tags[group])
            ]
        got = passes.take(values, passes.matching(groups, (group,)))
        for at in passes.missing(passes.take(stored.values, passed), got):
            number = passed[at]
            queue, offset = int(numbers[number]), int(offsets[number])
            value, name = int(stored.values[number]), evidence.queues.names[queue]
            findings.add(
                f"group {group} committed {limits[queue]} of {name.topic}/{name.queue}, and none"
                f" of its members got value {value} at offset {offset}",
                excuse=_excuse_of_skip(case, group, queue, offset, value),
                value=value,
                topic=name.topic,
                queue=name.queue,
                offset=offset,
                distance=limits[queue] - offset,
            )
    return examined


@check("early-commit", "messages that a commit passed", final=True)
def early_commits(case: Case, findings: Findings) -> int:
    """No member stores a position beyond a message that no member has got yet, even if one
    gets it later.

    Had the member died in between, the group would never have got the message. Only messages with a
    tag that the group subscribes to are judged.
    """
    evidence, stored = case.evidence, case.evidence.stored
    commits = _rising_commits(evidence)
    if not commits:
        raise NotApplicable(NO_GROUPS)
    first_got: dict[tuple[int, int], int] = {}
    deliveries = evidence.rows((Function.DELIVER,))
    columns = (deliveries.column(name) for name in ("operation", "value", "returned_ns"))
    for group, value, time_ns in zip(*(map(int, column) for column in columns), strict=True):
        first_got.setdefault((group, value), time_ns)
    by_queue: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for key, value, tag in zip(stored.keys, stored.values, stored.column("tags"), strict=True):
        by_queue[int(key) >> OFFSET_BITS].append((int(key) & OFFSET_MASK, int(value), int(tag)))
    examined = 0
    for (group, queue), (offsets, times) in commits.items():
        tags = evidence.subscribed_tags.get(group)
        early: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for offset, value, tag in by_queue[queue]:
            at = bisect_right(offsets, offset)
            got_ns = first_got.get((group, value))
            if at == len(offsets) or got_ns is None or (tags is not None and tag not in tags):
                continue
            examined += 1
            if times[at] < got_ns:
                early[at].append((offset, value))
        for at, passed in early.items():
            (offset, value), name = min(passed), evidence.queues.names[queue]
            late = (first_got[group, value] - times[at]) / 1e9
            findings.add(
                f"group {group} stored {offsets[at]} for {name.topic}/{name.queue} at"
                f" {times[at] / 1e9:.3f} s, {late:.3f} s before any member got the message at"
                f" offset {offset}",
                excuse=_excuse_of_skip(case, group, queue, offset, value),
                value=value,
                topic=name.topic,
                queue=name.queue,
                offset=offset,
                distance=len(passed),
            )
    return examined


@check("redelivery", "deliveries", severity=Severity.METRIC)
def redeliveries(case: Case, findings: Findings) -> int:
    """Number of times that a group got a message again. A metric."""
    deliveries = case.require_rows((Function.DELIVER,), without=NO_GROUPS)
    names = ("operation", "value")
    counts = Counter(zip(*(map(int, deliveries.column(name)) for name in names), strict=True))
    repetitions, most = counts.total() - len(counts), max(counts.values())
    findings.figures = {"again": repetitions, "copies_max": most}
    findings.note = f"{repetitions} deliveries were repetitions, a message came at most {most} x"
    return len(deliveries)


def _rising_commits(evidence: Evidence) -> dict[Place, tuple[list[int], list[int]]]:
    """Return, by place, each position beyond all earlier ones that members began to store, answered
    or not, and when."""
    rising: dict[Place, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    rows = evidence.rows((Function.COMMIT_OFFSET,))
    begun = map(int, rows.column("invoked_ns"))
    for time_ns, (group, queue, offset, _) in sorted(
        zip(begun, positions(evidence, rows), strict=True)
    ):
        offsets, times = rising[group, queue]
        if not offsets or offset > offsets[-1]:
            offsets.append(offset)
            times.append(time_ns)
    return rising


def _excuse_of_skip(case: Case, group: int, queue: int, offset: int, value: int) -> Excuse | None:
    """Return why another message may have been at this place, or why the group may have passed it
    before a loss after which the message was stored."""
    evidence, losses = case.evidence, case.losses
    passed_ns, until_ns = passed_between(evidence, group, queue, offset)
    loss_of_place = losses.excuses_by_key.get(pack(queue, offset))
    if loss_of_place is not None:
        # A group with a tag filter passes messages with other tags without their delivery.
        is_filtered = group in evidence.subscribed_tags
        since_ns = passed_ns - POLL_DELAY_NS if is_filtered else passed_ns
        if since_ns <= loss_of_place.end_ns:
            return loss_of_place
    if loss_of_place is not None and (
        excuse := _lost_message_delivered(case, group, queue, offset)
    ):
        return excuse
    # A message of a second master at such a place need not have been acknowledged.
    brokers = evidence.queues.names[queue].group
    if excuse := losses.split_between(brokers, passed_ns, until_ns):
        return excuse
    sends = evidence.sends
    places = passes.matching(sends.column("value"), (value,))
    sent_ns = sends.row(int(places[0])).returned_ns if len(places) else -1
    if passed_ns >= sent_ns:
        return None
    # Groups with failover show only confirmed messages, so no place that was read is reused.
    if evidence.elects and evidence.record.expect.loss == "none":
        return None
    losses_between = losses.losses_between(brokers, passed_ns, sent_ns)
    return next(
        (loss for loss in losses_between if _may_be_reused(evidence, queue, offset, loss)), None
    )


def _may_be_reused(evidence: Evidence, queue: int, offset: int, loss: Excuse) -> bool:
    """True if another message may have been at a place until a loss.

    The places of a queue that are reused are as many as its lost messages: at most those sent by
    then that are missing now. They begin before the first message that was sent later.
    """
    sends, stored = evidence.sends, evidence.stored
    earlier_sends = sends.at(passes.below(sends.column("invoked_ns"), loss.end_ns))
    if len(passes.matching(earlier_sends.column("attempt"), (OWN_ATTEMPTS,))):
        return True  # it is unknown how often these were stored
    absent = earlier_sends.at(passes.missing(earlier_sends.column("value"), stored.values))
    lost = sum(
        place == queue or (place < 0 and _may_be_of(evidence, row, queue))
        for place, row in zip(map(int, evidence.queue_numbers(absent)), absent.each(), strict=True)
    )
    times = passes.lookup(stored.values, sends.column("value"), sends.column("invoked_ns"), -1)
    first, key_of_place = pack(queue, 0), pack(queue, offset)
    newer = sum(
        first <= key < key_of_place and time_ns >= loss.end_ns
        for key, time_ns in zip(map(int, stored.keys), map(int, times), strict=True)
    )
    return newer < lost


def _may_be_of(evidence: Evidence, row: Row, queue: int) -> bool:
    """True if an unanswered send may have gone to a queue."""
    topic = evidence.history.topic(row)
    return topic in evidence.generations.deletions or topic == evidence.queues.names[queue].topic


def _lost_message_delivered(case: Case, group: int, queue: int, offset: int) -> Excuse | None:
    """Return why a member got the lost message of this place from a slave that still had it.

    The group is beyond the place then, whatever is stored there later.
    """
    evidence, losses = case.evidence, case.losses
    rows = evidence.rows((Function.DELIVER,))
    places, values = positions(evidence, rows), rows.column("value")
    for (row_group, row_queue, row_offset, got_ns), value in zip(places, values, strict=True):
        if (row_group, row_queue, row_offset) == (group, queue, offset) and int(
            value
        ) in losses.excuses:
            brokers = evidence.queues.names[queue].group
            return losses.loss_between(brokers, earliest_sending_ns(evidence, got_ns), got_ns)
    return None
