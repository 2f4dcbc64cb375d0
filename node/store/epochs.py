"""The log of a replica in a group with failover: epochs, each begun by a marker record in the log.

A marker is an ordinary message of the topic `rmq_sys_rb_epoch`, so that RocketMQ and its slaves
skip it (replication.md 7.3). The interface is `replication.api.EpochLog`.
"""

from typing import Final

import orjson
import trio

from rocketbed.node.store.cursor import LogCursor, Verdict
from rocketbed.node.store.cut import boundary_below
from rocketbed.node.store.dispatch import Dispatcher
from rocketbed.node.store.entry import Entry
from rocketbed.node.store.errors import CorruptRecord, PutFailed, StoreError, StoreFailed
from rocketbed.node.store.flush import Flusher
from rocketbed.node.store.parts import StoreParts
from rocketbed.node.store.removal import Removal
from rocketbed.node.store.scan import crc_scanner
from rocketbed.replication.errors import NoRoom, RecordRefused
from rocketbed.replication.log_view import LogView
from rocketbed.replication.watermark import Watermark
from rocketbed.wire.errors import RemoteProtocolError
from rocketbed.wire.message import decode_message

EPOCH_TOPIC: Final = "rmq_sys_rb_epoch"
META_TOPIC: Final = "rmq_sys_rb_meta"
"""Topic of the changes of tables (`node.broker.table_log`)."""
PARSE_SIZE: Final = 64 * 1024
"""Bytes parsed at a time of a leader's data, which comes in pieces of about this size."""


class StoreEpochs(LogView):
    """Epochs of one log, for one role at a time."""

    def __init__(
        self, parts: StoreParts, flusher: Flusher, dispatcher: Dispatcher, removal: Removal
    ) -> None:
        super().__init__(parts.log, parts.log.written)
        self._parts = parts
        self.flushed: Watermark = parts.log.flushed
        self._flusher = flusher
        self._dispatcher = dispatcher
        self._removal = removal
        self._cursor = LogCursor(parts.log.segments, parts.scanner, read_size=PARSE_SIZE)
        self._strict = crc_scanner(parts.config)
        self._strict.doubts_ends = False  # here a record may end anywhere, and continue in a moment
        self._received = LogCursor(parts.log.segments, self._strict, read_size=PARSE_SIZE)
        self._whole: int | None = None
        """End of the last whole record of the leader's data; None while all of the log is ours, or
        was read by recovery, which leaves whole records only."""
        self.changes: list[tuple[int, int]] = []
        """Offset and size of the records of `META_TOPIC` that were in no queue yet when the newest
        epoch began here, in the log's order."""

    def append_raw(self, offset: int, data: bytes | memoryview) -> None:
        """Append data of a leader, and pass the records that are whole now to dispatch.

        Raises also `RecordRefused`: a leader's damage is not copied. It is cut off again before any
        leader is followed.
        """
        log = self._parts.log
        if self._whole is None or not log.segments.starts:
            self._whole = offset
        self._strict.index_tags = self._parts.scanner.index_tags
        log.append_raw(offset, data)
        step = self._received.step(self._whole, log.written.value)
        while step.verdict in (Verdict.GOOD, Verdict.BLANK):
            self._whole = step.end
            if step.entries:
                log.last_store_ms = max(log.last_store_ms, step.entries[-1].store_ms)
                self._dispatcher.push(step.entries)
            step = self._received.step(self._whole, log.written.value)
        if step.verdict is Verdict.BAD:
            raise RecordRefused(
                f"the leader sent no good record for offset {step.end}: {step.reason}; its log"
                " may be damaged there (`rocketbed store fsck`, `heal`)",
                offset=step.end,
            )

    @property
    def copied_from(self) -> str | None:
        followed = self._parts.marks.mark.followed
        return None if followed is None else followed.partition("#")[0]

    def whole_end(self) -> int:
        return self._log.written.value if self._whole is None else self._whole

    async def begin_epoch(self, number: int, leader: int) -> int:
        """Begin an epoch with its marker. Raises `NoRoom`, `StoreFailed`."""
        assert self.whole_end() == self._log.written.value, "half a record is cut off before"
        self._whole = None
        log = self._parts.log
        log.tail.next_queue_offsets = await self._next_offsets()
        run = log.begin()
        start, _ = run.add(
            EPOCH_TOPIC,
            0,
            orjson.dumps({"epoch": number, "leader": leader}),
            b"",
            flag=0,
            sys_flag=0,
            born_ms=run.now_ms,
            born_host=log.tail.store_host_bytes,
            is_limited=False,
        )
        try:
            log.commit(run)
        except PutFailed as exc:
            raise NoRoom(str(exc)) from exc
        await self._flusher.flush()
        return start

    async def _next_offsets(self) -> dict[tuple[str, int], int]:
        """Return the next offset of each queue, from dispatched and unconfirmed records."""
        self.changes = []
        entries = await self._undispatched()
        # Queues may have been destroyed, and more records dispatched, while the log was read.
        offsets, dispatched = self._parts.queues.next_offsets(), self._parts.dispatched.value
        for entry in entries:
            if entry.units and entry.physical_offset >= dispatched:
                key = entry.topic, entry.queue_id
                offsets[key] = entry.queue_offset + abs(entry.units)
            if entry.topic == META_TOPIC:
                self.changes.append((entry.physical_offset, entry.size))
        return offsets

    async def _undispatched(self) -> list[Entry]:
        entries: list[Entry] = []
        position, end = self._parts.dispatched.value, self.whole_end()
        step = self._cursor.step(position, end)
        while step.verdict in (Verdict.GOOD, Verdict.BLANK):
            entries += step.entries
            await trio.lowlevel.checkpoint()
            step = self._cursor.step(step.end, end)
        if step.verdict is Verdict.BAD:
            raise CorruptRecord(f"no record at {step.end}: {step.reason}", offset=step.end)
        return entries

    async def filler_before(self, below: int) -> int:
        boundary = await boundary_below(self._parts, below)
        if boundary is None or boundary.end != below:  # there is damage, which is not a filler
            return below
        return boundary.last.physical_offset + boundary.last.size

    async def epochs(self, since: int) -> list[tuple[int, int]]:
        """Return number and start of the epochs, from the queue of their topic and undispatched
        records. Raises `CorruptRecord`."""
        places: list[tuple[int, int]] = []
        queue = self._parts.queues.ordinary.get((EPOCH_TOPIC, 0))
        number = queue.min_offset if queue else 0
        while queue is not None and number < queue.max_offset:
            units = queue.units(number, queue.max_offset - number)
            if not units:
                break
            places += [(physical, size) for physical, size, _ in units if physical >= since]
            number += len(units)
        newest = places[-1][0] if places else since - 1
        places += [
            (entry.physical_offset, entry.size)
            for entry in await self._undispatched()
            if entry.topic == EPOCH_TOPIC and entry.physical_offset > newest
        ]
        return [(self._number_at(start, size), start) for start, size in places]

    def _number_at(self, start: int, size: int) -> int:
        try:
            number = orjson.loads(decode_message(self._log.read(start, size)).body)["epoch"]
        except (RemoteProtocolError, ValueError, KeyError, TypeError) as exc:
            raise CorruptRecord(
                f"the marker of an epoch at offset {start} cannot be read: {exc}", offset=start
            ) from exc
        if not isinstance(number, int):
            raise CorruptRecord(f"the marker at offset {start} has no number", offset=start)
        return number

    async def cut_to(self, offset: int) -> None:
        """Cut the log. Raises `NoRoom`, `StoreFailed`."""
        try:
            await self._removal.cut(offset)
        except StoreFailed:
            raise
        except StoreError as exc:
            raise NoRoom(str(exc)) from exc
        if self._whole is not None:
            self._whole = offset
