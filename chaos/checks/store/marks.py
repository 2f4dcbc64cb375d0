"""A node's durable marks name as much as they have to, and no more (chaos.md 2.7)."""

from rocketbed.chaos.checks import passes
from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.context import disk_fault, faults
from rocketbed.chaos.checks.logs import NodeLog
from rocketbed.chaos.checks.loss.lineage import POWER_CUT, WIPE
from rocketbed.chaos.evidence.history import Function, Outcome
from rocketbed.inspect.marks import FLUSHED_NAME

DESTRUCTIVE = (POWER_CUT, WIPE)


@check("marks-not-ahead", "images", needs_history=False)
def honest_marks(case: Case, findings: Findings) -> int:
    """The durable marks W and F never name an offset that was not on disk.

    The disk layer reports what was, so every image shows it, after a kill as after a power cut.
    """
    evidence = case.evidence
    examined = 0
    for image in evidence.images:
        marks, durable = image.directory.marks, image.image_record.durable
        if marks is None or durable is None:
            continue
        examined += 1
        named = max(marks.durable_offset, marks.flushed_offset or 0)
        size = image.directory.sizes.segment
        is_blank_gap = (
            named % size == 0
            and 0 < named - durable < size
            and image.image_record.written == durable
        )
        if (
            named > durable and not is_blank_gap
        ):  # the rest of a file after a blank record is never written
            findings.add(
                f"{image.label}: W {marks.durable_offset}, F {marks.flushed_offset}, but the log"
                f" was on disk up to {durable}",
                excuse=evidence.disks.may_differ(image),
                node=image.name,
                time_ns=image.image_record.time_ns,
                distance=named - durable,
            )
    for event in evidence.events(Function.NODE, "mark_ahead"):
        text = f"{event.node} made its mark durable at W {event.fields['offset']}, when its log was"
        text += f" on disk up to {event.fields['durable']}"
        excuse = evidence.disks.damaged_by(event.node, event.time_ns)
        findings.add(text, excuse=excuse, node=event.node, time_ns=event.time_ns)
    if not examined and not findings.anomalies:
        raise NotApplicable("no image has marks, or the disk was not observed")
    return examined


@check("flush-mark-kept", "directories")
def kept_flushed_mark(case: Case, findings: Findings) -> int:
    """F is whole at any time, and after a kill not below what its node had acknowledged as
    flushed.

    Otherwise a start could not detect the loss of such a message.
    """
    evidence = case.evidence
    examined = 0
    for log in evidence.logs:
        marks = log.directory.marks
        if marks is None or not marks.trusted or evidence.foreign:
            continue
        examined += 1
        flushed, (promised, *span) = marks.flushed_offset, _promised(case, log)
        if flushed is None:
            text = f"{log.label}: {FLUSHED_NAME} is not whole"
        elif flushed < promised:
            text = f"{log.label}: F is {flushed}, and {promised} had been acknowledged as on disk"
        else:
            continue
        excuse, time_ns = evidence.disks.may_differ(log), None
        if log.image is not None:
            time_ns = log.image.time_ns
            if flushed is not None:  # it was not written, which the node reports
                excuse = excuse or disk_fault(faults(evidence), log.name, *span)
        findings.add(text, excuse=excuse, node=log.name, time_ns=time_ns)
    if not examined:
        raise NotApplicable("no directory has marks that can be believed")
    return examined


def _promised(case: Case, log: NodeLog) -> tuple[int, int, int]:
    """Return the end of what a master had acknowledged as on disk when it was killed, and when that
    was sent and acknowledged.

    Zeros for other nodes and images: F is not fsynced, so a power cut may leave an older one.
    """
    evidence, losses, image = case.evidence, case.losses, log.image
    if image is None or image.cause not in ("kill", "crash") or not evidence.flushes:
        return 0, 0, 0
    lineage = next(lineage for lineage in losses.lineages if log.name in lineage.nodes)
    era = lineage.era(image.time_ns)
    if era.master != log.name:
        return 0, 0, 0
    # A node that was elected and has lost power since has an older one.
    cuts = (
        change.time_ns
        for change in lineage.changes
        if change.node == log.name and change.kind in DESTRUCTIVE
    )
    since_ns = max((at for at in cuts if at < image.time_ns), default=0)
    since_ns = max(since_ns, era.start_ns)
    sends = evidence.sends
    acknowledged = passes.matching(sends.column("outcome"), (Outcome.OK,))
    promised = 0, 0, 0
    for at, acknowledged_ns in zip(
        acknowledged, passes.take(sends.column("returned_ns"), acknowledged), strict=True
    ):
        if since_ns < acknowledged_ns <= image.time_ns and losses.attempts.ends[at] > promised[0]:
            message = losses.attempts[int(at)]
            concerns_group = message.group in (lineage.group, -1) and message.invoked_ns > since_ns
            if concerns_group and not losses.split(
                message
            ):  # else a second master may have taken it
                promised = int(losses.attempts.ends[at]), message.invoked_ns, int(acknowledged_ns)
    return promised
