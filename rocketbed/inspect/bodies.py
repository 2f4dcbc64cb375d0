"""Bodies that hold something else: packed by the producer, or several messages in one.

ZLIB is Python's, LZ4's frame format is short enough to be read here, and ZSTD has a module of its
own. Sources: store.md 2.3, 2.12.
"""

import struct
import zlib
from typing import NamedTuple

from rocketbed.inspect.properties import parse_properties
from rocketbed.inspect.zstd import ZstdError, copy_match, decompress

SYS_COMPRESSED = 0x1
_TYPE_SHIFT = 8
_LZ4, _ZSTD = 1, 2
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_ITEM = struct.Struct(">5i")
BODY_SIZE_MAX = 64 << 20
"""No body unpacks to more; a longer one is taken for damage."""


class BatchItem(NamedTuple):
    """One message of an inner batch; `number` counts from 0."""

    number: int
    flag: int
    body_crc: int
    body: bytes
    properties: dict[str, str]


def unpack_body(body: bytes, sys_flag: int) -> bytes | None:
    """The body as it was before the producer packed it; None when it cannot be unpacked."""
    if not sys_flag & SYS_COMPRESSED:
        return body
    kind = sys_flag >> _TYPE_SHIFT & 7
    try:
        if kind == _LZ4:
            return _unpack_lz4(body)
        if kind == _ZSTD:
            return decompress(body, BODY_SIZE_MAX)
        return zlib.decompressobj().decompress(body, BODY_SIZE_MAX)
    except (zlib.error, ZstdError, IndexError, struct.error, ValueError):
        return None


def unpack_inner_batch(body: bytes) -> list[BatchItem] | None:
    """The messages of an inner batch; None when the lengths do not hold."""
    items: list[BatchItem] = []
    position = 0
    while position < len(body):
        try:
            total, _, crc, flag, size = _ITEM.unpack_from(body, position)
            body_at = position + _ITEM.size
            (properties_size,) = struct.unpack_from(">h", body, body_at + size)
        except struct.error:
            return None
        properties_at = body_at + size + 2
        end = properties_at + properties_size
        if size < 0 or properties_size < 0 or end != position + total or end > len(body):
            return None
        properties = parse_properties(body[properties_at:end])
        items.append(BatchItem(len(items), flag, crc, body[body_at : body_at + size], properties))
        position = end
    return items


def _unpack_lz4(data: bytes) -> bytes:
    """A whole LZ4 frame; checksums are passed over, since BODYCRC covers the packed body."""
    if data[:4] != _LZ4_MAGIC:
        raise ValueError("not an LZ4 frame")
    flags = data[4]
    position = 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    output = bytearray()
    while True:
        (size,) = struct.unpack_from("<I", data, position)
        position += 4
        if size == 0:
            return bytes(output)
        stored = size & 0x7FFFFFFF
        block = data[position : position + stored]
        if len(block) < stored:
            raise ValueError("the LZ4 frame ends within a block")
        if size & 0x80000000:
            output += block
        else:
            _unpack_lz4_block(block, output)
        position += stored + (4 if flags & 0x10 else 0)
        if len(output) > BODY_SIZE_MAX:
            raise ValueError("the LZ4 frame is too long")


def _unpack_lz4_block(block: bytes, output: bytearray) -> None:
    position = 0
    while position < len(block):
        token = block[position]
        position += 1
        literals, position = _lz4_length(block, position, token >> 4)
        output += block[position : position + literals]
        position += literals
        if position >= len(block):
            return
        distance = block[position] | block[position + 1] << 8
        length, position = _lz4_length(block, position + 2, token & 15)
        copy_match(output, distance, length + 4)


def _lz4_length(block: bytes, position: int, length: int) -> tuple[int, int]:
    if length == 15:
        while block[position] == 255:
            length += 255
            position += 1
        length += block[position]
        position += 1
    return length, position
