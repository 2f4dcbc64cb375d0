"""A leader by hand, on the replication port that the register names: it says what the script wants,
sends a log that was made before, and looks at what its follower says of its own."""

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
from tests.model.stage import SEGMENT, ends_of

PIECE: Final = 2500
BEAT_S: Final = 0.1
LOST: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
Epochs = tuple[tuple[int, int], ...]


class HandLeader:
    """Replica `number`, at one port of its host. One link at a time."""

    def __init__(self, number: int, port: int, random: Random) -> None:
        self.number = number
        self.port = port
        self.epoch = 0
        self.log = b""
        """From 0 on."""
        self.history: Epochs = ()
        self.upto = 0
        """So much of it is sent."""
        self.confirm = 0
        self.cut = 0
        """Up to where the follower's log is this one."""
        self.speaks = True
        """Whether it beats, and sends what there is."""
        self.changes: dict[str, Any] = {}
        """Of the next WELCOME."""
        self.instead: Content | None = None
        """What is said in place of it."""
        self.hellos: list[Hello] = []
        self.heard: list[Content] = []
        """All else that it was told."""
        self.acks: list[Ack] = []
        """Of the newest link."""
        self.on_ack: Callable[[Ack], None] = lambda ack: None
        self.stream: Stream | None = None
        self._random = random

    async def serve(self, world: World, nursery: trio.Nursery) -> None:
        listener = await world.network.listen("", self.port)
        nursery.start_soon(self._accept, listener)

    async def _accept(self, listener: Any) -> None:
        while True:
            stream = await listener.accept()
            try:
                await self._link(stream)
            except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
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
        hello = frames[0].content
        assert isinstance(hello, Hello), f"hello: {hello}"
        assert frames[0].epoch == self.epoch, f"hello: epoch {frames[0].epoch} of {self.epoch}"
        assert isinstance(hello, Hello)
        self.hellos.append(hello)
        await self.say(self.instead or self._welcome(hello))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send)
            nursery.start_soon(self._beat)
            while data := await stream.receive_some(65_536):
                for frame in reader.feed(data):
                    self._hear(frame.content)
            nursery.cancel_scope.cancel()

    def _welcome(self, hello: Hello) -> Welcome:
        self.cut = common(hello.history, hello.end, self.history, len(self.log))
        start = max(0, (self.cut - 1) // SEGMENT * SEGMENT, self.cut - 4096) if self.cut else 0
        right = Welcome(
            leader=self.number, incarnation=1, history=self.history, end=len(self.log), first=0,
            confirm=self.confirm, cut=self.cut, compared=start,
            crc=zlib.crc32(self.log[start : self.cut]) if self.cut else 0,
        )  # fmt: skip
        return replace(right, **self.changes)

    def _hear(self, content: Content) -> None:
        if isinstance(content, Ack):
            self.acks.append(content)
            self.on_ack(content)
        elif not isinstance(content, Beat):
            self.heard.append(content)

    async def _send(self) -> None:
        with suppress(*LOST):  # what its follower has said last is to be heard yet
            await self._send_all()

    async def _send_all(self) -> None:
        at = self.cut
        while True:
            if self.speaks and at < self.upto and not self.instead:
                starts = [start for _, start in self.history if start > at]
                most = min([*starts, self.upto, (at // SEGMENT + 1) * SEGMENT]) - at
                size = self._random.randint(1, min(PIECE, most))
                await self.say(Data(at, self.confirm, self.log[at : at + size]))
                at += size
            await trio.sleep(0.004)

    async def _beat(self) -> None:
        with suppress(*LOST):
            while True:
                if self.speaks:
                    await self.say(Beat(self.upto, self.confirm))
                await trio.sleep(BEAT_S)

    async def say(self, content: Content, epoch: int | None = None) -> None:
        assert self.stream is not None
        await self.stream.send_all(encode(self.epoch if epoch is None else epoch, content))

    def whole(self, at: int) -> int:
        """The end of the last whole record below an offset."""
        return max([0, *(end for end in ends_of(self.log) if end <= at)])

    def send_upto(self, at: int) -> None:
        """So much of the log, but not a part of what fills a file, nor all of a record but zeros:
        a follower that begins again completes those by itself."""
        start = self.whole(at)
        size = int.from_bytes(self.log[start : start + 4], "big")
        magic = int.from_bytes(self.log[start + 4 : start + 8], "big", signed=True)
        is_whole = not self.log[at : start + size].strip(b"\0")
        self.upto = start + size if at > start and (magic == MAGIC_BLANK or is_whole) else at

    def rejects(self) -> list[Reject]:
        return [one for one in self.heard if isinstance(one, Reject)]

    def fences(self) -> list[Fenced]:
        return [one for one in self.heard if isinstance(one, Fenced)]


def common(mine: Epochs, my_end: int, theirs: Epochs, their_end: int) -> int:
    """Up to where two logs are the same: within the newest epoch that both have."""
    ends: dict[tuple[int, int], int] = {}
    for history, end in ((mine, my_end), (theirs, their_end)):
        for one, after in zip(history, [*(start for _, start in history[1:]), end], strict=False):
            ends[one] = min(ends.get(one, after), after)
    shared = [one for one in mine if one in theirs]
    return ends[shared[-1]] if shared else 0
