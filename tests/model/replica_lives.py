"""Lives of a replica, each with what became of its directory in between: it loses power, bytes of
its log, a file that says who it is or what it promised, or had other masters; with a controller by
hand, which may not answer. What it registers is compared with a model of what it has.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import crcmod.predefined
import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.replication.entry import Policy
from rocketbed.world.api import World
from tests.model.mending import edited
from tests.model.script import Script, wait_until
from tests.model.stage import SEGMENT, Stage
from tests.support.peers.controller import ScriptedController
from tests.support.peers.logs import record_ends
from tests.support.sim.following_node import GROUP, NODE, PEERS, group_settings, make_log

LIVES: Final = 12
COUNT: Final = 40
SIZE_MAX: Final = 1 << 20
"""Bytes of a file that a replica keeps."""
WHO, EPOCHS = "/store/replica.rb", "/store/epoch.rb"
KINDS: Final = {WHO: b"rocketbed-replica 1", EPOCHS: b"rocketbed-epochs 1"}
crc32c: Callable[[bytes], int] = crcmod.predefined.mkCrcFun("crc-32c")
Change = Callable[[SimDisk], None]


@dataclass(slots=True)
class Known:
    """What the directory holds, as far as a register may hear of it."""

    uuid: str = ""
    life: int = 0
    promised: int = 0
    is_whole: bool = True
    """Nothing is lost that the register has not heard of."""
    owes: bool = False
    """Its log lost bytes that were on disk; a leader, of which there is none, would send them."""


def run_replica_lives(seed: int) -> str:
    digest = ""
    image, (log, epochs) = make_log(f"replica-lives/{seed}/1", None, (), 1, COUNT)
    for policy in Policy:
        for trusts in (True, False):
            name = f"replica-lives/{seed}/{policy}/{trusts}"
            with Stage(name) as stage:
                script = Script(stage.simulation)
                lives = ReplicaLives(stage, script, Random(name), policy, trusts, log, epochs)
                stage.simulation.host(NODE).image = image
                script.play(PEERS, lives.main)
                digest += stage.simulation.digest()
    return digest


class ReplicaLives:
    """One directory, and who asks what comes of it."""

    def __init__(
        self, stage: Stage, script: Script, random: Random, policy: Policy, trusts: bool,
        log: bytes, epochs: tuple[tuple[int, int], ...],
    ) -> None:  # fmt: skip
        self.stage, self.script, self.random = stage, script, random
        self.policy, self.trusts = policy, trusts
        self.log, self.epochs = log, epochs
        self.controller = ScriptedController(GROUP, replicas=3, policy=policy)
        self.known = Known()
        self.settings = {
            **group_settings(stage, policy, replicas=3),
            "rbTrustPageCache": str(trusts).lower(),
        }

    async def main(self, world: World) -> None:
        async with trio.open_nursery() as nursery:
            await self.controller.serve(world, nursery)
            self.known.promised = self.epochs[-1][0]
            self.known.life = 1  # the one that led
            await self._live("of the one that led", None, hears=True)
            for number in range(LIVES):
                await self._next(is_late=number >= LIVES - 3)
            nursery.cancel_scope.cancel()

    async def _next(self, *, is_late: bool) -> None:
        """An end, what comes over the directory, and the next life."""
        end = self.random.choice(("stop", "kill", "power", "power"))
        await self._end(end)
        is_memory = self.policy is Policy.MEMORY
        if (end == "power" or (end == "kill" and not self.trusts)) and is_memory:
            self.known.is_whole = False
        steps: list[Callable[[], Any]] = [
            self._nothing, self._nothing, self._padded, self._lost_who, self._lost_epochs,
            self._damaged, self._another,
        ]  # fmt: skip
        steps += [self._lost_bytes] * (3 * is_late)
        change = await self.random.choice(steps)()
        hears = self.random.random() < 0.6
        await self._live(f"after a {end}", change, hears=hears)

    async def _end(self, how: str) -> None:
        simulation = self.stage.simulation

        def end() -> None:
            if how == "power":
                simulation.power_cut(NODE, "strict")
            elif how == "kill":
                simulation.kill(NODE)
            else:
                simulation.stop(NODE)

        await self.script.outside(end)
        process = simulation.process(NODE)
        await self._until(lambda: process.done, f"{how} ends it")

    async def _until(self, holds: Callable[[], bool], what: str, seconds: float = 20) -> None:
        await wait_until(holds, what, seconds, 0.02, lambda: None)

    async def _live(self, what: str, change: Change | None, *, hears: bool) -> None:
        """Start; what it registers; whether the controller answers that."""
        self.known.life += 1
        seen = len(self.controller.registrations)
        self.controller.answers_registrations = hears
        await self._begin(change)
        await self._until(lambda: len(self.controller.registrations) > seen, f"{what}: it comes")
        asked = self.controller.registrations[seen]
        known = self.known
        if not known.uuid:
            known.uuid = asked.uuid
        told = (asked.uuid, asked.incarnation, asked.promised, asked.lossless, asked.epoch)
        want = (known.uuid, known.life, known.promised,
                known.is_whole and not known.owes, self._epoch(asked.end))  # fmt: skip
        assert told == want, f"registered: {what}: {told} for {want}"
        assert asked.end == self._end_of_log, f"registered: {what}: {asked.end} of the log"
        await trio.sleep(1)
        if hears:
            known.is_whole = True

    def _epoch(self, end: int) -> int:
        return max([number for number, start in self.epochs if start < end], default=0)

    @property
    def _end_of_log(self) -> int:
        return len(self.log)

    async def _begin(self, change: Change | None) -> None:
        def begin() -> None:
            host = self.stage.simulation.host(NODE)
            if change is not None:
                host.image = edited(host.image, change)
            self.stage.begin(NODE, self.settings)

        await self.script.outside(begin)

    # --- what comes over the directory

    async def _nothing(self) -> Change | None:
        return None

    async def _padded(self) -> Change:
        """As long as such a file may be, and whole."""
        path = self.random.choice((WHO, EPOCHS))
        kind, text, *_ = self.stage.simulation.host(NODE).image.contents(path).split(b"\n")
        text += b" " * (SIZE_MAX - len(kind) - len(text) - 11)
        data = b"%b\n%b\n%08x\n" % (kind, text, crc32c(text))
        assert len(data) == SIZE_MAX, f"load: {len(data)} bytes"
        return lambda disk: disk.replace_contents(path, data)

    async def _lost_who(self) -> Change:
        """Without it the directory is another replica's, in its first life."""
        self.known.uuid, self.known.life, self.known.is_whole = "", 0, True
        self.controller.forget(1)
        return lambda disk: disk.remove_name(WHO)

    async def _lost_epochs(self) -> Change:
        """The history is in the log; what was promised is nowhere else here."""
        self.known.promised = 0
        return lambda disk: disk.remove_name(EPOCHS)

    async def _lost_bytes(self) -> Change:
        """Of its last file it keeps only the beginning: a leader has to send the rest again."""
        starts = [0, *record_ends(self.log)]
        last = (len(self.log) - 1) // SEGMENT * SEGMENT
        keeps = self.random.choice([at for at in starts if last < at < len(self.log)] or [0])
        if not keeps or keeps <= self.epochs[-1][1]:
            return lambda disk: None
        path = f"/store/commitlog/{last:020d}"
        self.log, self.known.owes = self.log[:keeps], True

        def change(disk: SimDisk) -> None:
            data = disk.contents(path)
            disk.replace_contents(path, data[: keeps - last] + bytes(len(data) - keeps + last))

        return change

    async def _damaged(self) -> None:
        """A file that is not what was written: the start is refused, and nothing is changed."""
        path = self.random.choice((WHO, EPOCHS))
        image = self.stage.simulation.host(NODE).image
        data = image.contents(path)
        middle = len(data) // 2
        other = KINDS[WHO if path == EPOCHS else EPOCHS]
        contents, says = self.random.choice((
            (data[:middle] + bytes((data[middle] ^ 1,)) + data[middle + 1 :], "cannot be read"),
            (data[:middle], "cannot be read"),
            (b"", "it has 0 bytes"),
            (data + b"more\n", "cannot be read"),
            (bytes(SIZE_MAX + 1), "bytes"),
            (data.replace(KINDS[path], other), "does not match its CRC"),
            (data.replace(b" 1\n", b" 2\n", 1), "it is a 'rocketbed-"),
        ))  # fmt: skip
        if len(contents) > SIZE_MAX:  # one that was padded may have become longer
            says = f"it has {len(contents)} bytes"
        await self._is_refused(lambda disk: disk.replace_contents(path, contents), says)

        def folder(disk: SimDisk) -> None:
            disk.remove_name(path)
            disk.makedirs(path)

        await self._is_refused(folder, "it is no file")

    async def _another(self) -> None:
        """Who is to be another replica, or of another group, does not get this directory."""
        for changes in ({"rbReplica": 2}, {"brokerName": "broker-b"}):
            await self._is_refused(None, "belongs to one replica only", **changes)

    async def _is_refused(self, change: Change | None, says: str, **changes: Any) -> None:
        simulation = self.stage.simulation
        host = simulation.host(NODE)
        image: DiskImage = host.image
        seen = len(self.controller.registrations)
        settings = self.settings

        def begin() -> None:
            simulation.tolerate_crashes = True
            if change is not None:
                host.image = edited(image, change)
            self.stage.begin(NODE, {**settings, **changes})

        await self.script.outside(begin)
        process = simulation.process(NODE)
        await self._until(lambda: process.done, f"a start that says {says}")
        text = ""
        try:
            process.value()
        except Exception as exc:
            text = repr(exc)
        assert says in text, f"refused: {text[:300]} does not say {says!r}"
        assert len(self.controller.registrations) == seen, "refused: it registered"

        def lay_back() -> None:
            host.image = image

        await self.script.outside(lay_back)
