"""Reading the records at an offset of the log: the only way in which the log is read.

Each step ends in records or in a verdict, never in neither. The bytes read at once are bounded by
the length of a read, or by one record whose fields add up to its size: a wrong size, or a
producer's body, decides nothing.
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
"""Bytes that a step reads; in the loop this takes about 4 ms."""


class Verdict(Enum):
    GOOD = auto()
    """Records; continue at the step's end."""
    BLANK = auto()
    """A blank record; continue at the step's end, the next segment."""
    PARTIAL = auto()
    """The record here extends beyond the limit."""
    END = auto()
    """The limit, or the end of the last segment."""
    BAD = auto()
    """No record here: the end of the log, a torn tail, or damage."""


@dataclass(frozen=True, slots=True)
class Step:
    """Contents of the log at one offset."""

    verdict: Verdict
    end: int
    """Physical offset after the good part; with `BAD` and `PARTIAL`, offset of the bad record."""
    entries: list[Entry] = field(default_factory=list)
    reason: str = ""
    """Problem found, with `BAD`."""


_Reads = Generator[tuple[int, int], bytes, Step]
"""Requests pieces of the log, by offset and size within a segment."""


class LogCursor:
    """Reads one log; it has no position of its own."""

    def __init__(
        self, segments: SegmentRow, scanner: RecordScanner, *, read_size: int = READ_SIZE
    ) -> None:
        self.segments = segments
        self._scanner = scanner
        self.read_size = read_size
        """Least number of bytes that a step reads."""
        self.bytes_read = 0
        """Bytes read so far."""

    def step(self, position: int, limit: int, *, zero_rule_from: int | None = None) -> Step:
        """Read the records at `position`, a record's start, below `limit`. Raises `OSError`.

        `zero_rule_from`: see `RecordScanner.scan`.
        """
        reads = self._reads(position, limit, zero_rule_from, self.read_size)
        return self._drive(reads)

    def record_at(self, position: int) -> Step:
        """Read the record at `position` alone, with as few bytes as it takes. Raises `OSError`."""
        return self._drive(self._reads(position, self.segments.end, None, HEAD.size))

    def _drive(self, reads: _Reads) -> Step:
        try:
            piece = next(reads)
            while True:
                data = self.segments.read(*piece)
                self.bytes_read += len(data)
                piece = reads.send(data)
        except StopIteration as stop:
            step: Step = stop.value
            return step

    async def step_in_thread(self, world: World, position: int, limit: int) -> Step:
        """Do the same as `step`, with each read in a thread. Raises `OSError`."""
        reads = self._reads(position, limit, None, self.read_size)
        try:
            piece = next(reads)
            while True:
                piece = reads.send(await self.read_in_thread(world, *piece))
        except StopIteration as stop:
            step: Step = stop.value
            return step

    async def read_in_thread(self, world: World, offset: int, size: int) -> bytes:
        """Return bytes within one segment, read in a thread; the file stays open meanwhile."""
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
        # A few bytes more: the last record is suspect if its end reads as never written.
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
                # Bytes that were not written yet decided this: a slave's log may end anywhere.
                if not scanned.entries and limit < min(segment_end, position + BLANK.size):
                    return Step(Verdict.PARTIAL, position)
                if not scanned.entries and scanned.size > limit - position:
                    problem = yield from self._doubt(position, data, limit - position)
                    verdict = Verdict.BAD if problem else Verdict.PARTIAL
                    return Step(verdict, position, reason=problem)
                return self._verdict(scanned, segment_end, limit)
            piece = (scanned.size or HEAD.size) + BLANK.size
            if scanned.size and piece > size:
                problem = yield from self._doubt(position, data, limit - position)
                if problem:
                    return Step(Verdict.BAD, position, reason=problem)
            if scanned.size > limit - position or size >= min(piece, within):
                return Step(Verdict.PARTIAL, position)
            size = min(piece, within)

    def _doubt(
        self, position: int, data: bytes, within: int
    ) -> Generator[tuple[int, int], bytes, str]:
        """Run `doubt_lengths` on the record at `position`, as far as it is within the limit."""
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
            while end > limit:  # by the few bytes that were read beyond it
                end = entries.pop().physical_offset
            return Step(Verdict.GOOD if entries else Verdict.PARTIAL, end, entries)
        if scanned.stop is Stop.BLANK:
            if segment_end > limit:
                return Step(Verdict.PARTIAL, scanned.end)
            return Step(Verdict.BLANK, segment_end)
        return Step(Verdict.BAD, scanned.end, reason=scanned.reason)
