"""Changes of topics under load: every node keeps the last one, and permissions hold."""

from collections import defaultdict

from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.context import POLL_DELAY_NS, faults
from rocketbed.chaos.checks.evidence import Evidence
from rocketbed.chaos.evidence.history import Event, Function
from rocketbed.wire.bodies import PERM_READ

TOPICS = "topics.json"
FIELDS = {"queues": ("readQueueNums", "writeQueueNums"), "perm": ("perm",)}
"""Field of a change -> its columns in the table."""


@check("topic-changes-kept", "rows of topics", final=True)
def changes_kept(case: Case, findings: Findings) -> int:
    """A change of a topic that every node had reported is in the table of each at the end,
    through all restarts, unless a later change replaced it."""
    evidence = case.evidence
    latest = {str(event.fields["topic"]): event for event in _changes(evidence)}
    examined = 0
    for topic, event in sorted(latest.items()):
        for node in evidence.nodes:
            row = (node.directory.topics() or {}).get(topic, {})
            examined += 1
            for field, columns in FIELDS.items():
                expected = event.fields[field]
                for column in columns:
                    if row.get(column) == expected:
                        continue
                    text = (
                        f"{node.name} has {column} {row.get(column)} for {topic} in its {TOPICS},"
                    )
                    text += f" where every node had {expected} at {event.time_ns / 1e9:.1f} s"
                    excuse = evidence.disks.may_differ(node, file=TOPICS)
                    findings.add(text, excuse=excuse, node=node.name, topic=topic)
    return examined


@check("read-without-permission", "pulls while nobody may read")
def forbidden_reads(case: Case, findings: Findings) -> int:
    """No pull returned a message if it arrived and was answered while every node had the topic
    closed to readers. (Sends are not judged: a client goes by its route there.)"""
    evidence = case.evidence
    closed: dict[str, list[tuple[int, int]]] = defaultdict(list)
    closed_since: dict[str, int] = {}
    for event in _changes(evidence, "topic_widening"):
        topic = str(event.fields["topic"])
        if event.kind == "topic_widening":
            closed[topic].append((closed_since.pop(topic, event.time_ns), event.time_ns))
        elif not int(event.fields["perm"]) & PERM_READ:
            closed_since[topic] = event.time_ns
    if not any(begin < end for spans in closed.values() for begin, end in spans):
        raise NotApplicable("no topic was closed to readers")
    pulls = evidence.rows((Function.PULL,))
    nodes = set(evidence.record.nodes)
    pauses = [
        fault for fault in faults(evidence) if fault.verb == "pause" and set(fault.targets) - nodes
    ]
    for row in pulls.each():
        spans = closed.get(evidence.history.topic(row), ())
        within = (
            begin for begin, end in spans if begin <= row.invoked_ns and row.returned_ns < end
        )
        if (begin := next(within, None)) is None:
            continue
        # A paused reader may have had an earlier answer waiting for it.
        got_ns = row.returned_ns
        if not any(
            fault.begin_ns <= got_ns <= fault.end_ns + POLL_DELAY_NS and fault.end_ns >= begin
            for fault in pauses
        ):
            text = f"{evidence.node(row)} answered a pull of {evidence.place(row)}, which"
            findings.add(evidence.example(row, f"{text} nobody may read", value=None))
    return len(pulls)


def _changes(evidence: Evidence, *more: str) -> list[Event]:
    changes = evidence.events(Function.NODE, "topic_changed", *more)
    if not changes:
        raise NotApplicable("no topic was changed")
    return changes
