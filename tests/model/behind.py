"""A node that leads, and a follower that is far behind: what it is sent, how fast, and that nobody
else waits for that; then one that has all but the newest, under load, and is to be a member.
"""

from functools import partial
from random import Random
from typing import Final

import trio

from rocketbed.node.store.store import MessageStore
from rocketbed.replication.entry import Policy
from rocketbed.world.api import World
from tests.model.hand_follower import HandFollower
from tests.model.leading_stage import (
    CAUGHT_UP_S,
    LAG_S,
    LATE_S,
    NODE,
    PEERS,
    LeadingStage,
)
from tests.model.script import Script
from tests.model.stage import Stage, read_log
from tests.model.store import HOST

FAR: Final = 8 << 20
"""replication.md 7.4: so many bytes behind, and no member, a follower is sent files, at a rate
that followers share."""
SEGMENT: Final = 3 << 20
"""Files take several frames, so that most begin within one."""
BODY: Final = 300_000
MORE: Final = 3 << 20
"""By so much it is further behind."""
PIECE: Final = 1 << 20
"""What is under way, at most, beyond the rate."""
RATES: Final = (0, 1 << 20)
SENDS: Final = 4


def run_behind(seed: int) -> str:
    """Without a limit, and with one."""
    digest = ""
    for rate in RATES:
        name = f"behind/{seed}/{rate}"
        with Stage(name) as stage:
            script = Script(stage.simulation)
            script.play(PEERS, _lead, Behind(stage, script, Random(name), rate))
            digest += stage.simulation.digest()
    return digest


async def _lead(world: World, behind: "Behind") -> None:
    async with trio.open_nursery() as nursery:
        await behind.begin(world, nursery)
        await behind.grows()
        await behind.catches_up()
        await behind.joins()
        behind.judge()
        nursery.cancel_scope.cancel()


class Behind(LeadingStage):
    """What happens, in this order."""

    is_loaded = False

    def __init__(self, stage: Stage, script: Script, random: Random, rate: int) -> None:
        super().__init__(stage, script, random, Policy.MEMORY)
        self.rate, self.segment = rate, SEGMENT
        self.changes_of_settings = {
            "mappedFileSizeCommitLog": SEGMENT, "maxMessageSize": 2 * BODY,
            "mappedFileSizeConsumeQueue": 20_000, "rbCatchUpRate": rate,
        }  # fmt: skip
        for one in (self.one, self.two):
            one._segment = SEGMENT

    async def grows(self) -> None:
        """One member follows all the while."""
        one = self.one
        await self._join(one)
        self.nursery.start_soon(self._acks, one, 0.0)
        await self.until(lambda: 2 in self.controller.entry.in_sync, "the first member", 2)
        process = self.stage.simulation.process(NODE)
        while self.end < FAR + MORE:
            await self.script.outside(lambda: process.call(_fill, self.node.store, self.random))
            await trio.sleep(0.01)
        await self.until(lambda: self.confirmed == self.end, "all is confirmed", 5)

    async def _acks(self, one: HandFollower, late_s: float) -> None:
        """What it has, so much later."""
        while True:
            got = len(one.log)
            await trio.sleep(max(late_s, 0.005))
            if one.is_linked and got > one.acknowledged:
                await one.ack(got)

    async def catches_up(self) -> None:
        """As fast as is set and not faster; a send is answered at once meanwhile."""
        two = self.two
        began, before = trio.current_time(), self.end
        await self._join(two)
        self.nursery.start_soon(self._acks, two, 0.0)
        sent = 0
        while self.end - len(two.log) > FAR:
            await trio.sleep(0.05)
            took_s = trio.current_time() - began
            most = self.rate * took_s + 2 * PIECE
            is_right = not self.rate or self.end - len(two.log) <= FAR or len(two.log) <= most
            assert is_right, f"rate: {len(two.log)} for {most}"
            if sent < SENDS:
                sent += 1
                number = len(self.sent)
                self.sends()
                await self.until(partial(lambda n: len(self.sent) > n, number), "a send", 0.15)
            assert took_s < 20, f"rate: {len(two.log)} bytes in {took_s} s"
        took_s = trio.current_time() - began
        want_s = (before - FAR) / self.rate if self.rate else 0.0
        assert want_s - 1 <= took_s <= want_s + 2, f"rate: {took_s} s for {want_s}"
        await self.until(lambda: len(two.log) == self.end, "it hears the rest", 3)
        assert two.log == read_log(self.node.store.log)[1], "log: other bytes"
        await self.until(lambda: 3 in self.controller.entry.in_sync, "a member", 2)

    async def joins(self) -> None:
        """One that has all but what came last is to be a member too, though it never has all."""
        one, two = self.one, self.two
        two.hang_up()
        await self.until(lambda: 3 not in self.controller.entry.in_sync, "it is left out", 2)
        acked = two.acknowledged
        two = self.two = HandFollower(3, one._group, one._cluster, SEGMENT)
        two.log, two.history, two.acknowledged = self.one.log, self.one.history, acked
        self.is_loaded = True
        self.nursery.start_soon(self._load)
        await trio.sleep(0.2)
        two.log = two.log[: self.confirmed]
        await self._join(two)
        self.nursery.start_soon(self._acks, two, 0.04)
        began = trio.current_time()
        most_s = CAUGHT_UP_S + 2 * LAG_S + LATE_S
        await self.until(lambda: 3 in self.controller.entry.in_sync, "a member, under load", most_s)
        took_s = trio.current_time() - began
        assert took_s > CAUGHT_UP_S - 0.1, f"early: complete for {took_s} s"
        await trio.sleep(0.2)
        self.is_loaded = False
        await self.until(lambda: len(self.sent) == self.number, "all are answered", 1)

    async def _load(self) -> None:
        """A send each few ms, none of which waits for another."""
        while self.is_loaded:
            self.sends()
            await trio.sleep(0.006)


def _fill(store: MessageStore, random: Random) -> None:
    run = store.begin()
    for _ in range(2):
        body = random.randbytes(64) * (BODY // 64)
        run.add("T", 0, body, b"", flag=0, sys_flag=0, born_ms=1, born_host=HOST)
    store.commit(run)
