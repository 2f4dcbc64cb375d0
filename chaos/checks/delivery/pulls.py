"""Consecutive pulls of one reader: none goes back, and none leaves a message out.

A reader that asks for the offset it was told to ask for next has not sought. If it was told to go
back, or to go on after stored messages, the broker is to blame. A loss of the group's log in
between, by the bound of 2.3, excuses both: offsets are then reused.
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
    """Progress of one reader in one queue."""

    send: int
    """Next offset, from the answer to its last pull."""
    last: int
    """Offset of the last message it got; -1 before the first."""
    value: int
    """Value of that message."""
    time_ns: int


@check(
    "reader-goes-back",
    "pulls",
    severity=Severity.WARNING,
    also=("reader-skip", Severity.SAFETY, "No two pulls of a reader leave a stored message out."),
    final=True,
)
def polls_over_time(case: Case, steps_back: Findings, skips: Findings) -> int:
    """No pull of a reader returns what comes before the last message that it got."""
    pulls = case.require_rows((Function.PULL,), without="the history holds no pulls")
    walk = _PullSequence(case, pulls, steps_back)
    walk.examine()
    walk.add_skips(skips)
    return len(pulls)


class _PullSequence:
    """Examines all pulls in order."""

    def __init__(self, case: Case, pulls: Rows, steps_back: Findings) -> None:
        self._evidence = case.evidence
        self._losses = case.losses
        self._pulls = pulls
        self._steps_back = steps_back
        self._gaps: list[tuple[int, int, int, int]] = []
        """Pull's position, key of the last message before, key of the next one, time."""

    def examine(self) -> None:
        """Record steps back, and remember possible skips."""
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
            queue, number, process, requested, next_offset, time_ns = map(int, row)
            reader = readers.get((process, queue))
            if reader is None or reader.send != requested:
                reader = readers[process, queue] = _Reader(-1, -1, -1, time_ns)
            first, last, value = spans.get(number, (-1, -1, -1))
            self._compare(position, queue, reader, first if first >= 0 else next_offset)
            if last >= 0:
                reader.last, reader.value, reader.time_ns = last, value, time_ns
            reader.send = next_offset

    def _compare(self, position: int, queue: int, reader: _Reader, next_offset: int) -> None:
        """Compare the next offset of a reader with its last one. It is that of a message it got, or
        the offset that it was told to ask for."""
        if reader.last < 0 or next_offset < 0:
            return
        if next_offset <= reader.last:
            row = self._pulls.row(position)
            example = self._evidence.example(
                row,
                f"reader {row.process} of {self._evidence.history.topic(row)}/{row.queue} had got"
                f" offset {reader.last} and was led back to {next_offset}",
                value=None,
                offset=next_offset,
                distance=reader.last - next_offset,
            )
            since_ns = reader.time_ns
            if reader.value in self._losses.excuses:
                since_ns = earliest_sending_ns(self._evidence, since_ns)
            excuse = self._excuse(row.node, since_ns, row.returned_ns)
            self._steps_back.add(example, excuse=excuse)
            reader.last = -1
        elif next_offset > reader.last + 1:
            low, high = pack(queue, reader.last), pack(queue, next_offset)
            self._gaps.append((position, low, high, reader.time_ns))

    def add_skips(self, skips: Findings) -> None:
        """Add the gaps that contain stored messages."""
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
