"""From an offset of the log to the records that stand there: the one way that everybody reads it.

Each step ends in records or in a verdict, never in neither. What is read at once is bounded by the
length of a read, or by one record whose fields add up to its size: a wrong size, or a producer's
body, decides nothing.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from enum import Enum, auto

from rocketbed.node.store.entry import Entry
from rocketbed.node.store.scan import RecordScanner, Scanned, Stop, doubt_lengths
from rocketbed.node.store.segments import SegmentRow
from rocketbed.wire.message import BLANK, HEAD
from rocketbed.world.api import World

READ_SIZE = 1 << 20
"""Bytes a step reads; for callers that share the loop this is about 4 ms."""


class Verdict(Enum):
    GOOD = auto()
    """Records; go on at the step's end."""
    BLANK = auto()
    """A blank record; go on at the step's end, the next segment."""
    PARTIAL = auto()
    """What stands here goes on behind the limit."""
    END = auto()
    """The limit, or the end of the last segment."""
    BAD = auto()
    """No record here: the end of the log, a torn tail, or damage."""


@dataclass(frozen=True, slots=True)
class Step:
    """What stands at one offset of the log."""

    verdict: Verdict
    end: int
    """Physical offset behind what is good; with `BAD` and `PARTIAL`, where that stands."""
    entries: list[Entry] = field(default_factory=list)
    reason: str = ""
    """What is wrong, with `BAD`."""


_Reads = Generator[tuple[int, int], bytes, Step]
"""Asks for pieces of the log, by offset and size within a segment."""


class LogCursor:
    """Reads one log; it has no position of its own."""

    def __init__(
        self, segments: SegmentRow, scanner: RecordScanner, *, read_size: int = READ_SIZE
    ) -> None:
        self.segments = segments
        self._scanner = scanner
        self.read_size = read_size
        """Bytes that a step reads at least."""
        self.bytes_read = 0
        """What was read so far, wherever that was."""

    def step(self, position: int, limit: int, *, zero_rule_from: int | None = None) -> Step:
        """What stands at `position`, a record's start, below `limit`. Raises `OSError`.

        `zero_rule_from`: see `RecordScanner.scan`.
        """
        reads = self._reads(position, limit, zero_rule_from, self.read_size)
        return self._drive(reads)

    def one(self, position: int) -> Step:
        """The record at `position` alone, with as few bytes as it takes. Raises `OSError`."""
        return self._drive(self._reads(position, self.segments.end, None, HEAD.size))

    def _drive(self, reads: _Reads) -> Step:
        try:
            wanted = next(reads)
            while True:
                data = self.segments.read(*wanted)
                self.bytes_read += len(data)
                wanted = reads.send(data)
        except StopIteration as stop:
            step: Step = stop.value
            return step

    async def step_beside(self, world: World, position: int, limit: int) -> Step:
        """As `step`, with each read beside the loop. Raises `OSError`."""
        reads = self._reads(position, limit, None, self.read_size)
        try:
            wanted = next(reads)
            while True:
                wanted = reads.send(await self.read_beside(world, *wanted))
        except StopIteration as stop:
            step: Step = stop.value
            return step

    async def read_beside(self, world: World, offset: int, size: int) -> bytes:
        """Bytes within one segment, read beside the loop; the file stays open meanwhile."""
        segments = self.segments
        start = segments.start_of(offset)
        file = segments.pin(start)
        try:
            data = await world.offload(file.read_at, offset - start, size)
            self.bytes_read += len(data)
            return data
        finally:
            segments.unpin(start)

    def _reads(
        self, position: int, limit: int, zero_rule_from: int | None, read_size: int
    ) -> _Reads:
        segments = self.segments
        if position >= limit or not segments.has(position):
            return Step(Verdict.END, position)
        segment_end = segments.start_of(position) + segments.size
        # A little of what follows: the last record is doubted if its end reads as never written.
        within = min(segment_end, limit + BLANK.size) - position
        size = min(read_size, within)
        while True:
            data = yield position, size
            if len(data) < size:
                return Step(Verdict.BAD, position, reason="the file ends here")
            scanned = self._scanner.scan(
                data, position, segment_end=segment_end, zero_rule_from=zero_rule_from
            )
            if scanned.entries or scanned.stop is not Stop.MORE:
                # It was judged by what no one wrote yet: a slave's log may end anywhere.
                if not scanned.entries and limit < min(segment_end, position + BLANK.size):
                    return Step(Verdict.PARTIAL, position)
                if not scanned.entries and scanned.size > limit - position:
                    problem = yield from self._doubt(position, data, limit - position)
                    verdict = Verdict.BAD if problem else Verdict.PARTIAL
                    return Step(verdict, position, reason=problem)
                return self._verdict(scanned, segment_end, limit)
            wanted = (scanned.size or HEAD.size) + BLANK.size
            if scanned.size and wanted > size:
                problem = yield from self._doubt(position, data, limit - position)
                if problem:
                    return Step(Verdict.BAD, position, reason=problem)
            if scanned.size > limit - position or size >= min(wanted, within):
                return Step(Verdict.PARTIAL, position)
            size = min(wanted, within)

    def _doubt(
        self, position: int, data: bytes, within: int
    ) -> Generator[tuple[int, int], bytes, str]:
        """`doubt_lengths` of the record at `position`, as far as it lies within the limit."""
        asks = doubt_lengths(data[: HEAD.size])
        try:
            at, size = next(asks)
            while at + size <= within:
                piece = yield position + at, size
                at, size = asks.send(piece)
        except StopIteration as stop:
            problem: str = stop.value
            return problem
        return ""

    def _verdict(self, scanned: Scanned, segment_end: int, limit: int) -> Step:
        if scanned.entries:
            entries, end = scanned.entries, scanned.end
            while end > limit:  # by the little that was read of what follows
                end = entries.pop().physical_offset
            return Step(Verdict.GOOD if entries else Verdict.PARTIAL, end, entries)
        if scanned.stop is Stop.BLANK:
            if segment_end > limit:
                return Step(Verdict.PARTIAL, scanned.end)
            return Step(Verdict.BLANK, segment_end)
        return Step(Verdict.BAD, scanned.end, reason=scanned.reason)
