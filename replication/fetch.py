"""A range of another node's log, over the replication port: to heal a log, not to follow one.

Every role listens there, RocketMQ's slaves too, so a replica that is not a master will do.
"""

from collections.abc import Callable

import trio

from rocketbed.replication.errors import ReplicationError
from rocketbed.replication.follow import address_text
from rocketbed.wire.ha import TransferReader, encode_report
from rocketbed.world.api import Address, Stream, World

SILENCE_S = 20.0
REPORT_S = 5.0
READ_SIZE = 64 * 1024


class FetchFailed(ReplicationError):
    """The other node did not send the requested range."""


Take = Callable[[int, bytes], None]
"""Takes a piece of the log and its offset."""


async def fetch(world: World, address: Address, start: int, end: int, take: Take) -> None:
    """Pass the log from `start` to `end` to `take`, in order. May be cancelled at any time.

    `start` is the beginning of a record. Raises `FetchFailed`, `RemoteProtocolError`.
    """
    name = address_text(address)
    try:
        stream = await world.network.connect(*address)
    except OSError as exc:
        raise FetchFailed(
            f"{name} cannot be reached: {exc.strerror or exc}; is that its haListenPort?"
        ) from exc
    try:
        await _receive(stream, name, start, end, take)
    except trio.BrokenResourceError as exc:
        raise FetchFailed(f"{name} closed the connection within the range: {exc}") from exc
    finally:
        with trio.move_on_after(1, shield=True):
            await trio.aclose_forcefully(stream)


async def _receive(stream: Stream, name: str, start: int, end: int, take: Take) -> None:
    frames, position, reported_at = TransferReader(), start, trio.current_time()
    # The first report requests the range. Later ones, which keep the connection alive, repeat it:
    # nothing received here is acknowledged.
    await stream.send_all(encode_report(start))
    while position < end:
        data: bytes | bytearray = b""
        with trio.move_on_after(SILENCE_S) as scope:
            data = await stream.receive_some(READ_SIZE)
        if scope.cancelled_caught or not data:
            failure = f"was silent for {SILENCE_S:g} s" if scope.cancelled_caught else "closed"
            raise FetchFailed(
                f"{name} {failure} at offset {position}: it may have nothing there, or its log"
                " begins later; ask another replica"
            )
        for frame in frames.feed(data):
            if frame.offset != position:
                raise FetchFailed(f"{name} sends from {frame.offset}, {position} is wanted")
            if not frame.data:
                raise FetchFailed(f"{name} has nothing behind offset {position}, {end} is wanted")
            if piece := frame.data[: end - position]:
                take(position, piece)
            position += len(frame.data)
            if position >= end:
                return
        if trio.current_time() - reported_at > REPORT_S:
            reported_at = trio.current_time()
            await stream.send_all(encode_report(start))
