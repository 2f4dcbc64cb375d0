"""RocketMQ's binary form of a frame's header (serialize type 1, wire.md 1.3).

Entries keep their order, so all recorded headers re-encode byte for byte. Codes have 16 bits here:
the POP family (200 050 ...) cannot be sent in this form. RocketMQ: `RocketMQSerializable`.
"""

import struct

from rocketbed.wire.command import Command, Encoding
from rocketbed.wire.errors import LocalProtocolError, RemoteProtocolError

LANGUAGES = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER",
    "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS",
)  # fmt: skip
"""Language names by their byte on the wire."""

_LANGUAGE_BYTES = {name: number for number, name in enumerate(LANGUAGES)}
_OTHER = LANGUAGES.index("OTHER")
_HEAD = struct.Struct(">hBhiii")
"""code, language, version, opaque, flag, length of the remark."""
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")


def decode(header: bytes, body: bytes) -> Command:
    """Return the command of a header. Raises `RemoteProtocolError` if a length leaves the
    header."""
    try:
        code, language, version, opaque, flag, remark_length = _HEAD.unpack_from(header)
        position = _end(header, _HEAD.size, remark_length)
        remark = header[_HEAD.size : position].decode() or None
        (fields_length,) = _INT.unpack_from(header, position)
        end = _end(header, position + 4, fields_length)
        fields = _entries(header, position + 4, end)
    except struct.error as exc:
        raise RemoteProtocolError("binary header is too short") from exc
    except UnicodeDecodeError as exc:
        raise RemoteProtocolError("binary header holds text that is not UTF-8") from exc
    name = LANGUAGES[language] if language < len(LANGUAGES) else LANGUAGES[_OTHER]
    return Command(
        code, opaque, flag, version, name, remark, fields, body, Encoding.ROCKETMQ, bool(fields)
    )


def _end(header: bytes, start: int, length: int) -> int:
    if length < 0 or start + length > len(header):
        raise RemoteProtocolError(
            f"binary header: length {length} at byte {start} leaves the header ({len(header)})"
        )
    return start + length


def _entries(header: bytes, position: int, end: int) -> dict[str, object]:
    fields: dict[str, object] = {}
    while position < end:
        (key_length,) = _SHORT.unpack_from(header, position)
        key_end = _end(header, position + 2, key_length)
        (value_length,) = _INT.unpack_from(header, key_end)
        value_end = _end(header, key_end + 4, value_length)
        if value_end > end:
            raise RemoteProtocolError(f"binary header: entry at byte {position} is cut")
        fields[header[position + 2 : key_end].decode()] = header[key_end + 4 : value_end].decode()
        position = value_end
    return fields


def encode(command: Command) -> bytes:
    """Return the bytes of the header. Raises `LocalProtocolError` for a code above 16 bits."""
    if not -0x8000 <= command.code <= 0x7FFF:
        raise LocalProtocolError(f"code {command.code} does not fit RocketMQ's binary header")
    entries = bytearray()
    for name, value in command.fields.items():
        key = name.encode()
        data = value.encode()
        entries += _SHORT.pack(len(key))
        entries += key
        entries += _INT.pack(len(data))
        entries += data
    remark = (command.remark or "").encode()
    head = _HEAD.pack(
        command.code,
        _LANGUAGE_BYTES.get(command.language, _OTHER),
        min(command.version, 0x7FFF),
        command.opaque,
        command.flag,
        len(remark),
    )
    return b"".join((head, remark, _INT.pack(len(entries)), entries))
