"""Delayed messages: they wait in `SCHEDULE_TOPIC_XXXX` until they are due (wire.md 4.7b, store.md
12.1).

That topic has a queue for each level, in which messages are in the order in which they are due. The
progress of each level is in `delayOffset.json`, which RocketMQ writes every ten seconds and relies
on alone. Here the log decides: it contains what was delivered. At its start a master searches the
log for the messages on both sides of the file's offset, so that neither a crash nor a table ahead
of the new master's log repeats or loses a message. The file is for RocketMQ's brokers, and for a
store without an index; it is never ahead of what is on disk.
"""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import trio

from rocketbed.node.broker.config_file import ConfigFile, ConfigFileError, SavedTable, TableLost
from rocketbed.node.broker.delivered import Delivered
from rocketbed.node.broker.topics import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    Topics,
)
from rocketbed.node.broker.waiting import add_again, is_deleted, target_of
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.node.store.config import parse_delay_levels
from rocketbed.node.store.errors import CorruptRecord, MessageRejected, PutFailed, StoreError
from rocketbed.node.store.run import Run
from rocketbed.node.store.store import MessageStore
from rocketbed.replication.watermark import Watermark
from rocketbed.wire.bodies import DelayOffsetTable
from rocketbed.wire.errors import RemoteProtocolError
from rocketbed.wire.message import (
    StoredMessage,
    decode_messages,
)
from rocketbed.world.api import World

ROUND: Final = 128
"""Most messages of a level that are put at once, and"""
ROUND_BYTES: Final = 1 << 20
"""most bytes of them, or a single message: producers wait meanwhile."""
LOOK_S: Final = 1.0
"""Longest pause, at most the shortest delay: new delayed messages are not announced, and the wall
clock may have been set meanwhile."""
RETRY_S: Final = 0.5
SAVE_S: Final = 1.0
STOP_S: Final = 5.0
"""Longest wait of a stop for the disk."""
QUEUES: Final = 4
"""Least number of queues of a topic that has to be created."""


@dataclass(slots=True)
class _Piece:
    """Messages of a level to deliver in one go."""

    after: int
    """Queue offset after the last of them."""
    units: list[tuple[int, int, int]] = field(default_factory=list)
    """Queue offset, log offset and size of each message."""
    expired: int = 0
    """Messages before `after` whose records no longer exist."""
    wait_s: float = LOOK_S
    """Time until there may be more."""


class _Arrivals:
    """Arrival times of a level's messages, on trio's clock, used when the wall clock lags behind
    the log: it was set back, or belongs to another machine. From then on no message waits longer
    than its delay."""

    def __init__(self) -> None:
        self._looks: list[tuple[int, float]] = []
        """End of the queue and time, both rising."""

    def note(self, end: int, now_s: float) -> None:
        """Record that the queue ends here now."""
        if not self._looks or self._looks[-1][0] < end:
            self._looks.append((end, now_s))

    def latest_arrival(self, offset: int) -> float | None:
        """Return the latest time at which a message can have arrived. Forgets earlier ones, which
        were delivered."""
        self._looks = [look for look in self._looks if look[0] > offset]
        return self._looks[0][1] if self._looks else None


class DelayOffsets:
    """`delayOffset.json`: by level, the queue offset of the next message to deliver."""

    def __init__(self, world: World, config: NodeConfig) -> None:
        self._world = world
        self._log_knows = config.store.index_enabled
        self._file = ConfigFile(world, config.config_dir, "delayOffset.json")
        self._saved = SavedTable(world, self._file, self._render)
        self.table = DelayOffsetTable()

    def load(self) -> None:
        """Read the file; its contents are in the log too, if that has an index. Raises
        `ConfigFileError`."""
        try:
            self.table = self.stored()
        except TableLost as exc:
            if not self._log_knows:
                raise
            self._world.log.error("delays.table_lost", reason=str(exc))

    def stored(self) -> DelayOffsetTable:
        """Return the file's table; a slave's is its master's table. Raises `ConfigFileError`."""
        return self._file.load(DelayOffsetTable.from_json) or DelayOffsetTable()

    async def save(self, offsets: dict[int, int], damaged: dict[int, list[int]]) -> None:
        """Make these durable. Raises `ConfigFileError`."""
        table = replace(self.table, offset_table=offsets, rb_damaged=damaged or None)
        if table != self.table:
            version = self.table.data_version.next(self._world.clock.wall_ms())
            self.table = replace(table, data_version=version)
            self._saved.touch()
        await self._saved.save()

    def _render(self) -> dict[str, Any]:
        return self.table.to_json()


class Delays:
    """Puts delayed messages into their topics when they are due; a task of the master."""

    def __init__(
        self,
        world: World,
        config: NodeConfig,
        store: MessageStore,
        topics: Topics,
        offsets: DelayOffsets,
        *,
        confirmed: Watermark | None = None,
    ) -> None:
        """`confirmed` rises as enough slaves hold the log."""
        self._world = world
        self._config = config
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._delivered = Delivered(world, store)
        self._confirmed = confirmed
        self._levels_ms = parse_delay_levels(config.store.delay_levels)
        self._next: dict[int, int] = {}
        """Level to the queue offset of the next message to deliver, once the log was searched."""
        self._arrivals: dict[int, _Arrivals] = {}
        self._damaged: dict[int, list[int]] = {}
        """Level to queue offsets of messages that could not be read when they were due."""
        self._unread: dict[int, list[int]] = {}
        """Those of earlier runs that are still to be read again."""
        self._begins_at = 0
        """Offset that dispatch has to reach before anything is delivered, bytes."""
        self.delivered = 0
        """Messages delivered since the start."""
        self.dropped = 0
        """Messages that were not delivered: their topic or record no longer exists, or they are
        damaged."""

    def level(self, requested: int) -> int:
        """Return the level of a message that asks for `requested`; 0: no delay."""
        return min(max(requested, 0), len(self._levels_ms))

    def delay_ms(self, level: int) -> int:
        return self._levels_ms[level - 1]

    async def run(self) -> None:
        """Deliver due messages, until cancelled. Does nothing on a slave outside of a group with
        failover."""
        if self._config.is_slave and not self._config.replica:
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._save_forever)
            while True:
                pause_s = await self._round()
                await trio.sleep(pause_s)

    def begin_anew(self) -> None:
        """Search the log again once all of it is dispatched: another broker delivered meanwhile.
        Raises `ConfigFileError`."""
        self._offsets.load()
        self._begins_at = self._store.max_offset
        for table in (self._next, self._arrivals, self._damaged, self._unread):
            table.clear()

    async def save(self) -> None:
        """Save the progress, once it is on disk and held by as many slaves as acknowledge a send.
        Raises `ConfigFileError`."""
        table = self._offsets.table
        offsets = table.offset_table | {level: at for level, at in self._next.items() if at}
        damaged = dict(table.rb_damaged or {})
        for level in self._next:
            damaged[level] = sorted({*self._damaged.get(level, ()), *self._unread[level]})
        damaged = {
            level: offsets_of_level
            for level, offsets_of_level in damaged.items()
            if offsets_of_level
        }
        if (offsets, damaged) != (table.offset_table, table.rb_damaged or {}):
            end = self._store.written.value
            await self._store.flushed.wait_for(end)
            if self._confirmed is not None:
                await self._confirmed.wait_for(end)
        await self._offsets.save(offsets, damaged)

    async def stop(self) -> None:
        """Save once more, unless the disk takes too long for that. Raises `ConfigFileError`."""
        if not self._config.is_slave:
            with trio.move_on_after(STOP_S):
                await self.save()

    async def _save_forever(self) -> None:
        while True:
            await trio.sleep(SAVE_S)
            try:
                await self.save()
            except ConfigFileError as exc:
                self._world.log.error("config.save_failed", error=str(exc))

    # --- one round

    async def _round(self) -> float:
        """Deliver a piece of the due messages of each level; return the time until there is more to
        do, s."""
        pause_s = LOOK_S
        if self._config.is_slave or self._store.dispatched.value < self._begins_at:
            return pause_s
        for level in range(1, len(self._levels_ms) + 1):
            try:
                wait_s = await self._deliver(level)
            except (ConfigFileError, OSError, PutFailed, StoreError) as exc:
                self._world.log.error("delays.not_delivered", delay_level=level, error=str(exc))
                wait_s = RETRY_S
            pause_s = min(pause_s, wait_s)
        return pause_s

    async def _deliver(self, level: int) -> float:
        """Deliver a piece of a level's due messages; return the time until more are due, s. Raises
        `ConfigFileError`, `OSError`, `PutFailed`, `StoreError`; nothing was delivered then."""
        if level not in self._next:
            settled = await self._delivered.settle(level, self._offsets.table)
            self._next[level], self._unread[level] = settled
        unread = self._unread[level]
        piece = self._read_again(level, unread) if unread else self._due_messages(level)
        if not unread and piece.after == self._next[level]:
            return piece.wait_s
        if self._store.refusal() is not None:
            return RETRY_S
        messages = await self._read(level, piece.units)
        deleted = self._store.removal.deletions()
        await self._make_topics(messages, deleted)
        # A topic in deletion may stay after all: its messages wait for the outcome.
        for offset, message in messages if self._topics.leaving else ():
            with suppress(ValueError):
                if target_of(message)[0] in self._topics.leaving:
                    piece.after, piece.wait_s = offset, RETRY_S
                    messages = [pair for pair in messages if pair[0] < offset]
                    break
        self._put([message for _, message in messages], deleted)
        if unread:
            self._unread[level] = [offset for offset in unread if offset >= piece.after]
        else:
            self._tell_expired(level, piece)
            self._next[level] = piece.after
        await trio.lowlevel.checkpoint()
        return piece.wait_s

    def _due_messages(self, level: int) -> "_Piece":
        """Return the messages of a level that are due."""
        now_ms, delay_ms = self._world.clock.wall_ms(), self._levels_ms[level - 1]
        low, high = self._delivered.bounds(level)
        arrivals = self._arrivals.setdefault(level, _Arrivals())
        if self._store.log.last_store_ms > now_ms:
            arrivals.note(high, trio.current_time())
        first = min(max(self._next[level], low), high)
        piece = _Piece(after=first, expired=max(low - self._next[level], 0))
        room = ROUND_BYTES
        units = self._store.units(SCHEDULE_TOPIC, level - 1, first, ROUND + 1)
        for physical, size, due_ms in units:
            wait_s = (due_ms - now_ms) / 1000
            since = arrivals.latest_arrival(piece.after)
            if since is None and due_ms - now_ms > delay_ms:
                arrivals.note(high, trio.current_time())
                since = trio.current_time()
            if since is not None:
                wait_s = min(wait_s, since + delay_ms / 1000 - trio.current_time())
            if wait_s > 0:
                piece.wait_s = min(wait_s, LOOK_S)
                return piece
            room -= size
            if len(piece.units) == ROUND or (piece.units and room < 0):
                piece.wait_s = 0.0
                return piece
            if physical >= self._store.min_offset:
                piece.units.append((piece.after, physical, size))
            else:
                piece.expired += 1
            piece.after += 1
        if units and piece.after < high:
            piece.wait_s = 0.0
        return piece

    def _read_again(self, level: int, offsets: list[int]) -> "_Piece":
        """Return messages that were damaged when they were due; they may have been healed since."""
        piece = _Piece(after=offsets[-1] + 1)
        for offset in offsets:
            for physical, size, _ in self._store.units(SCHEDULE_TOPIC, level - 1, offset, 1):
                if physical >= self._store.min_offset:
                    piece.units.append((offset, physical, size))
        return piece

    def _tell_expired(self, level: int, piece: "_Piece") -> None:
        if piece.expired:
            self.dropped += piece.expired
            self._world.log.error(
                "delays.expired",
                delay_level=level,
                messages=piece.expired,
                reason="their records were deleted before they were due: keep files longer than"
                " the longest delay (fileReservedTime)",
            )

    async def _read(
        self, level: int, units: list[tuple[int, int, int]]
    ) -> list[tuple[int, StoredMessage]]:
        """Return messages with their queue offsets; a damaged one is left out, and read again after
        the next start."""
        if not units:
            return []
        try:
            read = await self._store.read([(physical, size) for _, physical, size in units])
            messages = decode_messages(read)
        except (CorruptRecord, RemoteProtocolError) as exc:
            if len(units) == 1:
                ((offset, physical, _),) = units
                self._drop(physical, SCHEDULE_TOPIC, f"{exc}; it comes once it is healed")
                damaged = self._damaged.setdefault(level, [])
                if offset not in damaged:
                    damaged.append(offset)
                return []
            return [message for unit in units for message in await self._read(level, [unit])]
        return [(unit[0], message) for unit, message in zip(units, messages, strict=True)]

    async def _make_topics(
        self, messages: list[tuple[int, StoredMessage]], deleted: dict[str, int]
    ) -> None:
        """Create topics that this master may not know: its predecessor was lost before the slaves
        had copied them. Raises `ConfigFileError`."""
        missing: dict[str, int] = {}
        for _, message in messages:
            with suppress(ValueError):
                topic, queue_id = target_of(message)
                is_known = self._topics.get(topic) is not None or topic in self._topics.leaving
                if not is_known and not is_deleted(message, topic, deleted):
                    missing[topic] = max(missing.get(topic, 0), queue_id + 1)
        if not missing:
            return
        for topic, queues in missing.items():
            is_own = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
            self._topics.create_absent(topic, queues if is_own else max(queues, QUEUES))
        await self._topics.save()

    def _put(self, messages: list[StoredMessage], deleted: dict[str, int]) -> None:
        """Put messages into their topics. Raises `PutFailed` if none was put."""
        run, count = self._store.begin(), 0
        for message in messages:
            try:
                self._add(run, message, deleted)
                count += 1
            except (MessageRejected, ValueError) as exc:
                self._drop(message.physical_offset, message.topic, str(exc))
        if count:
            self._store.commit(run)
            self.delivered += count

    def _add(self, run: Run, message: StoredMessage, deleted: dict[str, int]) -> None:
        """Add one message to a run. Raises `MessageRejected`, `ValueError`."""
        topic, queue_id = target_of(message)
        config = self._topics.get(topic)
        if is_deleted(message, topic, deleted):  # perhaps recreated since, as a new topic
            raise ValueError(f"topic {topic!r} does not exist any more: it was deleted meanwhile")
        if config is None or not config.queue_nums:
            raise ValueError(f"topic {topic!r} cannot be made")
        # it may have fewer queues now, and further ones would not be read
        queue_id %= config.queue_nums
        add_again(run, message, topic, queue_id)

    def _drop(self, offset: int, topic: str, reason: str) -> None:
        self.dropped += 1
        self._world.log.error("delays.dropped", offset=offset, topic=topic, reason=reason)
