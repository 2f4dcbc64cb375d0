"""Followers remove from disk what they truncate."""

from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.evidence.history import Event, Function


@check("truncation-on-disk", "truncations")
def cuts_on_disk(case: Case, findings: Findings) -> int:
    """Before a replica follows, the log files no longer have what it truncated, or read
    as zeros there.

    Otherwise a crash before it is overwritten would bring it back. With failover no copy shows what
    was truncated, but the disk layer observed the end of the log.
    """
    evidence = case.evidence
    if not evidence.elects or evidence.foreign:
        raise NotApplicable(
            "without failover a node keeps what it truncates, which says more"
            " (truncated-bytes-return, truncated-bytes-kept)"
        )
    examined = 0
    begun: dict[str, Event] = {}
    for event in evidence.events(Function.NODE, "cut", "followed", "exit"):
        if event.kind == "cut":
            begun[event.node] = event
        elif (cut := begun.pop(event.node, None)) is not None and event.kind == "followed":
            start, ends = cut.fields.get("start"), case.losses.ends[event.node]
            if not isinstance(start, int) or not ends.complete:
                continue
            before = ends.before(cut.time_ns).written
            if before <= start:
                continue
            examined += 1
            if not ends.was_cut(start, cut.time_ns - 1, event.time_ns):
                findings.add(
                    f"{event.node} truncated its log at {start} and followed, and {before} bytes of"
                    " it were still there",
                    excuse=evidence.disks.damaged_by(event.node, event.time_ns),
                    node=event.node,
                    physical=start,
                    time_ns=event.time_ns,
                )
    if not examined:
        raise NotApplicable("no replica truncated its log, or no trace is whole")
    return examined
