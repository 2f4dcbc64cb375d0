"""What listeners were called for: not too early, at last, as often as it has to be, and in order by
one at a time. They have a topic of their own; its sends and calls have rows of their own kinds.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rocketbed.chaos.checks.backlog import LATE_NS, settled_ns
from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.context import HALF_OPEN_NS
from rocketbed.chaos.checks.ends import ENDLESS
from rocketbed.chaos.checks.events import step_of, targets_of
from rocketbed.chaos.checks.reads import spread
from rocketbed.chaos.checks.result import Excuse
from rocketbed.chaos.evidence.history import Function, Outcome, Row
from rocketbed.inspect.properties import delay_levels

NOBODY = "nobody listened"
MS = 1_000_000
TICK_NS = 2 * MS
"""Times of records are whole milliseconds of a wall clock."""
USUAL_NS = 1_000_000_000
"""Half of the calls are not later than this; one that waited for the wrong level is."""
TRIPS = 3
"""Over a slow network, of so many trips more."""
MANY_CALLS = 5
"""Of which half is taken."""
FIRST_LEVEL = 3
"""Of the first repetition (wire.md 4.9)."""


class Heard(NamedTuple):
    """All that is known of one group and one message."""

    group: int
    told: Row
    calls: list[Row]
    dead: list[Row]

    @property
    def name(self) -> str:
        return f"value {self.told.value}"


class Records:
    """What may have taken the records that functions were called for, since these were told: a
    member in order may be called long after it got them."""

    def __init__(self, case: Case) -> None:
        self._losses, self._evidence = case.losses, case.evidence
        told = case.evidence.rows((Function.TELL,)).each()
        self._told_ns = {row.value: row.invoked_ns for row in told}

    def _since_ns(self, call: Row) -> int:
        return self._told_ns.get(call.value, call.invoked_ns)

    def lost(self, call: Row, until_ns: int) -> Excuse | None:
        """A loss until then."""
        group, behind = self._evidence.group_of(call.node), call.physical_offset + 1
        return self._losses.loss_between(group, self._since_ns(call), until_ns, behind=behind)

    def split(self, call: Row, until_ns: int, told: Row | None = None) -> Excuse | None:
        """A second master until then, who may have had the record, or what was told."""
        since_ns = self._since_ns(call)
        if told is not None:
            since_ns = min(told.invoked_ns, since_ns)
        return self._losses.split_between(self._evidence.group_of(call.node), since_ns, until_ns)


@check("A26 early delay", "calls")
def early_calls(case: Case, found: Findings) -> int:
    """A26: no function is called before the delay of its message, or of its repetition, is over."""
    levels = delay_levels(case.evidence.record.delay_levels)
    examined = 0
    for one in heard(case):
        for call in one.calls:
            since_ns, level = one.told.invoked_ns, one.told.operation
            if call.invoked_ns < since_ns:  # which no clock excuses
                examined += 1
                seconds = (since_ns - call.invoked_ns) / 1e9
                found.add(
                    f"{one.name} came {seconds:.3f} s before it was sent",
                    value=call.value,
                    time_ns=call.invoked_ns,
                )
                continue
            if call.attempt:
                if one.group in case.evidence.record.ordered_listeners:
                    continue  # tried again where it is
                before = [row for row in one.calls if row.attempt == call.attempt - 1]
                ended = [row.returned_ns for row in before if row.returned_ns >= 0]
                if not ended:
                    continue  # that is A28's
                since_ns, level = min(ended), FIRST_LEVEL + call.attempt - 1
            if level not in levels:
                continue
            examined += 1
            early_ns = since_ns + levels[level] * MS - TICK_NS - call.invoked_ns
            if early_ns > 0:
                found.add(
                    f"{one.name} came {early_ns / 1e9:.3f} s before its {levels[level] / 1000:g} s"
                    f" were over, at its call number {call.attempt + 1}",
                    excuse=_clock(case, call.invoked_ns),
                    value=call.value,
                    time_ns=call.invoked_ns,
                    distance=early_ns,
                )
    if not examined:
        raise NotApplicable("no call had to wait")
    return examined


@check("A27w late delay", "first calls in calm")
def late_calls(case: Case, found: Findings) -> int:
    """A27w: a message that is due late in the calm phase comes to its function soon, and again once
    the delay after a refusal is over. Those of the group in order wait for each other. Where time
    is a machine's it is a figure only."""
    evidence = case.evidence
    levels, settled = delay_levels(evidence.record.delay_levels), settled_ns(case)
    late: list[int] = []
    by_attempt: dict[int, list[int]] = defaultdict(list)
    for one in heard(case):
        if one.told.outcome != Outcome.OK or one.group in evidence.record.ordered_listeners:
            continue
        for attempt, since_ns, first_ns in _waits(one):
            level = FIRST_LEVEL + attempt - 1 if attempt else one.told.operation
            if since_ns <= settled:
                continue
            late.append(max(first_ns - since_ns - delay_ns(levels, level), 0))
            if not (excuse := _clock(case, first_ns)):
                by_attempt[attempt].append(late[-1])
            if late[-1] > LATE_NS and evidence.record.backend == "sim":
                again = f" for the {attempt + 1}th time" if attempt else ""
                found.add(
                    f"{one.name} came{again} {late[-1] / 1e9:.1f} s after it was due",
                    excuse=excuse,
                    value=one.told.value,
                    time_ns=first_ns,
                    distance=late[-1],
                )
    for attempt, times in sorted(by_attempt.items()):
        middle_ns = sorted(times)[len(times) // 2]
        usual_ns = USUAL_NS + TRIPS * evidence.record.facts.get("link_ns", 0)
        is_usual = len(times) >= MANY_CALLS and middle_ns > usual_ns
        if is_usual and evidence.record.backend == "sim":
            found.add(
                f"half of {len(times)} messages came for the {attempt + 1}th time more than"
                f" {middle_ns / 1e9:.1f} s after they were due",
                distance=middle_ns,
            )
    if not late:
        raise NotApplicable(f"nothing was due {HALF_OPEN_NS / 1e9:g} s after the faults")
    found.figures = spread("late", late)
    found.note = "p99 {late_p99_ms} ms, at most {late_max_ms} ms".format_map(found.figures)
    return len(late)


def delay_ns(levels: Mapping[int, int], level: int) -> int:
    """How long a level waits; one beyond the last is the last (wire.md 4.9)."""
    return levels.get(min(level, max(levels, default=0)), 0) * MS


def _waits(one: Heard) -> Iterator[tuple[int, int, int]]:
    """Of the first call of each attempt: its number, since when it was waited for, and when it was;
    nobody was told where what the call before refused was put back before."""
    firsts: dict[int, int] = {}
    for call in one.calls:
        firsts[call.attempt] = min(call.invoked_ns, firsts.get(call.attempt, call.invoked_ns))
    for attempt, first_ns in sorted(firsts.items()):
        refused = [
            call.returned_ns
            for call in one.calls
            if call.attempt == attempt - 1
            and call.outcome == Outcome.FAIL
            and call.returned_ns <= first_ns
        ]
        if not attempt:
            yield attempt, one.told.returned_ns, first_ns
        elif refused:
            yield attempt, max(refused), first_ns


@check("A42 delayed twice", "delayed messages that were heard")
def delayed_twice(case: Case, found: Findings) -> int:
    """A42: a delayed message comes to stand in its topic once. Not where the first one was lost, or
    a second master delivered too."""
    examined = 0
    case.need_index()  # else a master goes by a table that it writes now and then
    places: dict[int, dict[tuple[int, int, int], Row]] = defaultdict(dict)
    for one in heard(case):
        if one.told.operation:
            for call in one.calls:
                if not call.attempt:
                    place = call.node, call.queue, call.queue_offset
                    places[one.told.value].setdefault(place, call)
    for value, calls in places.items():
        examined += 1
        if len(calls) > 1:
            first, second = sorted(calls.values(), key=lambda row: row.invoked_ns)[:2]
            found.add(
                f"value {value} stands at {case.evidence.place(first)} and at"
                f" {case.evidence.place(second)}",
                excuse=_lost(case, first) or _unsure(case, second),
                value=value,
                time_ns=second.invoked_ns,
            )
    if not examined:
        raise NotApplicable("no delayed message was heard")
    return examined


def heard(case: Case) -> Iterator[Heard]:
    """By group and message what became of it. Raises `NotApplicable` when nobody listened."""
    evidence = case.evidence
    if not evidence.record.listeners:
        raise NotApplicable(NOBODY)
    parts: dict[Function, dict[tuple[int, int], list[Row]]] = {}
    for function in (Function.HEAR, Function.DEAD):
        part = parts[function] = defaultdict(list)
        for row in evidence.rows((function,)).each():
            part[row.operation, row.value].append(row)
    for told in evidence.rows((Function.TELL,)).each():
        for group in evidence.record.listeners.values():
            key = group, told.value
            calls, dead = (part.get(key, []) for part in parts.values())
            yield Heard(group, told, calls, dead)


def _lost(case: Case, call: Row) -> Excuse | None:
    """What may have taken the record that a function was called for."""
    group, losses, begin_ns = case.evidence.group_of(call.node), case.losses, call.invoked_ns
    behind = call.physical_offset + 1
    # The record was there before its call.
    excuse = losses.loss_between(group, begin_ns - LATE_NS, ENDLESS, behind=behind)
    return excuse or losses.split_between(group, begin_ns - LATE_NS, ENDLESS)


def _unsure(case: Case, call: Row) -> Excuse | None:
    """Damage that a master has told of: what it had delivered it asks its index (seed 862037)."""
    evidence = case.evidence
    group = evidence.group_of(call.node)
    nodes = [node for node in evidence.record.nodes if evidence.group_of_name(node) == group]
    return next(
        filter(None, (evidence.disks.damaged_by(node, call.invoked_ns) for node in nodes)), None
    )


def _clock(case: Case, time_ns: int) -> Excuse | None:
    """A node's wall clock that was set, or ran fast, before a time; it may be master later."""
    for event in case.evidence.events(Function.NEMESIS, "clock"):
        is_nodes = not set(case.evidence.record.nodes).isdisjoint(targets_of(event))
        if is_nodes and event.time_ns <= time_ns:
            return case.evidence.excuse(f"a wall clock was set: {step_of(event)}", event.time_ns)
    return None
