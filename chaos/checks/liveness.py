"""Did everything come back when the faults were over, and did no process end by itself? 2.8."""

from collections.abc import Collection
from dataclasses import dataclass

from rocketbed.chaos.checks import passes
from rocketbed.chaos.checks.backlog import LATE_NS
from rocketbed.chaos.checks.check import Case, Check, Findings, NotApplicable, check
from rocketbed.chaos.checks.context import HALF_OPEN_NS
from rocketbed.chaos.checks.events import targets_of
from rocketbed.chaos.checks.evidence import Evidence
from rocketbed.chaos.checks.result import (
    CheckResult,
    Example,
    Excuse,
    Severity,
    judged,
    not_applicable,
)
from rocketbed.chaos.evidence.history import Function, Outcome
from rocketbed.wire.command import ResponseCode

LIVENESS: tuple[tuple[str, str], ...] = (
    ("L0 set up", "set-up"),
    ("L1 leader serves", "leader"),
    ("L2 replicas in sync", "in-sync"),
    ("L3 producers go on", "producers"),
    ("L4 everything read", "drain"),
    ("L5 replicas equal", "replicas-equal"),
    ("L6 nodes stop", "stop"),
    ("L8 readers catch up", "backlog"),
    ("L9 routes true", "routes"),
)
"""Name, and the stall of `record.Stall` that breaks it."""
SUCCESS_MIN = 0.99
"""Share of sends in the last third of the calm phase that have to be acknowledged, or stored
where nobody asked for an answer."""

ASKED = (
    Function.READ_OFFSET,
    Function.COMMIT_OFFSET,
    Function.BOUNDS,
    Function.SEARCH_TIME,
)
"""Questions that have an answer wherever nothing is broken; queries by key are A17's."""
GIVEN_UP_NS = 2_000_000_000
"""An operation whose last attempt began so short before the last of all may have got no other."""


@check("C1 no node ended by itself", "nodes", severity=Severity.CRASH, needs_history=False)
def crashes(case: Case, found: Findings) -> int:
    """C1: no process ended that no fault had ended, or made end itself."""
    record = case.evidence.record
    for crash in record.crashes:
        text = f"{crash.node} ended by itself: {crash.reason}"
        excuse = Excuse(crash.cause, crash.cause_ns, crash.time_ns) if crash.cause else None
        found.add(text, excuse=excuse, node=crash.node, time_ns=crash.time_ns)
    return len(record.nodes)


def _liveness(case: Case) -> list[CheckResult]:
    """L0 to L9: what the calm phase waited for has come."""
    record = case.evidence.record
    results: list[CheckResult] = []
    known = {what for _, what in LIVENESS}
    for title, what in LIVENESS:
        findings = [
            f"{stall.subject}: {stall.reason}"
            for stall in record.stalls
            if stall.what == what or (what == "set-up" and stall.what not in known)
        ]
        found = _emptied(case) if what == "replicas-equal" else Findings()
        findings += [example.text for example in found.anomalies if isinstance(example, Example)]
        if not findings and not record.calm_ns:
            reason = "the run had no calm phase"
            results.append(not_applicable(title, "waits", reason, severity=Severity.LIVENESS))
        else:
            grade, allowed = Severity.LIVENESS, found.allowed
            results.append(judged(title, 1, "waits", findings, severity=grade, allowed=allowed))
    return results


def _emptied(case: Case) -> Findings:
    """Slaves whose disk an operator emptied in the recovery, since they said to: nothing is common
    with their master's log. That has to be true, as far as the trace tells."""
    evidence, found = case.evidence, Findings()
    for event in evidence.events(Function.NODE, "wipe"):
        if "reason" in event.fields:
            node, time_ns = event.node, event.time_ns
            lineage = case.losses.lineages[evidence.group_of_name(node)]
            ends, begins = lineage.ends[node], _begin(evidence, lineage.nodes, time_ns)
            common = lineage.held(node, time_ns - 1, ends.before(time_ns).written)
            wrong = ends.complete and common > begins and not _is_hit(evidence, node)
            cause = f"an operator emptied {node}, which said: {event.fields['reason']}"
            excuse = None if wrong else evidence.excuse(cause, time_ns)
            text = f"{node} refused its master, though they have the log up to {common} in common"
            found.add(text, excuse=excuse, node=node, time_ns=time_ns)
    return found


def _begin(evidence: Evidence, nodes: Collection[str], until_ns: int) -> int:
    """Where the log of one of these nodes may have begun by then: older messages expire."""
    expired = (one for one in evidence.events(Function.NODE, "expired") if one.node in nodes)
    ends = (one.fields["start"] + one.fields["size"] for one in expired if one.time_ns <= until_ns)
    return max(ends, default=0)


def _is_hit(evidence: Evidence, node: str) -> bool:
    """Whether its disk was damaged, or had a fault: what it has in common may be hidden."""
    return any(
        event.what in ("damaged", "damage", "disk") and node in targets_of(event)
        for event in evidence.history.events
    )


liveness = Check(tuple(title for title, _ in LIVENESS), _liveness, needs_history=False)


@check("L7 sends succeed in calm", "sends", severity=Severity.LIVENESS)
def producers_succeed(case: Case, found: Findings) -> int:
    """L7: at least 99 % of the sends in the last third of the calm phase are acknowledged; of those
    that asked for no answer as many are stored.

    Where bursts meet limits, or a machine may be busy with other work, a node may refuse sends for
    a while, since it is behind: one that was acknowledged in a later attempt counts as good, one
    that the end of the load left no other attempt is not judged, and those without an answer may
    be as many less as nodes counted refusals that nobody was told of.
    """
    evidence, calm_ns = case.evidence, case.evidence.record.calm_ns
    attempts = _attempts(evidence)
    last = max((attempt.begun_ns for attempt in attempts), default=0)
    if not calm_ns or last < calm_ns:
        raise NotApplicable("the run had no calm phase, or nothing was sent in it")
    begin = calm_ns + (last - calm_ns) * 2 // 3
    reserved_ns = evidence.record.reserved_ns
    stays = begin if reserved_ns is None else max(begin, evidence.record.end_ns - reserved_ns)
    may_be_busy = evidence.record.backend != "sim" or bool(evidence.record.facts.get("burst"))
    newest = {one.operation: one for one in attempts}
    done = {one.operation for one in attempts if one.outcome == Outcome.OK}

    good = judged = 0
    for one in attempts:
        if one.begun_ns < begin:
            continue
        refused = may_be_busy and one.status == ResponseCode.SYSTEM_BUSY
        if refused and one.operation not in done:
            end = newest[one.operation]
            if end.status == ResponseCode.SYSTEM_BUSY and end.begun_ns > last - GIVEN_UP_NS:
                continue
        judged += one.messages
        if one.outcome == Outcome.OK or (refused and one.operation in done):
            good += one.messages
    if good < SUCCESS_MIN * judged:
        found.add(f"{good} of {judged} sends were acknowledged")
    found.note = f"{good} of {judged}"

    oneway = evidence.rows((Function.SEND_ONEWAY,))
    late = oneway.at(passes.above(oneway.column("invoked_ns"), stays)).column("value")
    absent = passes.missing(late, evidence.stored.values)
    told = sum(one.refused and one.begun_ns >= stays for one in attempts)
    untold = max(_refused(evidence, stays) - told, 0) if may_be_busy else 0
    if not evidence.no_final() and len(absent) - untold > (1 - SUCCESS_MIN) * len(late):
        found.add(
            f"{len(absent)} of {len(late)} sends without an answer are in no final log, and nodes"
            f" refused {untold} of them at most"
        )
    return judged + len(late)


@check("L10 answers in calm", "requests", severity=Severity.LIVENESS)
def answered_in_calm(case: Case, found: Findings) -> int:
    """L10: from 25 s after the faults on at least 99 % of each kind of question that clients ask is
    answered, and in the last third of it as many of the sends to listeners are acknowledged;
    neither an answer nor an acknowledgement takes 4 s. Of refusals see L7.

    In simulation only: elsewhere time is a machine's, which may be busy.
    """
    evidence, record = case.evidence, case.evidence.record
    if record.backend != "sim":
        raise NotApplicable("how long an answer takes is a machine's, which may be busy")
    if not record.calm_ns:
        raise NotApplicable("the run had no calm phase")
    begin, examined = record.calm_ns + HALF_OPEN_NS, 0
    may_be_busy = bool(record.facts.get("burst"))
    ends_ns = max((row.invoked_ns for row in evidence.rows((Function.TELL,)).each()), default=0)
    # As L7: the first thirds may be needed to come into order.
    told_ns = max(begin, record.calm_ns + (ends_ns - record.calm_ns) * 2 // 3)
    for function in (*ASKED, Function.SEND, Function.TELL):
        asked = evidence.rows((function,))
        since_ns = told_ns if function is Function.TELL else begin
        rows = map(asked.row, passes.above(asked.column("invoked_ns"), since_ns))
        # A client that is stopped with its question under way gets no answer, not even a time-out.
        told = [row for row in rows if row.returned_ns >= 0]
        if may_be_busy:
            told = [row for row in told if row.status != ResponseCode.SYSTEM_BUSY]
        good = [row for row in told if row.outcome == Outcome.OK]
        examined += len(told)
        what = function.name.lower()
        if function is not Function.SEND and len(good) < SUCCESS_MIN * len(told):
            found.add(f"{len(good)} of {len(told)} requests {what} were answered")
        for row in good:
            taken_ns = row.returned_ns - row.invoked_ns
            if taken_ns >= LATE_NS:
                text = f"a request {what} was answered after {taken_ns / 1e9:.1f} s"
                found.add(text, time_ns=row.invoked_ns, distance=taken_ns)
    if not examined:
        raise NotApplicable(f"nothing was asked {HALF_OPEN_NS / 1e9:g} s after the faults")
    return examined


@dataclass(slots=True)
class _Attempt:
    """One request to store something, by what its first message got."""

    operation: int
    begun_ns: int
    outcome: int
    status: int
    messages: int = 0

    @property
    def refused(self) -> bool:
        """Whether a broker answered that it did not take it."""
        return self.outcome == Outcome.FAIL and self.status >= 0


def _attempts(evidence: Evidence) -> list[_Attempt]:
    """All that asked for an answer, by when they began."""
    sends = evidence.rows((Function.SEND,))
    names = ("operation", "attempt", "invoked_ns", "outcome", "status")
    found: dict[tuple[int, int], _Attempt] = {}
    for row in zip(*map(sends.column, names), strict=True):
        operation, number, begun_ns, outcome, status = map(int, row)
        one = found.setdefault((operation, number), _Attempt(operation, begun_ns, outcome, status))
        one.messages += 1
    return sorted(found.values(), key=lambda one: one.begun_ns)


def _refused(evidence: Evidence, since_ns: int) -> int:
    """How many sends nodes refused from then on, by their own counts, which begin with a start."""
    before: dict[str, int] = {}
    total = 0
    for event in evidence.events(Function.NODE, "sample", "start"):
        count = int(event.fields.get("refused", 0)) if event.what == "sample" else 0
        if event.what == "sample" and event.time_ns >= since_ns:
            total += max(count - before.get(event.node, 0), 0)
        before[event.node] = count
    return total
