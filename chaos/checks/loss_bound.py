"""Which messages may be gone: the must-survive rule of chaos.md 2.3, message by message.

In classic mode the operator chooses who is master. A master that comes back after a power cut with
a shorter log, or a promoted slave that was not the longest, loses messages that others still hold;
that is `unclean`, counted and shown, and allowed only where the promise allowed the master, or the
promoted one, to be without them. Under synchronous flush a power cut takes nothing acknowledged.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from rocketbed.chaos.checks import passes
from rocketbed.chaos.checks.ends import ENDLESS, node_ends
from rocketbed.chaos.checks.evidence import Evidence, Stored
from rocketbed.chaos.checks.lineage import (
    POWER_CUT,
    PROMOTE,
    WIPE,
    Change,
    Lineage,
    Turn,
    lineages,
)
from rocketbed.chaos.checks.logs import NodeLog
from rocketbed.chaos.checks.result import Excuse
from rocketbed.chaos.evidence.history import Outcome, Row
from rocketbed.inspect.record import RECORD_SIZE_MIN


@dataclass(slots=True)
class Sent:
    """One attempt of a send, as far as it matters here. Offsets and sizes in bytes of the log."""

    number: int
    """Position among `Evidence.sends`."""
    value: int
    group: int
    acknowledged: bool
    invoked_ns: int
    returned_ns: int
    end: int | None
    """End offset of the message's record; None when unknown."""
    size: int


@dataclass(slots=True)
class Loss:
    """What one turn allowed, and what is gone that it explains."""

    lineage: Lineage
    turn: Turn
    allowed: int = 0
    """Acknowledged messages that might be gone."""
    allowed_bytes: int = 0
    lost: list[Sent] = field(default_factory=list)
    """Acknowledged ones that are gone."""
    unclean: int = 0
    """Those of them that another node held."""
    kept_ns: int | None = None
    """See `_kept_until_ns`; None until it is asked for."""
    outside: list[Sent] = field(default_factory=list)
    """Acknowledged ones that are gone although a newer one of that time is there."""

    @property
    def text(self) -> str:
        change = self.turn.change
        if change.what == PROMOTE:
            return f"promotion of {change.node}"
        word = "power cut" if change.what == POWER_CUT else "new disk"
        return f"{word} of {change.node}, which came back as master"


class Losses:
    """The turns of all groups, and the verdict on each message that is missing."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self.ends = node_ends(evidence)
        self.lineages = lineages(evidence, self.ends)
        self.turns = [Loss(lineage, turn) for lineage in self.lineages for turn in lineage.turns]
        self.sent = Attempts(evidence)
        self.missing: list[Sent] = []
        """Acknowledged messages that are in no final log."""
        self.beyond: list[Sent] = []
        """Those of them that nothing allows."""
        self.gone: dict[int, Excuse] = {}
        """Values that are in no final log, and why that may be."""
        self._judge()

    def gone_of(self, *values: int) -> Excuse | None:
        """Why one of some values may be in no final log."""
        return next((self.gone[value] for value in values if value in self.gone), None)

    def may_lose(self, told: Row, group: int, end: int | None) -> Excuse | None:
        """What the promise allows to have taken an acknowledged message whose record ends there,
        or, without an end, somewhere behind everything."""
        place = ENDLESS if end is None else end
        times = told.invoked_ns, told.returned_ns
        message = Sent(-1, told.value, group, True, *times, place, told.length)
        loss = self._explain(message)
        return self.split(message) if loss is None else self._excuse(loss)

    def loss_between(
        self, group: int, begin_ns: int, end_ns: int, *, behind: int | None = None
    ) -> Excuse | None:
        """What the truth of a group may have lost something by in a time; with `behind`, something
        that ended in front of that log offset, or there."""
        return next(self.losses_between(group, begin_ns, end_ns, behind=behind), None)

    def losses_between(
        self, group: int, begin_ns: int, end_ns: int, *, behind: int | None = None
    ) -> Iterator[Excuse]:
        """All of these."""
        for loss in self.turns:
            kept = loss.turn.threshold
            change, effect_ns = loss.turn.change, loss.turn.effect_ns
            if change.planned or (behind is not None and kept is not None and behind <= kept):
                continue
            is_ours = group in (loss.lineage.group, -1)
            if is_ours and change.time_ns <= end_ns and begin_ns < effect_ns:
                yield self._excuse(loss)
        for lineage in self.lineages:
            if group in (lineage.group, -1):
                yield from lineage.diverged(begin_ns, end_ns, behind)

    def on_the_way(
        self, group: int, begin_ns: int, until_ns: int, *, is_safe: bool
    ) -> Excuse | None:
        """What may have taken a record that nobody was told of, written in a time. Unless it
        `is_safe` as what is acknowledged, a promotion may take it whatever is promised."""
        unseen = Sent(-1, -1, group, True, begin_ns, until_ns, ENDLESS, 0)
        for loss in self.turns:
            turn = loss.turn
            takes = turn.threshold is None or turn.threshold < turn.end
            is_ours = group in (loss.lineage.group, -1)
            if not (is_ours and takes and turn.change.time_ns > begin_ns):
                continue
            is_open = not is_safe and loss.turn.change.what == PROMOTE
            may_take = is_open or self._may_take(loss, unseen)
            if may_take and self._kept_until_ns(loss) <= until_ns:
                return self._excuse(loss)
        return self.split_between(group, begin_ns, until_ns)

    def _kept_until_ns(self, loss: Loss) -> int:
        """When the last acknowledged message was sent that a turn has kept: what is older is too;
        -1 where nobody knows."""
        threshold, change_ns = loss.turn.threshold, loss.turn.change.time_ns
        if threshold is None:
            return -1
        if loss.kept_ns is None:
            sent = (self.sent[number] for number in range(len(self.sent)))
            loss.kept_ns = max(
                (
                    one.invoked_ns
                    for one in sent
                    if one.acknowledged
                    and one.group == loss.lineage.group
                    and one.returned_ns < change_ns
                    and one.end is not None
                    and one.end <= threshold
                ),
                default=-1,
            )
        return loss.kept_ns

    def _excuse(self, loss: Loss) -> Excuse:
        end_ns = min(loss.turn.effect_ns, self._evidence.record.end_ns)
        return Excuse(loss.text, loss.turn.change.time_ns, end_ns)

    def written_before(self, image: NodeLog, limit: int) -> int:
        """The furthest end, not above a limit, of a message that the image's node as master had
        acknowledged before, since it began to serve; 0 for none.

        An image that lost its files knows no ends of records; the acknowledgements do.
        """
        time_ns = image.taken.time_ns
        lineage = self.lineages[image.group]
        era = lineage.era(time_ns - 1)
        if era.master != image.name:
            return 0
        best = 0
        for number in passes.above(self.sent.ends, 0):
            message = self.sent[number]
            inside = era.start_ns <= message.invoked_ns and message.returned_ns < time_ns
            if message.acknowledged and inside and message.end and message.end <= limit:
                best = max(best, message.end)
        return best

    @cached_property
    def gone_keys(self) -> dict[int, Excuse]:
        """Places where values that are gone were acknowledged or read, and why they may be gone;
        others may stand there."""
        evidence = self._evidence
        gone = passes.column(sorted(self.gone))
        keys: dict[int, Excuse] = {}
        for rows in (evidence.acknowledged, evidence.reads):
            places, values = evidence.keys(rows), rows.column("value")
            for number in passes.found(values, gone):
                keys[int(places[number])] = self.gone[int(values[number])]
        return keys

    @property
    def unobserved(self) -> str:
        """Why the bound of a turn is not known; empty when all are."""
        for loss in self.turns:
            if loss.turn.threshold is None:
                return f"{loss.text}: how far its log reached is unknown"
        return ""

    def _judge(self) -> None:
        evidence = self._evidence
        absent = passes.missing(self.sent.values, evidence.stored.values)
        for number in absent:
            message = self.sent[number]
            loss = self._explain(message)
            excuse = self.split(message) if loss is None else self._excuse(loss)
            if excuse is not None:
                self.gone[message.value] = excuse
            if self._expired(message):
                continue
            if message.acknowledged:
                self.missing.append(message)
                if excuse is None:
                    self.beyond.append(message)
            if loss is not None and message.acknowledged:
                loss.lost.append(message)
                held = loss.turn.others.values()
                loss.unclean += any((message.end or 0) <= end for end in held)
        for loss in self.turns:
            self._count(loss)
            self._close_upwards(loss, set(absent))

    def split(self, message: Sent) -> Excuse | None:
        """The second master that may have taken a message, and lost it when it was told to."""
        return self.split_between(message.group, message.invoked_ns, message.returned_ns)

    def split_between(self, group: int, begin_ns: int, end_ns: int) -> Excuse | None:
        """The second master of a group in a time."""
        for begin, end, node in self._evidence.splits:
            is_ours = group in (self._evidence.group_of_name(node), -1)
            if is_ours and begin_ns <= end and end_ns >= begin:
                return Excuse(f"{node} was a second master", begin, end)
        return None

    def _expired(self, message: Sent) -> bool:
        """Whether a message is below the beginning of the final log, and was old enough to be."""
        reserved_ns, record = self._evidence.record.reserved_ns, self._evidence.record
        final = self._evidence.final(message.group)
        if reserved_ns is None or message.end is None or final is None:
            return False
        return message.end <= final.log_min and message.invoked_ns + reserved_ns <= record.end_ns

    def _explain(self, message: Sent) -> Loss | None:
        """The first turn that may have taken a message."""
        for loss in self.turns:
            if message.group in (loss.lineage.group, -1) and self._may_take(loss, message):
                return loss
        return None

    def _may_take(self, loss: Loss, message: Sent) -> bool:
        turn = loss.turn
        if message.invoked_ns >= turn.change.time_ns:
            return False
        # Where the end of the log is unknown nothing can be held against the node; `unobserved`
        # then keeps the check from passing. A message of unknown place is excused only if it was
        # never acknowledged.
        if turn.threshold is None or message.end is None:
            return not message.acknowledged or turn.threshold is None
        if message.end <= turn.threshold:
            return False
        return not message.acknowledged or self._promise_allows(loss, message)

    def _promise_allows(self, loss: Loss, message: Sent) -> bool:
        change, promise = loss.turn.change, self._evidence.record.promise
        if change.what in (WIPE, POWER_CUT):
            takes = change.what == WIPE or self._is_unsafe(change)
            return takes and not self._is_held_elsewhere(loss, message)
        if promise.replication == "async" or promise.copies <= 1:
            return True
        if self._evidence.elects:
            return self._lost_its_copy(loss, message)  # it has to choose one that holds them all
        if self._holders(loss.lineage, message, without=change.node) >= promise.copies:
            return True
        return self._lost_its_copy(loss, message)

    def _holders(self, lineage: Lineage, message: Sent, *, without: str) -> int:
        """Nodes that may have held a message when it was acknowledged, at the promised level."""
        assert message.end is not None
        master = lineage.era(message.returned_ns).master
        held = 0
        for node in lineage.nodes:
            if node == without:
                continue
            ends = lineage.ends[node]
            if node == master or not ends.complete:
                held += 1  # not observed: the doubt must not convict
                continue
            highest = ends.highest(message.invoked_ns, message.returned_ns)
            level = highest.durable if self._evidence.flushes else highest.written
            held += lineage.held(node, message.returned_ns, level) >= message.end
        return held

    def _is_held_elsewhere(self, loss: Loss, message: Sent) -> bool:
        """Whether another node is known to have had the copy that was promised, and nothing took it
        there: slaves refuse a master that came back shorter (design.md 24), until an operator
        empties them."""
        promise, lineage = self._evidence.record.promise, loss.lineage
        if promise.replication == "async" or promise.copies <= 1:
            return False
        assert message.end is not None
        for node in lineage.nodes:
            ends = lineage.ends[node]
            # A damaged end may be taken for one that was never written, and be cut off.
            is_damaged = self._evidence.disks.was_damaged(node, message.invoked_ns)
            if node == loss.turn.change.node or not ends.complete or is_damaged:
                continue
            highest = ends.highest(message.invoked_ns, message.returned_ns)
            level = highest.durable if self._evidence.flushes else highest.written
            is_held = lineage.held(node, message.returned_ns, level) >= message.end
            if is_held and not self._lost_its_copy(loss, message, node, ENDLESS):
                return True
        return False

    def _lost_its_copy(
        self, loss: Loss, message: Sent, node: str = "", until_ns: int | None = None
    ) -> bool:
        """Whether a node may have had the message and lost it; without one the promoted node, until
        its promotion."""
        turn = loss.turn
        node, until_ns = node or turn.change.node, until_ns or turn.change.time_ns
        end = message.end or 0
        cut_short = self._evidence.disks.cut_short
        # Where roles are elected nobody who lacks something may come to lead, damaged or not.
        if not self._evidence.elects and cut_short(node, end, message.invoked_ns, until_ns):
            return True
        for change in loss.lineage.changes:
            if change.node != node or not message.invoked_ns < change.time_ns <= until_ns:
                continue
            if change.what == WIPE:
                return True
            if change.what == POWER_CUT and self._is_unsafe(change):
                return change.durable is None or end > change.durable
        return False

    def _is_unsafe(self, cut: Change) -> bool:
        """Whether a power cut may take what a sync was said to have kept."""
        lied = self._evidence.disks.damaged_by(cut.node, cut.time_ns)
        return not self._evidence.flushes or lied is not None

    def _count(self, loss: Loss) -> None:
        """How much this turn might have taken."""
        if loss.turn.threshold is None:
            return
        for number in passes.above(self.sent.ends, loss.turn.threshold):
            message = self.sent[number]
            if (
                message.acknowledged
                and message.group in (loss.lineage.group, -1)
                and self._may_take(loss, message)
                and not (message.value in self.gone and self._explain(message) is not loss)
            ):
                loss.allowed += 1
                loss.allowed_bytes += message.size

    def _close_upwards(self, loss: Loss, absent: set[int]) -> None:
        """A log loses its end: what is gone must be all that stood above the first that is gone.

        Compared are messages that were in the truth until then: not those that a turn before may
        have taken, which a later master may have brought back.
        """
        change = loss.turn.change
        if self._evidence.disks.damaged_by(change.node, change.time_ns) is not None:
            return
        before = self.turns[: self.turns.index(loss)]
        lowest = min((message.end or ENDLESS for message in loss.lost), default=ENDLESS)
        if lowest == ENDLESS:
            return
        witness = 0
        for number in passes.above(self.sent.ends, lowest):
            message = self.sent[number]
            if (
                message.acknowledged
                and number not in absent
                and message.group == loss.lineage.group
                and message.returned_ns < loss.turn.change.time_ns
                and not any(self._may_take(other, message) for other in before)
            ):
                witness = max(witness, message.end or 0)
        loss.outside = [message for message in loss.lost if (message.end or witness) < witness]
        self.beyond += loss.outside
        for message in loss.outside:
            self.gone.pop(message.value, None)


class Attempts:
    """All attempts of sends, with the ends of their records: from any log that has them, else as
    much as is known at least."""

    def __init__(self, evidence: Evidence) -> None:
        sends = evidence.sends
        self._evidence = evidence
        stored = Stored(evidence.logs)
        self.values = sends.column("value")
        self._sizes = passes.lookup(self.values, stored.values, stored.column("sizes"), -1)
        places = passes.lookup(self.values, stored.values, stored.column("physicals"), -1)
        said, lengths = sends.column("physical_offset"), sends.column("length")
        self.ends = passes.record_ends(said, places, self._sizes, lengths)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, number: int) -> Sent:
        row = self._evidence.sends.row(number)
        end, size = int(self.ends[number]), int(self._sizes[number])
        return Sent(
            number,
            row.value,
            self._evidence.group_of(row.node),
            row.outcome == Outcome.OK,
            row.invoked_ns,
            row.returned_ns if row.returned_ns >= 0 else ENDLESS,
            end if end >= 0 else None,
            size if size >= 0 else row.length + RECORD_SIZE_MIN,
        )
