"""Which delayed messages were delivered, by what the log says: a master asks this at its start."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

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
READ_AT_ONCE: Final = 64
"""Messages with one key."""
KEYS_MAX: Final = 256
"""Keys whose messages are known, while a level is looked through."""


class Delivered:
    """Compares the delay topic with the topics that its messages are for."""

    def __init__(self, world: World, store: MessageStore) -> None:
        self._world = world
        self._store = store
        self._known: dict[tuple[str, str], dict[bytes, list[int]]] = {}
        """Topic and key -> contents -> log offsets, rising; while a level is looked through."""

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
        self._known.clear()
        at = back = hint
        deleted = self._store.removal.deletions()
        while back > max(low, at - LOOK_ON):
            is_there = await self._is_delivered(level, back - 1, deleted, unknown=True)
            if is_there:
                break
            back -= 1
            if is_there is False:
                at = back
        # One that was dropped is in no topic, and others behind it may be.
        offset, missed = at, 0
        while offset < high and missed < LOOK_ON:
            is_there = await self._is_delivered(level, offset, deleted, unknown=False)
            offset += 1
            if is_there:
                at, missed = offset, 0
            elif is_there is False:
                missed += 1
        noted = sorted((table.rb_damaged or {}).get(level, []))
        owed = [
            offset
            for offset in noted
            if low <= offset < at
            and await self._is_delivered(level, offset, deleted, unknown=False) is False
        ]
        self._known.clear()
        if at != hint:
            self._world.log.info("delays.corrected", delay_level=level, file=hint, log=at)
        return at, owed

    async def _is_delivered(
        self, level: int, offset: int, deleted: dict[str, int], *, unknown: bool
    ) -> bool | None:
        """Whether the log has the message of a queue offset in its own topic, as often as it waits
        up to there, or has it no more; `unknown` where nothing can tell. None if its topic was
        deleted: nobody is to get it, and it says nothing of those before it."""
        units = self._store.units(SCHEDULE_TOPIC, level - 1, offset, 1)
        if not units or units[0][0] < self._store.min_offset:
            return True
        try:
            (message,) = decode_messages(await self._store.read([units[0][:2]]))
            topic, _ = target_of(message)
            if is_deleted(message, topic, deleted):
                return None
            came = await self._copies(topic, message)
            waiting = await self._copies(SCHEDULE_TOPIC, message) if came else []
        except (CorruptRecord, RemoteProtocolError, KeyError, ValueError):
            return unknown  # when it is due it will show what is wrong
        return has_come(message.physical_offset, waiting, came)

    async def _copies(self, topic: str, message: StoredMessage) -> list[int]:
        """Log offsets of the same message in a topic, rising; a program may send one thousands of
        times. Raises `KeyError` for one without a key, `CorruptRecord`."""
        key = message.properties[UNIQUE_KEY]
        known = self._known.get((topic, key))
        if known is None:
            known = defaultdict(list)
            for part in _parts(self._store.places(topic, key)):
                for one in decode_messages(b"".join(await self._store.indexed(part))):
                    if one.topic == topic:
                        known[_contents(one)].append(one.physical_offset)
            if len(self._known) >= KEYS_MAX:
                self._known.clear()
            self._known[topic, key] = known
        return known.get(_contents(message), [])


def has_come(at: int, waiting: Iterable[int], came: Iterable[int]) -> bool:
    """Whether a message that waits at a log offset was delivered, by the places of all like it.

    A copy stands behind what it is of, and is of the first that has none: one that came twice says
    nothing of a message that was put to wait after it.
    """
    copies = iter(sorted(came))
    return all(
        any(copy > place for copy in copies) for place in sorted({*waiting, at}) if place <= at
    )


def _parts(offsets: list[int]) -> Iterator[list[int]]:
    """Few records in memory at a time."""
    return (offsets[at : at + READ_AT_ONCE] for at in range(0, len(offsets), READ_AT_ONCE))


def _contents(message: StoredMessage) -> bytes:
    """A digest of what does not change when a message is delivered; a user's keys may be all the
    same."""
    properties = sorted(one for one in message.properties.items() if one[0] != CRC32)
    head = (message.reconsume_times, message.born_timestamp, message.born_host, properties)
    return hashlib.blake2b(repr(head).encode() + message.body, digest_size=16).digest()
