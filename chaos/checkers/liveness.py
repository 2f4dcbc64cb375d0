"""Did everything come back when the faults were over, and did no process end by itself? 2.8."""

from rocketbed.chaos.checkers.evidence import SENDS, Evidence
from rocketbed.chaos.checkers.result import CheckResult, Example, Severity, judged, not_applicable
from rocketbed.chaos.history import Outcome

LIVENESS: tuple[tuple[str, str], ...] = (
    ("L0 set up", "set-up"),
    ("L1 leader serves", "leader"),
    ("L2 replicas in sync", "in-sync"),
    ("L3 producers go on", "producers"),
    ("L4 everything read", "drain"),
    ("L5 replicas equal", "replicas-equal"),
    ("L6 nodes stop", "stop"),
)
"""Name, and the stall of `record.Stall` that breaks it."""
SUCCESS_MIN = 0.99
"""Share of sends in the last third of the calm phase that have to be acknowledged."""


def crashes(evidence: Evidence) -> CheckResult:
    """C1: no process ended that no fault had ended."""
    findings = [
        Example(
            f"{crash.node} ended by itself: {crash.reason}", node=crash.node, time_ns=crash.time_ns
        )
        for crash in evidence.record.crashes
    ]
    nodes = sum(len(nodes) for nodes in evidence.record.groups.values())
    return judged("C1 no node ended by itself", nodes, "nodes", findings, severity=Severity.CRASH)


def liveness(evidence: Evidence) -> list[CheckResult]:
    """L0 to L6: what the calm phase waited for has come."""
    record = evidence.record
    results: list[CheckResult] = []
    known = {what for _, what in LIVENESS}
    for title, what in LIVENESS:
        findings = [
            Example(f"{stall.subject}: {stall.reason}")
            for stall in record.stalls
            if stall.what == what or (what == "set-up" and stall.what not in known)
        ]
        if not findings and not record.calm_ns:
            reason = "the run had no calm phase"
            results.append(not_applicable(title, "waits", reason, severity=Severity.LIVENESS))
        else:
            results.append(judged(title, 1, "waits", findings, severity=Severity.LIVENESS))
    return results


def producers_succeed(evidence: Evidence) -> CheckResult:
    """L7: at least 99 % of the sends in the last third of the calm phase are acknowledged."""
    title, unit = "L7 sends succeed in calm", "sends"
    record = evidence.record
    sends = evidence.rows(SENDS)
    times = [time_ns for time_ns in sends.column("invoked_ns") if time_ns >= record.calm_ns]
    if not record.calm_ns or not times:
        reason = "the run had no calm phase, or nothing was sent in it"
        return not_applicable(title, unit, reason, severity=Severity.LIVENESS)
    begin = record.calm_ns + (max(times) - record.calm_ns) * 2 // 3
    outcomes = [
        outcome
        for time_ns, outcome in zip(
            sends.column("invoked_ns"), sends.column("outcome"), strict=True
        )
        if time_ns >= begin
    ]
    good = sum(outcome == Outcome.OK for outcome in outcomes)
    findings: list[Example] = []
    if good < SUCCESS_MIN * len(outcomes):
        findings.append(Example(f"{good} of {len(outcomes)} sends were acknowledged"))
    note = f"{good} of {len(outcomes)}"
    return judged(title, len(outcomes), unit, findings, note, severity=Severity.LIVENESS)
