"""Reading again, slowly, what was durable before this start (store.md 8.6, Scan).

A boot looks only at what lies behind the durable mark; a bad sector below it would stay unseen
until somebody pulls that message. So the rest is read once after each start, at a bounded rate and
beside the loop. What is bad is reported, never changed.
"""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

import trio

from rocketbed.node.store.batch_queue import BatchConsumeQueue
from rocketbed.node.store.consumequeue import ConsumeQueue
from rocketbed.node.store.cursor import LogCursor, Step, Verdict
from rocketbed.node.store.damage import Damage
from rocketbed.node.store.entry import ONE_UNIT, Entry
from rocketbed.node.store.index_check import IndexCheck
from rocketbed.node.store.parts import StoreParts
from rocketbed.node.store.scan import crc_scanner
from rocketbed.node.store.tail import next_good

NOTE_EVERY = 256 << 20
"""Bytes between two notes of the position, so that the next start goes on there."""


class Scrubber:
    """Checks the log from its beginning to where the durable mark was at the start."""

    def __init__(self, parts: StoreParts, note: Callable[..., Awaitable[None]]) -> None:
        """`note` puts fields of the mark on record."""
        self._parts = parts
        self._note = note
        self._scanner = crc_scanner(parts.config)
        self._cursor = LogCursor(parts.log.segments, self._scanner)
        self._index = IndexCheck(parts.index)
        self.damage = parts.damaged.found
        """What was found so far."""
        self.index_damage = ""
        """What is wrong in the index; it is built again at the next start."""
        self.mended = 0
        """Queue units that were not what the log says; they are now."""
        self.unqueued = 0
        """Good records that stand in no queue, though nothing says that their topic was deleted."""
        self.position = 0
        """How far it has come."""
        self.end = 0
        """Where it ends; a cut of the log lowers it."""
        self.finished = trio.Event()

    async def run(self, end: int) -> None:
        """Check up to `end`, from where an earlier start came to, then return."""
        self.end = end
        rate = self._parts.config.scrub_rate
        mark = self._parts.marks.mark
        self._scanner.index_tags = self._parts.scanner.index_tags
        self.position = noted = max(self._parts.log.min_offset, min(mark.scrubbed, end))
        if rate:
            await self._look_again(mark.damage)
        while rate and self.position < self.end:
            before, found = self.position, len(self.damage)
            await self._step()
            if len(self.damage) > found or self.position - noted >= NOTE_EVERY:
                noted = self.position
                await self._save(self.position)
            await trio.sleep(max(self.position - before, 0) / rate)
        if rate:
            await self._compare_index([], to_the_end=True)
        now = self._parts.marks.mark
        if rate and (now.scrubbed or len(now.damage) != len(self.damage)):
            await self._save(0)
        self.finished.set()

    async def _look_again(self, damage: Iterable[tuple[int, int, str]]) -> None:
        """What an earlier start found is damage still, unless it was healed or is gone."""
        for start, end, reason in damage:
            if not self._parts.log.min_offset <= start < self.end:
                continue
            try:
                step = await self._cursor.step_beside(self._parts.world, start, self.end)
            except OSError:
                step = Step(Verdict.BAD, start)
            is_readable = step.verdict is not Verdict.BAD
            if not is_readable or any(map(self._misplaced, step.entries[:1])):
                self.damage.append(Damage(start, end, reason, is_readable))

    async def _save(self, position: int) -> None:
        """Only a hint for the next start: a disk that does not take it is no trouble here."""
        damage = tuple((found.start, found.end, found.reason) for found in self.damage)
        with suppress(OSError):
            await self._note(scrubbed=position, damage=damage)

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
                self._compare(step.entries)
                await self._compare_index(step.entries)
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

    def _compare(self, entries: list[Entry]) -> None:
        """Compare queue units with the records they are made of; a unit that differs is mended.

        The log is the truth: units have no checksum, and a wrong one hides a good message.
        """
        parts, deleted = self._parts, self._parts.marks.mark.deleted
        for entry in entries:
            if entry.units != ONE_UNIT or entry.physical_offset < deleted.get(entry.topic, -1):
                continue
            queue = parts.queues.find(entry.topic, entry.queue_id)
            if isinstance(queue, BatchConsumeQueue):
                continue
            number = entry.queue_offset
            if queue is None:
                self._say_unqueued(entry)
                continue
            unit = (entry.physical_offset, entry.size, entry.tag_code)
            if (found := queue.unit_at(number)) == unit:
                continue
            if problem := self._misplaced(entry):
                end = entry.physical_offset + entry.size
                self._add(entry.physical_offset, end, problem, is_readable=True)
                continue
            if 0 <= number < queue.first_unit:
                continue
            if not 0 <= number < queue.stored_units:
                self._say_unqueued(entry)
                continue
            if found is not None and self._is_anothers(found[0], entry):
                self._say_unqueued(entry)
                continue
            parts.queues.mend(queue, number, unit)
            self.mended += 1
            parts.world.log.warning(
                "store.unit_mended", topic=entry.topic, queue=entry.queue_id, number=number
            )

    async def _compare_index(self, entries: list[Entry], *, to_the_end: bool = False) -> None:
        """Compare index entries with the records; the first that differs is reported."""
        parts = self._parts
        if not parts.config.index_enabled or self.index_damage:
            return
        kept = filter(self._is_indexed, entries)
        try:
            problem = next(filter(None, map(self._index.compare, kept)), "")
            problem = problem or await self._index.check_slots(to_the_end=to_the_end)
        except OSError as exc:
            problem = f"the disk does not give it: {exc.strerror}"
        if problem:
            self.index_damage = problem
            parts.world.log.error(
                "store.index_damage", reason=problem, mend="built again at the next start"
            )
            with suppress(OSError):
                await self._note(index_damage=problem)

    def _is_indexed(self, entry: Entry) -> bool:
        """Not what expired, belongs to a deleted topic, or was said to be in no queue."""
        if entry.physical_offset < self._parts.log.min_offset:
            return False
        deleted = self._parts.marks.mark.deleted.get(entry.topic, -1)
        known = self._parts.queues.find(entry.topic, entry.queue_id) is not None
        return known and entry.physical_offset >= deleted

    def _misplaced(self, entry: Entry) -> str:
        """What is wrong with the queue offset of a record that stands at another one's place."""
        queue = self._parts.queues.find(entry.topic, entry.queue_id)
        if not isinstance(queue, ConsumeQueue):
            return ""
        slot = queue.slot_of(entry.physical_offset)
        if slot in (None, entry.queue_offset):
            return ""
        return f"it says queue offset {entry.queue_offset}, and is served as {slot}"

    def _is_anothers(self, offset: int, entry: Entry) -> bool:
        """Whether the slot of a record was taken by an earlier one (T1, T2)."""
        if offset == entry.physical_offset:
            return False
        other = next(iter(self._cursor.one(offset).entries), None)
        return other is not None and other[:3] == entry[:3]

    def _say_unqueued(self, entry: Entry) -> None:
        self.unqueued += 1
        self._parts.world.log.warning(
            "store.unqueued_record", offset=entry.physical_offset, topic=entry.topic
        )

    def _add(self, start: int, end: int, reason: str, *, is_readable: bool = False) -> None:
        if all(found.start != start for found in self.damage):
            self.damage.append(Damage(start, end, reason, is_readable))
        self._parts.world.log.error(
            "store.damage", offset=start, bytes=end - start, reason=reason, mend="from a replica"
        )
        self.position = end
