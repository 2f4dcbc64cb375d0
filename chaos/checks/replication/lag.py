"""Time that slaves take to copy what their master writes, if nothing is wrong."""

from bisect import bisect_left, bisect_right

from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.context import HALF_OPEN_NS
from rocketbed.chaos.checks.ends import NodeEnds
from rocketbed.chaos.checks.evidence import SECOND_NS
from rocketbed.chaos.checks.examples import spread
from rocketbed.chaos.checks.result import Severity
from rocketbed.chaos.evidence.history import Function

USUAL_NS = SECOND_NS // 2
"""Half of what a master writes is at its slave sooner."""
MANY_WRITES = 20
TRIPS = 3
"""Additional round trips on a slow network."""


@check("late-copies", "writes of masters", severity=Severity.LIVENESS)
def late_copies(case: Case, findings: Findings) -> int:
    """Once the time-outs of the fault phase are over, and it has caught up since its last
    start, a slave soon has half of what its master writes.

    In simulation, where each write is observed. The possible loss of an asynchronous master depends
    on it.
    """
    evidence, record = case.evidence, case.evidence.record
    if record.backend != "sim" or evidence.foreign or not record.recovery_ns:
        raise NotApplicable(
            "how long a copy takes is a machine's, or the run had no recovery phase"
        )
    recovery_ns = record.recovery_ns + HALF_OPEN_NS
    starts = evidence.events(Function.NODE, "start", "recovered", "cut")
    end_ns = record.stop_ns or record.end_ns
    all_times: list[int] = []
    for lineage in case.losses.lineages:
        master = lineage.era(end_ns).master
        for node in lineage.nodes:
            if node == master:
                continue
            changed_ns = [event.time_ns for event in starts if event.node in (node, master)]
            begin_ns = max([recovery_ns, *changed_ns])
            times = _copy_times(lineage.ends[master], lineage.ends[node], begin_ns, end_ns)
            all_times += times
            usual_ns = sorted(times)[len(times) // 2] if len(times) >= MANY_WRITES else 0
            if usual_ns > USUAL_NS + TRIPS * record.facts.get("link_ns", 0):
                findings.add(
                    f"half of {len(times)} writes of {master} were at {node} only after"
                    f" {usual_ns / 1e9:.2f} s",
                    node=node,
                    distance=usual_ns,
                )
    if not all_times:
        raise NotApplicable("no master with a slave wrote anything in the recovery phase")
    findings.figures = spread("copied", all_times)
    return len(all_times)


def _copy_times(master: NodeEnds, slave: NodeEnds, begin_ns: int, end_ns: int) -> list[int]:
    """Return for each write of a master the time until the slave had it, if it ever did, since the
    time at which the slave had caught up."""
    low, high = bisect_right(slave.trace.times, begin_ns) - 1, len(slave.trace.times)
    if low < 0 or not (master.complete and slave.complete):
        return []
    low = bisect_left(slave.trace.written, master.at(begin_ns).written, low, high)
    if low == high:
        return []
    begin_ns = max(slave.trace.times[low], begin_ns)
    first, last = (bisect_left(master.trace.times, at) for at in (begin_ns, end_ns))
    delays: list[int] = []
    for time_ns, written in zip(
        master.trace.times[first:last], master.trace.written[first:last], strict=True
    ):
        at = bisect_left(slave.trace.written, written, low, high)
        if at < high:
            delays.append(max(slave.trace.times[at] - time_ns, 0))
    return delays
