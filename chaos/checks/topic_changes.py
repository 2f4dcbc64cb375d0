"""Changes of topics under load: every node keeps the last one, and permissions hold (S27, A40)."""

from collections import defaultdict

from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.context import POLL_DELAY_NS, faults
from rocketbed.chaos.checks.evidence import Evidence
from rocketbed.chaos.evidence.history import Event, Function
from rocketbed.wire.bodies import PERM_READ

TOPICS = "topics.json"
FIELDS = {"queues": ("readQueueNums", "writeQueueNums"), "perm": ("perm",)}
"""What a change set -> its columns in the table."""


@check("S27 changes kept", "rows of topics", final=True)
def changes_kept(case: Case, found: Findings) -> int:
    """S27: a change of a topic that every node had said to have is in the table of each at the end,
    through whatever ends and starts, unless a later one took its place."""
    evidence = case.evidence
    latest = {str(event.fields["topic"]): event for event in _changes(evidence)}
    examined = 0
    for topic, event in sorted(latest.items()):
        for node in evidence.nodes:
            row = (node.directory.topics() or {}).get(topic, {})
            examined += 1
            for field, columns in FIELDS.items():
                wanted = event.fields[field]
                for column in columns:
                    if row.get(column) == wanted:
                        continue
                    text = (
                        f"{node.name} has {column} {row.get(column)} for {topic} in its {TOPICS},"
                    )
                    text += f" where every node had {wanted} at {event.time_ns / 1e9:.1f} s"
                    excuse = evidence.disks.may_differ(node, file=TOPICS)
                    found.add(text, excuse=excuse, node=node.name, topic=topic)
    return examined


@check("A40 read without permission", "pulls while nobody may read")
def forbidden_reads(case: Case, found: Findings) -> int:
    """A40: no pull that came and was answered while every node had a topic as one that nobody may
    read was given anything. (Sends are not asked for: there a client goes by its route.)"""
    evidence = case.evidence
    narrow: dict[str, list[tuple[int, int]]] = defaultdict(list)
    begun: dict[str, int] = {}
    for event in _changes(evidence, "topic_widening"):
        topic = str(event.fields["topic"])
        if event.what == "topic_widening":
            narrow[topic].append((begun.pop(topic, event.time_ns), event.time_ns))
        elif not int(event.fields["perm"]) & PERM_READ:
            begun[topic] = event.time_ns
    if not any(begin < end for spans in narrow.values() for begin, end in spans):
        raise NotApplicable("no topic was closed to readers")
    pulls = evidence.rows((Function.PULL,))
    nodes = set(evidence.record.nodes)
    pauses = [one for one in faults(evidence) if one.verb == "pause" and set(one.targets) - nodes]
    for row in pulls.each():
        spans = narrow.get(evidence.history.topic(row), ())
        within = (one for one, end in spans if one <= row.invoked_ns and row.returned_ns < end)
        if (begin := next(within, None)) is None:
            continue
        # A reader that was paused may have had the answer waiting for it since before.
        got_ns = row.returned_ns
        if not any(
            one.begin_ns <= got_ns <= one.end_ns + POLL_DELAY_NS and one.end_ns >= begin
            for one in pauses
        ):
            text = f"{evidence.node(row)} answered a pull of {evidence.place(row)}, which"
            found.add(evidence.example(row, f"{text} nobody may read", value=None))
    return len(pulls)


def _changes(evidence: Evidence, *more: str) -> list[Event]:
    changes = evidence.events(Function.NODE, "topic_changed", *more)
    if not changes:
        raise NotApplicable("no topic was changed")
    return changes
