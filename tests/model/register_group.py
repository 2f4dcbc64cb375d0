"""The replicas of one group by hand, beside a controller and a model of what its register holds."""

from random import Random
from typing import Any, Final

import orjson
import trio

from rocketbed.chaos.backends.sim.memory_cas import MemoryCas, Shelf
from rocketbed.remoting.server import Server
from rocketbed.replication.controller import Controller
from rocketbed.replication.register.form import loaded
from rocketbed.wire.command import RequestCode
from rocketbed.world.api import World
from tests.model.hand_replica import GROUP, HandReplica
from tests.model.register_model import DONE, GroupModel, Heard, shown
from tests.model.script import Script

PORT: Final = 9800
CONTROLLER, PEERS = "controller", "peers"
LEASE_S: Final = 0.6
BEAT_S: Final = 0.1
AFTER_S: Final = 0.06
"""A beat's way, and a change's."""
SOON_S: Final = 0.15
"""For a change that has nothing to wait for."""
NUMBERS: Final = 4
Code = RequestCode


async def control(world: World, shelf: Shelf) -> None:
    """A controller by itself, as it is beside a nameserver."""
    controller = Controller(world, MemoryCas(world, shelf))
    server = Server(world, ("", PORT), controller.handlers(), on_close=controller.on_close)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        nursery.start_soon(controller.run)


class Group:
    """The replicas by hand, and what has to become of them."""

    def __init__(
        self, world: World, nursery: trio.Nursery, random: Random, script: Script, shelf: Shelf
    ) -> None:
        self.world, self.random, self.script, self.shelf = world, random, script, shelf
        self.nursery = nursery
        host = script.simulation.host(PEERS).address
        self.controller = (script.simulation.host(CONTROLLER).address, PORT)
        self.replicas = random.choice((2, 3))
        self.model = GroupModel(least=2 if self.replicas == 3 else 1)
        self.policy = random.choice(("memory", "fsync"))
        self.hands = [HandReplica(world, nursery, host, number) for number in range(NUMBERS)]
        self.heard: dict[int, Heard] = {}
        """Who was heard within the lease, or may have been; what each said."""
        self.last: dict[int, tuple[int, int]] = {}
        """What the controller knows of the end of each log."""
        self.ops = 0
        self.done: tuple[RequestCode, Any] | None = None
        """The newest change that was made."""
        self.waits = False
        """Whether the controller has just begun: it elects nobody yet."""

    async def active(self) -> None:
        """Until the controller has its claim; till then it answers nothing."""
        hand = self.hands[-1]
        await hand.dial(self.controller)
        while (await hand.ask(Code.RB_GROUPS)).code != DONE:  # noqa: ASYNC110, in virtual time
            await trio.sleep(0.01)
        hand.hang_up()

    async def begin(self) -> None:
        await self.active()
        for hand in self.hands[:3]:
            await self.come(hand)
            await self.beat()
        await self.settled("the beginning")
        await self.live(LEASE_S)  # a controller that has just begun waits to hear all

    async def come(self, hand: HandReplica, *, lossless: bool = True) -> None:
        """A life begins: it listens, dials, registers."""
        await hand.listen()
        hand.life += 1
        if hand.connection is None:
            await hand.dial(self.controller)
        await self.registers(hand, lossless=lossless)
        hand.beats = True

    async def registers(self, hand: HandReplica, *, lossless: bool) -> None:
        model, number = self.model, hand.number

        def change(values: dict[str, Any]) -> None:
            values |= {"lossless": lossless, "replicas": self.replicas, "policy": self.policy}

        fell_back = self.policy == "memory" and (hand.epoch, hand.end) < self.last.get(
            number, (0, 0)
        )
        want = model.register(number, hand.uuid, hand.life, lossless=lossless and not fell_back)
        found = await hand.register(change)
        self.same(found, want, f"registers {number}.{hand.life}, lossless: {lossless}")
        self.elect()

    def elect(self) -> None:
        if not self.waits:
            self.model.elect(self.heard)

    async def beat(self) -> None:
        """All that live say so once; each is told of what it does not know, and of nothing else."""
        for hand in self.hands:
            if not hand.beats:
                continue
            known = 0 if hand.entry is None else hand.entry.version
            found = await hand.beat()
            assert found.code == DONE, f"beat: {hand.number}: {found.code} {found.remark}"
            self.heard[hand.number] = (hand.life, hand.is_unfit, hand.epoch, hand.end)
            self.last[hand.number] = hand.epoch, hand.end
            is_news = bool(found.body)
            assert is_news <= (known < self.model.version), f"beat: {hand.number}: {known} again"
            self.elect()

    async def live(self, seconds: float) -> None:
        """Time goes by."""
        end = trio.current_time() + seconds
        while trio.current_time() < end:
            await self.beat()
            await trio.sleep(min(BEAT_S, max(end - trio.current_time(), 0.001)))

    async def settled(self, what: str) -> None:
        """After everything that has nothing to wait for: the register is what it has to be, and
        all have been told."""
        await trio.sleep(SOON_S)
        want = self.model.shown()
        found = self.shelf.values[GROUP][-1]
        entry = shown(loaded(found.value, name=GROUP, version=found.version))
        assert entry == want, f"register: {what}: {entry} for {want}"
        for hand in self.hands:
            if hand.connection is not None and hand.beats:
                told = hand.entry and shown(hand.entry)
                assert told == want, f"notice: {what}: {hand.number} knows {told} for {want}"
            once = sorted(set(hand.noticed))
            assert hand.noticed == once, f"notice: {what}: {hand.number}: {hand.noticed}"
        await self._shown(what)

    async def _shown(self, what: str) -> None:
        hand = next((one for one in self.hands if one.connection is not None), None)
        if hand is None:
            return
        body = orjson.loads((await hand.ask(Code.RB_GROUPS)).body)
        row = body[GROUP]
        assert row["entry"]["version"] == self.model.version, f"groups: {what}: {row}"
        for one in self.hands:
            silent_s = row["silent_s"].get(str(one.number))
            is_heard = one.beats and one.number in self.heard
            assert not is_heard or (silent_s is not None and silent_s < 2 * BEAT_S + SOON_S), (
                f"groups: {what}: {one.number} is silent for {silent_s} s"
            )

    def same(self, found: Any, want: int, what: str) -> None:
        """An answer is what the model says."""
        assert found.code == want, f"answer: {what}: {found.code} for {want}: {found.remark}"
        if want == DONE:
            version = int(found.fields["version"])
            entry = shown(loaded(found.body, name=GROUP, version=version))
            assert entry == self.model.shown(), f"answer: {what}: {entry}, {self.model.shown()}"

    def op(self) -> str:
        self.ops += 1
        return f"op {self.ops}"

    def alive(self) -> list[HandReplica]:
        return [hand for hand in self.hands if hand.beats]

    async def unchanged(self, what: str) -> None:
        found = self.shelf.values[GROUP][-1]
        entry = shown(loaded(found.value, name=GROUP, version=found.version))
        assert entry == self.model.shown(), f"early: {what}: {entry} for {self.model.shown()}"

    async def another_controller(self) -> None:
        """In the place of one that was killed; all have to dial again."""
        simulation = self.script.simulation

        def again() -> None:
            simulation.kill(CONTROLLER)
            self.shelf.holder = ""
            simulation.start(CONTROLLER, control, self.shelf)

        for hand in self.hands:
            hand.hang_up()
        await self.script.outside(again)
        await self.active()
