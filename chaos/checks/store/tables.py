"""Contents of each node's tables at the end, compared with what the run created and
committed."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.ends import ENDLESS
from rocketbed.chaos.checks.evidence import Evidence
from rocketbed.chaos.checks.groups.positions import positions, stored_positions
from rocketbed.chaos.checks.logs import NodeLog
from rocketbed.chaos.checks.result import Excuse
from rocketbed.chaos.evidence.history import Function, Outcome
from rocketbed.client.routes import DEFAULT_QUEUES
from rocketbed.inspect.directory import queue_type
from rocketbed.inspect.marks import FLUSHED_NAME
from rocketbed.wire.bodies import PERM_READ, PERM_WRITE

COPIED_NS = 15_000_000_000
"""A position committed this long before clients ended is at every slave: five times their
period."""
TOPICS, OFFSETS = "topics.json", "consumerOffset.json"
GROUPS = "subscriptionGroup.json"
ORIGINAL_GROUP = {
    "attributes": {},
    "brokerId": 0,
    "consumeBroadcastEnable": True,
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "consumeMessageOrderly": False,
    "consumeTimeoutMinute": 15,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "groupSysFlag": 0,
    "notifyConsumerIdsChangedEnable": True,
    "retryMaxTimes": 16,
    "retryQueueNums": 1,
    "whichBrokerWhenConsumeSlowly": 1,
}
"""A group that a broker created automatically; no run changes one."""


@check("tables-complete", "entries", final=True)
def tables_complete(case: Case, findings: Findings) -> int:
    """At the end each node knows the topics that have messages, each group and its position.

    A clean stop left its checkpoint for the last record, and the index begins where the log does.
    At any time, images included, a group has its original settings.
    """
    evidence = case.evidence
    queues_of: dict[tuple[int, str], int] = defaultdict(int)
    # Acknowledged messages only: the bytes of a damaged record may name any queue.
    for number in sorted(set(map(int, evidence.queue_numbers(evidence.acknowledged))) - {-1}):
        name = evidence.queues.names[number]
        queues_of[name.group, name.topic] = max(queues_of[name.group, name.topic], name.queue + 1)
    names = set(queues_of)
    events = evidence.events(Function.NODE)
    changed = {event.fields["topic"] for event in events if event.kind.startswith("topic_")}
    examined = 0
    for node in evidence.nodes:
        topics = node.directory.topics() or {}
        batches = {topic for topic, _ in node.directory.batch_queues}
        for group, topic in sorted(names):
            if group != node.group or evidence.deleted(topic):
                continue
            examined += 1
            excuse = evidence.disks.may_differ(node, file=TOPICS)
            row, created_queues = topics.get(topic), evidence.record.topics.get(topic, 0)
            fault = _topic_fault(row, queues_of[group, topic])
            if row is not None and not fault and topic not in changed:
                fault = _change_fault(row, created_queues)
            read_queues = row.get("readQueueNums", 0) if row is not None else 0
            is_original = topic not in changed and (
                row is None or row.get("perm") == PERM_READ | PERM_WRITE
            )
            logged_queues, used_queues = (
                _queues_held(evidence, node, topic),
                queues_of[group, topic],
            )
            is_from_log = logged_queues <= read_queues < max(created_queues, used_queues)
            is_even = row is None or row.get("writeQueueNums") == read_queues
            is_from_send = is_even and 0 < created_queues < read_queues == max(
                DEFAULT_QUEUES, used_queues
            )
            if fault and is_original and (is_from_log or is_from_send):
                excuse = excuse or _not_copied(case, group)
            if topic in batches and not fault and queue_type(topics[topic]) != "BatchCQ":
                fault = "has batch queues, and no such type for"
            if fault:
                findings.add(
                    f"{node.name} {fault} topic {topic} in its {TOPICS}",
                    excuse=excuse,
                    node=node.name,
                    topic=topic,
                )
    if evidence.foreign:
        return examined
    for node in evidence.logs:
        for fault_of_group in _altered_groups(evidence, node):
            examined += 1
            if fault_of_group:
                excuse = evidence.disks.may_differ(node, file=GROUPS)
                findings.add(
                    f"{node.label} {fault_of_group}, by its {GROUPS}", excuse=excuse, node=node.name
                )
    for node in evidence.nodes:
        if node.name in evidence.record.stopped_cleanly:
            examined += _compare_positions(case, node, findings) + 1
            excuse = evidence.disks.may_differ(node)
            for text in _unfinished(evidence, node):
                findings.add(f"{node.name} {text}", excuse=excuse, node=node.name)
    return examined


@check("topics-before-messages", "topics in images")
def topics_first(case: Case, findings: Findings) -> int:
    """An image of a master has no message of a topic that its table lacks.

    A topic accepts sends once it is on disk. Judged for nodes that were master from the first, as
    the table of a slave is a copy that may lag behind its log.
    """
    evidence = case.evidence
    if evidence.foreign:
        raise NotApplicable("only our own node promises it")
    examined = 0
    for image in evidence.images:
        time_ns = image.image_record.time_ns
        lineage = case.losses.lineages[image.group]
        if any(era.master != image.name for era in lineage.eras if era.start_ns <= time_ns):
            continue
        topics = image.directory.topics() or {}
        names = {evidence.queues.names[number].topic for number in set(image.messages.queues)}
        examined += len(names)
        for topic in sorted(names.difference(topics)):
            deletion = evidence.generations.by_name.get(topic)
            if deletion is not None and deletion.topic in topics:
                continue
            text = f"{image.label}: there are messages of {topic}, and {TOPICS} lacks it"
            excuse = evidence.disks.may_differ(image, file=TOPICS) or evidence.deleted(
                topic, time_ns
            )
            findings.add(text, excuse=excuse, node=image.name, time_ns=time_ns, topic=topic)
    if not examined:
        raise NotApplicable("no image of a first master has messages")
    return examined


def _topic_fault(row: dict[str, Any] | None, queues: int) -> str:
    """Return what is wrong with a topic's row, if its messages are in this many queues."""
    if row is None:
        return "does not know"
    if row.get("readQueueNums", 0) < queues:
        return f"gives consumers {row.get('readQueueNums')} of {queues} queues of"
    if not row.get("perm", 0) & PERM_READ:
        return "lets nobody read"
    return ""


def _change_fault(row: dict[str, Any], queues: int) -> str:
    """Return what is wrong with the row of an unchanged topic. `queues` is its original number, if
    the set-up created it."""
    if not row.get("perm", 0) & PERM_WRITE:
        return "lets nobody write"
    counts = row.get("readQueueNums"), row.get("writeQueueNums")
    if not queues or counts == (queues, queues):
        return ""
    return f"has {counts[0]} queues to read, {counts[1]} to write, and not {queues}, for"


def _queues_held(evidence: Evidence, node: NodeLog, topic: str) -> int:
    """Return the number of queues of a topic that the messages of a log imply, at least one."""
    names = (evidence.queues.names[number] for number in sorted(set(node.messages.queues)))
    return max((name.queue + 1 for name in names if name.topic == topic), default=1)


def _not_copied(case: Case, group: int) -> Excuse | None:
    """Return a promotion of a node that had not run for as long as a copy of the tables takes.

    Its topics may have been rebuilt from the log alone, with the queues that messages name there,
    or by a send, with the queues that a producer requests.
    """
    evidence = case.evidence
    zero_ns = int(evidence.record.facts.get("zero_ns", 0))
    for era in case.losses.lineages[group].eras[1:]:
        changes = [
            event
            for event in evidence.events(Function.NODE, "start", "exit")
            if event.node == era.master and zero_ns < event.time_ns < era.start_ns
        ]
        since, longest = zero_ns, 0
        for event in changes:
            if event.kind == "exit":
                longest = max(longest, event.time_ns - since)
            since = event.time_ns if event.kind == "start" else era.start_ns
        if max(longest, era.start_ns - since) < COPIED_NS:
            return evidence.excuse(f"promotion of {era.master}, before it copied tables", zero_ns)
    return None


def _unfinished(evidence: Evidence, node: NodeLog) -> Iterator[str]:
    """Yield what a clean stop left unfinished.

    An index that was rebuilt lacks the messages of deleted topics.
    """
    checkpoint = node.directory.checkpoint
    if checkpoint is None:
        yield "has no checkpoint after a clean stop"
    elif node.directory.marks is None and (Path(node.directory.root) / FLUSHED_NAME).exists():
        yield "has no durable mark after a clean stop"
    elif checkpoint.logics_offset:  # 5.5.0 would use it, and no longer the times
        yield f"has {checkpoint.logics_offset} in its checkpoint as the offset of its queues, not 0"
    elif node.boundaries:
        *_, before, end = node.log_min, *node.boundaries[-2:]
        if not before <= checkpoint.confirm_offset < end:
            yield (
                f"names {checkpoint.confirm_offset} in its checkpoint as the beginning of its last"
                f" record, which lies between {before} and {end}"
            )
    if not evidence.record.indexed:
        return
    files, names, messages = node.directory.index_files, evidence.queues.names, node.messages
    places = zip(messages.queues, messages.physicals, strict=True)
    offsets = (at for queue, at in places if not evidence.deleted(names[queue].topic))
    first = next(offsets, None)
    if first is not None:
        if not files:
            yield "has no index"
        elif (begin := files[0].header().begin_offset) > first:
            yield f"has an index from {begin} on only, and its first key is at {first}"


def _altered_groups(evidence: Evidence, node: NodeLog) -> Iterator[str]:
    """Yield for each group of the run in a node's table how it differs from the original
    settings."""
    table = node.directory.config(GROUPS)
    table = table if isinstance(table, dict) else {}
    rows, forbidden = table.get("subscriptionGroupTable", {}), table.get("forbiddenTable", {})
    for group in (*evidence.record.consumer_groups, *evidence.record.listeners):
        if group in forbidden:
            yield f"forbids {group} {forbidden[group]}"
        if group in rows:
            row = rows[group]
            altered = {
                key: row[key]
                for key in ORIGINAL_GROUP
                if row.get(key, ORIGINAL_GROUP[key]) != ORIGINAL_GROUP[key]
            }
            yield f"has {group} with {altered}" if altered else ""


def _compare_positions(case: Case, node: NodeLog, findings: Findings) -> int:
    """Add the positions that a node lacked when it stopped; return how many were examined."""
    evidence = case.evidence
    groups = {number: name for name, number in evidence.record.consumer_groups.items()}
    stored = {
        (queue, group): position for _, queue, group, position in stored_positions(evidence, [node])
    }
    # Nodes with slow disks stop slowly, one after the other, and copy nothing meanwhile.
    last_ns = int(max(evidence.history.columns["returned_ns"], default=0))
    limit_ns = min(evidence.record.end_ns, last_ns) - COPIED_NS
    rows = evidence.rows((Function.COMMIT_OFFSET,), Outcome.OK)
    last = {
        (queue, groups[group]): (offset, time_ns)
        for group, queue, offset, time_ns in positions(evidence, rows)
        if time_ns <= limit_ns and group in groups and queue >= 0
    }
    examined = 0
    table = node.directory.config(GROUPS)
    group_rows = table.get("subscriptionGroupTable", {}) if isinstance(table, dict) else {}
    for (number, group), (offset, committed_ns) in sorted(last.items()):
        queue = evidence.queues.names[number]
        if queue.group != node.group or not offset or evidence.deleted(queue.topic):
            continue
        examined += 1
        if not group_rows.get(group, {}).get("consumeEnable"):
            findings.add(
                f"{node.name} does not let {group} consume, by its {GROUPS}, and it had committed",
                excuse=evidence.disks.may_differ(node, file=GROUPS),
                node=node.name,
            )
        position = stored.get((number, group), 0)
        if position < offset:
            excuse = evidence.disks.may_differ(node, file=OFFSETS)
            if position >= evidence.ends.get(number, 0):  # reduced to what a loss left
                excuse = excuse or case.losses.loss_between(node.group, committed_ns, ENDLESS)
            findings.add(
                f"{node.name} keeps {position} for {group} of {queue.topic}/{queue.queue}, where"
                f" {offset} had been committed {COPIED_NS / 1e9:g} s before clients ended",
                excuse=excuse,
                node=node.name,
                topic=queue.topic,
                queue=queue.queue,
                distance=offset - position,
            )
    return examined
