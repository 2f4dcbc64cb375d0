"""Each recovery is correct (chaos.md 2.7).

A recovery reports the end of the log. The image shows what was there before, and the disk layer
what had been written and was durable; so the node's own report is compared with both.
"""

from rocketbed.chaos.checks import passes
from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.events import heals, step_of, targets_of
from rocketbed.chaos.checks.evidence import SECOND_NS, Evidence
from rocketbed.chaos.checks.logs import NodeLog
from rocketbed.chaos.checks.loss.bound import Losses
from rocketbed.chaos.checks.loss.lineage import WIPE
from rocketbed.chaos.evidence.history import Event, Function

ERROR_EVENTS = ("eio", "disk-error")
"""NODE events by which a backend reports the exact time of an error."""
GRACE_SYNC_NS = 2 * SECOND_NS
GRACE_ASYNC_NS = 12 * SECOND_NS
"""Time after a disk got a fault by which the next flush must have met it (10 s timer)."""
DIES_NS = 30 * SECOND_NS
"""Maximum time between a failed fsync and the end of its process: a stop may wait for a slow
disk."""


@check("recovered-end", "recoveries")
def recovered_ends(case: Case, findings: Findings) -> int:
    """After a power cut `floor(F) <= R <= W`; after a kill R is the last whole record of W.

    After damage the node's own marks count: above them it could not distinguish damage from a torn
    end.
    """
    evidence, losses = case.evidence, case.losses
    restarts = _restarts(evidence)
    if not restarts:
        raise NotApplicable("no recovery from an image was reported")
    for event, end, image, damaged in restarts:
        problem = _below_marks(end, image) if damaged else _wrong_end(losses, end, image)
        if problem:
            text = f"{event.node} recovered to {end}, {problem}"
            place = {"node": event.node, "physical": end, "time_ns": event.time_ns}
            excuse = evidence.disks.damaged_by(event.node, event.time_ns)
            since_ns = image.image_record.time_ns
            if damaged and evidence.reports(event.node, since_ns, repairs=True):
                excuse = evidence.excuse(f"{event.node} was damaged, and reported it", since_ns)
            findings.add(text, excuse=excuse, **place)
    return len(restarts)


@check("write-after-disk-failure", "disk errors")
def writes_after_error(case: Case, findings: Findings) -> int:
    """After its disk failed a node appends nothing, acknowledges nothing, and ends.

    The time is the one that the backend reports; otherwise the time of the fault plus that by which
    the next flush must have met it.
    """
    losses = case.losses
    windows = _error_windows(case.evidence)
    if not windows:
        raise NotApplicable("no sync of a disk failed")
    for node, begin, end, exact in windows:
        if exact and end - begin > DIES_NS:
            text = (
                f"{node} lived on for {(end - begin) / SECOND_NS:.0f} s after its disk had failed"
            )
            findings.add(text, node=node, time_ns=begin, distance=end - begin)
        ends = losses.ends.get(node)
        if ends is not None and ends.complete and end > begin:
            written_before, written_after = ends.at(begin).written, ends.highest(begin, end).written
            if written_after > written_before:
                appended = written_after - written_before
                text = f"{node} appended {appended} bytes after its disk had failed"
                findings.add(
                    text, node=node, physical=written_before, time_ns=begin, distance=appended
                )
        _add_late_acknowledgements(case, findings, node, begin, end, exact=exact)
    return len(windows)


def _restarts(evidence: Evidence) -> list[tuple[Event, int, NodeLog, bool]]:
    """Return recoveries with their ends and the latest images of their nodes, and whether only
    damage happened in between."""
    restarts: list[tuple[Event, int, NodeLog, bool]] = []
    open_images: dict[str, NodeLog] = {}
    damaged: set[str] = set()
    cuts: dict[str, object] = {}
    moments: list[tuple[int, int, Event | NodeLog]] = [
        (image.image_record.time_ns, 0, image) for image in evidence.images
    ]
    moments += [(event.time_ns, 1, event) for event in evidence.history.events]
    for _, _, moment in sorted(moments, key=lambda item: (item[0], item[1])):
        if isinstance(moment, NodeLog):
            open_images[moment.name] = moment
            damaged.discard(moment.name)
        elif moment.function == Function.NODE and moment.kind == "damaged":
            damaged.add(moment.node)
        elif moment.function == Function.NODE and moment.kind == "cut_resumed":
            cuts[moment.node] = moment.fields.get("offset")
        elif moment.function == Function.NODE and moment.kind == "recovered":
            image = open_images.pop(moment.node, None)
            end = str(moment.fields.get("end", ""))
            if cuts.pop(moment.node, None) == moment.fields.get("end"):
                continue  # it died in a cut to its master's log, and completed that first
            if image is not None and end.isdigit():
                restarts.append((moment, int(end), image, moment.node in damaged))
        elif moment.kind == WIPE:
            for node in targets_of(moment):
                open_images.pop(node, None)
    return restarts


def _below_marks(end: int, image: NodeLog) -> str:
    marks = image.directory.marks
    marked_end = 0 if marks is None else max(marks.durable_offset, marks.flushed_offset or 0)
    if end < (floor := image.floor(marked_end)):
        return f"below {floor}, the last record that its own marks name ({marked_end})"
    return ""


def _wrong_end(losses: Losses, end: int, image: NodeLog) -> str:
    ends = losses.ends.get(image.name)
    written, durable = image.image_record.written, image.image_record.durable
    if ends is not None and ends.complete:
        before = ends.before(image.image_record.time_ns)
        written = before.written if written is None else written
        durable = before.durable if durable is None else durable
    if written is not None and end > max(written, image.log_end):
        return f"beyond {written}, where its written bytes ended"
    if image.image_record.cause == "powercut":
        if end > max(image.log_end, durable or 0):
            return f"beyond {image.log_end}, the end of what the cut left whole"
        if durable is None:
            return ""
        floor = max(image.floor(durable), losses.written_before(image, durable))
        if end < floor:
            return f"below {floor}, the last record known to be on disk ({durable})"
        return ""
    if end not in (image.log_end, image.floor(image.log_end)):
        return f"but its last whole record ended at {image.log_end}, and a kill takes nothing"
    return ""


def _error_windows(evidence: Evidence) -> list[tuple[str, int, int, bool]]:
    """Return the periods in which nodes must be silent: node, begin, end, and whether begin is
    exact."""
    grace = GRACE_SYNC_NS if evidence.flushes else GRACE_ASYNC_NS
    events = evidence.history.events
    windows: list[tuple[str, int, int, bool]] = []
    for number, event in enumerate(events):
        if event.function == Function.NODE and event.kind in ERROR_EVENTS:
            windows.append((event.node, event.time_ns, _end(evidence, number, event.node), True))
            continue
        words = step_of(event).split()
        if event.function != Function.NEMESIS or event.kind != "disk":
            continue
        if "eio-fsync" not in words or "once" in words:
            continue
        for node in targets_of(event):
            end = _end(evidence, number, node, healed=step_of(event))
            if end > event.time_ns + grace:
                windows.append((node, event.time_ns + grace, end, False))
    return windows


def _end(evidence: Evidence, number: int, node: str, *, healed: str | None = None) -> int:
    """Return when the incarnation of a node at an event ended, or the fault was healed."""

    def is_over(event: Event) -> bool:
        ended = event.node == node and event.kind in ("exit", "kill", "powercut", "start")
        return ended or (healed is not None and heals(event, healed))

    return evidence.first_after(number, is_over)


def _add_late_acknowledgements(
    case: Case, findings: Findings, node: str, begin: int, end: int, *, exact: bool
) -> None:
    """Add sends that began after the error and that this master acknowledged nevertheless."""
    evidence, sends = case.evidence, case.evidence.acknowledged
    delay = "after" if exact else "long after"
    for lineage in case.losses.lineages:
        if node not in lineage.nodes:
            continue
        for number in passes.above(sends.column("invoked_ns"), begin):
            row = sends.row(number)
            if row.returned_ns > end or lineage.era(row.invoked_ns).master != node:
                continue
            if evidence.group_of(row.node) not in (lineage.group, -1):
                continue
            text = f"value {row.value} was acknowledged by {node} {delay} its disk had failed"
            late = row.returned_ns - begin
            findings.add(evidence.example(row, text, node=node, distance=late))
