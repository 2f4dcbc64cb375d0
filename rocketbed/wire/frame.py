"""Frames: bytes to commands and back (wire.md 1.1). No I/O: `FrameReader` is fed with bytes.

    i32 L | i32 (encoding << 24 | H) | H bytes of header | L - 4 - H bytes of body

A frame that breaks these rules ends the connection without an answer, as in Java; complete frames
before it in the same read are still handed out first.
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
_ALL = -1
PREFIX = struct.Struct(">iI")
"""L and the word that holds encoding and H, for reading: L may be any number."""
_LENGTH = struct.Struct(">i")
HEAD = struct.Struct(">II")
"""L and that word, for writing."""
_FOREIGN = {
    b"\x16\x03": "TLS, which is not supported",
    b"PRI ": "HTTP/2, as of gRPC clients",
    b"HTTP": "HTTP",
    b"GET ": "HTTP",
    b"HEAD": "HTTP",
    b"POST": "HTTP",
    b"PUT ": "HTTP",
}
"""Protocols that peers speak by mistake, by their first bytes."""


class FrameReader:
    """Cuts a stream of bytes into commands; any cut of the stream gives the same commands.

    `add` the received bytes, then call `next` until it returns no commands; or `feed`, which does
    both. A caller that reads some frames itself moves `position` over them.
    """

    def __init__(self, length_max: int = FRAME_LENGTH_MAX) -> None:
        self._length_max = length_max
        self.data = b""
        """Bytes to be cut."""
        self.position = 0
        """Position in `data` at which the next frame begins."""
        self._chunks: list[bytes] = []
        self._pending = 0
        self._needed = 4
        """Bytes that must have arrived before the next frame can be read further."""
        self._failure: RemoteProtocolError | None = None

    @property
    def pending(self) -> int:
        """Number of received bytes of a frame that is not complete."""
        return self._pending

    def add(self, data: bytes) -> None:
        """Add bytes, once `next` returns no more commands."""
        if self._chunks:
            self._chunks.append(data)
            self._pending += len(data)
            if self._pending < self._needed:
                return
            data = b"".join(self._chunks)
            self._chunks.clear()
        assert self.position == len(self.data), "whole frames are cut before others come"
        self.data, self.position = data, 0

    def next(self, count: int = _ALL) -> list[Command]:
        """Return the next complete commands, in order, at most `count`.

        Raises `RemoteProtocolError` for a frame that breaks the protocol, once the commands before
        it were handed out, and from then on.
        """
        commands: list[Command] = []
        data, position = self.data, self.position
        end, unpack, length_max = len(data), PREFIX.unpack_from, self._length_max
        try:
            while end - position >= 8 and count:
                length, word = unpack(data, position)
                frame_end = position + 4 + length
                if frame_end > end or not 4 <= length <= length_max:
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
                count -= 1
        except RemoteProtocolError:
            if not commands:
                raise
        self.position = position
        if not commands and data:
            self._hold(end - position)
        return commands

    def _wrong_length(self, length: int) -> str:
        first = bytes(self.data[self.position : self.position + 4])
        for start, protocol in _FOREIGN.items():
            if first.startswith(start):
                return f"not RocketMQ's remoting protocol but {protocol}"
        return f"frame length {length} is outside 4..{self._length_max}"

    def _hold(self, remaining: int) -> None:
        """Keep the last bytes, in which no frame is complete, until more have arrived."""
        self._pending, self._needed = remaining, 4
        if remaining >= 4:
            (length,) = _LENGTH.unpack_from(self.data, self.position)
            if not 4 <= length <= self._length_max:
                raise RemoteProtocolError(self._wrong_length(length))
            self._needed = 4 + length
        if remaining:
            self._chunks.append(self.data[self.position :])
        self.data, self.position = b"", 0

    def feed(self, data: bytes) -> list[Command]:
        """Return the commands that are complete now, in order.

        Raises `RemoteProtocolError` for a frame that breaks the protocol, but only on the call
        after the commands before it were handed out (see `check`); afterwards on every call.
        """
        self.check()
        self.add(data)
        commands: list[Command] = []
        try:
            while complete := self.next():
                commands += complete
        except RemoteProtocolError as exc:
            self._failure = exc
            self._pending = 0
            if not commands:
                raise
        return commands

    def check(self) -> None:
        """Raise the `RemoteProtocolError` that followed the commands last handed out, if any."""
        if self._failure is not None:
            raise self._failure


def encode(command: Command, encoding: Encoding | None = None) -> bytes:
    """Return a whole frame, in the given encoding or the command's own.

    Raises `LocalProtocolError` for content that the encoding or the frame limit does not allow.
    """
    return encode_head(command, len(command.body), encoding) + command.body


def encode_head(command: Command, body_length: int, encoding: Encoding | None = None) -> bytes:
    """Return the frame up to its body, for a body of `body_length` bytes that is sent right
    after."""
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
    return HEAD.pack(length, kind << 24 | len(header)) + header
