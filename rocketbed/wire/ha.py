"""Frames of the classic replication stream (wire.md 7.4, replication.md 1.2 and 1.3).

The protocol consists of positions only: a slave reports the offset up to which it has the log, a
master answers with bytes from there. There is no handshake, so the peer's kind is recognized by its
first bytes (replication.md 7.13). Readers accept bytes cut anywhere, and never do I/O.

    slave -> master   offset i64
    master -> slave   offset i64 | size i32 | size bytes of the log      size 0 is a heartbeat
"""

import struct
from enum import Enum
from typing import NamedTuple

from rocketbed.wire.errors import RemoteProtocolError

REPORT_SIZE = 8
TRANSFER_HEAD_SIZE = 12
BATCH_SIZE = 32 * 1024
"""Most bytes of the log in one frame (`haTransferBatchSize`)."""
TRANSFER_SIZE_MAX = 4 * 1024 * 1024 - TRANSFER_HEAD_SIZE
"""Longest frame, limited by a real slave's buffer (replication.md 1.5)."""
NATIVE_MAGIC = b"RBHA"
"""First bytes of rocketbed's own protocol: as a classic offset, more than 5 EiB."""

_REPORT = struct.Struct(">q")
_TRANSFER_HEAD = struct.Struct(">qi")
_AUTOSWITCH = struct.Struct(">ihh")


class Transfer(NamedTuple):
    """A master's frame. Without bytes it is a heartbeat with the next position."""

    offset: int
    """Position of the first byte in the log."""
    data: bytes


class Peer(Enum):
    """Kind of peer on a replication port."""

    CLASSIC = "classic"
    AUTOSWITCH = "autoswitch"
    """RocketMQ in controller mode."""
    NATIVE = "native"


def encode_report(offset: int) -> bytes:
    """Return a slave's report: it has every byte of the log below `offset`."""
    return _REPORT.pack(offset)


def encode_transfer_head(offset: int, size: int) -> bytes:
    """Return the head of a frame; `size` bytes of the log follow."""
    return _TRANSFER_HEAD.pack(offset, size)


def encode_transfer(offset: int, data: bytes) -> bytes:
    """Return a whole frame; a heartbeat without data."""
    return _TRANSFER_HEAD.pack(offset, len(data)) + data


def sniff(first: bytes) -> Peer | None:
    """Recognize the sender of these first bytes; None while more are needed (at most 16).

    An AutoSwitch handshake begins like a report of exactly 4 GiB (+ 0, 1, 65536 or 65537); its next
    8 bytes are a small broker id, where a second report would be as high or higher.
    """
    if first[:4] == NATIVE_MAGIC:
        return Peer.NATIVE
    if len(first) < REPORT_SIZE:
        return None
    state, from_last_file, learner = _AUTOSWITCH.unpack_from(first)
    if state != 1 or from_last_file not in (0, 1) or learner not in (0, 1):
        return Peer.CLASSIC
    if len(first) < 2 * REPORT_SIZE:
        return None
    return Peer.AUTOSWITCH if first[8:12] == bytes(4) else Peer.CLASSIC


class ReportReader:
    """Reader of a slave's reports, of which only the newest matters."""

    def __init__(self) -> None:
        self._partial = b""

    def feed(self, data: bytes | bytearray) -> list[int]:
        """Return the offsets that are complete now, oldest first. Raises `RemoteProtocolError`."""
        data = self._partial + data
        whole = len(data) - len(data) % REPORT_SIZE
        self._partial = data[whole:]
        offsets = [offset for (offset,) in _REPORT.iter_unpack(data[:whole])]
        for offset in offsets:
            if offset < 0:
                raise RemoteProtocolError(f"a slave reported offset {offset}: no slave speaks here")
        return offsets


class TransferReader:
    """Reader of a master's frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | bytearray) -> list[Transfer]:
        """Return the frames that are complete now, in order. Raises `RemoteProtocolError`."""
        buffer = self._buffer
        buffer += data
        frames: list[Transfer] = []
        position = 0
        while len(buffer) - position >= TRANSFER_HEAD_SIZE:
            offset, size = _TRANSFER_HEAD.unpack_from(buffer, position)
            if offset < 0 or not 0 <= size <= TRANSFER_SIZE_MAX:
                raise RemoteProtocolError(
                    f"a frame of {size} bytes at offset {offset}: no master speaks here"
                )
            begin = position + TRANSFER_HEAD_SIZE
            if len(buffer) - begin < size:
                break
            position = begin + size
            frames.append(Transfer(offset, bytes(memoryview(buffer)[begin:position])))
        if position:
            del buffer[:position]
        return frames

    @property
    def pending(self) -> int:
        """Number of received bytes of a frame that is not complete."""
        return len(self._buffer)
