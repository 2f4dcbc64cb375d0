"""Reading again, slowly, what was durable before this start (store.md 8.6, Scan).

A boot looks only at what lies behind the durable mark; a bad sector below it would stay unseen
until somebody pulls that message. So the rest is read once after each start, at a bounded rate and
beside the loop. What is bad is reported, never changed.
"""

from dataclasses import dataclass

import trio

from rocketbed.node.store.parts import StoreParts
from rocketbed.node.store.scan import RecordScanner, Scanned, Stop, parse_delay_levels
from rocketbed.node.store.tail import look_behind

STEP = 1 << 20
"""Bytes read and checked at a time (about 4 ms of the loop)."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A stretch of the log without a readable record. Physical offsets."""

    start: int
    end: int
    """Where the next good record begins, where a segment that cannot be read ends, or where the
    scrub ended."""
    reason: str


class Scrubber:
    """Checks the log from its beginning to where the durable mark was at the start."""

    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts
        self._scanner = RecordScanner(
            check_crc=True, delays_ms=parse_delay_levels(parts.config.delay_levels)
        )
        self.damage: list[Damage] = []
        """What was found so far."""
        self.position = 0
        """How far it has come."""
        self.end = 0
        """Where it ends; a cut of the log lowers it."""
        self.finished = trio.Event()

    async def run(self, end: int) -> None:
        """Check up to `end`, then return."""
        self.end = end
        rate = self._parts.config.scrub_rate
        self.position = self._parts.log.min_offset
        while rate and self.position < self.end:
            before = self.position
            await self._step()
            await trio.sleep(max(self.position - before, 0) / rate)
        self.finished.set()

    async def _step(self) -> None:
        segments = self._parts.log.segments
        position = self.position = max(self.position, self._parts.log.min_offset)
        if not segments.has(position):
            self.position = self.end
            return
        segment_end = segments.start_of(position) + segments.size
        try:
            scanned = await self._scan(position, STEP)
            if scanned.stop is Stop.MORE and scanned.end == position:
                scanned = await self._scan(position, self._parts.log.record_max + 8)
        except OSError as exc:
            # Not searched for the next record: a disk may take seconds for each such sector.
            reason = f"the disk does not give it: {exc.strerror}"
            self._add(position, min(segment_end, self.end), reason)
            return
        if scanned.stop is Stop.BLANK:
            self.position = segment_end
        elif scanned.stop is Stop.BAD and scanned.end < self.end:
            self._report(scanned.end, self.end, scanned.reason)
        else:
            self.position = scanned.end

    async def _scan(self, position: int, size: int) -> Scanned:
        segments = self._parts.log.segments
        start = segments.start_of(position)
        size = min(size, start + segments.size - position)
        file = segments.pin(start)
        try:
            data = await self._parts.world.offload(file.read_at, position - start, size)
        finally:
            segments.unpin(start)
        return self._scanner.scan(data, position, segment_end=start + segments.size)

    def _report(self, start: int, end: int, reason: str) -> None:
        try:
            good = look_behind(self._parts, start, first_only=True).first_good
        except OSError:
            segments = self._parts.log.segments
            good = segments.start_of(start) + segments.size
        self._add(start, good if 0 <= good < end else end, reason)

    def _add(self, start: int, end: int, reason: str) -> None:
        self.damage.append(Damage(start, end, reason))
        self._parts.world.log.error(
            "store.damage", offset=start, bytes=end - start, reason=reason, mend="from a replica"
        )
        self.position = end
