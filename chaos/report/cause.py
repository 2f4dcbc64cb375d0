"""Why a run failed, before all that follows from it: findings of one root in one group.

A message that was acknowledged and lost makes half a dozen checks speak. So a finding belongs to
the loss where it names a lost message, or its place in a queue; and an acknowledgement before its
promise (I7) explains a loss. Any other finding belongs to one before it that says something of the
same node after the same step: a crash explains what then waits for the node in vain. What shares
nothing is a root of its own.
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

LOSS: Final = ("A1", "2.3")
EARLY: Final = "I7"
NOUNS: Final = {
    "powercut": "power cut",
    "promote": "promotion",
    "wipe": "new disk",
    "damage": "damage",
    "kill": "kill",
    "crash": "crash",
}
"""Steps that may take messages. The first four do so by themselves, and are looked for first."""
TAKES: Final = tuple(NOUNS)[:4]

Spot = tuple[str, int | None]
"""A node, and the number of the last step that struck it; None: none did."""


@dataclass(slots=True)
class Root:
    """One cause, and the checks that it made speak."""

    sentence: str
    results: list[CheckResult] = field(default_factory=list)
    moments: list[tuple[str, float]] = field(default_factory=list)
    """Node and time in seconds, where messages were lost."""


def roots(judgement: Judgement, record: RunRecord, trace: Trace | None) -> list[Root]:
    """The causes of a run's findings, the worst first; warnings last, each by itself."""
    zero_ns = int(record.facts.get("zero_ns", 0))
    found: list[Root] = []
    rest = judgement.by_weight
    loss = next((one for name in LOSS for one in rest if one.id == name), None)
    if loss is not None:
        names = {one.value for one in loss.examples}
        places = {_place(one) for one in loss.examples}

        def is_ours(result: CheckResult) -> bool:
            if result.id in (*LOSS, EARLY):
                return True
            return any(one.value in names or _place(one) in places for one in result.examples)

        ours = [loss, *(one for one in rest if one is not loss and is_ours(one))]
        rest = [one for one in rest if one not in ours]
        found.append(_lost(judgement.faults, loss, ours, trace, zero_ns))
    begun: list[tuple[Root, set[Spot]]] = []
    for result in rest:
        spots = [_spots(one, result.severity, judgement.faults, record) for one in result.examples]
        # What nodes did wrong has causes of its own; what then did not come follows from it.
        follows = result.severity is Severity.LIVENESS and spots
        known = [root for root, at in begun if follows and all(at & one for one in spots)]
        if known:
            known[0].results.append(result)
            continue
        sentence = _early(result, trace) if result.id == EARLY else _plain(result, zero_ns)
        root = Root(sentence, [result])
        begun.append((root, set().union(*spots)))
        found.append(root)
    return found


def _spots(
    example: Example, severity: Severity, faults: list[FaultSpan], record: RunRecord
) -> set[Spot]:
    """The node of a finding, with the last step before it that struck the node.

    What was waited for in vain, at the end, names nodes, or else a group: any of its nodes then.
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
            struck = [
                number
                for number, fault in enumerate(faults)
                if node in fault.targets and fault.begin_ns <= time_ns
            ]
            if struck:
                spots.add((node, max(struck, key=lambda one: faults[one].begin_ns)))
    return spots


def _lost(
    faults: list[FaultSpan],
    loss: CheckResult,
    ours: list[CheckResult],
    trace: Trace | None,
    zero_ns: int,
) -> Root:
    """A root that took messages: how many, by what, and whether they were on disk."""
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
    return Root("; ".join(parts), ours, moments)


def _taker(faults: list[FaultSpan], example: Example) -> int | None:
    """Which step took a message: the first after its acknowledgement that can have.

    A promotion, or what struck the master of that time, before what struck any other node.
    """
    late = [
        (number, fault)
        for number, fault in enumerate(faults)
        if fault.verb in NOUNS and fault.targets and fault.end_ns >= (example.time_ns or 0)
    ]

    def unlikely(item: tuple[int, FaultSpan]) -> tuple[bool, bool, int]:
        number, fault = item
        struck = {example.roles.get(name, "master") for name in fault.targets}
        return fault.verb not in TAKES, fault.verb != "promote" and "master" not in struck, number

    return min(late, key=unlikely)[0] if late else None


def _on_disk(examples: list[Example], fault: FaultSpan, trace: Trace | None) -> str:
    """Whether what one step took was on disk by then, and how soon after its acknowledgement."""
    node = fault.targets[0]
    if fault.verb != "powercut" or trace is None or node not in trace.nodes:
        return ""
    gaps = [max(0, fault.begin_ns - (one.time_ns or 0)) for one in examples]
    delays = [_flushed_after(trace, node, one) for one in examples]
    before = [
        delay for delay, gap in zip(delays, gaps, strict=True) if delay is not None and delay <= gap
    ]
    if before:
        return f": on disk {_span(before)} after the acknowledgement"
    return f": not on disk when the power went, {_span(gaps)} after the acknowledgement"


def _early(result: CheckResult, trace: Trace | None) -> str:
    """Acknowledgements that came before what they promise."""
    words = f"{count_of(result.found, 'message')} acknowledged before the promise was kept"
    if trace is None:
        return words
    found = [
        delay
        for one in result.examples
        if one.node in trace.nodes and (delay := _flushed_after(trace, one.node, one))
    ]
    return words + (f": on disk {_span(found)} after the acknowledgement" if found else "")


def _flushed_after(trace: Trace, node: str, example: Example) -> int | None:
    """Nanoseconds from an acknowledgement to the record on disk there; None: never seen so."""
    seen = trace.nodes[node]
    if example.physical is None or example.time_ns is None:
        return None
    first = max(0, bisect_right(seen.times, example.time_ns) - 1)
    for time_ns, durable in zip(seen.times[first:], seen.durable[first:], strict=True):
        if durable > example.physical:
            return max(0, time_ns - example.time_ns)
    return None


def _plain(result: CheckResult, zero_ns: int) -> str:
    """Any other finding: what the check is called, how many, and the first one."""
    words = f"{result.name}: {failing(result.found, result.examined, result.unit)}"
    times = [one.time_ns for one in result.examples if one.time_ns is not None]
    return words + (f", first at {clock((min(times) - zero_ns) / 1e9, 3)}" if times else "")


def _span(times_ns: list[int]) -> str:
    low, high = (length(end / 1e9) for end in (min(times_ns), max(times_ns)))
    return low if low == high else f"{low} to {high}"


def _place(example: Example) -> object:
    """Topic, queue and offset; of one without, a value that equals nothing."""
    if not example.topic or example.offset is None:
        return object()
    return example.topic, example.queue, example.offset
