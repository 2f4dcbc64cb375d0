"""Messages are stored once, unaltered, at the place that was reported (chaos.md 2.4)."""

from bisect import bisect_right
from collections import defaultdict
from itertools import accumulate

from rocketbed.chaos.checks import passes
from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.evidence import SENDS, Evidence, Rows
from rocketbed.chaos.checks.keys import pack
from rocketbed.chaos.checks.logs import UNNAMED, NodeLog
from rocketbed.chaos.checks.loss.bound import Losses
from rocketbed.chaos.checks.passes import Column
from rocketbed.chaos.checks.result import Example, Severity
from rocketbed.chaos.evidence.history import OWN_ATTEMPTS, Outcome


@check("phantom-write", "messages")
def phantom_writes(case: Case, findings: Findings) -> int:
    """No message that was refused is in a log or was delivered."""
    evidence = case.evidence
    refused = evidence.rows(SENDS, Outcome.FAIL).column("value")
    reads = evidence.reads
    examined = len(reads)
    for node in evidence.logs:
        values = passes.column(node.messages.values)
        examined += len(values)
        for number in passes.included(values, refused):
            verb = "refused to its producer, is in the log of"
            findings.add(_stored(evidence, node, number, verb))
    for number in passes.included(reads.column("value"), refused):
        verb = "refused to its producer, was given to a reader"
        findings.add(_read(evidence, reads, number, verb))
    return examined


@check("unknown-value", "messages")
def unknown_values(case: Case, findings: Findings) -> int:
    """Every stored or delivered message was sent, and its body is the one that was sent.

    In a topic with other writers a body may name no writer.
    """
    evidence, reads = case.evidence, case.evidence.reads
    shared = evidence.record.shared_topics
    sent, crcs = evidence.sends.column("value"), evidence.sends.column("body_crc")
    examined = len(reads)
    for node in evidence.logs:
        values = passes.column(node.messages.values)
        sent_crcs = passes.lookup(values, sent, crcs, -2)
        examined += len(values)
        for number in passes.unequal(sent_crcs, passes.column(node.messages.crcs)):
            queue = evidence.queues.names[node.messages.queues[number]]
            if values[number] == UNNAMED and queue.topic in shared:
                continue
            verb = _strangeness(int(values[number]), int(sent_crcs[number]))
            findings.add(_stored(evidence, node, number, f"{verb}, is in the log of"))
    values = reads.column("value")
    sent_crcs = passes.lookup(values, sent, crcs, -2)
    for number in passes.unequal(sent_crcs, reads.column("body_crc")):
        if values[number] == UNNAMED and evidence.history.topic(reads.row(number)) in shared:
            continue
        verb = _strangeness(int(values[number]), int(sent_crcs[number]))
        findings.add(_read(evidence, reads, number, f"{verb}, was given to a reader"))
    return examined


@check("altered-label", "messages")
def altered_labels(case: Case, findings: Findings) -> int:
    """Every stored or delivered message has the tag, keys and property that it was sent
    with."""
    evidence, reads = case.evidence, case.evidence.reads
    sends = evidence.sends
    has_label = passes.non_negative(sends.column("label_crc"))
    sent, labels = (passes.take(sends.column(name), has_label) for name in ("value", "label_crc"))
    examined = 0
    for node in evidence.logs:
        values, stored = passes.column(node.messages.values), passes.column(node.messages.labels)
        named = passes.included(values, sent)
        sent_labels = passes.lookup(passes.take(values, named), sent, labels, -2)
        examined += len(named)
        for number in passes.unequal(sent_labels, passes.take(stored, named)):
            verb = "with another tag, keys or property than it was sent with, is in the log of"
            # No checksum covers properties: a copy has what a damaged disk made of them.
            altered = evidence.disks.altered(int(values[named[number]]))
            excuse = evidence.disks.may_differ(node) or altered
            findings.add(_stored(evidence, node, named[number], verb), excuse=excuse)
    named = passes.included(reads.column("value"), sent)
    sent_labels = passes.lookup(passes.take(reads.column("value"), named), sent, labels, -2)
    for number in passes.unequal(sent_labels, passes.take(reads.column("label_crc"), named)):
        verb = "with another tag, keys or property than it was sent with, was given to a reader"
        excuse = evidence.disks.altered(int(reads.column("value")[named[number]]))
        findings.add(_read(evidence, reads, named[number], verb), excuse=excuse)
    return examined + len(named)


@check("duplicate", "stored messages")
def duplicates(case: Case, findings: Findings) -> int:
    """No attempt is stored twice, except where the client itself retries."""
    evidence = case.evidence
    own = passes.matching(evidence.sends.column("attempt"), (OWN_ATTEMPTS,))
    retried_by_client = set(map(int, passes.take(evidence.sends.column("value"), own)))
    examined = 0
    for node in evidence.logs:
        values, physicals = passes.column(node.messages.values), node.messages.physicals
        examined += len(values)
        for places in passes.repeated(values):
            if values[places[0]] == UNNAMED or int(values[places[0]]) in retried_by_client:
                continue
            copies = ", ".join(_show(evidence, node, place) for place in places)
            example = _stored(evidence, node, places[0], "")
            example.text = (
                f"value {example.value} is {len(places)} times in the log of {node.label}: {copies}"
            )
            example.distance = abs(physicals[places[-1]] - physicals[places[0]])
            findings.add(example)
    return examined


@check("retry-duplicate", "stored messages", severity=Severity.METRIC)
def retried_duplicates(case: Case, findings: Findings) -> int:
    """Messages that are stored more than once because their operation was retried."""
    triples: set[tuple[int, int, int]] = set()
    examined = 0
    for node in case.evidence.finals():
        messages = node.messages
        examined += len(messages)
        triples.update(zip(messages.operations, messages.sequences, messages.values, strict=True))
    repetitions = len(triples) - len({triple[:2] for triple in triples})
    findings.note = f"{repetitions} messages stored again by a retry" if repetitions else ""
    findings.figures = {"stored_again": repetitions}
    return examined


@check("inconsistent-offset", "observations")
def inconsistent_offsets(case: Case, findings: Findings) -> int:
    """No queue offset ever showed two different messages.

    Observations are acknowledgements, messages read, and the logs of all nodes at the end and in
    all images, except logs that damage may have altered. Two messages are allowed where one of them
    was legally lost and its offset assigned again.
    """
    evidence, losses = case.evidence, case.losses
    sends, reads = evidence.acknowledged, evidence.reads
    parts: list[tuple[str, Column, Column]] = [
        ("acknowledged", evidence.keys(sends), sends.column("value")),
        ("given to a reader", evidence.keys(reads), reads.column("value")),
    ]
    for node in evidence.logs:
        if evidence.disks.may_differ(node):
            continue
        messages = node.messages
        keys = passes.pack(passes.column(messages.queues), passes.column(messages.offsets))
        parts.append((f"log of {node.label}", keys, passes.column(messages.values)))
    keys = passes.join([part[1] for part in parts])
    values = passes.join([part[2] for part in parts])
    named = passes.non_negative(values)
    keys, values = passes.take(keys, named), passes.take(values, named)
    ends = list(accumulate(len(part[1]) for part in parts))
    for pair in _all_conflicts(keys, values, losses):
        value_1, value_2 = (int(values[at]) for at in pair)
        first, second = (parts[bisect_right(ends, int(named[at]))][0] for at in pair)
        key = int(keys[pair[0]])
        queue, offset = evidence.queues.place(key)
        text = f"{evidence.queues.show(key)}: value {value_1} ({first}), value {value_2} ({second})"
        example = Example(text, value=value_2, topic=queue.topic, queue=queue.queue, offset=offset)
        findings.add(example, excuse=losses.excuse_of(value_1, value_2))
    return len(keys)


@check("moved-write", "acknowledged places", final=True)
def moved_writes(case: Case, findings: Findings) -> int:
    """A stored acknowledged message is at the place in its acknowledgement, and where readers
    and groups got it."""
    evidence, stored = case.evidence, case.evidence.stored
    every_send, physicals = evidence.acknowledged, stored.column("physicals")
    sends = every_send.at(passes.non_negative(evidence.keys(every_send)))
    values, reported_keys = sends.column("value"), evidence.keys(sends)
    reported_physicals = sends.column("physical_offset")
    keys = passes.lookup(values, stored.values, stored.keys, -1)
    places = passes.lookup(values, stored.values, physicals, -1)
    stored_at = passes.non_negative(keys)
    if len(every_send) and not len(stored_at):
        raise NotApplicable("nothing that was acknowledged is there")
    suspects = {
        int(stored_at[at])
        for actual, reported in ((keys, reported_keys), (places, reported_physicals))
        for at in passes.unequal(passes.take(actual, stored_at), passes.take(reported, stored_at))
    }
    copies_by_value: dict[int, list[tuple[int, int]]] = defaultdict(list)
    if suspects:
        for value, key, place in zip(stored.values, stored.keys, physicals, strict=True):
            copies_by_value[int(value)].append((int(key), int(place)))
    for number in sorted(suspects):
        row = sends.row(number)
        reported = int(reported_keys[number]), int(reported_physicals[number])
        copies = copies_by_value[int(values[number])]
        if any(key == reported[0] and reported[1] in (-1, place) for key, place in copies):
            continue
        locations = ", ".join(f"{evidence.queues.show(key)} (log {place})" for key, place in copies)
        example = evidence.example(
            row,
            f"value {row.value} was acknowledged at {evidence.queues.show(reported[0])}"
            f" (log {reported[1]}) and is at {locations}",
            operation=row.operation,
            physical=row.physical_offset,
            distance=abs(copies[0][1] - reported[1]),
        )
        findings.add(example, excuse=evidence.disks.altered(row.value))
    return len(stored_at) + _read_elsewhere(evidence, findings)


def _read_elsewhere(evidence: Evidence, findings: Findings) -> int:
    """Add the messages read that the final log has at another place; return how many were
    examined."""
    stored, reads = evidence.stored, evidence.reads
    values, keys = reads.column("value"), evidence.keys(reads)
    places = passes.lookup(values, stored.values, stored.keys, -1)
    stored_at = passes.non_negative(places)
    for at in passes.unequal(passes.take(places, stored_at), passes.take(keys, stored_at)):
        row, place = reads.row(int(stored_at[at])), int(places[stored_at[at]])
        if row.value < 0:
            continue
        text = f"value {row.value} was read at {evidence.place(row)}, and is at"
        example = evidence.example(row, f"{text} {evidence.queues.show(place)}")
        findings.add(example, excuse=evidence.disks.altered(row.value))
    return len(stored_at)


@check("nonmonotonic-send", "acknowledged sends")
def nonmonotonic_sends(case: Case, findings: Findings) -> int:
    """A send that returned before another began in the same queue has the lower offset."""
    evidence, losses = case.evidence, case.losses
    sends = evidence.acknowledged
    sends = sends.at(passes.non_negative(evidence.keys(sends)))
    names = ("invoked_ns", "returned_ns", "queue_offset")
    columns = map(sends.column, names)
    for before, after in passes.overtaken(evidence.queue_numbers(sends), *columns):
        first, second = sends.row(before), sends.row(after)
        example = evidence.example(
            second,
            f"value {second.value} was sent after value {first.value} had been acknowledged at"
            f" {evidence.place(first)}, and got offset {second.queue_offset}",
            operation=second.operation,
            distance=first.queue_offset - second.queue_offset,
        )
        findings.add(example, excuse=losses.excuse_of(first.value, second.value))
    return len(sends)


@check("dense-queue-offsets", "stored messages", final=True)
def dense_queues(case: Case, findings: Findings) -> int:
    """Queue offsets rise by one in log order, in the final logs.

    They begin at 0, unless retention has removed the start of the log.
    """
    evidence = case.evidence
    examined = 0
    for node in evidence.finals():
        expected_by_queue: dict[int, int] = {}
        messages = node.messages
        examined += len(messages)
        places = zip(messages.queues, messages.offsets, strict=True)
        for number, (queue, offset) in enumerate(places):
            expected = expected_by_queue.get(queue, offset if node.log_min else 0)
            if offset != expected:
                verb = f"where offset {expected} is due, is in the log of"
                example = _stored(evidence, node, number, verb)
                example.distance = abs(offset - expected)
                findings.add(example, excuse=evidence.disks.may_differ(node))
            expected_by_queue[queue] = max(expected, offset + 1)
    return examined


def _all_conflicts(keys: Column, values: Column, losses: Losses) -> list[tuple[int, int]]:
    """Return conflicting pairs; where one value of a place is legally gone, also the conflicts
    among the other values."""
    pairs = passes.conflicts(keys, values)
    if not pairs or not losses.excuses:
        return pairs
    present = passes.column(passes.missing(values, passes.column(sorted(losses.excuses))))
    conflicts = passes.conflicts(passes.take(keys, present), passes.take(values, present))
    real = [(int(present[first]), int(present[second])) for first, second in conflicts]
    excused = [p for p in pairs if losses.excuse_of(int(values[p[0]]), int(values[p[1]]))]
    return sorted(set(real) | set(excused))


def _strangeness(value: int, sent_crc: int) -> str:
    if value == UNNAMED:
        return "which names no writer, or is damaged"
    return "which nobody sent" if sent_crc == -2 else "with another body than the one sent"


def _show(evidence: Evidence, node: NodeLog, number: int) -> str:
    messages = node.messages
    key = pack(messages.queues[number], messages.offsets[number])
    return f"{evidence.queues.show(key)} (log {messages.physicals[number]})"


def _stored(evidence: Evidence, node: NodeLog, number: int, verb: str) -> Example:
    messages = node.messages
    queue = evidence.queues.names[messages.queues[number]]
    return Example(
        f"value {messages.values[number]}, {verb} {node.label} at {_show(evidence, node, number)}",
        value=messages.values[number],
        operation=messages.operations[number],
        node=node.name,
        topic=queue.topic,
        queue=queue.queue,
        offset=messages.offsets[number],
        physical=messages.physicals[number],
        time_ns=None if node.image is None else node.image.time_ns,
    )


def _read(evidence: Evidence, reads: Rows, number: int, verb: str) -> Example:
    row = reads.row(number)
    text = f"value {row.value}, {verb} at {evidence.place(row)}"
    return evidence.example(row, text, node=evidence.node(row))
