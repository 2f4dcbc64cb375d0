"""What was going on around a finding: neighbours in its queue, roles of nodes, active steps.

Worked out only for the examples that are shown. Source: chaos.md 2.10.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import itemgetter
from typing import Any

from rocketbed.chaos.checks.events import as_master, heals, step_of, targets_of
from rocketbed.chaos.checks.evidence import SECOND_NS, Evidence
from rocketbed.chaos.checks.keys import QueueName
from rocketbed.chaos.checks.result import CheckResult, Excuse
from rocketbed.chaos.evidence.history import Event, Function

NEIGHBOURS = 3
WRITABLE = frozenset({"eio-read", "lost-fsync"})
"""Faults of a disk that let a node write its tables."""
MOMENT_NS = SECOND_NS
"""A step that is over at once counts as active for so long."""
TAKEN_IN_NS = 2 * SECOND_NS
"""What a broker gave is noted as got when its reader polls: so much later, commits come between."""
PLANNED = frozenset({"handover", "stop", "restart"})
"""Steps that end a node cleanly, or none, so that it forgets nothing."""
HALF_OPEN_NS = 25 * SECOND_NS
"""After the last fault, when all that waited for an answer has given up."""
_DOWN_UNTIL_START = ("kill", "stop", "powercut", "crash", "wipe")


@dataclass(frozen=True, slots=True)
class FaultSpan:
    step: str
    verb: str
    targets: list[str]
    begin_ns: int
    end_ns: int
    asked_ns: int
    """When it was begun with; it is noted when it is done, and some take long."""


def faults(evidence: Evidence) -> list[FaultSpan]:
    """Every step with the time in which it was in force."""
    found: list[FaultSpan] = []
    for number, event in enumerate(evidence.history.events):
        if event.function == Function.NEMESIS and event.what not in ("heal", "struck"):
            step, end = step_of(event) or event.what, _end(evidence, number, event)
            asked_ns = int(event.fields.get("began_ns", event.time_ns))
            times = (event.time_ns, end, asked_ns)
            found.append(FaultSpan(step, event.what, targets_of(event), *times))
    return found


def planned_changes(evidence: Evidence) -> list[Event]:
    """The promotions, in groups with failover, that an operator alone has brought about: the former
    leader was meant, nothing else had struck for so long that nobody waits for it, and another one
    led before the former one ended. Whoever leads then knows all that the one before knew."""
    if not evidence.elects or evidence.foreign:
        return []
    struck, ended, found = faults(evidence), set[str](), list[Event]()
    for event in evidence.events(Function.NODE, "promote", "exit"):
        if event.what == "exit":
            ended.add(event.node)
            continue
        ended.discard(event.node)
        at_ns, former = event.time_ns, str(event.fields.get("former"))
        near = [one for one in struck if one.asked_ns <= at_ns <= one.end_ns + HALF_OPEN_NS]
        is_meant = any(former in one.targets for one in near)
        if former not in ended and is_meant and PLANNED.issuperset(one.verb for one in near):
            found.append(event)
    return found


def given_since(evidence: Evidence, got_ns: int) -> int:
    """The earliest time at which a broker may have given what a reader noted as got at `got_ns`.

    One that was paused had the answer waiting for it, and asked a broker that was down then for
    its position before it went on (seed 866436): so faults are gone back over, one by one.
    """
    since = got_ns - TAKEN_IN_NS
    for fault in sorted(faults(evidence), key=lambda one: -one.end_ns):
        if fault.end_ns >= since and fault.begin_ns <= got_ns:
            since = min(since, fault.begin_ns - TAKEN_IN_NS)
    return since


def no_disk(struck: Iterable[FaultSpan], node: str, begin_ns: int, end_ns: int) -> Excuse | None:
    """The step that kept a node from writing its tables in a time, at its clean stop too (seed
    852091)."""
    for one in struck:
        is_there = one.verb == "disk" and node in one.targets
        is_there = is_there and not WRITABLE.intersection(one.step.split())
        if is_there and one.begin_ns <= end_ns and begin_ns <= one.end_ns:
            return Excuse(one.step, one.begin_ns, one.end_ns)
    return None


def outages(evidence: Evidence, struck: Iterable[FaultSpan]) -> list[dict[str, Any]]:
    """For each step the time until a send that began after it was acknowledged, seconds."""
    sends = evidence.acknowledged
    times = sorted(
        zip(
            map(int, sends.column("invoked_ns")), map(int, sends.column("returned_ns")), strict=True
        )
    )
    ends = [end for _, end in times]
    # The first end of those that began no earlier.
    earliest = list(accumulate(reversed(ends), min))[::-1]
    rows: list[dict[str, Any]] = []
    for fault in struck:
        at = bisect_left(times, (fault.begin_ns,))
        seconds = None if at >= len(times) else (earliest[at] - fault.begin_ns) / 1e9
        rows.append({"step": fault.step, "time_ns": fault.begin_ns, "rto_s": seconds})
    return rows


class Surroundings:
    """Fills in the examples of one run."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self.faults = faults(evidence)
        self._roles = _role_changes(evidence)

    def enrich(self, results: Iterable[CheckResult]) -> None:
        """Add what is known to every example that is shown."""
        for result in results:
            for example in (*result.examples, *result.allowed):
                if (time_ns := example.time_ns) is not None:
                    example.faults = [
                        one.step for one in self.faults if one.begin_ns <= time_ns <= one.end_ns
                    ]
                    for node, changes in self._roles.items():
                        at = bisect_right(changes, time_ns, key=itemgetter(0))
                        example.roles[node] = changes[at - 1][1] if at else "not started"
                if example.topic and example.queue is not None and example.offset is not None:
                    place = example.topic, example.queue
                    example.around = self._around(*place, example.offset)

    def _around(self, topic: str, queue: int, offset: int) -> list[str]:
        found: list[str] = []
        for name, messages in self._stored.items():
            if (name.topic, name.queue) == (topic, queue):
                first = bisect_left(messages, (offset - NEIGHBOURS,))
                last = bisect_left(messages, (offset + NEIGHBOURS + 1,))
                found += [
                    f"offset {at}: value {value} (log {physical})"
                    for at, value, physical in messages[first:last]
                ]
        return found

    @cached_property
    def _stored(self) -> dict[QueueName, list[tuple[int, int, int]]]:
        """Offset, value and log offset of the messages of each queue, rising."""
        queues: dict[QueueName, list[tuple[int, int, int]]] = defaultdict(list)
        names = self._evidence.queues.names
        for node in self._evidence.finals():
            log = node.messages
            rows = zip(log.queues, log.offsets, log.values, log.physicals, strict=True)
            for queue, offset, value, physical in rows:
                queues[names[queue]].append((offset, value, physical))
        for messages in queues.values():
            messages.sort()
        return queues


def _end(evidence: Evidence, number: int, event: Event) -> int:
    lasts = event.fields.get("for_s") is not None
    down = targets_of(event) if event.what in _DOWN_UNTIL_START else []
    if not lasts and not down and event.what not in ("partition", "isolate", "link", "disk"):
        return event.time_ns + MOMENT_NS

    def is_over(other: Event) -> bool:
        if other.what == "heal":
            return heals(other, step_of(event) or event.what) or not (lasts or down)
        return other.what == "start" and other.node in down

    return evidence.first_after(number, is_over)


def _role_changes(evidence: Evidence) -> dict[str, list[tuple[int, str]]]:
    changes: dict[str, list[tuple[int, str]]] = {node: [] for node in evidence.record.nodes}
    for event in evidence.history.events:
        if event.node not in changes:
            continue
        if event.function == Function.NODE and event.what == "start":
            changes[event.node].append((event.time_ns, "master" if as_master(event) else "slave"))
        elif event.what in ("exit", "kill", "powercut"):
            changes[event.node].append((event.time_ns, "down"))
        elif event.what == "pause":
            changes[event.node].append((event.time_ns, "paused"))
        elif event.what == "heal" and changes[event.node][-1:]:
            _, role = changes[event.node][-1]
            if role == "paused" and len(changes[event.node]) > 1:
                changes[event.node].append((event.time_ns, changes[event.node][-2][1]))
    return changes
