"""What deleted topics leave behind: nothing that a reader is given, nothing in tables and queues.

What was made again under the name is another topic (`deletions`): the other checks judge it so.
"""

from collections.abc import Iterator
from itertools import pairwise

from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.deletions import Deletion
from rocketbed.chaos.checks.events import targets_of
from rocketbed.chaos.checks.evidence import READS, Evidence
from rocketbed.chaos.checks.logs import NodeLog
from rocketbed.chaos.checks.reads import example_of
from rocketbed.chaos.checks.result import Excuse

NO_DELETION = "no topic was deleted"
COPIED_NS = 10_000_000_000
"""In which a slave with a slow disk has taken over its master's tables, deletions last."""


@check("A39 deleted message", "messages read after a deletion")
def deleted_messages(case: Case, found: Findings) -> int:
    """A39: once every node has said that a topic is deleted, nobody is given what was in it."""
    evidence = case.evidence
    deletions = _deletions(evidence)
    examined = 0
    for row in evidence.rows(READS).each():
        one = deletions.get(evidence.history.topic(row))
        if one is None or row.invoked_ns < one.end_ns:
            continue
        examined += 1
        if evidence.generations.is_deleted(row.value):
            late = row.invoked_ns - one.end_ns
            text = f"was given to a reader {late / 1e9:.1f} s after it had been deleted"
            found.add(example_of(evidence, row, text, late))
    if not examined:
        raise NotApplicable("nobody read a topic that had been deleted and made again")
    return examined


@check("S26 deletion complete", "directories", final=True)
def deletion_complete(case: Case, found: Findings) -> int:
    """S26: at the end no node's queues hold a message of a deleted topic; of one that was not made
    again there is neither a queue nor a row in any table."""
    evidence = case.evidence
    for one in _deletions(evidence).values():
        for node in evidence.nodes:
            for what in _left(evidence, node, one):
                text = f"{node.name} {what}, which was deleted {one.end_ns / 1e9:.1f} s after start"
                excuse = evidence.disks.may_differ(node) or _forgotten(evidence, node.group, one)
                found.add(text, excuse=excuse, node=node.name, topic=one.topic)
    return len(evidence.nodes)


def _forgotten(evidence: Evidence, group: int, one: Deletion) -> Excuse | None:
    """The loss of every disk that held a deletion, too soon after each other for a slave to have
    taken it over: no promise of copies speaks of tables (seed 859189)."""
    nodes = {name for name in evidence.record.nodes if evidence.group_of_name(name) == group}
    last: dict[str, int] = {}
    for event in evidence.history.events:
        if event.what == "wipe" and event.time_ns > one.end_ns:
            last |= {node: event.time_ns for node in targets_of(event) if node in nodes}
    times = sorted(last.values())
    if len(times) == len(nodes) > 1 and any(b - a < COPIED_NS for a, b in pairwise(times)):
        return evidence.excuse("all disks of the group were replaced in turn", times[0])
    return None


def _deletions(evidence: Evidence) -> dict[str, Deletion]:
    found = {topic: one for topic, one in evidence.generations.deletions.items() if one.is_done}
    if not found:
        raise NotApplicable(NO_DELETION)
    return found


def _left(evidence: Evidence, node: NodeLog, one: Deletion) -> Iterator[str]:
    """What a node has that it should not have any more."""
    messages, names = node.messages, evidence.queues.names
    topics = [names[number].topic for number in messages.queues]
    old = {at for at, topic in zip(messages.physicals, topics, strict=True) if topic == one.name}
    for (topic, queue), units in sorted(node.directory.queues.items()):
        if topic == one.topic and (count := sum(unit.offset in old for unit in units.units())):
            yield f"has {count} messages in queue {queue} of the topic {topic}"
    if one.is_again or one.topic in topics:  # a send that nobody answered may have made it again
        return
    if one.topic in (node.directory.topics() or {}):
        yield f"has a row for the topic {one.topic}"
    if any(topic == one.topic for topic, _ in node.directory.queues):
        yield f"has queues of the topic {one.topic}"
    table = node.directory.config("consumerOffset.json")
    offsets = table.get("offsetTable") if isinstance(table, dict) else None
    for name in offsets if isinstance(offsets, dict) else ():
        if str(name).rpartition("@")[0] == one.topic:
            yield f"keeps a position for {name}, of the topic {one.topic}"
