"""A record of the commit log: its layout, and every reason why bytes are not a record.

The reader shares no code with the broker's store or the wire codec on purpose: two implementations
that agree are evidence, one that agrees with itself is not. A record can be read in two ways.
`scan_record` is fast, with a single unpack and no object but a tuple; it only accepts or refuses.
`dissect` is slow, for refused records and for display; it names the rule that is broken. A property
test checks that they agree.

Layout: store.md 2 (RocketMQ: `MessageExtEncoder`, `CommitLog.checkMessageAndReturnSize`).
"""

import struct
import zlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import NamedTuple

from rocketbed.inspect.properties import parse_properties

MAGIC_V1 = 0xDAA320A7 - (1 << 32)
"""Magic of records with the topic length in one byte."""
MAGIC_V2 = 0xDAA320AB - (1 << 32)
"""Magic of records with the topic length in two bytes, for topics above 127 characters."""
MAGIC_BLANK = 0xCBD43194 - (1 << 32)
"""Magic of the filler at the end of a segment."""
MAGIC_PREFIX = b"\xda\xa3\x20"
"""First three bytes of both message magics; the fourth is A7 or AB."""

SYS_TRANSACTION = 0xC
SYS_ROLLBACK = 0xC
SYS_PREPARED = 0x4
SYS_BORN_IPV6 = 0x10
SYS_STORE_IPV6 = 0x20
SYS_INNER_BATCH = 0x80

CRC_PROPERTY = b"__CRC32#\x01"
CRC_PROPERTY_SIZE = 20
RECORD_SIZE_MIN = 91
"""Size of an IPv4 record without body, topic and properties."""
SECTOR = 512

_HEADS = {
    flags: struct.Struct(f">5i2qiq{born}sq{store}siqi")
    for flags, born, store in ((0, 8, 8), (0x10, 20, 8), (0x20, 8, 20), (0x30, 20, 20))
}
"""Fixed part, up to and including the body length, by the two IPv6 bits of SYSFLAG (store.md
2.1)."""
_HEAD_IPV4 = _HEADS[0]
_TOTAL_AND_MAGIC = struct.Struct(">2i")
_SHORT = struct.Struct(">h")


class Scanned(NamedTuple):
    """Fields of a good record that a scan keeps. Offsets and sizes in bytes, times in
    milliseconds."""

    offset: int
    size: int
    sys_flag: int
    queue_id: int
    queue_offset: int
    store_ms: int
    topic: bytes
    properties: bytes


class Fault(NamedTuple):
    """Reason why some bytes are not a good record."""

    rule: str
    reason: str
    size: int
    """TOTALSIZE if the record's own length is plausible, else -1."""


@dataclass(frozen=True, slots=True)
class Record:
    """A whole record. Hosts are address bytes and a port as i32, as stored (8 or 20 bytes)."""

    offset: int
    """Offset at which it was read, bytes from the start of the log."""
    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    """Offset that the record claims; equal to `offset` in a good record."""
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
        """Properties by name; of duplicates the last counts."""
        return parse_properties(self.raw_properties)

    @property
    def scanned(self) -> Scanned:
        """The record in the form that a scan yields."""
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
    """Return the record at `position` of `buffer`, or None when it breaks any rule or is cut off.

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
    """Return the length to which the record's fields add up, without reading its body; -1 if a
    length is impossible.

    `head` is its first 40 bytes. Yields the (position, size) of pieces that it needs to be sent.
    """
    _, magic, *_, sys_flag = struct.unpack_from(">5i2qi", head)
    at = _HEADS[sys_flag & 0x30].size
    for size_form in (">i", ">h" if magic == MAGIC_V2 else ">b", ">h"):
        width = struct.calcsize(size_form)
        # The body length is the last field of the fixed part.
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
    """Return the whole record at `position` of `buffer`, or the first rule that it breaks.

    `buffer` ends where the segment ends (a record never crosses it). `offset` is the physical
    offset of `position`.
    """
    record = _take_apart(buffer, position, offset)
    if isinstance(record, Fault):
        return record
    for rule, judge in VALUE_RULES:
        reason = judge(record)
        if reason is not None:
            return Fault(rule, reason, record.size)
    return record


def blank_size(buffer: bytes, position: int) -> int | None:
    """Return the length that a filler record at `position` claims; None when it is no filler."""
    if len(buffer) - position < _TOTAL_AND_MAGIC.size:
        return None
    size, magic = _TOTAL_AND_MAGIC.unpack_from(buffer, position)
    return int(size) if magic == MAGIC_BLANK else None


def crc_digits(crc: int) -> bytes:
    """Format a CRC as the property holds it: ten digits, least significant first (store.md 2.7)."""
    return str(crc & 0x7FFFFFFF)[::-1].ljust(10, "0").encode()


def body_crc(body: bytes) -> int:
    """Compute BODYCRC of a body (store.md 2.5)."""
    return zlib.crc32(body) & 0x7FFFFFFF if body else 0


def _take_apart(buffer: bytes, position: int, offset: int) -> Record | Fault:
    """Split a record by its lengths; return the fault of the first length that is impossible."""
    available = len(buffer) - position
    if available < _TOTAL_AND_MAGIC.size:
        return Fault("record-short", f"only {available} bytes before the end of the segment", -1)
    total, magic = _TOTAL_AND_MAGIC.unpack_from(buffer, position)
    if magic not in (MAGIC_V1, MAGIC_V2):
        return Fault("record-magic", f"magic 0x{magic & 0xFFFFFFFF:08X} is not a message's", -1)
    if total < RECORD_SIZE_MIN or total > available:
        reason = f"length {total} with {available} bytes to the end of the segment"
        return Fault("record-short", reason, -1)
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
    """Return body, topic, properties and their end, for a record whose fixed part is read."""
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
        reason = f"properties length {properties_size} does not fit in the record"
        return Fault("record-properties", reason, -1)
    body = raw[body_at : body_at + body_size]
    return body, raw[topic_at : topic_at + topic_size], raw[properties_at:end], end


def _zero_sector(buffer: bytes, start: int, end: int, shift: int) -> bool:
    """True if some 512-byte sector of the log has only zeros in `buffer[start:end]`.

    A lost sector of a fresh segment reads as zeros, and nothing else covers topic and properties
    (store.md 8.6, T5). `shift` added to a position of the buffer gives its physical offset.
    """
    while start < end:
        stop = min(end, start + SECTOR - (start + shift) % SECTOR)
        if not buffer[start:stop].strip(b"\0"):
            return True
        start = stop
    return False


def judge_body_crc(record: Record) -> str | None:
    """Check BODYCRC, which covers the body as stored; an empty body is not checked (store.md
    2.5)."""
    if not record.body or body_crc(record.body) == record.body_crc:
        return None
    return f"body CRC is {body_crc(record.body)}, the record says {record.body_crc}"


def has_property_crc(properties: bytes) -> bool:
    """True if properties end in a checksum of the record, not in a property whose name ends
    alike."""
    is_last = properties[-CRC_PROPERTY_SIZE:-11] == CRC_PROPERTY and properties[-1] == 2
    return is_last and properties[-CRC_PROPERTY_SIZE - 1 : -CRC_PROPERTY_SIZE] in (b"", b"\x02")


def judge_property_crc(record: Record) -> str | None:
    """Check the CRC property, if there is one: it covers all bytes before it (store.md 2.7)."""
    if not has_property_crc(record.raw_properties):
        return None
    tail = record.raw_properties[-CRC_PROPERTY_SIZE:]
    expected = crc_digits(zlib.crc32(record.raw[:-CRC_PROPERTY_SIZE]))
    if tail[9:19] == expected:
        return None
    return f"CRC property {tail[9:19]!r}, the record's bytes give {expected!r}"


def judge_physical_offset(record: Record) -> str | None:
    """Check the record's own offset; a wrong one means old or foreign bytes (T5, store.md 8.6)."""
    if record.physical_offset == record.offset:
        return None
    return f"the record says it stands at {record.physical_offset}"


def judge_zero_sector(record: Record) -> str | None:
    """Check that no sector of topic or properties is all zero (store.md 8.6)."""
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
"""Rules on the values of a record whose lengths are valid, in the order of their checks."""
