"""The authoritative log of each group over time, and how much of it each node held.

After a manual failover the promoted node's log is authoritative. Two logs of the same length need
not be equal: a former master may carry bytes that the group has replaced. So each log is described
as pieces, each written in one mastership ("epoch"), and a node holds as much of the authoritative
log as its pieces have in common with the master's. Source: chaos.md 2.3; the pieces are RocketMQ's
epoch entries.
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
    """A log as pieces written in different masterships."""

    pieces: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    """Start and epoch of each piece."""
    end: int = 0

    def cut(self, offset: int) -> None:
        """Remove everything at and above an offset."""
        if offset < self.end:
            self.follow(self, max(offset, 0))

    def follow(self, source: "Layout", end: int) -> None:
        """Become a prefix of another log."""
        self.end = min(end, source.end)
        self.pieces = [piece for piece in source.pieces if piece[0] < self.end] or [
            source.pieces[0]
        ]

    def common(self, layout: "Layout") -> int:
        end = min(self.end, layout.end)
        for own_piece, other_piece in zip_longest(self.pieces, layout.pieces):
            piece_1, piece_2 = own_piece or (self.end, -1), other_piece or (layout.end, -1)
            if piece_1 != piece_2:
                return min(piece_1[0], piece_2[0], end)
        return end

    def copy(self) -> "Layout":
        return Layout(list(self.pieces), self.end)


@dataclass(slots=True)
class Change:
    """An event that destroyed bytes or changed which log is authoritative."""

    time_ns: int
    kind: str
    node: str
    written: int | None = None
    """End of the node's log just before, bytes; None if unobserved."""
    durable: int | None = None
    recovered_end: int | None = None
    """End of its log after the recovery."""
    at_once: bool = False
    """True for an elected node, which leads at once, without a start."""
    planned: bool = False
    """True if it must not lose anything (`planned_changes`)."""


@dataclass(slots=True)
class Era:
    """A period in which one log was authoritative."""

    start_ns: int
    master: str
    base: dict[str, int]
    """Offset up to which each node agreed with the authoritative log at the start; `ENDLESS` for
    full agreement."""
    planned: bool = False
    """True if a planned change began it; the former master then accepted nothing more."""


@dataclass(slots=True)
class LossPoint:
    """A change that may take messages from the authoritative log."""

    change: Change
    master: str
    """Node whose log is authoritative from then on."""
    threshold: int | None
    """Messages that end above it may be missing afterwards; None if unobserved."""
    end: int
    """End of the authoritative log before; `ENDLESS` if unobserved."""
    held_by_others: dict[str, int]
    """Offset up to which each other node still holds the former authoritative log."""
    effect_ns: int
    """Time at which the new log began to serve."""


@dataclass(slots=True)
class Lineage:
    group: int
    nodes: list[str]
    ends: dict[str, NodeEnds]
    eras: list[Era] = field(default_factory=list)
    """At least one; by time."""
    loss_points: list[LossPoint] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    doubles: list[Change] = field(default_factory=list)
    """Starts as a second master."""

    def era(self, time_ns: int) -> Era:
        position = bisect_right(self.eras, time_ns, lo=1, key=lambda era: era.start_ns)
        return self.eras[position - 1]

    def held(self, node: str, time_ns: int, written: int) -> int:
        """Return how much of the authoritative log a node holds whose log ends at `written` at a
        time."""
        era, ends = self.era(time_ns), self.ends[node]
        limits = [
            base
            for since_ns, base in self._doubled(node, time_ns)
            if base < written and not ends.rejoined(base, since_ns, time_ns)
        ]
        base = era.base.get(node, ENDLESS)
        if base < written and not ends.agrees_again(base, era.start_ns, time_ns):
            limits.append(base)
        return min(limits, default=written)

    def _doubled(self, node: str, time_ns: int) -> list[tuple[int, int]]:
        """Return when a node became a second master before `time_ns`, and where its log ended then.

        Only since its last time as the real master, which made its own log authoritative.
        """
        doubles = [double for double in self.doubles if double.node == node]
        if not doubles:
            return []
        reigns = (era.start_ns for era in self.eras if era.master == node)
        last_reign_ns = max((begin for begin in reigns if begin <= time_ns), default=-1)
        doubles = [
            double
            for double in doubles
            if last_reign_ns < double.time_ns <= time_ns and self._wrote(double)
        ]
        return [(double.time_ns, self.ends[node].at(double.time_ns).written) for double in doubles]

    def _wrote(self, double: Change) -> bool:
        """True if a second master's log grew before its next start."""
        ends = self.ends[double.node]
        recoveries = (
            change
            for change in self.changes
            if change.node == double.node and change.kind == RECOVERED
        )
        later = [change.time_ns for change in recoveries if change.time_ns > double.time_ns]
        if len(later) < 2 or not ends.complete:
            return True
        grown = ends.highest(double.time_ns, later[1]).written
        return grown > ends.at(double.time_ns).written

    def diverged(self, begin_ns: int, end_ns: int, below: int | None = None) -> Iterator[Excuse]:
        """Yield the nodes that may have carried bytes that were not authoritative in a period, and
        since when; with `below`, bytes below that log offset."""
        for number, era in enumerate(self.eras):
            until = self.eras[number + 1].start_ns if number + 1 < len(self.eras) else ENDLESS
            if begin_ns < until and era.start_ns <= end_ns and not era.planned:
                for node, base in era.base.items():
                    if base == ENDLESS or (below is not None and below <= base):
                        continue
                    if not self.ends[node].rejoined(base, era.start_ns, begin_ns):
                        cause = f"{node} may have kept bytes beyond {base} that {era.master} lacks"
                        yield Excuse(cause, era.start_ns, until)


def lineages(evidence: Evidence, ends: dict[str, NodeEnds]) -> list[Lineage]:
    result: list[Lineage] = []
    starts = evidence.events(Function.NODE, "start")
    for group, nodes in enumerate(evidence.record.groups.values()):
        lineage = Lineage(group, nodes, {node: ends[node] for node in nodes})
        lineage.changes = _changes(evidence, nodes)
        lineage.doubles = [change for change in lineage.changes if change.kind == DOUBLED]
        masters = (event.node for event in starts if event.node in nodes and as_master(event))
        _LineageBuilder(lineage, next(masters, nodes[0])).run()
        result.append(lineage)
    return result


def power_cuts(evidence: Evidence) -> list[Change]:
    """Return the power cuts and replaced disks of all nodes, by time, each once."""
    changes: list[Change] = []
    open_cuts: dict[tuple[str, str], Change] = {}
    images = [image for image in evidence.record.images if image.cause == POWER_CUT]
    sources: list[Event | Image] = [*images, *evidence.history.events]
    for source in sorted(sources, key=lambda source: source.time_ns):  # stable: images first
        if isinstance(source, Image):
            kind, nodes = POWER_CUT, [source.node]
            written, durable = source.written, source.durable
        else:
            if source.function == Function.NODE and source.kind in ("ready", "recovered"):
                change = open_cuts.pop((source.node, POWER_CUT), None)
                open_cuts.pop((source.node, WIPE), None)
                end = str(source.fields.get("end", ""))
                if change is not None and end.isdigit():
                    change.recovered_end = int(end)
            kind = _destruction(source)
            nodes = targets_of(source) if kind else []
            written, durable = source.fields.get("written"), source.fields.get("durable")
        for node in nodes:
            change = open_cuts.get((node, kind))
            if change is None:
                change = open_cuts[node, kind] = Change(source.time_ns, kind, node)
                changes.append(change)
            if isinstance(written, int) and change.written is None:
                change.written = written
            if isinstance(durable, int) and change.durable is None:
                change.durable = durable
    return changes


def _destruction(event: Event) -> str:
    if event.kind in (POWER_CUT, WIPE):
        return event.kind
    cause = event.fields.get("cause") if event.kind == "exit" else None
    return POWER_CUT if event.function == Function.NODE and cause == POWER_CUT else ""


def _changes(evidence: Evidence, nodes: list[str]) -> list[Change]:
    """Return the changes of one group, by time. A start of another node as master counts as a
    promotion."""
    changes = [change for change in power_cuts(evidence) if change.node in nodes]
    planned = planned_changes(evidence)
    for event in evidence.history.events:
        if event.function != Function.NODE or event.node not in nodes:
            continue
        if event.kind == PROMOTE or (event.kind == "start" and as_master(event)):
            if any(
                begin <= event.time_ns <= end and node == event.node
                for begin, end, node in evidence.splits
            ):
                # A second master, by a step `double`: what it writes is never authoritative.
                if event.kind == "start":
                    changes.append(Change(event.time_ns, DOUBLED, event.node))
                continue
            written = event.fields.get("written")
            written_before = written if isinstance(written, int) and written >= 0 else None
            elected = evidence.elects and not evidence.foreign
            change = Change(
                event.time_ns, PROMOTE, event.node, written=written_before, at_once=elected
            )
            change.planned = event in planned
            changes.append(change)
        elif event.kind == RECOVERED:
            changes.append(Change(event.time_ns, RECOVERED, event.node))
    return sorted(changes, key=lambda change: change.time_ns)


class _LineageBuilder:
    """Goes through one group's changes in order.

    A log becomes authoritative with its node's recovery: until then slaves may still get what the
    former master had sent.
    """

    def __init__(self, lineage: Lineage, master: str) -> None:
        self._lineage = lineage
        self._master = master
        self._epoch = 0
        self._authoritative = Layout()
        self._layouts = {node: Layout() for node in lineage.nodes}
        self._cuts: list[Change] = []
        """Losses of the master that it has not yet recovered from."""
        self._deposed: dict[str, None] = {}
        """Leaders that were deposed and have not followed since."""
        self._promotion: Change | None = None
        """A promotion whose node does not serve yet."""
        self._begin_era(-1)

    def run(self) -> None:
        for change in self._lineage.changes:
            if change.kind in (POWER_CUT, WIPE):
                self._destroy(change)
            elif change.kind == PROMOTE:
                self._promote(change)
            elif change.kind == RECOVERED:
                promoted = self._promotion.node if self._promotion is not None else None
                if change.node == promoted or (change.node == self._master and self._cuts):
                    self._begin_serving(change.time_ns)
        self._begin_serving(ENDLESS)

    def _destroy(self, change: Change) -> None:
        self._advance(change.time_ns - 1)
        ends = self._lineage.ends[change.node]
        if ends.complete or ends.observed(change.time_ns - 1):
            ends_before = ends.before(change.time_ns)
            change.written = ends_before.written if change.written is None else change.written
            change.durable = ends_before.durable if change.durable is None else change.durable
        self._layouts[change.node].cut(_remaining_end(change))
        if change.node == self._master:
            self._cuts.append(change)

    def _promote(self, change: Change) -> None:
        if change.node == self._master:
            self._promotion = None
        elif self._promotion is None or self._promotion.node != change.node:
            ends = self._lineage.ends[change.node]
            is_observed = ends.complete or ends.observed(change.time_ns)
            if change.written is None and is_observed:
                change.written = ends.at(change.time_ns).written
            self._promotion = change
            if change.at_once:
                self._begin_serving(change.time_ns)

    def _begin_serving(self, time_ns: int) -> None:
        """Make the next master serve from this time."""
        promotion, cuts = self._promotion, self._cuts
        if promotion is None and not cuts:
            return
        self._advance(time_ns)
        self._promotion, self._cuts = None, []
        deposed = self._master if promotion is not None and promotion.at_once else ""
        if promotion is not None:
            self._master = promotion.node
            layout = self._layouts[self._master]
            # An elected node has its marker after that already, which no other node has.
            is_sure = self._lineage.ends[self._master].complete and not promotion.at_once
            if promotion.written is not None and not is_sure:
                layout.cut(promotion.written)
            is_observed = promotion.written is not None or self._lineage.ends[self._master].complete
            threshold = layout.common(self._authoritative) if is_observed else None
            self._add_loss_point(promotion, threshold, time_ns)
        else:
            for change in cuts:
                if not self._lineage.ends[self._master].complete:
                    self._layouts[self._master].cut(_remaining_end(change))
                self._add_loss_point(change, 0 if change.kind == WIPE else change.durable, time_ns)
        # From now on the master's log, in its present state, is authoritative.
        self._epoch += 1
        self._authoritative = self._layouts[self._master].copy()
        if self._authoritative.pieces[-1][0] == self._authoritative.end:
            self._authoritative.pieces.pop()
        self._authoritative.pieces.append((self._authoritative.end, self._epoch))
        self._layouts[self._master] = self._authoritative.copy()
        self._begin_era(time_ns)
        self._lineage.eras[-1].planned = promotion is not None and promotion.planned
        if deposed:
            # It may continue to write in its own epoch until it follows.
            self._lineage.eras[-1].base[deposed] = self._layouts[deposed].common(
                self._authoritative
            )
            self._deposed[deposed] = None

    def _add_loss_point(self, change: Change, threshold: int | None, time_ns: int) -> None:
        held_by_others = {
            node: layout.common(self._authoritative)
            for node, layout in self._layouts.items()
            if node != self._master
        }
        end = self._authoritative.end
        self._lineage.loss_points.append(
            LossPoint(change, self._master, threshold, end, held_by_others, time_ns)
        )

    def _begin_era(self, time_ns: int) -> None:
        base = {}
        for node, layout in self._layouts.items():
            common = layout.common(self._authoritative)
            base[node] = ENDLESS if common >= layout.end else common
            if node in self._deposed:
                if node != self._master and self._is_diverged(node, time_ns):
                    base[node] = min(self._lineage.eras[-1].base[node], common)
                else:
                    del self._deposed[node]
        self._lineage.eras.append(Era(time_ns, self._master, base))

    def _is_diverged(self, node: str, time_ns: int) -> bool:
        """True if a deposed leader still holds what it wrote alone, which no layout contains."""
        era, ends = self._lineage.eras[-1], self._lineage.ends[node]
        base = era.base[node]
        is_longer = ends.complete and ends.at(time_ns).written > base
        return is_longer and not ends.agrees_again(base, era.start_ns, time_ns)

    def _advance(self, time_ns: int) -> None:
        """Bring every node's layout to a time in the present era."""
        lineage = self._lineage
        era = lineage.eras[-1]
        master = lineage.ends[self._master]
        written = master.at(time_ns).written if master.complete else ENDLESS
        self._authoritative.end = max(self._authoritative.end, written)
        for node, layout in self._layouts.items():
            ends = lineage.ends[node]
            written = ends.at(time_ns).written if ends.complete else ENDLESS
            low = ends.lowest_fall(era.start_ns, time_ns)
            base = era.base[node]
            if low is not None:
                layout.cut(low)
            if base == ENDLESS or ends.agrees_again(base, era.start_ns, time_ns):
                layout.follow(self._authoritative, written)


def _remaining_end(change: Change) -> int:
    """Return the least length of a log after a change."""
    if change.kind == WIPE:
        return 0
    return max(change.durable or 0, change.recovered_end or 0)
