"""Was each message acknowledged, or read, only when its promise was fulfilled? I7 and I11 of
replication.md 7.17.

With a complete trace this needs no crash: at the moment of the acknowledgement the disk layer knows
what was written and on disk at every node, so an answer before the flush, or before the replica, is
found at once.
"""

from rocketbed.chaos.checks import passes
from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.ends import ENDLESS
from rocketbed.chaos.checks.evidence import SECOND_NS, Evidence
from rocketbed.chaos.checks.lineage import Lineage
from rocketbed.chaos.checks.loss_bound import Attempt, Losses
from rocketbed.chaos.checks.result import Example
from rocketbed.chaos.evidence.history import Function, Outcome, Row
from rocketbed.inspect.record import RECORD_SIZE_MIN

IN_FLIGHT_NS = 25 * SECOND_NS
"""Between a pull's answer and its row, at most: behind a partition a connection is kept for 20 s,
and a disk may be lost meanwhile (seed 869259)."""


@check("I7 acknowledged before its promise", "acknowledgements")
def early_acknowledgements(case: Case, found: Findings) -> int:
    """I7: the master, and as many nodes as promised, held each message when it was acknowledged."""
    traced = [
        lineage
        for lineage in case.losses.lineages
        if all(lineage.ends[node].complete for node in lineage.nodes)
    ]
    if not traced:
        raise NotApplicable("no complete trace of what was written and on disk")
    promise = case.evidence.record.promise
    found.note = (
        f"{promise.flush} flush, {promise.replication} replication, {promise.copies} copies"
    )
    return sum(_group(case.evidence, case.losses, lineage, found) for lineage in traced)


def _group(evidence: Evidence, losses: Losses, lineage: Lineage, found: Findings) -> int:
    """One group: all acknowledgements at their moment by columns, the doubtful one by one."""
    sends = evidence.sends
    own = passes.where(sends.column("outcome"), (Outcome.OK,))
    own = passes.take(own, passes.non_negative(passes.take(losses.attempts.ends, own)))
    ends = passes.take(losses.attempts.ends, own)
    moments = passes.take(sends.column("returned_ns"), own)
    levels = []
    for node in lineage.nodes:
        trace = lineage.ends[node].trace
        # Where a disk had lied less is asked for; `_judge` knows when that was.
        values = passes.column(trace.durable if evidence.flushes else trace.written)
        levels.append(passes.step(passes.column(trace.times), values, moments))
    numbers = passes.column([lineage.nodes.index(era.master) for era in lineage.eras])
    starts = passes.column([era.start_ns for era in lineage.eras])
    masters = passes.step(starts, numbers, moments)
    doubtful = set(passes.below(passes.choose(masters, levels), ends))
    # Where a node ever carried bytes that are not the truth's, ends alone say little.
    if any(base != ENDLESS for era in lineage.eras for base in era.base.values()):
        doubtful.update(range(len(own)))
    else:
        goal = passes.column([max(evidence.record.promise.copies, 1)] * len(own))
        doubtful.update(passes.below(passes.reached(levels, ends), goal))
    count = len(own)
    for at in sorted(doubtful):
        message = losses.attempts[int(own[at])]
        if message.group not in (lineage.group, -1):
            count -= 1
        elif (example := _judge(evidence, lineage, message, sends.row(message.number))) is not None:
            found.add(example, excuse=losses.split(message))
    return count + _told(evidence, losses, lineage, found)


def _told(evidence: Evidence, losses: Losses, lineage: Lineage, found: Findings) -> int:
    """The same of what was sent to listeners: its record ends where it can at least."""
    count = 0
    for row in evidence.rows((Function.TELL,), Outcome.OK).each():
        if evidence.group_of(row.node) not in (lineage.group, -1) or row.physical_offset < 0:
            continue
        count += 1
        end = row.physical_offset + row.length + RECORD_SIZE_MIN
        times = row.invoked_ns, row.returned_ns
        message = Attempt(row.number, row.value, lineage.group, True, *times, end, row.length)
        if (example := _judge(evidence, lineage, message, row)) is not None:
            found.add(example, excuse=losses.split(message))
    return count


@check("I11 read before it was on disk", "messages read")
def early_reads(case: Case, found: Findings) -> int:
    """I11: under synchronous flush a node gives readers only what is on its own disk.

    Else a power cut takes what somebody has acted upon. Judged are pulls whose node is known.
    """
    evidence, losses = case.evidence, case.losses
    if not evidence.flushes:
        raise NotApplicable("what is not on disk may be read under asynchronous flush")
    reads = evidence.rows((Function.GOT,))
    ends = passes.lookup(reads.column("value"), losses.attempts.values, losses.attempts.ends, -1)
    examined = 0
    for node, seen in losses.ends.items():
        number = next((at for at, name in evidence.history.nodes.items() if name == node), None)
        if number is None or not seen.complete:
            continue
        own = passes.where(reads.column("node"), (number,))
        times, levels = passes.column(seen.trace.times), passes.column(seen.trace.durable)
        moments = passes.take(reads.column("returned_ns"), own)
        reached = passes.step(times, levels, moments)
        examined += len(own)
        for at in passes.below(reached, passes.take(ends, own)):
            row, end = reads.row(int(own[at])), int(ends[int(own[at])])
            level = seen.highest(row.returned_ns - IN_FLIGHT_NS, row.returned_ns).durable
            if level < end:
                text = f"value {row.value}, which ends at log {end}, was given to a reader by"
                text += f" {node}, whose log was on disk up to {level}"
                example = evidence.example(row, text, node=node, distance=end - level)
                found.add(example, excuse=evidence.disks.damaged_by(node, row.returned_ns))
    if not examined:
        raise NotApplicable("no node whose disk was observed is known to have answered a pull")
    return examined


def _judge(evidence: Evidence, lineage: Lineage, message: Attempt, row: Row) -> Example | None:
    """One acknowledgement, looked at over all of the time in which it may have been given."""
    assert message.end is not None
    begin, end = message.invoked_ns, message.returned_ns
    promise = evidence.record.promise
    holders = []
    for node in lineage.nodes:
        level = evidence.counted(node, lineage.ends[node].highest(begin, end), end)
        reach = max(lineage.held(node, moment, level) for moment in (begin, end))
        if reach >= message.end:
            holders.append(node)
    masters = {lineage.era(begin).master, lineage.era(end).master}
    what = "on disk" if evidence.flushes else "written"
    if not masters.intersection(holders):
        wrong = f"was not {what} at {' or '.join(sorted(masters))}, the master"
    elif len(holders) < promise.copies:
        wrong = f"was {what} only at {', '.join(holders)}, and {promise.copies} copies are promised"
    else:
        return None
    return evidence.example(
        row,
        f"value {message.value}, which ends at log {message.end}, {wrong} when it was acknowledged",
        operation=row.operation,
        node=lineage.era(end).master,
        physical=row.physical_offset,
        time_ns=end,
        distance=message.end,
    )
