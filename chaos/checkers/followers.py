"""From one pull to the next of the same reader: A10 and A11 in their external form.

A reader that asks for what it was told to ask next has not sought. Where it was told to go back, or
was told to go on beyond stored messages, the broker is to blame. What the group's log lost in
between, by the bound of 2.3, excuses both: offsets are then given out again.
"""

from dataclasses import dataclass

from rocketbed.chaos.checkers import passes
from rocketbed.chaos.checkers.evidence import Evidence, Rows
from rocketbed.chaos.checkers.keys import pack
from rocketbed.chaos.checkers.loss_bound import Losses
from rocketbed.chaos.checkers.reads import stored_messages
from rocketbed.chaos.checkers.result import (
    CheckResult,
    Example,
    Severity,
    judged,
    not_applicable,
    not_run,
)
from rocketbed.chaos.history import Function

_UNIT = "pulls"


@dataclass(slots=True)
class _Reader:
    """Where one reader of one queue stands."""

    told: int
    """The next offset, as its last pull was answered."""
    last: int
    """The last offset it got; -1 before the first."""
    time_ns: int


def polls_over_time(evidence: Evidence, losses: Losses) -> list[CheckResult]:
    """A10e: no pull is answered with what comes before the last message got. A11e: none is led
    beyond a stored message."""
    back_title, skip_title = "A10e nonmonotonic polls", "A11e skip between polls"
    if missing := evidence.no_final():
        return [
            not_run(back_title, _UNIT, missing, severity=Severity.WARNING),
            not_run(skip_title, _UNIT, missing),
        ]
    pulls = evidence.rows((Function.PULL,))
    if not len(pulls):
        reason = "the history holds no pulls"
        return [
            not_applicable(back_title, _UNIT, reason, severity=Severity.WARNING),
            not_applicable(skip_title, _UNIT, reason),
        ]
    back, skips = _Steps(evidence, losses, pulls).run()
    allowed = [example for example, excused in skips if excused]
    found = [example for example, excused in skips if not excused]
    return [
        judged(
            back_title,
            len(pulls),
            _UNIT,
            [example for example, excused in back if not excused],
            severity=Severity.WARNING,
            allowed=[example for example, excused in back if excused],
        ),
        judged(skip_title, len(pulls), _UNIT, found, allowed=allowed),
    ]


class _Steps:
    """Walks through all pulls in order."""

    def __init__(self, evidence: Evidence, losses: Losses, pulls: Rows) -> None:
        self._evidence = evidence
        self._losses = losses
        self._pulls = pulls
        self._back: list[tuple[Example, bool]] = []
        self._gaps: list[tuple[int, int, int, int]] = []
        """Position of the pull, key of the last message before, key of where it went on, time."""

    def run(self) -> tuple[list[tuple[Example, bool]], list[tuple[Example, bool]]]:
        """What went back, and what was skipped; each with whether a loss excuses it."""
        evidence, pulls = self._evidence, self._pulls
        got = evidence.rows((Function.GOT,))
        firsts, lasts = passes.edges(got.column("operation"))
        offsets = got.column("queue_offset")
        numbers = passes.take(got.column("operation"), firsts)
        spans = {
            int(number): (int(first), int(last))
            for number, first, last in zip(
                numbers, passes.take(offsets, firsts), passes.take(offsets, lasts), strict=True
            )
        }
        names = ("number", "process", "queue_offset", "physical_offset", "returned_ns")
        columns = [pulls.column(name) for name in names]
        readers: dict[tuple[int, int], _Reader] = {}
        rows = zip(evidence.queue_numbers(pulls), *columns, strict=True)
        for position, (queue, number, process, asked, told, time_ns) in enumerate(rows):
            reader = readers.get((int(process), int(queue)))
            if reader is None or reader.told != asked:
                reader = readers[int(process), int(queue)] = _Reader(-1, -1, int(time_ns))
            first, last = spans.get(int(number), (-1, -1))
            self._look(position, int(queue), reader, first if first >= 0 else int(told))
            if last >= 0:
                reader.last = last
                reader.time_ns = int(time_ns)
            reader.told = int(told)
        return self._back, self._skips()

    def _look(self, position: int, queue: int, reader: _Reader, went_on: int) -> None:
        """A reader went on at an offset: a message that it got, or was told to ask for."""
        if reader.last < 0 or went_on < 0:
            return
        if went_on <= reader.last:
            row = self._pulls.row(position)
            example = Example(
                f"reader {row.process} of {self._evidence.history.topic(row)}/{row.queue} had got"
                f" offset {reader.last} and was led back to {went_on}",
                topic=self._evidence.history.topic(row),
                queue=row.queue,
                offset=went_on,
                time_ns=row.returned_ns,
                distance=reader.last - went_on,
            )
            self._back.append((example, self._excused(row.node, reader.time_ns, row.returned_ns)))
            reader.last = -1
        elif went_on > reader.last + 1:
            low, high = pack(queue, reader.last), pack(queue, went_on)
            self._gaps.append((position, low, high, reader.time_ns))

    def _skips(self) -> list[tuple[Example, bool]]:
        """The gaps that contain stored messages."""
        lows = passes.column([gap[1] for gap in self._gaps])
        highs = passes.column([gap[2] for gap in self._gaps])
        counts = passes.between(lows, highs, stored_messages(self._evidence).keys)
        found: list[tuple[Example, bool]] = []
        for number in passes.above(counts, 0):
            position, low, high, time_ns = self._gaps[number]
            row = self._pulls.row(position)
            show = self._evidence.queues.show
            example = Example(
                f"reader {row.process} was led from {show(low)} to {show(high)},"
                f" beyond {int(counts[number])} stored messages",
                topic=self._evidence.history.topic(row),
                queue=row.queue,
                offset=self._evidence.queues.place(low)[1] + 1,
                time_ns=row.returned_ns,
                distance=int(counts[number]),
            )
            found.append((example, self._excused(row.node, time_ns, row.returned_ns)))
        return found

    def _excused(self, node: int, begin_ns: int, end_ns: int) -> bool:
        return self._losses.loss_between(self._evidence.group_of(node), begin_ns, end_ns)
