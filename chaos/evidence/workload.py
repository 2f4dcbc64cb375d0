"""Bodies that name their writer, so that any stored record can be traced to one attempt.

A body carries the value of its attempt (unique in a run), its operation (the same for retries), the
producer and its sequence number, and a CRC-32C of all of it; the rest is filler that follows from
the value, so that a body with bytes of another one does not pass. Source: chaos.md 2.1.
"""

import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import crcmod.predefined

_MAGIC = b"RBW1"
_HEAD = struct.Struct(">4sQQIQI")
NAMED_BY = "ROCKETBED_WRITER"
"""Property that names the writer of a body that does not: its four numbers and the body's CRC."""
NOTE = "rocketbed note"
"""Property that some messages have, as an application gives them its own."""
BODY_SIZE_MIN = _HEAD.size
"""Bytes of a body without filler."""
_crc32c: Callable[..., int] = crcmod.predefined.mkPredefinedCrcFun("crc-32c")


class Writer(NamedTuple):
    value: int
    operation: int
    producer: int
    sequence: int


def encode_body(writer: Writer, size: int) -> bytes:
    """A body of `size` bytes (at least `BODY_SIZE_MIN`) that names its writer.

    Raises `ValueError` for a smaller size.
    """
    if size < BODY_SIZE_MIN:
        raise ValueError(f"a body that names its writer needs at least {BODY_SIZE_MIN} bytes")
    return sign_body(writer, _filler(writer.value, size - BODY_SIZE_MIN))


def sign_body(writer: Writer, content: bytes) -> bytes:
    """A body that names its writer and then has this content."""
    unsigned = _HEAD.pack(_MAGIC, *writer, 0)
    return _HEAD.pack(_MAGIC, *writer, _crc32c(unsigned + content)) + content


def decode_body(body: bytes) -> Writer | None:
    """Who wrote a body; None when it is no such body, or any byte of it is wrong."""
    if len(body) < BODY_SIZE_MIN:
        return None
    magic, value, operation, producer, sequence, crc = _HEAD.unpack_from(body)
    unsigned = _HEAD.pack(magic, value, operation, producer, sequence, 0)
    if magic != _MAGIC or _crc32c(unsigned + body[BODY_SIZE_MIN:]) != crc:
        return None
    return Writer(value, operation, producer, sequence)


def signature(writer: Writer, body: bytes) -> dict[str, str]:
    """A property that names the writer of a message with any body."""
    return {NAMED_BY: ".".join(map(str, (*writer, body_crc(body))))}


def writer_of(body: bytes, properties: Mapping[str, str]) -> Writer | None:
    """Who wrote a message, by its body or by its property; None when neither tells."""
    writer = decode_body(body)
    if writer is not None or NAMED_BY not in properties:
        return writer
    numbers = properties[NAMED_BY].split(".")
    if len(numbers) != 5 or not all(map(str.isdecimal, numbers)):
        return None
    *named, crc = map(int, numbers)
    return Writer(*named) if crc == body_crc(body) else None


def body_crc(body: bytes) -> int:
    """RocketMQ's BODYCRC, which the history keeps of each body."""
    return zlib.crc32(body) & 0x7FFFFFFF


def note_of(value: int) -> dict[str, str]:
    """A property that the application gives a message: text that a careless parser cuts."""
    return {NOTE: f'n\u00ba {value}; a=b, "\u00fc"\n\U0001f680'}


def label_crc(tag: str | None, keys: Iterable[str], properties: Mapping[str, str]) -> int:
    """A checksum of what a message has beside its body: tag, keys and the property `NOTE`."""
    labels = [tag or "", *keys, *([f"\1{properties[NOTE]}"] if NOTE in properties else ())]
    return zlib.crc32("\0".join(labels).encode()) & 0x7FFFFFFF


def tag_crc(tag: str) -> int:
    return zlib.crc32(tag.encode())


def _filler(value: int, size: int) -> bytes:
    """Text that differs from one value to the next and is readable in a dump."""
    word = b"%016x " % value
    return (word * (size // len(word) + 1))[:size]
