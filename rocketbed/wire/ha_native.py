"""Frames of our own replication protocol, on the port of the classic one (replication.md 7.4).

Where the classic stream has a position and nothing else, each frame here names its epoch, and the
two sides agree on where their logs part before a byte of the log is sent.

    magic "RBHA" | version u8 | kind u8 | flags u16 | epoch u32 | payload size u32 | offset u64

Data is read in pieces, cut anywhere; what a peer sends is checked before it is a size or an
offset. Of a DATA frame the body follows its head, so that it can be sent from the file.
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
"""Bytes of the log in one frame."""
MAP_MAX: Final = 256 * 1024
"""Bytes of a payload that is a map: a history of 10,000 epochs."""
NAME_MAX: Final = 255
COMPARED_MAX: Final = 4096
"""Bytes before the place where two logs part that are compared."""

_HEAD = struct.Struct(">4sBBHIIQ")
_DATA = struct.Struct(">QII")
_PAIR = struct.Struct(">QQ")

Epochs = tuple[tuple[int, int], ...]
"""A history: (epoch, start), both rising."""


class Kind(IntEnum):
    """What a frame says; its `offset` means something else in each."""

    HELLO = 1
    """Follower: its log's end."""
    WELCOME = 2
    """Leader: up to where both logs are the same."""
    REJECT = 3
    DATA = 4
    """Leader: position of the body."""
    ACK = 5
    """Follower: up to where it has received, whole messages."""
    BEAT = 6
    """Both: the own end."""
    FENCE = 7
    """Follower: it has promised a higher epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Who a follower is, and what its log holds."""

    cluster: str
    group: str
    replica: int
    uuid: str
    incarnation: int
    promised: int
    history: Epochs
    end: int
    """Of its log, bytes; the frame's offset."""
    first: int
    """Where its log begins."""
    durable: int
    segment: int
    """Bytes of a file of its log."""
    learner: bool = False
    """It does not ask to be a member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The leader of the frame's epoch, and from where on it sends."""

    leader: int
    incarnation: int
    history: Epochs
    end: int
    first: int
    confirm: int
    cut: int
    """Up to where both logs are the same, bytes: the follower drops what it has beyond, and is sent
    what follows; the frame's offset. The follower finds it out by itself too."""
    compared: int
    """From here to `cut`, at most `COMPARED_MAX`, the follower has to have bytes with the same
    CRC."""
    crc: int
    """CRC-32 of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """Why there is no link, or no more, and where to go instead."""

    why: str
    leader: int | None = None
    address: str = ""
    first: int = 0
    """Offset that this is about, bytes: of a follower, where the leader's log is no good."""


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes of the log."""

    offset: int
    confirm: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Ack:
    """A follower has everything below."""

    received: int
    durable: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Beat:
    """The peer is alive."""

    end: int
    confirm: int
    is_unfit: bool = False
    """The sender would be a bad leader: its disk is full, or its log damaged."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """A higher epoch was promised."""

    promised: int


Content = Hello | Welcome | Reject | Data | Ack | Beat | Fenced


@dataclass(frozen=True, slots=True)
class Frame:
    """One that was read."""

    epoch: int
    content: Content


def encode(epoch: int, content: Content) -> bytes:
    """A whole frame."""
    match content:
        case Hello():
            return _map_frame(Kind.HELLO, epoch, content.end, _hello_map(content))
        case Welcome():
            return _map_frame(Kind.WELCOME, epoch, content.cut, _welcome_map(content))
        case Reject():
            found = {"why": content.why, "leader": content.leader, "addr": content.address}
            return _map_frame(Kind.REJECT, epoch, 0, {**found, "min": content.first})
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
    """The head of a DATA frame, whose body follows. A CRC of 0 is none: of a body that goes from
    file to socket nobody counts one, and its messages have their own."""
    head = _head(Kind.DATA, epoch, _DATA.size + size, offset)
    return head + _DATA.pack(confirm, crc, size)


class NativeReader:
    """Frames of one peer."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | bytearray) -> list[Frame]:
        """The frames that are complete now, in order. Raises `RemoteProtocolError`."""
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


def _map_frame(kind: Kind, epoch: int, offset: int, found: dict[str, Any]) -> bytes:
    payload: bytes = msgpack.packb(found)
    assert len(payload) <= MAP_MAX, "a history that long is a mistake of ours"
    return _head(kind, epoch, len(payload), offset) + payload


def _check_size(kind: int, size: int) -> None:
    """Before anything of that size is waited for."""
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
        found = msgpack.unpackb(payload)
        match kind:
            case Kind.HELLO:
                return _hello(found, offset)
            case Kind.WELCOME:
                return _welcome(found, offset)
            case _ if offset:
                raise RemoteProtocolError(f"a {kind.name} at offset {offset}")
            case Kind.FENCE:
                return Fenced(_number(found["promised"]))
        leader = found["leader"]
        return Reject(
            why=_name(found["why"]),
            leader=None if leader is None else _number(leader),
            address=_name(found["addr"]),
            first=_number(found["min"]),
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


def _hello(found: Any, offset: int) -> Hello:
    if type(found["learner"]) is not bool:
        raise RemoteProtocolError("learner is not a truth value")
    return Hello(
        cluster=_name(found["cluster"]),
        group=_name(found["group"]),
        replica=_number(found["replica"]),
        uuid=_name(found["uuid"]),
        incarnation=_number(found["inc"]),
        promised=_number(found["promised"]),
        history=_history(found["hist"]),
        end=offset,
        first=_number(found["min"]),
        durable=_number(found["durable"]),
        segment=_number(found["seg"], 1),
        learner=found["learner"],
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


def _welcome(found: Any, offset: int) -> Welcome:
    if not offset - COMPARED_MAX <= found["cmp"] <= offset:
        raise RemoteProtocolError(f"a WELCOME that compares {found['cmp']} to {offset}")
    return Welcome(
        leader=_number(found["leader"]),
        incarnation=_number(found["inc"]),
        history=_history(found["hist"]),
        end=_number(found["end"]),
        first=_number(found["min"]),
        confirm=_number(found["confirm"]),
        cut=offset,
        compared=_number(found["cmp"]),
        crc=_number(found["crc"]),
    )


def _history(found: Any) -> Epochs:
    """Whether it can be that of a log is `replication.epochs`' to say."""
    history = []
    for epoch, start in found:
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
