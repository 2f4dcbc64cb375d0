"""Everything works again after the faults, and no process ends on its own. 2.8"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from rocketbed.chaos.checks import passes
from rocketbed.chaos.checks.check import Case, Check, Findings, NotApplicable, check
from rocketbed.chaos.checks.context import HALF_OPEN_NS
from rocketbed.chaos.checks.delivery.backlog import LATE_NS
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

LIVENESS: Final = (
    ("set-up", "set-up", "Nameservers, nodes, topics and clients were set up in time."),
    ("leader-serves", "leader", "After the faults each group has a node that serves."),
    ("replicas-in-sync", "in-sync", "Replicas are in sync again."),
    ("producers-continue", "producers", "Producers get acknowledgements again."),
    ("everything-read", "drain", "Readers have read everything that is stored."),
    ("replicas-equal", "replicas-equal", "Replicas hold equal logs at the end."),
    ("nodes-stop", "stop", "Nodes stop when they are asked to."),
    ("groups-caught-up", "backlog", "Groups have caught up with their queues."),
    ("routes-correct", "routes", "Routes name exactly the nodes that serve."),
)
"""Id, the stall of `record.Stall` that breaks it, and its meaning."""
SUCCESS_MIN = 0.99
"""Share of sends in the last third of the recovery phase that must be acknowledged, or stored if
they requested no answer."""

REQUESTS = (
    Function.READ_OFFSET,
    Function.COMMIT_OFFSET,
    Function.BOUNDS,
    Function.SEARCH_TIME,
)
"""Requests that are always answered when nothing is broken; `query-mismatch` judges queries by
key."""
GIVEN_UP_NS = 2_000_000_000
"""An operation whose last attempt began this short before the very last one may have had no chance
of another."""


@check("no-unexpected-exit", "nodes", severity=Severity.CRASH, needs_history=False)
def crashes(case: Case, findings: Findings) -> int:
    """No process ended unless a fault ended it, or made it end itself."""
    record = case.evidence.record
    for crash in record.crashes:
        text = f"{crash.node} ended by itself: {crash.reason}"
        excuse = Excuse(crash.cause, crash.cause_ns, crash.time_ns) if crash.cause else None
        findings.add(text, excuse=excuse, node=crash.node, time_ns=crash.time_ns)
    return len(record.nodes)


def _liveness(case: Case) -> list[CheckResult]:
    """Return one result for each event that the recovery phase waits for."""
    record = case.evidence.record
    results: list[CheckResult] = []
    stall_kinds = {kind for _, kind, _ in LIVENESS}
    for id_, stall_kind, _ in LIVENESS:
        texts = [
            f"{stall.subject}: {stall.reason}"
            for stall in record.stalls
            if stall.what == stall_kind
            or (stall_kind == "set-up" and stall.what not in stall_kinds)
        ]
        findings = _emptied(case) if stall_kind == "replicas-equal" else Findings()
        texts += [example.text for example in findings.anomalies if isinstance(example, Example)]
        if not texts and not record.recovery_ns:
            reason = "the run had no recovery phase"
            results.append(not_applicable(id_, "waits", reason, severity=Severity.LIVENESS))
        else:
            grade, allowed = Severity.LIVENESS, findings.allowed
            results.append(judged(id_, 1, "waits", texts, severity=grade, allowed=allowed))
    return results


def _emptied(case: Case) -> Findings:
    """Return slaves whose disk an operator emptied in the recovery phase, as they reported to have
    nothing in common with their master's log. The trace must confirm that."""
    evidence, findings = case.evidence, Findings()
    for event in evidence.events(Function.NODE, "wipe"):
        if "reason" in event.fields:
            node, time_ns = event.node, event.time_ns
            lineage = case.losses.lineages[evidence.group_of_name(node)]
            ends, begins = lineage.ends[node], _begin(evidence, lineage.nodes, time_ns)
            common = lineage.held(node, time_ns - 1, ends.before(time_ns).written)
            is_wrong = ends.complete and common > begins and not _is_hit(evidence, node)
            cause = f"an operator emptied {node}, which said: {event.fields['reason']}"
            excuse = None if is_wrong else evidence.excuse(cause, time_ns)
            text = f"{node} refused its master, though they have the log up to {common} in common"
            findings.add(text, excuse=excuse, node=node, time_ns=time_ns)
    return findings


def _begin(evidence: Evidence, nodes: Collection[str], until_ns: int) -> int:
    """Return the highest offset at which these nodes' logs may begin by then: older messages
    expire."""
    expired = (event for event in evidence.events(Function.NODE, "expired") if event.node in nodes)
    ends = (
        event.fields["start"] + event.fields["size"]
        for event in expired
        if event.time_ns <= until_ns
    )
    return max(ends, default=0)


def _is_hit(evidence: Evidence, node: str) -> bool:
    """True if a node's disk was damaged or had a fault, which may hide what it has in common."""
    return any(
        event.kind in ("damaged", "damage", "disk") and node in targets_of(event)
        for event in evidence.history.events
    )


liveness = Check(
    tuple(id_ for id_, _, _ in LIVENESS),
    tuple(meaning for _, _, meaning in LIVENESS),
    _liveness,
    needs_history=False,
)


@check("sends-succeed", "sends", severity=Severity.LIVENESS)
def producers_succeed(case: Case, findings: Findings) -> int:
    """At least 99 % of the sends in the last third of the recovery phase are acknowledged, and
    as many of those that requested no answer are stored.

    With bursts, or on a machine that may be busy with other work, a node may refuse sends for a
    while to catch up. Then a send that a later attempt got acknowledged counts as good, one
    that had no time for another attempt is not judged, and from those without an answer as many may
    be missing as nodes counted refusals that no client received.
    """
    evidence, recovery_ns = case.evidence, case.evidence.record.recovery_ns
    attempts = _attempts(evidence)
    last = max((attempt.begun_ns for attempt in attempts), default=0)
    if not recovery_ns or last < recovery_ns:
        raise NotApplicable("the run had no recovery phase, or nothing was sent in it")
    begin = recovery_ns + (last - recovery_ns) * 2 // 3
    reserved_ns = evidence.record.reserved_ns
    kept_since_ns = (
        begin if reserved_ns is None else max(begin, evidence.record.end_ns - reserved_ns)
    )
    may_be_busy = evidence.record.backend != "sim" or bool(evidence.record.facts.get("burst"))
    newest = {attempt.operation: attempt for attempt in attempts}
    done = {attempt.operation for attempt in attempts if attempt.outcome == Outcome.OK}

    good_count = judged_count = 0
    for attempt in attempts:
        if attempt.begun_ns < begin:
            continue
        refused = may_be_busy and attempt.status == ResponseCode.SYSTEM_BUSY
        if refused and attempt.operation not in done:
            end = newest[attempt.operation]
            if end.status == ResponseCode.SYSTEM_BUSY and end.begun_ns > last - GIVEN_UP_NS:
                continue
        judged_count += attempt.messages
        if attempt.outcome == Outcome.OK or (refused and attempt.operation in done):
            good_count += attempt.messages
    if good_count < SUCCESS_MIN * judged_count:
        findings.add(f"{good_count} of {judged_count} sends were acknowledged")
    findings.note = f"{good_count} of {judged_count}"

    oneway = evidence.rows((Function.SEND_ONEWAY,))
    late = oneway.at(passes.above(oneway.column("invoked_ns"), kept_since_ns)).column("value")
    absent = passes.missing(late, evidence.stored.values)
    reported = sum(attempt.refused and attempt.begun_ns >= kept_since_ns for attempt in attempts)
    unreported = max(_refused(evidence, kept_since_ns) - reported, 0) if may_be_busy else 0
    if not evidence.no_final() and len(absent) - unreported > (1 - SUCCESS_MIN) * len(late):
        findings.add(
            f"{len(absent)} of {len(late)} sends without an answer are in no final log, and nodes"
            f" refused {unreported} of them at most"
        )
    return judged_count + len(late)


@check("requests-answered", "requests", severity=Severity.LIVENESS)
def answered_in_recovery(case: Case, findings: Findings) -> int:
    """At least 99 % of each kind of request are answered from 25 s after the faults, and in
    the last third of that time as many of the sends to listeners are acknowledged.

    No answer and no acknowledgement takes 4 s. For refusals see `sends-succeed`. In simulation
    only: a real machine may be busy.
    """
    evidence, record = case.evidence, case.evidence.record
    if record.backend != "sim":
        raise NotApplicable("how long an answer takes is a machine's, which may be busy")
    if not record.recovery_ns:
        raise NotApplicable("the run had no recovery phase")
    begin, examined = record.recovery_ns + HALF_OPEN_NS, 0
    may_be_busy = bool(record.facts.get("burst"))
    ends_ns = max((row.invoked_ns for row in evidence.rows((Function.TELL,)).each()), default=0)
    # As in `sends-succeed`: the first thirds may be needed for the recovery.
    tell_since_ns = max(begin, record.recovery_ns + (ends_ns - record.recovery_ns) * 2 // 3)
    for function in (*REQUESTS, Function.SEND, Function.TELL):
        requests = evidence.rows((function,))
        since_ns = tell_since_ns if function is Function.TELL else begin
        rows = map(requests.row, passes.above(requests.column("invoked_ns"), since_ns))
        # A client that is stopped while a request is pending gets no answer, not even a time-out.
        answered = [row for row in rows if row.returned_ns >= 0]
        if may_be_busy:
            answered = [row for row in answered if row.status != ResponseCode.SYSTEM_BUSY]
        successful = [row for row in answered if row.outcome == Outcome.OK]
        examined += len(answered)
        kind = function.name.lower()
        if function is not Function.SEND and len(successful) < SUCCESS_MIN * len(answered):
            findings.add(f"{len(successful)} of {len(answered)} requests {kind} were answered")
        for row in successful:
            elapsed_ns = row.returned_ns - row.invoked_ns
            if elapsed_ns >= LATE_NS:
                text = f"a request {kind} was answered after {elapsed_ns / 1e9:.1f} s"
                findings.add(text, time_ns=row.invoked_ns, distance=elapsed_ns)
    if not examined:
        raise NotApplicable(f"nothing was asked {HALF_OPEN_NS / 1e9:g} s after the faults")
    return examined


@dataclass(slots=True)
class _Attempt:
    """A request to store something, with the outcome of its first message."""

    operation: int
    begun_ns: int
    outcome: int
    status: int
    messages: int = 0

    @property
    def refused(self) -> bool:
        """True if a broker answered that it refused the request."""
        return self.outcome == Outcome.FAIL and self.status >= 0


def _attempts(evidence: Evidence) -> list[_Attempt]:
    """Return all requests that asked for an answer, by begin."""
    sends = evidence.rows((Function.SEND,))
    names = ("operation", "attempt", "invoked_ns", "outcome", "status")
    attempts: dict[tuple[int, int], _Attempt] = {}
    for row in zip(*map(sends.column, names), strict=True):
        operation, number, begun_ns, outcome, status = map(int, row)
        attempt = attempts.setdefault(
            (operation, number), _Attempt(operation, begun_ns, outcome, status)
        )
        attempt.messages += 1
    return sorted(attempts.values(), key=lambda attempt: attempt.begun_ns)


def _refused(evidence: Evidence, since_ns: int) -> int:
    """Return how many sends nodes refused since a time, by their own counters, which a start
    resets."""
    counts: dict[str, int] = {}
    total = 0
    for event in evidence.events(Function.NODE, "sample", "start"):
        count = int(event.fields.get("refused", 0)) if event.kind == "sample" else 0
        if event.kind == "sample" and event.time_ns >= since_ns:
            total += max(count - counts.get(event.node, 0), 0)
        counts[event.node] = count
    return total
