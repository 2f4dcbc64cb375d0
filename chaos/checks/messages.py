"""Are the messages there, once, where they were said to be? (chaos.md 2.4, A3 to A9)"""

from bisect import bisect_right
from collections import defaultdict
from itertools import accumulate

from rocketbed.chaos.checks import passes
from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.evidence import SENDS, Evidence, Rows
from rocketbed.chaos.checks.keys import pack
from rocketbed.chaos.checks.logs import UNNAMED, NodeLog
from rocketbed.chaos.checks.loss_bound import Losses
from rocketbed.chaos.checks.passes import Column
from rocketbed.chaos.checks.result import Example, Severity
from rocketbed.chaos.evidence.history import OWN_ATTEMPTS, Outcome


@check("A3 phantom", "messages")
def phantom_writes(case: Case, found: Findings) -> int:
    """A3: no message that was refused is in any log, or was given to anybody."""
    evidence = case.evidence
    refused = evidence.rows(SENDS, Outcome.FAIL).column("value")
    reads = evidence.reads
    examined = len(reads)
    for node in evidence.logs:
        values = passes.column(node.messages.values)
        examined += len(values)
        for number in passes.found(values, refused):
            what = "refused to its producer, is in the log of"
            found.add(_stored(evidence, node, number, what))
    for number in passes.found(reads.column("value"), refused):
        what = "refused to its producer, was given to a reader"
        found.add(_read(evidence, reads, number, what))
    return examined


@check("A4 unknown value", "messages")
def unknown_values(case: Case, found: Findings) -> int:
    """A4: every stored or delivered message was sent, and its body is the one that was sent.

    In a topic that others write to as well, a body may name nobody.
    """
    evidence, reads = case.evidence, case.evidence.reads
    shared = evidence.record.shared_topics
    sent, crcs = evidence.sends.column("value"), evidence.sends.column("body_crc")
    examined = len(reads)
    for node in evidence.logs:
        values = passes.column(node.messages.values)
        known = passes.lookup(values, sent, crcs, -2)
        examined += len(values)
        for number in passes.unequal(known, passes.column(node.messages.crcs)):
            queue = evidence.queues.names[node.messages.queues[number]]
            if values[number] == UNNAMED and queue.topic in shared:
                continue
            what = _strangeness(int(values[number]), int(known[number]))
            found.add(_stored(evidence, node, number, f"{what}, is in the log of"))
    values = reads.column("value")
    known = passes.lookup(values, sent, crcs, -2)
    for number in passes.unequal(known, reads.column("body_crc")):
        if values[number] == UNNAMED and evidence.history.topic(reads.row(number)) in shared:
            continue
        what = _strangeness(int(values[number]), int(known[number]))
        found.add(_read(evidence, reads, number, f"{what}, was given to a reader"))
    return examined


@check("A4l altered label", "messages")
def altered_labels(case: Case, found: Findings) -> int:
    """A4l: every stored or delivered message has the tag, the keys and the property that it was
    sent with."""
    evidence, reads = case.evidence, case.evidence.reads
    sends = evidence.sends
    labelled = passes.known(sends.column("label_crc"))
    sent, labels = (passes.take(sends.column(name), labelled) for name in ("value", "label_crc"))
    examined = 0
    for node in evidence.logs:
        values, stored = passes.column(node.messages.values), passes.column(node.messages.labels)
        named = passes.found(values, sent)
        known = passes.lookup(passes.take(values, named), sent, labels, -2)
        examined += len(named)
        for number in passes.unequal(known, passes.take(stored, named)):
            what = "with another tag, keys or property than it was sent with, is in the log of"
            # No checksum covers properties: who copies them has what a damaged disk made of them.
            altered = evidence.disks.altered(int(values[named[number]]))
            excuse = evidence.disks.may_differ(node) or altered
            found.add(_stored(evidence, node, named[number], what), excuse=excuse)
    named = passes.found(reads.column("value"), sent)
    known = passes.lookup(passes.take(reads.column("value"), named), sent, labels, -2)
    for number in passes.unequal(known, passes.take(reads.column("label_crc"), named)):
        what = "with another tag, keys or property than it was sent with, was given to a reader"
        excuse = evidence.disks.altered(int(reads.column("value")[named[number]]))
        found.add(_read(evidence, reads, named[number], what), excuse=excuse)
    return examined + len(named)


@check("A5 duplicate", "stored messages")
def duplicates(case: Case, found: Findings) -> int:
    """A5: no attempt is stored twice, but where its client attempts again by itself."""
    evidence = case.evidence
    own = passes.where(evidence.sends.column("attempt"), (OWN_ATTEMPTS,))
    free = set(map(int, passes.take(evidence.sends.column("value"), own)))
    examined = 0
    for node in evidence.logs:
        values, physicals = passes.column(node.messages.values), node.messages.physicals
        examined += len(values)
        for places in passes.repeated(values):
            if values[places[0]] == UNNAMED or int(values[places[0]]) in free:
                continue
            others = ", ".join(_show(evidence, node, place) for place in places)
            example = _stored(evidence, node, places[0], "")
            example.text = (
                f"value {example.value} is {len(places)} times in the log of {node.label}: {others}"
            )
            example.distance = abs(physicals[places[-1]] - physicals[places[0]])
            found.add(example)
    return examined


@check("A6 retry duplicate", "stored messages", severity=Severity.METRIC)
def retried_duplicates(case: Case, found: Findings) -> int:
    """A6: messages that are stored more than once because their operation was attempted again."""
    triples: set[tuple[int, int, int]] = set()
    examined = 0
    for node in case.evidence.finals():
        messages = node.messages
        examined += len(messages)
        triples.update(zip(messages.operations, messages.sequences, messages.values, strict=True))
    again = len(triples) - len({triple[:2] for triple in triples})
    found.note = f"{again} messages stored again by a retry" if again else ""
    found.figures = {"stored_again": again}
    return examined


@check("A7 inconsistent offset", "observations")
def inconsistent_offsets(case: Case, found: Findings) -> int:
    """A7: at one queue offset nobody, ever, saw two different messages.

    Observations: acknowledgements, messages read, the logs of all nodes, now and in all images, but
    for those that damage may have altered. Two are allowed where one of them was legally lost and
    its offset given out again.
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
    named = passes.known(values)
    keys, values = passes.take(keys, named), passes.take(values, named)
    ends = list(accumulate(len(part[1]) for part in parts))
    for pair in _all_conflicts(keys, values, losses):
        one, two = (int(values[at]) for at in pair)
        first, second = (parts[bisect_right(ends, int(named[at]))][0] for at in pair)
        key = int(keys[pair[0]])
        queue, offset = evidence.queues.place(key)
        text = f"{evidence.queues.show(key)}: value {one} ({first}), value {two} ({second})"
        example = Example(text, value=two, topic=queue.topic, queue=queue.queue, offset=offset)
        found.add(example, excuse=losses.gone_of(one, two))
    return len(keys)


@check("A8 moved write", "acknowledged places", final=True)
def moved_writes(case: Case, found: Findings) -> int:
    """A8: an acknowledged message that is there is where its acknowledgement said, and where
    readers and groups were told that they got it."""
    evidence, stored = case.evidence, case.evidence.stored
    every_send, physicals = evidence.acknowledged, stored.column("physicals")
    sends = every_send.at(passes.known(evidence.keys(every_send)))
    values, said = sends.column("value"), evidence.keys(sends)
    bytes_said = sends.column("physical_offset")
    keys = passes.lookup(values, stored.values, stored.keys, -1)
    places = passes.lookup(values, stored.values, physicals, -1)
    there = passes.known(keys)
    if len(every_send) and not len(there):
        raise NotApplicable("nothing that was acknowledged is there")
    suspects = {
        int(there[at])
        for is_at, should in ((keys, said), (places, bytes_said))
        for at in passes.unequal(passes.take(is_at, there), passes.take(should, there))
    }
    every: dict[int, list[tuple[int, int]]] = defaultdict(list)
    if suspects:
        for value, key, place in zip(stored.values, stored.keys, physicals, strict=True):
            every[int(value)].append((int(key), int(place)))
    for number in sorted(suspects):
        row = sends.row(number)
        wanted = int(said[number]), int(bytes_said[number])
        copies = every[int(values[number])]
        if any(key == wanted[0] and wanted[1] in (-1, place) for key, place in copies):
            continue
        where = ", ".join(f"{evidence.queues.show(key)} (log {place})" for key, place in copies)
        example = evidence.example(
            row,
            f"value {row.value} was acknowledged at {evidence.queues.show(wanted[0])}"
            f" (log {wanted[1]}) and is at {where}",
            operation=row.operation,
            physical=row.physical_offset,
            distance=abs(copies[0][1] - wanted[1]),
        )
        found.add(example, excuse=evidence.disks.altered(row.value))
    return len(there) + _read_elsewhere(evidence, found)


def _read_elsewhere(evidence: Evidence, found: Findings) -> int:
    """Messages read that are in the final log, and not where they were read; how many were."""
    stored, reads = evidence.stored, evidence.reads
    values, keys = reads.column("value"), evidence.keys(reads)
    places = passes.lookup(values, stored.values, stored.keys, -1)
    there = passes.known(places)
    for at in passes.unequal(passes.take(places, there), passes.take(keys, there)):
        row, place = reads.row(int(there[at])), int(places[there[at]])
        if row.value < 0:
            continue
        text = f"value {row.value} was read at {evidence.place(row)}, and is at"
        example = evidence.example(row, f"{text} {evidence.queues.show(place)}")
        found.add(example, excuse=evidence.disks.altered(row.value))
    return len(there)


@check("A9 nonmonotonic send", "acknowledged sends")
def nonmonotonic_sends(case: Case, found: Findings) -> int:
    """A9: in one queue a send that returned before another began has the lower offset."""
    evidence, losses = case.evidence, case.losses
    sends = evidence.acknowledged
    sends = sends.at(passes.known(evidence.keys(sends)))
    names = ("invoked_ns", "returned_ns", "queue_offset")
    columns = map(sends.column, names)
    for before, after in passes.overtaken(evidence.queue_numbers(sends), *columns):
        one, two = sends.row(before), sends.row(after)
        example = evidence.example(
            two,
            f"value {two.value} was sent after value {one.value} had been acknowledged at"
            f" {evidence.place(one)}, and got offset {two.queue_offset}",
            operation=two.operation,
            distance=one.queue_offset - two.queue_offset,
        )
        found.add(example, excuse=losses.gone_of(one.value, two.value))
    return len(sends)


@check("I13 queues dense", "stored messages", final=True)
def dense_queues(case: Case, found: Findings) -> int:
    """I13 in the final logs: the queue offsets of each queue rise by one with the log.

    They begin at 0, unless retention has taken the start of the log.
    """
    evidence = case.evidence
    examined = 0
    for node in evidence.finals():
        due: dict[int, int] = {}
        messages = node.messages
        examined += len(messages)
        places = zip(messages.queues, messages.offsets, strict=True)
        for number, (queue, offset) in enumerate(places):
            expected = due.get(queue, offset if node.log_min else 0)
            if offset != expected:
                what = f"where offset {expected} is due, is in the log of"
                example = _stored(evidence, node, number, what)
                example.distance = abs(offset - expected)
                found.add(example, excuse=evidence.disks.may_differ(node))
            due[queue] = max(expected, offset + 1)
    return examined


def _all_conflicts(keys: Column, values: Column, losses: Losses) -> list[tuple[int, int]]:
    """Conflicting pairs; where one value of a place is legally gone, those of the rest too."""
    pairs = passes.conflicts(keys, values)
    if not pairs or not losses.gone:
        return pairs
    kept = passes.column(passes.missing(values, passes.column(sorted(losses.gone))))
    rest = passes.conflicts(passes.take(keys, kept), passes.take(values, kept))
    real = [(int(kept[first]), int(kept[other])) for first, other in rest]
    excused = [p for p in pairs if losses.gone_of(int(values[p[0]]), int(values[p[1]]))]
    return sorted(set(real) | set(excused))


def _strangeness(value: int, known: int) -> str:
    if value == UNNAMED:
        return "which names no writer, or is damaged"
    return "which nobody sent" if known == -2 else "with another body than the one sent"


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
    text = f"value {row.value}, {what} at {evidence.place(row)}"
    return evidence.example(row, text, node=evidence.node(row))
