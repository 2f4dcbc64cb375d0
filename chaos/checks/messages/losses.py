"""Allowed and actual loss: the bound of chaos.md 2.3 compared with what is missing."""

from typing import Any

from rocketbed.chaos.checks.check import Case, Findings, NotRun, check
from rocketbed.chaos.checks.evidence import Evidence
from rocketbed.chaos.checks.loss.bound import NO_CAUSE, Attempt, Loss, Losses
from rocketbed.chaos.checks.result import Example


@check("lost-write", "acknowledged messages", final=True)
def lost_writes(case: Case, findings: Findings) -> int:
    """Every acknowledged message is in the final log, or may be missing by the bound."""
    evidence, losses = case.evidence, case.losses
    unexcused = sorted(losses.unexcused, key=lambda message: message.number)
    unexcused_numbers = {message.number for message in unexcused}
    for message in unexcused:
        findings.add(_example(evidence, message, "is not in the final log"))
    for message in losses.missing:
        if message.number not in unexcused_numbers:
            text = "is gone, which the configuration allows"
            excuse = losses.excuse_of(message.value)
            findings.add(_example(evidence, message, text), excuse=excuse)
    return len(evidence.acknowledged)


@check("loss-within-bound", "acknowledged messages", final=True)
def allowed_loss(case: Case, findings: Findings) -> int:
    """No more acknowledged messages are missing than the configuration and the faults allow."""
    losses = case.losses
    if losses.unobserved:
        raise NotRun(losses.unobserved)
    count = len(case.evidence.acknowledged)
    findings.figures = {
        "allowed": sum(loss.allowed for loss in losses.loss_points),
        "lost": len(losses.missing),
        "unclean": sum(loss.unclean for loss in losses.loss_points),
        "outside": len(losses.unexcused),
    }
    size = sum(message.size for message in losses.missing)
    findings.note = (
        f"allowed {findings.figures['allowed']} messages, lost {len(losses.missing)} of {count}"
        f" ({size} bytes), outside of the bound {len(losses.unexcused)}"
    )
    for message in losses.unexcused:
        findings.add(_example(case.evidence, message, "is outside of the bound"))
    return count


def bound_rows(evidence: Evidence, losses: Losses) -> list[dict[str, Any]]:
    """Return bound and actual loss at every loss point, and losses without one, as JSON fields with
    a sentence each. All missing acknowledged messages are in one of the rows."""
    rows = [_bound_row(evidence, loss) for loss in losses.loss_points]
    for event, messages in losses.other_losses.items():
        size = sum(message.size for message in messages)
        outside = len(messages) if event == NO_CAUSE else 0
        rows.append(
            {
                "time_ns": min(message.returned_ns for message in messages),
                "event": event,
                "group": evidence.group_names[messages[0].group],
                "node": "",
                "written": None,
                "durable": None,
                "above_offset": None,
                "allowed_messages": len(messages) - outside,
                "allowed_bytes": 0 if outside else size,
                "lost": len(messages),
                "lost_bytes": size,
                "unclean_loss": 0,
                "outside": outside,
                "text": f"{event}: lost {len(messages)}, outside bound {outside}",
            }
        )
    return rows


def _bound_row(evidence: Evidence, loss: Loss) -> dict[str, Any]:
    point, change = loss.point, loss.point.change
    above = "unknown" if point.threshold is None else str(point.threshold)
    outside = len(loss.outside)
    return {
        "time_ns": change.time_ns,
        "event": loss.text,
        "group": evidence.group_names[loss.lineage.group],
        "node": change.node,
        "written": change.written,
        "durable": change.durable,
        "above_offset": point.threshold,
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


def _example(evidence: Evidence, message: Attempt, outcome: str) -> Example:
    row = evidence.sends.row(message.number)
    place = f"{evidence.place(row)} (log {row.physical_offset})"
    return evidence.example(
        row,
        f"value {row.value}, acknowledged at {place}, {outcome}",
        operation=row.operation,
        node=evidence.node(row),
        physical=row.physical_offset,
        distance=max(row.physical_offset, 0),
    )
