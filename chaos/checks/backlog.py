"""Who read to the end: every group and every follower had to, once nothing was broken any more.

The run waits for it and says who did not come there (L8); here it is seen in what was written down.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from rocketbed.chaos.checks import passes
from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.context import HALF_OPEN_NS, faults
from rocketbed.chaos.checks.ends import ENDLESS
from rocketbed.chaos.checks.evidence import Evidence, Rows
from rocketbed.chaos.checks.keys import OFFSET_BITS, OFFSET_MASK
from rocketbed.chaos.checks.positions import rewind_times, stored_positions
from rocketbed.chaos.checks.reads import example_of, spread
from rocketbed.chaos.checks.result import Severity
from rocketbed.chaos.evidence.history import UNKNOWN, Function

LATE_NS = 4_000_000_000
"""From the acknowledgement to a reader, without faults: less than a pull is held."""
QUICK_NS = 10_000_000
"""A sync of a disk and a way over a link, together."""
TRIPS = 20
"""Of syncs and ways over a link, for which a commit may wait, refused once or twice."""


def settled_ns(case: Case) -> int:
    """From when on nothing may be late any more; from the beginning in a run without a fault, with
    quick links and disks, in which no topic came, changed or went: who joins asks more than once,
    and looks for topics and their queues every 30 s. Raises `NotApplicable` where it came to no
    calm phase."""
    evidence = case.evidence
    record, facts = evidence.record, evidence.record.facts
    if not record.calm_ns:
        raise NotApplicable("the run had no calm phase")
    is_quick = facts.get("link_ns", 0) + facts.get("disk_ns", 0) <= QUICK_NS
    is_still = not any(one.what.startswith("topic_") for one in evidence.events(Function.NODE))
    is_still = is_still and not record.facts.get("late_topics")
    is_free = is_quick and is_still and not faults(evidence)
    return 0 if is_free else record.calm_ns + HALF_OPEN_NS


def trips_ns(evidence: Evidence) -> int:
    """How long a commit, or a queue that is handed over, may wait for slow disks and links."""
    facts = evidence.record.facts
    return TRIPS * int(facts.get("disk_ns", 0) + facts.get("link_ns", 0))


@check("A30 group backlog", "positions at the end", final=True, needs_history=False)
def group_backlog(case: Case, found: Findings) -> int:
    """A30: at the end the last masters keep each queue's end as the position of each group."""
    evidence = case.evidence
    groups, queues = evidence.record.consumer_groups, evidence.queues
    kept = {
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
                at = kept.get((node.name, number, group))
                if at != end:
                    stands = "nothing" if at is None else at
                    found.add(
                        f"{node.name} keeps {stands} for {group} of {queue.topic}/{queue.queue},"
                        f" which ends at {end}",
                        excuse=evidence.disks.may_differ(node, file="consumerOffset.json")
                        or case.loss_of_last_message(number),
                        node=node.name,
                        topic=queue.topic,
                        queue=queue.queue,
                        distance=abs(end - (at or 0)),
                    )
    if not groups:
        raise NotApplicable("no consumer group took part")
    return examined


@check("A31 follower skip", "messages at the end", final=True)
def follower_skip(case: Case, found: Findings) -> int:
    """A31: each follower's last process got every message of the final log.

    Not where it had passed a queue offset before what stood there was lost.
    """
    evidence, stored = case.evidence, case.evidence.stored
    got, pulls = evidence.rows((Function.GOT,)), evidence.rows((Function.PULL,))
    ends = stored.column("physicals") + stored.column("sizes")
    examined = 0
    for name, process in sorted(evidence.record.followers.items()):
        own = passes.where(got.column("process"), (process,))
        examined += len(stored.values)
        missed = passes.missing(stored.values, passes.take(got.column("value"), own))
        told = _told(case, pulls, process) if missed else []
        for at in missed:
            queue, offset = int(stored.keys[at]) >> OFFSET_BITS, int(stored.keys[at]) & OFFSET_MASK
            value, place = int(stored.values[at]), evidence.queues.names[queue]
            passed = [time_ns for where, to, time_ns in told if where == queue and to > offset]
            excuse = evidence.deleted(place.topic)
            if passed and excuse is None:
                # Only what was lost there makes room for what it never asked for.
                end = int(ends[at])
                since = min([passed[0], *_sent(case, got, own, queue, offset)])
                excuse = case.losses.loss_between(place.group, since, ENDLESS, below=end)
                excuse = excuse or case.losses.split_between(place.group, passed[0], passed[0])
            found.add(
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


@check("A32 late delivery", "deliveries in calm")
def late_deliveries(case: Case, found: Findings) -> int:
    """A32: what was acknowledged late in the calm phase came to each reader soon.

    Late: a client that lost a machine without a word waits for its answer until it times out. A
    pull that is held and not woken ends after 5 s, so the limit is below that. Where time is a
    machine's, which may be busy, it is a figure only. A member that has gone back is given what it
    had before, and new ones only then (seed 851118): its time counts from the last of those. One
    that waits for its own commits takes nothing meanwhile (seed 1300031); how long, L10 says.
    """
    evidence = case.evidence
    settled, sends = settled_ns(case), evidence.acknowledged
    sent = sends.at(passes.above(sends.column("invoked_ns"), settled))
    delays: list[int] = []
    for who, rows in _readers(case):
        back, again = _read_again(case, who, rows)
        begin_ns = 0 if settled else _began_ns(case, who)
        for at, came_ns, delay in _delays(sent, rows):
            if came_ns - delay < begin_ns:
                continue
            delays.append(delay)
            if delay > LATE_NS and evidence.record.backend == "sim":
                text = f"came to {who} {delay / 1e9:.1f} s after it had been acknowledged"
                went, last = (_last(one, came_ns) for one in (back, again))
                excuse = None
                if 0 <= went <= last and came_ns - last <= LATE_NS:
                    excuse = evidence.excuse(f"{who} read again, having gone back", went, last)
                elif delay - _committing(case, rows, came_ns, delay) <= LATE_NS:
                    cause = f"{who} waited for its commits"
                    excuse = evidence.excuse(cause, came_ns - delay, came_ns)
                found.add(example_of(evidence, sent.row(at), text, delay), excuse=excuse)
    if not delays:
        raise NotApplicable(f"nothing was delivered {HALF_OPEN_NS / 1e9:g} s after the faults")
    found.figures = spread("delay", delays)
    found.note = "p99 {delay_p99_ms} ms, at most {delay_max_ms} ms".format_map(found.figures)
    return len(delays)


@check("A32d delivery delay", "deliveries under faults", severity=Severity.METRIC)
def delays_under_faults(case: Case, found: Findings) -> int:
    """A32d: how long what was acknowledged while faults went on, or shortly after, took from there
    to each reader; a figure."""
    evidence = case.evidence
    until_ns, sends = settled_ns(case), evidence.acknowledged
    limits = passes.column([until_ns] * len(sends))
    sent = sends.at(passes.below(sends.column("returned_ns"), limits))
    every = (one for _, rows in _readers(case) for one in _delays(sent, rows))
    delays = [max(delay, 0) for _, _, delay in every]  # readers may be told sooner than senders
    if not delays:
        raise NotApplicable("nothing that was acknowledged under faults came to anybody")
    found.figures = spread("delay", delays)
    found.note = (
        "p50 {delay_p50_ms} ms, p99 {delay_p99_ms} ms, at most {delay_max_ms} ms".format_map(
            found.figures
        )
    )
    return len(delays)


def _delays(sent: Rows, rows: Rows) -> Iterator[tuple[int, int, int]]:
    """Of each message sent that a reader was handed: its number among those sent, when it came and
    how long after its acknowledgement, nanoseconds."""
    seen = rows.column("value"), rows.column("returned_ns")
    times = passes.lookup(sent.column("value"), *seen, UNKNOWN)
    acknowledged = sent.column("returned_ns")
    for at in passes.non_negative(times):
        yield int(at), int(times[at]), int(times[at]) - int(acknowledged[at])


def _readers(case: Case) -> Iterator[tuple[str, Rows]]:
    """What each group, and each follower's last process, was handed, in order of time."""
    evidence, record = case.evidence, case.evidence.record
    parts = (
        (Function.DELIVER, "operation", record.consumer_groups),
        (Function.GOT, "process", record.followers),
    )
    for function, column, names in parts:
        rows = evidence.rows((function,))
        for name, number in sorted(names.items()):
            yield name, rows.at(passes.where(rows.column(column), (number,)))


def _read_again(case: Case, who: str, rows: Rows) -> tuple[list[int], list[int]]:
    """When a group went back, and when it was handed what it had had before; nothing of others."""
    group = case.evidence.record.consumer_groups.get(who)
    if group is None:
        return [], []
    places = rewind_times(case.evidence).items()
    back = sorted(time_ns for (number, _), times in places if number == group for time_ns in times)
    known, again = set[int](), list[int]()
    for value, time_ns in zip(rows.column("value"), rows.column("returned_ns"), strict=True):
        if int(value) in known:
            again.append(int(time_ns))
        known.add(int(value))
    return back, again


def _committing(case: Case, rows: Rows, came_ns: int, delay: int) -> int:
    """How long who was handed something waited for its commits in the time before that, ns; of
    each as long as slow disks and links let it take."""
    takers = {row.process for row in rows.each() if row.returned_ns == came_ns}
    usual_ns = trips_ns(case.evidence)
    waited, until_ns = 0, came_ns - delay
    for row in case.evidence.rows((Function.COMMIT_OFFSET,)).each():
        if row.process in takers and until_ns < row.returned_ns <= came_ns:
            waited += min(row.returned_ns - max(row.invoked_ns, until_ns), usual_ns)
            until_ns = row.returned_ns
    return waited


def _began_ns(case: Case, who: str) -> int:
    """When a follower's last process, whose rows are looked at, asked first; 0 for a group."""
    process = case.evidence.record.followers.get(who)
    if process is None:
        return 0
    pulls = case.evidence.rows((Function.PULL,))
    own = pulls.at(passes.where(pulls.column("process"), (process,)))
    return min(map(int, own.column("returned_ns")), default=0)


def _last(times: list[int], time_ns: int) -> int:
    """The last of rising times up to one; -1 for none."""
    at = bisect_right(times, time_ns)
    return times[at - 1] if at else -1


def _sent(case: Case, got: Rows, own: Iterable[int], queue: int, offset: int) -> Iterator[int]:
    """When that was sent which a process got at a place: an answer may come long after what it
    holds was lost (seed 869043)."""
    queues, sent = case.evidence.queue_numbers(got), case.losses.attempts
    for number in own:
        row = got.row(int(number))
        if int(queues[number]) == queue and row.queue_offset == offset:
            attempts = (sent[at] for at in passes.included(sent.values, passes.column([row.value])))
            yield from (one.invoked_ns for one in attempts)


def _told(case: Case, pulls: Rows, process: int) -> list[tuple[int, int, int]]:
    """Queue number, offset to go on at and time of each pull of a process."""
    queues = case.evidence.queue_numbers(pulls)
    own = passes.where(pulls.column("process"), (process,))
    columns = (queues, pulls.column("physical_offset"), pulls.column("returned_ns"))
    return list(zip(*(map(int, passes.take(column, own)) for column in columns), strict=True))
