"""Kinds of damage in a log, and the errors and gaps that a reader makes of it.

The three modes are those of Spark's text sources: PERMISSIVE gives a row that says where and why,
DROPMALFORMED leaves it out, FAILFAST ends the query.
"""

import struct
from typing import Final, NamedTuple

from rocketbed.inspect.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_SIZE_MIN
from rocketbed.pipeline.errors import Condition, PipelineError

BAD_MAGIC: Final = "bad_magic"
"""Neither a message nor a filler begins here; a zeroed range for instance."""
BAD_SIZE: Final = "bad_size"
"""The length of the record, of its body or of a filler cannot be, or its parts do not add up."""
POSITION_MISMATCH: Final = "position_mismatch"
"""The record says that it stands elsewhere: old or foreign bytes."""
CRC_MISMATCH: Final = "crc_mismatch"
"""The body's checksum, or that of the whole record where it carries one, is another."""
SHORT_RECORD: Final = "short_record"
"""The record is longer than what is left of its file."""
BAD_TOPIC: Final = "bad_topic"
"""The topic's length cannot be, it is no UTF-8, or a 512-byte sector of it is all zero."""
BAD_PROPERTIES: Final = "bad_properties"
"""As `bad_topic`, of the properties."""
BAD_BODY: Final = "bad_body"
"""The checksum holds but what the sender packed cannot be unpacked."""
TORN_TAIL: Final = "torn_tail"
"""The log ends before the offset up to which it is known to have been on disk."""
MISSING_SEGMENT: Final = "missing_segment"
"""The file is not there, or got shorter while it was read."""
REASONS: Final = (
    BAD_MAGIC,
    BAD_SIZE,
    POSITION_MISMATCH,
    CRC_MISMATCH,
    SHORT_RECORD,
    BAD_TOPIC,
    BAD_PROPERTIES,
    BAD_BODY,
    TORN_TAIL,
    MISSING_SEGMENT,
)
SHOWN_MAX: Final = 4096
"""Maximum bytes of a corrupt range in its row."""

_TAIL_MAX: Final = 2 + 0x7FFF + 2 + 0x7FFF
"""Most bytes that topic and properties take, with their lengths."""
_START: Final = struct.Struct(">2i")
_OFFSET: Final = struct.Struct(">q")
_BODY: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")


class RocketbedCorrupt(PipelineError):
    """Mode FAILFAST met bytes that are not a record."""

    condition = Condition.CORRUPT_RECORD

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(
            f"{path}: no record at physical offset {offset}: {reason}; "
            f"mode=PERMISSIVE shows such rows, DROPMALFORMED leaves them out"
        )
        self.path = path
        self.offset = offset
        self.reason = reason


class DataLost(PipelineError):
    """A file vanished or got shorter between planning and reading."""

    condition = Condition.DATA_LOSS

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(
            f"{path}: data from physical offset {offset} on is gone: {reason}; "
            f"failOnDataLoss=false reads on behind it"
        )
        self.path = path
        self.offset = offset


class Gap(NamedTuple):
    """Bytes `[offset, end)` of the log that are not a record; `prefix` are the first of them."""

    offset: int
    end: int
    reason: str
    prefix: bytes


def frame_reason(data: bytes | bytearray, position: int, offset: int, remaining: int) -> str:
    """Return the first rule of a record that the bytes at `position` break.

    `offset` is their physical offset, `remaining` the number of bytes to the end of the file. Where
    `data` ends before the record does, its parts were seen not to add up.
    """
    if remaining < _START.size:
        return SHORT_RECORD
    size, magic = _START.unpack_from(data, position)
    if magic == MAGIC_BLANK:
        return BAD_SIZE
    if magic not in (MAGIC_V1, MAGIC_V2):
        return BAD_MAGIC
    if size < RECORD_SIZE_MIN:
        return BAD_SIZE
    if size > remaining:
        return SHORT_RECORD
    if _OFFSET.unpack_from(data, position + 28)[0] != offset:
        return POSITION_MISMATCH
    if position + size > len(data):
        return BAD_SIZE
    return _parts_reason(data, position, position + size, is_wide=magic == MAGIC_V2)


def may_be_long(data: bytes | bytearray, offset: int) -> bool:
    """True if a record that is longer than `data`, which begins with it, may be valid.

    Asked before all of it is read: its length has to fit its body's, or a damaged length would cost
    as much memory.
    """
    size, magic = _START.unpack_from(data, 0)
    (flags,) = _BODY.unpack_from(data, 36)
    head = 88 + 12 * bool(flags & 0x10) + 12 * bool(flags & 0x20)
    (body,) = _BODY.unpack_from(data, head - 4)
    return (
        magic in (MAGIC_V1, MAGIC_V2)
        and _OFFSET.unpack_from(data, 28)[0] == offset
        and body >= 0
        and 3 <= size - head - body <= _TAIL_MAX
    )


def _parts_reason(data: bytes | bytearray, position: int, end: int, *, is_wide: bool) -> str:
    (flags,) = struct.unpack_from(">i", data, position + 36)
    head = 88 + 12 * bool(flags & 0x10) + 12 * bool(flags & 0x20)
    if position + head + 3 > end:
        return BAD_SIZE
    (body,) = _BODY.unpack_from(data, position + head - 4)
    topic_at = position + head + body + (2 if is_wide else 1)
    if body < 0 or topic_at + 2 > end:
        return BAD_SIZE
    if is_wide:
        (topic,) = _SHORT.unpack_from(data, topic_at - 2)
    else:
        topic = data[topic_at - 1] if data[topic_at - 1] < 128 else -1
    properties_at = topic_at + topic + 2
    if topic < 0 or properties_at > end:
        return BAD_TOPIC
    (properties,) = _SHORT.unpack_from(data, properties_at - 2)
    if properties < 0 or properties_at + properties > end:
        return BAD_PROPERTIES
    return BAD_SIZE
