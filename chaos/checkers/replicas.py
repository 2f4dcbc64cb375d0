"""Are the replicas' logs the same bytes? See chaos.md 2.6: R1 at the end, and in images."""

from collections.abc import Sequence
from itertools import combinations

from rocketbed.chaos.checkers.ends import ENDLESS
from rocketbed.chaos.checkers.evidence import Evidence
from rocketbed.chaos.checkers.logs import NodeLog
from rocketbed.chaos.checkers.loss_bound import Losses
from rocketbed.chaos.checkers.result import CheckResult, Example, judged, not_applicable, not_run
from rocketbed.chaos.history import Function

_CHUNK = 4 << 20


def equal_logs(evidence: Evidence, losses: Losses | None) -> CheckResult:
    """R1: at the end every two logs of a group hold the same bytes over the range both have.

    A node that was longer than an unclean master, and was not told to cut, keeps what the others
    lost and refuses to follow: that is allowed, and shown. Without `losses` (half a history) no
    difference is, and none between nodes of other software that say that they follow.
    """
    title = "R1 logs byte-equal"
    groups = [
        [node for node in evidence.nodes if node.group == number]
        for number in range(len(evidence.group_names))
    ]
    if all(len(nodes) < 2 for nodes in evidence.record.groups.values()):
        return not_applicable(title, "bytes", "no group has two nodes")
    if evidence.unread:
        name, reason = next(iter(evidence.unread.items()))
        return not_run(title, "bytes", f"the directory of {name} was not read: {reason}")
    findings: list[Example] = []
    allowed: list[Example] = []
    compared = 0
    for one, other in (pair for nodes in groups for pair in combinations(nodes, 2)):
        start, end = common_range(one, other)
        if start >= end:
            return not_run(title, "bytes", f"{one.name} and {other.name} have nothing in common")
        difference = first_difference(one, other, start, end)
        compared += end - start
        if difference is not None:
            text = f"{one.name} and {other.name} differ from log {difference} on"
            example = Example(text, node=other.name, physical=difference)
            example.distance = end - difference
            refused = losses is not None and difference >= _agreed(losses, one, other)
            refused &= not (evidence.foreign and _in_step(evidence, one, other))
            refused |= bool(evidence.damaged & {one.name, other.name})
            (allowed if refused else findings).append(example)
    ends = ", ".join(f"{node.name} {node.log_min} to {node.log_end}" for node in evidence.nodes)
    return judged(title, compared, "bytes", findings, ends, allowed=allowed)


def equal_images(evidence: Evidence, losses: Losses) -> CheckResult:
    """R1 at any time: what an image holds of the truth of its moment is in the final log.

    Compared is the part that no later turn may have taken, and that the image holds of the truth.
    """
    title, unit = "R1i images byte-equal", "bytes"
    if not evidence.images:
        return not_applicable(title, unit, "no image was taken in the run")
    if missing := evidence.no_final():
        return not_run(title, unit, missing)
    findings: list[Example] = []
    allowed: list[Example] = []
    compared = 0
    for image in evidence.images:
        final = evidence.final(image.group)
        if final is None or image.image is None:
            continue
        limit = _safe_end(losses, image)
        start, end = common_range(image, final)
        end = min(end, limit)
        if start >= end:
            continue
        compared += end - start
        difference = first_difference(image, final, start, end)
        if difference is not None:
            text = (
                f"{image.label} and the final log of {final.name} differ from log {difference} on"
            )
            target = allowed if evidence.damaged & {image.name, final.name} else findings
            target.append(
                Example(
                    text,
                    node=image.name,
                    physical=difference,
                    time_ns=image.image.time_ns,
                    distance=end - difference,
                )
            )
    if not compared:
        return not_applicable(title, unit, "no image holds a part that had to stay as it was")
    return judged(title, compared, unit, findings, allowed=allowed)


def common_range(one: NodeLog, other: NodeLog) -> tuple[int, int]:
    """The part of the log that both have, bytes."""
    return max(one.log_min, other.log_min), min(one.log_end, other.log_end)


def first_difference(one: NodeLog, other: NodeLog, start: int, end: int) -> int | None:
    """Where two logs begin to differ between two offsets; None: nowhere."""
    while start < end:
        here = one.directory.log.read(start, min(_CHUNK, end - start))
        there = other.directory.log.read(start, min(_CHUNK, end - start))
        size = min(len(here), len(there))
        if here[:size] != there[:size]:
            return start + _first_unequal(here, there, size)
        if size == 0:
            return start
        start += size
    return None


def _first_unequal(here: Sequence[int], there: Sequence[int], size: int) -> int:
    low, high = 0, size
    while high - low > 1:
        middle = (low + high) // 2
        if here[low:middle] != there[low:middle]:
            high = middle
        else:
            low = middle
    return low


def _in_step(evidence: Evidence, *nodes: NodeLog) -> bool:
    """Whether each said, when it was last asked, that it is master or follows its master."""
    last = {event.node: event.fields for event in evidence.events(Function.NODE, "sample")}
    return all(
        bool(fields.get("master") or fields.get("following"))
        for fields in (last.get(node.name, {}) for node in nodes)
    )


def _agreed(losses: Losses, one: NodeLog, other: NodeLog) -> int:
    """Up to where both hold the truth of the end."""
    for lineage in losses.lineages:
        if lineage.group == one.group:
            return min(lineage.held(node.name, ENDLESS - 1, node.log_end) for node in (one, other))
    return ENDLESS


def _safe_end(losses: Losses, image: NodeLog) -> int:
    """Up to where an image has to agree with the final log."""
    assert image.image is not None
    time_ns = image.image.time_ns
    limit = image.log_end
    if image.image.durable is not None and image.image.cause == "powercut":
        limit = min(limit, image.image.durable)
    for lineage in losses.lineages:
        if lineage.group != image.group:
            continue
        limit = lineage.held(image.name, time_ns - 1, limit)
        for turn in lineage.turns:
            if turn.effect_ns >= time_ns:
                limit = min(limit, 0 if turn.threshold is None else turn.threshold)
    return limit
