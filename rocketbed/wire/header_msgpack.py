"""Our own form of a frame's header (serialize type 2, design.md 2): msgpack, values by position.

    [code, opaque, flag, version, remark, fields]

`fields` is nil (none), a map of names, or an array `[shape, value, ..., {the rest}]`: `shape` is
the code of the request whose header class (`header_registry`) orders the values, given also in
responses so that a frame can be read by itself; the map stands last only when some field has no
position. Numbers travel as numbers where that loses nothing of the text. Only sent to a server
that said `rbMsgpack=1`.
"""

from functools import cache

import msgpack

from rocketbed.wire.command import LANGUAGE, Command, Encoding
from rocketbed.wire.errors import LocalProtocolError, RemoteProtocolError
from rocketbed.wire.header_fields import plans
from rocketbed.wire.header_registry import REQUESTS, RESPONSES

_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack


@cache
def _shape(code: int, is_response: bool) -> tuple[tuple[str, bool], ...]:
    """Names in order, each with whether its value is a number; empty for an unknown code."""
    header = (RESPONSES if is_response else REQUESTS).get(code)
    return tuple((plan.name, plan.is_number) for plan in plans(header)) if header else ()


def decode(header: bytes, body: bytes) -> Command:
    """A command from its header. Raises `RemoteProtocolError`."""
    try:
        code, opaque, flag, version, remark, values = msgpack.unpackb(header)
    except (ValueError, TypeError, msgpack.UnpackException) as exc:
        raise RemoteProtocolError(f"msgpack header cannot be read: {exc}") from exc
    for number in (code, opaque, flag, version):
        if type(number) is not int or not -(2**31) <= number < 2**31:
            raise RemoteProtocolError("msgpack header: code, opaque, flag, version are 32-bit")
    if remark is not None and not isinstance(remark, str):
        raise RemoteProtocolError("msgpack header: the remark is no text")
    fields, shape = _read_fields(values, is_response=bool(flag & 1))
    command = Command(
        code,
        opaque,
        flag,
        version,
        LANGUAGE,
        remark,
        fields,
        body,
        Encoding.MSGPACK,
        values is not None,
    )
    command.answers = shape if flag & 1 else 0
    return command


def _read_fields(values: object, *, is_response: bool) -> tuple[dict[str, object], int]:
    if values is None:
        return {}, 0
    if isinstance(values, dict):
        return _checked(values), 0
    if not isinstance(values, list) or not values or type(values[0]) is not int:
        raise RemoteProtocolError("msgpack header: fields are neither nil, map nor array")
    names = _shape(values[0], is_response)
    if not names or len(values) > len(names) + 2:
        raise RemoteProtocolError(f"msgpack header: {len(values)} fields of shape {values[0]}")
    fields: dict[str, object] = {
        name: value
        for (name, _), value in zip(names, values[1:], strict=False)
        if value is not None
    }
    if len(values) == len(names) + 2:
        rest = values[-1]
        if not isinstance(rest, dict):
            raise RemoteProtocolError("msgpack header: the last field is no map")
        fields.update(rest)
    return _checked(fields), values[0]


def _checked(fields: dict[str, object]) -> dict[str, object]:
    for name, value in fields.items():
        if type(name) is not str or type(value) not in (str, int, bool):
            raise RemoteProtocolError("msgpack header: a field is no text, number or boolean")
    return fields


def encode(command: Command) -> bytes:
    """The header's bytes. Raises `LocalProtocolError` for what 32 bits do not hold."""
    shape = command.answers if command.is_response else command.code
    names = _shape(shape, command.is_response)
    fields = command.fields
    values: object
    if not fields and not command.has_fields:
        values = None
    elif not names:
        values = fields
    else:
        row: list[object] = [shape]
        row += [_value(fields.get(name), is_number) for name, is_number in names]
        known = {name for name, _ in names}
        rest = {name: value for name, value in fields.items() if name not in known}
        if rest:
            row.append(rest)
        values = row
    try:
        packed = _pack(
            (
                int(command.code),
                command.opaque,
                command.flag,
                command.version,
                command.remark,
                values,
            )
        )
    except (OverflowError, ValueError, TypeError) as exc:
        raise LocalProtocolError(f"header of {command!r} cannot be written: {exc}") from exc
    assert isinstance(packed, bytes)
    return packed


def _value(text: str | None, is_number: bool) -> object:
    if text is None or not is_number or len(text) > 19:
        return text
    digits = text[1:] if text[:1] == "-" else text
    if not digits.isdigit() or not digits.isascii() or str(int(text)) != text:
        return text
    return int(text)
