"""Headers of sends, split into the part that repeats and the values that differ per message.

A producer's headers differ in born time, property string and opaque; the parts between them repeat
with each message. `cut` splits a header without parsing the repeated parts, `join` composes one,
and together they find the meaning of those parts: a header with other values in these three places
is decoded in the general way. There is one `Form` per encoding.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgpack
import orjson

from rocketbed.wire.codes import RequestCode
from rocketbed.wire.command import LANGUAGE, RESPONSE_BIT, VERSION, Command, Encoding
from rocketbed.wire.encoding import binary as header_binary
from rocketbed.wire.encoding import json as header_json
from rocketbed.wire.encoding import positional as header_msgpack

HeaderKey = tuple[Any, ...]
"""Parts between the values that differ; keys of one encoding have the same length."""
Cut = tuple[HeaderKey, int, str, Any]
"""Key, born time in ms, property string, opaque in the form for answers: a text in JSON."""

_BORN, _STRING, _OPAQUE = b'"g":"', b'"i":"', b'"opaque":'
_BORN_ENTRY, _STRING_ENTRY = b"\0\x01g\0\0\0\r", b"\0\x01i"
"""The born time has 13 digits until the year 2286."""
_BORN_DIGITS = 13
_CODE: Final = RequestCode.SEND_MESSAGE_V2
BEGINNINGS: Final = (
    b'{"code":%d,' % _CODE,
    _CODE.to_bytes(2, "big"),
    b"\x96\xcd" + _CODE.to_bytes(2, "big"),
)
"""Beginnings of headers that may be worth a cut."""
JSON_ANSWER: Final = (
    b'{"code":0,"extFields":{"msgId":"',
    b'","queueId":"',
    b'","queueOffset":"',
    b'","transactionId":"',
    b'","MSG_REGION":"DefaultRegion","TRACE_ON":"true"},"flag":1,"language":"%b","opaque":'
    % LANGUAGE.encode(),
    b',"serializeTypeCurrentRPC":"JSON","version":%d}' % VERSION,
)
"""Parts around message id, queue id, queue offset, unique key and opaque."""
_JSON_FORMAT = b"%b%%b%%016X%b%%d%b%%d%b%%b%b%%b%b" % JSON_ANSWER
_ROW_END = (None, None, "DefaultRegion", "true")
"""End of a `SendMessageResponse` by position: no batch, no recall handle, region, trace."""


class Form(NamedTuple):
    """Functions for one encoding."""

    cut: Callable[[bytes], Cut]
    """Split a header. Raises `ValueError` or `TypeError` for one that it cannot split."""
    join: Callable[[HeaderKey, str, str, int], bytes]
    """Compose a header of key, born time, property string and opaque."""
    decode: Callable[[bytes, bytes], Command]
    """Decode in the general way."""
    answer: Callable[[bytes, int, int, int, bytes, Any], bytes]
    """Return the header that reports a stored message: the host as message ids begin, physical
    offset, queue id, queue offset, unique key (of letters and digits) and opaque."""


# --- JSON


def _cut_json(header: bytes) -> Cut:
    # If a mark is missing, the parts after it are empty.
    before, _, remaining = header.partition(_BORN)
    born, _, remaining = remaining.partition(b'"')
    between, _, remaining = remaining.partition(_STRING)
    string, _, remaining = remaining.partition(b'"')
    after, separator, remaining = remaining.partition(_OPAQUE)
    opaque, _, end = remaining.partition(b",")
    key: HeaderKey = before, between, after, end
    if not separator:  # it may be at the front, as in headers of Go's client
        front, _, remaining = before.partition(_OPAQUE)
        opaque, _, before = remaining.partition(b",")
        key = front, before, between, after, b""
    if not (
        born.isdigit()
        and opaque.isdigit()
        and len(born) < 19
        and len(opaque) < 10
        and (opaque[0] != 48 or len(opaque) == 1)
    ):
        raise ValueError("not digits, or too many")
    return key, int(born), orjson.loads(b'"%b"' % string), opaque


def _join_json(key: HeaderKey, born_ms: str, properties: str, opaque: int) -> bytes:
    string = properties.encode()
    if len(key) == 5:
        front, before, between, after, end = key
        assert not end, "the opaque is in front"
        return b'%b"opaque":%d,%b"g":"%b"%b"i":"%b"%b' % (
            front,
            opaque,
            before,
            born_ms.encode(),
            between,
            string,
            after,
        )
    before, between, after, end = key
    return b'%b"g":"%b"%b"i":"%b"%b"opaque":%d,%b' % (
        before,
        born_ms.encode(),
        between,
        string,
        after,
        opaque,
        end,
    )


def _answer_json(
    host: bytes, offset: int, queue_id: int, queue_offset: int, key: bytes, opaque: object
) -> bytes:
    return _JSON_FORMAT % (host, offset, queue_id, queue_offset, key, opaque)


# --- RocketMQ's binary form: entries are the length of a name, name, length of a value, value


def _cut_binary(header: bytes) -> Cut:
    born = header.find(_BORN_ENTRY) + len(_BORN_ENTRY)
    born_end = born + _BORN_DIGITS
    length_at = header.find(_STRING_ENTRY, born_end) + len(_STRING_ENTRY)
    string = length_at + 4
    string_end = string + int.from_bytes(header[length_at:string], "big")
    born_text = header[born:born_end]
    # No remark, and entries up to the end: their length follows from the key.
    if (
        not born_text.isdigit()
        or string_end > len(header)
        or int.from_bytes(header[17:21], "big") != len(header) - 21
    ):
        raise ValueError("not digits, or wrong lengths")
    key = (
        header[:5],
        header[9:17],
        header[21:born],
        header[born_end:length_at],
        header[string_end:],
    )
    opaque = int.from_bytes(header[5:9], "big", signed=True)
    return key, int(born_text), header[string:string_end].decode(), opaque


def _join_binary(key: HeaderKey, born_ms: str, properties: str, opaque: int) -> bytes:
    before, flags, born_at, string_at, after = key
    string = properties.encode()
    entries = b"%b%b%b%b%b%b" % (
        born_at,
        born_ms.encode(),
        string_at,
        len(string).to_bytes(4, "big"),
        string,
        after,
    )
    number = opaque.to_bytes(4, "big", signed=True)
    return b"%b%b%b%b%b" % (before, number, flags, len(entries).to_bytes(4, "big"), entries)


def _binary_name(name: str) -> bytes:
    return len(name).to_bytes(2, "big") + name.encode()


def _binary_entry(name: bytes, value: bytes) -> bytes:
    return b"%b%b%b" % (name, len(value).to_bytes(4, "big"), value)


BINARY_ANSWER: Final = (
    b"\0\0" + bytes((header_binary.LANGUAGES.index(LANGUAGE),)) + VERSION.to_bytes(2, "big"),
    RESPONSE_BIT.to_bytes(4, "big") + bytes(4),
    *map(_binary_name, ("msgId", "queueId", "queueOffset", "transactionId")),
    _binary_entry(_binary_name("MSG_REGION"), b"DefaultRegion")
    + _binary_entry(_binary_name("TRACE_ON"), b"true"),
)
"""Parts around opaque, length of the entries, and the same values, each after its length."""


def _answer_binary(
    host: bytes, offset: int, queue_id: int, queue_offset: int, key: bytes, opaque: int
) -> bytes:
    head, flags, *names, end = BINARY_ANSWER
    values = b"%b%016X" % (host, offset), b"%d" % queue_id, b"%d" % queue_offset, key
    entries = b"".join(map(_binary_entry, names, values)) + end
    number = opaque.to_bytes(4, "big", signed=True)
    return b"".join((head, number, flags, len(entries).to_bytes(4, "big"), entries))


# --- msgpack: the values by position, after the shape


def _cut_msgpack(header: bytes) -> Cut:
    try:
        code, opaque, flag, version, remark, values = msgpack.unpackb(header)
    except (RecursionError, msgpack.UnpackException) as exc:
        raise ValueError(str(exc)) from exc
    shape, born_text, string = values[0], values[7], values[9]
    # Compare the types too: numbers of other types could be equal to these.
    if not (code.__class__ is opaque.__class__ is flag.__class__ is version.__class__ is int):
        raise ValueError("not numbers")
    if (
        shape.__class__ is not int
        or string.__class__ is not str
        or born_text.__class__ is not str
        or not (born_text.isascii() and born_text.isdigit() and len(born_text) < 19)
        or not -(2**31) <= opaque < 2**31
    ):
        raise ValueError("not texts of a number and of properties")
    key = code, flag, version, remark, *values[:7], values[8], *values[10:]
    return key, int(born_text), string, opaque


def _join_msgpack(key: HeaderKey, born_ms: str, properties: str, opaque: int) -> bytes:
    code, flag, version, remark, *values = key
    row = [*values[:7], born_ms, values[7], properties, *values[8:]]
    return header_msgpack.pack_header((code, opaque, flag, version, remark, row))


def _answer_msgpack(
    host: bytes, offset: int, queue_id: int, queue_offset: int, key: bytes, opaque: int
) -> bytes:
    message_id = f"{host.decode()}{offset:016X}"
    row = [_CODE, message_id, str(queue_id), str(queue_offset), key.decode(), *_ROW_END]
    return header_msgpack.pack_header((0, opaque, RESPONSE_BIT, VERSION, None, row))


FORMS: Final = {
    Encoding.JSON: Form(_cut_json, _join_json, header_json.decode, _answer_json),
    Encoding.ROCKETMQ: Form(_cut_binary, _join_binary, header_binary.decode, _answer_binary),
    Encoding.MSGPACK: Form(_cut_msgpack, _join_msgpack, header_msgpack.decode, _answer_msgpack),
}
