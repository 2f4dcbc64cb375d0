"""Dispatch of the log to consume queues and index, in the log's order (store.md 7).

The append passes entries through a bounded ring, so that nothing is parsed twice; when the ring
overflows, on a slave, and after a restart, the log is re-read instead. Both ways give equal bytes.
Dispatch never skips bytes that it cannot read (T8): it stops and logs that.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import trio

from rocketbed.node.store.cursor import READ_SIZE, LogCursor, Verdict
from rocketbed.node.store.entry import Entry
from rocketbed.node.store.errors import CorruptRecord
from rocketbed.node.store.parts import StoreParts
from rocketbed.node.store.queues import NO_LIMIT

SLICE = 2048
"""Entries that are dispatched before the loop gets its turn (about 5 ms)."""
WATERMARK = 0.8
"""Share of the ring above which appends dispatch themselves before they answer (EQueue)."""
_RETRY_S = 1.0
_WRITES = 512
_MAKES = 16
"""Queues that are written before the loop gets its turn (about 1 ms), and the number of those that
may get a new file: creating one takes as long as hundreds of writes."""
_WRITES_A_ROUND = 16
"""Of more queues, those that wait longest are written, and the units of all others wait in memory:
with a write for each unit a message to 8,000 queues cost twice as much as one to 8."""

BATCH_S = 0.001
"""Distance of rounds under load: each costs a write for every queue it touches. After a pause the
first record is dispatched at once (RocketMQ always waits 1 ms)."""
BATCH = 512
"""Number of entries that starts a round at once."""

Arrival = Callable[[list[Entry]], None]


class Dispatcher:
    """Moves `parts.dispatched` towards the end of the log, or its flushed end in sync mode, and
    never beyond the confirmed end.

    Invariant: the ring, when not lost, holds exactly the records from `dispatched` to `written`.
    """

    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts
        self._ring: deque[Entry] = deque()
        self._lost = True
        self.on_arrival: list[Arrival] = []
        """Called with the records of each round, once they are dispatched."""
        self.last: Entry | None = None
        """The record that ends at `dispatched` (before a blank one), once there is one."""
        self._cursor = LogCursor(parts.log.segments, parts.scanner)
        self._unfinished: list[Entry] = []
        self.stuck: str = ""
        """Reason why dispatch cannot continue, empty if it can."""
        self._lacks_room = False
        """True if the reason is that queues or index cannot be written."""
        self._wake = trio.Event()
        parts.log.on_appended = self.push
        parts.log.on_begun = lambda offset: self.rewind(offset, None)
        self._end = parts.log.flushed if parts.config.sync_flush else parts.log.written
        for limit in (self._end, parts.confirmed):
            if limit is not None:
                limit.subscribe(lambda _: self._wake.set())

    @property
    def _limit(self) -> int:
        """End of what may be dispatched."""
        confirmed, end = self._parts.confirmed, self._end.value
        return end if confirmed is None else min(end, confirmed.value)

    @property
    def lag(self) -> int:
        """Bytes that may be dispatched and are not yet."""
        return max(self._limit - self._parts.dispatched.value, 0)

    @property
    def settled(self) -> bool:
        """True if queues and index hold exactly the records below `dispatched`."""
        return not self._unfinished

    @property
    def backlog(self) -> int:
        return len(self._ring)

    @property
    def overloaded(self) -> bool:
        """True if the ring is above its watermark: puts should be slowed down or refused."""
        if self._lost:
            return self.lag > READ_SIZE
        return len(self._ring) > WATERMARK * self._parts.config.dispatch_ring

    def push(self, entries: list[Entry]) -> None:
        """Take the entries of a commit. Above the watermark dispatch some at once."""
        if self._lost:
            # The ring may only begin again at the end of the dispatched part; anywhere else the
            # records in between would be skipped.
            if self._parts.dispatched.value != entries[0].physical_offset:
                return
            self._lost = False
        ring = self._ring
        ring.extend(entries)
        if len(ring) > WATERMARK * self._parts.config.dispatch_ring:
            if not self.stuck:
                self.step()
            if len(ring) > self._parts.config.dispatch_ring:
                ring.clear()
                self._lost = True
                self._parts.world.mark("store.ring_lost")

    async def run(self) -> None:
        last_round = -1.0
        while True:
            if len(self._ring) < BATCH and not self._lost:
                await trio.sleep_until(last_round + BATCH_S)
            if self._lacks_room:
                wrote = self._write(_WRITES, makes=_MAKES)
                # With room again, thousands of queues may wait.
                await trio.sleep(0 if wrote else _RETRY_S)
            elif self.step():
                last_round = trio.current_time()
                await trio.lowlevel.checkpoint()
            elif self.stuck:
                await trio.sleep(_RETRY_S)
            elif self._parts.queues.waiting:
                self._write(_WRITES, makes=_MAKES)
                await trio.lowlevel.checkpoint()
            else:
                await self._wake.wait()
                self._wake = trio.Event()

    def step(self) -> int:
        """Dispatch up to `SLICE` entries; return their number. Never raises a disk error."""
        if self._unfinished:
            return self._finish()
        if self._lacks_room and not self._write():
            return 0
        limit = self._limit
        dispatched = self._parts.dispatched.value
        if dispatched >= limit:
            return 0
        if self._ring and not self._lost:
            entries = self._take(limit)
        else:
            try:
                entries = self._read(dispatched, limit)
            except CorruptRecord as exc:
                return self._stop(str(exc))
            except OSError as exc:
                return self._stop(f"the log cannot be read at {dispatched}: {exc.strerror}")
        if not entries:
            return 0
        self._parts.queues.put_all(entries)
        self._parts.index.put_all(entries)
        # From here on these entries are only written, never put again: a second put after a full
        # disk would index their keys twice.
        self._unfinished = entries
        return self._finish()

    def _finish(self) -> int:
        """Mark the put entries as dispatched, unless the disk is full, which is retried later."""
        entries = self._unfinished
        # A full disk must not make the waiting units grow.
        ring = self._parts.config.dispatch_ring
        most = NO_LIMIT if self._lacks_room else min(_WRITES_A_ROUND, max(ring // 4, 1))
        if not self._write(most, keep=ring):
            return 0
        self._unfinished = []
        self.stuck = ""
        self.last = entries[-1]
        self._parts.dispatched.advance(self.last.physical_offset + self.last.size)
        for arrival in self.on_arrival:
            arrival(entries)
        return len(entries)

    def _write(self, most: int = NO_LIMIT, *, keep: int = NO_LIMIT, makes: int = NO_LIMIT) -> bool:
        """Write queues (see `Queues.write_pending`) and index; False on a full disk, which stops
        dispatch until all of it can be written."""
        try:
            self._parts.queues.write_pending(most=most, keep=keep, makes=makes)
            self._parts.index.drain()
        except OSError as exc:
            where = f"{exc.filename}: " if exc.filename else ""
            self._lacks_room = True
            self._stop(f"consume queues or index cannot be written: {where}{exc.strerror}")
            return False
        if self._lacks_room and not self._parts.queues.waiting:
            self._lacks_room, self.stuck = False, ""
        return True

    async def write_queues(self) -> bool:
        """Write the units dispatched so far; False on a full disk, which stops dispatch."""
        queues = self._parts.queues
        remaining = queues.waiting
        while remaining > 0 and (before := queues.waiting):
            if not self._write(_WRITES, makes=_MAKES):
                return False
            remaining -= before - queues.waiting
            await trio.lowlevel.checkpoint()
        return True

    def put(self, entries: list[Entry]) -> None:
        """Put and write entries in the order of the log (recovery). Raises `OSError`."""
        self._parts.queues.put_all(entries)
        self._parts.index.put_all(entries)
        self._parts.queues.write_pending()
        self._parts.index.drain()
        self.last = entries[-1]

    def _stop(self, reason: str) -> int:
        if reason != self.stuck:
            self.stuck = reason
            self._parts.world.log.error(
                "store.dispatch_stopped", offset=self._parts.dispatched.value, reason=reason
            )
        return 0

    def _take(self, limit: int) -> list[Entry]:
        ring = self._ring
        if ring[-1].physical_offset + ring[-1].size <= limit and len(ring) <= SLICE:
            entries = list(ring)
            ring.clear()
            return entries
        entries = []
        while ring and len(entries) < SLICE:
            if ring[0].physical_offset + ring[0].size > limit:
                break
            entries.append(ring.popleft())
        return entries

    def _read(self, offset: int, limit: int) -> list[Entry]:
        """Return entries from the log itself. Raises `CorruptRecord`."""
        step = self._cursor.step(offset, limit)
        while step.verdict is Verdict.BLANK:
            self._parts.dispatched.advance(step.end)
            step = self._cursor.step(step.end, limit)
        # A slave's log may end inside a record, a master's does not.
        if step.verdict is Verdict.PARTIAL and not self._parts.config.is_slave:
            step = replace(step, verdict=Verdict.BAD, reason="it goes on behind the end of the log")
        if step.verdict is Verdict.BAD:
            raise CorruptRecord(
                f"no record at offset {step.end}: {step.reason}; run `rocketbed store fsck`",
                offset=step.end,
            )
        return step.entries[:SLICE]

    def rewind(self, offset: int, last: Entry | None) -> None:
        """Continue at `offset` after a cut; `last` is the record before it."""
        self.last = last
        self._parts.dispatched.reset(offset)
        self.restart()

    def restart(self) -> None:
        """Clear the ring and re-read from `dispatched` (after recovery or a cut)."""
        self._ring.clear()
        self._lost = self._parts.dispatched.value != self._parts.log.written.value
        self.stuck = ""
        self._wake.set()
