"""A follower by hand, on the replication port of a leader: it says who it is, hears the log, and
acknowledges what the script wants."""

from random import Random
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

BEAT_S: Final = 0.1
ANSWER_S: Final = 3.0


class HandFollower:
    """Replica `number`, with an empty log at first."""

    def __init__(self, number: int, group: str, cluster: str, segment: int) -> None:
        self.number = number
        self.uuid = f"directory {number}"
        self.life = 1
        self.log = bytearray()
        """From 0 on."""
        self.history: tuple[tuple[int, int], ...] = ()
        """Of whom it followed last; its own as far as its log goes."""
        self.confirms: list[int] = []
        self.is_unfit = False
        self.is_linked = False
        self.beats = True
        self.acknowledged = 0
        """The most that it ever did."""
        self.durable = 0
        self._group, self._cluster, self._segment = group, cluster, segment
        self._stream: Any = None
        self._scope = trio.CancelScope()
        self._reader = NativeReader()
        self._waiting: list[Frame] = []
        self._epoch = 0

    def hello(self, **changes: Any) -> Hello:
        history = tuple(one for one in self.history if one[1] < len(self.log))
        values: dict[str, Any] = {
            "cluster": self._cluster, "group": self._group, "replica": self.number,
            "uuid": self.uuid, "incarnation": self.life, "promised": 0, "history": history,
            "end": len(self.log), "first": 0, "durable": 0, "segment": self._segment,
        }  # fmt: skip
        return Hello(**values | changes)

    async def dial(
        self, world: World, place: Address, epoch: int, first: Content
    ) -> Content | None:
        """What is answered to the first frame; None if the connection was closed without one."""
        self._stream = await world.network.connect(*place)
        self._reader, self._waiting, self._epoch = NativeReader(), [], epoch
        await self._stream.send_all(encode(epoch, first))
        found: Frame | None = None
        with trio.move_on_after(ANSWER_S):
            found = await self._next()
        return None if found is None else found.content

    async def refused(
        self, world: World, place: Address, epoch: int, first: Content, why: str
    ) -> None:
        """That there is no link, and why."""
        found = await self.dial(world, place, epoch, first)
        is_right = isinstance(found, Reject) and why in found.why
        assert is_right, f"refusal: {found} for {why!r}"
        await trio.aclose_forcefully(self._stream)

    async def joined(
        self, nursery: trio.Nursery, world: World, place: Address, epoch: int
    ) -> Welcome:
        """The leader takes it; from now on it hears the log, and beats."""
        found = await self.dial(world, place, epoch, self.hello(promised=epoch))
        assert_welcome = isinstance(found, Welcome)
        assert assert_welcome, f"welcome: {found}"
        assert isinstance(found, Welcome)
        assert found.cut <= len(self.log), f"welcome: cut at {found.cut} of {len(self.log)}"
        self.log, self.history = self.log[: found.cut], found.history
        self.confirms.append(found.confirm)
        self._scope = trio.CancelScope()
        self.is_linked = True
        nursery.start_soon(self._run, found.history)
        return found

    async def ack(self, received: int, durable: int | None = None, life: int | None = None) -> None:
        durable = received if durable is None else durable
        life = self.life if life is None else life
        await self.say(Ack(received, durable, life))
        if life == self.life:
            self.acknowledged = max(self.acknowledged, received)
            self.durable = max(self.durable, min(received, durable))

    async def say(self, content: Content, epoch: int | None = None) -> None:
        await self._stream.send_all(encode(self._epoch if epoch is None else epoch, content))

    def hang_up(self) -> None:
        self._scope.cancel()

    async def _run(self, history: tuple[tuple[int, int], ...]) -> None:
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._beat)
                    await self._hear(history)
                    nursery.cancel_scope.cancel()
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self.is_linked = False
            with trio.move_on_after(1, shield=True):
                await trio.aclose_forcefully(self._stream)

    async def _beat(self) -> None:
        while True:
            if self.beats:
                await self.say(Beat(len(self.log), 0, self.is_unfit))
            await trio.sleep(BEAT_S)

    async def _hear(self, history: tuple[tuple[int, int], ...]) -> None:
        starts = [start for _, start in history]
        while (frame := await self._next()) is not None:
            assert frame.epoch == self._epoch, f"frames: epoch {frame.epoch}"
            match frame.content:
                case Data(offset, confirm, body):
                    end = len(self.log)
                    assert offset == end, f"frames: {offset} for {end}"
                    last = offset + len(body) - 1
                    assert offset // self._segment == last // self._segment, (
                        f"frames: two files: {offset} to {last}"
                    )
                    assert not any(offset < one <= last for one in starts), (
                        f"frames: two epochs: {offset} to {last}"
                    )
                    self.log += body
                case Beat(_, confirm, _):
                    pass
                case other:
                    raise AssertionError(f"frames: {other}")
            self._heard(confirm)

    def _heard(self, confirm: int) -> None:
        assert confirm >= self.confirms[-1], f"confirm: {confirm} behind {self.confirms[-1]}"
        self.confirms.append(confirm)

    async def _next(self) -> Frame | None:
        while not self._waiting:
            data = await self._stream.receive_some(65_536)
            if not data:
                return None
            self._waiting = self._reader.feed(data)
        return self._waiting.pop(0)


def some_end(ends: list[int], above: int, random: Random) -> int:
    """The end of some record above an offset."""
    return random.choice([end for end in ends if end > above])
