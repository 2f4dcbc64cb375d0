"""Reading again, slowly, what was durable before this start (store.md 8.6, Scan).

A boot looks only at what lies behind the durable mark; a bad sector below it would stay unseen
until somebody pulls that message. So the rest is read once after each start, at a bounded rate and
beside the loop. What is bad is reported, never changed.
"""

from dataclasses import dataclass

import trio

from rocketbed.node.store.cursor import LogCursor, Verdict
from rocketbed.node.store.parts import StoreParts
from rocketbed.node.store.scan import crc_scanner
from rocketbed.node.store.tail import next_good


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
        self._cursor = LogCursor(parts.log.segments, crc_scanner(parts.config))
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
        parts = self._parts
        segments = parts.log.segments
        position = self.position = max(self.position, parts.log.min_offset)
        if not segments.has(position):
            self.position = self.end
            return
        try:
            step = await self._cursor.step_beside(parts.world, position, self.end)
            if step.verdict is not Verdict.BAD or step.end >= self.end:
                # A cut on the way leaves a limit within a record: nothing of it is left to check.
                beyond = step.verdict in (Verdict.PARTIAL, Verdict.END)
                self.position = self.end if beyond else step.end
                return
            good = await next_good(parts, self._cursor, step.end + 1, self.end)
            self._add(step.end, good if good >= 0 else self.end, step.reason)
        except OSError as exc:
            if not segments.has(position):
                return  # retention removed it meanwhile
            # Not searched for the next record: a disk may take seconds for each such sector.
            end = min(segments.start_of(position) + segments.size, self.end)
            self._add(position, end, f"the disk does not give it: {exc.strerror}")

    def _add(self, start: int, end: int, reason: str) -> None:
        self.damage.append(Damage(start, end, reason))
        self._parts.world.log.error(
            "store.damage", offset=start, bytes=end - start, reason=reason, mend="from a replica"
        )
        self.position = end
