"""Are the acknowledged messages there, once, where they were said to be? Chaos.md 2.4, A1 to A8."""

from collections import defaultdict

from chaos.checkers.evidence import SENDS, Evidence, Place, Stored
from chaos.checkers.result import CheckResult, judged, not_run
from chaos.history import Function, Outcome, Row

_NO_LEADER = "the leader's directory was not read"


def lost_writes(evidence: Evidence) -> CheckResult:
    """A1: every acknowledged message is in the final log.

    For a run whose allowed loss is none; `loss.allowed_loss` sets bound and loss side by side.
    """
    final = evidence.final
    if final is None:
        return not_run("A1 lost write", "acknowledged messages", _NO_LEADER)
    acknowledged = evidence.sends(Outcome.OK)
    lost = lost_rows(evidence, acknowledged)
    findings = [
        f"value {row.value}, acknowledged at {_said(evidence, row)}, is not in the log of"
        f" {final.name}"
        for row in lost
    ]
    return judged("A1 lost write", len(acknowledged), "acknowledged messages", findings)


def lost_rows(evidence: Evidence, acknowledged: list[Row]) -> list[Row]:
    """Acknowledged sends whose value no undamaged message of the final log carries."""
    final = evidence.final
    present = {stored.writer.value for stored in final.stored if stored.writer} if final else set()
    return [row for row in acknowledged if row.value not in present]


def phantom_writes(evidence: Evidence) -> CheckResult:
    """A3: no message that was refused is in any log."""
    refused = {row.value for row in evidence.sends(Outcome.FAIL)}
    findings: list[str] = []
    examined = 0
    for node in evidence.nodes:
        examined += len(node.stored)
        findings += [
            f"value {stored.writer.value}, refused to its producer, is in the log of {node.name}"
            f" at {stored.place.physical}"
            for stored in node.stored
            if stored.writer and stored.writer.value in refused
        ]
    return judged("A3 phantom", examined, "stored messages", findings)


def unknown_values(evidence: Evidence) -> CheckResult:
    """A4: every stored message was sent, and its body is the one that was sent."""
    sent = {row.value: row for row in evidence.history.rows() if row.function in SENDS}
    findings: list[str] = []
    examined = 0
    for node in evidence.nodes:
        for stored in node.stored:
            examined += 1
            where = f"{_show(stored.place)} of {node.name}"
            row = sent.get(stored.writer.value) if stored.writer else None
            if stored.writer is None:
                findings.append(f"the body at {where} names no writer, or is damaged")
            elif row is None:
                findings.append(f"value {stored.writer.value} at {where} was never sent")
            elif row.body_crc != stored.body_crc:
                findings.append(f"the body of value {row.value} at {where} is not the one sent")
    return judged("A4 unknown value", examined, "stored messages", findings)


def duplicates(evidence: Evidence) -> CheckResult:
    """A5: no attempt is stored twice. Retries of one operation (A6) are counted in the note."""
    findings: list[str] = []
    examined = again = 0
    for node in evidence.nodes:
        places: dict[int, list[Stored]] = defaultdict(list)
        operations: dict[tuple[int, int], set[int]] = defaultdict(set)
        for stored in node.stored:
            examined += 1
            if stored.writer:
                places[stored.writer.value].append(stored)
                message = stored.writer.operation, stored.writer.sequence
                operations[message].add(stored.writer.value)
        findings += [
            f"value {value} is {len(found)} times in the log of {node.name}: "
            + ", ".join(_show(stored.place) for stored in found)
            for value, found in places.items()
            if len(found) > 1
        ]
        if node.name == evidence.leader:
            again = sum(len(values) - 1 for values in operations.values())
    note = f"{again} messages stored again by a retry (A6, allowed)" if again else ""
    return judged("A5 duplicate", examined, "stored messages", findings, note)


def inconsistent_offsets(evidence: Evidence) -> CheckResult:
    """A7: at one queue offset nobody, ever, saw two different messages.

    Observations: acknowledgements, pulled messages, and the logs of all nodes.
    """
    seen: dict[tuple[str, int, int], tuple[int, str]] = {}
    findings: list[str] = []
    examined = 0

    def observe(topic: str, queue: int, offset: int, value: int, who: str) -> None:
        nonlocal examined
        examined += 1
        before = seen.setdefault((topic, queue, offset), (value, who))
        if before[0] != value:
            findings.append(
                f"{topic}/{queue} offset {offset}: value {before[0]} ({before[1]}),"
                f" value {value} ({who})"
            )

    for row in evidence.history.rows():
        acknowledged = row.function in SENDS and row.outcome == Outcome.OK
        if (acknowledged or row.function == Function.GOT) and row.queue_offset >= 0:
            who = "acknowledged" if acknowledged else "pulled"
            observe(evidence.history.topic(row), row.queue, row.queue_offset, row.value, who)
    for node in evidence.nodes:
        for stored in node.stored:
            if stored.writer:
                place = stored.place
                who = f"log of {node.name}"
                observe(place.topic, place.queue, place.offset, stored.writer.value, who)
    return judged("A7 inconsistent offset", examined, "observations", findings)


def moved_writes(evidence: Evidence) -> CheckResult:
    """A8: an acknowledged message that is there is where its acknowledgement said."""
    final = evidence.final
    if final is None:
        return not_run("A8 moved write", "acknowledged places", _NO_LEADER)
    places: dict[int, list[Place]] = defaultdict(list)
    for stored in final.stored:
        if stored.writer:
            places[stored.writer.value].append(stored.place)
    findings: list[str] = []
    examined = 0
    for row in evidence.sends(Outcome.OK):
        if row.value not in places or row.queue_offset < 0:
            continue  # A1 tells of what is missing; a one-way send was told no place.
        examined += 1
        if not any(_is_place(evidence, row, place) for place in places[row.value]):
            found = ", ".join(map(_show, places[row.value]))
            findings.append(
                f"value {row.value} was acknowledged at {_said(evidence, row)} and is at {found}"
            )
    return judged("A8 moved write", examined, "acknowledged places", findings)


def dense_queues(evidence: Evidence) -> CheckResult:
    """S6 in the final log: the queue offsets of each queue rise by one with the log.

    They begin at 0, unless retention has taken the start of the log.
    """
    final = evidence.final
    if final is None:
        return not_run("S6 dense queues", "stored messages", _NO_LEADER)
    due: dict[tuple[str, int], int] = {}
    findings: list[str] = []
    for stored in final.stored:
        place = stored.place
        queue = place.topic, place.queue
        expected = due.get(queue, place.offset if final.log_min else 0)
        if place.offset != expected:
            findings.append(f"{_show(place)}: offset {expected} is due")
        due[queue] = max(expected, place.offset + 1)
    note = f"{len(due)} queues"
    return judged("S6 dense queues", len(final.stored), "stored messages", findings, note)


def _is_place(evidence: Evidence, row: Row, place: Place) -> bool:
    said = evidence.history.topic(row), row.queue, row.queue_offset
    return said == place[:3] and row.physical_offset in (-1, place.physical)


def _said(evidence: Evidence, row: Row) -> str:
    return _show(
        Place(evidence.history.topic(row), row.queue, row.queue_offset, row.physical_offset)
    )


def _show(place: Place) -> str:
    physical = f" (log {place.physical})" if place.physical >= 0 else ""
    return f"{place.topic}/{place.queue} offset {place.offset}{physical}"
