"""Subscriptions and rewinds of consumer groups (chaos.md 2.5)."""

from collections import defaultdict

from rocketbed.chaos.checks import passes
from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.evidence import Evidence, Stored
from rocketbed.chaos.checks.examples import example_of
from rocketbed.chaos.checks.groups.positions import positions
from rocketbed.chaos.checks.keys import OFFSET_BITS, OFFSET_MASK, pack
from rocketbed.chaos.checks.result import Excuse
from rocketbed.chaos.evidence.history import Function


@check("unwanted-tag", "deliveries to groups that filter")
def unwanted_tags(case: Case, findings: Findings) -> int:
    """A group that subscribes to some tags gets no message with another one.

    `group-skip` and `group-backlog` check that it gets all messages with one of its tags.
    """
    evidence = case.evidence
    if not evidence.subscribed_tags:
        raise NotApplicable("no group asks for some tags only")
    stored = Stored([log for log in evidence.logs if evidence.disks.may_differ(log) is None])
    rows = evidence.rows((Function.DELIVER,))
    tags = passes.lookup(rows.column("value"), stored.values, stored.column("tags"), -1)
    groups = rows.column("operation")
    examined = 0
    for group, tags_of_group in sorted(evidence.subscribed_tags.items()):
        rows_of_group = passes.matching(groups, (group,))
        examined += len(rows_of_group)
        matching = set(map(int, passes.matching(tags, (-1, *tags_of_group))))
        for at in rows_of_group:
            if int(at) not in matching:
                text = f"was given to group {group}, which did not ask for its tag"
                findings.add(example_of(evidence, rows.row(int(at)), text))
    return examined


@check("broker-tag-filter", "pulls for one tag", final=True)
def unfiltered_pulls(case: Case, findings: Findings) -> int:
    """A broker's answer to a pull for a tag has no message with another one, unless their
    hashes are equal.

    Clients drop such messages, so no reader would notice. A batch queue has no tags to filter by:
    its records are batches of messages.
    """
    evidence = case.evidence
    batches = {topic for node in evidence.nodes for topic, _ in node.directory.batch_queues}
    pulls = evidence.events(Function.NODE, "filtered")
    pulls = [event for event in pulls if event.fields["topic"] not in batches]
    if not pulls:
        raise NotApplicable("nobody asked for one tag at the end")
    for event in pulls:
        if unwanted := event.fields["unwanted"]:
            place = f"{event.fields['topic']}/{event.fields['queue']}"
            text = f"{event.node} gave {unwanted} messages of {place} that have another tag"
            findings.add(text, node=event.node, time_ns=event.time_ns)
    return len(pulls)


@check("rewind", "times that a member went back", final=True)
def rewinds(case: Case, findings: Findings) -> int:
    """A rewound member next gets, of that queue, the message at the place it went back to.

    If it goes back again before anything arrived, the later place counts.
    """
    evidence = case.evidence
    resets = case.require_rows((Function.RESET_OFFSET,), without="no member went back")
    matching = _matching_offsets(evidence)
    deliveries = evidence.rows((Function.DELIVER,))
    delivered: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    readers: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    processes = map(int, deliveries.column("process"))
    rows = zip(processes, positions(evidence, deliveries), strict=True)
    for process, (group, queue, offset, time_ns) in rows:
        delivered[process, queue].append((time_ns, offset))
        readers[group, queue].append((time_ns, process))
    moves: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, (_, queue, _, time_ns) in enumerate(positions(evidence, resets)):
        moves[resets.row(number).process, queue].append(time_ns)
    for number, (group, queue, offset, time_ns) in enumerate(positions(evidence, resets)):
        row = resets.row(number)
        later = [delivery for delivery in delivered[row.process, queue] if delivery[0] > time_ns]
        expected = next((at for at in matching[group, queue] if at >= offset), None)
        if not later or expected is None:
            continue
        (first_ns, first), name = min(later), evidence.queues.names[queue]
        if offset <= first <= expected:  # below it: a message that has expired since, or was lost
            continue
        if any(time_ns < at < first_ns for at in moves[row.process, queue]):
            continue
        if any(
            time_ns < at < first_ns and process != row.process
            for at, process in readers[group, queue]
        ):
            continue  # another member had the queue meanwhile
        text = (
            f"group {group} went back to {offset} of {name.topic}/{name.queue}, where {expected} is"
        )
        text += f" the next that it asks for, and was given {first}"
        excuse = case.losses.loss_between(name.group, time_ns, first_ns)
        if excuse is None and first < offset:
            excuse = _unacknowledged_yet(case, queue, offset, time_ns)
        elif excuse is None:
            # Messages with other tags may have been where matching ones are now.
            losses_by_key = case.losses.excuses_by_key
            passed_keys = [pack(queue, at) for at in matching[group, queue] if offset <= at < first]
            excuse = (
                losses_by_key[passed_keys[0]]
                if all(key in losses_by_key for key in passed_keys)
                else None
            )
        findings.add(
            evidence.example(row, text, value=None, distance=abs(first - expected)), excuse=excuse
        )
    return len(resets)


def _unacknowledged_yet(case: Case, queue: int, offset: int, time_ns: int) -> Excuse | None:
    """Return an excuse if the message at a place was not acknowledged yet at a time.

    A reader may get it from one broker before it counts at another, which reports that its queue
    ends before it.
    """
    evidence = case.evidence
    sends = evidence.acknowledged
    for at in passes.matching(evidence.keys(sends), (pack(queue, offset),)):
        acknowledged_ns = sends.row(int(at)).returned_ns
        if acknowledged_ns > time_ns:
            return Excuse("what it had read did not count yet", time_ns, acknowledged_ns)
    return None


@check("delivery-order", "messages delivered")
def delivery_order(case: Case, findings: Findings) -> int:
    """A member gets the messages of a queue that come at once in order, each once.

    From one time to the next it may go back: to what its group had committed, or to the end of a
    slave that lags. Judged in simulation only, where the clock shows what came at once.
    """
    evidence = case.evidence
    rows = case.require_rows((Function.DELIVER,), without="no group took part")
    if evidence.record.backend != "sim":
        raise NotApplicable("what came at once is not known where time is a machine's")
    last_delivery: dict[tuple[int, int], tuple[int, int]] = {}
    places = positions(evidence, rows)
    for number, (group, queue, offset, time_ns) in enumerate(places):
        row = rows.row(number)
        previous, previous_ns = last_delivery.get((row.process, queue), (-1, -1))
        last_delivery[row.process, queue] = offset, time_ns
        if previous_ns == time_ns and offset <= previous and queue >= 0:
            name = evidence.queues.names[queue]
            text = f"group {group} was given {offset} of {name.topic}/{name.queue} after {previous}"
            findings.add(evidence.example(row, text, distance=previous - offset))
    return len(places)


def _matching_offsets(evidence: Evidence) -> dict[tuple[int, int], list[int]]:
    """Return the offsets of messages that a group subscribes to, by group and queue number,
    ascending."""
    offsets_by_queue: dict[tuple[int, int], list[int]] = defaultdict(list)
    stored = evidence.stored
    for group in evidence.record.consumer_groups.values():
        tags = evidence.subscribed_tags.get(group)
        for key, tag in zip(stored.keys, stored.column("tags"), strict=True):
            if tags is None or int(tag) in tags:
                offsets_by_queue[group, int(key) >> OFFSET_BITS].append(int(key) & OFFSET_MASK)
    for offsets in offsets_by_queue.values():
        offsets.sort()
    return offsets_by_queue
