"""Whose log was the truth when, and how much of it each node held.

After a failover by hand the promoted node's log is the truth. Two logs of one length need not be
one log: a former master may carry bytes that the group has replaced. So each log is described as
pieces, each written in one mastership ("epoch"), and a node holds of the truth what its pieces have
in common with the master's. Source: chaos.md 2.3; the pieces are RocketMQ's epoch entries.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest

from rocketbed.chaos.checks.context import planned_changes
from rocketbed.chaos.checks.ends import ENDLESS, NodeEnds
from rocketbed.chaos.checks.events import as_master, targets_of
from rocketbed.chaos.checks.evidence import Evidence
from rocketbed.chaos.checks.result import Excuse
from rocketbed.chaos.evidence.history import Event, Function
from rocketbed.chaos.evidence.record import Image

POWER_CUT = "powercut"
WIPE = "wipe"
PROMOTE = "promote"
RECOVERED = "recovered"
DOUBLED = "doubled"


@dataclass(slots=True)
class Layout:
    """A log as pieces of masterships."""

    pieces: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    """Where each piece starts, and its epoch."""
    end: int = 0

    def cut(self, offset: int) -> None:
        """Lose what is at and above an offset."""
        if offset < self.end:
            self.follow(self, max(offset, 0))

    def follow(self, other: "Layout", end: int) -> None:
        """Be the beginning of another log."""
        self.end = min(end, other.end)
        self.pieces = [piece for piece in other.pieces if piece[0] < self.end] or [other.pieces[0]]

    def common(self, other: "Layout") -> int:
        end = min(self.end, other.end)
        for mine, theirs in zip_longest(self.pieces, other.pieces):
            one, two = mine or (self.end, -1), theirs or (other.end, -1)
            if one != two:
                return min(one[0], two[0], end)
        return end

    def copy(self) -> "Layout":
        return Layout(list(self.pieces), self.end)


@dataclass(slots=True)
class Change:
    """Something that destroyed bytes or changed whose log counts."""

    time_ns: int
    what: str
    node: str
    written: int | None = None
    """The node's log end just before, bytes; None if not observed."""
    durable: int | None = None
    kept: int | None = None
    """Where its log ended after the recovery."""
    at_once: bool = False
    """A node that was elected leads as it is, without a start."""
    planned: bool = False
    """Whether nothing may be lost by it (`planned_changes`)."""


@dataclass(slots=True)
class Era:
    """A time in which one log was the truth."""

    start_ns: int
    master: str
    base: dict[str, int]
    """How far each node agreed with the truth when it began; `ENDLESS`: wholly."""
    planned: bool = False
    """Whether a planned change began it, before which the former master took nothing any more."""


@dataclass(slots=True)
class Turn:
    """A change that may take messages from the truth."""

    change: Change
    master: str
    """Whose log is the truth from then on."""
    threshold: int | None
    """Messages that end above it may be gone from the truth; None when that was not observed."""
    end: int
    """Where the truth ended before; `ENDLESS` when that was not observed."""
    others: dict[str, int]
    """How far the other nodes still hold the truth as it was."""
    effect_ns: int
    """When it began to serve."""


@dataclass(slots=True)
class Lineage:
    group: int
    nodes: list[str]
    ends: dict[str, NodeEnds]
    eras: list[Era] = field(default_factory=list)
    """At least one; by time."""
    turns: list[Turn] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    doubles: list[Change] = field(default_factory=list)
    """Starts as a second master."""

    def era(self, time_ns: int) -> Era:
        position = bisect_right(self.eras, time_ns, lo=1, key=lambda era: era.start_ns)
        return self.eras[position - 1]

    def held(self, node: str, time_ns: int, written: int) -> int:
        """How much of the truth a node holds whose log ends at `written` at that moment."""
        era, ends = self.era(time_ns), self.ends[node]
        limits = [
            base
            for since_ns, base in self._doubled(node, time_ns)
            if base < written and not ends.rejoined(base, since_ns, time_ns)
        ]
        base = era.base.get(node, ENDLESS)
        if base < written and not ends.goes_on(base, era.start_ns, time_ns):
            limits.append(base)
        return min(limits, default=written)

    def _doubled(self, node: str, time_ns: int) -> list[tuple[int, int]]:
        """When it became a second master before a moment, and where its log ended then: of late,
        what was master since is the truth itself (seed 867516)."""
        found = [one for one in self.doubles if one.node == node]
        if not found:
            return []
        reigns = (era.start_ns for era in self.eras if era.master == node)
        since = max((begin for begin in reigns if begin <= time_ns), default=-1)
        found = [one for one in found if since < one.time_ns <= time_ns and self._wrote(one)]
        return [(one.time_ns, self.ends[node].at(one.time_ns).written) for one in found]

    def _wrote(self, double: Change) -> bool:
        """Whether a second master's log grew before it was started once more (seed 869218)."""
        ends = self.ends[double.node]
        own = (one for one in self.changes if one.node == double.node and one.what == RECOVERED)
        later = [one.time_ns for one in own if one.time_ns > double.time_ns]
        if len(later) < 2 or not ends.complete:
            return True
        grown = ends.highest(double.time_ns, later[1]).written
        return grown > ends.at(double.time_ns).written

    def diverged(self, begin_ns: int, end_ns: int, behind: int | None = None) -> Iterator[Excuse]:
        """Which nodes may have carried bytes in a time that were not the truth's, and since when;
        with `behind`, bytes below that log offset."""
        for number, era in enumerate(self.eras):
            until = self.eras[number + 1].start_ns if number + 1 < len(self.eras) else ENDLESS
            if begin_ns < until and era.start_ns <= end_ns and not era.planned:
                for node, base in era.base.items():
                    if base == ENDLESS or (behind is not None and behind <= base):
                        continue
                    if not self.ends[node].rejoined(base, era.start_ns, begin_ns):
                        cause = f"{node} may have kept bytes beyond {base} that {era.master} lacks"
                        yield Excuse(cause, era.start_ns, until)


def lineages(evidence: Evidence, ends: dict[str, NodeEnds]) -> list[Lineage]:
    found: list[Lineage] = []
    starts = evidence.events(Function.NODE, "start")
    for group, nodes in enumerate(evidence.record.groups.values()):
        lineage = Lineage(group, nodes, {node: ends[node] for node in nodes})
        lineage.changes = _changes(evidence, nodes)
        lineage.doubles = [one for one in lineage.changes if one.what == DOUBLED]
        masters = (one.node for one in starts if one.node in nodes and as_master(one))
        _Walk(lineage, next(masters, nodes[0])).run()
        found.append(lineage)
    return found


def power_cuts(evidence: Evidence) -> list[Change]:
    """Power cuts and replaced disks of all nodes, by time, each once however often it is told."""
    found: list[Change] = []
    open_cuts: dict[tuple[str, str], Change] = {}
    images = [image for image in evidence.record.images if image.cause == POWER_CUT]
    sources: list[Event | Image] = [*images, *evidence.history.events]
    for source in sorted(sources, key=lambda one: one.time_ns):  # stable: images first
        if isinstance(source, Image):
            what, nodes = POWER_CUT, [source.node]
            written, durable = source.written, source.durable
        else:
            if source.function == Function.NODE and source.what in ("ready", "recovered"):
                change = open_cuts.pop((source.node, POWER_CUT), None)
                open_cuts.pop((source.node, WIPE), None)
                end = str(source.fields.get("end", ""))
                if change is not None and end.isdigit():
                    change.kept = int(end)
            what = _destruction(source)
            nodes = targets_of(source) if what else []
            written, durable = source.fields.get("written"), source.fields.get("durable")
        for node in nodes:
            change = open_cuts.get((node, what))
            if change is None:
                change = open_cuts[node, what] = Change(source.time_ns, what, node)
                found.append(change)
            if isinstance(written, int) and change.written is None:
                change.written = written
            if isinstance(durable, int) and change.durable is None:
                change.durable = durable
    return found


def _destruction(event: Event) -> str:
    if event.what in (POWER_CUT, WIPE):
        return event.what
    cause = event.fields.get("cause") if event.what == "exit" else None
    return POWER_CUT if event.function == Function.NODE and cause == POWER_CUT else ""


def _changes(evidence: Evidence, nodes: list[str]) -> list[Change]:
    """What concerns one group, by time. A start as master of another node is a promotion too."""
    changes = [change for change in power_cuts(evidence) if change.node in nodes]
    planned = planned_changes(evidence)
    for event in evidence.history.events:
        if event.function != Function.NODE or event.node not in nodes:
            continue
        if event.what == PROMOTE or (event.what == "start" and as_master(event)):
            if any(
                begin <= event.time_ns <= end and node == event.node
                for begin, end, node in evidence.splits
            ):
                # A second master, by a step `double`: what it writes is never the truth.
                if event.what == "start":
                    changes.append(Change(event.time_ns, DOUBLED, event.node))
                continue
            written = event.fields.get("written")
            known = written if isinstance(written, int) and written >= 0 else None
            elected = evidence.elects and not evidence.foreign
            change = Change(event.time_ns, PROMOTE, event.node, written=known, at_once=elected)
            change.planned = event in planned
            changes.append(change)
        elif event.what == RECOVERED:
            changes.append(Change(event.time_ns, RECOVERED, event.node))
    return sorted(changes, key=lambda change: change.time_ns)


class _Walk:
    """Goes through one group's changes in order.

    A log counts from its node's recovery on: until then slaves may still get what the master before
    had sent.
    """

    def __init__(self, lineage: Lineage, master: str) -> None:
        self._lineage = lineage
        self._master = master
        self._epoch = 0
        self._truth = Layout()
        self._layouts = {node: Layout() for node in lineage.nodes}
        self._cuts: list[Change] = []
        """What the master has lost and not yet come back from."""
        self._deposed: dict[str, None] = {}
        """Leaders that were deposed and have not followed since."""
        self._promotion: Change | None = None
        """A promotion whose node is not serving yet."""
        self._begin_era(-1)

    def run(self) -> None:
        for change in self._lineage.changes:
            if change.what in (POWER_CUT, WIPE):
                self._destroy(change)
            elif change.what == PROMOTE:
                self._promote(change)
            elif change.what == RECOVERED:
                promoted = self._promotion.node if self._promotion is not None else None
                if change.node == promoted or (change.node == self._master and self._cuts):
                    self._turn_due(change.time_ns)
        self._turn_due(ENDLESS)

    def _destroy(self, change: Change) -> None:
        self._advance(change.time_ns - 1)
        ends = self._lineage.ends[change.node]
        if ends.complete or ends.observed(change.time_ns - 1):
            known = ends.before(change.time_ns)
            change.written = known.written if change.written is None else change.written
            change.durable = known.durable if change.durable is None else change.durable
        self._layouts[change.node].cut(_kept(change))
        if change.node == self._master:
            self._cuts.append(change)

    def _promote(self, change: Change) -> None:
        if change.node == self._master:
            self._promotion = None
        elif self._promotion is None or self._promotion.node != change.node:
            ends = self._lineage.ends[change.node]
            seen = ends.complete or ends.observed(change.time_ns)
            if change.written is None and seen:
                change.written = ends.at(change.time_ns).written
            self._promotion = change
            if change.at_once:
                self._turn_due(change.time_ns)

    def _turn_due(self, time_ns: int) -> None:
        """Whoever is to serve serves from this moment."""
        promotion, cuts = self._promotion, self._cuts
        if promotion is None and not cuts:
            return
        self._advance(time_ns)
        self._promotion, self._cuts = None, []
        deposed = self._master if promotion is not None and promotion.at_once else ""
        if promotion is not None:
            self._master = promotion.node
            layout = self._layouts[self._master]
            # One that was elected has its marker behind that already, which nobody else has.
            is_sure = self._lineage.ends[self._master].complete and not promotion.at_once
            if promotion.written is not None and not is_sure:
                layout.cut(promotion.written)
            known = promotion.written is not None or self._lineage.ends[self._master].complete
            threshold = layout.common(self._truth) if known else None
            self._note(promotion, threshold, time_ns)
        else:
            for change in cuts:
                if not self._lineage.ends[self._master].complete:
                    self._layouts[self._master].cut(_kept(change))
                self._note(change, 0 if change.what == WIPE else change.durable, time_ns)
        # From now on the master's log, as it is, is the truth.
        self._epoch += 1
        self._truth = self._layouts[self._master].copy()
        if self._truth.pieces[-1][0] == self._truth.end:
            self._truth.pieces.pop()
        self._truth.pieces.append((self._truth.end, self._epoch))
        self._layouts[self._master] = self._truth.copy()
        self._begin_era(time_ns)
        self._lineage.eras[-1].planned = promotion is not None and promotion.planned
        if deposed:
            # It may write on in its own epoch until it follows.
            self._lineage.eras[-1].base[deposed] = self._layouts[deposed].common(self._truth)
            self._deposed[deposed] = None

    def _note(self, change: Change, threshold: int | None, time_ns: int) -> None:
        others = {
            node: layout.common(self._truth)
            for node, layout in self._layouts.items()
            if node != self._master
        }
        end = self._truth.end
        self._lineage.turns.append(Turn(change, self._master, threshold, end, others, time_ns))

    def _begin_era(self, time_ns: int) -> None:
        base = {}
        for node, layout in self._layouts.items():
            common = layout.common(self._truth)
            base[node] = ENDLESS if common >= layout.end else common
            if node in self._deposed:
                if node != self._master and self._is_apart(node, time_ns):
                    base[node] = min(self._lineage.eras[-1].base[node], common)
                else:
                    del self._deposed[node]
        self._lineage.eras.append(Era(time_ns, self._master, base))

    def _is_apart(self, node: str, time_ns: int) -> bool:
        """Whether a deposed leader still holds what it wrote alone, which is in no layout (seeds
        1150825, 1150948)."""
        era, ends = self._lineage.eras[-1], self._lineage.ends[node]
        base = era.base[node]
        is_longer = ends.complete and ends.at(time_ns).written > base
        return is_longer and not ends.goes_on(base, era.start_ns, time_ns)

    def _advance(self, time_ns: int) -> None:
        """Bring every node's layout to a moment of the present era."""
        lineage = self._lineage
        era = lineage.eras[-1]
        master = lineage.ends[self._master]
        written = master.at(time_ns).written if master.complete else ENDLESS
        self._truth.end = max(self._truth.end, written)
        for node, layout in self._layouts.items():
            ends = lineage.ends[node]
            written = ends.at(time_ns).written if ends.complete else ENDLESS
            low = ends.lowest_fall(era.start_ns, time_ns)
            base = era.base[node]
            if low is not None:
                layout.cut(low)
            if base == ENDLESS or ends.goes_on(base, era.start_ns, time_ns):
                layout.follow(self._truth, written)


def _kept(change: Change) -> int:
    """How much of a log is left after a change, at least."""
    if change.what == WIPE:
        return 0
    return max(change.durable or 0, change.kept or 0)
