"""The logs of replicas are byte-identical. See chaos.md 2.6."""

from itertools import combinations

import numpy as np

from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, NotRun, check
from rocketbed.chaos.checks.ends import ENDLESS
from rocketbed.chaos.checks.evidence import Evidence
from rocketbed.chaos.checks.logs import NodeLog
from rocketbed.chaos.checks.loss.bound import Losses
from rocketbed.chaos.checks.loss.lineage import PROMOTE
from rocketbed.chaos.checks.result import Excuse
from rocketbed.chaos.evidence.history import Function

_CHUNK = 4 << 20


@check("equal-logs", "bytes", needs_history=False)
def equal_logs(case: Case, findings: Findings) -> int:
    """At the end, two logs of a group hold the same bytes over their common range.

    A node that was longer than an unclean master, and was not told to cut, keeps what the others
    lost and refuses to follow: that is allowed, and shown. With a truncated history no difference
    is allowed, nor between nodes of other software that report that they follow.
    """
    evidence = case.evidence
    losses = case.losses if evidence.history.cut is None else None
    if all(len(nodes) < 2 for nodes in evidence.record.groups.values()):
        raise NotApplicable("no group has two nodes")
    if evidence.unread:
        name, reason = next(iter(evidence.unread.items()))
        raise NotRun(f"the directory of {name} was not read: {reason}")
    compared = 0
    groups = [
        [node for node in evidence.nodes if node.group == number]
        for number in range(len(evidence.group_names))
    ]
    for log_1, log_2 in (pair for nodes in groups for pair in combinations(nodes, 2)):
        start, end = common_range(log_1, log_2)
        if start >= end:
            raise NotRun(f"{log_1.name} and {log_2.name} have nothing in common")
        difference = first_difference(log_1, log_2, start, end)
        compared += end - start
        if difference is not None:
            excuse = evidence.disks.may_differ(log_1, log_2)
            if losses is not None and not (evidence.foreign and _in_step(evidence, log_1, log_2)):
                excuse = excuse or _refused(losses, log_1, log_2, difference)
            findings.add(
                f"{log_1.name} and {log_2.name} differ from log {difference} on",
                excuse=excuse,
                node=log_2.name,
                physical=difference,
                distance=end - difference,
            )
    ends = (f"{node.name} {node.log_min} to {node.log_end}" for node in evidence.nodes)
    findings.note = ", ".join(ends)
    return compared


@check("equal-image-logs", "bytes")
def equal_images(case: Case, findings: Findings) -> int:
    """The authoritative part of an image is in the final log.

    Compared is the part that no later loss point may have taken and that the image's node shared
    with the authoritative log of its time.
    """
    evidence, losses = case.evidence, case.losses
    if not evidence.images:
        raise NotApplicable("no image was taken in the run")
    if missing := evidence.no_final():
        raise NotRun(missing)
    compared = 0
    for image in evidence.images:
        final = evidence.final(image.group)
        if final is None:
            continue
        start, end = common_range(image, final)
        end = min(end, _safe_end(evidence, losses, image), _led_end(evidence, losses, image, final))
        if start >= end:
            continue
        compared += end - start
        difference = first_difference(image, final, start, end)
        if difference is not None:
            findings.add(
                f"{image.label} and the final log of {final.name} differ from log {difference} on",
                excuse=evidence.disks.may_differ(image, final)
                or evidence.disks.damage_of(image.group, difference, difference + 1),
                node=image.name,
                physical=difference,
                time_ns=image.image_record.time_ns,
                distance=end - difference,
            )
    if not compared:
        raise NotApplicable("no image holds a part that had to stay as it was")
    return compared


def common_range(log_1: NodeLog, log_2: NodeLog) -> tuple[int, int]:
    """Return the range of log offsets that both have."""
    return max(log_1.log_min, log_2.log_min), min(log_1.log_end, log_2.log_end)


def first_difference(log_1: NodeLog, log_2: NodeLog, start: int, end: int) -> int | None:
    """Return where two logs first differ between two offsets; None if they do not."""
    while start < end:
        bytes_1 = log_1.directory.log.read(start, min(_CHUNK, end - start))
        bytes_2 = log_2.directory.log.read(start, min(_CHUNK, end - start))
        size = min(len(bytes_1), len(bytes_2))
        differs = np.frombuffer(bytes_1, np.uint8, size) != np.frombuffer(bytes_2, np.uint8, size)
        if differs.any():
            return start + int(differs.argmax())
        if size == 0:
            return start
        start += size
    return None


def _in_step(evidence: Evidence, *nodes: NodeLog) -> bool:
    """True if each node, in its last sample, was master or followed its master."""
    last = {event.node: event.fields for event in evidence.events(Function.NODE, "sample")}
    return all(
        bool(fields.get("master") or fields.get("following"))
        for fields in (last.get(node.name, {}) for node in nodes)
    )


def _refused(losses: Losses, log_1: NodeLog, log_2: NodeLog, difference: int) -> Excuse | None:
    """Return an excuse if one of two logs does not match the final authoritative log there: its
    node was refused."""
    for lineage in losses.lineages:
        for node in (log_1, log_2) if lineage.group == log_1.group else ():
            held = lineage.held(node.name, ENDLESS - 1, node.log_end)
            if held <= difference:
                era = lineage.eras[-1]
                cause = f"{node.name} holds up to {held} what {era.master} has, and was refused"
                return Excuse(cause, era.start_ns, ENDLESS)
    return None


def _safe_end(evidence: Evidence, losses: Losses, image: NodeLog) -> int:
    """Return the offset up to which an image has to agree with the final log."""
    image_record, limit = image.image_record, image.log_end
    cutting: int | None = None
    for event in evidence.events(Function.NODE, "cut", "followed"):
        if event.node == image.name and event.time_ns < image_record.time_ns:
            cutting = event.fields.get("start") if event.kind == "cut" else None
    if isinstance(cutting, int):
        limit = min(limit, cutting)  # the cut was in progress
    if image_record.durable is not None and image_record.cause == "powercut":
        limit = min(limit, image_record.durable)
    for lineage in losses.lineages:
        if lineage.group != image.group:
            continue
        limit = lineage.held(image.name, image_record.time_ns - 1, limit)
        for point in lineage.loss_points:
            if point.effect_ns >= image_record.time_ns:
                limit = min(limit, 0 if point.threshold is None else point.threshold)
    return limit


def _led_end(evidence: Evidence, losses: Losses, image: NodeLog, final: NodeLog) -> int:
    """Return the start of an epoch in the image that no election event covers and that the
    surviving log does not contain; it must be above all that had been acknowledged. `ENDLESS` if
    there is none.

    No event reports the first epoch, nor a leader that is elected again: the epoch of such a leader
    counts, unless no other node had it and the surviving log begins a later epoch at the same
    place.
    """
    lineage, time_ns = losses.lineages[image.group], image.image_record.time_ns
    promotions = evidence.events(Function.NODE, PROMOTE)
    elected_epochs = {
        event.fields.get("epoch") for event in promotions if event.node in lineage.nodes
    }
    markers = [
        (offset, epoch)
        for offset, epoch in image.markers
        if offset >= final.log_min
        and epoch not in elected_epochs
        and (offset, epoch) not in final.markers
    ]
    if not markers:
        return ENDLESS
    begin, epoch = min(markers)
    if lineage.era(time_ns - 1).master == image.name:
        is_over = any(
            offset == begin and later_epoch > epoch for offset, later_epoch in final.markers
        )
        if not (is_over and _is_alone(evidence, losses, image, begin)):
            return ENDLESS
    return begin if begin >= _acknowledged_end(losses, image) else ENDLESS


def _is_alone(evidence: Evidence, losses: Losses, image: NodeLog, begin: int) -> bool:
    """True if nothing that an image's node has after `begin` can have been confirmed: more than one
    copy is promised, and no other node's log ever reached beyond it."""
    promise, lineage = evidence.record.promise, losses.lineages[image.group]
    time_ns = image.image_record.time_ns
    other_ends = [ends for node, ends in lineage.ends.items() if node != image.name]
    return (
        promise.replication == "sync"
        and promise.copies > 1
        and all(ends.complete and ends.highest(-1, time_ns).written <= begin for ends in other_ends)
    )


def _acknowledged_end(losses: Losses, image: NodeLog) -> int:
    """Return the end of the last message of the group that was acknowledged before an image."""
    sent = (losses.attempts[number] for number in range(len(losses.attempts)))
    return max(
        (
            message.end
            for message in sent
            if message.end and message.acknowledged and message.group == image.group
            if message.returned_ns < image.image_record.time_ns
        ),
        default=0,
    )
