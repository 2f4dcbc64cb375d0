"""Calls of listener functions: not too early, eventually, as often as needed, and one at a time
where a group is ordered.

Listeners have a topic of their own; its sends and calls are rows of kinds of their own.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.context import HALF_OPEN_NS
from rocketbed.chaos.checks.delivery.backlog import LATE_NS, settled_ns
from rocketbed.chaos.checks.ends import ENDLESS
from rocketbed.chaos.checks.events import step_of, targets_of
from rocketbed.chaos.checks.examples import spread
from rocketbed.chaos.checks.result import Excuse
from rocketbed.chaos.evidence.history import Function, Outcome, Row
from rocketbed.inspect.properties import delay_levels

NOBODY = "nobody listened"
MS = 1_000_000
TICK_NS = 2 * MS
"""Record times are whole milliseconds of a wall clock."""
USUAL_NS = 1_000_000_000
"""Half of the calls are no later than this; a call that waited for the wrong level is."""
TRIPS = 3
"""Additional round trips on a slow network."""
MANY_CALLS = 5
"""Least number of calls for a median."""
FIRST_LEVEL = 3
"""Delay level of the first redelivery (wire.md 4.9)."""


class ListenerMessage(NamedTuple):
    """A message with its calls and dead letters in one group."""

    group: int
    send: Row
    calls: list[Row]
    dead_letters: list[Row]

    @property
    def name(self) -> str:
        return f"value {self.send.value}"


class Records:
    """Losses that may have taken the records that functions were called for, since they were sent.

    A member of an ordered group may be called long after it got a record.
    """

    def __init__(self, case: Case) -> None:
        self._losses, self._evidence = case.losses, case.evidence
        sends = case.evidence.rows((Function.TELL,)).each()
        self._sent_ns = {row.value: row.invoked_ns for row in sends}

    def _since_ns(self, call: Row) -> int:
        return self._sent_ns.get(call.value, call.invoked_ns)

    def lost(self, call: Row, until_ns: int) -> Excuse | None:
        """Return a loss of the record until `until_ns`."""
        group, log_end = self._evidence.group_of(call.node), call.physical_offset + 1
        return self._losses.loss_between(group, self._since_ns(call), until_ns, below=log_end)

    def split(self, call: Row, until_ns: int, send: Row | None = None) -> Excuse | None:
        """Return a second master until `until_ns` that may have had the record, or what `send`
        sent."""
        since_ns = self._since_ns(call)
        if send is not None:
            since_ns = min(send.invoked_ns, since_ns)
        return self._losses.split_between(self._evidence.group_of(call.node), since_ns, until_ns)


@check("early-delayed-call", "calls")
def early_calls(case: Case, findings: Findings) -> int:
    """No function is called before the delay of its message, or of its redelivery, is over."""
    levels = delay_levels(case.evidence.record.delay_levels)
    examined = 0
    for message in listener_messages(case):
        for call in message.calls:
            since_ns, level = message.send.invoked_ns, message.send.operation
            if call.invoked_ns < since_ns:  # No clock excuses that.
                examined += 1
                seconds = (since_ns - call.invoked_ns) / 1e9
                findings.add(
                    f"{message.name} came {seconds:.3f} s before it was sent",
                    value=call.value,
                    time_ns=call.invoked_ns,
                )
                continue
            if call.attempt:
                if message.group in case.evidence.record.ordered_listeners:
                    continue  # An ordered group retries in place, without a delay.
                earlier = [row for row in message.calls if row.attempt == call.attempt - 1]
                ended = [row.returned_ns for row in earlier if row.returned_ns >= 0]
                if not ended:
                    continue  # `retries-and-dead-letters` reports that.
                since_ns, level = min(ended), FIRST_LEVEL + call.attempt - 1
            if level not in levels:
                continue
            examined += 1
            early_ns = since_ns + levels[level] * MS - TICK_NS - call.invoked_ns
            if early_ns > 0:
                findings.add(
                    f"{message.name} came {early_ns / 1e9:.3f} s before its"
                    f" {levels[level] / 1000:g} s were over, at its call number {call.attempt + 1}",
                    excuse=_clock(case, call.invoked_ns),
                    value=call.value,
                    time_ns=call.invoked_ns,
                    distance=early_ns,
                )
    if not examined:
        raise NotApplicable("no call had to wait")
    return examined


@check("late-delayed-call", "first calls in recovery")
def late_calls(case: Case, findings: Findings) -> int:
    """A message that is due late in the recovery phase reaches its function soon, and again
    soon after the delay of a refusal.

    Ordered groups are left out, as their messages wait for each other. On real machines it is a
    figure only.
    """
    evidence = case.evidence
    levels, settled = delay_levels(evidence.record.delay_levels), settled_ns(case)
    delays: list[int] = []
    by_attempt: dict[int, list[int]] = defaultdict(list)
    for message in listener_messages(case):
        if message.send.outcome != Outcome.OK or message.group in evidence.record.ordered_listeners:
            continue
        for attempt, since_ns, first_ns in _waits(message):
            level = FIRST_LEVEL + attempt - 1 if attempt else message.send.operation
            if since_ns <= settled:
                continue
            delays.append(max(first_ns - since_ns - delay_ns(levels, level), 0))
            if not (excuse := _clock(case, first_ns)):
                by_attempt[attempt].append(delays[-1])
            if delays[-1] > LATE_NS and evidence.record.backend == "sim":
                suffix = f" for the {attempt + 1}th time" if attempt else ""
                findings.add(
                    f"{message.name} came{suffix} {delays[-1] / 1e9:.1f} s after it was due",
                    excuse=excuse,
                    value=message.send.value,
                    time_ns=first_ns,
                    distance=delays[-1],
                )
    for attempt, times in sorted(by_attempt.items()):
        middle_ns = sorted(times)[len(times) // 2]
        usual_ns = USUAL_NS + TRIPS * evidence.record.facts.get("link_ns", 0)
        is_slow = len(times) >= MANY_CALLS and middle_ns > usual_ns
        if is_slow and evidence.record.backend == "sim":
            findings.add(
                f"half of {len(times)} messages came for the {attempt + 1}th time more than"
                f" {middle_ns / 1e9:.1f} s after they were due",
                distance=middle_ns,
            )
    if not delays:
        raise NotApplicable(f"nothing was due {HALF_OPEN_NS / 1e9:g} s after the faults")
    findings.figures = spread("late", delays)
    findings.note = "p99 {late_p99_ms} ms, at most {late_max_ms} ms".format_map(findings.figures)
    return len(delays)


def delay_ns(levels: Mapping[int, int], level: int) -> int:
    """Return the delay of a level; a level beyond the last has the last one's delay (wire.md
    4.9)."""
    return levels.get(min(level, max(levels, default=0)), 0) * MS


def _waits(message: ListenerMessage) -> Iterator[tuple[int, int, int]]:
    """Yield for the first call of each attempt its number, the time since which it was waited for,
    and its own time.

    Left out if no refusal of the previous attempt had returned before the call.
    """
    firsts: dict[int, int] = {}
    for call in message.calls:
        firsts[call.attempt] = min(call.invoked_ns, firsts.get(call.attempt, call.invoked_ns))
    for attempt, first_ns in sorted(firsts.items()):
        refused = [
            call.returned_ns
            for call in message.calls
            if call.attempt == attempt - 1
            and call.outcome == Outcome.FAIL
            and call.returned_ns <= first_ns
        ]
        if not attempt:
            yield attempt, message.send.returned_ns, first_ns
        elif refused:
            yield attempt, max(refused), first_ns


@check("delayed-duplicate", "delayed messages that were heard")
def delayed_twice(case: Case, findings: Findings) -> int:
    """A delayed message is stored in its topic once.

    Excused if the first one was lost, or a second master delivered it too.
    """
    examined = 0
    case.require_index()  # else a master relies on a table that it rarely writes
    places: dict[int, dict[tuple[int, int, int], Row]] = defaultdict(dict)
    for message in listener_messages(case):
        if message.send.operation:
            for call in message.calls:
                if not call.attempt:
                    place = call.node, call.queue, call.queue_offset
                    places[message.send.value].setdefault(place, call)
    for value, calls in places.items():
        examined += 1
        if len(calls) > 1:
            first, second = sorted(calls.values(), key=lambda row: row.invoked_ns)[:2]
            findings.add(
                f"value {value} stands at {case.evidence.place(first)} and at"
                f" {case.evidence.place(second)}",
                excuse=_lost(case, first) or _reported_damage(case, second),
                value=value,
                time_ns=second.invoked_ns,
            )
    if not examined:
        raise NotApplicable("no delayed message was heard")
    return examined


def listener_messages(case: Case) -> Iterator[ListenerMessage]:
    """Yield each group and message with its calls. Raises `NotApplicable` without any listener."""
    evidence = case.evidence
    if not evidence.record.listeners:
        raise NotApplicable(NOBODY)
    parts: dict[Function, dict[tuple[int, int], list[Row]]] = {}
    for function in (Function.HEAR, Function.DEAD):
        part = parts[function] = defaultdict(list)
        for row in evidence.rows((function,)).each():
            part[row.operation, row.value].append(row)
    for send in evidence.rows((Function.TELL,)).each():
        for group in evidence.record.listeners.values():
            key = group, send.value
            calls, dead = (part.get(key, []) for part in parts.values())
            yield ListenerMessage(group, send, calls, dead)


def _lost(case: Case, call: Row) -> Excuse | None:
    """Return the loss that may have taken the record that a function was called for."""
    group, losses, begin_ns = case.evidence.group_of(call.node), case.losses, call.invoked_ns
    log_end = call.physical_offset + 1
    # The record was stored before its call.
    excuse = losses.loss_between(group, begin_ns - LATE_NS, ENDLESS, below=log_end)
    return excuse or losses.split_between(group, begin_ns - LATE_NS, ENDLESS)


def _reported_damage(case: Case, call: Row) -> Excuse | None:
    """Return damage that a master reported: it looks up in its index what it had delivered."""
    evidence = case.evidence
    group = evidence.group_of(call.node)
    nodes = [node for node in evidence.record.nodes if evidence.group_of_name(node) == group]
    return next(
        filter(None, (evidence.disks.damaged_by(node, call.invoked_ns) for node in nodes)), None
    )


def _clock(case: Case, time_ns: int) -> Excuse | None:
    """Return a change of a node's wall clock before a time; the node may be master later."""
    for event in case.evidence.events(Function.NEMESIS, "clock"):
        is_nodes = not set(case.evidence.record.nodes).isdisjoint(targets_of(event))
        if is_nodes and event.time_ns <= time_ns:
            return case.evidence.excuse(f"a wall clock was set: {step_of(event)}", event.time_ns)
    return None
