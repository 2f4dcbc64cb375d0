"""Replication as seen on the links and in samples (chaos.md 2.6)."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.context import FaultSpan, faults
from rocketbed.chaos.checks.ends import ENDLESS
from rocketbed.chaos.checks.evidence import SECOND_NS, Evidence
from rocketbed.chaos.checks.logs import NodeLog
from rocketbed.chaos.checks.result import Excuse, Severity
from rocketbed.chaos.evidence.history import Event, Function
from rocketbed.chaos.evidence.workload import writer_of
from rocketbed.inspect.bodies import unpack_body
from rocketbed.inspect.record import MAGIC_PREFIX, Fault, Record, blank_size, dissect

CUT_DIRECTORY = "rocketbed.cut"
QUESTION = 1
"""Offset that a slave with an empty disk reports: a question, less than any record."""
IN_FLIGHT_NS = 5 * SECOND_NS
"""Time for which a report may have been in flight when it was observed."""
HALF_OPEN_NS = 25 * SECOND_NS
"""A silent peer is given up after 20 s; that is checked every few seconds."""
CUT_SYNCS = 20
"""Syncs of a cut and of setting aside what it removes, one after the other. With a disk of 300 ms,
8.5 s were observed from the end of a recovery, which had taken 2.6 s, to the end of the cut."""
STALL_NS = 5 * SECOND_NS
HELD_BYTES = 256 * 1024
"""Bytes sent and not yet received: the window of a connection."""
_RATE = re.compile(r"\brate (\d+)KiB")


@check("truncated-bytes-return", "messages truncated")
def zombie_bytes(case: Case, findings: Findings) -> int:
    """Messages that a node truncated are not in its log again, unless its master has them.

    They are known as the node keeps a copy of what it truncates.
    """
    evidence = case.evidence
    examined = 0
    for node in evidence.nodes:
        cut_values = _cut_values(node)
        examined += len(cut_values)
        final = evidence.final(node.group)
        zombies = cut_values - set(final.messages.values) if final is not None else cut_values
        for log in [node, *_after_last_cut(evidence, node.name)] if zombies else ():
            for number, value in enumerate(log.messages.values):
                place = log.messages.physicals[number]
                # The final log cannot show whether it held an expired message.
                if value in zombies and not (final is not None and place < final.log_min):
                    text = (
                        f"value {value}, truncated from the log of {node.name},"
                        f" is in {log.label} again"
                    )
                    findings.add(text, value=value, node=node.name, physical=place, distance=place)
    if not examined:
        cuts = evidence.events(Function.NODE, "cut")
        reason = "no message of the workload was truncated" if cuts else "no log was truncated"
        raise NotApplicable(reason)
    return examined


@check("truncated-bytes-kept", "truncations")
def kept_cuts(case: Case, findings: Findings) -> int:
    """A node keeps a copy of all that it truncated to follow its master, beginning with a
    record."""
    evidence = case.evidence
    if evidence.elects and not evidence.foreign:
        raise NotApplicable(
            "with failover only what was never confirmed is truncated, and no copy is kept"
        )
    nodes = {node.name: node for node in evidence.nodes}
    examined = 0
    for event, start, end, names in _cuts(evidence):
        node = nodes.get(event.node)
        if node is None or end <= start:
            continue
        if evidence.disks.emptied_since(event.node, event.time_ns):
            continue
        examined += 1
        copies = sorted((Path(node.directory.root) / CUT_DIRECTORY).glob(names))
        contents = [copy.read_bytes() for copy in copies]
        complete = [data for data in contents if len(data) == end - start]
        text = f"{event.node} truncated {start} to {end}, and of that it has"
        if not complete:
            text += f" {max(map(len, contents), default=0)} bytes"
        elif not any(_begins_a_record(data, start) for data in complete):
            text += " what begins with no record"
        else:
            continue
        damaged = evidence.disks.may_differ(node)
        if complete and not damaged:
            damaged = evidence.disks.undetected_damage_of(event.node, start, end, event.time_ns)
        findings.add(text, node=event.node, time_ns=event.time_ns, excuse=damaged)
    if not examined:
        raise NotApplicable("no log was truncated, or its node has an empty disk since")
    return examined


def _cuts(evidence: Evidence) -> Iterator[tuple[Event, int, int, str]]:
    """Yield completed cuts, and cuts that a node died in and completed at its next start: event,
    start, end, and pattern of the copy's name."""
    written: dict[str, object] = {}
    for event in evidence.events(Function.NODE, "cut", "cut_resumed", "exit"):
        if event.kind == "exit":
            written[event.node] = event.fields.get("written")
            continue
        is_resumed = event.kind == "cut_resumed"
        start = event.fields.get("offset" if is_resumed else "start")
        end = written.get(event.node) if is_resumed else event.fields.get("end")
        if isinstance(start, int) and isinstance(end, int):
            copy_name = str(event.fields.get("kept")).rpartition("/")[2] or "none"
            yield event, start, end, f"{start:020d}*" if is_resumed else copy_name


@check("dishonest-ack", "reports")
def honest_reports(case: Case, findings: Findings) -> int:
    """A slave reports no more than the disk layer saw written (on disk, under sync flush).

    An empty slave asks for the start of its master's log, which acknowledges nothing.
    """
    evidence, losses = case.evidence, case.losses
    sizes = {log.name: log.directory.sizes.segment for log in evidence.nodes}
    examined = 0
    for node, time_ns, reported, flight_ns in _reports(evidence):
        ends = losses.ends.get(node)
        if ends is None or not ends.complete:
            continue
        examined += 1
        highest = ends.highest(time_ns - flight_ns, time_ns)
        level = evidence.counted(node, highest, time_ns)
        size = sizes.get(node, 1)
        # The rest of a file after a blank record is never written; the next file may be already.
        is_near = reported % size == 0 and reported - level < size
        is_blank_gap = is_near and not ends.wrote_within(
            level, reported, time_ns - flight_ns, time_ns
        )
        if reported > max(level, QUESTION) and highest.written and not is_blank_gap:
            level_name = "on disk" if evidence.flushes else "written"
            text = f"{node} reported {reported}, and no more than {level} was {level_name}"
            distance = reported - level
            findings.add(text, node=node, physical=reported, time_ns=time_ns, distance=distance)
    if not examined:
        raise NotApplicable("no report of a slave was tapped, or no trace is whole")
    return examined


@dataclass(slots=True)
class _Progress:
    written: int
    since_ns: int


@check("catch-up-stall", "samples", severity=Severity.LIVENESS)
def catch_up(case: Case, findings: Findings) -> int:
    """Once the time-outs of the fault phase are over, a follower that lags makes progress.

    Excused are a follower that refuses an unclean master, and one that had a slow link: what the
    connection held then arrives at that rate. A follower that cuts its log makes progress too,
    which takes a slow disk seconds: a start may stand still as long as the recovery before it took,
    and to the end of a cut for the time of its syncs.
    """
    evidence, losses = case.evidence, case.losses
    fault_spans = faults(evidence)
    begin = evidence.record.recovery_ns + HALF_OPEN_NS
    end = evidence.record.stop_ns or evidence.record.end_ns
    samples = [
        event
        for event in evidence.events(Function.NODE, "sample", "start", "exit", "cut")
        if begin <= event.time_ns <= end
    ]
    if not evidence.record.recovery_ns or all(event.kind != "sample" for event in samples):
        raise NotApplicable("no samples of a recovery phase longer than the time-outs")
    masters: dict[int, int] = {}
    lagging: dict[str, _Progress] = {}
    cut_at: dict[str, object] = {}
    pauses: dict[str, list[tuple[int, int]]] = defaultdict(list)
    cuts = evidence.events(Function.NODE, "cut")
    for event in evidence.events(Function.NODE, "recovered"):
        end_ns = event.time_ns + int(float(event.fields.get("seconds", 0)) * SECOND_NS)
        disk_ns = evidence.record.facts.get("disks_ns", {}).get(event.node, 0)
        limit_ns = end_ns + CUT_SYNCS * disk_ns
        cut_times = [cut.time_ns for cut in cuts if cut.node == event.node]
        cut_times += [limit_ns] if limit_ns > end else []  # a cut that would come later is unknown
        cut_ns = max((at for at in cut_times if event.time_ns <= at <= limit_ns), default=0)
        pauses[event.node].append((event.time_ns, max(end_ns, cut_ns)))
    examined = 0
    for event in samples:
        if event.kind == "cut":
            at = event.fields.get("start")
            if at != cut_at.get(event.node):  # repeated cuts at one place are no progress
                cut_at[event.node] = at
                lagging.pop(event.node, None)
            continue
        if event.kind != "sample":
            lagging.pop(event.node, None)
            continue
        examined += 1
        written = int(event.fields.get("written", 0))
        group = evidence.group_of_name(event.node)
        if event.fields.get("master") or event.fields.get("role") == "master":
            masters[group] = written
            continue
        if any(begin_ns <= event.time_ns < end_ns for begin_ns, end_ns in pauses[event.node]):
            continue
        stalled = _stalls(lagging, event, written, masters.get(group, 0))
        if stalled:
            findings.add(
                f"{event.node} has been at {written} for {stalled / 1e9:.1f} s, its master is"
                f" at {masters[group]}",
                excuse=losses.loss_between(group, event.time_ns, event.time_ns)
                or _trickle(fault_spans, event.time_ns),
                node=event.node,
                physical=written,
                time_ns=event.time_ns,
                distance=stalled,
            )
    return examined


def _trickle(fault_spans: Iterable[FaultSpan], time_ns: int) -> Excuse | None:
    """Return the step that made a link slow, extended by the time that a connection's content takes
    at that rate."""
    for fault in fault_spans:
        if fault.verb == "link" and (rate := _RATE.search(fault.step)):
            end_ns = fault.end_ns + HELD_BYTES * SECOND_NS // (int(rate[1]) * 1024)
            if fault.begin_ns <= time_ns <= end_ns:
                return Excuse(fault.step, fault.begin_ns, end_ns)
    return None


@check("half-open-replica-counted", "samples")
def half_open(case: Case, findings: Findings) -> int:
    """A silent slave that lost power is no longer counted after its time-out."""
    events = case.evidence.events(Function.NODE)
    examined = 0
    for lineage in case.losses.lineages:
        silent: dict[str, int] = {}
        changes = {(change.time_ns, change.node) for change in lineage.changes}
        for event in events:
            if event.node not in lineage.nodes:
                continue
            if event.kind in ("start", "ready", "recovered"):
                silent.pop(event.node, None)
            elif event.kind == "exit" and (event.time_ns, event.node) in changes:
                silent[event.node] = event.time_ns
            elif event.kind == "sample" and "in_sync" in event.fields:
                silent_nodes = [
                    node
                    for node, since in silent.items()
                    if since + HALF_OPEN_NS < event.time_ns and node != event.node
                ]
                if not silent_nodes or not event.fields.get("master", True):
                    continue
                examined += 1
                counted = int(event.fields["in_sync"])
                if counted > len(lineage.nodes) - len(silent_nodes):
                    text = (
                        f"{event.node} counts {counted} nodes in sync, although"
                        f" {', '.join(silent_nodes)} lost power more than 20 s ago"
                    )
                    findings.add(text, node=event.node, time_ns=event.time_ns)
    if not examined:
        raise NotApplicable("no node was silent for longer than the time-out")
    return examined


def _stalls(lagging: dict[str, _Progress], event: Event, written: int, master: int) -> int:
    """Return for how long a follower has stood still behind its master; 0 if not too long."""
    progress = lagging.get(event.node)
    if written >= master:
        lagging.pop(event.node, None)
        return 0
    if progress is None or written > progress.written:
        lagging[event.node] = _Progress(written, event.time_ns)
        return 0
    stood_ns = event.time_ns - progress.since_ns
    if stood_ns <= STALL_NS:
        return 0
    progress.since_ns = event.time_ns
    return stood_ns


def _begins_a_record(data: bytes, start: int) -> bool:
    """True if the bytes that were at an offset of a log may be a record, or the first part of one:
    a slave's log may end inside a record."""
    is_part = int.from_bytes(data[:4], "big") > len(data) and data[4:7] == MAGIC_PREFIX
    if is_part or len(data) < 8:
        return any(data)
    return blank_size(data, 0) is not None or not isinstance(dissect(data, 0, start), Fault)


def _cut_values(node: NodeLog) -> set[int]:
    """Return the values of whole messages in the copies of what a node cut off."""
    directory = Path(node.directory.root) / CUT_DIRECTORY
    values: set[int] = set()
    for path in sorted(directory.glob("*")) if directory.is_dir() else ():
        name = path.name.partition(".")[0]
        if not name.isdigit():
            continue
        data, position = path.read_bytes(), 0
        while position < len(data):
            record = dissect(data, position, int(name) + position)
            if not isinstance(record, Record):
                break
            body = unpack_body(record.body, record.sys_flag) or b""
            writer = writer_of(body, record.properties)
            if writer is not None:
                values.add(writer.value)
            position += record.size
    return values


def _after_last_cut(evidence: Evidence, node: str) -> list[NodeLog]:
    times = [event.time_ns for event in evidence.events(Function.NODE, "cut") if event.node == node]
    last = max(times, default=ENDLESS)
    return [
        log
        for log in evidence.images
        if log.name == node and log.image is not None and log.image.time_ns > last
    ]


def _reports(evidence: Evidence) -> list[tuple[str, int, int, int]]:
    """Return node, time, reported offset and possible time in flight of each report, from the tap's
    file and from events."""
    reports: list[tuple[str, int, int, int]] = []
    for name, trace in sorted(evidence.acks.nodes.items()) if evidence.acks is not None else ():
        reports += [(name, time_ns, ends.written, 0) for time_ns, ends in trace.entries()]
    for event in evidence.events(Function.NODE, "ack"):
        offset = event.fields.get("offset")
        if isinstance(offset, int):
            reports.append((event.node, event.time_ns, offset, IN_FLIGHT_NS))
    return reports
