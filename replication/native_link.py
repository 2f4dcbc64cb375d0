"""A connection of our own replication protocol, either end: frames, beats, and silence."""

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from rocketbed.replication.errors import LinkRefused, NoRoom
from rocketbed.wire.errors import RemoteProtocolError
from rocketbed.wire.ha_native import Beat, Content, Frame, NativeReader, encode
from rocketbed.world.api import File, Stream, World

BEAT_S: Final = 0.1
"""Silence after which an end sends a beat."""
DEAD_S: Final = 0.3
"""Silence of the peer after which the link is given up."""
PATIENT_S: Final = 3.0
"""The same for a follower that is not needed now: on a slow disk each new link costs it seconds."""
READ_SIZE: Final = 256 * 1024
LOST: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
"""Errors of a stream whose peer is gone."""


class NativeLink:
    """A connection in one epoch. Not for several tasks that send."""

    def __init__(self, world: World, stream: Stream, first: bytes = b"") -> None:
        """`first`: bytes that were read from the stream already, and not parsed."""
        self._stream = stream
        self._network = world.network
        self._reader = NativeReader()
        self._early = first
        self._waiting: list[Frame] = []
        self._turn = trio.Lock()
        self._scope = trio.CancelScope()
        self._last_received = trio.current_time()
        self._is_awaited: Callable[[], bool] = lambda: True
        self.ended_by = ""
        """Reason why the link ended."""
        self.is_faulty = False
        """True if the peer's data was at fault, so that it would happen again."""
        self.peer = "{}:{}".format(*world.network.peer_address(stream))

    async def send(self, data: bytes) -> None:
        """Send bytes of whole frames. Raises `OSError` and trio's errors of streams."""
        async with self._turn:
            await self._stream.send_all(data)

    async def send_file(self, head: bytes, file: File, at: int, size: int) -> None:
        """Send a frame that ends with a range of a file. Raises as `send`."""
        async with self._turn:
            await self._stream.send_all(head)
            await self._network.send_file(self._stream, file, at, size)

    async def first(self, timeout_s: float) -> Frame | None:
        """Return the first frame; None if none came in time, or the peer disconnected. Raises
        `RemoteProtocolError`."""
        with trio.move_on_after(timeout_s):
            return await self.next()
        return None

    async def next(self) -> Frame | None:
        """Return the next frame; None if the peer disconnected. Raises `RemoteProtocolError`."""
        while not self._waiting:
            data, self._early = self._early, b""
            data = data or bytes(await self._stream.receive_some(READ_SIZE))
            if not data:
                return None
            self._waiting = self._reader.feed(data)
            self._last_received = trio.current_time()
        return self._waiting.pop(0)

    async def run(
        self, *parts: Callable[[], Awaitable[None]], is_awaited: Callable[[], bool]
    ) -> None:
        """Run the parts of an end, until one of them ends, or the peer does; `ended_by` has the
        reason. `is_awaited`: True if the follower is in sync now."""
        self._is_awaited = is_awaited
        with self._scope:
            async with trio.open_nursery() as nursery:
                for part in (*parts, self._watch):
                    nursery.start_soon(self._until_lost, part)

    def end(self, reason: str) -> None:
        """End `run`, now or as soon as it begins."""
        self.ended_by = self.ended_by or reason
        self._scope.cancel()

    async def _until_lost(self, part: Callable[[], Awaitable[None]]) -> None:
        try:
            await part()
            self.ended_by = self.ended_by or "it went away"
        except (*LOST, RemoteProtocolError, LinkRefused, NoRoom) as exc:
            self.is_faulty = isinstance(exc, RemoteProtocolError | LinkRefused | NoRoom)
            self.ended_by = self.ended_by or str(exc) or type(exc).__name__
        self._scope.cancel()

    async def _watch(self) -> None:
        self._last_received = trio.current_time()
        while True:
            silent_s = trio.current_time() - self._last_received
            dead_s = DEAD_S if self._is_awaited() else PATIENT_S
            if silent_s >= dead_s:
                break
            await trio.sleep(DEAD_S - silent_s % DEAD_S)
        self.ended_by = f"silent for {dead_s:g} s"

    async def beat(self, epoch: int, content: Callable[[], Beat]) -> None:
        """Send beats, so that the peer does not give up."""
        while True:
            await self.send(encode(epoch, content()))
            await trio.sleep(BEAT_S)

    async def say(self, epoch: int, content: Content) -> None:
        """Send one frame."""
        await self.send(encode(epoch, content))

    async def aclose(self) -> None:
        """Close at once."""
        await trio.aclose_forcefully(self._stream)
