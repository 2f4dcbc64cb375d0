"""Lives of a replica: what it registers is compared with a model of what its directory holds.

In between it stops, is killed or loses power, and its directory loses its identity, what it has
promised, or bytes of the log; the scripted controller may not answer.
"""

from collections.abc import Callable
from random import Random
from typing import Final

import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.replication.entry import Policy
from rocketbed.world.api import World
from tests.model.at_rest import Change, edited
from tests.model.script import Script, wait_until
from tests.model.stage import SEGMENT, Stage
from tests.support.peers.controller import ScriptedController
from tests.support.peers.logs import record_ends
from tests.support.sim.following_node import (
    GROUP,
    NODE,
    PEERS,
    Log,
    group_settings,
    make_log,
)

LIVES: Final = 12
LATE: Final = 3
"""Only the last lives lose bytes of the log."""
COUNT: Final = 40
IDENTITY, EPOCHS = "/store/replica.rb", "/store/epoch.rb"


def run_replica_lives(seed: int) -> str:
    digest = ""
    image, log = make_log(f"replica-lives/{seed}", None, (), 1, COUNT)
    for policy in Policy:
        for trusts_cache in (True, False):
            name = f"replica-lives/{seed}/{policy}/{trusts_cache}"
            with Stage(name) as stage:
                lives = ReplicaLives(stage, Random(name), policy, log, trusts_cache=trusts_cache)
                stage.simulation.host(NODE).image = image
                lives.script.play(PEERS, lives.main)
                digest += stage.simulation.digest()
    return digest


class ReplicaLives:
    """A directory, and what a register may hear of it."""

    def __init__(
        self, stage: Stage, random: Random, policy: Policy, log: Log, *, trusts_cache: bool
    ) -> None:
        self.stage, self.random, self.policy = stage, random, policy
        self.script = Script(stage.simulation)
        self.log, self.epochs = log
        self.trusts_cache = trusts_cache
        self.controller = ScriptedController(GROUP, replicas=3, policy=policy)
        self.uuid = ""
        self.incarnation = 1
        """Incarnation that led, and wrote the log."""
        self.promised = self.epochs[-1][0]
        self.is_lossless = True
        """True if nothing is lost that the register has not heard of."""
        self.owes = False
        """True if synced bytes of the log are missing, which only a leader would send again."""
        self._settings = {
            **group_settings(stage, policy, replicas=3),
            "rbTrustPageCache": str(trusts_cache).lower(),
        }

    async def main(self, world: World) -> None:
        async with trio.open_nursery() as nursery:
            await self.controller.serve(world, nursery)
            await self._live("first", None, answers=True)
            for number in range(LIVES):
                end = await self._end()
                changes: list[Callable[[], Change | None]] = [
                    self._keep, self._keep, self._lose_identity, self._lose_epochs,
                ]  # fmt: skip
                changes += [self._lose_bytes] * (3 * (number >= LIVES - LATE))
                change = self.random.choice(changes)()
                await self._live(f"after a {end}", change, answers=self.random.random() < 0.6)
            nursery.cancel_scope.cancel()

    async def _end(self) -> str:
        simulation, end = self.stage.simulation, self.random.choice(("stop", "kill", "power"))
        ends: dict[str, Callable[[], object]] = {
            "stop": lambda: simulation.stop(NODE),
            "kill": lambda: simulation.kill(NODE),
            "power": lambda: simulation.power_cut(NODE, "strict"),
        }
        await self.script.outside(lambda: (ends[end](), None)[1])
        process = simulation.process(NODE)
        await self._until(lambda: process.done, f"{end} ends it")
        loses_cache = end == "power" or (end == "kill" and not self.trusts_cache)
        if loses_cache and self.policy is Policy.MEMORY:
            self.is_lossless = False
        return end

    async def _until(self, holds: Callable[[], bool], event: str) -> None:
        await wait_until(holds, event, 20, 0.02, lambda: None)

    async def _live(self, case: str, change: Change | None, *, answers: bool) -> None:
        """Start the node and compare what it registers."""
        self.incarnation += 1
        self.controller.answers_registrations = answers
        registrations = self.controller.registrations
        registrations.clear()

        def begin() -> None:
            host = self.stage.simulation.host(NODE)
            if change is not None:
                host.image = edited(host.image, change)
            self.stage.begin(NODE, self._settings)

        await self.script.outside(begin)
        await self._until(lambda: bool(registrations), f"{case}: it registers")
        header = registrations[0]
        self.uuid = self.uuid or header.uuid
        epoch = max((number for number, start in self.epochs if start < header.end), default=0)
        actual = (header.uuid, header.incarnation, header.promised, header.lossless,
                  header.epoch, header.end)  # fmt: skip
        expected = (self.uuid, self.incarnation, self.promised,
                    self.is_lossless and not self.owes, epoch, len(self.log))  # fmt: skip
        assert actual == expected, f"registered: {case}: {actual}, expected {expected}"
        await trio.sleep(1)
        self.is_lossless = self.is_lossless or answers

    # --- changes of the directory

    def _keep(self) -> None:
        return None

    def _lose_identity(self) -> Change:
        """Without it the directory is another replica's, in its first incarnation."""
        self.uuid, self.incarnation, self.is_lossless = "", 0, True
        self.controller.forget(1)
        return lambda disk: disk.remove_name(IDENTITY)

    def _lose_epochs(self) -> Change:
        """The history is in the log, but not what was promised."""
        self.promised = 0
        return lambda disk: disk.remove_name(EPOCHS)

    def _lose_bytes(self) -> Change | None:
        """Zero the end of the last file, from some record on."""
        last = (len(self.log) - 1) // SEGMENT * SEGMENT
        ends = [end for end in record_ends(self.log) if last < end < len(self.log)]
        end = self.random.choice(ends or [0])
        if end <= self.epochs[-1][1]:
            return None
        path = f"/store/commitlog/{last:020d}"
        self.log, self.owes = self.log[:end], True

        def change(disk: SimDisk) -> None:
            data = disk.contents(path)
            disk.replace_contents(path, data[: end - last] + bytes(len(data) - end + last))

        return change
