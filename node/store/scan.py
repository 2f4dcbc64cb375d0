"""Reading the log record by record: for dispatch, for recovery, to tell a torn tail from damage.

A single tight loop over a buffer (recovery of a whole log aims at 300 MiB/s), so it is long for a
function here and creates nothing but entries.
"""

import struct
import zlib
from collections.abc import Generator
from enum import Enum, auto
from typing import NamedTuple

from rocketbed.node.store.config import StoreConfig, parse_delay_levels
from rocketbed.node.store.entry import NO_UNIT, ONE_UNIT, Entry
from rocketbed.node.store.log_bodies import LogBodies, log_bodies
from rocketbed.wire.javahash import tag_code
from rocketbed.wire.message import (
    BLANK,
    BORN_IPV6,
    CRC_MASK,
    HEAD,
    INNER_BATCH,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_MIN,
    STORE_IPV6,
    TAIL,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    V1_TOPIC_MAX,
)
from rocketbed.wire.properties import (
    CRC32,
    CRC_SIZE,
    find_property,
    index_keys,
    tag_key,
    text_of,
)

SECTOR = 512
"""Unit of a disk's writes; a sector that was never written reads as zeros."""
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
_V4_REST = struct.Struct(">8xq8x12xi")
"""With two IPv4 hosts: born host, store time, store host and the fields up to the body length."""
_IPV6 = (BORN_IPV6, STORE_IPV6)
_UNIQUE_NAME = b"UNIQ_KEY\x01"
SHAPES_MAX = 4096
_CRC_NAME = CRC32.encode() + b"\x01"
_ZEROS = bytes(SECTOR)
_UNWRITTEN = bytes(BLANK.size)
"""Bytes after the last record: every segment leaves room for this much."""
TOPIC_BYTES_MAX = 255
"""Longest name that a directory of a queue can have."""


class Stop(Enum):
    MORE = auto()
    """The next record may extend beyond the buffer."""
    BLANK = auto()
    """A blank record: continue at the next segment."""
    BAD = auto()
    """No record here: the end of the log, a torn tail, or damage."""


class Scanned(NamedTuple):
    entries: list[Entry]
    end: int
    """Physical offset after the last good record."""
    stop: Stop
    reason: str
    """Problem of a bad record."""
    size: int = 0
    """With `MORE`: size that the record at `end` claims, 0 if its head is incomplete."""


class RecordScanner:
    """Parses records; `check_crc` for recovery, off for live dispatch.

    `delay_ms` maps a delay level to milliseconds: units of the delay topic store delivery times.
    """

    def __init__(
        self, *, check_crc: bool, delays_ms: list[int], bodies: LogBodies | None = None
    ) -> None:
        self._check_crc = check_crc
        self._take_plain = bodies.scan if bodies is not None else None
        self._delays_ms = delays_ms
        self.doubts_ends = check_crc
        """True if zeros at the end of the last record may mean that it was never written."""
        self._index_tags = False
        self._topics: dict[bytes, str] = {}
        self._shapes: dict[bytes, tuple[int, tuple[str, ...]]] = {}
        """Properties without the unique key -> the tag's code and the remaining keys."""

    @property
    def index_tags(self) -> bool:
        """True if a tag is one of a record's keys (store.md 4.2)."""
        return self._index_tags

    @index_tags.setter
    def index_tags(self, value: bool) -> None:
        if value != self._index_tags:
            self._index_tags = value
            self._shapes.clear()

    def scan(
        self, buffer: bytes, base: int, *, segment_end: int, zero_rule_from: int | None = None
    ) -> Scanned:
        """Return the records of `buffer`, whose first byte is at physical offset `base`, a record's
        start.

        `segment_end` is the offset where the segment ends. Records at or above `zero_rule_from` are
        refused if a whole sector of their topic or properties reads as zeros (store.md 8.6). With
        `check_crc` a record whose end reads as zeros is refused if it is the last one: a kill may
        leave any first part of a record, and no checksum covers topic and properties.
        """
        entries: list[Entry] = []
        position, length = 0, len(buffer)
        unpack, parse = HEAD.unpack_from, self._parse
        is_to_end = base + length >= segment_end
        while True:
            if self._take_plain is not None:
                position = self._take_plain(
                    buffer,
                    position,
                    base,
                    segment_end,
                    self._check_crc,
                    self._topics,
                    self._shapes,
                    self._tag_and_keys,
                    entries,
                )
            if length - position < HEAD.size:
                if length - position >= 8:
                    size, magic = BLANK.unpack_from(buffer, position)
                    if magic == MAGIC_BLANK and base + position + size == segment_end:
                        return Scanned(entries, base + position, Stop.BLANK, "")
                stop = Stop.BAD if is_to_end else Stop.MORE
                return Scanned(entries, base + position, stop, "cut off")
            head = unpack(buffer, position)
            size, magic = head[0], head[1]
            if magic != MAGIC_V1 and magic != MAGIC_V2:
                if magic == MAGIC_BLANK and base + position + size == segment_end:
                    return Scanned(entries, base + position, Stop.BLANK, "")
                reason = "no record here" if magic else "zeros"
                return Scanned(entries, base + position, Stop.BAD, reason)
            # The offset before the size: a wrong size must not decide how much is read.
            if head[6] != base + position:
                reason = f"it says it is at offset {head[6]}"
                return Scanned(entries, base + position, Stop.BAD, reason)
            if size < RECORD_MIN or base + position + size > segment_end:
                return Scanned(entries, base + position, Stop.BAD, f"impossible size {size}")
            if position + size > length:
                stop = Stop.BAD if is_to_end else Stop.MORE
                return Scanned(entries, base + position, stop, "cut off", size)
            if (
                not buffer[position + size - 1]
                and self.doubts_ends
                and not is_to_end
                and position + size + BLANK.size > length
            ):
                return Scanned(entries, base + position, Stop.MORE, "cut off", size)
            zero_rule = zero_rule_from is not None and base + position >= zero_rule_from
            entry = parse(buffer, position, base, head, zero_rule)
            if type(entry) is str:
                return Scanned(entries, base + position, Stop.BAD, entry, size)
            entries.append(entry)  # type: ignore[arg-type]
            position += size

    def _parse(
        self, buffer: bytes, at: int, base: int, head: tuple[int, ...], zero_rule: bool
    ) -> Entry | str:
        """Return the entry of one record, or what is wrong with it."""
        size, magic, crc, queue_id, _, queue_offset, physical, sys_flag, _ = head
        end = at + size
        if not sys_flag & (BORN_IPV6 | STORE_IPV6):
            store_ms, body_length = _V4_REST.unpack_from(buffer, at + HEAD.size)
            body_at = at + HEAD.size + _V4_REST.size
        else:
            store_at = at + (68 if sys_flag & BORN_IPV6 else 56)
            tail_at = store_at + (28 if sys_flag & STORE_IPV6 else 16)
            body_at = tail_at + TAIL.size
            if body_at > end:
                return f"impossible size {size}"
            store_ms = int.from_bytes(buffer[store_at : store_at + 8], "big")
            body_length = TAIL.unpack_from(buffer, tail_at)[2]
        topic_at = body_at + body_length
        if body_length < 0 or topic_at + 3 > end:
            return f"impossible body length {body_length}"
        topic_length = buffer[topic_at]
        topic_at += 1
        if magic == MAGIC_V2:
            topic_length = topic_length << 8 | buffer[topic_at]
            topic_at += 1
        elif topic_length > V1_TOPIC_MAX:
            return "negative topic length"
        properties_at = topic_at + topic_length + 2
        if properties_at > end:
            return f"impossible topic length {topic_length}"
        if buffer[properties_at - 2] << 8 | buffer[properties_at - 1] != end - properties_at:
            return "its fields do not add up to its size"
        body = buffer[body_at : body_at + body_length] if self._check_crc else b""
        if body and zlib.crc32(body) & CRC_MASK != crc:
            return "body CRC does not match"
        properties = buffer[properties_at:end]
        topic_bytes = buffer[topic_at : properties_at - 2]
        if self._check_crc:
            problem = _late_damage(buffer, at, base, topic_at, properties, end, zero_rule)
            if problem:
                return problem
            if (
                self.doubts_ends
                and not buffer[end - 1]
                and buffer[end : end + BLANK.size] == _UNWRITTEN
                and (properties or not buffer[properties_at - 3])
            ):
                return "its end was never written"
        return self._entry(
            topic_bytes, properties, queue_id, queue_offset, physical, size, sys_flag, store_ms
        )

    def _entry(
        self,
        topic_bytes: bytes,
        properties: bytes,
        queue_id: int,
        queue_offset: int,
        physical: int,
        size: int,
        sys_flag: int,
        store_ms: int,
    ) -> Entry | str:
        topic = self._topics.get(topic_bytes)
        if topic is None:
            topic = usable_topic(topic_bytes)
            if len(self._topics) < 65_536:
                self._topics[topic_bytes] = topic
        code, keys = self._tag_and_keys(properties)
        units = ONE_UNIT
        transaction = sys_flag & TRANSACTION_MASK
        if transaction == TRANSACTION_ROLLBACK:
            units, keys = NO_UNIT, ()
        elif transaction == TRANSACTION_PREPARED:
            units = NO_UNIT
        elif sys_flag & INNER_BATCH:
            units = -_small(find_property(properties, b"INNER_NUM\x01"))
            if not units:
                return "an inner batch without INNER_NUM"
        if not topic or queue_id < 0:
            units, keys = NO_UNIT, ()
        if topic == SCHEDULE_TOPIC:
            level = find_property(properties, b"DELAY\x01") or b""
            code = self._deliver_at(level, store_ms) or code
        return tuple.__new__(
            Entry, (topic, queue_id, queue_offset, physical, size, code, store_ms, keys, units)
        )

    def _tag_and_keys(self, properties: bytes) -> tuple[int, tuple[str, ...]]:
        """Return the tag's code and the keys for the index. Most records have the properties of an
        earlier one, except for the unique key: the text without it is looked up."""
        at = properties.rfind(_UNIQUE_NAME)
        key_at = at + len(_UNIQUE_NAME)
        end = properties.find(b"\x02", key_at)
        is_plain = at >= 0 and end > key_at and (at == 0 or properties[at - 1] == 2)
        without_key = properties[:at] + properties[end:] if is_plain else b""
        if is_plain and (shape := self._shapes.get(without_key)) is not None:
            code, further_keys = shape
            return code, (properties[key_at:end].decode(errors="replace"), *further_keys)
        tag = text_of(find_property(properties, b"TAGS\x01")) or ""
        code = tag_code(tag) if tag else 0
        keys = index_keys(
            text_of(find_property(properties, _UNIQUE_NAME)),
            text_of(find_property(properties, b"KEYS\x01")),
        )
        if tag and self._index_tags:
            keys = (*keys, tag_key(tag))
        if is_plain and len(self._shapes) < SHAPES_MAX:
            self._shapes[without_key] = code, keys[1:]
        return code, keys

    def _deliver_at(self, level_text: bytes, store_ms: int) -> int:
        """Return the delivery time of a delayed record, 0 if it has no level (store.md 2.8)."""
        level = min(_small(level_text), len(self._delays_ms))
        if not _small(level_text):
            return 0
        return store_ms + (self._delays_ms[level - 1] if level else 1000)


def _small(digits: bytes | None) -> int:
    """Return a property's number; 0 if absent, at most a billion: a property has no checksum, and
    may have thousands of digits."""
    if digits is None or not digits.isdigit():
        return 0
    return int(digits) if len(digits) < 10 else 10**9


def usable_topic(name: bytes) -> str:
    """Return a record's topic, empty if no queue can have it: it becomes the name of a directory.

    No checksum covers a topic, so bit rot can turn it into anything. RocketMQ allows less, but has
    not always.
    """
    if not name or len(name) > TOPIC_BYTES_MAX or name in (b".", b"..") or {0, 47} & set(name):
        return ""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return ""


def doubt_lengths(head: bytes) -> Generator[tuple[int, int], bytes, str]:
    """Return what is wrong with the lengths of a record's fields, read without its body.

    `head` is the record's first `HEAD.size` bytes. Requests three pieces of it, by position in the
    record and size; a short piece ends the check, as nothing is known then.
    """
    size, magic, *_, sys_flag, _ = HEAD.unpack(head)
    fixed = HEAD.size + _V4_REST.size + 12 * sum(bool(sys_flag & v) for v in _IPV6)
    data = yield fixed - 4, 4
    if len(data) < 4:
        return ""
    body_length = int.from_bytes(data, "big", signed=True)
    topic_at = fixed + body_length
    width = 2 if magic == MAGIC_V2 else 1
    if body_length < 0 or topic_at + width + 2 > size:
        return f"impossible body length {body_length}"
    data = yield topic_at, width
    topic_length = int.from_bytes(data, "big")
    properties_at = topic_at + width + topic_length + 2
    if len(data) < width:
        return ""
    if properties_at > size:
        return f"impossible topic length {topic_length}"
    data = yield properties_at - 2, 2
    if len(data) == 2 and properties_at + int.from_bytes(data, "big") != size:
        return "its fields do not add up to its size"
    return ""


def _late_damage(
    buffer: bytes,
    at: int,
    base: int,
    topic_at: int,
    properties: bytes,
    end: int,
    zero_rule: bool,
) -> str:
    """Check what the body's CRC does not cover: the record checksum, and lost sectors."""
    is_whole_name = properties[-CRC_SIZE - 1 : -CRC_SIZE] in (b"", b"\x02")
    if is_whole_name and properties[-CRC_SIZE:].startswith(_CRC_NAME) and properties[-1] == 2:
        digits = properties[-CRC_SIZE + len(_CRC_NAME) : -1]
        value = zlib.crc32(memoryview(buffer)[at : end - CRC_SIZE]) & CRC_MASK
        if digits != str(value)[::-1].ljust(10, "0").encode():
            return "record checksum does not match"
    if zero_rule and 0 in properties + buffer[topic_at : end - len(properties) - 2]:
        for start, stop in ((topic_at, end - len(properties) - 2), (end - len(properties), end)):
            if _lost_sector(buffer, base, start, stop):
                return "a lost sector in its topic or properties"
    return ""


def _lost_sector(buffer: bytes, base: int, start: int, stop: int) -> bool:
    """True if the part of some sector within [start, stop) of the buffer is all zero."""
    while start < stop:
        sector_end = min(stop, start + SECTOR - (base + start) % SECTOR)
        if buffer[start:sector_end] == _ZEROS[: sector_end - start]:
            return True
        start = sector_end
    return False


def crc_scanner(config: StoreConfig) -> RecordScanner:
    """Return a scanner that compares checksums, for everything but live dispatch."""
    delays_ms = parse_delay_levels(config.delay_levels)
    return RecordScanner(
        check_crc=True, delays_ms=delays_ms, bodies=log_bodies(enabled=config.native)
    )
