"""How long nothing was written: the longest pause of a run, and the one after each failover."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rocketbed.chaos.checks.context import FaultSpan
from rocketbed.chaos.checks.evidence import Evidence
from rocketbed.chaos.evidence.history import Event, Function


@dataclass(frozen=True, slots=True)
class Failover:
    """A change of the leader, and the time until a send that began after its cause was
    acknowledged."""

    node: str
    former: str
    step: str
    """Cause: the last step against the former leader, or else the last one of all."""
    begin_ns: int
    seconds: float | None
    """None if nothing was acknowledged any more."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """Pauses of all producers together."""

    longest_s: float = 0.0
    """Longest time without an acknowledgement while the load ran."""
    begin_ns: int = 0
    failovers: list[Failover] = field(default_factory=list)


def pauses(evidence: Evidence, spans: list[FaultSpan], rto: list[dict[str, Any]]) -> Pauses:
    """Return the pauses of a run. `rto` has for each step the time to the next acknowledgement."""
    record = evidence.record
    begin_ns = int(record.facts.get("zero_ns", 0))
    times = sorted(map(int, evidence.acknowledged.column("returned_ns")))
    ends = [begin_ns, *(time_ns for time_ns in times if time_ns > begin_ns)]
    if record.recovery_ns > ends[-1]:  # the load ran on without an acknowledgement
        ends.append(record.recovery_ns)
    longest_ns, since_ns = max(
        ((after - before, before) for before, after in pairwise(ends)), default=(0, begin_ns)
    )
    failovers: dict[int, Failover] = {}
    for event in evidence.events(Function.NODE, "promote"):
        number = _cause(event, spans)
        if number is not None and number not in failovers:
            former = str(event.fields.get("former") or "")
            span, seconds = spans[number], rto[number]["rto_s"]
            failovers[number] = Failover(event.node, former, span.step, span.begin_ns, seconds)
    return Pauses(longest_ns / 1e9, since_ns, list(failovers.values()))


def _cause(promotion: Event, spans: list[FaultSpan]) -> int | None:
    """Return the number of the step that a promotion follows, or None."""
    before = [number for number, span in enumerate(spans) if span.requested_ns <= promotion.time_ns]
    former = promotion.fields.get("former")
    against_former = [number for number in before if former in spans[number].targets]
    return max(against_former or before, key=lambda n: spans[n].begin_ns, default=None)
