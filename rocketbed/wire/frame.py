"""Bytes in, whole commands out, and back (wire.md 1.1). No I/O: `FrameReader` is fed.

    i32 L | i32 (encoding << 24 | H) | H bytes of header | L - 4 - H bytes of body

A frame that breaks these rules ends the connection without an answer, as Java does; what came
whole before it in the same read is still handed out first.
"""

import struct

from rocketbed.wire.command import Command, Encoding
from rocketbed.wire.encoding import binary as header_binary
from rocketbed.wire.encoding import json as header_json
from rocketbed.wire.encoding import positional as header_msgpack
from rocketbed.wire.errors import LocalProtocolError, RemoteProtocolError

FRAME_LENGTH_MAX = 16 * 1024 * 1024
"""Largest L, bytes (`com.rocketmq.remoting.frameMaxLength`)."""

_HEADER_LENGTH_MASK = 0xFFFFFF
_PREFIX = struct.Struct(">iI")
_LENGTH = struct.Struct(">i")
_HEAD = struct.Struct(">II")


class FrameReader:
    """Cuts a stream of bytes into commands; any cut of the stream gives the same commands."""

    def __init__(self, length_max: int = FRAME_LENGTH_MAX) -> None:
        self._length_max = length_max
        self._chunks: list[bytes] = []
        self._held = 0
        self._needed = 4
        """Bytes that have to be held before the next frame can get any further."""
        self._failure: RemoteProtocolError | None = None

    @property
    def held(self) -> int:
        """Bytes taken in that belong to a frame not yet whole."""
        return self._held

    def feed(self, data: bytes) -> list[Command]:
        """The commands that are whole now, in order.

        Raises `RemoteProtocolError` for a frame that breaks the protocol, but only on the call
        after the commands before it were handed out (see `check`); afterwards on every call.
        """
        self.check()
        if self._chunks:
            self._chunks.append(data)
            self._held += len(data)
            if self._held < self._needed:
                return []
            data = b"".join(self._chunks)
            self._chunks.clear()
        commands: list[Command] = []
        position = 0
        try:
            position = self._cut(data, commands)
        except RemoteProtocolError as exc:
            self._failure = exc
            self._held = 0
            if not commands:
                raise
            return commands
        self._held = len(data) - position
        if self._held:
            self._chunks.append(data[position:] if position else data)
        return commands

    def check(self) -> None:
        """Raise the `RemoteProtocolError` that followed the commands last handed out, if any."""
        if self._failure is not None:
            raise self._failure

    def _cut(self, data: bytes, commands: list[Command]) -> int:
        """Append the whole commands of `data`; return where the first incomplete frame starts."""
        position = 0
        end = len(data)
        unpack = _PREFIX.unpack_from
        while end - position >= 8:
            length, word = unpack(data, position)
            frame_end = position + 4 + length
            if frame_end > end or not 4 <= length <= self._length_max:
                break
            body_start = position + 8 + (word & _HEADER_LENGTH_MASK)
            if body_start > frame_end:
                raise RemoteProtocolError(
                    f"frame of {length} bytes names a header of {word & _HEADER_LENGTH_MASK}"
                )
            header = data[position + 8 : body_start]
            body = data[body_start:frame_end]
            encoding = word >> 24
            if encoding == 0:
                commands.append(header_json.decode(header, body))
            elif encoding == 1:
                commands.append(header_binary.decode(header, body))
            elif encoding == 2:
                commands.append(header_msgpack.decode(header, body))
            else:
                raise RemoteProtocolError(f"unknown header encoding {encoding}")
            position = frame_end
        self._needed = 4
        if end - position >= 4:
            (length,) = _LENGTH.unpack_from(data, position)
            if not 4 <= length <= self._length_max:
                raise RemoteProtocolError(f"frame length {length} is outside 4..{self._length_max}")
            self._needed = 4 + length
        return position


def encode(command: Command, encoding: Encoding | None = None) -> bytes:
    """One whole frame, in the given encoding or the command's own.

    Raises `LocalProtocolError` for what the encoding or the frame limit does not allow.
    """
    return encode_head(command, len(command.body), encoding) + command.body


def encode_head(command: Command, body_length: int, encoding: Encoding | None = None) -> bytes:
    """The frame up to its body, for a body of `body_length` bytes that is sent right after."""
    kind = command.encoding if encoding is None else encoding
    if kind is Encoding.JSON:
        header = header_json.encode(command)
    elif kind is Encoding.ROCKETMQ:
        header = header_binary.encode(command)
    else:
        header = header_msgpack.encode(command)
    length = 4 + len(header) + body_length
    if length > FRAME_LENGTH_MAX or len(header) > _HEADER_LENGTH_MASK:
        raise LocalProtocolError(
            f"frame of {length} bytes for {command!r} is over {FRAME_LENGTH_MAX}"
        )
    return _HEAD.pack(length, kind << 24 | len(header)) + header
