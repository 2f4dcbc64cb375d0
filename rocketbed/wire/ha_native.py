"""Frames of rocketbed's own replication protocol, on the port of the classic one (replication.md
7.4).

While the classic stream has only positions, each frame here names its epoch, and the two sides
agree on where their logs diverge before any byte of the log is sent.

    magic "RBHA" | version u8 | kind u8 | flags u16 | epoch u32 | payload size u32 | offset u64

Input may be cut anywhere; a peer's numbers are checked before they are used as size or offset. The
body of a DATA frame follows its head, so that it can be sent from the file.
"""

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import msgpack

from rocketbed.wire.errors import RemoteProtocolError
from rocketbed.wire.ha import NATIVE_MAGIC

VERSION: Final = 1
HEAD_SIZE: Final = 24
BODY_MAX: Final = 1024 * 1024
"""Most bytes of the log in one frame."""
MAP_MAX: Final = 256 * 1024
"""Most bytes of a payload that is a map: a history of 10,000 epochs."""
NAME_MAX: Final = 255
COMPARED_MAX: Final = 4096
"""Bytes before the end of the common log that are compared."""

_HEAD = struct.Struct(">4sBBHIIQ")
_DATA = struct.Struct(">QII")
_PAIR = struct.Struct(">QQ")

Epochs = tuple[tuple[int, int], ...]
"""A history: (epoch, start), both rising."""


class Kind(IntEnum):
    """Kind of a frame; its `offset` has another meaning in each."""

    HELLO = 1
    """Follower: the end of its log."""
    WELCOME = 2
    """Leader: end of the common part of both logs."""
    REJECT = 3
    DATA = 4
    """Leader: position of the body."""
    ACK = 5
    """Follower: end of the whole messages it has received."""
    BEAT = 6
    """Both: end of the sender's log."""
    FENCE = 7
    """Follower: it has promised a higher epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Identity of a follower, and the extent of its log."""

    cluster: str
    group: str
    replica: int
    uuid: str
    incarnation: int
    promised: int
    history: Epochs
    end: int
    """End of its log, bytes; the frame's offset."""
    first: int
    """Start of its log."""
    durable: int
    segment: int
    """Bytes of a file of its log."""
    learner: bool = False
    """True if it does not ask to become a member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """Leader of the frame's epoch, and the offset from which it sends."""

    leader: int
    incarnation: int
    history: Epochs
    end: int
    first: int
    confirm: int
    cut: int
    """End of the common part of both logs, bytes, the frame's offset: the follower truncates its
    log there, and gets the bytes from there. The follower also computes it itself."""
    compared: int
    """Start of the bytes below `cut`, at most `COMPARED_MAX`, whose CRC the follower has to
    match."""
    crc: int
    """CRC-32 of these bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """Reason why the link is refused or ended, and the leader to use instead."""

    why: str
    leader: int | None = None
    address: str = ""
    first: int = 0
    """Offset to which this refers, bytes: for a follower, where the leader's log is damaged."""


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes of the log."""

    offset: int
    confirm: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Ack:
    """A follower has every byte below the offset."""

    received: int
    durable: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Beat:
    """The peer is alive."""

    end: int
    confirm: int
    is_unfit: bool = False
    """True if the sender would be a bad leader: its disk is full, or its log damaged."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """A higher epoch was promised."""

    promised: int


Content = Hello | Welcome | Reject | Data | Ack | Beat | Fenced


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame that was read."""

    epoch: int
    content: Content


def encode(epoch: int, content: Content) -> bytes:
    """Return a whole frame."""
    match content:
        case Hello():
            return _map_frame(Kind.HELLO, epoch, content.end, _hello_map(content))
        case Welcome():
            return _map_frame(Kind.WELCOME, epoch, content.cut, _welcome_map(content))
        case Reject():
            values = {"why": content.why, "leader": content.leader, "addr": content.address}
            return _map_frame(Kind.REJECT, epoch, 0, {**values, "min": content.first})
        case Data():
            crc = zlib.crc32(content.body)
            head = encode_data_head(epoch, content.offset, content.confirm, len(content.body), crc)
            return head + content.body
        case Ack():
            payload = _PAIR.pack(content.durable, content.incarnation)
            return _head(Kind.ACK, epoch, len(payload), content.received) + payload
        case Beat():
            payload = _PAIR.pack(content.confirm, content.is_unfit)
            return _head(Kind.BEAT, epoch, len(payload), content.end) + payload
        case Fenced():
            return _map_frame(Kind.FENCE, epoch, 0, {"promised": content.promised})


def encode_data_head(epoch: int, offset: int, confirm: int, size: int, crc: int = 0) -> bytes:
    """Return the head of a DATA frame, whose body follows. A CRC of 0 means none: a body that is
    sent from file to socket is not read for a CRC, and its messages have their own."""
    head = _head(Kind.DATA, epoch, _DATA.size + size, offset)
    return head + _DATA.pack(confirm, crc, size)


class NativeReader:
    """Reader of one peer's frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | bytearray) -> list[Frame]:
        """Return the frames that are complete now, in order. Raises `RemoteProtocolError`."""
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        position = 0
        while len(buffer) - position >= HEAD_SIZE:
            magic, version, kind, flags, epoch, size, offset = _HEAD.unpack_from(buffer, position)
            if (magic, version, flags) != (NATIVE_MAGIC, VERSION, 0):
                raise RemoteProtocolError(
                    f"not a frame of version {VERSION} of our replication protocol:"
                    f" {bytes(buffer[position : position + 8]).hex()}"
                )
            _check_size(kind, size)
            _number(offset)
            begin = position + HEAD_SIZE
            if len(buffer) - begin < size:
                break
            position = begin + size
            payload = bytes(buffer[begin:position])
            frames.append(Frame(epoch, _content(Kind(kind), offset, payload)))
        del buffer[:position]
        return frames


def _head(kind: Kind, epoch: int, size: int, offset: int) -> bytes:
    return _HEAD.pack(NATIVE_MAGIC, VERSION, kind, 0, epoch, size, offset)


def _map_frame(kind: Kind, epoch: int, offset: int, values: dict[str, Any]) -> bytes:
    payload: bytes = msgpack.packb(values)
    assert len(payload) <= MAP_MAX, "a history that long is a mistake of ours"
    return _head(kind, epoch, len(payload), offset) + payload


def _check_size(kind: int, size: int) -> None:
    """Check a size before that many bytes are waited for."""
    match kind:
        case Kind.HELLO | Kind.WELCOME | Kind.REJECT | Kind.FENCE:
            good = 0 < size <= MAP_MAX
        case Kind.DATA:
            good = _DATA.size < size <= _DATA.size + BODY_MAX
        case Kind.ACK | Kind.BEAT:
            good = size == _PAIR.size
        case _:
            raise RemoteProtocolError(f"a frame of kind {kind}, which nobody knows")
    if not good:
        raise RemoteProtocolError(f"a {Kind(kind).name} of {size} bytes")


def _content(kind: Kind, offset: int, payload: bytes) -> Content:
    match kind:
        case Kind.DATA:
            confirm, crc, size = _DATA.unpack_from(payload)
            body = payload[_DATA.size :]
            if size != len(body):
                raise RemoteProtocolError(f"DATA of {len(body)} bytes says that it has {size}")
            if crc and crc != zlib.crc32(body):
                raise RemoteProtocolError(f"DATA at {offset} does not match its CRC")
            return Data(offset, _number(confirm), body)
        case Kind.ACK:
            return Ack(offset, *map(_number, _PAIR.unpack(payload)))
        case Kind.BEAT:
            confirm, state = map(_number, _PAIR.unpack(payload))
            if state not in (0, 1):
                raise RemoteProtocolError(f"a BEAT of state {state}, which nobody knows")
            return Beat(offset, confirm, state == 1)
    try:
        values = msgpack.unpackb(payload)
        match kind:
            case Kind.HELLO:
                return _hello(values, offset)
            case Kind.WELCOME:
                return _welcome(values, offset)
            case _ if offset:
                raise RemoteProtocolError(f"a {kind.name} at offset {offset}")
            case Kind.FENCE:
                return Fenced(_number(values["promised"]))
        leader = values["leader"]
        return Reject(
            why=_name(values["why"]),
            leader=None if leader is None else _number(leader),
            address=_name(values["addr"]),
            first=_number(values["min"]),
        )
    except RemoteProtocolError:
        raise
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as exc:
        raise RemoteProtocolError(f"a {kind.name} that cannot be read: {exc!r}"[:300]) from exc


def _hello_map(hello: Hello) -> dict[str, Any]:
    return {
        "cluster": hello.cluster,
        "group": hello.group,
        "replica": hello.replica,
        "uuid": hello.uuid,
        "inc": hello.incarnation,
        "promised": hello.promised,
        "hist": hello.history,
        "min": hello.first,
        "durable": hello.durable,
        "seg": hello.segment,
        "learner": hello.learner,
    }


def _hello(values: Any, offset: int) -> Hello:
    if type(values["learner"]) is not bool:
        raise RemoteProtocolError("learner is not a truth value")
    return Hello(
        cluster=_name(values["cluster"]),
        group=_name(values["group"]),
        replica=_number(values["replica"]),
        uuid=_name(values["uuid"]),
        incarnation=_number(values["inc"]),
        promised=_number(values["promised"]),
        history=_history(values["hist"]),
        end=offset,
        first=_number(values["min"]),
        durable=_number(values["durable"]),
        segment=_number(values["seg"], 1),
        learner=values["learner"],
    )


def _welcome_map(welcome: Welcome) -> dict[str, Any]:
    return {
        "leader": welcome.leader,
        "inc": welcome.incarnation,
        "hist": welcome.history,
        "end": welcome.end,
        "min": welcome.first,
        "confirm": welcome.confirm,
        "cmp": welcome.compared,
        "crc": welcome.crc,
    }


def _welcome(values: Any, offset: int) -> Welcome:
    if not offset - COMPARED_MAX <= values["cmp"] <= offset:
        raise RemoteProtocolError(f"a WELCOME that compares {values['cmp']} to {offset}")
    return Welcome(
        leader=_number(values["leader"]),
        incarnation=_number(values["inc"]),
        history=_history(values["hist"]),
        end=_number(values["end"]),
        first=_number(values["min"]),
        confirm=_number(values["confirm"]),
        cut=offset,
        compared=_number(values["cmp"]),
        crc=_number(values["crc"]),
    )


def _history(pairs: Any) -> Epochs:
    """Parse a history; `replication.epochs` checks if it can be that of a log."""
    history = []
    for epoch, start in pairs:
        history.append((_number(epoch), _number(start)))
    return tuple(history)


def _number(value: Any, least: int = 0) -> int:
    if type(value) is not int or not least <= value < 1 << 63:
        raise RemoteProtocolError(f"not a number from {least} on: {value!r}"[:200])
    return value


def _name(value: Any) -> str:
    if type(value) is not str or len(value) > NAME_MAX:
        raise RemoteProtocolError(f"not a text of up to {NAME_MAX} characters: {value!r}"[:200])
    return value
