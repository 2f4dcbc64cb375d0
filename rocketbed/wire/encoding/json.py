"""The JSON form of a frame's header (serialize type 0, wire.md 1.2), which every peer can read.

As in Java, members are in alphabetical order and nulls are left out, so recorded frames re-encode
byte for byte. `orjson` keeps the order of `extFields` both ways.
"""

import orjson

from rocketbed.wire.command import Command
from rocketbed.wire.errors import LocalProtocolError, RemoteProtocolError

INT_MIN = -(2**31)
INT_MAX = 2**31 - 1


_command = Command.from_members


def decode(header: bytes | memoryview, body: bytes) -> Command:
    """Return the command of a header. Raises `RemoteProtocolError` for text that is no header."""
    try:
        members = orjson.loads(header)
        code = members["code"]
        opaque = members["opaque"]
        flag = members["flag"]
        fields = members["extFields"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as exc:
        return _lenient(header, body, exc)
    if (
        fields.__class__ is dict
        and code.__class__ is int
        and opaque.__class__ is int
        and flag.__class__ is int
        and INT_MIN <= opaque <= INT_MAX
        and INT_MIN <= code <= INT_MAX
    ):
        return _command(code, opaque, flag, members, fields, body, True)
    return _lenient(header, body, None)


def _lenient(header: bytes | memoryview, body: bytes, cause: Exception | None) -> Command:
    """Decode slowly: absent members have Java's defaults; anything else is refused."""
    try:
        members = orjson.loads(header)
    except orjson.JSONDecodeError as exc:
        raise RemoteProtocolError(f"JSON header cannot be read: {exc}") from exc
    if not isinstance(members, dict) or "code" not in members:
        raise RemoteProtocolError("JSON header without a code") from cause
    numbers = members["code"], members.get("opaque", 0), members.get("flag", 0)
    for number in numbers:
        if type(number) is not int or not INT_MIN <= number <= INT_MAX:
            raise RemoteProtocolError(
                f"JSON header: code, opaque and flag are 32-bit integers, not {number!r:.60}"
            ) from cause
    fields = members.get("extFields")
    if fields is not None and not isinstance(fields, dict):
        raise RemoteProtocolError("JSON header: extFields is no object") from cause
    return _command(*numbers, members, fields or {}, body, fields is not None)


def encode(command: Command) -> bytes:
    """Return the bytes of the header. Raises `LocalProtocolError` for text that UTF-8 cannot
    hold."""
    members: dict[str, object] = {"code": int(command.code)}
    if command.raw_fields or command.has_fields:
        members["extFields"] = command.raw_fields
    members["flag"] = command.flag
    members["language"] = command.language
    members["opaque"] = command.opaque
    if command.remark is not None:
        members["remark"] = command.remark
    members["serializeTypeCurrentRPC"] = "JSON"
    members["version"] = command.version
    try:
        return orjson.dumps(members)
    except TypeError as exc:  # orjson's JSONEncodeError
        raise LocalProtocolError(f"{_unwritable(command)}: {exc}") from exc


def _unwritable(command: Command) -> str:
    """Return the name of the field that UTF-8 cannot hold, or of the header."""
    for name, text in command.raw_fields.items():
        try:
            f"{name}{text}".encode()
        except UnicodeEncodeError:
            return f"{name}={text!a} of request {command.code}"
    return f"header of {command!r}"
