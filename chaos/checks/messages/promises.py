"""Messages are acknowledged, and delivered, only when their promise is fulfilled.

With a complete trace this needs no crash: at the time of the acknowledgement the disk layer knows
what was written and durable at every node, so an answer before the flush, or before the replica, is
detected at once.
"""

from rocketbed.chaos.checks import passes
from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.ends import ENDLESS
from rocketbed.chaos.checks.evidence import SECOND_NS, Evidence
from rocketbed.chaos.checks.loss.bound import Attempt, Losses
from rocketbed.chaos.checks.loss.lineage import Lineage
from rocketbed.chaos.checks.result import Example
from rocketbed.chaos.evidence.history import Function, Outcome, Row
from rocketbed.inspect.record import RECORD_SIZE_MIN

IN_FLIGHT_NS = 25 * SECOND_NS
"""Maximum time between a pull's answer and its row: during a partition a connection is kept for 20
s, and a disk may be lost meanwhile."""


@check("acked-before-durable", "acknowledgements")
def early_acknowledgements(case: Case, findings: Findings) -> int:
    """The master and as many nodes as promised hold a message when it is acknowledged."""
    traced = [
        lineage
        for lineage in case.losses.lineages
        if all(lineage.ends[node].complete for node in lineage.nodes)
    ]
    if not traced:
        raise NotApplicable("no complete trace of what was written and on disk")
    promise = case.evidence.record.promise
    findings.note = (
        f"{promise.flush} flush, {promise.replication} replication, {promise.copies} copies"
    )
    return sum(_group(case.evidence, case.losses, lineage, findings) for lineage in traced)


def _group(evidence: Evidence, losses: Losses, lineage: Lineage, findings: Findings) -> int:
    """Judge one group: all acknowledgements by columns, then the doubtful ones one at a time."""
    sends = evidence.sends
    acknowledged = passes.matching(sends.column("outcome"), (Outcome.OK,))
    acknowledged = passes.take(
        acknowledged, passes.non_negative(passes.take(losses.attempts.ends, acknowledged))
    )
    ends = passes.take(losses.attempts.ends, acknowledged)
    moments = passes.take(sends.column("returned_ns"), acknowledged)
    levels = []
    for node in lineage.nodes:
        trace = lineage.ends[node].trace
        # If a disk had lied, less is required; `_judge` considers that.
        values = passes.column(trace.durable if evidence.flushes else trace.written)
        levels.append(passes.step(passes.column(trace.times), values, moments))
    numbers = passes.column([lineage.nodes.index(era.master) for era in lineage.eras])
    starts = passes.column([era.start_ns for era in lineage.eras])
    masters = passes.step(starts, numbers, moments)
    doubtful = set(passes.below(passes.choose(masters, levels), ends))
    # If a node ever carried diverged bytes, ends alone prove little.
    if any(base != ENDLESS for era in lineage.eras for base in era.base.values()):
        doubtful.update(range(len(acknowledged)))
    else:
        goal = passes.column([max(evidence.record.promise.copies, 1)] * len(acknowledged))
        doubtful.update(passes.below(passes.reached(levels, ends), goal))
    count = len(acknowledged)
    for at in sorted(doubtful):
        message = losses.attempts[int(acknowledged[at])]
        if message.group not in (lineage.group, -1):
            count -= 1
        elif (example := _judge(evidence, lineage, message, sends.row(message.number))) is not None:
            findings.add(example, excuse=losses.split(message))
    return count + _judge_listener_sends(evidence, losses, lineage, findings)


def _judge_listener_sends(
    evidence: Evidence, losses: Losses, lineage: Lineage, findings: Findings
) -> int:
    """Judge sends to listeners, with the least possible end of their records."""
    count = 0
    for row in evidence.rows((Function.TELL,), Outcome.OK).each():
        if evidence.group_of(row.node) not in (lineage.group, -1) or row.physical_offset < 0:
            continue
        count += 1
        end = row.physical_offset + row.length + RECORD_SIZE_MIN
        times = row.invoked_ns, row.returned_ns
        message = Attempt(row.number, row.value, lineage.group, True, *times, end, row.length)
        if (example := _judge(evidence, lineage, message, row)) is not None:
            findings.add(example, excuse=losses.split(message))
    return count


@check("read-before-flush", "messages read")
def early_reads(case: Case, findings: Findings) -> int:
    """Under synchronous flush a node delivers only what is on its own disk.

    Otherwise a power cut takes what a reader has acted upon. Judged for pulls whose node is
    known.
    """
    evidence, losses = case.evidence, case.losses
    if not evidence.flushes:
        raise NotApplicable("what is not on disk may be read under asynchronous flush")
    reads = evidence.rows((Function.GOT,))
    ends = passes.lookup(reads.column("value"), losses.attempts.values, losses.attempts.ends, -1)
    examined = 0
    for node, node_ends in losses.ends.items():
        number = next((at for at, name in evidence.history.nodes.items() if name == node), None)
        if number is None or not node_ends.complete:
            continue
        rows_of_node = passes.matching(reads.column("node"), (number,))
        times, levels = passes.column(node_ends.trace.times), passes.column(node_ends.trace.durable)
        moments = passes.take(reads.column("returned_ns"), rows_of_node)
        reached = passes.step(times, levels, moments)
        examined += len(rows_of_node)
        for at in passes.below(reached, passes.take(ends, rows_of_node)):
            row, end = reads.row(int(rows_of_node[at])), int(ends[int(rows_of_node[at])])
            level = node_ends.highest(row.returned_ns - IN_FLIGHT_NS, row.returned_ns).durable
            if level < end:
                text = f"value {row.value}, which ends at log {end}, was given to a reader by"
                text += f" {node}, whose log was on disk up to {level}"
                example = evidence.example(row, text, node=node, distance=end - level)
                findings.add(example, excuse=evidence.disks.damaged_by(node, row.returned_ns))
    if not examined:
        raise NotApplicable("no node whose disk was observed is known to have answered a pull")
    return examined


def _judge(evidence: Evidence, lineage: Lineage, message: Attempt, row: Row) -> Example | None:
    """Judge one acknowledgement over the whole time in which it may have been sent."""
    assert message.end is not None
    begin, end = message.invoked_ns, message.returned_ns
    promise = evidence.record.promise
    holders = []
    for node in lineage.nodes:
        level = evidence.counted(node, lineage.ends[node].highest(begin, end), end)
        held_end = max(lineage.held(node, moment, level) for moment in (begin, end))
        if held_end >= message.end:
            holders.append(node)
    masters = {lineage.era(begin).master, lineage.era(end).master}
    level_name = "on disk" if evidence.flushes else "written"
    if not masters.intersection(holders):
        problem = f"was not {level_name} at {' or '.join(sorted(masters))}, the master"
    elif len(holders) < promise.copies:
        problem = f"was {level_name} only at {', '.join(holders)}, and {promise.copies} copies are"
        problem += " promised"
    else:
        return None
    return evidence.example(
        row,
        f"value {message.value}, which ends at log {message.end}, {problem} when it was"
        " acknowledged",
        operation=row.operation,
        node=lineage.era(end).master,
        physical=row.physical_offset,
        time_ns=end,
        distance=message.end,
    )
