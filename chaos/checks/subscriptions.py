"""What a group asked for: some tags, or to go back. (chaos.md 2.5)"""

from collections import defaultdict

from rocketbed.chaos.checks import passes
from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.evidence import Evidence, Stored
from rocketbed.chaos.checks.keys import OFFSET_BITS, OFFSET_MASK, pack
from rocketbed.chaos.checks.positions import positions
from rocketbed.chaos.checks.reads import example_of
from rocketbed.chaos.checks.result import Excuse
from rocketbed.chaos.evidence.history import Function


@check("A33 unwanted tag", "deliveries to groups that filter")
def unwanted_tags(case: Case, found: Findings) -> int:
    """A33: a group that asks for some tags gets no message with another one; A22 and A30 say that
    it gets all that have one of them."""
    evidence = case.evidence
    if not evidence.subscribed_tags:
        raise NotApplicable("no group asks for some tags only")
    stored = Stored([log for log in evidence.logs if evidence.disks.may_differ(log) is None])
    rows = evidence.rows((Function.DELIVER,))
    tags = passes.lookup(rows.column("value"), stored.values, stored.column("tags"), -1)
    groups = rows.column("operation")
    examined = 0
    for group, wanted in sorted(evidence.subscribed_tags.items()):
        own = passes.where(groups, (group,))
        examined += len(own)
        right = set(map(int, passes.where(tags, (-1, *wanted))))
        for at in own:
            if int(at) not in right:
                text = f"was given to group {group}, which did not ask for its tag"
                found.add(example_of(evidence, rows.row(int(at)), text))
    return examined


@check("A33f broker filters", "pulls for one tag", final=True)
def unfiltered_pulls(case: Case, found: Findings) -> int:
    """A33f: a pull that asks for a tag is given nothing else by its broker, where no other has its
    hash. Clients leave out what comes nevertheless, so nobody would see it. A batch queue has no
    tags to go by: its records are batches of messages."""
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
            found.add(text, node=event.node, time_ns=event.time_ns)
    return len(pulls)


@check("A34 rewind", "times that a member went back", final=True)
def rewinds(case: Case, found: Findings) -> int:
    """A34: a member that goes back in a queue is given what stands there, next of that queue; one
    that goes back again before anything came, what stands at the later place."""
    evidence = case.evidence
    back = case.require_rows((Function.RESET_OFFSET,), without="no member went back")
    wanted = _offsets(evidence)
    deliveries = evidence.rows((Function.DELIVER,))
    given: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    readers: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    processes = map(int, deliveries.column("process"))
    rows = zip(processes, positions(evidence, deliveries), strict=True)
    for process, (group, queue, offset, time_ns) in rows:
        given[process, queue].append((time_ns, offset))
        readers[group, queue].append((time_ns, process))
    moves: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, (_, queue, _, time_ns) in enumerate(positions(evidence, back)):
        moves[back.row(number).process, queue].append(time_ns)
    for number, (group, queue, offset, time_ns) in enumerate(positions(evidence, back)):
        row = back.row(number)
        later = [one for one in given[row.process, queue] if one[0] > time_ns]
        due = next((at for at in wanted[group, queue] if at >= offset), None)
        if not later or due is None:
            continue
        (first_ns, first), name = min(later), evidence.queues.names[queue]
        if offset <= first <= due:  # before it: what has expired since, or was lost (A13)
            continue
        if any(time_ns < at < first_ns for at in moves[row.process, queue]):
            continue
        if any(time_ns < at < first_ns and who != row.process for at, who in readers[group, queue]):
            continue  # the queue was another member's meanwhile (seed 1272391)
        text = f"group {group} went back to {offset} of {name.topic}/{name.queue}, where {due} is"
        text += f" the next that it asks for, and was given {first}"
        excuse = case.losses.loss_between(name.group, time_ns, first_ns)
        if excuse is None and first < offset:
            excuse = _ahead(case, queue, offset, time_ns)
        elif excuse is None:
            # Others may have stood where wanted ones stand now (seed 859501).
            gone = case.losses.excuses_by_key
            passed = [pack(queue, at) for at in wanted[group, queue] if offset <= at < first]
            excuse = gone[passed[0]] if all(key in gone for key in passed) else None
        found.add(evidence.example(row, text, value=None, distance=abs(first - due)), excuse=excuse)
    return len(back)


def _ahead(case: Case, queue: int, offset: int, time_ns: int) -> Excuse | None:
    """The message at a place that nobody had acknowledged at a time: a reader may have it from one
    broker before it counts at another, which says that its queue ends before it (seed 859472)."""
    evidence = case.evidence
    sends = evidence.acknowledged
    for at in passes.where(evidence.keys(sends), (pack(queue, offset),)):
        acknowledged_ns = sends.row(int(at)).returned_ns
        if acknowledged_ns > time_ns:
            return Excuse("what it had read did not count yet", time_ns, acknowledged_ns)
    return None


@check("A38 delivery order", "messages delivered")
def delivery_order(case: Case, found: Findings) -> int:
    """A38: of one queue a member gets what comes at once in its order, each message once.

    From one time to the next it may go back: to what its group had committed, or to the end of a
    slave that is behind. Only simulated time tells what came at once.
    """
    evidence = case.evidence
    rows = case.require_rows((Function.DELIVER,), without="no group took part")
    if evidence.record.backend != "sim":
        raise NotApplicable("what came at once is not known where time is a machine's")
    last: dict[tuple[int, int], tuple[int, int]] = {}
    places = positions(evidence, rows)
    for number, (group, queue, offset, time_ns) in enumerate(places):
        row = rows.row(number)
        before, then_ns = last.get((row.process, queue), (-1, -1))
        last[row.process, queue] = offset, time_ns
        if then_ns == time_ns and offset <= before and queue >= 0:
            name = evidence.queues.names[queue]
            text = f"group {group} was given {offset} of {name.topic}/{name.queue} after {before}"
            found.add(evidence.example(row, text, distance=before - offset))
    return len(places)


def _offsets(evidence: Evidence) -> dict[tuple[int, int], list[int]]:
    """By group and queue number the offsets of messages that a group asks for, rising."""
    found: dict[tuple[int, int], list[int]] = defaultdict(list)
    stored = evidence.stored
    for group in evidence.record.consumer_groups.values():
        wanted = evidence.subscribed_tags.get(group)
        for key, tag in zip(stored.keys, stored.column("tags"), strict=True):
            if wanted is None or int(tag) in wanted:
                found[group, int(key) >> OFFSET_BITS].append(int(key) & OFFSET_MASK)
    for offsets in found.values():
        offsets.sort()
    return found
