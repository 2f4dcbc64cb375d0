"""From one pull to the next of the same reader: A10 and A11 in their external form.

A reader that asks for what it was told to ask next has not sought. Where it was told to go back, or
was told to go on beyond stored messages, the broker is to blame. What the group's log lost in
between, by the bound of 2.3, excuses both: offsets are then given out again.
"""

from dataclasses import dataclass

from rocketbed.chaos.checks import passes
from rocketbed.chaos.checks.check import Case, Findings, check
from rocketbed.chaos.checks.context import earliest_sending_ns
from rocketbed.chaos.checks.evidence import Rows
from rocketbed.chaos.checks.keys import pack
from rocketbed.chaos.checks.result import Excuse, Severity
from rocketbed.chaos.evidence.history import Function


@dataclass(slots=True)
class _Reader:
    """Where one reader of one queue stands."""

    send: int
    """The next offset, as its last pull was answered."""
    last: int
    """The last offset it got; -1 before the first."""
    value: int
    """Of the message that it got there."""
    time_ns: int


@check(
    "A10e nonmonotonic polls",
    "pulls",
    severity=Severity.WARNING,
    also=("A11e skip between polls", Severity.SAFETY),
    final=True,
)
def polls_over_time(case: Case, back: Findings, skips: Findings) -> int:
    """A10e: no pull is answered with what comes before the last message got. A11e: none is led
    beyond a stored message."""
    pulls = case.require_rows((Function.PULL,), without="the history holds no pulls")
    walk = _Walk(case, pulls, back)
    walk.through()
    walk.add_skips(skips)
    return len(pulls)


class _Walk:
    """Goes through all pulls in order."""

    def __init__(self, case: Case, pulls: Rows, back: Findings) -> None:
        self._evidence = case.evidence
        self._losses = case.losses
        self._pulls = pulls
        self._back = back
        self._gaps: list[tuple[int, int, int, int]] = []
        """Position of the pull, key of the last message before, key of where it went on, time."""

    def through(self) -> None:
        """Note what went back, and remember what may have been skipped."""
        evidence, pulls = self._evidence, self._pulls
        got = evidence.rows((Function.GOT,))
        operations, offsets = got.column("operation"), got.column("queue_offset")
        firsts, lasts = passes.edges(operations)
        ends = [
            passes.take(operations, firsts),
            *(passes.take(offsets, at) for at in (firsts, lasts)),
            passes.take(got.column("value"), lasts),
        ]
        spans = {int(number): tuple(map(int, span)) for number, *span in zip(*ends, strict=True)}
        names = ("number", "process", "queue_offset", "physical_offset", "returned_ns")
        columns = [pulls.column(name) for name in names]
        readers: dict[tuple[int, int], _Reader] = {}
        rows = zip(evidence.queue_numbers(pulls), *columns, strict=True)
        for position, row in enumerate(rows):
            queue, number, process, asked, told, time_ns = map(int, row)
            reader = readers.get((process, queue))
            if reader is None or reader.send != asked:
                reader = readers[process, queue] = _Reader(-1, -1, -1, time_ns)
            first, last, value = spans.get(number, (-1, -1, -1))
            self._look(position, queue, reader, first if first >= 0 else told)
            if last >= 0:
                reader.last, reader.value, reader.time_ns = last, value, time_ns
            reader.send = told

    def _look(self, position: int, queue: int, reader: _Reader, went_on: int) -> None:
        """A reader went on at an offset: a message that it got, or was told to ask for."""
        if reader.last < 0 or went_on < 0:
            return
        if went_on <= reader.last:
            row = self._pulls.row(position)
            example = self._evidence.example(
                row,
                f"reader {row.process} of {self._evidence.history.topic(row)}/{row.queue} had got"
                f" offset {reader.last} and was led back to {went_on}",
                value=None,
                offset=went_on,
                distance=reader.last - went_on,
            )
            since_ns = reader.time_ns
            if reader.value in self._losses.excuses:
                since_ns = earliest_sending_ns(self._evidence, since_ns)
            excuse = self._excuse(row.node, since_ns, row.returned_ns)
            self._back.add(example, excuse=excuse)
            reader.last = -1
        elif went_on > reader.last + 1:
            low, high = pack(queue, reader.last), pack(queue, went_on)
            self._gaps.append((position, low, high, reader.time_ns))

    def add_skips(self, skips: Findings) -> None:
        """The gaps that contain stored messages."""
        lows = passes.column([gap[1] for gap in self._gaps])
        highs = passes.column([gap[2] for gap in self._gaps])
        counts = passes.between(lows, highs, self._evidence.stored.keys)
        queues = self._evidence.queues
        for number in passes.above(counts, 0):
            position, low, high, time_ns = self._gaps[number]
            row = self._pulls.row(position)
            example = self._evidence.example(
                row,
                f"reader {row.process} was led from {queues.show(low)} to {queues.show(high)},"
                f" beyond {int(counts[number])} stored messages",
                value=None,
                offset=queues.place(low)[1] + 1,
                distance=int(counts[number]),
            )
            skips.add(example, excuse=self._excuse(row.node, time_ns, row.returned_ns))

    def _excuse(self, node: int, begin_ns: int, end_ns: int) -> Excuse | None:
        return self._losses.loss_between(self._evidence.group_of(node), begin_ns, end_ns)
