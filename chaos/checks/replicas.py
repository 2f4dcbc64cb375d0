"""Are the replicas' logs the same bytes? See chaos.md 2.6: R1 at the end, and in images."""

from itertools import combinations

import numpy as np

from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, NotRun, check
from rocketbed.chaos.checks.ends import ENDLESS
from rocketbed.chaos.checks.evidence import Evidence
from rocketbed.chaos.checks.lineage import PROMOTE
from rocketbed.chaos.checks.logs import NodeLog
from rocketbed.chaos.checks.loss_bound import Losses
from rocketbed.chaos.checks.result import Excuse
from rocketbed.chaos.evidence.history import Function

_CHUNK = 4 << 20


@check("R1 logs byte-equal", "bytes", needs_history=False)
def equal_logs(case: Case, found: Findings) -> int:
    """R1: at the end every two logs of a group hold the same bytes over the range both have.

    A node that was longer than an unclean master, and was not told to cut, keeps what the others
    lost and refuses to follow: that is allowed, and shown. With half a history no difference is,
    and none between nodes of other software that say that they follow.
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
    for one, other in (pair for nodes in groups for pair in combinations(nodes, 2)):
        start, end = common_range(one, other)
        if start >= end:
            raise NotRun(f"{one.name} and {other.name} have nothing in common")
        difference = first_difference(one, other, start, end)
        compared += end - start
        if difference is not None:
            excuse = evidence.disks.may_differ(one, other)
            if losses is not None and not (evidence.foreign and _in_step(evidence, one, other)):
                excuse = excuse or _refused(losses, one, other, difference)
            found.add(
                f"{one.name} and {other.name} differ from log {difference} on",
                excuse=excuse,
                node=other.name,
                physical=difference,
                distance=end - difference,
            )
    ends = (f"{node.name} {node.log_min} to {node.log_end}" for node in evidence.nodes)
    found.note = ", ".join(ends)
    return compared


@check("R1i images byte-equal", "bytes")
def equal_images(case: Case, found: Findings) -> int:
    """R1 at any time: what an image holds of the truth of its moment is in the final log.

    Compared is the part that no later turn may have taken, and that the image holds of the truth.
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
            found.add(
                f"{image.label} and the final log of {final.name} differ from log {difference} on",
                excuse=evidence.disks.may_differ(image, final)
                or evidence.disks.hit(image.group, difference, difference + 1),
                node=image.name,
                physical=difference,
                time_ns=image.taken.time_ns,
                distance=end - difference,
            )
    if not compared:
        raise NotApplicable("no image holds a part that had to stay as it was")
    return compared


def common_range(one: NodeLog, other: NodeLog) -> tuple[int, int]:
    """The part of the log that both have, bytes."""
    return max(one.log_min, other.log_min), min(one.log_end, other.log_end)


def first_difference(one: NodeLog, other: NodeLog, start: int, end: int) -> int | None:
    """Where two logs begin to differ between two offsets; None: nowhere."""
    while start < end:
        here = one.directory.log.read(start, min(_CHUNK, end - start))
        there = other.directory.log.read(start, min(_CHUNK, end - start))
        size = min(len(here), len(there))
        differs = np.frombuffer(here, np.uint8, size) != np.frombuffer(there, np.uint8, size)
        if differs.any():
            return start + int(differs.argmax())
        if size == 0:
            return start
        start += size
    return None


def _in_step(evidence: Evidence, *nodes: NodeLog) -> bool:
    """Whether each said, when it was last asked, that it is master or follows its master."""
    last = {event.node: event.fields for event in evidence.events(Function.NODE, "sample")}
    return all(
        bool(fields.get("master") or fields.get("following"))
        for fields in (last.get(node.name, {}) for node in nodes)
    )


def _refused(losses: Losses, one: NodeLog, other: NodeLog, difference: int) -> Excuse | None:
    """The one of two logs that does not hold the truth of the end there: it was refused."""
    for lineage in losses.lineages:
        for node in (one, other) if lineage.group == one.group else ():
            held = lineage.held(node.name, ENDLESS - 1, node.log_end)
            if held <= difference:
                era = lineage.eras[-1]
                cause = f"{node.name} holds up to {held} what {era.master} has, and was refused"
                return Excuse(cause, era.start_ns, ENDLESS)
    return None


def _safe_end(evidence: Evidence, losses: Losses, image: NodeLog) -> int:
    """Up to where an image has to agree with the final log."""
    taken, limit = image.taken, image.log_end
    cutting: int | None = None
    for event in evidence.events(Function.NODE, "cut", "followed"):
        if event.node == image.name and event.time_ns < taken.time_ns:
            cutting = event.fields.get("start") if event.what == "cut" else None
    if isinstance(cutting, int):
        limit = min(limit, cutting)  # it was on its way (seed 1271838)
    if taken.durable is not None and taken.cause == "powercut":
        limit = min(limit, taken.durable)
    for lineage in losses.lineages:
        if lineage.group != image.group:
            continue
        limit = lineage.held(image.name, taken.time_ns - 1, limit)
        for turn in lineage.loss_points:
            if turn.effect_ns >= taken.time_ns:
                limit = min(limit, 0 if turn.threshold is None else turn.threshold)
    return limit


def _led_end(evidence: Evidence, losses: Losses, image: NodeLog, final: NodeLog) -> int:
    """Where an image begins an epoch that nobody saw lead and that the truth went on without
    (soak-failover 1290023, seed 1273057): above all that had been acknowledged.

    No event tells of the first epoch, nor of a leader that is elected again: what that one begins
    counts, unless nobody else had it and the truth begins a later epoch there (seed 1518002).
    """
    lineage, time_ns = losses.lineages[image.group], image.taken.time_ns
    promotions = evidence.events(Function.NODE, PROMOTE)
    led = {one.fields.get("epoch") for one in promotions if one.node in lineage.nodes}
    markers = [
        (offset, epoch)
        for offset, epoch in image.markers
        if offset >= final.log_min and epoch not in led and (offset, epoch) not in final.markers
    ]
    if not markers:
        return ENDLESS
    begin, epoch = min(markers)
    if lineage.era(time_ns - 1).master == image.name:
        is_over = any(there == begin and other > epoch for there, other in final.markers)
        if not (is_over and _is_alone(evidence, losses, image, begin)):
            return ENDLESS
    return begin if begin >= _told(losses, image) else ENDLESS


def _is_alone(evidence: Evidence, losses: Losses, image: NodeLog, begin: int) -> bool:
    """Whether nothing that an image's node has behind a place can have been confirmed: more copies
    than its own are promised, and no other node's log ever reached beyond it."""
    promise, lineage = evidence.record.promise, losses.lineages[image.group]
    time_ns = image.taken.time_ns
    others = [ends for node, ends in lineage.ends.items() if node != image.name]
    return (
        promise.replication == "sync"
        and promise.copies > 1
        and all(one.complete and one.highest(-1, time_ns).written <= begin for one in others)
    )


def _told(losses: Losses, image: NodeLog) -> int:
    """Up to where messages of the group had been acknowledged when an image was taken."""
    sent = (losses.attempts[number] for number in range(len(losses.attempts)))
    return max(
        (
            one.end
            for one in sent
            if one.end and one.acknowledged and one.group == image.group
            if one.returned_ns < image.taken.time_ns
        ),
        default=0,
    )
