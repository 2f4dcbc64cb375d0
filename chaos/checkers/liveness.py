"""Did everything come back when the faults were over, and did no process end by itself? 2.8."""

from rocketbed.chaos.checkers import passes
from rocketbed.chaos.checkers.check import Case, Check, Findings, NotApplicable, check
from rocketbed.chaos.checkers.evidence import Evidence
from rocketbed.chaos.checkers.result import CheckResult, Severity, judged, not_applicable
from rocketbed.chaos.history import Function, Outcome
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
)
"""Name, and the stall of `record.Stall` that breaks it."""
SUCCESS_MIN = 0.99
"""Share of sends in the last third of the calm phase that have to be acknowledged, or stored
where nobody asked for an answer."""


@check("C1 no node ended by itself", "nodes", severity=Severity.CRASH, needs_history=False)
def crashes(case: Case, found: Findings) -> int:
    """C1: no process ended that no fault had ended."""
    record = case.evidence.record
    for crash in record.crashes:
        text = f"{crash.node} ended by itself: {crash.reason}"
        found.add(text, node=crash.node, time_ns=crash.time_ns)
    return len(record.nodes)


def _liveness(case: Case) -> list[CheckResult]:
    """L0 to L8: what the calm phase waited for has come."""
    record = case.evidence.record
    results: list[CheckResult] = []
    known = {what for _, what in LIVENESS}
    for title, what in LIVENESS:
        findings = [
            f"{stall.subject}: {stall.reason}"
            for stall in record.stalls
            if stall.what == what or (what == "set-up" and stall.what not in known)
        ]
        if not findings and not record.calm_ns:
            reason = "the run had no calm phase"
            results.append(not_applicable(title, "waits", reason, severity=Severity.LIVENESS))
        else:
            results.append(judged(title, 1, "waits", findings, severity=Severity.LIVENESS))
    return results


liveness = Check(tuple(title for title, _ in LIVENESS), _liveness, needs_history=False)


@check("L7 sends succeed in calm", "sends", severity=Severity.LIVENESS)
def producers_succeed(case: Case, found: Findings) -> int:
    """L7: at least 99 % of the sends in the last third of the calm phase are acknowledged.

    And as many of those that asked for no answer are stored, but for those that nodes counted as
    refused: a busy node drops these. One that was refused because the node was busy, and
    acknowledged in another attempt, counts as good: bursts are there to meet limits.
    """
    evidence, calm_ns = case.evidence, case.evidence.record.calm_ns
    sends = evidence.rows((Function.SEND,))
    begun = [int(time_ns) for time_ns in sends.column("invoked_ns")]
    last = max(begun, default=0)
    if not calm_ns or last < calm_ns:
        raise NotApplicable("the run had no calm phase, or nothing was sent in it")
    begin = calm_ns + (last - calm_ns) * 2 // 3
    names = ("outcome", "status", "operation")
    rows = zip(begun, *map(sends.column, names), strict=True)
    outcomes = [tuple(map(int, row[1:])) for row in rows if row[0] >= begin]
    done = {operation for outcome, _, operation in outcomes if outcome == Outcome.OK}
    good = sum(
        outcome == Outcome.OK or (status == ResponseCode.SYSTEM_BUSY and operation in done)
        for outcome, status, operation in outcomes
    )
    if good < SUCCESS_MIN * len(outcomes):
        found.add(f"{good} of {len(outcomes)} sends were acknowledged")
    found.note = f"{good} of {len(outcomes)}"
    oneway = evidence.rows((Function.SEND_ONEWAY,))
    reserved_ns = evidence.record.reserved_ns
    since_ns = begin if reserved_ns is None else max(begin, evidence.record.end_ns - reserved_ns)
    late = oneway.at(passes.above(oneway.column("invoked_ns"), since_ns)).column("value")
    absent = passes.missing(late, evidence.stored.values)
    answered = sum(outcome in (Outcome.FAIL, Outcome.WEAK) for outcome, _, _ in outcomes)
    refused = max(_refused(evidence, since_ns) - answered, 0)
    if not evidence.no_final() and len(absent) - refused > (1 - SUCCESS_MIN) * len(late):
        found.add(
            f"{len(absent)} of {len(late)} sends without an answer are in no final log, and nodes"
            f" refused {refused} of them at most"
        )
    return len(outcomes) + len(late)


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
