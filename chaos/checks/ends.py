"""How far a node's log reached, and was on disk, at any moment: from the trace or what else told.

The simulated disk tells every change. A real machine's layer tells some: then the truth between two
entries is not known, and a node may hold more than the last entry says, never less while it runs.
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
"""An end that is not known and may be anything."""
PAGE = 4096
"""Where a log's file ends; most pages end elsewhere."""


class NodeEnds:
    """`followed`: when it said that it follows its master, rising; where that says something."""

    def __init__(self, trace: NodeTrace | None, followed: Sequence[int] = ()) -> None:
        self.trace = trace or NodeTrace(complete=False)
        self._followed = followed
        self.complete = trace is not None and trace.complete
        steps = zip(self.trace.times, pairwise([0, *self.trace.written]), strict=True)
        self._falls = [(time_ns, now) for time_ns, (before, now) in steps if now < before]
        """Moments at which the written end fell, and to what."""

    def observed(self, time_ns: int) -> bool:
        """Whether anything was known at that moment."""
        return bool(self.trace.times) and self.trace.times[0] <= time_ns

    def at(self, time_ns: int) -> Ends:
        """The ends as last seen at that moment."""
        return self.trace.at(time_ns)

    def before(self, time_ns: int) -> Ends:
        return self.trace.at(time_ns - 1)

    def highest(self, begin_ns: int, end_ns: int) -> Ends:
        """The highest of each end between two moments, both included, and what held until the
        first of them: in the moment in which a node dies it may still say how far it was."""
        trace, span = self.trace, self._span(begin_ns, end_ns)
        return Ends(max(trace.written[span], default=0), max(trace.durable[span], default=0))

    def wrote_within(self, low: int, high: int, begin_ns: int, end_ns: int) -> bool:
        """Whether its log ended between two places, neither included, in the time of `highest`."""
        return any(low < end < high for end in self.trace.written[self._span(begin_ns, end_ns)])

    def _span(self, begin_ns: int, end_ns: int) -> slice:
        first = max(bisect_left(self.trace.times, begin_ns) - 1, 0)
        return slice(first, bisect_right(self.trace.times, end_ns))

    def rejoined(self, base: int, begin_ns: int, end_ns: int) -> bool:
        """Whether its log, one with its master's up to `base`, became wholly so in a time.

        It was cut that far, or to the end of the blank that both wrote there, its head or all of
        it (seeds 850118, 868394); or it followed, where nobody saw each change of its log: what was
        cut may have been written again by then.
        """
        if self.was_cut(base, begin_ns, end_ns):
            return True
        at = bisect_right(self._followed, begin_ns)
        return at < len(self._followed) and self._followed[at] <= end_ns

    def goes_on(self, base: int, begin_ns: int, end_ns: int) -> bool:
        """The same of a log that others part from at `base` when a master begins; also where all
        that it has behind is the head of the blank that this one writes there (seed 1150657)."""
        head = base + BLANK.size
        had = self.at(begin_ns).written
        return base < had <= head or self.rejoined(base, begin_ns, end_ns)

    def was_cut(self, base: int, begin_ns: int, end_ns: int) -> bool:
        """Whether its log was cut to `base` in a time, or to the end of a blank there."""
        low, head = self.lowest_fall(begin_ns, end_ns), base + BLANK.size
        return low is not None and (low <= head or self._is_blank(head, low, end_ns))

    def _is_blank(self, begin: int, end: int, time_ns: int) -> bool:
        """Whether a file may end at `end` whose last record ended before `begin`: the log never
        stopped between them."""
        written = self.trace.written[: bisect_right(self.trace.times, time_ns)]
        return end % PAGE == 0 and not any(begin < one < end for one in written)

    def lowest_fall(self, begin_ns: int, end_ns: int) -> int | None:
        """The lowest written end that it fell to after `begin_ns` until `end_ns`; None: none."""
        first = bisect_right(self._falls, begin_ns, key=itemgetter(0))
        last = bisect_right(self._falls, end_ns, key=itemgetter(0))
        return min((low for _, low in self._falls[first:last]), default=None)


def node_ends(evidence: Evidence) -> dict[str, NodeEnds]:
    """Every node of every group: its trace, or one made of the ends that events tell."""
    found: dict[str, NodeEnds] = {}
    traced = evidence.trace.nodes if evidence.trace is not None else {}
    for name in evidence.record.nodes:
        trace = traced.get(name)
        if trace is None or not trace.times:
            trace = _from_events(evidence.history.events, name)
        is_seen = trace is not None and trace.complete
        # RocketMQ's slaves follow with any log; a second master has followers of its own.
        is_telling = not (is_seen or evidence.foreign or evidence.splits)
        followed = _followed(evidence, name) if is_telling else []
        if evidence.elects and not evidence.foreign:
            # Told once its log was cut to what both have.
            told = evidence.events(Function.NODE, "followed")
            followed = [event.time_ns for event in told if event.node == name]
        found[name] = NodeEnds(trace, followed)
    return found


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
            # An event tells of what was before it, so it stands just before its moment.
            trace.add(event.time_ns - 1, written, durable)
        recovered = event.fields.get("end")
        if event.what == "recovered" and str(recovered).isdigit() and trace.times:
            end = int(str(recovered))
            trace.add(event.time_ns, end, min(end, trace.durable[-1]))
    return trace if trace.times else None
