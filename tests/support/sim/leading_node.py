"""A node that leads a group of scripted followers, under a scripted controller.

Whatever it confirms is compared with what the followers have acknowledged, whenever that rises.
"""

import zlib
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final

import pytest
import trio

from rocketbed.remoting.client import dial
from rocketbed.replication.entry import Policy
from rocketbed.wire.command import Command, RequestCode, ResponseCode
from rocketbed.wire.ha_native import COMPARED_MAX, Welcome
from rocketbed.wire.headers_failover import HandOverRequest
from rocketbed.world.api import World
from tests.model.broker import Peer
from tests.model.script import Script, wait_until
from tests.model.stage import HA_PORT, PORT, SEGMENT, Stage
from tests.support.peers.controller import PORT as CONTROLLER_PORT
from tests.support.peers.controller import ChangeRequest, ScriptedController
from tests.support.peers.follower import ScriptedFollower
from tests.support.peers.logs import read_log, record_ends

NODE, PEERS = "node", "peers"
GROUP, CLUSTER = "broker-a", "DefaultCluster"
SOON_S: Final = 0.3
"""Longer than anything takes that has nothing to wait for."""
GRACE_S, LAG_S, CAUGHT_UP_S, LEASE_S = 0.25, 0.5, 1.0, 0.6
"""Times of replication.md 7.5: a member may be without a link, and behind; a replica is complete
before it joins; the lease."""
LATE_S: Final = 0.2
"""A change has to be requested within this after its time."""
Test = Callable[["LeadingNode"], Awaitable[None]]


class LeadingNode:
    """The node, which is replica 1, and its peers."""

    def __init__(
        self, stage: Stage, policy: Policy, segment: int = SEGMENT, **settings: object
    ) -> None:
        self.stage, self.policy, self.segment = stage, policy, segment
        self.script, self.random = Script(stage.simulation), Random("leading node")
        self.controller = ScriptedController(GROUP, replicas=3, policy=policy)
        self.followers = [ScriptedFollower(n, GROUP, CLUSTER, segment) for n in (2, 3)]
        self.sends = 0
        self.answers: list[tuple[int, Command]] = []
        """Number and answer of each send that was answered."""
        self._errors: list[str] = []
        stage.simulation.host(PEERS)
        self.address = (stage.simulation.host(NODE).address, HA_PORT)
        is_sync = policy is Policy.FSYNC
        self._settings = {
            "brokerName": GROUP, "rbReplica": 1, "rbReplicas": 3, "brokerClusterName": CLUSTER,
            "autoCreateTopicEnable": True, "fileReservedTime": 0,
            "namesrvAddr": f"{stage.simulation.host(PEERS).address}:{CONTROLLER_PORT}",
            "flushDiskType": "SYNC_FLUSH" if is_sync else "ASYNC_FLUSH",
            "mappedFileSizeCommitLog": segment, **settings,
        }  # fmt: skip

    def play(self, test: Test) -> None:
        async def main(world: World) -> None:
            async with trio.open_nursery() as nursery:
                await self._begin(world, nursery)
                await test(self)
                self.check_confirms()
                nursery.cancel_scope.cancel()

        self.script.play(PEERS, main)

    async def _begin(self, world: World, nursery: trio.Nursery) -> None:
        """Start the node and let it lead; alone it takes no message."""
        self.world, self.nursery = world, nursery
        await self.controller.serve(world, nursery)
        self.stage.begin(NODE, self._settings)
        await self.until(lambda: bool(self.controller.beats), "a first beat", 10)
        header = self.controller.registrations[-1]
        actual = (header.group, header.replica, header.replicas, header.policy, header.lossless,
                  header.founds, header.epoch, header.end, header.promised)  # fmt: skip
        assert actual == (GROUP, 1, 3, self.policy, True, True, 0, 0, 0), f"registered: {actual}"
        for follower in self.followers:
            self.controller.add(follower.number, follower.uuid, "10.0.9.9:1")
        await self.lead()
        self.peer = Peer()
        self.peer.connection = await dial(world, (self.address[0], PORT), self.peer.handlers)
        nursery.start_soon(self.peer.connection.run)

    async def lead(self) -> None:
        """Name the node the leader of the next epoch."""
        self.controller.lead(1)
        await self.wait_leads()

    async def wait_leads(self) -> None:
        epoch = self.controller.entry.epoch
        await self.until(lambda: self.leader and self.leader.epoch == epoch, "it leads", 2)
        self.leader.confirm.subscribe(self._on_confirm)

    # --- the node

    @property
    def node(self) -> Any:
        return self.stage.nodes[NODE]

    @property
    def leader(self) -> Any:
        """Leader role of the node; None while it does not lead."""
        node = self.stage.nodes.get(NODE)
        return None if node is None or node.failover is None else node.failover.member.leader

    @property
    def end(self) -> int:
        return int(self.node.store.log.written.value)

    @property
    def confirmed(self) -> int:
        return int(self.leader.confirm.value)

    @property
    def incarnation(self) -> int:
        return self.controller.entry.replicas[1].incarnation

    @property
    def members(self) -> set[int]:
        return set(self.controller.entry.in_sync)

    def ends(self) -> list[int]:
        low, data = read_log(self.node.store.log)
        return record_ends(data, low)

    def _on_confirm(self, end: int) -> None:
        log, is_sync = self.node.store.log, self.policy is Policy.FSYNC
        least = log.flushed.value if is_sync else log.written.value
        for follower in self.followers:
            if follower.number in self.members:
                least = min(least, follower.durable if is_sync else follower.acknowledged)
        if len(self.members) < 2 or end > least:
            self._errors.append(f"{end} is confirmed, {self.members} hold {least}")

    def check_confirms(self) -> None:
        """Raise `AssertionError` if more was confirmed, at any time, than all members held."""
        assert not self._errors, "confirm: " + "; ".join(self._errors[:2])

    async def until(self, holds: Callable[[], Any], event: str, seconds: float = SOON_S) -> None:
        await wait_until(lambda: bool(holds()), event, seconds, 0.004, self.check_confirms)

    # --- messages

    def send(self) -> None:
        """Begin to send a message."""
        self.sends += 1
        self.nursery.start_soon(self._send, self.sends)

    async def _send(self, number: int) -> None:
        body = self.random.randbytes(self.random.choice((5, 300, 1500)))
        response = await self.peer.send(body=body, c="TBW102", d=2, e=number % 2)
        self.answers.append((number, response))

    async def request_send(self) -> Command:
        """Send a message and return the answer, whatever it is."""
        assert self.peer.connection is not None
        header = self.peer.send_request(c="TBW102", d=2)
        return await self.peer.connection.request(header, timeout_s=60)

    async def write(self, count: int) -> list[int]:
        """Send messages that stay unanswered, and return the ends of all records."""
        answers = len(self.answers)
        for _ in range(count):  # messages that come at once are one write
            end = self.end
            self.send()
            await self.until(lambda end=end: self.end > end, "a record")  # type: ignore[misc]
        await trio.sleep(0.05)
        assert len(self.answers) == answers, "a send was answered before any acknowledgement"
        return self.ends()

    async def answered(self, count: int | None = None) -> None:
        """Check that this many sends, or all, are answered now."""
        expected = self.sends if count is None else count
        await self.until(lambda: len(self.answers) >= expected, f"{expected} answers")
        assert len(self.answers) == expected, f"{len(self.answers)} answers, expected {expected}"

    async def is_refused(self, code: int, remark: str) -> None:
        response = await self.peer.send(code, c="TBW102", d=2)
        assert remark in (response.remark or ""), f"refusal: {response.remark!r}"

    # --- followers

    async def join(self, *followers: ScriptedFollower) -> Welcome:
        """Link followers and wait until each has the log; return the last WELCOME."""
        for follower in followers:
            epoch = self.controller.entry.epoch
            welcome = await follower.join(self.nursery, self.world, self.address, epoch)
            cut, size = welcome.cut, self.segment
            start = max(0, (cut - 1) // size * size, cut - COMPARED_MAX) if cut else 0
            expected = (start, zlib.crc32(follower.log[start:cut]) if cut else 0)
            actual = (welcome.compared, welcome.crc)
            assert actual == expected, f"welcome: compared {actual}, expected {expected}"
            await self.receives(follower)
        return welcome

    async def receives(self, *followers: ScriptedFollower) -> None:
        """Wait until followers were sent all of the log."""
        for follower in followers:
            event = f"{follower.number} receives {self.end}"
            await self.until(lambda: len(follower.log) == self.end, event, 3)  # noqa: B023
            low, data = read_log(self.node.store.log)
            assert follower.log[low:] == data, f"{follower.number} has other bytes"

    async def follow(self, seconds: float, *followers: ScriptedFollower) -> None:
        """Acknowledge for a time all that followers receive; by default both do."""
        end = trio.current_time() + seconds
        while trio.current_time() < end:
            for follower in followers or self.followers:
                if follower.is_linked:
                    await follower.ack_all()
            await trio.sleep(0.015)

    async def join_set(self, *followers: ScriptedFollower) -> None:
        """Link followers and let them become members."""
        await self.join(*followers)
        numbers = {1, *(follower.number for follower in followers)}
        await self.follow(CAUGHT_UP_S + LAG_S + LATE_S, *followers)
        assert numbers <= self.members, f"members: {self.members}"

    # --- requests of the node to its controller

    @property
    def changes(self) -> list[ChangeRequest]:
        return self.controller.changes

    @property
    def departures(self) -> list[ChangeRequest]:
        return [change for change in self.changes if change.code == RequestCode.RB_LEAVE]

    def check_members(self, *followers: int) -> float:
        """Check that the one request since `forget_changes` was for a set, and return its time."""
        (change,) = self.changes
        assert change.code == RequestCode.RB_ALTER_IN_SYNC, f"requested: {change}"
        expected = {1: self.incarnation, **dict.fromkeys(followers, 1)}
        assert change.members == expected, f"members: {change.members}, expected {expected}"
        return change.at_s

    def forget_changes(self) -> None:
        self.changes.clear()

    async def hand_over(self, code: int = ResponseCode.SUCCESS, **fields: Any) -> None:
        """Request, as an operator does, that the node hands over."""
        epoch = self.controller.entry.epoch
        values = {"group": GROUP, "leader": 1, "to": 2, "op": "x", "epoch": epoch, **fields}
        header = HandOverRequest(**values).encode()
        await self.peer.ask(RequestCode.RB_HAND_OVER, header, code)


def leads(*policies: Policy) -> Callable[[Test], Any]:
    """Make a test of a function that gets a node that leads, by each policy."""

    def decorate(test: Test) -> Any:
        @pytest.mark.parametrize("policy", policies or list(Policy), ids=str)
        def run(policy: Policy) -> None:
            with Stage(f"{test.__name__}/{policy}") as stage:
                LeadingNode(stage, policy).play(test)

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return decorate
