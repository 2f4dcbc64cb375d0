"""One record of the commit log: its layout, and every reason why bytes are not a record.

The reader shares no code with the broker's store or the wire codec on purpose: two
implementations that agree are evidence, one that agrees with itself is not. Two ways lead through a
record. `scan_record` is the fast one, a single unpack and no object but a tuple; it only says yes
or no. `dissect` is the slow one, taken when the fast one said no or when somebody wants to see the
message; it names the rule that is broken. A property test holds them together.

Layout: store.md 2 (RocketMQ: `MessageExtEncoder`, `CommitLog.checkMessageAndReturnSize`).
"""

import struct
import zlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import NamedTuple

from rocketbed.inspect.properties import parse_properties

MAGIC_V1 = 0xDAA320A7 - (1 << 32)
"""Topic length in one byte."""
MAGIC_V2 = 0xDAA320AB - (1 << 32)
"""Topic length in two bytes; for topics above 127 characters."""
MAGIC_BLANK = 0xCBD43194 - (1 << 32)
"""Filler at the end of a segment."""
MAGIC_PREFIX = b"\xda\xa3\x20"
"""What both message magics begin with; the fourth byte is A7 or AB."""

SYS_TRANSACTION = 0xC
SYS_ROLLBACK = 0xC
SYS_PREPARED = 0x4
SYS_BORN_IPV6 = 0x10
SYS_STORE_IPV6 = 0x20
SYS_INNER_BATCH = 0x80

CRC_PROPERTY = b"__CRC32#\x01"
CRC_PROPERTY_SIZE = 20
RECORD_SIZE_MIN = 91
"""An IPv4 record without body, topic and properties."""
SECTOR = 512

_HEADS = {
    flags: struct.Struct(f">5i2qiq{born}sq{store}siqi")
    for flags, born, store in ((0, 8, 8), (0x10, 20, 8), (0x20, 8, 20), (0x30, 20, 20))
}
"""The fixed part up to and with the body length, by the two IPv6 bits of SYSFLAG (2.1)."""
_HEAD_IPV4 = _HEADS[0]
_TOTAL_AND_MAGIC = struct.Struct(">2i")
_SHORT = struct.Struct(">h")


class Scanned(NamedTuple):
    """What a scan keeps of a good record. Offsets and sizes in bytes, times in milliseconds."""

    offset: int
    size: int
    sys_flag: int
    queue_id: int
    queue_offset: int
    store_ms: int
    topic: bytes
    properties: bytes


class Fault(NamedTuple):
    """Why some bytes are not a good record."""

    rule: str
    what: str
    size: int
    """TOTALSIZE when the record's own length can be believed, else -1."""


@dataclass(frozen=True, slots=True)
class Record:
    """A whole record. Hosts are address bytes and a port as i32, as stored (8 or 20 bytes)."""

    offset: int
    """Where it was read, bytes from the start of the log."""
    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    """What the record itself claims; equal to `offset` in a good one."""
    sys_flag: int
    born_ms: int
    born_host: bytes
    store_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body: bytes
    topic: str
    raw_topic: bytes
    raw_properties: bytes
    raw: bytes
    """All bytes of the record."""

    @property
    def properties(self) -> dict[str, str]:
        """Properties by name; of a name that stands twice the later value."""
        return parse_properties(self.raw_properties)

    @property
    def scanned(self) -> Scanned:
        """The same record as a scan gives it."""
        return Scanned(
            self.offset,
            self.size,
            self.sys_flag,
            self.queue_id,
            self.queue_offset,
            self.store_ms,
            self.raw_topic,
            self.raw_properties,
        )


def scan_record(buffer: bytes, view: memoryview, position: int, offset: int) -> Scanned | None:
    """The record at `position` of `buffer`, or None when it breaks any rule or is not all there.

    `view` is a view of the same buffer (so that the body is checksummed without a copy); `offset`
    is the physical offset of `position`.
    """
    try:
        head = _HEAD_IPV4
        fields = head.unpack_from(buffer, position)
        if fields[7] & 0x30:
            head = _HEADS[fields[7] & 0x30]
            fields = head.unpack_from(buffer, position)
        total, magic, crc, queue_id, _, queue_offset, physical, sys_flag = fields[:8]
        body_size = fields[14]
        if physical != offset or body_size < 0:
            return None
        body_at = position + head.size
        topic_at = body_at + body_size
        if magic == MAGIC_V1:
            topic_size = buffer[topic_at]
            topic_at += 1
            if topic_size > 127:
                return None
        elif magic == MAGIC_V2:
            (topic_size,) = _SHORT.unpack_from(buffer, topic_at)
            topic_at += 2
            if topic_size < 0:
                return None
        else:
            return None
        properties_at = topic_at + topic_size + 2
        (properties_size,) = _SHORT.unpack_from(buffer, properties_at - 2)
    except (struct.error, IndexError):
        return None
    end = properties_at + properties_size
    if properties_size < 0 or end != position + total or end > len(buffer):
        return None
    if body_size and zlib.crc32(view[body_at : body_at + body_size]) & 0x7FFFFFFF != crc:
        return None
    topic = buffer[topic_at : topic_at + topic_size]
    properties = buffer[properties_at:end]
    if b"\0" in properties or b"\0" in topic:
        shift = offset - position
        if _zero_sector(buffer, topic_at, topic_at + topic_size, shift):
            return None
        if _zero_sector(buffer, properties_at, end, shift):
            return None
    if properties[-20:-11] == CRC_PROPERTY and has_property_crc(properties):
        checked = zlib.crc32(view[position : end - CRC_PROPERTY_SIZE])
        if properties[-11:-1] != crc_digits(checked):
            return None
    return Scanned(offset, total, sys_flag, queue_id, queue_offset, fields[10], topic, properties)


def skim(head: bytes) -> Generator[tuple[int, int], bytes, int]:
    """How long the fields of a record are together, without its body; -1 if that cannot be.

    `head` is its first 40 bytes. Asks for pieces of it, by position in the record and size.
    """
    _, magic, *_, sys_flag = struct.unpack_from(">5i2qi", head)
    at = _HEADS[sys_flag & 0x30].size
    for size_form in (">i", ">h" if magic == MAGIC_V2 else ">b", ">h"):
        width = struct.calcsize(size_form)
        # The body length is the last of the fixed part.
        at -= width if size_form == ">i" else 0
        data = yield at, width
        if len(data) < width:
            return -1
        (length,) = struct.unpack(size_form, data)
        if length < 0:
            return -1
        at += width + length
    return at


def dissect(buffer: bytes, position: int, offset: int) -> Record | Fault:
    """The whole record at `position` of `buffer`, or the first rule that it breaks.

    `buffer` ends where the segment ends (a record never crosses it). `offset` is the physical
    offset of `position`.
    """
    record = _take_apart(buffer, position, offset)
    if isinstance(record, Fault):
        return record
    for rule, judge in VALUE_RULES:
        what = judge(record)
        if what is not None:
            return Fault(rule, what, record.size)
    return record


def blank_size(buffer: bytes, position: int) -> int | None:
    """The length that a filler record at `position` claims, or None when it is no filler."""
    if len(buffer) - position < _TOTAL_AND_MAGIC.size:
        return None
    size, magic = _TOTAL_AND_MAGIC.unpack_from(buffer, position)
    return int(size) if magic == MAGIC_BLANK else None


def crc_digits(crc: int) -> bytes:
    """A CRC as the property holds it: ten digits, the least significant first (2.7)."""
    return str(crc & 0x7FFFFFFF)[::-1].ljust(10, "0").encode()


def body_crc(body: bytes) -> int:
    """BODYCRC of a body (2.5)."""
    return zlib.crc32(body) & 0x7FFFFFFF if body else 0


def _take_apart(buffer: bytes, position: int, offset: int) -> Record | Fault:
    """Follow the lengths; the fault of the first that cannot be believed."""
    left = len(buffer) - position
    if left < _TOTAL_AND_MAGIC.size:
        return Fault("record-short", f"only {left} bytes before the end of the segment", -1)
    total, magic = _TOTAL_AND_MAGIC.unpack_from(buffer, position)
    if magic not in (MAGIC_V1, MAGIC_V2):
        return Fault("record-magic", f"magic 0x{magic & 0xFFFFFFFF:08X} is not a message's", -1)
    if total < RECORD_SIZE_MIN or total > left:
        what = f"length {total} with {left} bytes to the end of the segment"
        return Fault("record-short", what, -1)
    raw = buffer[position : position + total]
    (sys_flag,) = struct.unpack_from(">i", raw, 36)
    head = _HEADS[sys_flag & 0x30]
    if total < head.size + 3:
        return Fault("record-short", f"length {total} is too small for its IPv6 hosts", -1)
    fields = head.unpack_from(raw, 0)
    parts = _variable_parts(raw, head.size, fields[14], wide=magic == MAGIC_V2)
    if isinstance(parts, Fault):
        return parts
    body, topic, properties, end = parts
    if end != total:
        return Fault("record-size", f"length {total}, but its parts add up to {end}", total)
    name = topic.decode(errors="replace")
    return Record(
        offset=offset,
        size=total,
        magic=magic,
        body_crc=fields[2],
        queue_id=fields[3],
        flag=fields[4],
        queue_offset=fields[5],
        physical_offset=fields[6],
        sys_flag=fields[7],
        born_ms=fields[8],
        born_host=fields[9],
        store_ms=fields[10],
        store_host=fields[11],
        reconsume_times=fields[12],
        prepared_offset=fields[13],
        body=body,
        topic=name,
        raw_topic=topic,
        raw_properties=properties,
        raw=raw,
    )


def _variable_parts(
    raw: bytes, body_at: int, body_size: int, *, wide: bool
) -> tuple[bytes, bytes, bytes, int] | Fault:
    """Body, topic, properties and where they end, of a record whose fixed part was read."""
    if body_size < 0 or body_at + body_size + 3 > len(raw):
        return Fault("record-body", f"body length {body_size} does not fit in the record", -1)
    topic_at = body_at + body_size + (2 if wide else 1)
    size_form = ">h" if wide else ">b"
    (topic_size,) = struct.unpack_from(size_form, raw, body_at + body_size)
    if topic_size < 0 or topic_at + topic_size + 2 > len(raw):
        return Fault("record-topic", f"topic length {topic_size} does not fit in the record", -1)
    properties_at = topic_at + topic_size + 2
    (properties_size,) = _SHORT.unpack_from(raw, properties_at - 2)
    end = properties_at + properties_size
    if properties_size < 0 or end > len(raw):
        what = f"properties length {properties_size} does not fit in the record"
        return Fault("record-properties", what, -1)
    body = raw[body_at : body_at + body_size]
    return body, raw[topic_at : topic_at + topic_size], raw[properties_at:end], end


def _zero_sector(buffer: bytes, start: int, end: int, shift: int) -> bool:
    """Whether some 512-byte sector of the log holds nothing but zeros of `buffer[start:end]`.

    A lost sector of a fresh segment reads as zeros, and nothing else covers topic and properties
    (8.6, T5). `shift` added to a position of the buffer gives its physical offset.
    """
    while start < end:
        stop = min(end, start + SECTOR - (start + shift) % SECTOR)
        if not buffer[start:stop].strip(b"\0"):
            return True
        start = stop
    return False


def judge_body_crc(record: Record) -> str | None:
    """BODYCRC covers the body as stored; an empty body is not checked (2.5)."""
    if not record.body or body_crc(record.body) == record.body_crc:
        return None
    return f"body CRC is {body_crc(record.body)}, the record says {record.body_crc}"


def has_property_crc(properties: bytes) -> bool:
    """Whether properties end in a checksum of the record, not in one whose name ends like it."""
    is_last = properties[-CRC_PROPERTY_SIZE:-11] == CRC_PROPERTY and properties[-1] == 2
    return is_last and properties[-CRC_PROPERTY_SIZE - 1 : -CRC_PROPERTY_SIZE] in (b"", b"\x02")


def judge_property_crc(record: Record) -> str | None:
    """The CRC property, where there is one, covers all that stands before it (2.7)."""
    if not has_property_crc(record.raw_properties):
        return None
    tail = record.raw_properties[-CRC_PROPERTY_SIZE:]
    expected = crc_digits(zlib.crc32(record.raw[:-CRC_PROPERTY_SIZE]))
    if tail[9:19] == expected:
        return None
    return f"CRC property {tail[9:19]!r}, the record's bytes give {expected!r}"


def judge_physical_offset(record: Record) -> str | None:
    """A record knows where it stands; another place means old or foreign bytes (T5, 8.6)."""
    if record.physical_offset == record.offset:
        return None
    return f"the record says it stands at {record.physical_offset}"


def judge_zero_sector(record: Record) -> str | None:
    """No sector is all zero over the topic or the properties (8.6)."""
    end = record.size
    properties_at = end - len(record.raw_properties)
    topic_end = properties_at - 2
    topic_at = topic_end - len(record.raw_topic)
    shift = record.offset
    if _zero_sector(record.raw, topic_at, topic_end, shift):
        return "a 512-byte sector of the topic is all zero"
    if _zero_sector(record.raw, properties_at, end, shift):
        return "a 512-byte sector of the properties is all zero"
    return None


VALUE_RULES: tuple[tuple[str, Callable[[Record], str | None]], ...] = (
    ("record-offset", judge_physical_offset),
    ("record-crc", judge_body_crc),
    ("record-zero-sector", judge_zero_sector),
    ("record-property-crc", judge_property_crc),
)
"""Rules on the values of a record whose lengths hold, in the order they are asked."""
