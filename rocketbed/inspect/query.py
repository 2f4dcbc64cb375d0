"""Messages of a directory, by queue, key or time, as a client would receive them.

Messages are looked up by queue or index, and the log after the last record that these know is read
as well, so that an unclean stop hides nothing. `scan` reads only the log, which is right even if
the queues are wrong.
"""

import base64
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
    """Conditions on messages; None: any. Times are store times, milliseconds, inclusive."""

    topic: str | None = None
    queue_id: int | None = None
    offset: int | None = None
    """Lowest queue offset."""
    key: str | None = None
    """A part of KEYS, or the unique id."""
    begin_ms: int | None = None
    end_ms: int | None = None
    scan: bool = False
    """Read the log from its start, without queues and index."""

    def takes_record(self, entry: Scanned) -> bool:
        """True if a record may hold a matching message; a cheap test before the record is
        parsed."""
        if self.topic is not None and entry.topic != self.topic.encode():
            return False
        if self.queue_id is not None and entry.queue_id != self.queue_id:
            return False
        if self.begin_ms is not None and entry.store_ms < self.begin_ms:
            return False
        return self.end_ms is None or entry.store_ms <= self.end_ms

    def takes(self, message: "Message") -> bool:
        """True if this message matches."""
        if self.offset is not None and message.queue_offset < self.offset:
            return False
        return self.key is None or self.key in message.keys


class Message(NamedTuple):
    """A message: a record, or an item of an inner batch."""

    record: Record
    item: BatchItem | None = None

    @property
    def queue_offset(self) -> int:
        return self.record.queue_offset + (self.item.number if self.item else 0)

    @property
    def properties(self) -> dict[str, str]:
        """Properties of the message: those of the batch item, if it is one."""
        return self.item.properties if self.item else self.record.properties

    @property
    def keys(self) -> list[str]:
        """Unique id and the parts of KEYS; for a batch item also the batch's own id."""
        properties = self.properties
        names = [properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")]
        if self.item:
            names.append(self.record.properties.get("UNIQ_KEY", ""))
        return [name for name in names if name]

    @property
    def body(self) -> bytes | None:
        """Body as it was sent, unpacked; None when it cannot be unpacked."""
        if self.item:
            return self.item.body
        return unpack_body(self.record.body, self.record.sys_flag)

    def as_row(
        self,
        on_missing: Callable[[MissingCodec], None] | None = None,
        *,
        with_body: bool = False,
    ) -> dict[str, object]:
        """Return JSON fields, named as in RocketMQ's clients.

        `on_missing` is called for a body whose library is not installed. `with_body` adds the body,
        as `body` if it is UTF-8, else as `bodyBase64`.

        An item of a batch has no size and id of its own in the store, so `storeSize` is 0 and
        `offsetMsgId` null. For a body that cannot be unpacked, length and digest are null.
        """
        record, item = self.record, self.item
        try:
            body = self.body
        except MissingCodec as exc:
            body = None
            if on_missing is not None:
                on_missing(exc)
        message_id = offset_message_id(record)
        row: dict[str, object] = {
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
        if with_body and body is not None:
            try:
                row["body"] = body.decode("utf-8")
            except UnicodeDecodeError:
                row["bodyBase64"] = base64.b64encode(body).decode("ascii")
        return row


def messages(directory: StoreDirectory, query: Filter) -> Iterator[Message]:
    """Yield the matching messages in log order, or in queue order if the query names a queue."""
    for record in _records(directory, query):
        if query.takes_record(record.scanned):
            for message in expand(record):
                if query.takes(message):
                    yield message


def expand(record: Record) -> Iterator[Message]:
    """Yield the messages of a record: itself, or the items of an inner batch."""
    if record.sys_flag & SYS_INNER_BATCH:
        try:
            body = unpack_body(record.body, record.sys_flag)
        except MissingCodec:
            body = None  # treat it as one message, whose body names the missing library
        items = unpack_inner_batch(body or b"")
        if items:
            for item in items:
                yield Message(record, item)
            return
    yield Message(record)


def offset_message_id(record: Record) -> str:
    """Return the broker's message id: store host and physical offset in hex (store.md 2.9)."""
    return (record.store_host + struct.pack(">q", record.offset)).hex().upper()


def show_host(host: bytes) -> str:
    """Format address and port as Java does: `/127.0.0.1:10911`, `/[0:0:0:0:0:0:0:1]:10911`."""
    (port,) = _PORT.unpack(host[-4:])
    if len(host) == 8:
        return f"/{ipaddress.IPv4Address(host[:4])}:{port}"
    groups = struct.unpack(">8H", host[:16])
    return f"/[{':'.join(f'{group:x}' for group in groups)}]:{port}"


def _records(directory: StoreDirectory, query: Filter) -> Iterator[Record]:
    if not query.scan:
        if query.key is not None and query.topic is not None and directory.index_files:
            yield from _by_key(directory, query.topic, query.key, query)
            return
        if query.key is None and query.topic is not None and query.queue_id is not None:
            yield from _by_queue(directory, (query.topic, query.queue_id), query)
            return
    yield from _by_scan(directory, None, query)


def _by_scan(directory: StoreDirectory, start: int | None, query: Filter) -> Iterator[Record]:
    for item in directory.log.scan(start):
        if type(item) is Scanned and query.takes_record(item):
            record = directory.log.record_at(item.offset, item.size)
            if isinstance(record, Record):
                yield record


def _by_key(directory: StoreDirectory, topic: str, key: str, query: Filter) -> Iterator[Record]:
    """Yield the records of the index, then the matches in the log after its last record."""
    files = directory.index_files
    offsets = sorted(set(query_offsets(files, topic, key, limit=_ALL)))
    for offset in offsets:
        record = directory.log.record_at(offset)
        if isinstance(record, Record):
            yield record
    indexed_end = max(index.header().end_offset for index in files)
    for record in _by_scan(directory, max(indexed_end, directory.log.min_offset), query):
        if record.offset not in offsets:
            yield record


def _by_queue(directory: StoreDirectory, queue: tuple[str, int], query: Filter) -> Iterator[Record]:
    """Yield the records of the queue, then the matches in the log after its last record."""
    queued_end: int | None = None
    for offset, size in _units(directory, queue, query.offset or 0):
        record = directory.log.record_at(offset, size)
        if isinstance(record, Record) and (record.topic, record.queue_id) == queue:
            queued_end = record.offset + record.size
            yield record
    yield from _by_scan(directory, queued_end, query)


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
