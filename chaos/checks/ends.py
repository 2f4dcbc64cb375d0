"""Written and durable ends of each node's log over time, from the trace or from events.

The simulated disk reports every change. The layer of a real machine reports some: between two
entries the actual ends are unknown, and a running node may hold more than the last entry, never
less.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter

from rocketbed.chaos.checks.evidence import Evidence
from rocketbed.chaos.evidence.history import Event, Function
from rocketbed.chaos.evidence.trace import Ends, NodeTrace
from rocketbed.wire.message import BLANK

ENDLESS = 1 << 62
"""An end that is unknown and may be anything."""
PAGE = 4096
"""Granularity at which a log's file ends; most pages end elsewhere."""


class NodeEnds:
    """Log ends of one node. `followed`: times at which it reported that it follows its master,
    ascending, if such reports mean anything."""

    def __init__(self, trace: NodeTrace | None, followed: Sequence[int] = ()) -> None:
        self.trace = trace or NodeTrace(complete=False)
        self._followed = followed
        self.complete = trace is not None and trace.complete
        steps = zip(self.trace.times, pairwise([0, *self.trace.written]), strict=True)
        self._falls = [(time_ns, end) for time_ns, (before, end) in steps if end < before]
        """Times at which the written end fell, each with the lower end."""

    def observed(self, time_ns: int) -> bool:
        """True if anything was known at that time."""
        return bool(self.trace.times) and self.trace.times[0] <= time_ns

    def at(self, time_ns: int) -> Ends:
        """Return the ends as last observed at that time."""
        return self.trace.at(time_ns)

    def before(self, time_ns: int) -> Ends:
        return self.trace.at(time_ns - 1)

    def highest(self, begin_ns: int, end_ns: int) -> Ends:
        """Return the highest of each end between two times, both included, and what held at the
        first.

        In the moment of its death a node may still report its ends.
        """
        trace, span = self.trace, self._span(begin_ns, end_ns)
        return Ends(max(trace.written[span], default=0), max(trace.durable[span], default=0))

    def wrote_within(self, low: int, high: int, begin_ns: int, end_ns: int) -> bool:
        """True if the log ended strictly between two offsets at some time that `highest` covers."""
        return any(low < end < high for end in self.trace.written[self._span(begin_ns, end_ns)])

    def _span(self, begin_ns: int, end_ns: int) -> slice:
        first = max(bisect_left(self.trace.times, begin_ns) - 1, 0)
        return slice(first, bisect_right(self.trace.times, end_ns))

    def rejoined(self, base: int, begin_ns: int, end_ns: int) -> bool:
        """True if a log that agreed with its master's up to `base` came to agree completely in a
        period.

        Either it was cut to that offset, or to the end of the blank that both wrote there (its head
        or all of it). Or it followed, if not every change of its log was observed: what was cut may
        have been overwritten by then.
        """
        if self.was_cut(base, begin_ns, end_ns):
            return True
        at = bisect_right(self._followed, begin_ns)
        return at < len(self._followed) and self._followed[at] <= end_ns

    def agrees_again(self, base: int, begin_ns: int, end_ns: int) -> bool:
        """True under the same conditions for a log that diverged at `base` when a master began.

        Also true if all that it has beyond is the head of the blank that this master writes
        there.
        """
        head = base + BLANK.size
        written = self.at(begin_ns).written
        return base < written <= head or self.rejoined(base, begin_ns, end_ns)

    def was_cut(self, base: int, begin_ns: int, end_ns: int) -> bool:
        """True if the log was cut to `base` in a period, or to the end of a blank there."""
        low, head = self.lowest_fall(begin_ns, end_ns), base + BLANK.size
        return low is not None and (low <= head or self._is_blank(head, low, end_ns))

    def _is_blank(self, begin: int, end: int, time_ns: int) -> bool:
        """True if a file may end at `end` whose last record ended before `begin`, as the log never
        stopped in between."""
        written = self.trace.written[: bisect_right(self.trace.times, time_ns)]
        return end % PAGE == 0 and not any(begin < end_before < end for end_before in written)

    def lowest_fall(self, begin_ns: int, end_ns: int) -> int | None:
        """Return the lowest written end that the log fell to after `begin_ns` until `end_ns`."""
        first = bisect_right(self._falls, begin_ns, key=itemgetter(0))
        last = bisect_right(self._falls, end_ns, key=itemgetter(0))
        return min((low for _, low in self._falls[first:last]), default=None)


def node_ends(evidence: Evidence) -> dict[str, NodeEnds]:
    """Return the ends of every node: from its trace, or built from the ends in events."""
    ends: dict[str, NodeEnds] = {}
    traced = evidence.trace.nodes if evidence.trace is not None else {}
    for name in evidence.record.nodes:
        trace = traced.get(name)
        if trace is None or not trace.times:
            trace = _from_events(evidence.history.events, name)
        is_traced = trace is not None and trace.complete
        # RocketMQ's slaves follow with any log; a second master has followers of its own.
        reports_following = not (is_traced or evidence.foreign or evidence.splits)
        followed = _followed(evidence, name) if reports_following else []
        if evidence.elects and not evidence.foreign:
            # Reported once the log was cut to what both have.
            events = evidence.events(Function.NODE, "followed")
            followed = [event.time_ns for event in events if event.node == name]
        ends[name] = NodeEnds(trace, followed)
    return ends


def _followed(evidence: Evidence, name: str) -> list[int]:
    return [
        event.time_ns
        for event in evidence.events(Function.NODE, "sample")
        if event.node == name and event.fields.get("following")
    ]


def _from_events(events: list[Event], name: str) -> NodeTrace | None:
    trace = NodeTrace(complete=False)
    for event in events:
        if event.node != name or event.function not in (Function.NODE, Function.NEMESIS):
            continue
        written = event.fields.get("written")
        if isinstance(written, int):
            durable = event.fields.get("flushed", event.fields.get("durable", 0))
            durable = durable if isinstance(durable, int) else 0
            # An event reports what was true before it, so it counts just before its time.
            trace.add(event.time_ns - 1, written, durable)
        recovered = event.fields.get("end")
        if event.kind == "recovered" and str(recovered).isdigit() and trace.times:
            end = int(str(recovered))
            trace.add(event.time_ns, end, min(end, trace.durable[-1]))
    return trace if trace.times else None
