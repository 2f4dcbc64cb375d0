"""Are the messages there, once, where they were said to be? (chaos.md 2.4, A3 to A9)"""

from collections import defaultdict

from rocketbed.chaos.checkers import passes
from rocketbed.chaos.checkers.evidence import SENDS, Evidence, Rows
from rocketbed.chaos.checkers.keys import pack
from rocketbed.chaos.checkers.logs import UNNAMED, NodeLog
from rocketbed.chaos.checkers.loss_bound import Losses
from rocketbed.chaos.checkers.passes import Column
from rocketbed.chaos.checkers.result import (
    CheckResult,
    Example,
    Severity,
    judged,
    not_applicable,
    not_run,
)
from rocketbed.chaos.history import Outcome


def phantom_writes(evidence: Evidence) -> CheckResult:
    """A3: no message that was refused is in any log, or was given to anybody."""
    refused = evidence.rows(SENDS, (Outcome.FAIL,)).column("value")
    findings: list[Example] = []
    examined = 0
    for node in _logs(evidence):
        values = passes.column(node.messages.values)
        examined += len(values)
        findings += [
            _stored(evidence, node, number, "refused to its producer, is in the log of")
            for number in passes.found(values, refused)
        ]
    reads = evidence.reads
    examined += len(reads)
    findings += [
        _read(evidence, reads, number, "refused to its producer, was given to a reader")
        for number in passes.found(reads.column("value"), refused)
    ]
    return judged("A3 phantom", examined, "messages", findings)


def unknown_values(evidence: Evidence) -> CheckResult:
    """A4: every stored or delivered message was sent, and its body is the one that was sent."""
    sent, crcs = evidence.sends.column("value"), evidence.sends.column("body_crc")
    findings: list[Example] = []
    examined = 0
    for node in _logs(evidence):
        values = passes.column(node.messages.values)
        known = passes.lookup(values, sent, crcs, -2)
        examined += len(values)
        for number in passes.unequal(known, passes.column(node.messages.crcs)):
            what = _strangeness(int(values[number]), int(known[number]))
            findings.append(_stored(evidence, node, number, f"{what}, is in the log of"))
    reads = evidence.reads
    examined += len(reads)
    values = reads.column("value")
    known = passes.lookup(values, sent, crcs, -2)
    for number in passes.unequal(known, reads.column("body_crc")):
        what = _strangeness(int(values[number]), int(known[number]))
        findings.append(_read(evidence, reads, number, f"{what}, was given to a reader"))
    return judged("A4 unknown value", examined, "messages", findings)


def duplicates(evidence: Evidence) -> CheckResult:
    """A5: no attempt is stored twice."""
    findings: list[Example] = []
    examined = 0
    for node in _logs(evidence):
        values = passes.column(node.messages.values)
        examined += len(values)
        for places in passes.repeated(values):
            if values[places[0]] == UNNAMED:
                continue
            others = ", ".join(_show(evidence, node, place) for place in places)
            example = _stored(evidence, node, places[0], "")
            example.text = (
                f"value {example.value} is {len(places)} times in the log of {node.label}: {others}"
            )
            example.distance = abs(
                node.messages.physicals[places[-1]] - node.messages.physicals[places[0]]
            )
            findings.append(example)
    return judged("A5 duplicate", examined, "stored messages", findings)


def retried_duplicates(evidence: Evidence) -> CheckResult:
    """A6: messages that are stored more than once because their operation was attempted again."""
    triples: set[tuple[int, int, int]] = set()
    pairs: set[tuple[int, int]] = set()
    examined = 0
    for node in evidence.finals():
        messages = node.messages
        examined += len(messages)
        triples.update(zip(messages.operations, messages.sequences, messages.values, strict=True))
        pairs.update(zip(messages.operations, messages.sequences, strict=True))
    again = len(triples) - len(pairs)
    note = f"{again} messages stored again by a retry" if again else ""
    return judged(
        "A6 retry duplicate",
        examined,
        "stored messages",
        [],
        note,
        severity=Severity.METRIC,
        figures={"stored_again": again},
    )


def inconsistent_offsets(evidence: Evidence, losses: Losses) -> CheckResult:
    """A7: at one queue offset nobody, ever, saw two different messages.

    Observations: acknowledgements, messages read, the logs of all nodes, now and in all images. Two
    are allowed where one of them was legally lost and its offset given out again.
    """
    sends, reads = evidence.acknowledged, evidence.reads
    parts: list[tuple[str, Column, Column]] = [
        ("acknowledged", evidence.keys(sends), sends.column("value")),
        ("given to a reader", evidence.keys(reads), reads.column("value")),
    ]
    for node in _logs(evidence):
        messages = node.messages
        keys = passes.pack(passes.column(messages.queues), passes.column(messages.offsets))
        parts.append((f"log of {node.label}", keys, passes.column(messages.values)))
    keys = passes.join([part[1] for part in parts])
    values = passes.join([part[2] for part in parts])
    named = passes.known(values)
    keys, values = passes.take(keys, named), passes.take(values, named)
    who = _Sources([(name, len(column)) for name, column, _ in parts])
    findings: list[Example] = []
    allowed: list[Example] = []
    for first, other in _all_conflicts(evidence, keys, values, losses):
        pair = int(values[first]), int(values[other])
        queue, offset = evidence.queues.place(int(keys[first]))
        sources = who.name(int(named[first])), who.name(int(named[other]))
        example = Example(
            f"{evidence.queues.show(int(keys[first]))}: value {pair[0]} ({sources[0]}),"
            f" value {pair[1]} ({sources[1]})",
            value=pair[1],
            topic=queue.topic,
            queue=queue.queue,
            offset=offset,
        )
        (allowed if losses.gone.intersection(pair) else findings).append(example)
    return judged("A7 inconsistent offset", len(keys), "observations", findings, allowed=allowed)


def moved_writes(evidence: Evidence) -> CheckResult:
    """A8: an acknowledged message that is there is where its acknowledgement said."""
    title, unit = "A8 moved write", "acknowledged places"
    if missing := evidence.no_final():
        return not_run(title, unit, missing)
    sends = evidence.acknowledged
    logs = [node.messages for node in evidence.finals()]
    stored = passes.join([passes.column(log.values) for log in logs])
    queues = passes.join([passes.column(log.queues) for log in logs])
    offsets = passes.join([passes.column(log.offsets) for log in logs])
    physicals = passes.join([passes.column(log.physicals) for log in logs])
    values, said = sends.column("value"), evidence.keys(sends)
    bytes_said = sends.column("physical_offset")
    known = passes.known(said)
    values, said = passes.take(values, known), passes.take(said, known)
    bytes_said = passes.take(bytes_said, known)
    keys = passes.lookup(values, stored, passes.pack(queues, offsets), -1)
    places = passes.lookup(values, stored, physicals, -1)
    there = passes.known(keys)
    suspects = {
        int(there[at]) for at in passes.unequal(passes.take(keys, there), passes.take(said, there))
    } | {
        int(there[at])
        for at in passes.unequal(passes.take(places, there), passes.take(bytes_said, there))
    }
    findings: list[Example] = []
    every = _places(stored, queues, offsets, physicals) if suspects else {}
    for number in sorted(suspects):
        row = sends.row(int(known[number]))
        wanted = int(said[number]), int(bytes_said[number])
        found = every.get(int(values[number]), [])
        if any(key == wanted[0] and wanted[1] in (-1, place) for key, place in found):
            continue
        where = ", ".join(f"{evidence.queues.show(key)} (log {place})" for key, place in found)
        findings.append(
            Example(
                f"value {row.value} was acknowledged at {evidence.queues.show(wanted[0])}"
                f" (log {wanted[1]}) and is at {where}",
                value=row.value,
                operation=row.operation,
                topic=evidence.history.topic(row),
                queue=row.queue,
                offset=row.queue_offset,
                physical=row.physical_offset,
                time_ns=row.returned_ns,
                distance=abs(found[0][1] - wanted[1]),
            )
        )
    if len(sends) and not len(there):
        return not_applicable(title, unit, "nothing that was acknowledged is there")
    return judged(title, len(there), unit, findings)


def nonmonotonic_sends(evidence: Evidence, losses: Losses) -> CheckResult:
    """A9: in one queue a send that returned before another began has the lower offset."""
    sends = evidence.acknowledged
    keys = evidence.keys(sends)
    known = passes.known(keys)
    queues = passes.take(evidence.queue_numbers(sends), known)
    begins = passes.take(sends.column("invoked_ns"), known)
    ends = passes.take(sends.column("returned_ns"), known)
    offsets = passes.take(sends.column("queue_offset"), known)
    findings: list[Example] = []
    allowed: list[Example] = []
    for before, after in passes.overtaken(queues, begins, ends, offsets):
        one, two = sends.row(int(known[before])), sends.row(int(known[after]))
        example = Example(
            f"value {two.value} was sent after value {one.value} had been acknowledged at"
            f" {evidence.history.topic(one)}/{one.queue} offset {one.queue_offset}, and got offset"
            f" {two.queue_offset}",
            value=two.value,
            operation=two.operation,
            topic=evidence.history.topic(two),
            queue=two.queue,
            offset=two.queue_offset,
            time_ns=two.returned_ns,
            distance=one.queue_offset - two.queue_offset,
        )
        (allowed if losses.gone & {one.value, two.value} else findings).append(example)
    return judged(
        "A9 nonmonotonic send", len(known), "acknowledged sends", findings, allowed=allowed
    )


def dense_queues(evidence: Evidence) -> CheckResult:
    """I13 in the final logs: the queue offsets of each queue rise by one with the log.

    They begin at 0, unless retention has taken the start of the log.
    """
    title, unit = "I13 queues dense", "stored messages"
    if missing := evidence.no_final():
        return not_run(title, unit, missing)
    findings: list[Example] = []
    allowed: list[Example] = []
    examined = 0
    for node in evidence.finals():
        damaged = node.name in evidence.damaged
        due: dict[int, int] = {}
        messages = node.messages
        examined += len(messages)
        for number, (queue, offset) in enumerate(
            zip(messages.queues, messages.offsets, strict=True)
        ):
            expected = due.get(queue, offset if node.log_min else 0)
            if offset != expected:
                what = f"where offset {expected} is due, is in the log of"
                example = _stored(evidence, node, number, what)
                example.distance = abs(offset - expected)
                (allowed if damaged else findings).append(example)
            due[queue] = max(expected, offset + 1)
    return judged(title, examined, unit, findings, allowed=allowed)


class _Sources:
    """Which of several joined parts a position is in."""

    def __init__(self, parts: list[tuple[str, int]]) -> None:
        self._parts = parts

    def name(self, position: int) -> str:
        for name, count in self._parts:
            if position < count:
                return name
            position -= count
        raise IndexError(position)


def _all_conflicts(
    evidence: Evidence, keys: Column, values: Column, losses: Losses
) -> list[tuple[int, int]]:
    """Conflicting pairs; where one value of a place is legally gone, those of the rest too."""
    pairs = passes.conflicts(keys, values)
    if not pairs or not losses.gone:
        return pairs
    kept = passes.column(passes.missing(values, passes.column(sorted(losses.gone))))
    rest = passes.conflicts(passes.take(keys, kept), passes.take(values, kept))
    real = [(int(kept[first]), int(kept[other])) for first, other in rest]
    excused = [pair for pair in pairs if losses.gone & {int(values[pair[0]]), int(values[pair[1]])}]
    return sorted(set(real) | set(excused))


def _places(
    stored: Column, queues: Column, offsets: Column, physicals: Column
) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for value, queue, offset, place in zip(stored, queues, offsets, physicals, strict=True):
        found[int(value)].append((pack(int(queue), int(offset)), int(place)))
    return found


def _strangeness(value: int, known: int) -> str:
    if value == UNNAMED:
        return "which names no writer, or is damaged"
    return "which nobody sent" if known == -2 else "with another body than the one sent"


def _logs(evidence: Evidence) -> list[NodeLog]:
    return [*evidence.nodes, *evidence.images]


def _show(evidence: Evidence, node: NodeLog, number: int) -> str:
    messages = node.messages
    key = pack(messages.queues[number], messages.offsets[number])
    return f"{evidence.queues.show(key)} (log {messages.physicals[number]})"


def _stored(evidence: Evidence, node: NodeLog, number: int, what: str) -> Example:
    messages = node.messages
    queue = evidence.queues.names[messages.queues[number]]
    return Example(
        f"value {messages.values[number]}, {what} {node.label} at {_show(evidence, node, number)}",
        value=messages.values[number],
        operation=messages.operations[number],
        node=node.name,
        topic=queue.topic,
        queue=queue.queue,
        offset=messages.offsets[number],
        physical=messages.physicals[number],
        time_ns=None if node.image is None else node.image.time_ns,
    )


def _read(evidence: Evidence, reads: Rows, number: int, what: str) -> Example:
    row = reads.row(number)
    topic = evidence.history.topic(row)
    return Example(
        f"value {row.value}, {what} at {topic}/{row.queue} offset {row.queue_offset}",
        value=row.value,
        node=evidence.history.nodes.get(row.node, ""),
        topic=topic,
        queue=row.queue,
        offset=row.queue_offset,
        time_ns=row.returned_ns,
    )
