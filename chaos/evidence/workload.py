"""Bodies that name their writer, so that any stored record can be traced to one attempt.

A body carries the value of its attempt (unique in a run), its operation (the same for retries), the
producer and its sequence number, and a CRC-32C of all of it. The remaining bytes are filler derived
from the value, so that a body with bytes of another one is detected. Source: chaos.md 2.1.
"""

import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import crcmod.predefined

_MAGIC = b"RBW1"
_HEAD = struct.Struct(">4sQQIQI")
NAMED_BY = "ROCKETBED_WRITER"
"""Property that names the writer of an arbitrary body: its four numbers and the body's CRC."""
NOTE = "rocketbed note"
"""Property that some messages have, like those of an application."""
BODY_SIZE_MIN = _HEAD.size
"""Size of a body without filler, bytes."""
_crc32c: Callable[..., int] = crcmod.predefined.mkPredefinedCrcFun("crc-32c")


class Writer(NamedTuple):
    value: int
    operation: int
    producer: int
    sequence: int


def encode_body(writer: Writer, size: int) -> bytes:
    """Return a body of `size` bytes (at least `BODY_SIZE_MIN`) that names its writer.

    Raises `ValueError` for a smaller size.
    """
    if size < BODY_SIZE_MIN:
        raise ValueError(f"a body that names its writer needs at least {BODY_SIZE_MIN} bytes")
    return sign_body(writer, _filler(writer.value, size - BODY_SIZE_MIN))


def sign_body(writer: Writer, content: bytes) -> bytes:
    """Return a body that names its writer and then has this content."""
    unsigned = _HEAD.pack(_MAGIC, *writer, 0)
    return _HEAD.pack(_MAGIC, *writer, _crc32c(unsigned + content)) + content


def decode_body(body: bytes) -> Writer | None:
    """Return the writer of a body; None if it is another kind of body, or any byte of it is
    wrong."""
    if len(body) < BODY_SIZE_MIN:
        return None
    magic, value, operation, producer, sequence, crc = _HEAD.unpack_from(body)
    unsigned = _HEAD.pack(magic, value, operation, producer, sequence, 0)
    if magic != _MAGIC or _crc32c(unsigned + body[BODY_SIZE_MIN:]) != crc:
        return None
    return Writer(value, operation, producer, sequence)


def signature(writer: Writer, body: bytes) -> dict[str, str]:
    """Return a property that names the writer of a message with any body."""
    return {NAMED_BY: ".".join(map(str, (*writer, body_crc(body))))}


def writer_of(body: bytes, properties: Mapping[str, str]) -> Writer | None:
    """Return the writer of a message, by its body or its property; None if neither names one."""
    writer = decode_body(body)
    if writer is not None or NAMED_BY not in properties:
        return writer
    numbers = properties[NAMED_BY].split(".")
    if len(numbers) != 5 or not all(map(str.isdecimal, numbers)):
        return None
    *named, crc = map(int, numbers)
    return Writer(*named) if crc == body_crc(body) else None


def body_crc(body: bytes) -> int:
    """Return RocketMQ's BODYCRC, which the history keeps of each body."""
    return zlib.crc32(body) & 0x7FFFFFFF


def note_of(value: int) -> dict[str, str]:
    """Return a property as applications set it: text that a careless parser truncates."""
    return {NOTE: f'n\u00ba {value}; a=b, "\u00fc"\n\U0001f680'}


def label_crc(tag: str | None, keys: Iterable[str], properties: Mapping[str, str]) -> int:
    """Return a checksum of a message's tag, keys and property `NOTE`."""
    labels = [tag or "", *keys, *([f"\1{properties[NOTE]}"] if NOTE in properties else ())]
    return zlib.crc32("\0".join(labels).encode()) & 0x7FFFFFFF


def tag_crc(tag: str) -> int:
    return zlib.crc32(tag.encode())


def _filler(value: int, size: int) -> bytes:
    """Return text that differs for each value and is readable in a dump."""
    word = b"%016x " % value
    return (word * (size // len(word) + 1))[:size]
