"""Slow re-reading of what was durable before this start (store.md 8.6, Scan).

A boot reads only what follows the durable mark; a bad sector below it would stay unnoticed until a
client pulls that message. So everything below is read once after each start, at a bounded rate and
in a thread. Damage is reported, never changed.
"""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

import trio

from rocketbed.node.store.batch_check import BatchCheck
from rocketbed.node.store.batch_queue import BatchConsumeQueue, batch_unit, is_unit_of
from rocketbed.node.store.cursor import READ_SIZE, LogCursor, Verdict
from rocketbed.node.store.cut import boundary_below
from rocketbed.node.store.damage import Damage
from rocketbed.node.store.entry import NO_UNIT, ONE_UNIT, Entry
from rocketbed.node.store.files import NO_DESCRIPTOR
from rocketbed.node.store.index_check import IndexCheck
from rocketbed.node.store.parts import StoreParts
from rocketbed.node.store.queues import AnyQueue
from rocketbed.node.store.scan import crc_scanner
from rocketbed.node.store.tail import next_good
from rocketbed.wire.ha_native import COMPARED_MAX

PAUSE_S = 1.0
NOTE_EVERY = 256 << 20
"""Bytes between two records of the position, at which the next start continues."""
SAVE_S = 1.0
"""Least time between two records of the damage: each writes the durable mark, with an fsync."""
PIECE = 64
"""Records that are compared before other tasks run, 2 ms: a step holds up to 8,000, and if each is
of another queue, each opens a file."""
READ_MIN = 1 << 14
"""Bytes read at once right after damage: there may be more of it close by."""


class Scrubber:
    """Checks the log from its beginning to the durable mark of the start."""

    def __init__(self, parts: StoreParts, note: Callable[..., Awaitable[None]]) -> None:
        """`note` records fields of the mark."""
        self._parts = parts
        self._note = note
        self._scanner = crc_scanner(parts.config)
        self._cursor = LogCursor(parts.log.segments, self._scanner)
        self._index = IndexCheck(parts.index)
        self._batches = BatchCheck(parts.log, parts.damaged, self._cursor)
        self.index_damage = ""
        """Damage in the index; it is rebuilt at the next start."""
        self.healed = 0
        """Queue units that differed from the log, and were corrected."""
        self.unqueued: dict[str, list[int]] = {}
        """Topics with good records that are in no queue, though no deletion is recorded: physical
        offset of the first, and their number."""
        self.position = 0
        """Progress of the scrub."""
        self.end = 0
        """End of the scrub; a cut of the log lowers it."""
        self.finished = trio.Event()
        self._recorded = 0
        """Position in the last record."""
        self._just_healed: dict[AnyQueue, list[int]] = {}
        """Numbers of units corrected since the last log line about them."""
        self._recorded_s = -SAVE_S
        """Time of the last record."""

    @property
    def damage(self) -> list[Damage]:
        """Damage found so far."""
        return self._parts.damaged.ranges

    async def run(self, end: int) -> None:
        """Check up to `end`, from the progress of an earlier start, then return. From the beginning
        if the minimum of a batch queue is unknown: only a scan of everything knows its records."""
        self.end = end
        rate = self._parts.config.scrub_rate
        mark = self._parts.marks.mark
        self._scanner.index_tags = self._parts.scanner.index_tags
        is_known = all(queue.knows_min for queue in self._parts.queues.batch.values())
        begin = min(mark.scrubbed, end) if is_known else 0
        self.position = self._recorded = max(self._parts.log.min_offset, begin)
        self._batches.begun_at = self.position
        if rate:
            await self._recheck(mark.damage)
        while rate and self.position < self.end:
            before = self._cursor.bytes_read
            await self._step()
            if self._is_worth_a_note():
                await self._save(self.position)
            # By the bytes that were read, not by the progress: damage is read several times.
            await trio.sleep((self._cursor.bytes_read - before) / rate)
        if rate:
            await self._compare_index([], to_the_end=True)
        now = self._parts.marks.mark
        if rate and (now.scrubbed or now.damage != self._damage_rows()):
            await self._save(0)
        self.finished.set()

    async def check_at(self, offset: int) -> None:
        """Check the records at an offset that a replica reports as bad, and after it as far as
        replicas compare; the first bad one is recorded as damage."""
        parts = self._parts
        end = parts.log.written.value
        if not parts.log.min_offset <= offset < end or parts.damaged.hit(offset, COMPARED_MAX):
            return
        try:
            before = await boundary_below(parts, offset)
            start = parts.log.segments.start_of(offset) if before is None else before.end
            step = await self._cursor.step_in_thread(parts.world, start, end)
            while (
                step.verdict in (Verdict.GOOD, Verdict.BLANK) and step.end < offset + COMPARED_MAX
            ):
                step = await self._cursor.step_in_thread(parts.world, step.end, end)
            if step.verdict is Verdict.BAD and step.end < offset + COMPARED_MAX:
                good = await next_good(parts.world, self._cursor, step.end + 1, end)
                self._report(step.end, good if good >= 0 else end, step.reason)
        except OSError as exc:
            parts.world.log.warning("store.doubt_not_settled", offset=offset, error=str(exc))

    def _is_worth_a_note(self) -> bool:
        if self.position - self._recorded >= NOTE_EVERY:
            return True
        is_late = trio.current_time() - self._recorded_s >= SAVE_S
        return is_late and self._parts.marks.mark.damage != self._damage_rows()

    def _damage_rows(self) -> tuple[tuple[int, int, str], ...]:
        return tuple((damage.start, damage.end, damage.reason) for damage in self.damage)

    async def _recheck(self, damage: Iterable[tuple[int, int, str]]) -> None:
        """Check the damage of an earlier start again; it may have been healed or have expired."""
        for start, end, reason in damage:
            if not self._parts.log.min_offset <= start < self.end:
                continue
            first_bad = await self._first_bad(start, min(end, self.end))
            if first_bad is not None:
                self._parts.damaged.add(Damage(first_bad[0], end, reason, is_readable=first_bad[1]))

    async def _first_bad(self, position: int, end: int) -> tuple[int, bool] | None:
        """Return where damage begins below `end`, if it does, and True if a record can be read
        there.

        A range may be several joined ones, of which the first was healed.
        """
        while position < end:
            try:
                step = await self._cursor.step_in_thread(self._parts.world, position, self.end)
                entries = [entry for entry in step.entries if entry.physical_offset < end]
                wrong = next(filter(self._misplaced, entries), None)
            except OSError:
                return position, False
            if step.verdict is Verdict.BAD:
                return position, False
            if wrong is not None:
                return wrong.physical_offset, True
            if step.end <= position:
                return None
            position = step.end
        return None

    async def _save(self, position: int) -> None:
        """Record the progress. Only a hint for the next start, so a disk that fails to take it is
        ignored."""
        self._recorded, self._recorded_s = position, trio.current_time()
        with suppress(OSError):
            await self._note(scrubbed=position, damage=self._damage_rows())

    async def _step(self) -> None:
        parts = self._parts
        segments = parts.log.segments
        position = self.position = max(self.position, parts.log.min_offset)
        if not segments.has(position):
            self.position = self.end
            return
        try:
            step = await self._cursor.step_in_thread(parts.world, position, self.end)
            if step.verdict is not Verdict.BAD or step.end >= self.end:
                for at in range(0, len(step.entries), PIECE):
                    await trio.lowlevel.checkpoint()
                    # Without records that a cut removed meanwhile; after a cut nothing is left to
                    # check.
                    piece = step.entries[at : at + PIECE]
                    remaining = [entry for entry in piece if entry.physical_offset < self.end]
                    self._compare(remaining)
                    await self._compare_index(remaining)
                self._cursor.read_size = min(2 * self._cursor.read_size, READ_SIZE)
                beyond = step.verdict in (Verdict.PARTIAL, Verdict.END)
                self.position = self.end if beyond else step.end
                return
            good = await next_good(parts.world, self._cursor, step.end + 1, self.end)
            self._add(step.end, good if good >= 0 else self.end, step.reason)
        except OSError as exc:
            if not segments.has(position):
                return  # retention removed it meanwhile
            if exc.errno in NO_DESCRIPTOR:
                # says nothing about the disk; the same position is tried again
                await trio.sleep(PAUSE_S)
                return
            # Not searched for the next record: a disk may take seconds for each such sector.
            end = min(segments.start_of(position) + segments.size, self.end)
            self._add(position, end, f"the disk does not give it: {exc.strerror}")

    def _compare(self, entries: list[Entry]) -> None:
        """Compare queue units with their records; a unit that differs is corrected.

        The log is the truth: units have no checksum, and a wrong one hides a good message.
        """
        deleted = self._parts.marks.mark.deleted
        for entry in entries:
            if entry.topic in self._parts.queues.remaking:
                continue
            if not entry.topic or entry.queue_id < 0:  # bit rot: no checksum covers them
                self._report_unqueued(entry)
                continue
            if entry.physical_offset < deleted.get(entry.topic, -1):
                continue
            try:
                self._compare_unit(entry)
            except OSError as exc:
                if exc.errno in NO_DESCRIPTOR:
                    raise
                self._report_unqueued(
                    entry
                )  # the record is good: it is its queue that cannot be read
        self._report_healed()

    def _compare_unit(self, entry: Entry) -> None:
        if entry.units == NO_UNIT:
            self._report_misplaced(entry)
            return
        queue = self._parts.queues.find(entry.topic, entry.queue_id)
        if queue is None:
            self._report_unqueued(entry)
            return
        if isinstance(queue, BatchConsumeQueue):
            self._compare_batch(queue, entry)
            return
        if entry.units != ONE_UNIT:
            return
        number = entry.queue_offset
        unit = (entry.physical_offset, entry.size, entry.tag_code)
        if (present := queue.unit_at(number)) == unit:
            return
        if self._report_misplaced(entry):
            return
        if 0 <= number < queue.first_unit:
            return
        is_stored = 0 <= number < queue.end_unit
        if not is_stored or (present is not None and self._is_anothers(present[0], entry)):
            self._report_unqueued(entry)
            return
        self._heal(queue, number, unit)

    def _report_healed(self) -> None:
        """Log a line for each queue and piece of the log: thousands of units may be lost at
        once."""
        healed, self._just_healed = self._just_healed, {}
        for queue, numbers in healed.items():
            self._parts.world.log.warning(
                "store.unit_healed",
                topic=queue.topic,
                queue=queue.queue_id,
                number=numbers[0],
                count=len(numbers),
            )

    def _compare_batch(self, queue: BatchConsumeQueue, entry: Entry) -> None:
        number = self._batches.find(queue, entry)
        if number is not None and is_unit_of(queue.unit_at(number), entry):
            return
        if self._report_misplaced(entry):
            return
        if number is None:
            self._report_unqueued(entry)
        else:
            self._heal(queue, number, batch_unit(entry))

    def _heal(self, queue: AnyQueue, number: int, unit: tuple[int, ...]) -> None:
        parts = self._parts
        parts.queues.heal(queue, number, unit, parts.log.min_offset)
        self.healed += 1
        self._just_healed.setdefault(queue, []).append(number)

    async def _compare_index(self, entries: list[Entry], *, to_the_end: bool = False) -> None:
        """Compare index entries with the records; the first that differs is reported."""
        parts = self._parts
        if not parts.config.index_enabled or self.index_damage:
            return
        indexed = filter(self._is_indexed, entries)
        try:
            problem = next(filter(None, map(self._index.compare, indexed)), "")
            problem = problem or await self._index.check_slots(to_the_end=to_the_end)
        except OSError as exc:
            if exc.errno in NO_DESCRIPTOR:  # the next start compares missed records
                self._index = IndexCheck(parts.index)
                return
            problem = f"the disk does not give it: {exc.strerror}"
        if problem:
            self.index_damage = problem
            parts.world.log.error(
                "store.index_damage", reason=problem, repair="built again at the next start"
            )
            with suppress(OSError):
                await self._note(index_damage=problem)

    def _is_indexed(self, entry: Entry) -> bool:
        """True unless the record expired, belongs to a deleted topic, or its queue does not
        exist."""
        if entry.physical_offset < self._parts.log.min_offset:
            return False
        deleted = self._parts.marks.mark.deleted.get(entry.topic, -1)
        has_queue = self._parts.queues.find(entry.topic, entry.queue_id) is not None
        return has_queue and entry.physical_offset >= deleted

    def _misplaced(self, entry: Entry) -> str:
        """Return what is wrong with a record that is at another position of its queue than it
        says."""
        queue = self._parts.queues.find(entry.topic, entry.queue_id)
        claimed, count = entry.queue_offset, abs(entry.units)
        if isinstance(queue, BatchConsumeQueue):
            slot, served = queue.slot_of(entry) or (None, count)
        else:
            slot = None if queue is None else queue.slot_of(entry.physical_offset)
            served = count or ONE_UNIT
        if slot is None or (slot, served) == (claimed, count):
            return ""
        if slot == claimed:
            return f"it says that it holds {count} messages, and is served as {served}"
        return f"it says queue offset {claimed}, and is served as {slot}"

    def _report_misplaced(self, entry: Entry) -> bool:
        problem = self._misplaced(entry)
        if problem:
            start = entry.physical_offset
            self._add(start, start + entry.size, problem, is_readable=True)
        return bool(problem)

    def _is_anothers(self, offset: int, entry: Entry) -> bool:
        """True if the slot of a record was taken by an earlier one (T1, T2)."""
        if offset == entry.physical_offset:
            return False
        holder = next(iter(self._cursor.record_at(offset).entries), None)
        return holder is not None and holder[:3] == entry[:3]

    def _report_unqueued(self, entry: Entry) -> None:
        totals = self.unqueued.setdefault(entry.topic, [entry.physical_offset, 0])
        totals[1] += 1
        self._parts.world.log.warning(
            "store.unqueued_record", offset=entry.physical_offset, topic=entry.topic
        )

    def _add(self, start: int, end: int, reason: str, *, is_readable: bool = False) -> None:
        self._report(start, end, reason, is_readable=is_readable)
        self._cursor.read_size = READ_MIN
        self.position = end

    def _report(self, start: int, end: int, reason: str, *, is_readable: bool = False) -> None:
        self._parts.damaged.add(Damage(start, end, reason, is_readable))
        self._parts.world.log.error(
            "store.damage", offset=start, bytes=end - start, reason=reason, repair="from a replica"
        )
