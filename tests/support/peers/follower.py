"""A follower on the replication port of a leader: it acknowledges what the test wants."""

from typing import Any, Final

import trio

from rocketbed.wire.ha_native import (
    Ack,
    Beat,
    Content,
    Data,
    Frame,
    Hello,
    NativeReader,
    Reject,
    Welcome,
    encode,
)
from rocketbed.world.api import Address, World
from tests.support.peers.logs import Epochs

BEAT_S: Final = 0.1
ANSWER_S: Final = 3.0


class ScriptedFollower:
    """Replica `number` with a log that begins at 0 and is empty at first.

    It checks each frame: the next offset, within one file and one epoch, and a confirm offset that
    never falls.
    """

    def __init__(self, number: int, group: str, cluster: str, segment: int) -> None:
        self.number = number
        self.uuid = f"directory {number}"
        self.incarnation = 1
        self.log = bytearray()
        self.history: Epochs = ()
        """Epochs of the leader that it followed last; those beyond its log do not count yet."""
        self.confirms: list[int] = []
        self.is_unfit = False
        self.is_linked = False
        self.acknowledged = 0
        """Highest offset ever acknowledged as received."""
        self.durable = 0
        """Highest offset ever acknowledged as synced."""
        self._identity = (group, cluster, segment)
        self._stream: Any = None
        self._scope = trio.CancelScope()
        self._reader = NativeReader()
        self._frames: list[Frame] = []
        self._epoch = 0

    def twin(self) -> "ScriptedFollower":
        """Return the same replica for a second connection."""
        copy = ScriptedFollower(self.number, *self._identity)
        copy.log, copy.history = self.log, self.history
        copy.acknowledged, copy.durable = self.acknowledged, self.durable
        return copy

    def hello(self, **changes: Any) -> Hello:
        group, cluster, segment = self._identity
        history = tuple(epoch for epoch in self.history if epoch[1] < len(self.log))
        values: dict[str, Any] = {
            "cluster": cluster, "group": group, "replica": self.number, "uuid": self.uuid,
            "incarnation": self.incarnation, "promised": 0, "history": history,
            "end": len(self.log), "first": 0, "durable": 0, "segment": segment,
        }  # fmt: skip
        return Hello(**values | changes)

    async def dial(
        self, world: World, place: Address, epoch: int, first: Content
    ) -> Content | None:
        """Send a first frame and return the reply; None if the connection was closed."""
        self._stream = await world.network.connect(*place)
        self._reader, self._frames, self._epoch = NativeReader(), [], epoch
        await self._stream.send_all(encode(epoch, first))
        reply: Frame | None = None
        with trio.move_on_after(ANSWER_S):
            reply = await self._next()
        return None if reply is None else reply.content

    async def is_refused(
        self, world: World, place: Address, epoch: int, first: Content, reason: str
    ) -> None:
        """Check that a first frame is rejected with a reason."""
        reply = await self.dial(world, place, epoch, first)
        actual = reply.why if isinstance(reply, Reject) else str(reply)
        assert reason in actual, f"refusal: {actual}, expected {reason!r}"
        await trio.aclose_forcefully(self._stream)

    async def join(
        self, nursery: trio.Nursery, world: World, place: Address, epoch: int
    ) -> Welcome:
        """Begin to follow: cut the log as the leader says, receive it, and beat."""
        reply = await self.dial(world, place, epoch, self.hello(promised=epoch))
        assert isinstance(reply, Welcome), f"welcome: {reply}"
        assert reply.cut <= len(self.log), f"welcome: cut at {reply.cut} of {len(self.log)}"
        self.log, self.history = self.log[: reply.cut], reply.history
        self.confirms.append(reply.confirm)
        self._scope = trio.CancelScope()
        self.is_linked = True
        nursery.start_soon(self._run, reply.history)
        return reply

    async def ack(self, received: int, durable: int | None = None) -> None:
        durable = received if durable is None else durable
        await self.say(Ack(received, durable, self.incarnation))
        self.acknowledged = max(self.acknowledged, received)
        self.durable = max(self.durable, min(received, durable))

    async def ack_all(self) -> None:
        await self.ack(len(self.log))

    async def say(self, content: Content, epoch: int | None = None) -> None:
        await self._stream.send_all(encode(self._epoch if epoch is None else epoch, content))

    def hang_up(self) -> None:
        self._scope.cancel()

    async def _run(self, history: Epochs) -> None:
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._beat)
                    await self._receive([start for _, start in history])
                    nursery.cancel_scope.cancel()
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self.is_linked = False
            with trio.move_on_after(1, shield=True):
                await trio.aclose_forcefully(self._stream)

    async def _beat(self) -> None:
        while True:
            await self.say(Beat(len(self.log), 0, self.is_unfit))
            await trio.sleep(BEAT_S)

    async def _receive(self, starts: list[int]) -> None:
        segment = self._identity[2]
        while (frame := await self._next()) is not None:
            assert frame.epoch == self._epoch, f"frame: epoch {frame.epoch}"
            match frame.content:
                case Data(offset, confirm, body):
                    end, last = len(self.log), offset + len(body) - 1
                    assert offset == end, f"frame: offset {offset}, expected {end}"
                    assert offset // segment == last // segment, f"frame: {offset} to {last}"
                    crosses = any(offset < start <= last for start in starts)
                    assert not crosses, f"frame: two epochs in {offset} to {last}"
                    self.log += body
                case Beat(_, confirm, _):
                    pass
                case unexpected:
                    raise AssertionError(f"frame: {unexpected}")
            assert confirm >= self.confirms[-1], f"confirm: {confirm} after {self.confirms[-1]}"
            self.confirms.append(confirm)

    async def _next(self) -> Frame | None:
        while not self._frames:
            data = await self._stream.receive_some(65_536)
            if not data:
                return None
            self._frames = self._reader.feed(data)
        return self._frames.pop(0)
