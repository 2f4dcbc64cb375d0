"""A leader on the replication port that the register names: it sends a prepared log."""

import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any, Final

import trio

from rocketbed.wire.ha_native import (
    Ack,
    Beat,
    Content,
    Data,
    Fenced,
    Frame,
    Hello,
    NativeReader,
    Reject,
    Welcome,
    encode,
)
from rocketbed.wire.message import MAGIC_BLANK
from rocketbed.world.api import Stream, World
from tests.support.peers.logs import Epochs, common_end, whole_end

PIECE: Final = 2500
BEAT_S: Final = 0.1
LOST: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


class ScriptedLeader:
    """Replica `number` at one port of its host; serves one link at a time."""

    def __init__(self, number: int, port: int, segment: int, random: Random) -> None:
        self.number, self.port, self.epoch = number, port, 0
        self.log = b""
        """From offset 0 on."""
        self.history: Epochs = ()
        self.sent_end = 0
        """The log is sent up to here."""
        self.confirm = 0
        self.speaks = True
        """True while it beats and sends data."""
        self.changes: dict[str, Any] = {}
        """Fields of the next WELCOME that are to differ."""
        self.reply: Content | None = None
        """Sent instead of a WELCOME."""
        self.hellos: list[Hello] = []
        self.received: list[Content] = []
        """Frames that are neither HELLO, ACK nor BEAT."""
        self.acks: list[Ack] = []
        """Acknowledgements on the current link."""
        self.on_ack: Callable[[Ack], None] = lambda ack: None
        self.stream: Stream | None = None
        self._segment, self._random = segment, random

    async def serve(self, world: World, nursery: trio.Nursery) -> None:
        listener = await world.network.listen("", self.port)
        nursery.start_soon(self._accept, listener)

    async def _accept(self, listener: Any) -> None:
        while True:
            stream = await listener.accept()
            try:
                await self._link(stream)
            except* LOST:
                pass
            finally:
                self.stream, self.acks = None, []
                with trio.move_on_after(1, shield=True):
                    await trio.aclose_forcefully(stream)

    async def _link(self, stream: Stream) -> None:
        self.stream, self.acks = stream, []
        reader = NativeReader()
        frames: list[Frame] = []
        while not frames:
            data = await stream.receive_some(65_536)
            if not data:
                return
            frames = reader.feed(data)
        hello, epoch = frames[0].content, frames[0].epoch
        assert isinstance(hello, Hello), f"hello: {hello}"
        assert epoch == self.epoch, f"hello: epoch {epoch}, expected {self.epoch}"
        self.hellos.append(hello)
        welcome = self._welcome(hello)
        await self.say(self.reply or welcome)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send, welcome.cut)
            nursery.start_soon(self._beat)
            while data := await stream.receive_some(65_536):
                for frame in reader.feed(data):
                    self._take(frame.content)
            nursery.cancel_scope.cancel()

    def _welcome(self, hello: Hello) -> Welcome:
        cut = common_end(hello.history, hello.end, self.history, len(self.log))
        start = max(0, (cut - 1) // self._segment * self._segment, cut - 4096) if cut else 0
        welcome = Welcome(
            leader=self.number, incarnation=1, history=self.history, end=len(self.log), first=0,
            confirm=self.confirm, cut=cut, compared=start,
            crc=zlib.crc32(self.log[start:cut]) if cut else 0,
        )  # fmt: skip
        return replace(welcome, **self.changes)

    def _take(self, content: Content) -> None:
        if isinstance(content, Ack):
            self.acks.append(content)
            self.on_ack(content)
        elif not isinstance(content, Beat):
            self.received.append(content)

    async def _send(self, at: int) -> None:
        with suppress(*LOST):  # the follower's last frames are still to be read
            while True:
                if self.speaks and at < self.sent_end and not self.reply:
                    starts = [start for _, start in self.history if start > at]
                    file_end = (at // self._segment + 1) * self._segment
                    most = min([*starts, self.sent_end, file_end]) - at
                    size = self._random.randint(1, min(PIECE, most))
                    await self.say(Data(at, self.confirm, self.log[at : at + size]))
                    at += size
                await trio.sleep(0.004)

    async def _beat(self) -> None:
        with suppress(*LOST):
            while True:
                if self.speaks:
                    await self.say(Beat(self.sent_end, self.confirm))
                await trio.sleep(BEAT_S)

    async def say(self, content: Content, epoch: int | None = None) -> None:
        assert self.stream is not None
        await self.stream.send_all(encode(self.epoch if epoch is None else epoch, content))

    def whole(self, limit: int | None = None) -> int:
        """Return the end of the last whole record that was sent, or that ends by `limit`."""
        return whole_end(self.log, self.sent_end if limit is None else limit)

    def send_up_to(self, at: int) -> None:
        """Send the log up to an offset, or to the end of the record there if the rest of it is a
        filler or zeros, which a restarted follower completes alone."""
        start = self.whole(at)
        size = int.from_bytes(self.log[start : start + 4], "big")
        magic = int.from_bytes(self.log[start + 4 : start + 8], "big", signed=True)
        is_whole = not self.log[at : start + size].strip(b"\0")
        self.sent_end = start + size if at > start and (magic == MAGIC_BLANK or is_whole) else at

    @property
    def rejects(self) -> list[Reject]:
        return [frame for frame in self.received if isinstance(frame, Reject)]

    @property
    def fences(self) -> list[Fenced]:
        return [frame for frame in self.received if isinstance(frame, Fenced)]
