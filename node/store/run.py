"""A run: messages that one write puts at the end of the log.

Everything in a run is provisional. Offsets are counted from the log's state when the run began, and
none is assigned before `CommitLog.commit` has written the bytes (design.md 5). There is no await
between `CommitLog.begin` and `commit`, so no two runs overlap. A run does not use files: `LogTail`
holds its view of the log, and the log does the writing.
"""

import re
import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace

from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.entry import ONE_UNIT, Entry
from rocketbed.node.store.errors import MessageRejected
from rocketbed.node.store.status import PutStatus
from rocketbed.wire.javahash import tag_code
from rocketbed.wire.message import (
    BLANK,
    BLANK_SIZE,
    BORN_IPV6,
    CRC_MASK,
    INNER_BATCH,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    NEEDS_UNWRAP,
    STORE_IPV6,
    V1_TOPIC_MAX,
    BatchItem,
    pack_host,
)
from rocketbed.wire.properties import (
    CRC32,
    CRC_SIZE,
    INNER_BASE,
    INNER_NUM,
    PROPERTIES_MAX,
    find_property,
    index_keys,
    tag_key,
    text_of,
)

FIXED = {
    (8, 8): struct.Struct(">5i2qiq8sq8siqi"),
    (20, 8): struct.Struct(">5i2qiq20sq8siqi"),
    (8, 20): struct.Struct(">5i2qiq8sq20siqi"),
    (20, 20): struct.Struct(">5i2qiq20sq20siqi"),
}
"""Fixed fields of a record by the lengths of born host and store host."""

TOPIC_MAX = 127
RETRY_TOPIC_MAX = 255
_TOPICS_MAX = 1 << 16
_CRC_NAME = CRC32.encode() + b"\x01"
_CRC_PAIR = re.compile(rb"(?<![^\x02])" + re.escape(_CRC_NAME) + rb"[^\x02]*\x02?")
_crc32 = zlib.crc32
_new_tuple = tuple.__new__


def crc_property(value: int) -> bytes:
    """Return the record checksum property: ten digits, least significant first (store.md 2.7)."""
    return _CRC_NAME + str(value)[::-1].ljust(10, "0").encode() + b"\x02"


class LogTail:
    """The settings and next queue offsets of a log, as its runs use them."""

    __slots__ = (
        "append_property_crc",
        "body_max",
        "index_tags",
        "next_queue_offsets",
        "record_max",
        "segment_size",
        "store_host_bytes",
        "topic_heads",
    )

    def __init__(self, config: StoreConfig) -> None:
        self.segment_size = config.segment_size
        self.limit(config)
        self.append_property_crc = config.append_property_crc
        self.index_tags = False
        """True if a tag is one of a record's keys (store.md 4.2)."""
        self.store_host_bytes = pack_host(config.store_host, config.store_port)
        """Address and port written into every record, 8 or 20 bytes."""
        self.next_queue_offsets: dict[tuple[str, int], int] = {}
        """By topic and queue. Changed by `CommitLog.commit`, recovery and cuts, never by a run."""
        self.topic_heads: dict[str, tuple[int, bytes]] = {}
        """Magic and encoded topic of earlier topics."""

    @property
    def properties_max(self) -> int:
        """Most bytes of properties besides the record's checksum."""
        return PROPERTIES_MAX - (CRC_SIZE + 1 if self.append_property_crc else 0)

    def limit(self, config: StoreConfig) -> None:
        """Apply a new `maxMessageSize`, from the next record on."""
        self.record_max = config.record_max
        self.body_max = config.max_message_size

    def topic_head(self, topic: str) -> tuple[int, bytes]:
        """Return a record version's magic, and the topic with its length. Raises
        `MessageRejected`."""
        encoded = topic.encode()
        longest = RETRY_TOPIC_MAX if topic.startswith(("%RETRY%", "%DLQ%")) else TOPIC_MAX
        if not encoded or len(encoded) > longest:
            raise MessageRejected(
                PutStatus.MESSAGE_ILLEGAL,
                f"topic takes {len(encoded)} bytes, 1 to {longest} are allowed",
            )
        head = MAGIC_V1, bytes((len(encoded),)) + encoded
        if len(encoded) > V1_TOPIC_MAX:
            head = MAGIC_V2, len(encoded).to_bytes(2, "big") + encoded
        if len(self.topic_heads) < _TOPICS_MAX:
            self.topic_heads[topic] = head
        return head


def without_checksum(properties: bytes) -> bytes:
    """Remove a producer's record checksum: readers would take it for ours."""
    return _CRC_PAIR.sub(b"", properties)


class Run:
    """Messages on their way to one write. Created by `CommitLog.begin` only."""

    __slots__ = (
        "_fixed",
        "_pieces",
        "_segment_end",
        "_store_host",
        "_tail",
        "chunks",
        "end",
        "entries",
        "now_ms",
        "position",
        "queue_offsets",
        "start",
    )

    def __init__(self, tail: LogTail, start: int, now_ms: int) -> None:
        self._tail = tail
        self.start = self.position = start
        """Physical offset of the first byte; of the next record."""
        self._segment_end = start - start % tail.segment_size + tail.segment_size
        self.now_ms = now_ms
        """Store time of every record of the run."""
        self._pieces: list[bytes] = []
        self.chunks: list[tuple[int, list[bytes]]] = [(self.start, self._pieces)]
        """Chunks to write: (physical offset, pieces), one a segment."""
        self.entries: list[Entry] = []
        self.queue_offsets: dict[tuple[str, int], int] = {}
        """Next offset of each queue the run touched."""
        self.end = self.start
        """End of the last record."""
        self._store_host = tail.store_host_bytes
        self._fixed = FIXED[8, len(self._store_host)]

    def add(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes,
        *,
        flag: int,
        sys_flag: int,
        born_ms: int,
        born_host: bytes,
        reconsume_times: int = 0,
        tag: str | None = None,
        keys: tuple[str, ...] = (),
        prepared_offset: int = 0,
        delay_ms: int | None = None,
        is_limited: bool = True,
    ) -> tuple[int, int]:
        """Add one message; return its physical and queue offset, final once the run is committed.

        `born_host` is packed (8 or 20 bytes). `keys` are UNIQ_KEY and the parts of KEYS.
        `delay_ms`: of a message of the delay topic, whose unit holds the time at which it is due.
        `is_limited`: apply `maxMessageSize`, which is for producers: it may have been lowered since
        a message was stored that is copied here, and the node's own records are never refused.
        Raises `MessageRejected` (too large, illegal topic), leaving the run unchanged.
        """
        tail = self._tail
        heads = tail.topic_heads.get(topic)
        if heads is None:
            heads = tail.topic_head(topic)
        magic, topic_head = heads
        if properties and not properties[-1]:
            properties = closed(properties)
        if _CRC_NAME in properties:
            properties = without_checksum(properties)
        body_length, properties_length = len(body), len(properties)
        if tail.append_property_crc:
            properties, properties_length = self._with_crc_room(properties)
        store_host = self._store_host
        size = 90 + body_length + len(topic_head) + properties_length
        fixed = self._fixed
        if len(born_host) != 8 or len(store_host) != 8:
            fixed = FIXED[len(born_host), len(store_host)]
            size += len(born_host) + len(store_host) - 16
            sys_flag |= BORN_IPV6 if len(born_host) == 20 else 0
            sys_flag |= STORE_IPV6 if len(store_host) == 20 else 0
        if (
            properties_length > PROPERTIES_MAX
            or (is_limited and (body_length > tail.body_max or size > tail.record_max))
            or size + BLANK_SIZE > tail.segment_size
        ):
            raise self._too_large(body_length, properties_length, size, is_limited=is_limited)
        # Room for a blank record must remain, or the segment's end could not be marked.
        if self.position + size + BLANK_SIZE > self._segment_end:
            self._roll()
        position = self.position
        key = (topic, queue_id)
        queue_offset = self.queue_offsets.get(key)
        if queue_offset is None:
            queue_offset = tail.next_queue_offsets.get(key, 0)
        head = fixed.pack(
            size, magic, _crc32(body) & CRC_MASK, queue_id, flag, queue_offset, position,
            sys_flag, born_ms, born_host, self.now_ms, store_host, reconsume_times,
            prepared_offset, body_length,
        )  # fmt: skip
        if tail.append_property_crc:
            properties = self._with_crc(head, body, topic_head, properties)
        self._pieces += (head, body, topic_head, properties_length.to_bytes(2, "big"), properties)
        self.queue_offsets[key] = queue_offset + 1
        code = tag_code(tag) if tag else 0
        if delay_ms is not None:
            code = self.now_ms + delay_ms
        if tag and tail.index_tags:
            keys = (*keys, tag_key(tag))
        self.entries.append(
            _new_tuple(
                Entry,
                (topic, queue_id, queue_offset, position, size, code, self.now_ms, keys, ONE_UNIT),
            )
        )
        self.position = self.end = position + size
        return position, queue_offset

    @property
    def properties_max(self) -> int:
        """Most bytes of a message's properties."""
        return self._tail.properties_max

    @property
    def room_end(self) -> int:
        """Highest end of records in this segment, so that a blank record fits after them."""
        return self._segment_end - BLANK_SIZE

    def extend(
        self, records: bytes, entries: list[Entry], queue_offsets: dict[tuple[str, int], int]
    ) -> None:
        """Add records that were built elsewhere from `position` on, within `room_end`.

        `queue_offsets`: the next ones after these records.
        """
        assert entries[0].physical_offset == self.position, "records follow each other"
        self.queue_offsets.update(queue_offsets)
        self._pieces.append(records)
        self.entries += entries
        self.position = self.end = entries[-1].physical_offset + entries[-1].size
        assert self.end <= self.room_end, "the blank record has its room"

    def _with_crc_room(self, properties: bytes) -> tuple[bytes, int]:
        if properties and not properties.endswith(b"\x02"):
            properties += b"\x02"
        return properties, len(properties) + CRC_SIZE

    def _with_crc(self, head: bytes, body: bytes, topic_head: bytes, properties: bytes) -> bytes:
        length = (len(properties) + CRC_SIZE).to_bytes(2, "big")
        value = _crc32(b"".join((head, body, topic_head, length, properties))) & CRC_MASK
        return properties + crc_property(value)

    def _too_large(
        self, body: int, properties: int, size: int, *, is_limited: bool = True
    ) -> MessageRejected:
        tail = self._tail
        if properties > PROPERTIES_MAX:
            return MessageRejected(
                PutStatus.PROPERTIES_SIZE_EXCEEDED,
                f"properties take {properties} bytes, at most {PROPERTIES_MAX} are stored",
            )
        if not is_limited:
            return MessageRejected(
                PutStatus.MESSAGE_ILLEGAL,
                f"record takes {size} bytes, which no segment holds (mappedFileSizeCommitLog)",
            )
        if body > tail.body_max:
            return MessageRejected(
                PutStatus.MESSAGE_ILLEGAL,
                f"body takes {body} bytes, maxMessageSize is {tail.body_max}",
            )
        return MessageRejected(
            PutStatus.MESSAGE_ILLEGAL,
            f"record takes {size} bytes, at most {tail.record_max} fit (maxMessageSize,"
            " mappedFileSizeCommitLog)",
        )

    def _roll(self) -> None:
        """Fill the segment with a blank record and continue in the next one."""
        room = self._segment_end - self.position
        assert room >= BLANK_SIZE, "every record leaves room for the blank one"
        self._pieces.append(BLANK.pack(room, MAGIC_BLANK))
        self.position = self._segment_end
        self._segment_end += self._tail.segment_size
        self._pieces = []
        self.chunks.append((self.position, self._pieces))

    def _fit(self, total: int) -> None:
        """Roll if `total` bytes would not fit into the remainder of the segment."""
        room = self._tail.segment_size - BLANK_SIZE
        if total > room:
            raise MessageRejected(
                PutStatus.MESSAGE_ILLEGAL, f"batch takes {total} bytes, a segment holds {room}"
            )
        if self.position + total + BLANK_SIZE > self._segment_end:
            self._roll()

    def add_batch(
        self,
        topic: str,
        queue_id: int,
        items: Sequence[BatchItem],
        *,
        sys_flag: int,
        born_ms: int,
        born_host: bytes,
        reconsume_times: int = 0,
    ) -> list[tuple[int, int]]:
        """Add a classic batch: ordinary records, all in one segment, consecutive queue offsets.

        Raises `MessageRejected` for the batch as a whole, leaving the run unchanged.
        """
        _, topic_head = self._tail.topic_heads.get(topic) or self._tail.topic_head(topic)
        if any(item.properties.endswith(b"\0") for item in items):
            items = [replace(item, properties=closed(item.properties)) for item in items]
        hosts = len(born_host) + len(self._store_host) - 16
        crc = CRC_SIZE + 1 if self._tail.append_property_crc else 0
        sizes = [
            90 + len(i.body) + len(topic_head) + len(i.properties) + hosts + crc for i in items
        ]
        for item, size in zip(items, sizes, strict=True):
            if (
                len(item.properties) + crc > PROPERTIES_MAX
                or len(item.body) > self._tail.body_max
                or size > self._tail.record_max
            ):
                raise self._too_large(len(item.body), len(item.properties) + crc, size)
        # Roll before the first message: a roll within the batch would split it over two segments.
        self._fit(sum(sizes))
        added = []
        for item in items:
            tag, unique, keys = (
                text_of(find_property(item.properties, name))
                for name in (b"TAGS\x01", b"UNIQ_KEY\x01", b"KEYS\x01")
            )
            added.append(
                self.add(
                    topic,
                    queue_id,
                    item.body,
                    item.properties,
                    flag=item.flag,
                    sys_flag=sys_flag,
                    born_ms=born_ms,
                    born_host=born_host,
                    reconsume_times=reconsume_times,
                    tag=tag,
                    keys=index_keys(unique, keys),
                )
            )
        return added

    def add_inner_batch(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes,
        *,
        count: int,
        flag: int,
        sys_flag: int,
        born_ms: int,
        born_host: bytes,
        unique_key: str | None,
    ) -> tuple[int, int]:
        """Add one record that holds `count` messages, for a topic with batch consume queues.

        The queue offset is the first message's; the queue continues after the last.
        """
        key = (topic, queue_id)
        base = self.queue_offsets.get(key)
        if base is None:
            base = self._tail.next_queue_offsets.get(key, 0)
        tag, keys = (
            text_of(find_property(properties, name)) for name in (b"TAGS\x01", b"KEYS\x01")
        )
        if properties and not properties.endswith(b"\x02"):
            properties += b"\x02"
        properties += f"{INNER_NUM}\x01{count}\x02{INNER_BASE}\x01{base}\x02".encode()
        added = self.add(
            topic,
            queue_id,
            body,
            properties,
            flag=flag,
            sys_flag=sys_flag | INNER_BATCH | NEEDS_UNWRAP,
            born_ms=born_ms,
            born_host=born_host,
            tag=tag,
            keys=index_keys(unique_key or "", keys),
        )
        self.entries[-1] = self.entries[-1]._replace(units=-count)
        self.queue_offsets[key] = base + count
        return added


def closed(properties: bytes) -> bytes:
    """Return the properties with a separator after a zero byte at their end.

    A record whose last byte is zero could not be told from one whose end was never written.
    """
    return properties + b"\x02" if properties.endswith(b"\0") else properties
