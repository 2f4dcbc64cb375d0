"""A node that follows scripted leaders, under a scripted controller.

It may acknowledge whole records that it has, synced where it says so, and nothing else, and its log
has to be its leader's, byte for byte.
"""

from collections.abc import Awaitable, Callable
from functools import cache
from random import Random
from typing import Any, Final

import pytest
import trio

from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.replication.entry import Policy
from rocketbed.wire.ha_native import Ack, Hello, Reject
from rocketbed.world.api import World
from tests.model.script import Script, wait_until
from tests.model.stage import SEGMENT, Stage
from tests.support.peers.controller import PORT as CONTROLLER_PORT
from tests.support.peers.controller import ScriptedController
from tests.support.peers.leader import ScriptedLeader
from tests.support.peers.logs import Epochs, read_log, record_ends

NODE, PEERS = "node", "peers"
GROUP, CLUSTER = "broker-a", "DefaultCluster"
FIRST_PORT: Final = 12_000
SOON_S: Final = 1.2
"""Another link is made within this, and a log copied."""
FREE: Final = SEGMENT - 1
"""Bytes free on a disk that has no room for another segment."""
Log = tuple[bytes, Epochs]


def group_settings(stage: Stage, policy: Policy, *, replicas: int) -> dict[str, object]:
    """Return the settings of a node that is replica 1 of the scripted controller's group."""
    return {
        "brokerName": GROUP, "rbReplica": 1, "rbReplicas": replicas,
        "namesrvAddr": f"{stage.simulation.host(PEERS).address}:{CONTROLLER_PORT}",
        "brokerClusterName": CLUSTER,
        "flushDiskType": "SYNC_FLUSH" if policy is Policy.FSYNC else "ASYNC_FLUSH",
    }  # fmt: skip


def make_log(
    name: str, image: DiskImage | None, former: Epochs, epoch: int, count: int
) -> tuple[DiskImage, Log]:
    """Let a lone replica lead an epoch after those in `image`, and write `count` messages."""
    logs: list[Log] = []
    with Stage(name) as stage:
        controller = ScriptedController(GROUP, replicas=1, policy=Policy.FSYNC)
        script = Script(stage.simulation)

        def leader() -> Any:
            node = stage.nodes.get(NODE)
            return node and node.failover and node.failover.member.leader

        async def lead(world: World) -> None:
            async with trio.open_nursery() as nursery:
                await controller.serve(world, nursery)
                stage.begin(NODE, group_settings(stage, Policy.FSYNC, replicas=1), image=image)
                while not controller.beats:  # noqa: ASYNC110, in virtual time
                    await trio.sleep(0.01)
                controller.lead_at(1, epoch)
                while not leader():  # noqa: ASYNC110, in virtual time
                    await trio.sleep(0.01)
                await script.outside(lambda: stage.fill(NODE, count, Random(name)))
                log = read_log(stage.nodes[NODE].store.log)[1]
                logs.append((log, (*former, (epoch, leader().view.start))))
                await script.outside(lambda: stage.simulation.stop(NODE))
                while not stage.simulation.process(NODE).done:  # noqa: ASYNC110
                    await trio.sleep(0.05)
                nursery.cancel_scope.cancel()

        script.play(PEERS, lead)
        return stage.simulation.host(NODE).image, logs[0]


@cache
def diverging_logs() -> tuple[int, dict[int, Log]]:
    """Return logs of two leaders, and the offset at which they diverge."""
    image, (first, epochs) = make_log("common", None, (), 1, 20)
    logs = {
        n: make_log(f"leader {n}", image, epochs, n, count)[1] for n, count in ((2, 60), (3, 30))
    }
    assert all(log.startswith(first) for log, _ in logs.values()), "no common beginning"
    return len(first), logs


class FollowingNode:
    """The node, which is replica 1, and the leaders 2 and 3; 2 leads epoch 2 at first."""

    def __init__(self, stage: Stage, policy: Policy, logs: dict[int, Log] | None = None) -> None:
        self.stage, self.policy = stage, policy
        self.script, self.random = Script(stage.simulation), Random("following node")
        self.diverged_at, default = diverging_logs()
        self.logs = logs or default
        self.controller = ScriptedController(GROUP, replicas=3, policy=policy)
        self.leaders = {n: ScriptedLeader(n, FIRST_PORT + n, SEGMENT, self.random) for n in (2, 3)}
        self.leader = self.leaders[2]
        self.settings = group_settings(stage, policy, replicas=3)
        self.cut_mode = "random"
        """Effect of a power cut on the disk."""
        self._errors: list[str] = []
        stage.simulation.host(NODE).sync_seconds = (0.02, 0.06)

    def play(self, test: Callable[["FollowingNode"], Awaitable[None]]) -> None:
        async def main(world: World) -> None:
            async with trio.open_nursery() as nursery:
                await self._begin(world, nursery)
                await test(self)
                self.check_acks()
                nursery.cancel_scope.cancel()

        self.script.play(PEERS, main)

    async def _begin(self, world: World, nursery: trio.Nursery) -> None:
        """Start the node; its leader refuses it until `reply` is cleared."""
        await self.controller.serve(world, nursery)
        host = self.stage.simulation.host(PEERS).address
        for number, leader in self.leaders.items():
            leader.log, leader.history = self.logs[number]
            leader.on_ack = self._on_ack
            await leader.serve(world, nursery)
            self.controller.add(number, f"directory {number}", f"{host}:{leader.port}")
        self.lead(2, 2)
        self.leader.reply = Reject(why="not yet")
        self.stage.begin(NODE, self.settings)
        await self.until(lambda: bool(self.leader.hellos), "a first HELLO", 10)
        self.check_hello(self.leader.hellos[0], end=0, incarnation=1)

    def lead(self, number: int, epoch: int, **changes: Any) -> None:
        """Name a leader in the register."""
        self.leader = self.leaders[number]
        self.leader.epoch = epoch
        self.controller.lead_at(number, epoch, **changes)

    # --- the node

    @property
    def store(self) -> Any:
        return self.stage.nodes[NODE].store

    @property
    def follower(self) -> Any:
        """Follower role of the node; None while it follows no leader."""
        node = self.stage.nodes.get(NODE)
        return None if node is None or node.failover is None else node.failover.member.follower

    @property
    def confirm(self) -> int:
        """Offset up to which it knows the log to be confirmed."""
        node: Any = self.stage.nodes[NODE]
        return int(node.failover.member.confirm.value)

    @property
    def log(self) -> bytes:
        return bytes(read_log(self.store.log)[1])

    def _on_ack(self, ack: Ack) -> None:
        if NODE not in self.stage.nodes:
            return  # sent before it ended
        log, whole = self.store.log, self.leader.whole
        if ack.received > log.written.value or whole(ack.received) != ack.received:
            self._errors.append(f"{ack}: {log.written.value} is written")
        if ack.durable > log.flushed.value or whole(ack.durable) != ack.durable:
            self._errors.append(f"{ack}: {log.flushed.value} is synced")
        if ack.incarnation != self.controller.entry.replicas[1].incarnation:
            self._errors.append(f"{ack} of another incarnation")

    def check_acks(self) -> None:
        """Raise `AssertionError` for an acknowledgement of what the node did not have."""
        assert not self._errors, "acknowledged: " + "; ".join(self._errors[:2])

    async def until(self, holds: Callable[[], Any], event: str, seconds: float = SOON_S) -> None:
        await wait_until(lambda: bool(holds()), event, seconds, 0.008, self.check_acks)

    def check_hello(
        self, hello: Hello, *, end: int, incarnation: int = 1, epochs: Any = None
    ) -> None:
        """Check that a HELLO says what the node has: by default a part of its leader's log."""
        if epochs is None:
            epochs = tuple(epoch for epoch in self.leader.history if epoch[1] < end)
        actual = (hello.cluster, hello.group, hello.replica, hello.incarnation, hello.promised,
                  hello.history, hello.end, hello.first, hello.segment, hello.learner)  # fmt: skip
        expected = (
            CLUSTER,
            GROUP,
            1,
            incarnation,
            self.leader.epoch,
            epochs,
            end,
            0,
            SEGMENT,
            False,
        )
        assert actual == expected, f"hello: {actual}, expected {expected}"
        assert hello.uuid == self.controller.entry.replicas[1].uuid, "hello: another directory"
        assert hello.durable <= end, f"hello: {hello.durable} is synced, the log ends at {end}"

    async def next_hello(self, event: str) -> Hello:
        """Wait until the node begins another link."""
        count = len(self.leader.hellos)
        await self.until(lambda: len(self.leader.hellos) > count, f"a HELLO: {event}", 4)
        return self.leader.hellos[-1]

    async def follow(self) -> None:
        """Let the leader accept the node."""
        self.leader.reply = None
        await self.next_hello("accepted")

    async def copies(self, event: str) -> None:
        """Wait until the node has and acknowledges all that is sent, and its beats say so."""
        leader = self.leader
        end = leader.whole()
        await self.until(
            lambda: (
                self.follower is not None
                and self.follower.is_linked
                and self.store.log.written.value == leader.sent_end
                and leader.acks
                and leader.acks[-1].received == end
            ),
            f"all is acknowledged: {event}",
            4,
        )
        assert self.log == leader.log[: leader.sent_end], f"{event}: other bytes"
        if self.policy is Policy.FSYNC:
            await self.until(lambda: leader.acks[-1].durable == end, f"synced: {event}", 4)
        assert not self.follower.refusal, f"{event}: {self.follower.refusal}"
        epoch = max((n for n, start in leader.history if start < leader.sent_end), default=0)

        def are_beats_right() -> bool:
            beat, entry = self.controller.beats[-1], self.controller.entry
            is_full = self.stage.simulation.process(NODE).disk.quota is not None
            actual = (beat.incarnation, beat.epoch, beat.end, beat.version)
            expected = (entry.replicas[1].incarnation, epoch, end, entry.version)
            return actual == expected and (is_full or not beat.unfit)

        await self.until(are_beats_right, f"its beats say what it has: {event}")

    async def copy_up_to(self, at: int) -> None:
        self.leader.send_up_to(at)
        await self.copies(f"up to {at}")

    async def copy_filler(self) -> None:
        """Copy the log to the end of a file, with no room for another one."""
        disk = self.stage.simulation.process(NODE).disk
        disk.quota = disk.allocated() + FREE
        fillers = [end for end in record_ends(self.leader.log) if end % SEGMENT == 0]
        await self.copy_up_to(min(end for end in fillers if end > self.leader.sent_end))

    async def restart(self, incarnation: int, *, power_cut: bool) -> None:
        """End the process; the next one has to have what was acknowledged."""
        leader = self.leader
        ack = leader.acks[-1] if leader.acks else Ack(0, 0, 0)
        loses = power_cut and self.policy is Policy.MEMORY
        least = 0 if loses else ack.durable if self.policy is Policy.FSYNC else ack.received
        count = len(leader.hellos)

        def restart() -> None:
            if power_cut:
                self.stage.simulation.power_cut(NODE, self.cut_mode)
            else:
                self.stage.simulation.kill(NODE)
            self.stage.begin(NODE, self.settings)

        await self.script.outside(restart)
        await self.until(lambda: len(leader.hellos) > count, "a HELLO after the restart", 10)
        hello = leader.hellos[-1]
        assert hello.end >= least, f"lost: the log ends at {hello.end}, {least} was acknowledged"
        assert leader.whole(hello.end) == hello.end, f"hello: half a record: {hello.end}"
        self.check_hello(hello, end=hello.end, incarnation=incarnation)
        header = self.controller.registrations[-1]
        actual = (header.incarnation, header.promised, header.groupUid, header.end, header.lossless)
        expected = (incarnation, leader.epoch, "uid", hello.end, not loses)
        assert actual == expected, f"registered: {actual}, expected {expected}"
        await self.copies(f"in incarnation {incarnation}")


def follows(*policies: Policy) -> Callable[[Callable[[FollowingNode], Awaitable[None]]], Any]:
    """Make a test of a function that gets a node that is to follow, by each policy."""

    def decorate(test: Callable[[FollowingNode], Awaitable[None]]) -> Any:
        @pytest.mark.parametrize("policy", policies or list(Policy), ids=str)
        def run(policy: Policy) -> None:
            with Stage(f"{test.__name__}/{policy}") as stage:
                FollowingNode(stage, policy).play(test)

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return decorate
