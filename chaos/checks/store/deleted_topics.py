"""Deleted topics leave nothing behind: no message for a reader, nothing in tables and queues.

A recreated topic of the same name is another topic (`deletions`); the other checks judge it so.
"""

from collections.abc import Iterator
from itertools import pairwise

from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.deletions import Deletion
from rocketbed.chaos.checks.events import targets_of
from rocketbed.chaos.checks.evidence import READS, Evidence
from rocketbed.chaos.checks.examples import example_of
from rocketbed.chaos.checks.logs import NodeLog
from rocketbed.chaos.checks.result import Excuse

NO_DELETION = "no topic was deleted"
COPIED_NS = 10_000_000_000
"""Time in which a slave with a slow disk has copied its master's tables, deletions last."""


@check("deleted-message-read", "messages read after a deletion")
def deleted_messages(case: Case, findings: Findings) -> int:
    """Once every node has reported the deletion of a topic, no reader gets its messages."""
    evidence = case.evidence
    deletions = _deletions(evidence)
    examined = 0
    for row in evidence.rows(READS).each():
        deletion = deletions.get(evidence.history.topic(row))
        if deletion is None or row.invoked_ns < deletion.end_ns:
            continue
        examined += 1
        if evidence.generations.is_deleted(row.value):
            delay_ns = row.invoked_ns - deletion.end_ns
            text = f"was given to a reader {delay_ns / 1e9:.1f} s after it had been deleted"
            findings.add(example_of(evidence, row, text, delay_ns))
    if not examined:
        raise NotApplicable("nobody read a topic that had been deleted and made again")
    return examined


@check("deletion-complete", "directories", final=True)
def deletion_complete(case: Case, findings: Findings) -> int:
    """At the end no node's queues hold a message of a deleted topic; if it was not recreated,
    no queue and no table has a row of it."""
    evidence = case.evidence
    for deletion in _deletions(evidence).values():
        for node in evidence.nodes:
            for remainder in _remainders(evidence, node, deletion):
                seconds = deletion.end_ns / 1e9
                text = f"{node.name} {remainder}, which was deleted {seconds:.1f} s after start"
                excuse = evidence.disks.may_differ(node) or _lost_deletion(
                    evidence, node.group, deletion
                )
                findings.add(text, excuse=excuse, node=node.name, topic=deletion.topic)
    return len(evidence.nodes)


def _lost_deletion(evidence: Evidence, group: int, deletion: Deletion) -> Excuse | None:
    """Return the loss of every disk that held a deletion, too soon after each other for a slave to
    have copied it: the promised copies do not cover tables."""
    nodes = {name for name in evidence.record.nodes if evidence.group_of_name(name) == group}
    last_wipes: dict[str, int] = {}
    for event in evidence.history.events:
        if event.kind == "wipe" and event.time_ns > deletion.end_ns:
            last_wipes |= {node: event.time_ns for node in targets_of(event) if node in nodes}
    times = sorted(last_wipes.values())
    if len(times) == len(nodes) > 1 and any(b - a < COPIED_NS for a, b in pairwise(times)):
        return evidence.excuse("all disks of the group were replaced in turn", times[0])
    return None


def _deletions(evidence: Evidence) -> dict[str, Deletion]:
    deletions = {
        topic: deletion
        for topic, deletion in evidence.generations.deletions.items()
        if deletion.is_done
    }
    if not deletions:
        raise NotApplicable(NO_DELETION)
    return deletions


def _remainders(evidence: Evidence, node: NodeLog, deletion: Deletion) -> Iterator[str]:
    """Yield what a node should no longer have."""
    messages, names = node.messages, evidence.queues.names
    topics = [names[number].topic for number in messages.queues]
    old_offsets = {
        at for at, topic in zip(messages.physicals, topics, strict=True) if topic == deletion.name
    }
    for (topic, queue), units in sorted(node.directory.queues.items()):
        if topic == deletion.topic and (
            count := sum(unit.offset in old_offsets for unit in units.units())
        ):
            yield f"has {count} messages in queue {queue} of the topic {topic}"
    if deletion.is_again or deletion.topic in topics:  # an unanswered send may have recreated it
        return
    if deletion.topic in (node.directory.topics() or {}):
        yield f"has a row for the topic {deletion.topic}"
    if any(topic == deletion.topic for topic, _ in node.directory.queues):
        yield f"has queues of the topic {deletion.topic}"
    table = node.directory.config("consumerOffset.json")
    offsets = table.get("offsetTable") if isinstance(table, dict) else None
    for name in offsets if isinstance(offsets, dict) else ():
        if str(name).rpartition("@")[0] == deletion.topic:
            yield f"keeps a position for {name}, of the topic {deletion.topic}"
