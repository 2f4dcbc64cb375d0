"""How far a node's log reached, and was on disk, at any moment: from the trace or what else told.

The simulated disk tells every change. A real machine's layer tells some: then the truth between two
entries is not known, and a node may hold more than the last entry says, never less while it runs.
"""

from bisect import bisect_right
from collections.abc import Iterator

from rocketbed.chaos.checkers.evidence import Evidence
from rocketbed.chaos.history import Event, Function
from rocketbed.chaos.trace import Ends, NodeTrace

ENDLESS = 1 << 62
"""An end that is not known and may be anything."""


class NodeEnds:
    def __init__(self, name: str, trace: NodeTrace | None) -> None:
        self.name = name
        self.trace = trace or NodeTrace(complete=False)
        self.complete = trace is not None and trace.complete
        self.falls = list(self._find_falls())
        """Moments at which the written end fell, and to what."""
        self._fall_times = [time_ns for time_ns, _ in self.falls]

    def observed(self, time_ns: int) -> bool:
        """Whether anything was known at that moment."""
        return bool(self.trace.times) and self.trace.times[0] <= time_ns

    def at(self, time_ns: int) -> Ends:
        """The ends as last seen at that moment."""
        return self.trace.at(time_ns)

    def before(self, time_ns: int) -> Ends:
        """The ends just before that moment."""
        return self.trace.at(time_ns - 1)

    def possible(self, time_ns: int) -> int:
        """The written end at most at that moment."""
        return self.at(time_ns).written if self.complete else ENDLESS

    def highest(self, begin_ns: int, end_ns: int) -> Ends:
        """The highest of each end between two moments, both included."""
        trace = self.trace
        first = bisect_right(trace.times, begin_ns) - 1
        last = bisect_right(trace.times, end_ns)
        span = slice(max(first, 0), last)
        if last <= max(first, 0):
            return Ends(0, 0)
        return Ends(max(trace.written[span]), max(trace.durable[span]))

    def lowest_fall(self, begin_ns: int, end_ns: int) -> int | None:
        """The lowest written end that it fell to after `begin_ns` until `end_ns`; None: none."""
        first = bisect_right(self._fall_times, begin_ns)
        last = bisect_right(self._fall_times, end_ns)
        return min((low for _, low in self.falls[first:last]), default=None)

    def _find_falls(self) -> Iterator[tuple[int, int]]:
        before = 0
        for time_ns, written in zip(self.trace.times, self.trace.written, strict=True):
            if written < before:
                yield time_ns, written
            before = written


def node_ends(evidence: Evidence) -> dict[str, NodeEnds]:
    """Every node of every group: its trace, or one made of the ends that events tell."""
    found: dict[str, NodeEnds] = {}
    traced = evidence.trace.nodes if evidence.trace is not None else {}
    for nodes in evidence.record.groups.values():
        for name in nodes:
            trace = traced.get(name)
            if trace is None or not trace.times:
                trace = _from_events(evidence.history.events, name)
            found[name] = NodeEnds(name, trace)
    return found


def _from_events(events: list[Event], name: str) -> NodeTrace | None:
    trace = NodeTrace(complete=False)
    for event in events:
        if event.node != name or event.function not in (Function.NODE, Function.NEMESIS):
            continue
        written = event.fields.get("written")
        if isinstance(written, int):
            durable = event.fields.get("flushed", event.fields.get("durable", 0))
            durable = durable if isinstance(durable, int) else 0
            # An event tells of what was before it, so it stands just before its moment.
            trace.add(event.time_ns - 1, written, durable)
        recovered = event.fields.get("end")
        if event.what == "recovered" and str(recovered).isdigit() and trace.times:
            end = int(str(recovered))
            trace.add(event.time_ns, end, min(end, trace.durable[-1]))
    return trace if trace.times else None
