"""Search of a log for delayed messages that were delivered; a master does it at its start."""

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
"""Undelivered messages in a row after which the search for delivered ones ends."""
READ_AT_ONCE: Final = 64
"""Messages with one key that are read at once."""
KEYS_MAX: Final = 256
"""Keys whose messages are cached during the search of a level."""


class Delivered:
    """Compares the delay topic with the topics that its messages are for."""

    def __init__(self, world: World, store: MessageStore) -> None:
        self._world = world
        self._store = store
        self._cache: dict[tuple[str, str], dict[bytes, list[int]]] = {}
        """Topic and key -> contents -> log offsets, rising; filled during the search of a level."""

    def bounds(self, level: int) -> tuple[int, int]:
        """Return the first queue offset of a level, and the one after its last."""
        queue = level - 1
        low = self._store.queue_min(SCHEDULE_TOPIC, queue)
        return low, max(low, self._store.queue_max(SCHEDULE_TOPIC, queue))

    async def settle(self, level: int, table: DelayOffsetTable) -> tuple[int, list[int]]:
        """Return the offset at which delivery continues, after the last message that the log shows
        as delivered; and the earlier messages that could not be read when they were due and were
        not delivered since."""
        await self._store.dispatched.wait_for(self._store.written.value)
        low, high = self.bounds(level)
        hint = min(max(table.offset_table.get(level, 0), low), high)
        if not self._store.config.index_enabled:
            return hint, []
        self._cache.clear()
        at = back = hint
        deleted = self._store.removal.deletions()
        while back > max(low, at - LOOK_ON):
            is_delivered = await self._is_delivered(level, back - 1, deleted, unknown=True)
            if is_delivered:
                break
            back -= 1
            if is_delivered is False:
                at = back
        # A dropped message is in no topic, and later ones may have been delivered.
        offset, missed = at, 0
        while offset < high and missed < LOOK_ON:
            is_delivered = await self._is_delivered(level, offset, deleted, unknown=False)
            offset += 1
            if is_delivered:
                at, missed = offset, 0
            elif is_delivered is False:
                missed += 1
        recorded = sorted((table.rb_damaged or {}).get(level, []))
        unread = [
            offset
            for offset in recorded
            if low <= offset < at
            and await self._is_delivered(level, offset, deleted, unknown=False) is False
        ]
        self._cache.clear()
        if at != hint:
            self._world.log.info("delays.corrected", delay_level=level, file=hint, log=at)
        return at, unread

    async def _is_delivered(
        self, level: int, offset: int, deleted: dict[str, int], *, unknown: bool
    ) -> bool | None:
        """True if the log has this delayed message in its own topic, as often as it waits up to
        there, or if the waiting message no longer exists; `unknown` if that cannot be decided. None
        if its topic was deleted: then no client is to get it, and it says nothing about the
        messages before it."""
        units = self._store.units(SCHEDULE_TOPIC, level - 1, offset, 1)
        if not units or units[0][0] < self._store.min_offset:
            return True
        try:
            (message,) = decode_messages(await self._store.read([units[0][:2]]))
            topic, _ = target_of(message)
            if is_deleted(message, topic, deleted):
                return None
            copies = await self._copies(topic, message)
            waiting = await self._copies(SCHEDULE_TOPIC, message) if copies else []
        except (CorruptRecord, RemoteProtocolError, KeyError, ValueError):
            return unknown  # delivery will show what is wrong with it
        return was_delivered(message.physical_offset, waiting, copies)

    async def _copies(self, topic: str, message: StoredMessage) -> list[int]:
        """Return the log offsets of the same message in a topic, rising; a program may send one
        thousands of times. Raises `KeyError` for a message without a key, `CorruptRecord`."""
        key = message.properties[UNIQUE_KEY]
        offsets = self._cache.get((topic, key))
        if offsets is None:
            offsets = defaultdict(list)
            for part in _parts(self._store.places(topic, key)):
                for candidate in decode_messages(b"".join(await self._store.indexed(part))):
                    if candidate.topic == topic:
                        offsets[_contents(candidate)].append(candidate.physical_offset)
            if len(self._cache) >= KEYS_MAX:
                self._cache.clear()
            self._cache[topic, key] = offsets
        return offsets.get(_contents(message), [])


def was_delivered(at: int, waiting: Iterable[int], delivered: Iterable[int]) -> bool:
    """True if the message that waits at a log offset was delivered, by the offsets of all messages
    like it.

    A copy follows its original, and belongs to the first original without one: two copies of one
    message say nothing about an original that came after them.
    """
    copies = iter(sorted(delivered))
    return all(
        any(copy > place for copy in copies) for place in sorted({*waiting, at}) if place <= at
    )


def _parts(offsets: list[int]) -> Iterator[list[int]]:
    """Split offsets, so that few records are in memory at a time."""
    return (offsets[at : at + READ_AT_ONCE] for at in range(0, len(offsets), READ_AT_ONCE))


def _contents(message: StoredMessage) -> bytes:
    """Return a digest of what delivery does not change in a message; users' keys may all be the
    same."""
    properties = sorted(pair for pair in message.properties.items() if pair[0] != CRC32)
    head = (message.reconsume_times, message.born_timestamp, message.born_host, properties)
    return hashlib.blake2b(repr(head).encode() + message.body, digest_size=16).digest()
