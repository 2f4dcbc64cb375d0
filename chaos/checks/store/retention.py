"""Retention deletes nothing that is younger than promised."""

from rocketbed.chaos.checks import passes
from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.examples import example_of
from rocketbed.chaos.checks.keys import OFFSET_BITS, OFFSET_MASK
from rocketbed.chaos.evidence.history import Function
from rocketbed.client.pulls import PullStatus

ROUND_NS = 5_000_000_000
"""Longer than the time between two rounds of retention."""
ROUNDS = 4
"""Rounds after which everything old is deleted."""
RISES = 6
"""Multiple of the sync time of a log's files after which the durable mark has risen.

Only messages below the mark are deleted. It rises again after five times as long as its last rise
took, in which each file was synced, on a wiped slave all that it had copied.
"""


@check("retention", "segments deleted")
def retention(case: Case, findings: Findings) -> int:
    """No segment was deleted that held a message younger than promised, no reader was moved
    past one, and in the recovery phase every node deletes what is old.

    A message is at least as young as its send. Lost messages are not considered.
    """
    evidence, losses = case.evidence, case.losses
    reserved_ns = evidence.record.reserved_ns
    if reserved_ns is None:
        raise NotApplicable("nothing was allowed to expire")
    sends = evidence.acknowledged
    groups = passes.column([evidence.group_of(int(node)) for node in sends.column("node")])
    places, invoked = sends.column("physical_offset"), sends.column("invoked_ns")
    deleted = evidence.events(Function.NODE, "expired")
    for event in deleted:
        begin = int(event.fields["start"])
        end, group = begin + int(event.fields["size"]), evidence.group_of_name(event.node)
        for at, place in enumerate(map(int, places)):
            young_ns = int(invoked[at]) + reserved_ns - event.time_ns
            if begin <= place < end and young_ns > 0 and int(groups[at]) == group:
                row = sends.row(at)
                if row.value in losses.excuses:
                    continue
                text = f"was deleted on {event.node} {young_ns / 1e9:.1f} s before it was old"
                findings.add(example_of(evidence, row, text, young_ns))
    has_old_segment = _add_old_segments(case, findings, reserved_ns)
    examined = len(deleted) + _add_moved_readers(case, findings, reserved_ns)
    if not examined and not has_old_segment:
        raise NotApplicable("no segment was old enough")
    return examined


def _add_old_segments(case: Case, findings: Findings, reserved_ns: int) -> bool:
    """True if some first segment had only old messages before nodes were stopped, which may take
    long, and the log went on.

    A segment that was old when the recovery phase began, or when its node was back, had enough
    rounds to be deleted in.
    """
    evidence, record, is_due = case.evidence, case.evidence.record, False
    sends, stop_ns = list(evidence.acknowledged.each()), record.stop_ns or record.end_ns
    changes = evidence.events(Function.NODE, "start", "exit")
    every_ns = max(ROUND_NS, record.facts.get("retention_round_ns", 0))
    syncs_ns: dict[str, int] = record.facts.get("disks_ns", {})
    is_judged = record.recovery_ns and record.facts.get("retention_round_ns")
    is_judged = is_judged and not evidence.events(Function.NEMESIS, "clock")
    for log in evidence.nodes:
        end = log.log_min + log.directory.sizes.segment
        group_sends = [row for row in sends if evidence.group_of(row.node) == log.group]
        times = [row.invoked_ns for row in group_sends if log.log_min <= row.physical_offset < end]
        if log.log_end <= end or not times:
            continue
        old_ns = max(times) + reserved_ns
        is_due = is_due or old_ns + ROUND_NS < stop_ns
        # A node goes by the age of what follows a segment.
        later_sends = [row.returned_ns for row in group_sends if row.physical_offset >= end]
        last_changes = [
            event for event in changes if event.node == log.name and event.time_ns < stop_ns
        ][-1:]
        is_up = not any(event.kind == "exit" for event in last_changes)
        since_ns = max(
            *(record.recovery_ns, old_ns, min(later_sends, default=stop_ns) + reserved_ns),
            *(event.time_ns for event in last_changes),
        )
        files = (log.log_end - log.log_min) // log.directory.sizes.segment
        needs_ns = ROUNDS * every_ns + RISES * files * syncs_ns.get(log.name, 0)
        is_sound = evidence.disks.damaged_by(log.name, stop_ns) is None
        if is_judged and is_up and is_sound and since_ns + needs_ns < stop_ns:
            findings.add(
                f"{log.name} keeps its segment {log.log_min}, all of which was old"
                f" {(stop_ns - since_ns) / 1e9:.1f} s before it was stopped",
                node=log.name,
                time_ns=stop_ns,
                distance=stop_ns - since_ns,
            )
    return is_due


def _add_moved_readers(case: Case, findings: Findings, reserved_ns: int) -> int:
    """Add readers that were moved past young messages; return how many were moved."""
    evidence = case.evidence
    pulls = evidence.rows((Function.PULL,))
    moved = pulls.at(passes.matching(pulls.column("status"), (PullStatus.MOVED.value,)))
    queues = evidence.queue_numbers(moved)
    sends = evidence.acknowledged
    keys, invoked = evidence.keys(sends), sends.column("invoked_ns")
    for at in range(len(moved)):
        row, queue = moved.row(at), int(queues[at])
        low, high = row.queue_offset, row.physical_offset
        for number, key in enumerate(map(int, keys)):
            inside = key >> OFFSET_BITS == queue and low <= (key & OFFSET_MASK) < high
            young_ns = int(invoked[number]) + reserved_ns - row.returned_ns
            if (
                inside
                and young_ns > 0
                and (row_of_send := sends.row(number)).value not in case.losses.excuses
            ):
                text = f"was passed over by a reader {young_ns / 1e9:.1f} s before it was old"
                findings.add(example_of(evidence, row_of_send, text, young_ns))
    return len(moved)
