"""Rocketbed's own form of a frame's header (serialize type 2, design.md 2): msgpack, values by
position.

    [code, opaque, flag, version, remark, fields]

`fields` is nil (none), a map of names, or an array `[shape, value, ..., {further}]`. `shape` is the
code of the request whose header class (`encoding.registry`) orders the values; responses have it
too, so that a frame can be read by itself. A value is a text or nil; missing ones at the end are
left out. The map of further fields, after all positions, exists only when some field has no
position. A value of another type counts as its text. Only sent to a server that said `rbMsgpack=1`.
"""

from collections.abc import Callable

import msgpack

from rocketbed.wire.command import LANGUAGE, Command, Encoding
from rocketbed.wire.encoding.fields import plans
from rocketbed.wire.encoding.registry import REQUESTS, RESPONSES
from rocketbed.wire.errors import LocalProtocolError, RemoteProtocolError

pack_header: Callable[[tuple[object, ...]], bytes] = msgpack.Packer(use_bin_type=True).pack
"""Pack a header's values to bytes."""
_unpack = msgpack.unpackb


_shapes: dict[tuple[int, bool], tuple[str, ...]] = {}


def shape_of(code: int, is_response: bool) -> tuple[str, ...]:
    """Return names in the order of their positions, always the same tuple; empty without a
    class."""
    names = _shapes.get((code, is_response))
    if names is None:
        header = (RESPONSES if is_response else REQUESTS).get(code)
        if header is None:
            return ()
        names = _shapes[code, is_response] = tuple(plan.name for plan in plans(header))
    return names


def decode(header: bytes, body: bytes) -> Command:
    """Return the command of a header. Raises `RemoteProtocolError`."""
    try:
        code, opaque, flag, version, remark, values = _unpack(header)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as exc:
        raise RemoteProtocolError(f"msgpack header cannot be read: {exc}") from exc
    for number in (code, opaque, flag, version):
        if number.__class__ is not int or not -(2**31) <= number < 2**31:
            raise RemoteProtocolError("msgpack header: code, opaque, flag, version are 32-bit")
    if remark is not None and remark.__class__ is not str:
        raise RemoteProtocolError("msgpack header: the remark is no text")
    if values.__class__ is list:
        return _by_position(code, opaque, flag, version, remark, values, body)
    fields = {} if values is None else _named(values)
    return Command(
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


def _by_position(
    code: int,
    opaque: int,
    flag: int,
    version: int,
    remark: str | None,
    values: list[object],
    body: bytes,
) -> Command:
    shape = values[0] if values else None
    if not isinstance(shape, int):
        raise RemoteProtocolError("msgpack header: fields do not begin with their shape")
    names = shape_of(shape, bool(flag & 1))
    if not names or len(values) > len(names) + 2:
        raise RemoteProtocolError(f"msgpack header: {len(values)} fields of shape {shape}")
    further = _named(values.pop()) if len(values) == len(names) + 2 else None
    del values[0]
    command = Command.from_row(code, opaque, flag, version, remark, names, values, body)
    if further is not None:
        command.raw_fields.update(further)
    if flag & 1:
        command.answers = shape
    return command


def _named(values: object) -> dict[str, object]:
    if not isinstance(values, dict) or any(name.__class__ is not str for name in values):
        raise RemoteProtocolError("msgpack header: fields are no map of names")
    return values


def encode(command: Command) -> bytes:
    """Return the bytes of the header. Raises `LocalProtocolError` for a number above 32 bits."""
    is_response = bool(command.flag & 1)
    shape = command.answers if is_response else int(command.code)
    fields = command.fields
    names = shape_of(shape, is_response)
    values: object
    if not fields:
        values = [shape] if names and command.has_fields else {} if command.has_fields else None
    elif not names:
        values = fields
    else:
        row: list[object] = list(map(fields.get, names))
        missing = row.count(None)
        if len(names) - missing < len(fields):
            positions = set(names)
            row.append({name: value for name, value in fields.items() if name not in positions})
        while row[-1] is None:
            row.pop()
        values = [shape, *row]
    try:
        return pack_header(
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
