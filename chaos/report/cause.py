"""Groups the findings of a run by their common cause.

A message that was acknowledged and lost violates half a dozen checks. So a finding belongs to the
loss if it names a lost message, or its place in a queue; and an acknowledgement before its promise
(`acked-before-durable`) explains a loss. Any other finding belongs to an earlier one about the same
node after the same step: a crash explains the waits for that node. A finding without a link is a
cause of its own.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from rocketbed.chaos.checks.context import FaultSpan
from rocketbed.chaos.checks.judgement import Judgement
from rocketbed.chaos.checks.result import CheckResult, Example, Severity
from rocketbed.chaos.evidence.record import RunRecord
from rocketbed.chaos.evidence.trace import Trace
from rocketbed.chaos.report.words import clock, count_of, failing, length

LOSS: Final = ("lost-write", "loss-within-bound")
EARLY: Final = "acked-before-durable"
NOUNS: Final = {
    "powercut": "power cut",
    "promote": "promotion",
    "wipe": "new disk",
    "damage": "damage",
    "kill": "kill",
    "crash": "crash",
}
"""Steps that may take messages. The first four do so on their own, and are tried first."""
TAKES: Final = tuple(NOUNS)[:4]

Spot = tuple[str, int | None]
"""A node, and the number of the last step that hit it; None if there was none."""


@dataclass(slots=True)
class Root:
    """A cause, with the checks that it violated."""

    sentence: str
    results: list[CheckResult] = field(default_factory=list)
    moments: list[tuple[str, float]] = field(default_factory=list)
    """Node and time in seconds of lost messages."""


def roots(judgement: Judgement, record: RunRecord, trace: Trace | None) -> list[Root]:
    """Return the causes of a run's findings, the worst first; warnings last, each on its own."""
    zero_ns = int(record.facts.get("zero_ns", 0))
    causes: list[Root] = []
    remaining = judgement.by_weight
    loss = next((result for name in LOSS for result in remaining if result.id == name), None)
    if loss is not None:
        names = {example.value for example in loss.examples}
        places = {_place(example) for example in loss.examples}

        def belongs_to_loss(result: CheckResult) -> bool:
            if result.id in (*LOSS, EARLY):
                return True
            return any(
                example.value in names or _place(example) in places for example in result.examples
            )

        loss_results = [
            loss,
            *(result for result in remaining if result is not loss and belongs_to_loss(result)),
        ]
        remaining = [result for result in remaining if result not in loss_results]
        causes.append(_lost(judgement.faults, loss, loss_results, trace, zero_ns))
    spots_by_cause: list[tuple[Root, set[Spot]]] = []
    for result in remaining:
        spots = [
            _spots(example, result.severity, judgement.faults, record)
            for example in result.examples
        ]
        # What nodes did wrong has causes of its own; a missing event may follow from it.
        follows = result.severity is Severity.LIVENESS and spots
        earlier_causes = [
            root
            for root, at in spots_by_cause
            if follows and all(at & example_spots for example_spots in spots)
        ]
        if earlier_causes:
            earlier_causes[0].results.append(result)
            continue
        sentence = _early(result, trace) if result.id == EARLY else _plain(result, zero_ns)
        root = Root(sentence, [result])
        spots_by_cause.append((root, set().union(*spots)))
        causes.append(root)
    return causes


def _spots(
    example: Example, severity: Severity, faults: list[FaultSpan], record: RunRecord
) -> set[Spot]:
    """Return the node of a finding, with the last step before it that hit the node.

    A wait at the end that failed names nodes, or else a group: then any of its nodes.
    """
    nodes, time_ns = [example.node], example.time_ns
    if severity is Severity.LIVENESS and time_ns is None:
        words, time_ns = re.findall(r"[\w-]+", example.text), record.end_ns
        of_groups = (node for word in words for node in record.groups.get(word, []))
        nodes = [word for word in words if word in record.nodes] or list(of_groups)
    if time_ns is None:
        return set()
    spots: set[Spot] = set()
    for node in nodes:
        if node in record.nodes:
            hits = [
                number
                for number, fault in enumerate(faults)
                if node in fault.targets and fault.begin_ns <= time_ns
            ]
            if hits:
                spots.add((node, max(hits, key=lambda number: faults[number].begin_ns)))
    return spots


def _lost(
    faults: list[FaultSpan],
    loss: CheckResult,
    results: list[CheckResult],
    trace: Trace | None,
    zero_ns: int,
) -> Root:
    """Return a cause that took messages: how many, by which step, and whether they were on disk."""
    by_fault: dict[int | None, list[Example]] = defaultdict(list)
    for example in loss.examples:
        by_fault[_taker(faults, example)].append(example)
    parts, moments = [], []
    for number, examples in by_fault.items():
        count = loss.found if len(by_fault) == 1 else len(examples)
        words = f"{count_of(count, 'message')} acknowledged, lost"
        if number is None:
            parts.append(f"{words} by nothing that was done to the cluster")
            continue
        fault = faults[number]
        at_s = (fault.begin_ns - zero_ns) / 1e9
        names = ", ".join(fault.targets)
        words += f" by the {NOUNS[fault.verb]} of {names} at {clock(at_s, 3)}"
        parts.append(words + _on_disk(examples, fault, trace))
        moments += [(name, at_s) for name in fault.targets]
    return Root("; ".join(parts), results, moments)


def _taker(faults: list[FaultSpan], example: Example) -> int | None:
    """Return the step that took a message: the first after its acknowledgement that can have.

    A promotion, or a step against the master of that time, precedes steps against other nodes.
    """
    late = [
        (number, fault)
        for number, fault in enumerate(faults)
        if fault.verb in NOUNS and fault.targets and fault.end_ns >= (example.time_ns or 0)
    ]

    def unlikely(item: tuple[int, FaultSpan]) -> tuple[bool, bool, int]:
        number, fault = item
        hit_roles = {example.roles.get(name, "master") for name in fault.targets}
        return (
            fault.verb not in TAKES,
            fault.verb != "promote" and "master" not in hit_roles,
            number,
        )

    return min(late, key=unlikely)[0] if late else None


def _on_disk(examples: list[Example], fault: FaultSpan, trace: Trace | None) -> str:
    """Return whether what one step took was on disk by then, and how long after its
    acknowledgement."""
    node = fault.targets[0]
    if fault.verb != "powercut" or trace is None or node not in trace.nodes:
        return ""
    gaps = [max(0, fault.begin_ns - (example.time_ns or 0)) for example in examples]
    delays = [_flushed_after(trace, node, example) for example in examples]
    before = [
        delay for delay, gap in zip(delays, gaps, strict=True) if delay is not None and delay <= gap
    ]
    if before:
        return f": on disk {_span(before)} after the acknowledgement"
    return f": not on disk when the power went, {_span(gaps)} after the acknowledgement"


def _early(result: CheckResult, trace: Trace | None) -> str:
    """Describe acknowledgements that came before the promise was kept."""
    words = f"{count_of(result.found, 'message')} acknowledged before the promise was kept"
    if trace is None:
        return words
    delays = [
        delay
        for example in result.examples
        if example.node in trace.nodes and (delay := _flushed_after(trace, example.node, example))
    ]
    return words + (f": on disk {_span(delays)} after the acknowledgement" if delays else "")


def _flushed_after(trace: Trace, node: str, example: Example) -> int | None:
    """Return the nanoseconds from an acknowledgement until its record was on disk; None if
    never."""
    node_trace = trace.nodes[node]
    if example.physical is None or example.time_ns is None:
        return None
    first = max(0, bisect_right(node_trace.times, example.time_ns) - 1)
    for time_ns, durable in zip(node_trace.times[first:], node_trace.durable[first:], strict=True):
        if durable > example.physical:
            return max(0, time_ns - example.time_ns)
    return None


def _plain(result: CheckResult, zero_ns: int) -> str:
    """Describe any other finding: the check, the count, and the first one."""
    words = f"{result.id}: {failing(result.found, result.examined, result.unit)}"
    times = [example.time_ns for example in result.examples if example.time_ns is not None]
    return words + (f", first at {clock((min(times) - zero_ns) / 1e9, 3)}" if times else "")


def _span(times_ns: list[int]) -> str:
    low, high = (length(end / 1e9) for end in (min(times_ns), max(times_ns)))
    return low if low == high else f"{low} to {high}"


def _place(example: Example) -> object:
    """Return topic, queue and offset; for a finding without them a value that equals nothing."""
    if not example.topic or example.offset is None:
        return object()
    return example.topic, example.queue, example.offset
