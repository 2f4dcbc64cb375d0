"""What a scenario expects beyond the promise of its configuration: recovery, progress, no loss.

Each is judged only where the scenario asks for it; a miss means that the service level was missed,
not that a promise was broken (chaos.md 2.8, 4.9).
"""

from bisect import bisect_right
from collections.abc import Iterable

from rocketbed.chaos.checkers.context import FaultSpan, faults
from rocketbed.chaos.checkers.evidence import SECOND_NS, SENDS, Evidence
from rocketbed.chaos.checkers.loss_bound import Losses
from rocketbed.chaos.checkers.result import (
    CheckResult,
    Example,
    Severity,
    judged,
    not_applicable,
    not_run,
)
from rocketbed.chaos.history import Outcome
from rocketbed.chaos.record import RunRecord

RECOVERY = "X1 recovery time"
PROGRESS = "X2 progress"
NO_LOSS = "X3 nothing lost"
UNASKED = "the scenario does not ask for it"
_AGAINST_CLIENTS = ("kill", "pause", "isolate", "partition", "link", "cpu", "swizzle")


def recovery_time(evidence: Evidence) -> CheckResult:
    """X1: no producer had to wait longer than `rto_s` for an acknowledgement.

    An outage is a time in which a producer had sends under way and got no acknowledgement, and in
    which at least one of them failed. Times in which the scenario held the producer itself are left
    out.
    """
    limit_s = evidence.record.expect.rto_s
    if limit_s is None:
        return not_applicable(RECOVERY, "producers", UNASKED, severity=Severity.LIVENESS)
    producers = _attempts(evidence)
    held = _held_clients(evidence)
    findings: list[Example] = []
    longest_s = 0.0
    for process, attempts in sorted(producers.items()):
        for begin_ns, end_ns in outages(attempts):
            if any(fault.begin_ns < end_ns and begin_ns < fault.end_ns for fault in held):
                continue
            seconds = (end_ns - begin_ns) / SECOND_NS
            longest_s = max(longest_s, seconds)
            if seconds > limit_s:
                text = f"producer {process} got no acknowledgement for {seconds:.2f} s"
                findings.append(Example(text, time_ns=begin_ns, distance=end_ns - begin_ns))
    note = f"longest outage {longest_s:.2f} s, expected at most {limit_s:g} s"
    figures = {"longest_s": round(longest_s, 3), "limit_s": limit_s}
    return judged(
        RECOVERY,
        len(producers),
        "producers",
        findings,
        note,
        severity=Severity.LIVENESS,
        figures=figures,
    )


def outages(attempts: Iterable[tuple[int, int, bool]]) -> list[tuple[int, int]]:
    """Begin and end of each outage of one producer, from its attempts.

    Attempts are (invoked, returned, acknowledged) in nanoseconds. One that never ended is counted
    up to the last failure.
    """
    found: list[tuple[int, int]] = []
    last_ok = begin = end = None
    for returned, invoked, is_ok in sorted((one[1], one[0], one[2]) for one in attempts):
        if not is_ok:
            wanted = invoked if last_ok is None else max(invoked, last_ok)
            begin = wanted if begin is None else min(begin, wanted)
            end = returned
            continue
        if begin is not None:
            found.append((begin, returned))
        last_ok, begin, end = returned, None, None
    if begin is not None and end is not None:
        found.append((begin, end))
    return found


def progress(evidence: Evidence) -> CheckResult:
    """X2: any stretch of the storm of the given length has the given number of acknowledgements."""
    record = evidence.record
    if record.expect.progress is None:
        return not_applicable(PROGRESS, "times", UNASKED, severity=Severity.LIVENESS)
    count, seconds = record.expect.progress
    begin_ns, end_ns = _storm(record)
    span_ns = round(seconds * SECOND_NS)
    last_ns = end_ns - span_ns
    if last_ns < begin_ns:
        reason = f"the storm was shorter than {seconds:g} s"
        return not_applicable(PROGRESS, "times", reason, severity=Severity.LIVENESS)
    acknowledged = sorted(map(int, evidence.acknowledged.column("returned_ns")))
    starts = [begin_ns, *(time_ns for time_ns in acknowledged if begin_ns <= time_ns <= last_ns)]
    findings: list[Example] = []
    fewest: int | None = None
    told_until = -1
    for start in starts:
        end = start + span_ns
        within = bisect_right(acknowledged, end) - bisect_right(acknowledged, start)
        fewest = within if fewest is None else min(fewest, within)
        if within < count and start > told_until:
            told_until = end
            text = f"{within} acknowledgements in {seconds:g} s, expected at least {count}"
            findings.append(Example(text, time_ns=start, distance=count - within))
    note = f"fewest {fewest} in {seconds:g} s, expected at least {count}"
    return judged(
        PROGRESS,
        len(starts),
        "times",
        findings,
        note,
        severity=Severity.LIVENESS,
        figures={"fewest": fewest, "expected": count},
    )


def nothing_lost(evidence: Evidence, losses: Losses) -> CheckResult:
    """X3: no acknowledged message is gone, not even one that the configuration allows to lose."""
    unit = "acknowledged messages"
    if evidence.record.expect.loss != "none":
        return not_applicable(NO_LOSS, unit, UNASKED, severity=Severity.LIVENESS)
    if missing := evidence.no_final():
        return not_run(NO_LOSS, unit, missing, severity=Severity.LIVENESS)
    findings = []
    for message in sorted(losses.missing, key=lambda message: message.number):
        row = evidence.sends.row(message.number)
        findings.append(
            Example(
                f"value {row.value}, acknowledged in queue {row.queue} at {row.queue_offset}, is"
                " gone",
                value=row.value,
                operation=row.operation,
                topic=evidence.history.topic(row),
                queue=row.queue,
                offset=row.queue_offset,
                physical=row.physical_offset,
                time_ns=row.returned_ns,
            )
        )
    count = len(evidence.acknowledged)
    note = f"{len(findings)} of {count}"
    return judged(NO_LOSS, count, unit, findings, note, severity=Severity.LIVENESS)


def _attempts(evidence: Evidence) -> dict[int, list[tuple[int, int, bool]]]:
    sends = evidence.rows(SENDS)
    producers: dict[int, list[tuple[int, int, bool]]] = {}
    for process, invoked, returned, outcome in zip(
        sends.column("process"),
        sends.column("invoked_ns"),
        sends.column("returned_ns"),
        sends.column("outcome"),
        strict=True,
    ):
        attempt = int(invoked), int(returned), int(outcome) == Outcome.OK
        producers.setdefault(int(process), []).append(attempt)
    return producers


def _held_clients(evidence: Evidence) -> list[FaultSpan]:
    """Steps that held a client rather than the cluster."""
    nodes = {node for nodes in evidence.record.groups.values() for node in nodes}
    return [
        fault
        for fault in faults(evidence)
        if fault.verb in _AGAINST_CLIENTS
        and any(name not in nodes and not name.startswith("ns") for name in fault.targets)
    ]


def _storm(record: RunRecord) -> tuple[int, int]:
    return int(record.facts.get("zero_ns", 0)), record.calm_ns
