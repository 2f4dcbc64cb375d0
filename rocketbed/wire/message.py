"""The message record, as the commit log stores it and pulls return it (store.md 2, wire.md 4.11).

One layout in four widths: born host and store host are 8 bytes (IPv4) or 20 (IPv6) each, by two
bits of the system flag; the topic length is one byte (v1) or two (v2). A blank record fills the end
of a segment. Nothing here knows where records are stored.
"""

import ipaddress
import struct
import zlib
from dataclasses import dataclass, field
from functools import lru_cache

from rocketbed.wire.errors import RemoteProtocolError
from rocketbed.wire.properties import decode_properties

MAGIC_V1 = -626843481  # 0xDAA320A7
MAGIC_V2 = -626843477  # 0xDAA320AB
MAGIC_BLANK = -875286124  # 0xCBD43194
BLANK_SIZE = 8
"""Bytes of a blank record, which stands for the remaining bytes of its segment."""

COMPRESSED = 0x1
MULTI_TAGS = 0x2
TRANSACTION_MASK = 0xC
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
BORN_IPV6 = 0x10
STORE_IPV6 = 0x20
NEEDS_UNWRAP = 0x40
INNER_BATCH = 0x80
COMPRESSION_MASK = 0x700

HEAD = struct.Struct(">5i2qiq")
"""Total size, magic, body CRC, queue id, flag, queue offset, physical offset, system flag, born
time: the 48 bytes at a fixed position."""
RECORD_V4 = struct.Struct(">5i2qiq8sq8siqi")
"""Fixed fields of a record with two IPv4 hosts, up to and including the body length: 88 bytes."""
TAIL = struct.Struct(">iqi")
"""Reconsume times, prepared transaction offset, body length."""
BLANK = struct.Struct(">ii")
RECORD_MIN = 91
"""Bytes of a v1 record with two IPv4 hosts and empty body, topic and properties."""
V1_TOPIC_MAX = 127
CRC_MASK = 0x7FFFFFFF
HOSTS_KEPT = 256
"""Addresses whose text and bytes are cached: every record has two, always the same few, and parsing
one takes as long as the rest of a record (4 us)."""

_I32 = struct.Struct(">i")
_I16 = struct.Struct(">h")
_I64 = struct.Struct(">q")


def body_crc(body: bytes | memoryview) -> int:
    """Return the CRC-32 of the stored body, 31 bits."""
    return zlib.crc32(body) & CRC_MASK


@lru_cache(maxsize=HOSTS_KEPT)
def pack_host(address: str, port: int) -> bytes:
    """Return 8 or 20 bytes: the packed address, then the port as i32."""
    return ipaddress.ip_address(address).packed + _I32.pack(port)


@lru_cache(maxsize=HOSTS_KEPT)
def unpack_host(data: bytes) -> tuple[str, int]:
    """Return address text and port of `pack_host`'s bytes."""
    return str(ipaddress.ip_address(data[:-4])), _I32.unpack(data[-4:])[0]


def offset_message_id(host: bytes, physical_offset: int) -> str:
    """Return RocketMQ's offset message id: store host and physical offset in upper-case hex."""
    return (host + _I64.pack(physical_offset)).hex().upper()


def parse_offset_message_id(text: str) -> tuple[str, int, int]:
    """Parse address, port and physical offset of an offset message id.

    Raises `ValueError` when it is not 32 or 56 hex digits.
    """
    data = bytes.fromhex(text)
    if len(data) not in (16, 28):
        raise ValueError(f"{text!r} is not an offset message id: 32 or 56 hex digits are needed")
    address, port = unpack_host(data[:-8])
    return address, port, _I64.unpack(data[-8:])[0]


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A whole record, decoded."""

    size: int
    """Bytes of the record."""
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    """Milliseconds, producer's clock."""
    born_host: tuple[str, int]
    store_timestamp: int
    """Milliseconds, broker's clock."""
    store_host: tuple[str, int]
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    """Body as stored: compressed if the producer compressed it."""
    topic: str
    properties_text: str
    properties: dict[str, str] = field(repr=False)

    @property
    def tags(self) -> str | None:
        """The tag, if any."""
        return self.properties.get("TAGS")

    @property
    def unique_key(self) -> str | None:
        """The client's message id (UNIQ_KEY)."""
        return self.properties.get("UNIQ_KEY")

    @property
    def offset_message_id(self) -> str:
        """The broker's message id."""
        return offset_message_id(pack_host(*self.store_host), self.physical_offset)


def decode_message(data: bytes | memoryview, *, check_crc: bool = True) -> StoredMessage:
    """Decode the record at the start of `data`.

    Raises `RemoteProtocolError` for anything that is not one whole, valid record.
    """
    try:
        return _decode(memoryview(data), check_crc)
    except (struct.error, ValueError, IndexError) as exc:
        raise RemoteProtocolError(f"not a message record: {exc}") from exc


def _decode(view: memoryview, check_crc: bool) -> StoredMessage:
    head = HEAD.unpack_from(view, 0)
    size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born = head
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise ValueError(f"magic {magic & 0xFFFFFFFF:#x}")
    if size > len(view) or size < RECORD_MIN:
        raise ValueError(f"size {size} with {len(view)} bytes at hand")
    born_end = HEAD.size + (20 if sys_flag & BORN_IPV6 else 8)
    store_start = born_end + 8
    store_end = store_start + (20 if sys_flag & STORE_IPV6 else 8)
    reconsume_times, prepared, body_length = TAIL.unpack_from(view, store_end)
    body_start = store_end + TAIL.size
    body_end = body_start + body_length
    if body_length < 0:
        raise ValueError(f"body length {body_length}")
    if magic == MAGIC_V1:
        topic_start, topic_length = body_end + 1, view[body_end]
        if topic_length > V1_TOPIC_MAX:
            raise ValueError("negative topic length")
    else:
        topic_start, topic_length = body_end + 2, _I16.unpack_from(view, body_end)[0]
    topic_end = topic_start + topic_length
    (properties_length,) = _I16.unpack_from(view, topic_end)
    if topic_length < 0 or properties_length < 0:
        raise ValueError("negative length")
    if topic_end + 2 + properties_length != size:
        raise ValueError(f"its fields take {topic_end + 2 + properties_length} bytes, not {size}")
    body = bytes(view[body_start:body_end])
    if check_crc and body and body_crc(body) != crc:
        raise ValueError("body CRC does not match")
    text = str(view[topic_end + 2 : size], "utf-8", "replace")
    return StoredMessage(
        size=size,
        body_crc=crc,
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        sys_flag=sys_flag,
        born_timestamp=born,
        born_host=unpack_host(bytes(view[HEAD.size : born_end])),
        store_timestamp=_I64.unpack_from(view, born_end)[0],
        store_host=unpack_host(bytes(view[store_start:store_end])),
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared,
        body=body,
        topic=str(view[topic_start:topic_end], "utf-8", "replace"),
        properties_text=text,
        properties=decode_properties(text),
    )


def decode_messages(data: bytes | memoryview) -> list[StoredMessage]:
    """Decode consecutive records, as a query returns them. Raises `RemoteProtocolError`."""
    messages, problem = decode_good(data)
    if problem is not None:
        raise problem
    return messages


def decode_good(
    data: bytes | memoryview,
) -> tuple[list[StoredMessage], RemoteProtocolError | None]:
    """Decode consecutive records up to the first bad one; return them and its error."""
    view = memoryview(data)
    messages: list[StoredMessage] = []
    while len(view) > 0:
        try:
            message = decode_message(view)
        except RemoteProtocolError as exc:
            return messages, exc
        messages.append(message)
        view = view[message.size :]
    return messages, None


@dataclass(frozen=True, slots=True)
class BatchItem:
    """A message of a batch request (wire.md 4.4)."""

    body: bytes
    flag: int
    properties: bytes
    """The property string, UTF-8."""


_BATCH_HEAD = struct.Struct(">5i")


def encode_batch(items: list[BatchItem]) -> bytes:
    """Return the body of a batch request: consecutive items, magic and CRC zero."""
    parts: list[bytes] = []
    for item in items:
        size = _BATCH_HEAD.size + len(item.body) + 2 + len(item.properties)
        parts += (
            _BATCH_HEAD.pack(size, 0, 0, item.flag, len(item.body)),
            item.body,
            _I16.pack(len(item.properties)),
            item.properties,
        )
    return b"".join(parts)


def decode_batch(data: bytes | memoryview) -> list[BatchItem]:
    """Decode the items of a batch body. Raises `RemoteProtocolError` when sizes do not fill it
    exactly."""
    view = memoryview(data)
    items: list[BatchItem] = []
    position = 0
    try:
        while position < len(view):
            size, _, _, flag, body_length = _BATCH_HEAD.unpack_from(view, position)
            body_start = position + _BATCH_HEAD.size
            body_end = body_start + body_length
            (properties_length,) = _I16.unpack_from(view, body_end)
            end = body_end + 2 + properties_length
            if body_length < 0 or properties_length < 0 or end != position + size:
                raise RemoteProtocolError(f"batch item at byte {position} has wrong lengths")
            if end > len(view):
                raise RemoteProtocolError(f"batch item at byte {position} is cut off")
            items.append(
                BatchItem(bytes(view[body_start:body_end]), flag, bytes(view[body_end + 2 : end]))
            )
            position = end
    except struct.error as exc:
        raise RemoteProtocolError(f"batch item at byte {position} is cut off") from exc
    return items
