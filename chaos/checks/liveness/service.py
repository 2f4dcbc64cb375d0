"""Expectations of a scenario beyond the promise of its configuration: recovery, progress, no loss.

Each is judged only if the scenario requests it. A miss means that the service level was missed, not
that a promise was broken (chaos.md 2.8, 4.9).
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable

from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, NotRun, check
from rocketbed.chaos.checks.context import faults
from rocketbed.chaos.checks.evidence import SECOND_NS
from rocketbed.chaos.checks.result import Severity
from rocketbed.chaos.evidence.history import Outcome

UNASKED = "the scenario does not ask for it"
_AGAINST_CLIENTS = ("kill", "pause", "isolate", "partition", "link", "cpu", "swizzle")


@check("recovery-time", "producers", severity=Severity.LIVENESS)
def recovery_time(case: Case, findings: Findings) -> int:
    """No producer had to wait longer than `rto` for an acknowledgement.

    An outage is a period in which a producer had pending sends and got no acknowledgement, whether
    one of them failed or was answered at its end. Periods in which the scenario held up the
    producer itself are left out.
    """
    limit_s = case.evidence.record.expect.rto_s
    if limit_s is None:
        raise NotApplicable(UNASKED)
    producers: dict[int, list[tuple[int, int, bool]]] = defaultdict(list)
    names = ("process", "invoked_ns", "returned_ns", "outcome")
    columns = (map(int, case.evidence.sends.column(name)) for name in names)
    for process, invoked, returned, outcome in zip(*columns, strict=True):
        producers[process].append((invoked, returned, outcome == Outcome.OK))
    nodes = case.evidence.record.nodes
    held = [  # steps that held up a client and not the cluster
        fault
        for fault in faults(case.evidence)
        if fault.verb in _AGAINST_CLIENTS
        and any(name not in nodes and not name.startswith("ns") for name in fault.targets)
    ]
    longest_s = 0.0
    for process, attempts in sorted(producers.items()):
        for begin_ns, end_ns in outages(attempts):
            if any(fault.begin_ns < end_ns and begin_ns < fault.end_ns for fault in held):
                continue
            seconds = (end_ns - begin_ns) / SECOND_NS
            longest_s = max(longest_s, seconds)
            if seconds > limit_s:
                text = f"producer {process} got no acknowledgement for {seconds:.2f} s"
                findings.add(text, time_ns=begin_ns, distance=end_ns - begin_ns)
    findings.note = f"longest outage {longest_s:.2f} s, expected at most {limit_s:g} s"
    findings.figures = {"longest_s": round(longest_s, 3), "limit_s": limit_s}
    return len(producers)


def outages(attempts: Iterable[tuple[int, int, bool]]) -> list[tuple[int, int]]:
    """Return begin and end of each wait of one producer for an acknowledgement.

    Attempts are (invoked, returned, acknowledged) in nanoseconds. A wait that never ended is
    counted up to the last failure.
    """
    waits: list[tuple[int, int]] = []
    last_ok = begin = end = None
    for returned, invoked, is_ok in sorted(
        (attempt[1], attempt[0], attempt[2]) for attempt in attempts
    ):
        waiting_since = invoked if last_ok is None else max(invoked, last_ok)
        if not is_ok:
            begin = waiting_since if begin is None else min(begin, waiting_since)
            end = returned
            continue
        waits.append((waiting_since if begin is None else min(begin, waiting_since), returned))
        last_ok, begin, end = returned, None, None
    if begin is not None and end is not None:
        waits.append((begin, end))
    return waits


@check("progress", "times", severity=Severity.LIVENESS)
def progress(case: Case, findings: Findings) -> int:
    """Any stretch of the fault phase of the given length has at least the given number of
    acknowledgements."""
    record = case.evidence.record
    if record.expect.progress is None:
        raise NotApplicable(UNASKED)
    count, seconds = record.expect.progress
    begin_ns = int(record.facts.get("zero_ns", 0))
    span_ns = round(seconds * SECOND_NS)
    last_ns = record.recovery_ns - span_ns
    if last_ns < begin_ns:
        raise NotApplicable(f"the fault phase was shorter than {seconds:g} s")
    acknowledged = sorted(map(int, case.evidence.acknowledged.column("returned_ns")))
    starts = [begin_ns, *(time_ns for time_ns in acknowledged if begin_ns <= time_ns <= last_ns)]
    fewest: int | None = None
    reported_until = -1
    for start in starts:
        end = start + span_ns
        within = bisect_right(acknowledged, end) - bisect_right(acknowledged, start)
        fewest = within if fewest is None else min(fewest, within)
        if within < count and start > reported_until:
            reported_until = end
            text = f"{within} acknowledgements in {seconds:g} s, expected at least {count}"
            findings.add(text, time_ns=start, distance=count - within)
    findings.note = f"fewest {fewest} in {seconds:g} s, expected at least {count}"
    findings.figures = {"fewest": fewest, "expected": count}
    return len(starts)


@check("nothing-lost", "acknowledged messages", severity=Severity.LIVENESS)
def nothing_lost(case: Case, findings: Findings) -> int:
    """No acknowledged message is missing, not even one that the configuration allows to
    lose."""
    evidence, losses = case.evidence, case.losses
    if evidence.record.expect.loss != "none":
        raise NotApplicable(UNASKED)
    if missing := evidence.no_final():
        raise NotRun(missing)
    for message in sorted(losses.missing, key=lambda message: message.number):
        row = evidence.sends.row(message.number)
        place = f"queue {row.queue} at {row.queue_offset}"
        text = f"value {row.value}, acknowledged in {place}, is gone"
        physical = row.physical_offset
        findings.add(evidence.example(row, text, operation=row.operation, physical=physical))
    count = len(evidence.acknowledged)
    findings.note = f"{len(losses.missing)} of {count}"
    return count
