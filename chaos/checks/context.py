"""Context of a finding: neighbours in its queue, roles of nodes, active steps.

Computed only for the examples that a report shows. Source: chaos.md 2.10.
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
HARMLESS_TO_TABLES = frozenset({"eio-read", "lost-fsync"})
"""Disk faults under which a node can still write its tables."""
MOMENT_NS = SECOND_NS
"""Time for which an instantaneous step counts as active."""
POLL_DELAY_NS = 2 * SECOND_NS
"""A delivery is recorded when its reader polls, up to this long after the broker sent it; commits
may come in between."""
PLANNED = frozenset({"handover", "stop", "restart"})
"""Steps that end a node cleanly or not at all, so that it loses nothing."""
HALF_OPEN_NS = 25 * SECOND_NS
"""Time after the last fault in which every pending request has timed out."""
_DOWN_UNTIL_START = ("kill", "stop", "powercut", "crash", "wipe")


@dataclass(frozen=True, slots=True)
class FaultSpan:
    step: str
    verb: str
    targets: list[str]
    begin_ns: int
    end_ns: int
    requested_ns: int
    """When the step was begun. `begin_ns` is when it was done; some steps take long."""


def faults(evidence: Evidence) -> list[FaultSpan]:
    """Return every step with the time in which it was in force."""
    spans: list[FaultSpan] = []
    for number, event in enumerate(evidence.history.events):
        if event.function == Function.NEMESIS and event.kind not in ("heal", "struck"):
            step, end = step_of(event) or event.kind, _end(evidence, number, event)
            asked_ns = int(event.fields.get("began_ns", event.time_ns))
            times = (event.time_ns, end, asked_ns)
            spans.append(FaultSpan(step, event.kind, targets_of(event), *times))
    return spans


def planned_changes(evidence: Evidence) -> list[Event]:
    """Return the promotions, in groups with failover, that the operator alone caused.

    A step targeted the former leader, no other fault was in force or had been within
    `HALF_OPEN_NS`, and the new leader led before the former one ended. The new leader then knows
    all that the former one knew.
    """
    if not evidence.elects or evidence.foreign:
        return []
    spans, ended, promotions = faults(evidence), set[str](), list[Event]()
    for event in evidence.events(Function.NODE, "promote", "exit"):
        if event.kind == "exit":
            ended.add(event.node)
            continue
        ended.discard(event.node)
        at_ns, former = event.time_ns, str(event.fields.get("former"))
        nearby = [
            fault for fault in spans if fault.requested_ns <= at_ns <= fault.end_ns + HALF_OPEN_NS
        ]
        is_targeted = any(former in fault.targets for fault in nearby)
        if (
            former not in ended
            and is_targeted
            and PLANNED.issuperset(fault.verb for fault in nearby)
        ):
            promotions.append(event)
    return promotions


def earliest_sending_ns(evidence: Evidence, got_ns: int) -> int:
    """Return the earliest time at which a broker may have sent what a reader recorded at `got_ns`.

    A paused reader may have had the answer waiting for it, and may have asked a broker that was
    down for its position before it continued. So the result goes back over such faults, latest
    first.
    """
    since = got_ns - POLL_DELAY_NS
    for fault in sorted(faults(evidence), key=lambda fault: -fault.end_ns):
        if fault.end_ns >= since and fault.begin_ns <= got_ns:
            since = min(since, fault.begin_ns - POLL_DELAY_NS)
    return since


def disk_fault(spans: Iterable[FaultSpan], node: str, begin_ns: int, end_ns: int) -> Excuse | None:
    """Return the step that kept a node from writing its tables between two times, at a clean stop
    too."""
    for fault in spans:
        is_hit = fault.verb == "disk" and node in fault.targets
        is_hit = is_hit and not HARMLESS_TO_TABLES.intersection(fault.step.split())
        if is_hit and fault.begin_ns <= end_ns and begin_ns <= fault.end_ns:
            return Excuse(fault.step, fault.begin_ns, fault.end_ns)
    return None


def outages(evidence: Evidence, spans: Iterable[FaultSpan]) -> list[dict[str, Any]]:
    """Return for each step the seconds until a send that began after it was acknowledged."""
    sends = evidence.acknowledged
    times = sorted(
        zip(
            map(int, sends.column("invoked_ns")), map(int, sends.column("returned_ns")), strict=True
        )
    )
    ends = [end for _, end in times]
    # At each position, the first return among the sends that began no earlier.
    earliest = list(accumulate(reversed(ends), min))[::-1]
    rows: list[dict[str, Any]] = []
    for fault in spans:
        at = bisect_left(times, (fault.begin_ns,))
        seconds = None if at >= len(times) else (earliest[at] - fault.begin_ns) / 1e9
        rows.append({"step": fault.step, "time_ns": fault.begin_ns, "rto_s": seconds})
    return rows


class Surroundings:
    """Adds the surroundings to the examples of one run."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self.faults = faults(evidence)
        self._roles = _role_changes(evidence)

    def enrich(self, results: Iterable[CheckResult]) -> None:
        """Add roles, faults and neighbours to every example that is shown."""
        for result in results:
            for example in (*result.examples, *result.allowed):
                if (time_ns := example.time_ns) is not None:
                    example.faults = [
                        fault.step
                        for fault in self.faults
                        if fault.begin_ns <= time_ns <= fault.end_ns
                    ]
                    for node, changes in self._roles.items():
                        at = bisect_right(changes, time_ns, key=itemgetter(0))
                        example.roles[node] = changes[at - 1][1] if at else "not started"
                if example.topic and example.queue is not None and example.offset is not None:
                    place = example.topic, example.queue
                    example.around = self._around(*place, example.offset)

    def _around(self, topic: str, queue: int, offset: int) -> list[str]:
        lines: list[str] = []
        for name, messages in self._stored.items():
            if (name.topic, name.queue) == (topic, queue):
                first = bisect_left(messages, (offset - NEIGHBOURS,))
                last = bisect_left(messages, (offset + NEIGHBOURS + 1,))
                lines += [
                    f"offset {at}: value {value} (log {physical})"
                    for at, value, physical in messages[first:last]
                ]
        return lines

    @cached_property
    def _stored(self) -> dict[QueueName, list[tuple[int, int, int]]]:
        """Offset, value and log offset of each queue's messages, ascending."""
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
    has_duration = event.fields.get("for_s") is not None
    down = targets_of(event) if event.kind in _DOWN_UNTIL_START else []
    if not has_duration and not down and event.kind not in ("partition", "isolate", "link", "disk"):
        return event.time_ns + MOMENT_NS

    def is_over(later: Event) -> bool:
        if later.kind == "heal":
            return heals(later, step_of(event) or event.kind) or not (has_duration or down)
        return later.kind == "start" and later.node in down

    return evidence.first_after(number, is_over)


def _role_changes(evidence: Evidence) -> dict[str, list[tuple[int, str]]]:
    changes: dict[str, list[tuple[int, str]]] = {node: [] for node in evidence.record.nodes}
    for event in evidence.history.events:
        if event.node not in changes:
            continue
        if event.function == Function.NODE and event.kind == "start":
            changes[event.node].append((event.time_ns, "master" if as_master(event) else "slave"))
        elif event.kind in ("exit", "kill", "powercut"):
            changes[event.node].append((event.time_ns, "down"))
        elif event.kind == "pause":
            changes[event.node].append((event.time_ns, "paused"))
        elif event.kind == "heal" and changes[event.node][-1:]:
            _, role = changes[event.node][-1]
            if role == "paused" and len(changes[event.node]) > 1:
                changes[event.node].append((event.time_ns, changes[event.node][-2][1]))
    return changes
