"""Which delayed messages were delivered, by what the log says: a master asks this at its start."""

from typing import Any, Final

from rocketbed.node.broker.topics import SCHEDULE_TOPIC
from rocketbed.node.broker.waiting import is_deleted, target_of
from rocketbed.node.store.errors import CorruptRecord
from rocketbed.node.store.store import MessageStore
from rocketbed.wire.bodies import DelayOffsetTable
from rocketbed.wire.errors import RemoteProtocolError
from rocketbed.wire.message import StoredMessage, decode_messages
from rocketbed.wire.properties import CRC32, UNIQUE_KEY
from rocketbed.world.api import World

LOOK_ON: Final = 128
"""Messages that are not there which are looked over for others behind them."""
COPIES_MAX: Final = 64
"""Messages with one key that are looked through at once."""
LATEST_MS: Final = (1 << 63) - 1


class Delivered:
    """Compares the delay topic with the topics that its messages are for."""

    def __init__(self, world: World, store: MessageStore) -> None:
        self._world = world
        self._store = store

    def bounds(self, level: int) -> tuple[int, int]:
        """First queue offset of a level that is there, and the one behind its last."""
        queue = level - 1
        low = self._store.queue_min(SCHEDULE_TOPIC, queue)
        return low, max(low, self._store.queue_max(SCHEDULE_TOPIC, queue))

    async def settle(self, level: int, table: DelayOffsetTable) -> tuple[int, list[int]]:
        """Where delivery goes on: behind the last message that the log has as delivered. And the
        messages before that which could not be read when they were due, and have not come since.
        """
        await self._store.dispatched.wait_for(self._store.written.value)
        low, high = self.bounds(level)
        hint = min(max(table.offset_table.get(level, 0), low), high)
        if not self._store.config.index_enabled:
            return hint, []
        at, deleted = hint, self._store.removal.deletions()
        while at > low and not await self._is_delivered(level, at - 1, deleted, unknown=True):
            at -= 1
        # One that was dropped is in no topic, and others behind it may be.
        offset = at
        while offset < min(at + LOOK_ON, high):
            offset += 1
            if await self._is_delivered(level, offset - 1, deleted, unknown=False):
                at = offset
        noted = sorted((table.rb_damaged or {}).get(level, []))
        owed = [
            offset
            for offset in noted
            if low <= offset < at
            and not await self._is_delivered(level, offset, deleted, unknown=False)
        ]
        if at != hint:
            self._world.log.info("delays.corrected", delay_level=level, file=hint, log=at)
        return at, owed

    async def _is_delivered(
        self, level: int, offset: int, deleted: dict[str, int], *, unknown: bool
    ) -> bool:
        """Whether the log has the message of a queue offset in its own topic, as often as it waits
        up to there, or nobody is to get it any more; `unknown` where nothing can tell."""
        units = self._store.units(SCHEDULE_TOPIC, level - 1, offset, 1)
        if not units or units[0][0] < self._store.min_offset:
            return True
        try:
            (message,) = decode_messages(b"".join(await self._store.read([units[0][:2]])))
            topic, _ = target_of(message)
            if is_deleted(message, topic, deleted):
                return True
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


def _contents(message: StoredMessage) -> tuple[Any, ...]:
    """What does not change when a message is delivered; a user's keys may be all the same."""
    return (
        message.reconsume_times,
        message.born_timestamp,
        message.born_host,
        {name: value for name, value in message.properties.items() if name != CRC32},
        message.body,
    )
