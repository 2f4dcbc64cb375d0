"""What listeners in order were called for: one at a time, one after the other."""

from collections import defaultdict

from rocketbed.chaos.checks.backlog import LATE_NS, trips_ns
from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.context import HALF_OPEN_NS, faults, planned_changes
from rocketbed.chaos.checks.events import as_master
from rocketbed.chaos.checks.evidence import Evidence
from rocketbed.chaos.checks.listening import Records, delay_ns
from rocketbed.chaos.checks.reads import spread
from rocketbed.chaos.checks.result import Excuse
from rocketbed.chaos.evidence.history import Event, Function, Outcome, Row
from rocketbed.inspect.properties import delay_levels

LOCK_NS = 35_000_000_000, 125_000_000_000
"""When a lock may end of somebody who is not heard any more: a minute after it was asked for last,
which is 20 s before at the most; and until when that may matter, if the fault is over by then."""
RENEWED_NS = 25_000_000_000
"""An owner asks again every 20 s, and then learns that it is none any more."""
FREE_NS = 60_000_000_000 + HALF_OPEN_NS
"""So long after a fault nobody has a lock any more that could not be given back then."""
GIVEN_BACK_NS = LATE_NS + 4_000_000_000
"""Who leaves does so when all that it has in hand is done, of its other queues too."""
QUEUES_EACH = 8
"""With more a member is late by itself: refused messages hold its workers while they wait."""
AWAY = frozenset({"pause", "partition", "isolate", "link", "swizzle", "cpu"})
"""Faults in which an owner may not be heard for so long, or not hear that it is none any more."""


@check("A43 order of calls", "calls in order")
def calls_in_order(case: Case, found: Findings) -> int:
    """A43: a group that listens in order is not called for a message for the first time after one
    that stands behind it, nor one of its members, once it has begun again where the group's
    position is, with a message left out. Not where the queue had lost its end, or a second master
    had another."""
    evidence, records = case.evidence, Records(case)
    calls = _calls(evidence)
    last: dict[tuple[int, ...], Row] = {}
    seen: dict[tuple[int, ...], set[int]] = defaultdict(set)
    latest: dict[tuple[int, ...], Row] = {}
    again: dict[tuple[int, ...], bool] = {}  # whether the latest call went back
    for call in calls:
        queue = call.operation, call.node, call.topic, call.queue
        high, before = last.get(queue, call), latest.get(queue, call)
        is_behind = call.queue_offset < high.queue_offset and call.queue_offset not in seen[queue]
        is_on = call.process == before.process and call.queue_offset > before.queue_offset
        following = before.queue_offset + 1
        is_left_out = is_on and again.get(queue, False) and following in seen[queue]
        if is_behind or (is_left_out and call.queue_offset != following):
            one = high if is_behind else before
            excuse = records.lost(one, call.invoked_ns) or records.split(one, call.invoked_ns)
            found.add(
                f"group {call.operation} was called for {evidence.place(call)} after offset"
                f" {one.queue_offset}",
                excuse=excuse,
                value=call.value,
                time_ns=call.invoked_ns,
                offset=call.queue_offset,
            )
        if call.queue_offset >= high.queue_offset or (is_behind and excuse):
            last[queue] = call
        if call.process != before.process or call.queue_offset != before.queue_offset:
            is_back = call.queue_offset < before.queue_offset
            again[queue] = is_back and call.process == before.process
        seen[queue].add(call.queue_offset)
        latest[queue] = call
    if not calls:
        raise NotApplicable("nobody listened in order")
    return len(calls)


@check("A29 double owner", "calls in order")
def two_at_once(case: Case, found: Findings) -> int:
    """A29: of a queue that is listened to in order no two messages are in hand at once. Those of
    two members may be where the lock had come to its end by a rule: its owner was away, or its
    broker began anew. A planned change of the leader is none: the next one knows the locks."""
    planned = planned_changes(case.evidence)
    queues: dict[tuple[int, int, int, int], list[Row]] = defaultdict(list)
    examined = 0
    for call in _calls(case.evidence):
        if call.returned_ns >= 0:
            queues[call.operation, call.node, call.topic, call.queue].append(call)
            examined += 1
    for calls in queues.values():
        latest: Row | None = None
        for call in calls:
            if latest is not None and call.invoked_ns < latest.returned_ns:
                is_other = call.process != latest.process
                found.add(
                    f"{case.evidence.place(call)} was handled by process {call.process} while"
                    f" {latest.process} had offset {latest.queue_offset} in hand",
                    excuse=_unlocked(case, call, planned) if is_other else None,
                    value=call.value,
                    time_ns=call.invoked_ns,
                )
            if latest is None or call.returned_ns > latest.returned_ns:
                latest = call
    if not examined:
        raise NotApplicable("nobody listened in order")
    return examined


@check("A45 late in order", "calls in order")
def late_in_order(case: Case, found: Findings) -> int:
    """A45: a group that listens in order is called for what it has not had yet soon after that is
    due, and after the call before it in the queue: whoever leaves gives the lock back. Looked at
    where no fault has been for so long that nobody may have kept a lock. Where time is a machine's
    it is a figure only."""
    evidence = case.evidence
    levels = delay_levels(evidence.record.delay_levels)
    calls, struck = _calls(evidence), faults(evidence)
    due_ns = {
        told.value: told.returned_ns + delay_ns(levels, told.operation)
        for told in evidence.rows((Function.TELL,), Outcome.OK).each()
    }
    queues = len({(call.operation, call.node, call.queue) for call in calls})
    limit_ns = GIVEN_BACK_NS * max(1, queues // QUEUES_EACH) + trips_ns(evidence)
    ended: dict[tuple[int, ...], int] = {}
    done: set[tuple[int, int]] = set()
    late: list[int] = []
    for call in calls:
        queue, key = (call.operation, call.node, call.queue), (call.operation, call.value)
        since_ns = max(ended.get(queue, 0), due_ns.get(call.value, call.invoked_ns))
        is_calm = all(
            one.end_ns + FREE_NS < since_ns or one.begin_ns > call.invoked_ns for one in struck
        )
        if key not in done and is_calm and call.value in due_ns:
            late.append(max(call.invoked_ns - since_ns, 0))
            if late[-1] > limit_ns and evidence.record.backend == "sim":
                found.add(
                    f"{evidence.place(call)} came to group {call.operation} {late[-1] / 1e9:.1f} s"
                    " after it was due, and nothing before it was in hand",
                    value=call.value,
                    time_ns=call.invoked_ns,
                    distance=late[-1],
                )
        ended[queue] = max(ended.get(queue, 0), call.returned_ns)
        if call.outcome == Outcome.OK or call.attempt + 1 >= evidence.record.listener_tries:
            done.add(key)
    if not late:
        raise NotApplicable("nothing came in order long enough after the faults")
    found.figures = spread("late", late)
    found.note = "p99 {late_p99_ms} ms, at most {late_max_ms} ms".format_map(found.figures)
    return len(late)


def _calls(evidence: Evidence) -> list[Row]:
    """Of all groups that listen in order, as they began."""
    ordered = evidence.record.ordered_listeners
    calls = (row for row in evidence.rows((Function.HEAR,)).each() if row.operation in ordered)
    return sorted(calls, key=lambda row: row.invoked_ns)


def _begins_without_locks(event: Event, leads: set[str]) -> bool:
    """Whether a node becomes master with this event; `leads`, of who was elected, is kept."""
    if event.what == "promote" and leads:  # by hand a start comes with it
        leads.discard(str(event.fields.get("former")))
        leads.add(event.node)
        return True
    return event.what == "start" and (as_master(event) or event.node in leads)


def _unlocked(case: Case, call: Row, planned: list[Event]) -> Excuse | None:
    """Why a lock may have gone to another: its broker keeps it in memory, and not for ever."""
    evidence, called_ns = case.evidence, call.invoked_ns
    begun: set[int] = set()
    leads = {nodes[0] for nodes in evidence.record.groups.values()} if evidence.elects else set()
    for event in evidence.events(Function.NODE):
        if _begins_without_locks(event, leads):
            group, since_ns = evidence.group_of_name(event.node), event.time_ns
            is_first = group not in begun  # nobody had a lock before
            begun.add(group)
            if not is_first and event not in planned and 0 <= called_ns - since_ns <= RENEWED_NS:
                cause = f"{event.node} began without locks"
                return evidence.excuse(cause, since_ns, since_ns + RENEWED_NS)
    for fault in faults(evidence):
        begin_ns = fault.begin_ns + LOCK_NS[0]
        end_ns = max(fault.begin_ns + LOCK_NS[1], fault.end_ns + RENEWED_NS)
        if fault.verb in AWAY and begin_ns <= called_ns <= end_ns:
            return evidence.excuse(f"somebody was not heard: {fault.step}", begin_ns, end_ns)
    return None
