"""What retention may take, and took: nothing younger than its promise (S24)."""

from rocketbed.chaos.checks import passes
from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.keys import OFFSET_BITS, OFFSET_MASK
from rocketbed.chaos.checks.reads import example_of
from rocketbed.chaos.evidence.history import Function
from rocketbed.client.pulls import PullStatus

ROUND_NS = 5_000_000_000
"""Longer than between two rounds of retention."""
ROUNDS = 4
"""In so many what is old is gone."""
RISES = 6
"""What goes stands below the durable mark. That rises again after five times as long as its last
rise took, in which each file was synced, of a wiped slave all that it had copied (seed 1331217)."""


@check("S24 retention", "segments deleted")
def retention(case: Case, found: Findings) -> int:
    """S24: no segment was deleted that held a message younger than promised, no reader was moved
    past one, and in the calm every node deletes what is old.

    A message is at least as young as its send; what was lost is not looked for.
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
                found.add(example_of(evidence, row, text, young_ns))
    kept = _kept(case, found, reserved_ns)
    examined = len(deleted) + _moved(case, found, reserved_ns)
    if not examined and not kept:
        raise NotApplicable("no segment was old enough")
    return examined


def _kept(case: Case, found: Findings, reserved_ns: int) -> bool:
    """Whether some first segment had nothing but old messages before nodes were stopped, which may
    take long (seed 1290043), and the log went on. One that was old when the calm began, or its node
    was there again, has had rounds enough to be deleted in."""
    evidence, record, is_due = case.evidence, case.evidence.record, False
    sends, stop_ns = list(evidence.acknowledged.each()), record.stop_ns or record.end_ns
    changes = evidence.events(Function.NODE, "start", "exit")
    every_ns = max(ROUND_NS, record.facts.get("retention_round_ns", 0))
    syncs_ns: dict[str, int] = record.facts.get("disks_ns", {})
    is_judged = record.calm_ns and record.facts.get("retention_round_ns")
    is_judged = is_judged and not evidence.events(Function.NEMESIS, "clock")
    for log in evidence.nodes:
        end = log.log_min + log.directory.sizes.segment
        ours = [row for row in sends if evidence.group_of(row.node) == log.group]
        times = [row.invoked_ns for row in ours if log.log_min <= row.physical_offset < end]
        if log.log_end <= end or not times:
            continue
        old_ns = max(times) + reserved_ns
        is_due = is_due or old_ns + ROUND_NS < stop_ns
        # A node goes by what stands behind a segment.
        behind = [row.returned_ns for row in ours if row.physical_offset >= end]
        last = [one for one in changes if one.node == log.name and one.time_ns < stop_ns][-1:]
        is_up = not any(one.what == "exit" for one in last)
        since_ns = max(
            *(record.calm_ns, old_ns, min(behind, default=stop_ns) + reserved_ns),
            *(one.time_ns for one in last),
        )
        files = (log.log_end - log.log_min) // log.directory.sizes.segment
        needs_ns = ROUNDS * every_ns + RISES * files * syncs_ns.get(log.name, 0)
        is_sound = evidence.disks.damaged_by(log.name, stop_ns) is None
        if is_judged and is_up and is_sound and since_ns + needs_ns < stop_ns:
            found.add(
                f"{log.name} keeps its segment {log.log_min}, all of which was old"
                f" {(stop_ns - since_ns) / 1e9:.1f} s before it was stopped",
                node=log.name,
                time_ns=stop_ns,
                distance=stop_ns - since_ns,
            )
    return is_due


def _moved(case: Case, found: Findings, reserved_ns: int) -> int:
    """Readers that were told to go on later; how many."""
    evidence = case.evidence
    pulls = evidence.rows((Function.PULL,))
    moved = pulls.at(passes.where(pulls.column("status"), (PullStatus.MOVED.value,)))
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
                and (one := sends.row(number)).value not in case.losses.excuses
            ):
                text = f"was passed over by a reader {young_ns / 1e9:.1f} s before it was old"
                found.add(example_of(evidence, one, text, young_ns))
    return len(moved)
