"""Messages that may be missing: the must-survive rule of chaos.md 2.3, applied to each message.

In classic mode the operator chooses the master. A master that returns from a power cut with a
shorter log, or a promoted slave that was not the longest, loses messages that others still hold.
That loss is `unclean`: counted, shown, and allowed only if the promise allowed the master, or the
promoted node, to be without them. Under synchronous flush a power cut takes nothing
acknowledged.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from rocketbed.chaos.checks import passes
from rocketbed.chaos.checks.ends import ENDLESS, node_ends
from rocketbed.chaos.checks.evidence import Evidence, Stored
from rocketbed.chaos.checks.logs import NodeLog
from rocketbed.chaos.checks.loss.lineage import (
    POWER_CUT,
    PROMOTE,
    WIPE,
    Change,
    Lineage,
    LossPoint,
    lineages,
)
from rocketbed.chaos.checks.result import Excuse
from rocketbed.chaos.evidence.history import Outcome, Row
from rocketbed.inspect.record import RECORD_SIZE_MIN

NO_CAUSE: Final = "nothing that may take messages"
"""Cause of a loss that no event of the run explains."""


@dataclass(slots=True)
class Attempt:
    """Attempt of a send, with the facts that matter for losses. Sizes and offsets in log
    bytes."""

    number: int
    """Position in `Evidence.sends`."""
    value: int
    group: int
    acknowledged: bool
    invoked_ns: int
    returned_ns: int
    end: int | None
    """End offset of the message's record; None if unknown."""
    size: int


@dataclass(slots=True)
class Loss:
    """A loss point, the loss that it allowed, and the missing messages that it explains."""

    lineage: Lineage
    point: LossPoint
    allowed: int = 0
    """Number of acknowledged messages that might be missing."""
    allowed_bytes: int = 0
    lost: list[Attempt] = field(default_factory=list)
    """Acknowledged messages that are missing."""
    unclean: int = 0
    """Number of those that another node still held."""
    kept_ns: int | None = None
    """Result of `_kept_until_ns`; None until it is computed."""
    outside: list[Attempt] = field(default_factory=list)
    """Acknowledged messages that are missing although the promise forbids it, or although a later
    one of that time is stored."""

    @property
    def text(self) -> str:
        change = self.point.change
        if change.kind == PROMOTE:
            return f"promotion of {change.node}"
        word = "power cut" if change.kind == POWER_CUT else "new disk"
        return f"{word} of {change.node}, which came back as master"


class Losses:
    """The loss points of all groups, and the verdict on each missing message."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self.ends = node_ends(evidence)
        self.lineages = lineages(evidence, self.ends)
        self.loss_points = [
            Loss(lineage, point) for lineage in self.lineages for point in lineage.loss_points
        ]
        self.attempts = Attempts(evidence)
        self.missing: list[Attempt] = []
        """Acknowledged messages that are in no final log."""
        self.unexcused: list[Attempt] = []
        """Those of them that nothing excuses."""
        self.other_losses: dict[str, list[Attempt]] = defaultdict(list)
        """Missing acknowledged messages that no loss point took, by their cause."""
        self.excuses: dict[int, Excuse] = {}
        """Excuses of values that are in no final log."""
        self._judge()

    def excuse_of(self, *values: int) -> Excuse | None:
        """Return an excuse for the first of these values that has one."""
        return next((self.excuses[value] for value in values if value in self.excuses), None)

    def may_lose(self, row: Row, group: int, end: int | None) -> Excuse | None:
        """Return the loss that the promise allows for an acknowledged message whose record ends at
        `end`.

        None as `end` stands for a place after everything else.
        """
        place = ENDLESS if end is None else end
        times = row.invoked_ns, row.returned_ns
        message = Attempt(-1, row.value, group, True, *times, place, row.length)
        loss = self._explain(message)
        return self.split(message) if loss is None else self._excuse(loss)

    def loss_between(
        self, group: int, begin_ns: int, end_ns: int, *, below: int | None = None
    ) -> Excuse | None:
        """Return the first result of `losses_between`, if any."""
        return next(self.losses_between(group, begin_ns, end_ns, below=below), None)

    def losses_between(
        self, group: int, begin_ns: int, end_ns: int, *, below: int | None = None
    ) -> Iterator[Excuse]:
        """Yield the losses that a group may have had between two times; with `below`, only those
        that may have taken bytes below that log offset."""
        for loss in self.loss_points:
            threshold = loss.point.threshold
            change, effect_ns = loss.point.change, loss.point.effect_ns
            if change.planned or (
                below is not None and threshold is not None and below <= threshold
            ):
                continue
            concerns_group = group in (loss.lineage.group, -1)
            if concerns_group and change.time_ns <= end_ns and begin_ns < effect_ns:
                yield self._excuse(loss)
        for lineage in self.lineages:
            if group in (lineage.group, -1):
                yield from lineage.diverged(begin_ns, end_ns, below)

    def may_lose_unacknowledged(
        self, group: int, begin_ns: int, until_ns: int, *, is_safe: bool
    ) -> Excuse | None:
        """Return the loss that may have removed an unacknowledged record written between two times.

        Unless the record `is_safe` like an acknowledged one, any promotion may remove it, whatever
        was promised.
        """
        record = Attempt(-1, -1, group, True, begin_ns, until_ns, ENDLESS, 0)
        for loss in self.loss_points:
            point = loss.point
            takes_something = point.threshold is None or point.threshold < point.end
            concerns_group = group in (loss.lineage.group, -1)
            if not (concerns_group and takes_something and point.change.time_ns > begin_ns):
                continue
            is_open = not is_safe and loss.point.change.kind == PROMOTE
            may_take = is_open or self._may_take(loss, record)
            if may_take and self._kept_until_ns(loss) <= until_ns:
                return self._excuse(loss)
        return self.split_between(group, begin_ns, until_ns)

    def _kept_until_ns(self, loss: Loss) -> int:
        """Return when the last acknowledged message that a loss point kept was sent; older ones
        were kept too. -1 if unknown."""
        threshold, change_ns = loss.point.threshold, loss.point.change.time_ns
        if threshold is None:
            return -1
        if loss.kept_ns is None:
            sent = (self.attempts[number] for number in range(len(self.attempts)))
            loss.kept_ns = max(
                (
                    message.invoked_ns
                    for message in sent
                    if message.acknowledged
                    and message.group == loss.lineage.group
                    and message.returned_ns < change_ns
                    and message.end is not None
                    and message.end <= threshold
                ),
                default=-1,
            )
        return loss.kept_ns

    def _excuse(self, loss: Loss) -> Excuse:
        end_ns = min(loss.point.effect_ns, self._evidence.record.end_ns)
        return Excuse(loss.text, loss.point.change.time_ns, end_ns)

    def written_before(self, image: NodeLog, limit: int) -> int:
        """Return the highest end, up to `limit`, of a message that the image's node had
        acknowledged as master since it began to serve; 0 without one.

        An image that lost its files does not know the ends of its records, but the acknowledgements
        do.
        """
        time_ns = image.image_record.time_ns
        lineage = self.lineages[image.group]
        era = lineage.era(time_ns - 1)
        if era.master != image.name:
            return 0
        best = 0
        for number in passes.above(self.attempts.ends, 0):
            message = self.attempts[number]
            inside = era.start_ns <= message.invoked_ns and message.returned_ns < time_ns
            if message.acknowledged and inside and message.end and message.end <= limit:
                best = max(best, message.end)
        return best

    @cached_property
    def excuses_by_key(self) -> dict[int, Excuse]:
        """Excuses by place where missing values were acknowledged or read; other messages may be
        stored there now."""
        evidence = self._evidence
        missing_values = passes.column(sorted(self.excuses))
        keys: dict[int, Excuse] = {}
        for rows in (evidence.acknowledged, evidence.reads):
            places, values = evidence.keys(rows), rows.column("value")
            for number in passes.included(values, missing_values):
                keys[int(places[number])] = self.excuses[int(values[number])]
        return keys

    @property
    def unobserved(self) -> str:
        """Name of the first loss point whose bound is unknown, with the reason; empty if all are
        known."""
        for loss in self.loss_points:
            if loss.point.threshold is None:
                return f"{loss.text}: how far its log reached is unknown"
        return ""

    def _judge(self) -> None:
        evidence = self._evidence
        absent = passes.missing(self.attempts.values, evidence.stored.values)
        forbidden: list[Attempt] = []
        for number in absent:
            message = self.attempts[number]
            loss = self._explain(message)
            excuse = self.split(message) if loss is None else self._excuse(loss)
            if excuse is not None:
                self.excuses[message.value] = excuse
            if self._expired(message):
                continue
            if message.acknowledged:
                self.missing.append(message)
                if excuse is None:
                    self.unexcused.append(message)
                    forbidden.append(message)
                elif loss is None:
                    self.other_losses[excuse.cause].append(message)
            if loss is not None and message.acknowledged:
                self._add_lost(loss, message)
        for loss in self.loss_points:
            self._count_allowed(loss)
            self._check_order(loss, set(absent))
        for message in forbidden:
            loss = self._taker(message)
            if loss is None:
                self.other_losses[NO_CAUSE].append(message)
            else:
                self._add_lost(loss, message)
                loss.outside.append(message)

    def _taker(self, message: Attempt) -> Loss | None:
        """Return the loss point that took a message against the promise: the first after it that
        took the place where it was, else the first after it."""
        later = [
            loss
            for loss in self.loss_points
            if message.group in (loss.lineage.group, -1)
            and message.invoked_ns < loss.point.change.time_ns
        ]
        end = ENDLESS if message.end is None else message.end
        return next(
            (loss for loss in later if loss.point.threshold is None or end > loss.point.threshold),
            later[0] if later else None,
        )

    @staticmethod
    def _add_lost(loss: Loss, message: Attempt) -> None:
        loss.lost.append(message)
        held = loss.point.held_by_others.values()
        loss.unclean += any((message.end or 0) <= end for end in held)

    def split(self, message: Attempt) -> Excuse | None:
        """Return the second master that may have taken a message, and lost it when it was
        demoted."""
        return self.split_between(message.group, message.invoked_ns, message.returned_ns)

    def split_between(self, group: int, begin_ns: int, end_ns: int) -> Excuse | None:
        """Return the period of a second master in a group that overlaps two times."""
        for begin, end, node in self._evidence.splits:
            concerns_group = group in (self._evidence.group_of_name(node), -1)
            if concerns_group and begin_ns <= end and end_ns >= begin:
                return Excuse(f"{node} was a second master", begin, end)
        return None

    def _expired(self, message: Attempt) -> bool:
        """True if a message is below the start of the final log, and was old enough to expire."""
        reserved_ns, record = self._evidence.record.reserved_ns, self._evidence.record
        final = self._evidence.final(message.group)
        if reserved_ns is None or message.end is None or final is None:
            return False
        return message.end <= final.log_min and message.invoked_ns + reserved_ns <= record.end_ns

    def _explain(self, message: Attempt) -> Loss | None:
        """Return the first loss point that may have taken a message."""
        for loss in self.loss_points:
            if message.group in (loss.lineage.group, -1) and self._may_take(loss, message):
                return loss
        return None

    def _may_take(self, loss: Loss, message: Attempt) -> bool:
        point = loss.point
        if message.invoked_ns >= point.change.time_ns:
            return False
        # If the end of the log is unknown, nothing can be held against the node; `unobserved` then
        # keeps the check from passing. A message of unknown place is excused only if it was never
        # acknowledged.
        if point.threshold is None or message.end is None:
            return not message.acknowledged or point.threshold is None
        if message.end <= point.threshold:
            return False
        return not message.acknowledged or self._promise_allows(loss, message)

    def _promise_allows(self, loss: Loss, message: Attempt) -> bool:
        change, promise = loss.point.change, self._evidence.record.promise
        if change.kind in (WIPE, POWER_CUT):
            is_destroyed = change.kind == WIPE or self._is_unsafe(change)
            return is_destroyed and not self._is_held_elsewhere(loss, message)
        if promise.replication == "async" or promise.copies <= 1:
            return True
        if self._evidence.elects:
            # A controller must choose a node that has all of them.
            return self._lost_its_copy(loss, message)
        if self._holders(loss.lineage, message, without=change.node) >= promise.copies:
            return True
        return self._lost_its_copy(loss, message)

    def _holders(self, lineage: Lineage, message: Attempt, *, without: str) -> int:
        """Return how many nodes may have held a message, at the promised level, when it was
        acknowledged."""
        assert message.end is not None
        master = lineage.era(message.returned_ns).master
        held = 0
        for node in lineage.nodes:
            if node == without:
                continue
            ends = lineage.ends[node]
            if node == master or not ends.complete:
                held += 1  # unobserved: the doubt counts for the node
                continue
            highest = ends.highest(message.invoked_ns, message.returned_ns)
            level = highest.durable if self._evidence.flushes else highest.written
            held += lineage.held(node, message.returned_ns, level) >= message.end
        return held

    def _is_held_elsewhere(self, loss: Loss, message: Attempt) -> bool:
        """True if another node is known to have had the promised copy, and to have kept it.

        Slaves refuse a master that returned with a shorter log (design.md 24), until an operator
        empties them.
        """
        promise, lineage = self._evidence.record.promise, loss.lineage
        if promise.replication == "async" or promise.copies <= 1:
            return False
        assert message.end is not None
        for node in lineage.nodes:
            ends = lineage.ends[node]
            # A damaged end may be mistaken for an unwritten one and be cut off.
            is_damaged = self._evidence.disks.was_damaged(node, message.invoked_ns)
            if node == loss.point.change.node or not ends.complete or is_damaged:
                continue
            highest = ends.highest(message.invoked_ns, message.returned_ns)
            level = highest.durable if self._evidence.flushes else highest.written
            is_held = lineage.held(node, message.returned_ns, level) >= message.end
            if is_held and not self._lost_its_copy(loss, message, node, ENDLESS):
                return True
        return False

    def _lost_its_copy(
        self, loss: Loss, message: Attempt, node: str = "", until_ns: int | None = None
    ) -> bool:
        """True if a node may have had the message and lost it; by default the promoted node, until
        its promotion."""
        point = loss.point
        node, until_ns = node or point.change.node, until_ns or point.change.time_ns
        end = message.end or 0
        cut_short = self._evidence.disks.cut_short
        # With elections a node that lacks something must not lead, damaged or not.
        if not self._evidence.elects and cut_short(node, end, message.invoked_ns, until_ns):
            return True
        for change in loss.lineage.changes:
            if change.node != node or not message.invoked_ns < change.time_ns <= until_ns:
                continue
            if change.kind == WIPE:
                return True
            if change.kind == POWER_CUT and self._is_unsafe(change):
                return change.durable is None or end > change.durable
        return False

    def _is_unsafe(self, cut: Change) -> bool:
        """True if a power cut may take what a sync claimed to have saved."""
        damage = self._evidence.disks.damaged_by(cut.node, cut.time_ns)
        return not self._evidence.flushes or damage is not None

    def _count_allowed(self, loss: Loss) -> None:
        """Add up how much this loss point might have taken."""
        if loss.point.threshold is None:
            return
        for number in passes.above(self.attempts.ends, loss.point.threshold):
            message = self.attempts[number]
            if (
                message.acknowledged
                and message.group in (loss.lineage.group, -1)
                and self._may_take(loss, message)
                and not (message.value in self.excuses and self._explain(message) is not loss)
            ):
                loss.allowed += 1
                loss.allowed_bytes += message.size

    def _check_order(self, loss: Loss, absent: set[int]) -> None:
        """Check that a log lost only its end: everything above the first missing message is missing
        too.

        Compared are messages that were in the authoritative log until then, without those that an
        earlier loss point may have taken: a later master may have brought them back.
        """
        change = loss.point.change
        if self._evidence.disks.damaged_by(change.node, change.time_ns) is not None:
            return
        earlier_points = self.loss_points[: self.loss_points.index(loss)]
        lowest = min((message.end or ENDLESS for message in loss.lost), default=ENDLESS)
        if lowest == ENDLESS:
            return
        highest_stored = 0
        for number in passes.above(self.attempts.ends, lowest):
            message = self.attempts[number]
            if (
                message.acknowledged
                and number not in absent
                and message.group == loss.lineage.group
                and message.returned_ns < loss.point.change.time_ns
                and not any(self._may_take(earlier, message) for earlier in earlier_points)
            ):
                highest_stored = max(highest_stored, message.end or 0)
        loss.outside = [
            message for message in loss.lost if (message.end or highest_stored) < highest_stored
        ]
        self.unexcused += loss.outside
        for message in loss.outside:
            self.excuses.pop(message.value, None)


class Attempts:
    """Attempts of all sends, with the ends of their records: from any log that has them, otherwise
    the least that is known."""

    def __init__(self, evidence: Evidence) -> None:
        sends = evidence.sends
        self._evidence = evidence
        stored = Stored(evidence.logs)
        self.values = sends.column("value")
        self._sizes = passes.lookup(self.values, stored.values, stored.column("sizes"), -1)
        places = passes.lookup(self.values, stored.values, stored.column("physicals"), -1)
        reported, lengths = sends.column("physical_offset"), sends.column("length")
        self.ends = passes.record_ends(reported, places, self._sizes, lengths)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, number: int) -> Attempt:
        row = self._evidence.sends.row(number)
        end, size = int(self.ends[number]), int(self._sizes[number])
        return Attempt(
            number,
            row.value,
            self._evidence.group_of(row.node),
            row.outcome == Outcome.OK,
            row.invoked_ns,
            row.returned_ns if row.returned_ns >= 0 else ENDLESS,
            end if end >= 0 else None,
            size if size >= 0 else row.length + RECORD_SIZE_MIN,
        )
