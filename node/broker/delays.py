"""Delayed messages: they wait in `SCHEDULE_TOPIC_XXXX` until they are due (wire.md 4.7b, store.md
12.1).

That topic has a queue for each level, in which messages stand in the order in which they are due.
How far each was delivered stands in `delayOffset.json`, where RocketMQ writes it every ten seconds
and goes by it alone. Here the log has the last word: what was delivered is in it. At its start a
master looks for the messages on both sides of the file's offset, so that a crash, or a master whose
table was ahead of the new one's log, neither repeats one nor loses one. The file is for RocketMQ's
brokers, and for a store without an index; it is never ahead of what is on disk.
"""

from contextlib import suppress
from typing import Any, Final

import trio

from rocketbed.node.broker.config_file import ConfigFile, ConfigFileError, SavedTable
from rocketbed.node.broker.topics import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    Topics,
    topic_name_problem,
)
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.node.store.errors import CorruptRecord, MessageRejected, PutFailed, StoreError
from rocketbed.node.store.run import Run
from rocketbed.node.store.scan import parse_delay_levels
from rocketbed.node.store.store import MessageStore
from rocketbed.replication.watermark import Watermark
from rocketbed.wire.bodies import DelayOffsetTable
from rocketbed.wire.errors import RemoteProtocolError
from rocketbed.wire.message import (
    BORN_IPV6,
    STORE_IPV6,
    StoredMessage,
    decode_messages,
    pack_host,
)
from rocketbed.wire.properties import (
    CRC32,
    DELAY,
    KEYS,
    REAL_QUEUE,
    REAL_TOPIC,
    TAGS,
    UNIQUE_KEY,
    decode_properties,
    encode_properties,
    index_keys,
)
from rocketbed.world.api import World

ROUND: Final = 128
"""Messages of a level that are put at once, and"""
ROUND_BYTES: Final = 1 << 20
"""bytes of them, or a single one: producers wait meanwhile."""
LOOK_S: Final = 1.0
"""Longest pause, not above the shortest delay: nothing tells of messages that came to wait, and the
wall clock may have been set meanwhile."""
RETRY_S: Final = 0.5
SAVE_S: Final = 1.0
STOP_S: Final = 5.0
"""How long a stop waits for the disk."""
COPIES_MAX: Final = 64
"""Messages with one key that are looked through at once."""
QUEUES: Final = 4
"""Least queues of a topic that has to be made."""
LATEST_MS: Final = (1 << 63) - 1


class DelayOffsets:
    """`delayOffset.json`: by level, the queue offset of the next message to deliver."""

    def __init__(self, world: World, config: NodeConfig) -> None:
        self._world = world
        self._file = ConfigFile(world, config.config_dir, "delayOffset.json")
        self._saved = SavedTable(world, self._file, self._render)
        self.table = DelayOffsetTable()

    def load(self) -> None:
        """Read the file. Raises `ConfigFileError`."""
        self.table = self.stored()

    def stored(self) -> DelayOffsetTable:
        """What the file says: of a slave that is its master's table. Raises `ConfigFileError`."""
        return self._file.load(DelayOffsetTable.from_json) or DelayOffsetTable()

    async def save(self, offsets: dict[int, int]) -> None:
        """Make them durable. Raises `ConfigFileError`."""
        if offsets != self.table.offset_table:
            version = self.table.data_version.next(self._world.clock.wall_ms())
            self.table = DelayOffsetTable(data_version=version, offset_table=offsets)
            self._saved.touch()
        await self._saved.save()

    def _render(self) -> dict[str, Any]:
        return self.table.to_json()


class Delays:
    """Puts delayed messages into their topics when they are due; a master's task."""

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
        self._confirmed = confirmed
        self._levels_ms = parse_delay_levels(config.store.delay_levels)
        self._next: dict[int, int] = {}
        """Level to the queue offset of the next message to deliver, once the log was asked."""
        self.delivered = 0
        """Messages since the start."""
        self.dropped = 0
        """Messages that could not be delivered: their topic is gone, or they are damaged."""

    def level(self, asked: int) -> int:
        """The level that a message gets that asks for one; 0 is none."""
        return min(max(asked, 0), len(self._levels_ms))

    def delay_ms(self, level: int) -> int:
        return self._levels_ms[level - 1]

    async def run(self) -> None:
        """Deliver what is due, until cancelled. A slave's are its master's business."""
        if self._config.is_slave:
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._save_forever)
            while True:
                pause_s = await self._round()
                await trio.sleep(pause_s)

    async def save(self) -> None:
        """Write down what was delivered, once that is on disk and as many slaves as acknowledge a
        send hold it. Raises `ConfigFileError`."""
        known = {level: offset for level, offset in self._next.items() if offset}
        offsets = self._offsets.table.offset_table | known
        if offsets != self._offsets.table.offset_table:
            end = self._store.written.value
            await self._store.flushed.wait_for(end)
            if self._confirmed is not None:
                await self._confirmed.wait_for(end)
        await self._offsets.save(offsets)

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
        """Deliver what is due now, of each level a piece; how long there is nothing to do, s."""
        pause_s = LOOK_S
        for level in range(1, len(self._levels_ms) + 1):
            try:
                wait_s = await self._deliver(level)
            except (ConfigFileError, OSError, PutFailed, StoreError) as exc:
                self._world.log.error("delays.not_delivered", delay_level=level, error=str(exc))
                wait_s = RETRY_S
            pause_s = min(pause_s, wait_s)
        return pause_s

    async def _deliver(self, level: int) -> float:
        """Deliver what is due of a level, or a piece of it; the time until more is, s. Raises
        `ConfigFileError`, `OSError`, `PutFailed`, `StoreError`; nothing was delivered then."""
        if level not in self._next:
            self._next[level] = await self._settle(level)
        ranges, after, wait_s = self._due(level)
        if after == self._next[level]:
            return wait_s
        if self._store.refusal() is not None:
            return RETRY_S
        messages = await self._read(ranges)
        await self._make_topics(messages)
        self._put(messages)
        self._next[level] = after
        await trio.lowlevel.checkpoint()
        return wait_s

    def _due(self, level: int) -> tuple[list[tuple[int, int]], int, float]:
        """Records of a level that are due, the queue offset after them, and the time until there is
        another one, s."""
        queue, now_ms = level - 1, self._world.clock.wall_ms()
        low, high = self._bounds(level)
        first = offset = min(max(self._next[level], low), high)
        ranges: list[tuple[int, int]] = []
        room = ROUND_BYTES
        for physical, size, due_ms in self._store.units(SCHEDULE_TOPIC, queue, first, ROUND + 1):
            wait_ms = due_ms - now_ms
            # Due later than its whole delay from now: the clock was set back.
            if 0 < wait_ms <= self._levels_ms[level - 1]:
                return ranges, offset, wait_ms / 1000
            room -= size
            if len(ranges) == ROUND or (ranges and room < 0):
                return ranges, offset, 0.0
            if physical >= self._store.min_offset:
                ranges.append((physical, size))
            offset += 1
        return ranges, offset, LOOK_S if offset >= high else 0.0

    async def _read(self, ranges: list[tuple[int, int]]) -> list[StoredMessage]:
        """Messages; a damaged one is left out, and said so."""
        if not ranges:
            return []
        try:
            return decode_messages(b"".join(await self._store.read(ranges)))
        except (CorruptRecord, RemoteProtocolError) as exc:
            if len(ranges) == 1:
                self._drop(ranges[0][0], SCHEDULE_TOPIC, str(exc))
                return []
        return [message for one in ranges for message in await self._read([one])]

    async def _make_topics(self, messages: list[StoredMessage]) -> None:
        """Make topics that this master may not know of yet: the one before it was lost before its
        slaves had copied them. Raises `ConfigFileError`."""
        missing: dict[str, int] = {}
        for message in messages:
            with suppress(ValueError):
                topic, queue_id = _target(message)
                if self._topics.get(topic) is None:
                    missing[topic] = max(missing.get(topic, 0), queue_id + 1)
        if not missing:
            return
        deleted = self._store.removal.deletions()
        for topic, queues in missing.items():
            is_own = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
            if topic not in deleted and (is_own or self._topics.exists(topic) is None):
                self._topics.create_absent(topic, queues if is_own else max(queues, QUEUES))
        await self._topics.save()

    def _put(self, messages: list[StoredMessage]) -> None:
        """Put messages into their topics. Raises `PutFailed`: none of them was."""
        run, count = self._store.begin(), 0
        for message in messages:
            try:
                self._add(run, message)
                count += 1
            except (MessageRejected, ValueError) as exc:
                self._drop(message.physical_offset, message.topic, str(exc))
        if count:
            self._store.commit(run)
            self.delivered += count

    def _add(self, run: Run, message: StoredMessage) -> None:
        """Raises `MessageRejected`, `ValueError`."""
        topic, queue_id = _target(message)
        config = self._topics.get(topic)
        if config is None or not config.queue_nums:
            raise ValueError(f"topic {topic!r} does not exist any more")
        queue_id %= config.queue_nums  # it may have fewer now, and nobody reads the others
        add_again(run, message, topic, queue_id)

    def _drop(self, offset: int, topic: str, reason: str) -> None:
        self.dropped += 1
        self._world.log.error("delays.dropped", offset=offset, topic=topic, reason=reason)

    # --- where to go on

    def _bounds(self, level: int) -> tuple[int, int]:
        queue = level - 1
        low = self._store.queue_min(SCHEDULE_TOPIC, queue)
        return low, max(low, self._store.queue_max(SCHEDULE_TOPIC, queue))

    async def _settle(self, level: int) -> int:
        """Where delivery goes on: behind the last message that the log has as delivered."""
        await self._store.dispatched.wait_for(self._store.written.value)
        low, high = self._bounds(level)
        hint = min(max(self._offsets.table.offset_table.get(level, 0), low), high)
        if not self._store.config.index_enabled:
            return hint
        at = hint
        while at > low and not await self._is_delivered(level, at - 1, unknown=True):
            at -= 1
        # One that was dropped is in no topic, and others behind it may be.
        offset = at
        while offset < min(at + ROUND, high):
            offset += 1
            if await self._is_delivered(level, offset - 1, unknown=False):
                at = offset
        if at != hint:
            self._world.log.info("delays.corrected", delay_level=level, file=hint, log=at)
        return at

    async def _is_delivered(self, level: int, offset: int, *, unknown: bool) -> bool:
        """Whether the log has the message of a queue offset in its own topic, as often as it waits
        up to there, or has not got it at all any more; `unknown` where nothing can tell."""
        units = self._store.units(SCHEDULE_TOPIC, level - 1, offset, 1)
        if not units or units[0][0] < self._store.min_offset:
            return True
        try:
            (message,) = decode_messages(b"".join(await self._store.read([units[0][:2]])))
            topic, _ = _target(message)
            came = await self._copies(topic, message)
            waiting = await self._copies(SCHEDULE_TOPIC, message) if came else set()
        except (CorruptRecord, RemoteProtocolError, KeyError, ValueError):
            return unknown  # when it is due it will show what is wrong
        before = {at for at in waiting if at <= message.physical_offset}
        return len(came) >= max(len(before), 1)

    async def _copies(self, topic: str, message: StoredMessage) -> set[int]:
        """Log offsets of the same message in a topic. Raises `KeyError` for one without a key, and
        as `MessageStore.query`."""
        key, end_ms = message.properties[UNIQUE_KEY], LATEST_MS
        found: set[int] = set()
        while True:  # a query tells the newest ones
            answer = await self._store.query(topic, key, COPIES_MAX, 0, end_ms)
            records = decode_messages(b"".join(answer.records))
            found |= {
                one.physical_offset
                for one in records
                if one.topic == topic and _contents(one) == _contents(message)
            }
            if len(records) < min(COPIES_MAX, self._store.config.max_query_messages):
                return found
            oldest_ms = min(one.store_timestamp for one in records)
            end_ms = oldest_ms if oldest_ms < end_ms else end_ms - 1000


def _target(message: StoredMessage) -> tuple[str, int]:
    """Topic and queue of a waiting message. Raises `ValueError`."""
    found = message.properties
    topic, queue_text = found.get(REAL_TOPIC, ""), found.get(REAL_QUEUE, "")
    is_number = queue_text.isdecimal() and queue_text.isascii() and len(queue_text) < 10
    if topic_name_problem(topic) is not None or not is_number:
        raise ValueError(
            f"no place to deliver it to: {REAL_TOPIC} {topic!r}, {REAL_QUEUE} {queue_text!r}"
        )
    return topic, int(queue_text)


def _contents(message: StoredMessage) -> tuple[Any, ...]:
    """What does not change when a message is delivered; a user's keys may be all the same."""
    return (
        message.reconsume_times,
        message.born_timestamp,
        message.born_host,
        {name: value for name, value in message.properties.items() if name != CRC32},
        message.body,
    )


def add_again(
    run: Run,
    message: StoredMessage,
    topic: str,
    queue_id: int,
    *,
    text: str | None = None,
    reconsume_times: int | None = None,
    delay_ms: int | None = None,
) -> None:
    """Add a stored message to a run once more, perhaps with other properties. Raises
    `MessageRejected`."""
    text = message.properties_text if text is None else text
    found = decode_properties(text)
    run.add(
        topic,
        queue_id,
        message.body,
        text.encode(),
        flag=message.flag,
        sys_flag=message.sys_flag & ~(BORN_IPV6 | STORE_IPV6),
        born_ms=message.born_timestamp,
        born_host=pack_host(*message.born_host),
        reconsume_times=message.reconsume_times if reconsume_times is None else reconsume_times,
        tag=found.get(TAGS),
        keys=index_keys(found.get(UNIQUE_KEY), found.get(KEYS)),
        delay_ms=delay_ms,
    )


def waiting(found: dict[str, str], topic: str, queue_id: int, level: int) -> str:
    """The properties of a message that has to wait; timers would be for the same thing."""
    kept = {name: value for name, value in found.items() if not name.startswith("TIMER_")}
    kept |= {DELAY: str(level), REAL_TOPIC: topic, REAL_QUEUE: str(queue_id)}
    return encode_properties(kept)
