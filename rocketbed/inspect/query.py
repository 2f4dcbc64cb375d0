"""Messages of a directory, by queue, by key, by time, as a client would be given them.

Where queue or index lead to a message they are followed, and the log behind what they know is read
besides, so that an unclean stop hides nothing. `scan` asks the log alone: right even where the
queues are not.
"""

import hashlib
import ipaddress
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from rocketbed.inspect.bodies import BatchItem, MissingCodec, unpack_body, unpack_inner_batch
from rocketbed.inspect.directory import StoreDirectory
from rocketbed.inspect.index import query_offsets
from rocketbed.inspect.record import SYS_INNER_BATCH, Record, Scanned

_ALL = 1 << 62
_PORT = struct.Struct(">i")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which messages are wanted; None: any. Times are store times, milliseconds, inclusive."""

    topic: str | None = None
    queue_id: int | None = None
    offset: int | None = None
    """The first queue offset."""
    key: str | None = None
    """A part of KEYS, or the unique id."""
    begin_ms: int | None = None
    end_ms: int | None = None
    scan: bool = False
    """Read the log from its start, use neither queues nor index."""

    def takes_record(self, entry: Scanned) -> bool:
        """Whether a record may hold wanted messages; cheap, before the record is taken apart."""
        if self.topic is not None and entry.topic != self.topic.encode():
            return False
        if self.queue_id is not None and entry.queue_id != self.queue_id:
            return False
        if self.begin_ms is not None and entry.store_ms < self.begin_ms:
            return False
        return self.end_ms is None or entry.store_ms <= self.end_ms

    def takes(self, message: "Message") -> bool:
        """Whether this message is wanted."""
        if self.offset is not None and message.queue_offset < self.offset:
            return False
        return self.key is None or self.key in message.keys


class Message(NamedTuple):
    """One message: a record, or one item of an inner batch."""

    record: Record
    item: BatchItem | None = None

    @property
    def queue_offset(self) -> int:
        return self.record.queue_offset + (self.item.number if self.item else 0)

    @property
    def properties(self) -> dict[str, str]:
        """Its own properties; for an item those of the item."""
        return self.item.properties if self.item else self.record.properties

    @property
    def keys(self) -> list[str]:
        """Unique id and the parts of KEYS; of a batch item also the batch's own id."""
        found = self.properties
        names = [found.get("UNIQ_KEY", ""), *found.get("KEYS", "").split(" ")]
        if self.item:
            names.append(self.record.properties.get("UNIQ_KEY", ""))
        return [name for name in names if name]

    @property
    def body(self) -> bytes | None:
        """The body as it was sent, unpacked; None when it cannot be."""
        if self.item:
            return self.item.body
        return unpack_body(self.record.body, self.record.sys_flag)

    def as_row(self, on_missing: Callable[[MissingCodec], None] | None = None) -> dict[str, object]:
        """JSON fields, named as RocketMQ's clients name them.

        `on_missing` is called for a body whose library is not installed.

        An item of a batch has no size and id of its own in the store, so `storeSize` is 0 and
        `offsetMsgId` null. A body that cannot be unpacked has a length and a digest of null.
        """
        record, item = self.record, self.item
        try:
            body = self.body
        except MissingCodec as exc:
            body = None
            if on_missing is not None:
                on_missing(exc)
        message_id = offset_message_id(record)
        return {
            "topic": record.topic,
            "queueId": record.queue_id,
            "queueOffset": self.queue_offset,
            "commitLogOffset": record.offset,
            "storeSize": 0 if item else record.size,
            "sysFlag": record.sys_flag,
            "flag": item.flag if item else record.flag,
            "bodyCRC": item.body_crc if item else record.body_crc,
            "bornTimestamp": record.born_ms,
            "bornHost": show_host(record.born_host),
            "storeTimestamp": record.store_ms,
            "storeHost": show_host(record.store_host),
            "reconsumeTimes": record.reconsume_times,
            "preparedTransactionOffset": record.prepared_offset,
            "msgId": self.properties.get("UNIQ_KEY") or message_id,
            "offsetMsgId": None if item else message_id,
            "bodyLength": None if body is None else len(body),
            "bodySha256": None if body is None else hashlib.sha256(body).hexdigest(),
            "properties": dict(sorted(self.properties.items())),
        }


def messages(directory: StoreDirectory, wanted: Filter) -> Iterator[Message]:
    """Messages that are wanted, in the order of the log (of the queue, if one is asked for)."""
    for record in _records(directory, wanted):
        if wanted.takes_record(record.scanned):
            for message in expand(record):
                if wanted.takes(message):
                    yield message


def expand(record: Record) -> Iterator[Message]:
    """The messages of a record: itself, or the items of an inner batch."""
    if record.sys_flag & SYS_INNER_BATCH:
        try:
            body = unpack_body(record.body, record.sys_flag)
        except MissingCodec:
            body = None  # one message then, whose body says what is missing
        items = unpack_inner_batch(body or b"")
        if items:
            for item in items:
                yield Message(record, item)
            return
    yield Message(record)


def offset_message_id(record: Record) -> str:
    """The broker's message id: store host and physical offset in hex (store.md 2.9)."""
    return (record.store_host + struct.pack(">q", record.offset)).hex().upper()


def show_host(host: bytes) -> str:
    """Address and port as Java shows them: `/127.0.0.1:10911`, `/[0:0:0:0:0:0:0:1]:10911`."""
    (port,) = _PORT.unpack(host[-4:])
    if len(host) == 8:
        return f"/{ipaddress.IPv4Address(host[:4])}:{port}"
    groups = struct.unpack(">8H", host[:16])
    return f"/[{':'.join(f'{group:x}' for group in groups)}]:{port}"


def _records(directory: StoreDirectory, wanted: Filter) -> Iterator[Record]:
    if not wanted.scan:
        if wanted.key is not None and wanted.topic is not None and directory.index_files:
            yield from _by_key(directory, wanted.topic, wanted.key, wanted)
            return
        if wanted.key is None and wanted.topic is not None and wanted.queue_id is not None:
            yield from _by_queue(directory, (wanted.topic, wanted.queue_id), wanted)
            return
    yield from _by_scan(directory, None, wanted)


def _by_scan(directory: StoreDirectory, start: int | None, wanted: Filter) -> Iterator[Record]:
    for item in directory.log.scan(start):
        if type(item) is Scanned and wanted.takes_record(item):
            record = directory.log.record_at(item.offset, item.size)
            if isinstance(record, Record):
                yield record


def _by_key(directory: StoreDirectory, topic: str, key: str, wanted: Filter) -> Iterator[Record]:
    """What the index knows, then the log behind the last record that it knows."""
    files = directory.index_files
    found = sorted(set(query_offsets(files, topic, key, limit=_ALL)))
    for offset in found:
        record = directory.log.record_at(offset)
        if isinstance(record, Record):
            yield record
    known = max(index.header().end_offset for index in files)
    for record in _by_scan(directory, max(known, directory.log.min_offset), wanted):
        if record.offset not in found:
            yield record


def _by_queue(
    directory: StoreDirectory, queue: tuple[str, int], wanted: Filter
) -> Iterator[Record]:
    """What the queue knows, then the log behind the last record that it knows."""
    known: int | None = None
    for offset, size in _units(directory, queue, wanted.offset or 0):
        record = directory.log.record_at(offset, size)
        if isinstance(record, Record) and (record.topic, record.queue_id) == queue:
            known = record.offset + record.size
            yield record
    yield from _by_scan(directory, known, wanted)


def _units(
    directory: StoreDirectory, queue: tuple[str, int], first: int
) -> Iterator[tuple[int, int]]:
    if queue in directory.queues:
        for unit in directory.queues[queue].units(first):
            if not unit.is_pre_blank:
                yield unit.offset, unit.size
    elif queue in directory.batch_queues:
        for batch in directory.batch_queues[queue].units():
            if batch.base + batch.messages > first:
                yield batch.offset, batch.size
