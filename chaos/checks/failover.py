"""What a group with failover owes its clients while an operator works on it, or without a register.

Who leads is taken from the elections that were noted (`promote`) and from the nodes' own word.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, NotRun, check
from rocketbed.chaos.checks.context import PLANNED, faults
from rocketbed.chaos.checks.events import heals, step_of, targets_of
from rocketbed.chaos.checks.evidence import SECOND_NS, Evidence
from rocketbed.chaos.checks.positions import (
    commits_of,
    concurrent_reader,
    positions,
    process_spans,
    rewind_times,
)
from rocketbed.chaos.checks.result import Severity
from rocketbed.chaos.checks.service import UNASKED
from rocketbed.chaos.evidence.history import Event, Function, Outcome

TURN_NS = 2 * SECOND_NS
"""What is seen as belonging to a turn, from its beginning on."""
GOES_ON_NS = 3 * SECOND_NS
"""A time with a lost register and no other fault that is shorter says nothing of who leads on."""


@dataclass(frozen=True, slots=True)
class Election:
    time_ns: int
    former: str
    node: str


@check("X4 turns", "planned changes of the leader", severity=Severity.LIVENESS)
def turns(case: Case, found: Findings) -> int:
    """X4: each handover, and each clean stop of who leads, makes another node lead (in simulation,
    where that is seen at once: before the former one ends); around it no longer than `turn_s` goes
    by without an acknowledgement, and no node answers that a send is in doubt.

    A client may leave one in doubt by itself: it hangs up on a former leader once it hears of the
    next one.
    """
    evidence = case.evidence
    limit_s = evidence.record.expect.turn_s
    if limit_s is None:
        raise NotApplicable(UNASKED)
    begun = list(_turns(evidence))
    if not begun:
        raise NotRun("nobody who led was stopped cleanly, or handed over")
    acknowledged = sorted(map(int, evidence.acknowledged.column("returned_ns")))
    elections = _elections(evidence)
    gaps: list[float] = []
    ends = [*(time_ns for time_ns, _ in begun[1:]), evidence.record.calm_ns]
    for (time_ns, event), next_ns in zip(begun, ends, strict=True):
        end_ns = min(time_ns + TURN_NS, next_ns)
        step, former = step_of(event), targets_of(event)[0]
        next_one = next(
            (one for one in elections if one.former == former and one.time_ns >= time_ns), None
        )
        if next_one is None or next_one.time_ns >= next_ns:
            found.add(f"nobody followed {former} after {step!r}", time_ns=time_ns)
        elif evidence.record.backend == "sim" and _ended(evidence, former, time_ns, next_one):
            found.add(f"{former} ended before {next_one.node} led, at {step!r}", time_ns=time_ns)
        gap_s = _longest(acknowledged, time_ns, end_ns) / SECOND_NS
        gaps.append(gap_s)
        if gap_s > limit_s:
            text = f"nothing was acknowledged for {gap_s:.3f} s at {step!r}"
            found.add(text, time_ns=time_ns, distance=round(gap_s * SECOND_NS))
        if doubts := _doubts(evidence, time_ns, end_ns):
            found.add(f"{doubts} sends in doubt at {step!r}", time_ns=time_ns, distance=doubts)
    found.note = f"longest {max(gaps):.3f} s without an acknowledgement, at most {limit_s:g} s"
    found.figures = {"gaps_s": [round(gap, 4) for gap in gaps], "limit_s": limit_s}
    return len(begun)


def _ended_before(evidence: Evidence, turns_ns: list[int]) -> bool:
    """Whether at one of these turns nobody led before the former leader had ended."""
    for begin_ns in turns_ns:
        election = next((one for one in _elections(evidence) if one.time_ns >= begin_ns), None)
        if election is None or _ended(evidence, election.former, begin_ns, election):
            return True
    return False


def _ended(evidence: Evidence, node: str, time_ns: int, election: Election) -> bool:
    """Whether a node ended within this time."""
    return any(
        event.node == node and event.what == "exit" and time_ns <= event.time_ns < election.time_ns
        for event in evidence.history.events
    )


def _turns(evidence: Evidence) -> Iterator[tuple[int, Event]]:
    """Begin of each planned change, and the step."""
    elections = _elections(evidence)
    for event in evidence.history.events:
        if event.function != Function.NEMESIS or event.what not in ("handover", "stop"):
            continue
        began_ns = int(event.fields.get("began_ns", event.time_ns))
        if targets_of(event)[:1] == [_leader_at(elections, began_ns)]:
            yield began_ns, event


def _elections(evidence: Evidence) -> list[Election]:
    return [
        Election(event.time_ns, str(event.fields["former"]), event.node)
        for event in evidence.history.events
        if event.function == Function.NODE and event.what == "promote"
    ]


def _leader_at(elections: list[Election], time_ns: int) -> str:
    """Of a run with one group; empty where nobody was ever elected anew."""
    after = next((one.former for one in elections if one.time_ns > time_ns), "")
    return after or (elections[-1].node if elections else "")


def _longest(times: list[int], begin: int, end: int) -> int:
    """The longest time between two neighbours that has a part in this stretch."""
    first, last = max(bisect_right(times, begin) - 1, 0), bisect_left(times, end)
    return max((later - earlier for earlier, later in pairwise(times[first : last + 1])), default=0)


def _doubts(evidence: Evidence, begin: int, end: int) -> int:
    names = ("invoked_ns", "returned_ns", "outcome")
    columns = (map(int, evidence.sends.column(name)) for name in names)
    return sum(
        outcome == Outcome.WEAK and invoked < end and returned > begin
        for invoked, returned, outcome in zip(*columns, strict=True)
    )


@check("X6 positions over turns", "positions read after a planned change of the leader")
def positions_over_turns(case: Case, found: Findings) -> int:
    """X6: who takes over in a planned change knows what was committed to the one before.

    Judged of a process that alone reads a queue, by its own last commit; not while a fault is in
    force, and not after one that began since the commit.
    """
    evidence = case.evidence
    if not evidence.elects or evidence.foreign:
        raise NotApplicable("without failover a slave has a copy of positions that may be old")
    turns_ns = [time_ns for time_ns, _ in _turns(evidence)]
    if not turns_ns:
        raise NotApplicable("nobody who led was stopped cleanly, or handed over")
    struck = [one for one in faults(evidence) if one.verb not in PLANNED]
    given, held, resets = commits_of(evidence), process_spans(evidence), rewind_times(evidence)
    reads = evidence.rows((Function.READ_OFFSET,), Outcome.OK)
    examined = 0
    for number, (group, queue, offset, time_ns) in enumerate(positions(evidence, reads)):
        row = reads.row(number)
        own = [one for one in given[group, queue] if one.process == row.process]
        before = [one for one in own if one.begun_ns < row.invoked_ns]
        last = before[-1] if before else None
        if last is None or last.ended_ns > row.invoked_ns:
            continue
        if not any(last.begun_ns - TURN_NS < turn < time_ns for turn in turns_ns):
            continue
        if any(one.begin_ns < time_ns and one.end_ns > last.begun_ns - TURN_NS for one in struck):
            continue
        if any(last.begun_ns < at < time_ns for at in resets[group, queue]):
            continue
        if concurrent_reader(held[group, queue], last) is not None:
            continue
        examined += 1
        if offset < last.offset:
            name = evidence.queues.names[queue]
            text = f"{evidence.node(row)} told group {group} {offset} of {name.topic}/{name.queue},"
            text += f" after {last.offset} had been committed to {last.node} before a turn"
            excuse = None
            passed = [turn for turn in turns_ns if last.begun_ns - TURN_NS < turn < time_ns]
            if evidence.record.backend != "sim" and _ended_before(evidence, passed):
                cause = "who led ended before another one led: on a busy machine nobody was ready"
                excuse = evidence.excuse(cause, last.begun_ns, time_ns)
            example = evidence.example(row, text, value=None, distance=last.offset - offset)
            found.add(example, excuse=excuse)
    if not examined:
        raise NotApplicable("no position was read after a planned change without other faults")
    return examined


@check("X5 nobody else leads", "looks at nodes while a register was lost")
def nobody_else(case: Case, found: Findings) -> int:
    """X5: while a register is lost who led goes on, until something happens to it; nobody else
    leads; and the controller does not say that all is well."""
    evidence = case.evidence
    events = evidence.history.events
    lost = [
        (number, event)
        for number, event in enumerate(events)
        if event.function == Function.NEMESIS
        and event.what == "register"
        and "copy" not in step_of(event).split()
    ]
    if not lost:
        raise NotApplicable(UNASKED)  # no register was lost
    acknowledged = sorted(map(int, evidence.acknowledged.column("returned_ns")))
    looks = 0
    for number, event in lost:
        step, begin = step_of(event), event.time_ns
        led = _who_led(events[:number], after=begin - SECOND_NS)
        end_at = _end_of(events, number)
        for sample in _as_leaders(events[number:end_at]):
            looks += 1
            if sample.node not in led:
                text = f"{sample.node} leads, though {step!r} is not over"
                found.add(text, time_ns=sample.time_ns)
        alone_ns = _alone_until(events[number : end_at + 1], evidence.record.nodes) - begin
        first = bisect_right(acknowledged, begin + SECOND_NS)
        none = first >= len(acknowledged) or acknowledged[first] > begin + alone_ns
        if alone_ns >= GOES_ON_NS and none:
            found.add(f"nothing was acknowledged in {alone_ns / SECOND_NS:.1f} s of {step!r}")
        for said in events[number:end_at]:
            is_said = said.function == Function.NODE and said.what == "register"
            if is_said and not said.fields["trouble"]:
                text = f"the controller finds nothing wrong at the end of {step!r}"
                found.add(text, time_ns=said.time_ns)
    return looks


def _who_led(events: list[Event], *, after: int) -> set[str]:
    """Who led by its own word since then, or when anybody was last heard to, unless it ended."""
    last = ""
    for event in events:
        if (
            event.function == Function.NODE
            and event.what == "sample"
            and event.fields.get("master")
        ):
            last = event.node
        elif event.function == Function.NODE and event.what == "exit" and event.node == last:
            last = ""
    return {last, *(one.node for one in _as_leaders(events, after=after))}


def _as_leaders(events: Iterable[Event], *, after: int = 0) -> Iterator[Event]:
    """Samples of nodes that lead by their own word."""
    for event in events:
        is_sample = event.function == Function.NODE and event.what == "sample"
        if is_sample and event.time_ns > after and event.fields.get("master"):
            yield event


def _end_of(events: list[Event], number: int) -> int:
    """Index of the event that ended a fault, or made it pointless."""
    step = step_of(events[number])
    for at in range(number + 1, len(events)):
        if heals(events[at], step) or events[at].what == "forced":
            return at
    return len(events)


def _alone_until(events: list[Event], nodes: list[str]) -> int:
    """When a node was struck, after the first of these events, or the last one's time."""
    for event in events[1:]:
        struck = event.function == Function.NEMESIS and event.what != "heal"
        if struck and not set(nodes).isdisjoint(targets_of(event)):
            return int(event.fields.get("began_ns", event.time_ns))
    return events[-1].time_ns
