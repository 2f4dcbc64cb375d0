"""Service levels of a group with failover during planned changes of the leader, and without a
register.

The leader is taken from the recorded elections (`promote`) and from the nodes' own reports.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, NotRun, check
from rocketbed.chaos.checks.context import PLANNED, faults
from rocketbed.chaos.checks.events import heals, step_of, targets_of
from rocketbed.chaos.checks.evidence import SECOND_NS, Evidence
from rocketbed.chaos.checks.groups.positions import (
    commits_of,
    concurrent_reader,
    positions,
    process_spans,
    rewind_times,
)
from rocketbed.chaos.checks.liveness.service import UNASKED
from rocketbed.chaos.checks.result import Severity
from rocketbed.chaos.evidence.history import Event, Function, Outcome

TURN_NS = 2 * SECOND_NS
"""Time from the beginning of a planned change in which events count as its effects."""
SHOWN_AFTER_NS = 3 * SECOND_NS
"""A shorter period with a lost register and no other fault shows nothing about the leader."""


@dataclass(frozen=True, slots=True)
class Election:
    time_ns: int
    former: str
    node: str


@check("leader-turns", "planned changes of the leader", severity=Severity.LIVENESS)
def turns(case: Case, findings: Findings) -> int:
    """Each handover, and each clean stop of a leader, makes another node lead.

    In simulation, where that is observed at once, the new one leads before the former one ends.
    Around the change the longest time without an acknowledgement is at most `turn_s`, and no node
    answers that a send is in doubt. A client may leave a send in doubt on its own: it hangs up on a
    former leader once it hears of the next one.
    """
    evidence = case.evidence
    limit_s = evidence.record.expect.turn_s
    if limit_s is None:
        raise NotApplicable(UNASKED)
    changes = list(_turns(evidence))
    if not changes:
        raise NotRun("nobody who led was stopped cleanly, or handed over")
    acknowledged = sorted(map(int, evidence.acknowledged.column("returned_ns")))
    elections = _elections(evidence)
    gaps: list[float] = []
    ends = [*(time_ns for time_ns, _ in changes[1:]), evidence.record.recovery_ns]
    for (time_ns, event), next_ns in zip(changes, ends, strict=True):
        end_ns = min(time_ns + TURN_NS, next_ns)
        step, former = step_of(event), targets_of(event)[0]
        election = next(
            (
                election
                for election in elections
                if election.former == former and election.time_ns >= time_ns
            ),
            None,
        )
        if election is None or election.time_ns >= next_ns:
            findings.add(f"nobody followed {former} after {step!r}", time_ns=time_ns)
        elif evidence.record.backend == "sim" and _ended(evidence, former, time_ns, election):
            findings.add(f"{former} ended before {election.node} led, at {step!r}", time_ns=time_ns)
        gap_s = _longest(acknowledged, time_ns, end_ns) / SECOND_NS
        gaps.append(gap_s)
        if gap_s > limit_s:
            text = f"nothing was acknowledged for {gap_s:.3f} s at {step!r}"
            findings.add(text, time_ns=time_ns, distance=round(gap_s * SECOND_NS))
        if doubts := _doubts(evidence, time_ns, end_ns):
            findings.add(f"{doubts} sends in doubt at {step!r}", time_ns=time_ns, distance=doubts)
    findings.note = f"longest {max(gaps):.3f} s without an acknowledgement, at most {limit_s:g} s"
    findings.figures = {"gaps_s": [round(gap, 4) for gap in gaps], "limit_s": limit_s}
    return len(changes)


def _ended_before(evidence: Evidence, turns_ns: list[int]) -> bool:
    """True if at one of these changes no node led before the former leader had ended."""
    for begin_ns in turns_ns:
        election = next(
            (election for election in _elections(evidence) if election.time_ns >= begin_ns), None
        )
        if election is None or _ended(evidence, election.former, begin_ns, election):
            return True
    return False


def _ended(evidence: Evidence, node: str, time_ns: int, election: Election) -> bool:
    """True if a node ended after `time_ns` and before an election."""
    return any(
        event.node == node and event.kind == "exit" and time_ns <= event.time_ns < election.time_ns
        for event in evidence.history.events
    )


def _turns(evidence: Evidence) -> Iterator[tuple[int, Event]]:
    """Yield the begin and the step of each planned change."""
    elections = _elections(evidence)
    for event in evidence.history.events:
        if event.function != Function.NEMESIS or event.kind not in ("handover", "stop"):
            continue
        began_ns = int(event.fields.get("began_ns", event.time_ns))
        if targets_of(event)[:1] == [_leader_at(elections, began_ns)]:
            yield began_ns, event


def _elections(evidence: Evidence) -> list[Election]:
    return [
        Election(event.time_ns, str(event.fields["former"]), event.node)
        for event in evidence.history.events
        if event.function == Function.NODE and event.kind == "promote"
    ]


def _leader_at(elections: list[Election], time_ns: int) -> str:
    """Return the leader of a run with one group; empty if there never was an election."""
    after = next((election.former for election in elections if election.time_ns > time_ns), "")
    return after or (elections[-1].node if elections else "")


def _longest(times: list[int], begin: int, end: int) -> int:
    """Return the longest time between two neighbours that overlaps a period."""
    first, last = max(bisect_right(times, begin) - 1, 0), bisect_left(times, end)
    return max((later - earlier for earlier, later in pairwise(times[first : last + 1])), default=0)


def _doubts(evidence: Evidence, begin: int, end: int) -> int:
    names = ("invoked_ns", "returned_ns", "outcome")
    columns = (map(int, evidence.sends.column(name)) for name in names)
    return sum(
        outcome == Outcome.WEAK and invoked < end and returned > begin
        for invoked, returned, outcome in zip(*columns, strict=True)
    )


@check("positions-after-turn", "positions read after a planned change of the leader")
def positions_over_turns(case: Case, findings: Findings) -> int:
    """The successor in a planned change knows the positions committed to its predecessor.

    Judged for a process that alone reads a queue, by its own last commit; not while a fault is in
    force, and not after one that began since the commit.
    """
    evidence = case.evidence
    if not evidence.elects or evidence.foreign:
        raise NotApplicable("without failover a slave has a copy of positions that may be old")
    turns_ns = [time_ns for time_ns, _ in _turns(evidence)]
    if not turns_ns:
        raise NotApplicable("nobody who led was stopped cleanly, or handed over")
    other_faults = [fault for fault in faults(evidence) if fault.verb not in PLANNED]
    commits, spans, resets = commits_of(evidence), process_spans(evidence), rewind_times(evidence)
    reads = evidence.rows((Function.READ_OFFSET,), Outcome.OK)
    examined = 0
    for number, (group, queue, offset, time_ns) in enumerate(positions(evidence, reads)):
        row = reads.row(number)
        own_commits = [commit for commit in commits[group, queue] if commit.process == row.process]
        earlier = [commit for commit in own_commits if commit.begun_ns < row.invoked_ns]
        last = earlier[-1] if earlier else None
        if last is None or last.ended_ns > row.invoked_ns:
            continue
        if not any(last.begun_ns - TURN_NS < turn < time_ns for turn in turns_ns):
            continue
        if any(
            fault.begin_ns < time_ns and fault.end_ns > last.begun_ns - TURN_NS
            for fault in other_faults
        ):
            continue
        if any(last.begun_ns < at < time_ns for at in resets[group, queue]):
            continue
        if concurrent_reader(spans[group, queue], last) is not None:
            continue
        examined += 1
        if offset < last.offset:
            name = evidence.queues.names[queue]
            text = f"{evidence.node(row)} told group {group} {offset} of {name.topic}/{name.queue},"
            text += f" after {last.offset} had been committed to {last.node} before a turn"
            excuse = None
            passed_turns = [turn for turn in turns_ns if last.begun_ns - TURN_NS < turn < time_ns]
            if evidence.record.backend != "sim" and _ended_before(evidence, passed_turns):
                cause = "who led ended before another one led: on a busy machine nobody was ready"
                excuse = evidence.excuse(cause, last.begun_ns, time_ns)
            example = evidence.example(row, text, value=None, distance=last.offset - offset)
            findings.add(example, excuse=excuse)
    if not examined:
        raise NotApplicable("no position was read after a planned change without other faults")
    return examined


@check("no-other-leader", "looks at nodes while a register was lost")
def nobody_else(case: Case, findings: Findings) -> int:
    """While a register is lost the leader continues until something happens to it, no other
    node leads, and the controller does not report that all is well."""
    evidence = case.evidence
    events = evidence.history.events
    lost_registers = [
        (number, event)
        for number, event in enumerate(events)
        if event.function == Function.NEMESIS
        and event.kind == "register"
        and "copy" not in step_of(event).split()
    ]
    if not lost_registers:
        raise NotApplicable(UNASKED)  # no register was lost
    acknowledged = sorted(map(int, evidence.acknowledged.column("returned_ns")))
    examined = 0
    for number, event in lost_registers:
        step, begin = step_of(event), event.time_ns
        leaders = _recent_leaders(events[:number], after=begin - SECOND_NS)
        end_at = _end_of(events, number)
        for sample in _as_leaders(events[number:end_at]):
            examined += 1
            if sample.node not in leaders:
                text = f"{sample.node} leads, though {step!r} is not over"
                findings.add(text, time_ns=sample.time_ns)
        alone_ns = _alone_until(events[number : end_at + 1], evidence.record.nodes) - begin
        first = bisect_right(acknowledged, begin + SECOND_NS)
        is_silent = first >= len(acknowledged) or acknowledged[first] > begin + alone_ns
        if alone_ns >= SHOWN_AFTER_NS and is_silent:
            findings.add(f"nothing was acknowledged in {alone_ns / SECOND_NS:.1f} s of {step!r}")
        for report in events[number:end_at]:
            is_report = report.function == Function.NODE and report.kind == "register"
            if is_report and not report.fields["trouble"]:
                text = f"the controller finds nothing wrong at the end of {step!r}"
                findings.add(text, time_ns=report.time_ns)
    return examined


def _recent_leaders(events: list[Event], *, after: int) -> set[str]:
    """Return the nodes that reported to lead since `after`, or the last one that did unless it
    ended."""
    last = ""
    for event in events:
        if (
            event.function == Function.NODE
            and event.kind == "sample"
            and event.fields.get("master")
        ):
            last = event.node
        elif event.function == Function.NODE and event.kind == "exit" and event.node == last:
            last = ""
    return {last, *(sample.node for sample in _as_leaders(events, after=after))}


def _as_leaders(events: Iterable[Event], *, after: int = 0) -> Iterator[Event]:
    """Yield the samples of nodes that report to lead."""
    for event in events:
        is_sample = event.function == Function.NODE and event.kind == "sample"
        if is_sample and event.time_ns > after and event.fields.get("master"):
            yield event


def _end_of(events: list[Event], number: int) -> int:
    """Return the index of the event that ended a fault, or made it irrelevant."""
    step = step_of(events[number])
    for at in range(number + 1, len(events)):
        if heals(events[at], step) or events[at].kind == "forced":
            return at
    return len(events)


def _alone_until(events: list[Event], nodes: list[str]) -> int:
    """Return the time of the next fault of a node after the first event, or of the last event."""
    for event in events[1:]:
        is_fault = event.function == Function.NEMESIS and event.kind != "heal"
        if is_fault and not set(nodes).isdisjoint(targets_of(event)):
            return int(event.fields.get("began_ns", event.time_ns))
    return events[-1].time_ns
