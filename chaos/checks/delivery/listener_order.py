"""Calls of ordered listeners: one at a time, in order."""

from collections import defaultdict

from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.context import HALF_OPEN_NS, faults, planned_changes
from rocketbed.chaos.checks.delivery.backlog import LATE_NS, trips_ns
from rocketbed.chaos.checks.delivery.listeners import Records, delay_ns
from rocketbed.chaos.checks.events import as_master
from rocketbed.chaos.checks.evidence import Evidence
from rocketbed.chaos.checks.examples import spread
from rocketbed.chaos.checks.result import Excuse
from rocketbed.chaos.evidence.history import Event, Function, Outcome, Row
from rocketbed.inspect.properties import delay_levels

LOCK_NS = 35_000_000_000, 125_000_000_000
"""Earliest and latest time after a fault at which the lock of an unreachable owner may end.

A lock ends a minute after its last renewal, which was at most 20 s before. The latest time applies
if the fault is over by then.
"""
RENEWED_NS = 25_000_000_000
"""An owner renews every 20 s, and then learns that it lost the lock."""
FREE_NS = 60_000_000_000 + HALF_OPEN_NS
"""Time after a fault by which every lock that could not be given back has ended."""
HANDOVER_NS = LATE_NS + 4_000_000_000
"""A leaving member gives its locks back when all that it has in hand is done, also of its other
queues."""
QUEUES_EACH = 8
"""With more queues a member is late on its own: refused messages hold its workers while they
wait."""
SEPARATING = frozenset({"pause", "partition", "isolate", "link", "swizzle", "cpu"})
"""Faults in which an owner may be unreachable that long, or not learn that it lost the lock."""


@check("listener-order", "calls in order")
def calls_in_order(case: Case, findings: Findings) -> int:
    """An ordered group is not called for a message for the first time after a later message of
    its queue.

    Nor does one of its members, after it started again at the group's position, skip a message.
    Excused if the queue had lost its end, or a second master had another one.
    """
    evidence, records = case.evidence, Records(case)
    calls = _calls(evidence)
    last: dict[tuple[int, ...], Row] = {}
    called_offsets: dict[tuple[int, ...], set[int]] = defaultdict(set)
    latest: dict[tuple[int, ...], Row] = {}
    went_back: dict[tuple[int, ...], bool] = {}  # True if the latest call went back
    for call in calls:
        queue = call.operation, call.node, call.topic, call.queue
        high, previous = last.get(queue, call), latest.get(queue, call)
        is_out_of_order = (
            call.queue_offset < high.queue_offset and call.queue_offset not in called_offsets[queue]
        )
        is_on = call.process == previous.process and call.queue_offset > previous.queue_offset
        following = previous.queue_offset + 1
        is_skipped = is_on and went_back.get(queue, False) and following in called_offsets[queue]
        if is_out_of_order or (is_skipped and call.queue_offset != following):
            earlier = high if is_out_of_order else previous
            excuse = records.lost(earlier, call.invoked_ns) or records.split(
                earlier, call.invoked_ns
            )
            findings.add(
                f"group {call.operation} was called for {evidence.place(call)} after offset"
                f" {earlier.queue_offset}",
                excuse=excuse,
                value=call.value,
                time_ns=call.invoked_ns,
                offset=call.queue_offset,
            )
        if call.queue_offset >= high.queue_offset or (is_out_of_order and excuse):
            last[queue] = call
        if call.process != previous.process or call.queue_offset != previous.queue_offset:
            is_back = call.queue_offset < previous.queue_offset
            went_back[queue] = is_back and call.process == previous.process
        called_offsets[queue].add(call.queue_offset)
        latest[queue] = call
    if not calls:
        raise NotApplicable("nobody listened in order")
    return len(calls)


@check("double-queue-owner", "calls in order")
def two_at_once(case: Case, findings: Findings) -> int:
    """No two messages of a queue with ordered listeners are in hand at once.

    Two members may overlap if the lock had ended by a rule: its owner was away, or its broker
    started again. A planned change of the leader is no excuse: the next leader knows the locks.
    """
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
                findings.add(
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


@check("late-ordered-call", "calls in order")
def late_in_order(case: Case, findings: Findings) -> int:
    """An ordered group is called for a new message soon after that is due, and soon after the
    previous call in the queue.

    A leaving member gives its lock back. Judged only where no fault can have left a stale lock. On
    real machines it is a figure only.
    """
    evidence = case.evidence
    levels = delay_levels(evidence.record.delay_levels)
    calls, fault_spans = _calls(evidence), faults(evidence)
    due_times = {
        send.value: send.returned_ns + delay_ns(levels, send.operation)
        for send in evidence.rows((Function.TELL,), Outcome.OK).each()
    }
    queues = len({(call.operation, call.node, call.queue) for call in calls})
    limit_ns = HANDOVER_NS * max(1, queues // QUEUES_EACH) + trips_ns(evidence)
    ended: dict[tuple[int, ...], int] = {}
    finished: set[tuple[int, int]] = set()
    delays: list[int] = []
    for call in calls:
        queue, key = (call.operation, call.node, call.queue), (call.operation, call.value)
        since_ns = max(ended.get(queue, 0), due_times.get(call.value, call.invoked_ns))
        is_free = all(
            fault.end_ns + FREE_NS < since_ns or fault.begin_ns > call.invoked_ns
            for fault in fault_spans
        )
        if key not in finished and is_free and call.value in due_times:
            delays.append(max(call.invoked_ns - since_ns, 0))
            if delays[-1] > limit_ns and evidence.record.backend == "sim":
                findings.add(
                    f"{evidence.place(call)} came to group {call.operation}"
                    f" {delays[-1] / 1e9:.1f} s after it was due, and nothing before it was in"
                    " hand",
                    value=call.value,
                    time_ns=call.invoked_ns,
                    distance=delays[-1],
                )
        ended[queue] = max(ended.get(queue, 0), call.returned_ns)
        if call.outcome == Outcome.OK or call.attempt + 1 >= evidence.record.listener_tries:
            finished.add(key)
    if not delays:
        raise NotApplicable("nothing came in order long enough after the faults")
    findings.figures = spread("late", delays)
    findings.note = "p99 {late_p99_ms} ms, at most {late_max_ms} ms".format_map(findings.figures)
    return len(delays)


def _calls(evidence: Evidence) -> list[Row]:
    """Return the calls of all ordered groups, by begin."""
    ordered = evidence.record.ordered_listeners
    calls = (row for row in evidence.rows((Function.HEAR,)).each() if row.operation in ordered)
    return sorted(calls, key=lambda row: row.invoked_ns)


def _begins_without_locks(event: Event, leads: set[str]) -> bool:
    """True if a node becomes master with this event. `leads` holds the elected leaders and is
    updated."""
    if event.kind == "promote" and leads:  # a manual promotion comes with a start
        leads.discard(str(event.fields.get("former")))
        leads.add(event.node)
        return True
    return event.kind == "start" and (as_master(event) or event.node in leads)


def _unlocked(case: Case, call: Row, planned: list[Event]) -> Excuse | None:
    """Return why a lock may have gone to another member: its broker keeps it in memory, and not for
    ever."""
    evidence, called_ns = case.evidence, call.invoked_ns
    groups_with_master: set[int] = set()
    leads = {nodes[0] for nodes in evidence.record.groups.values()} if evidence.elects else set()
    for event in evidence.events(Function.NODE):
        if _begins_without_locks(event, leads):
            group, since_ns = evidence.group_of_name(event.node), event.time_ns
            is_first = group not in groups_with_master  # no member had a lock before
            groups_with_master.add(group)
            if not is_first and event not in planned and 0 <= called_ns - since_ns <= RENEWED_NS:
                cause = f"{event.node} began without locks"
                return evidence.excuse(cause, since_ns, since_ns + RENEWED_NS)
    for fault in faults(evidence):
        begin_ns = fault.begin_ns + LOCK_NS[0]
        end_ns = max(fault.begin_ns + LOCK_NS[1], fault.end_ns + RENEWED_NS)
        if fault.verb in SEPARATING and begin_ns <= called_ns <= end_ns:
            return evidence.excuse(f"somebody was not heard: {fault.step}", begin_ns, end_ns)
    return None
