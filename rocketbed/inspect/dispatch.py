"""Queues and index keys of a record, by the rules of the broker's dispatch.

Both the check and the rebuild use it, so that they cannot disagree about the rules, only about the
bytes. Sources: store.md 2.8, 3.1, 3.5, 3.6, 4.2.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rocketbed.inspect.consumequeue import BatchUnit, Unit
from rocketbed.inspect.directory import StoreDirectory
from rocketbed.inspect.properties import (
    SCHEDULE_TOPIC,
    DispatchProperties,
    TopicHash,
    find_value,
    java_hash,
    tag_code,
)
from rocketbed.inspect.record import (
    SYS_PREPARED,
    SYS_ROLLBACK,
    SYS_TRANSACTION,
    Record,
    Scanned,
)

PLAIN: Final = "plain"
BATCH: Final = "batch"
_TAGS_REMEMBERED_MAX = 4096
_LMQ_PREFIX = "%LMQ%"
_NAME_BYTES_MAX = 255
"""Longest file name of a usual file system."""
_EVERYTHING = 1 << 63


def tag_key(tags: bytes) -> bytes:
    """Return the key under which 5.5.0 indexes a message's tag, after its other keys (store.md
    4.2)."""
    return b"T#" + tags


def indexes_tags(directory: StoreDirectory) -> bool:
    """True if the broker that wrote the index indexes tags, as RocketMQ 5.5.0 does.

    Rocketbed's own mark decides, if it can be trusted; else the newest indexed record that has a
    tag. False without either.
    """
    if directory.marks is not None and directory.marks.trusted and directory.marks.index_tags:
        return True
    for index in reversed(directory.index_files):
        hashes: list[int] = []
        for number in range(index.header().next_entry - 1, 0, -1):
            entry = index.entry(number)
            if entry is None:
                break
            hashes.append(entry.key_hash)
            before = index.entry(number - 1) if number > 1 else None
            if before is not None and before.offset == entry.offset:
                continue
            record = directory.log.record_at(entry.offset)
            if isinstance(record, Record) and (
                tags := DispatchProperties(record.raw_properties).tags
            ):
                return TopicHash(record.topic).key_hash(tag_key(tags)) in hashes
            hashes = []
    return False


@dataclass(slots=True)
class Topic:
    """State kept of a topic while its records are read."""

    name: str
    is_batch: bool
    hash: TopicHash
    tag_codes: dict[bytes, int] = field(default_factory=dict)
    deleted_below: int = 0
    """Log offset below which records have no queue any more, because their topic was deleted."""
    is_usable: bool = True
    """False if no directory can have its name; then its records have neither queue nor keys."""


_DIGITS_MAX = 19
"""Longest number that is read from a property; damage may leave thousands of digits."""
BATCH_MESSAGES_MAX = (1 << 15) - 1
"""Highest message count that a batch queue's unit can hold (store.md 3.5)."""


class Target(NamedTuple):
    """A queue that a record enters. `slot` is a queue offset, in messages."""

    kind: str
    topic: str
    queue_id: int
    slot: int
    tag_code: int
    messages: int
    """Messages in the record: 1, except for an inner batch."""

    def batch_unit(self, entry: Scanned) -> BatchUnit:
        """Return the unit of a batch queue; its number is unknown here (0)."""
        return BatchUnit(
            0, entry.offset, entry.size, self.tag_code, entry.store_ms, self.slot, self.messages
        )


class Dispatch(NamedTuple):
    topic: Topic
    targets: tuple[Target, ...]
    keys: list[bytes]
    """Keys to index, in order; none for a rolled back record."""
    tags: bytes
    """Value of TAGS; empty for a rolled back record."""
    deleted: bool = False
    """True if its topic was deleted: it has no queue, and its keys may or may not be indexed."""


class Dispatcher:
    """Works out the targets of records, one after the other."""

    def __init__(self, directory: StoreDirectory) -> None:
        self._batch_topics = directory.batch_topics()
        self._levels = directory.settings.delay_levels
        self._lmq = directory.settings.enable_lmq or any(
            topic.startswith(_LMQ_PREFIX) for topic, _ in directory.queues
        )
        self._deleted = directory.marks.deleted if directory.marks else {}
        self._table = directory.topics()
        self._queues, self._batch_queues = directory.queues, directory.batch_queues
        self._first_units: dict[tuple[str, int], int] = {}
        """Log offset of the first unit of each queue that was looked up."""
        self._with_queues = {topic for topic, _ in (*directory.queues, *directory.batch_queues)}
        self._topics: dict[bytes, Topic] = {}

    def topic_names(self) -> set[str]:
        """Topics read so far, without `!`, the topic of closed holes."""
        return {topic.name for topic in self._topics.values()} - {"!"}

    def dispatch(self, entry: Scanned) -> Dispatch:
        topic = self._topics.get(entry.topic)
        if topic is None:
            topic = self._topics[entry.topic] = self._topic(entry.topic)
        properties = DispatchProperties(entry.properties)
        transaction = entry.sys_flag & SYS_TRANSACTION
        keys = [] if transaction == SYS_ROLLBACK else properties.index_keys()
        if transaction in (SYS_PREPARED, SYS_ROLLBACK):
            tags = properties.tags if transaction == SYS_PREPARED else b""
            return Dispatch(topic, (), keys, tags)
        if not topic.is_usable:
            return Dispatch(topic, (), [], b"", deleted=True)
        if entry.offset < topic.deleted_below and not self._is_queued(topic, entry):
            return Dispatch(topic, (), keys, properties.tags, deleted=True)
        code = self._tag_code(topic, properties.tags, entry)
        if topic.is_batch:
            targets = self._batch_targets(topic, entry, code)
        else:
            targets = (Target(PLAIN, topic.name, entry.queue_id, entry.queue_offset, code, 1),)
        if self._lmq and b"INNER_MULTI_DISPATCH\x01" in entry.properties:
            targets += self._lmq_targets(entry, code)
        return Dispatch(topic, targets, keys, properties.tags)

    def _topic(self, raw: bytes) -> Topic:
        """Create a topic at its first record.

        It counts as deleted if rocketbed's marks say so, or if it has no queue and a readable topic
        table lacks it (T14).
        """
        name = raw.decode(errors="replace")
        topic = Topic(name, name in self._batch_topics, TopicHash(name))
        topic.is_usable = _is_usable(raw)
        topic.deleted_below = self._deleted.get(name, 0)
        if self._table is not None and name not in self._table and name not in self._with_queues:
            topic.deleted_below = _EVERYTHING
        return topic

    def _is_queued(self, topic: Topic, entry: Scanned) -> bool:
        """True if a queue of a deleted topic still has the record: the node ended after it had
        marked the topic as deleted and before it removed the queue's files. The next deletion
        removes them."""
        if topic.deleted_below == _EVERYTHING:
            return False
        key = topic.name, entry.queue_id
        first = self._first_units.get(key)
        if first is None:
            queue = self._queues.get(key) or self._batch_queues.get(key)
            units = queue.units() if queue is not None else ()
            offsets = (
                unit.offset for unit in units if not isinstance(unit, Unit) or not unit.is_pre_blank
            )
            first = self._first_units[key] = next(offsets, _EVERYTHING)
        return first <= entry.offset

    def _tag_code(self, topic: Topic, tags: bytes, entry: Scanned) -> int:
        if topic.name == SCHEDULE_TOPIC:
            return tag_code(topic.name, tags, entry.properties, entry.store_ms, self._levels)
        if not tags:
            return 0
        code = topic.tag_codes.get(tags)
        if code is None:
            if len(topic.tag_codes) >= _TAGS_REMEMBERED_MAX:
                topic.tag_codes.clear()
            code = topic.tag_codes[tags] = java_hash(tags.decode(errors="replace"))
        return code

    @staticmethod
    def _batch_targets(topic: Topic, entry: Scanned, code: int) -> tuple[Target, ...]:
        """Return the target in a batch queue; a record without a valid message count is one
        message."""
        padded = b"\x02" + entry.properties
        count = find_value(padded, b"\x02INNER_NUM\x01")
        base = find_value(padded, b"\x02INNER_BASE\x01")
        if len(count) > _DIGITS_MAX or (count.isdigit() and int(count) > BATCH_MESSAGES_MAX):
            return ()  # more than a unit can hold; a node never writes that
        if not (count.isdigit() and base.isdigit()) or len(base) > _DIGITS_MAX:
            return (Target(BATCH, topic.name, entry.queue_id, entry.queue_offset, code, 1),)
        return (Target(BATCH, topic.name, entry.queue_id, int(base), code, int(count)),)

    @staticmethod
    def _lmq_targets(entry: Scanned, code: int) -> tuple[Target, ...]:
        """Return the further queues that a multi-dispatch message enters."""
        padded = b"\x02" + entry.properties
        names = find_value(padded, b"\x02INNER_MULTI_DISPATCH\x01").split(b",")
        offsets = find_value(padded, b"\x02INNER_MULTI_QUEUE_OFFSET\x01").split(b",")
        if len(names) != len(offsets):
            return ()
        return tuple(
            Target(PLAIN, name.decode(errors="replace"), 0, int(offset), code, 1)
            for name, offset in zip(names, offsets, strict=True)
            if name.startswith(_LMQ_PREFIX.encode())
            and b"/" not in name
            and offset.isdigit()
            and len(offset) <= _DIGITS_MAX
        )


def _is_usable(topic: bytes) -> bool:
    """True if a queue's directory can have this name; damage can make any bytes of a topic."""
    if not 0 < len(topic) <= _NAME_BYTES_MAX or topic in (b".", b".."):
        return False
    try:
        return not {"/", "\0"} & set(topic.decode())
    except UnicodeDecodeError:
        return False
