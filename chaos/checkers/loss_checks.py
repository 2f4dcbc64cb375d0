"""What may be lost, and what was: the bound of chaos.md 2.3 beside the actual loss."""

from typing import Any

from rocketbed.chaos.checkers.evidence import Evidence
from rocketbed.chaos.checkers.loss_bound import Loss, Losses, Sent
from rocketbed.chaos.checkers.result import CheckResult, Example, judged, not_run

NAME = "2.3 allowed loss"
_UNIT = "acknowledged messages"


def lost_writes(evidence: Evidence, losses: Losses) -> CheckResult:
    """A1: every acknowledged message is in the final log, or may be missing by the bound."""
    title = "A1 lost write"
    if missing := evidence.no_final():
        return not_run(title, _UNIT, missing)
    beyond = sorted(losses.beyond, key=lambda message: message.number)
    known = {message.number for message in beyond}
    findings = [_example(evidence, message, "is not in the final log") for message in beyond]
    allowed = [
        _example(evidence, message, "is gone, which the configuration allows")
        for message in losses.missing
        if message.number not in known
    ]
    return judged(title, len(evidence.acknowledged), _UNIT, findings, allowed=allowed)


def allowed_loss(evidence: Evidence, losses: Losses) -> CheckResult:
    """The bound, and the acknowledged messages that are missing beyond it."""
    if missing := evidence.no_final():
        return not_run(NAME, _UNIT, missing)
    if losses.unobserved:
        return not_run(NAME, _UNIT, losses.unobserved)
    count = len(evidence.acknowledged)
    allowed = sum(loss.allowed for loss in losses.turns)
    size = sum(message.size for message in losses.missing)
    note = (
        f"allowed {allowed} messages, lost {len(losses.missing)} of {count} ({size} bytes),"
        f" outside of the bound {len(losses.beyond)}"
    )
    findings = [_example(evidence, message, "is outside of the bound") for message in losses.beyond]
    figures = {
        "allowed": allowed,
        "lost": len(losses.missing),
        "unclean": sum(loss.unclean for loss in losses.turns),
        "outside": len(losses.beyond),
    }
    return judged(NAME, count, _UNIT, findings, note, figures=figures)


def bound_rows(evidence: Evidence, losses: Losses) -> list[dict[str, Any]]:
    """Bound and actual loss of every event, as JSON fields and a sentence each."""
    return [_bound_row(evidence, loss) for loss in losses.turns]


def _bound_row(evidence: Evidence, loss: Loss) -> dict[str, Any]:
    turn, change = loss.turn, loss.turn.change
    above = "unknown" if turn.threshold is None else str(turn.threshold)
    outside = len(loss.outside)
    return {
        "time_ns": change.time_ns,
        "event": loss.text,
        "group": evidence.group_names[loss.lineage.group],
        "node": change.node,
        "written": change.written,
        "durable": change.durable,
        "above_offset": turn.threshold,
        "allowed_messages": loss.allowed,
        "allowed_bytes": loss.allowed_bytes,
        "lost": len(loss.lost),
        "lost_bytes": sum(message.size for message in loss.lost),
        "unclean_loss": loss.unclean,
        "outside": outside,
        "text": (
            f"{loss.text}: allowed {loss.allowed} messages / {loss.allowed_bytes} B above offset"
            f" {above}, lost {len(loss.lost)} ({loss.unclean} of them still held elsewhere),"
            f" outside bound {outside}"
        ),
    }


def _example(evidence: Evidence, message: Sent, what: str) -> Example:
    row = evidence.sends.row(message.number)
    topic = evidence.history.topic(row)
    place = f"{topic}/{row.queue} offset {row.queue_offset} (log {row.physical_offset})"
    return Example(
        f"value {row.value}, acknowledged at {place}, {what}",
        value=row.value,
        operation=row.operation,
        node=evidence.history.nodes.get(row.node, ""),
        topic=topic,
        queue=row.queue,
        offset=row.queue_offset,
        physical=row.physical_offset,
        time_ns=row.returned_ns,
        distance=max(row.physical_offset, 0),
    )
