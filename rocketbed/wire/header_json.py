"""The JSON form of a frame's header (serialize type 0, wire.md 1.2): what every peer can read.

Java writes the members in alphabetical order and leaves nulls out; so do we, which makes recorded
frames re-encode byte for byte. `orjson` keeps the order of `extFields` both ways.
"""

import orjson

from rocketbed.wire.command import Command, Encoding
from rocketbed.wire.errors import LocalProtocolError, RemoteProtocolError

INT_MIN = -(2**31)
INT_MAX = 2**31 - 1


def decode(header: bytes | memoryview, body: bytes) -> Command:
    """A command from its header. Raises `RemoteProtocolError` for text that is no header."""
    try:
        members = orjson.loads(header)
        code = members["code"]
        opaque = members["opaque"]
        flag = members["flag"]
        if type(code) is not int or type(opaque) is not int or type(flag) is not int:
            raise RemoteProtocolError("JSON header: code, opaque and flag have to be integers")
        fields = members.get("extFields")
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as exc:
        return _lenient(header, body, exc)
    if not INT_MIN <= opaque <= INT_MAX or not INT_MIN <= code <= INT_MAX:
        raise RemoteProtocolError("JSON header: code or opaque does not fit 32 bits")
    if fields.__class__ is not dict:
        return _lenient(header, body, None)
    return Command(
        code,
        opaque,
        flag,
        *_about(members),
        fields,
        body,
        Encoding.JSON,
        True,
    )


def _about(members: dict[str, object]) -> tuple[int, str, str | None]:
    """Version, language and remark; of the wrong type they count as absent."""
    version = members.get("version")
    language = members.get("language")
    remark = members.get("remark")
    return (
        version if version.__class__ is int else 0,
        language if language.__class__ is str else "OTHER",
        remark if remark.__class__ is str else None,
    )


def _lenient(header: bytes | memoryview, body: bytes, cause: Exception | None) -> Command:
    """The slow way: absent members have Java's defaults; anything else is refused."""
    try:
        members = orjson.loads(header)
    except orjson.JSONDecodeError as exc:
        raise RemoteProtocolError(f"JSON header cannot be read: {exc}") from exc
    if not isinstance(members, dict) or type(members.get("code")) is not int:
        raise RemoteProtocolError("JSON header without an integer code") from cause
    opaque = members.get("opaque", 0)
    flag = members.get("flag", 0)
    fields = members.get("extFields")
    if type(opaque) is not int or not INT_MIN <= opaque <= INT_MAX or type(flag) is not int:
        raise RemoteProtocolError("JSON header: opaque or flag is no 32-bit integer") from cause
    if fields is not None and not isinstance(fields, dict):
        raise RemoteProtocolError("JSON header: extFields is no object") from cause
    return Command(
        members["code"],
        opaque,
        flag,
        *_about(members),
        fields,
        body,
        Encoding.JSON,
        fields is not None,
    )


def encode(command: Command) -> bytes:
    """The header's bytes. Raises `LocalProtocolError` for text that UTF-8 cannot hold."""
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
        raise LocalProtocolError(f"header of {command!r} cannot be written: {exc}") from exc
