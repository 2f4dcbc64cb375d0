"""Message bodies that are packed: compressed by the producer, or several messages in one.

ZLIB comes with Python, LZ4's frame format is short enough to be read here, and ZSTD needs the
library `zstandard` of the extra `zstd`. Sources: store.md 2.3, 2.12.
"""

import struct
import zlib
from io import BytesIO
from typing import NamedTuple

from rocketbed.inspect.properties import parse_properties

SYS_COMPRESSED = 0x1
_TYPE_SHIFT = 8
_LZ4, _ZSTD = 1, 2
_ZSTD_RUN = 1
"""The block type that repeats one byte (RFC 8878, 3.1.1.2)."""
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_ITEM = struct.Struct(">5i")
BODY_SIZE_MAX = 64 << 20
"""Longest body that is unpacked; anything longer counts as damage."""


class MissingCodec(Exception):
    """A body is packed in a way that needs a library which is not installed."""


class BatchItem(NamedTuple):
    """A message of an inner batch; `number` counts from 0."""

    number: int
    flag: int
    body_crc: int
    body: bytes
    properties: dict[str, str]
    stored: bytes
    """The properties as the producer wrote them."""


def unpack_body(body: bytes, sys_flag: int) -> bytes | None:
    """Return the body as it was before the producer compressed it; None when it is damaged.

    Raises `MissingCodec` for ZSTD without the extra.
    """
    if not sys_flag & SYS_COMPRESSED:
        return body
    kind = sys_flag >> _TYPE_SHIFT & 7
    try:
        if kind == _LZ4:
            return _unpack_lz4(body)
        if kind == _ZSTD:
            return _unpack_zstd(body)
        return _unpack_zlib(body)
    except (zlib.error, IndexError, struct.error, ValueError):
        return None


def unpack_inner_batch(body: bytes) -> list[BatchItem] | None:
    """Return the messages of an inner batch; None when the lengths do not add up."""
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
        stored = body[properties_at:end]
        message = body[body_at : body_at + size]
        items.append(BatchItem(len(items), flag, crc, message, parse_properties(stored), stored))
        position = end
    return items


def _unpack_zlib(data: bytes) -> bytes:
    """Unpack a whole ZLIB stream. Raises `zlib.error` or `ValueError` for damage."""
    stream = zlib.decompressobj()
    unpacked = stream.decompress(data, BODY_SIZE_MAX + 1)
    # For a stream that is cut off or too long, zlib returns what it has without an error.
    if not stream.eof or len(unpacked) > BODY_SIZE_MAX:
        raise ValueError(f"the ZLIB stream is cut off, or holds more than {BODY_SIZE_MAX} bytes")
    return unpacked


def _unpack_zstd(data: bytes) -> bytes:
    """Unpack a whole ZSTD frame. Raises `ValueError` for damage, `MissingCodec` without the
    library."""
    try:
        import zstandard
    except ModuleNotFoundError as exc:
        raise MissingCodec(
            "the body is packed with ZSTD: pip install zstandard to read it"
        ) from exc
    try:
        end = zstandard.frame_header_size(data)
        is_last = False
        while not is_last:  # the library accepts a frame that is cut off between blocks
            word = int.from_bytes(data[end : end + 3].ljust(3, b"\0"), "little")
            is_last, kind, size = bool(word & 1), word >> 1 & 3, word >> 3
            end += 3 + (1 if kind == _ZSTD_RUN else size)
            if end > len(data):
                raise ValueError("the ZSTD frame is cut off")
        unpacked = zstandard.ZstdDecompressor().stream_reader(BytesIO(data)).read(BODY_SIZE_MAX + 1)
    except zstandard.ZstdError as exc:
        raise ValueError(str(exc)) from exc
    if len(unpacked) > BODY_SIZE_MAX:
        raise ValueError(f"the ZSTD frame holds more than {BODY_SIZE_MAX} bytes")
    return unpacked


def _unpack_lz4(data: bytes) -> bytes:
    """Unpack a whole LZ4 frame. Its checksums are skipped, since BODYCRC covers the packed body."""
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
        _copy_match(output, distance, length + 4)


def _lz4_length(block: bytes, position: int, length: int) -> tuple[int, int]:
    if length == 15:
        while block[position] == 255:
            length += 255
            position += 1
        length += block[position]
        position += 1
    return length, position


def _copy_match(output: bytearray, distance: int, length: int) -> None:
    """Repeat `length` bytes from `distance` bytes back; the copy may overlap the bytes it
    writes."""
    start = len(output) - distance
    if distance <= 0 or start < 0:
        raise ValueError("a match points before the start of the data")
    piece = bytes(output[start : start + length])
    while len(piece) < length:
        piece += piece[: length - len(piece)]
    output += piece
