"""Every group and every follower reads to the end once the faults are over.

The run waits for that and reports readers that do not get there (`groups-caught-up`); these checks
examine the history and the tables.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from rocketbed.chaos.checks import passes
from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.context import HALF_OPEN_NS, faults
from rocketbed.chaos.checks.ends import ENDLESS
from rocketbed.chaos.checks.evidence import Evidence, Rows
from rocketbed.chaos.checks.examples import example_of, spread
from rocketbed.chaos.checks.groups.positions import rewind_times, stored_positions
from rocketbed.chaos.checks.keys import OFFSET_BITS, OFFSET_MASK
from rocketbed.chaos.checks.result import Severity
from rocketbed.chaos.evidence.history import UNKNOWN, Function

LATE_NS = 4_000_000_000
"""Limit from the acknowledgement to a reader without faults: less than a pull is held."""
QUICK_NS = 10_000_000
"""Limit for a sync of a disk plus one way over a link."""
TRIPS = 20
"""Number of syncs and ways over a link that a commit may wait for, refused once or twice."""


def settled_ns(case: Case) -> int:
    """Return the time from which nothing may be late any more.

    It is 0 for a run without a fault, with fast links and disks, in which no topic was added,
    changed or deleted: a joining member sends several requests, and looks for topics and their
    queues every 30 s. Raises `NotApplicable` if the run reached no recovery phase.
    """
    evidence = case.evidence
    record, facts = evidence.record, evidence.record.facts
    if not record.recovery_ns:
        raise NotApplicable("the run had no recovery phase")
    is_quick = facts.get("link_ns", 0) + facts.get("disk_ns", 0) <= QUICK_NS
    is_still = not any(event.kind.startswith("topic_") for event in evidence.events(Function.NODE))
    is_still = is_still and not record.facts.get("late_topics")
    is_free = is_quick and is_still and not faults(evidence)
    return 0 if is_free else record.recovery_ns + HALF_OPEN_NS


def trips_ns(evidence: Evidence) -> int:
    """Return the time for which a commit, or a queue's handover, may wait for slow disks and
    links."""
    facts = evidence.record.facts
    return TRIPS * int(facts.get("disk_ns", 0) + facts.get("link_ns", 0))


@check("group-backlog", "positions at the end", final=True, needs_history=False)
def group_backlog(case: Case, findings: Findings) -> int:
    """At the end the last masters store each queue's end as the position of each group."""
    evidence = case.evidence
    groups, queues = evidence.record.consumer_groups, evidence.queues
    stored = {
        (node.name, queue, group): position
        for node, queue, group, position in stored_positions(evidence)
    }
    examined = 0
    for node in evidence.finals():
        for group in groups:
            for number, end in sorted(evidence.ends.items()):
                queue = queues.names[number]
                if queue.group != node.group or not end or evidence.deleted(queue.topic):
                    continue
                examined += 1
                position = stored.get((node.name, number, group))
                if position != end:
                    stands = "nothing" if position is None else position
                    findings.add(
                        f"{node.name} keeps {stands} for {group} of {queue.topic}/{queue.queue},"
                        f" which ends at {end}",
                        excuse=evidence.disks.may_differ(node, file="consumerOffset.json")
                        or case.loss_of_last_message(number),
                        node=node.name,
                        topic=queue.topic,
                        queue=queue.queue,
                        distance=abs(end - (position or 0)),
                    )
    if not groups:
        raise NotApplicable("no consumer group took part")
    return examined


@check("follower-skip", "messages at the end", final=True)
def follower_skip(case: Case, findings: Findings) -> int:
    """Each follower's last process got every message of the final log.

    Excused if it had passed a queue offset before the loss of the message there.
    """
    evidence, stored = case.evidence, case.evidence.stored
    got, pulls = evidence.rows((Function.GOT,)), evidence.rows((Function.PULL,))
    ends = stored.column("physicals") + stored.column("sizes")
    examined = 0
    for name, process in sorted(evidence.record.followers.items()):
        own = passes.matching(got.column("process"), (process,))
        examined += len(stored.values)
        missed = passes.missing(stored.values, passes.take(got.column("value"), own))
        pulled = _pulls_of(case, pulls, process) if missed else []
        for at in missed:
            queue, offset = int(stored.keys[at]) >> OFFSET_BITS, int(stored.keys[at]) & OFFSET_MASK
            value, place = int(stored.values[at]), evidence.queues.names[queue]
            passed = [
                time_ns
                for pulled_queue, next_offset, time_ns in pulled
                if pulled_queue == queue and next_offset > offset
            ]
            excuse = evidence.deleted(place.topic)
            if passed and excuse is None:
                # Only a loss there makes room for a message that it never asked for.
                end = int(ends[at])
                since = min([passed[0], *_send_times(case, got, own, queue, offset)])
                excuse = case.losses.loss_between(place.group, since, ENDLESS, below=end)
                excuse = excuse or case.losses.split_between(place.group, passed[0], passed[0])
            findings.add(
                f"{name} never got value {value} at offset {offset} of {place.topic}/{place.queue}",
                excuse=excuse,
                value=value,
                topic=place.topic,
                queue=place.queue,
                offset=offset,
            )
    if not evidence.record.followers:
        raise NotApplicable("nobody followed queues")
    return examined


@check("late-delivery", "deliveries in recovery")
def late_deliveries(case: Case, findings: Findings) -> int:
    """A message acknowledged late in the recovery phase reaches each reader soon.

    "Late" because a client that lost a machine silently waits until its request times out. The
    limit is less than 5 s, after which a held pull that is not woken ends. On real machines, which
    may be busy, it is a figure only. A rewound member first gets its old messages again, so the
    time counts from the last of them. A member that waits for its own commits takes nothing
    meanwhile; `requests-answered` judges how long.
    """
    evidence = case.evidence
    settled, sends = settled_ns(case), evidence.acknowledged
    sent = sends.at(passes.above(sends.column("invoked_ns"), settled))
    delays: list[int] = []
    for reader, rows in _readers(case):
        rewinds, repeats = _read_again(case, reader, rows)
        begin_ns = 0 if settled else _began_ns(case, reader)
        for at, came_ns, delay in _delays(sent, rows):
            if came_ns - delay < begin_ns:
                continue
            delays.append(delay)
            if delay > LATE_NS and evidence.record.backend == "sim":
                text = f"came to {reader} {delay / 1e9:.1f} s after it had been acknowledged"
                rewound_ns, last_again_ns = (_last(times, came_ns) for times in (rewinds, repeats))
                excuse = None
                if 0 <= rewound_ns <= last_again_ns and came_ns - last_again_ns <= LATE_NS:
                    excuse = evidence.excuse(
                        f"{reader} read again, having gone back", rewound_ns, last_again_ns
                    )
                elif delay - _commit_wait_ns(case, rows, came_ns, delay) <= LATE_NS:
                    cause = f"{reader} waited for its commits"
                    excuse = evidence.excuse(cause, came_ns - delay, came_ns)
                findings.add(example_of(evidence, sent.row(at), text, delay), excuse=excuse)
    if not delays:
        raise NotApplicable(f"nothing was delivered {HALF_OPEN_NS / 1e9:g} s after the faults")
    findings.figures = spread("delay", delays)
    findings.note = "p99 {delay_p99_ms} ms, at most {delay_max_ms} ms".format_map(findings.figures)
    return len(delays)


@check("delivery-delay", "deliveries under faults", severity=Severity.METRIC)
def delays_under_faults(case: Case, findings: Findings) -> int:
    """Time from the acknowledgement of a message, under faults or shortly after, to each
    reader. A metric."""
    evidence = case.evidence
    until_ns, sends = settled_ns(case), evidence.acknowledged
    limits = passes.column([until_ns] * len(sends))
    sent = sends.at(passes.below(sends.column("returned_ns"), limits))
    items = (item for _, rows in _readers(case) for item in _delays(sent, rows))
    # A reader may get a message before its sender gets the acknowledgement.
    delays = [max(delay, 0) for _, _, delay in items]
    if not delays:
        raise NotApplicable("nothing that was acknowledged under faults came to anybody")
    findings.figures = spread("delay", delays)
    findings.note = (
        "p50 {delay_p50_ms} ms, p99 {delay_p99_ms} ms, at most {delay_max_ms} ms".format_map(
            findings.figures
        )
    )
    return len(delays)


def _delays(sent: Rows, rows: Rows) -> Iterator[tuple[int, int, int]]:
    """Yield for each message sent that a reader received: its number among those sent, when it
    came, and how long after its acknowledgement, nanoseconds."""
    received = rows.column("value"), rows.column("returned_ns")
    times = passes.lookup(sent.column("value"), *received, UNKNOWN)
    acknowledged = sent.column("returned_ns")
    for at in passes.non_negative(times):
        yield int(at), int(times[at]), int(times[at]) - int(acknowledged[at])


def _readers(case: Case) -> Iterator[tuple[str, Rows]]:
    """Yield the messages that each group, and each follower's last process, received, by time."""
    evidence, record = case.evidence, case.evidence.record
    kinds = (
        (Function.DELIVER, "operation", record.consumer_groups),
        (Function.GOT, "process", record.followers),
    )
    for function, column, names in kinds:
        rows = evidence.rows((function,))
        for name, number in sorted(names.items()):
            yield name, rows.at(passes.matching(rows.column(column), (number,)))


def _read_again(case: Case, reader: str, rows: Rows) -> tuple[list[int], list[int]]:
    """Return when a group was rewound, and when it received messages again; empty for others."""
    group = case.evidence.record.consumer_groups.get(reader)
    if group is None:
        return [], []
    places = rewind_times(case.evidence).items()
    rewinds = sorted(
        time_ns for (number, _), times in places if number == group for time_ns in times
    )
    received, repeats = set[int](), list[int]()
    for value, time_ns in zip(rows.column("value"), rows.column("returned_ns"), strict=True):
        if int(value) in received:
            repeats.append(int(time_ns))
        received.add(int(value))
    return rewinds, repeats


def _commit_wait_ns(case: Case, rows: Rows, came_ns: int, delay: int) -> int:
    """Return the nanoseconds that the receiving process had spent waiting for its own commits
    before this delivery, for each at most as long as slow disks and links let it take."""
    receivers = {row.process for row in rows.each() if row.returned_ns == came_ns}
    usual_ns = trips_ns(case.evidence)
    waited, until_ns = 0, came_ns - delay
    for row in case.evidence.rows((Function.COMMIT_OFFSET,)).each():
        if row.process in receivers and until_ns < row.returned_ns <= came_ns:
            waited += min(row.returned_ns - max(row.invoked_ns, until_ns), usual_ns)
            until_ns = row.returned_ns
    return waited


def _began_ns(case: Case, reader: str) -> int:
    """Return when a follower's last process sent its first pull; 0 for a group."""
    process = case.evidence.record.followers.get(reader)
    if process is None:
        return 0
    pulls = case.evidence.rows((Function.PULL,))
    own = pulls.at(passes.matching(pulls.column("process"), (process,)))
    return min(map(int, own.column("returned_ns")), default=0)


def _last(times: list[int], time_ns: int) -> int:
    """Return the last of ascending times up to a time; -1 if all are later."""
    at = bisect_right(times, time_ns)
    return times[at - 1] if at else -1


def _send_times(
    case: Case, got: Rows, own: Iterable[int], queue: int, offset: int
) -> Iterator[int]:
    """Yield when the messages that a process got at a place were sent.

    An answer may come long after the loss of what it holds.
    """
    queues, sent = case.evidence.queue_numbers(got), case.losses.attempts
    for number in own:
        row = got.row(int(number))
        if int(queues[number]) == queue and row.queue_offset == offset:
            attempts = (sent[at] for at in passes.included(sent.values, passes.column([row.value])))
            yield from (attempt.invoked_ns for attempt in attempts)


def _pulls_of(case: Case, pulls: Rows, process: int) -> list[tuple[int, int, int]]:
    """Return queue number, next offset and time of each pull of a process."""
    queues = case.evidence.queue_numbers(pulls)
    own = passes.matching(pulls.column("process"), (process,))
    columns = (queues, pulls.column("physical_offset"), pulls.column("returned_ns"))
    return list(zip(*(map(int, passes.take(column, own)) for column in columns), strict=True))
