"""A node that leads, or is to, beside a controller and followers by hand; what it confirms is
compared with what they have, whenever it rises."""

import zlib
from collections.abc import Callable
from random import Random
from typing import Any, Final

import trio

from rocketbed.node.node import Node
from rocketbed.remoting.client import dial
from rocketbed.replication.entry import Policy
from rocketbed.wire.command import Command, RequestCode, ResponseCode
from rocketbed.wire.ha_native import COMPARED_MAX, Welcome
from rocketbed.wire.headers_failover import HandOverRequest
from rocketbed.world.api import World
from tests.model.broker import Peer
from tests.model.hand_controller import PORT as CONTROLLER_PORT
from tests.model.hand_controller import Asked, HandController
from tests.model.hand_follower import HandFollower
from tests.model.script import Script, wait_until
from tests.model.stage import HA_PORT, PORT, SEGMENT, Stage, ends_of, read_log

NODE, PEERS = "node", "peers"
GROUP, CLUSTER = "broker-a", "DefaultCluster"
SOON_S: Final = 0.3
"""For what has nothing to wait for; less than any of the times below."""
GRACE_S, LAG_S, CAUGHT_UP_S, LEASE_S = 0.25, 0.5, 1.0, 0.6
"""replication.md 7.5: without a link, behind, complete before it is asked for; the lease."""
GIVE_UP_S: Final = 31.0
"""Between two tries to be rid of the lead, and a bit."""
LATE_S: Final = 0.2
"""After those times a change has to be asked for, at the latest: looks, a disk, the way."""


class LeadingStage:
    """The node and its peers."""

    def __init__(self, stage: Stage, script: Script, random: Random, policy: Policy) -> None:
        self.stage, self.script, self.random, self.policy = stage, script, random, policy
        self.controller = HandController(GROUP, replicas=3, policy=policy)
        self.one, self.two = (HandFollower(n, GROUP, CLUSTER, SEGMENT) for n in (2, 3))
        self.sent: list[tuple[int, Command]] = []
        """Of each send that was answered: its number, the answer."""
        self.number = 0
        self.segment = SEGMENT
        self.changes_of_settings: dict[str, object] = {}
        """Settings."""
        self._wrong: list[str] = []
        stage.simulation.host(PEERS)
        self.place = (stage.simulation.host(NODE).address, HA_PORT)

    async def begin(self, world: World, nursery: trio.Nursery) -> None:
        """The node is registered and elected; alone it takes nothing."""
        self.world, self.nursery = world, nursery
        await self.controller.serve(world, nursery)
        is_sync = self.policy is Policy.FSYNC
        self.settings = {
            "brokerName": GROUP, "rbReplica": 1, "rbReplicas": 3,
            "brokerClusterName": CLUSTER, "autoCreateTopicEnable": True, "fileReservedTime": 0,
            "namesrvAddr": f"{self.stage.simulation.host(PEERS).address}:{CONTROLLER_PORT}",
            "flushDiskType": "SYNC_FLUSH" if is_sync else "ASYNC_FLUSH", **self.changes_of_settings,
        }  # fmt: skip
        self.stage.begin(NODE, self.settings)
        await self.until(lambda: bool(self.controller.beats), "a first beat", 10)
        asked = self.controller.registrations[-1]
        told = (asked.group, asked.replica, asked.replicas, asked.policy, asked.lossless,
                asked.founds, asked.epoch, asked.end, asked.promised)  # fmt: skip
        assert told == (GROUP, 1, 3, self.policy, True, True, 0, 0, 0), f"registered: {told}"
        for one in (self.one, self.two):
            self.controller.add(one.number, one.uuid, "10.0.9.9:1")
        self.controller.lead(1)
        self.peer = Peer()
        self.peer.connection = await dial(world, (self.place[0], PORT), self.peer.handlers)
        nursery.start_soon(self.peer.connection.run)
        await self.until(lambda: self.leader is not None, "it leads")
        await self._refuses(ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough: 1 of 2")
        self.node.failover.member.leader.confirm.subscribe(self._confirmed)

    @property
    def node(self) -> Any:
        return self.stage.nodes[NODE]

    @property
    def leader(self) -> Any:
        node: Node | None = self.stage.nodes.get(NODE)
        return None if node is None or node.failover is None else node.failover.member.leader

    @property
    def end(self) -> int:
        return int(self.node.store.log.written.value)

    @property
    def confirmed(self) -> int:
        return int(self.leader.confirm.value)

    async def until(self, holds: Callable[[], bool], what: str, seconds: float = SOON_S) -> None:
        await wait_until(holds, what, seconds, 0.004, self.judge)

    def held(self, number: int) -> int:
        """What a follower has acknowledged, as the policy says."""
        one = next(one for one in (self.one, self.two) if one.number == number)
        return one.durable if self.policy is Policy.FSYNC else one.acknowledged

    def own(self) -> int:
        log = self.node.store.log
        return int(log.flushed.value if self.policy is Policy.FSYNC else log.written.value)

    def _confirmed(self, end: int) -> None:
        """Never above what all members have, nor where there are not enough."""
        members = self.controller.entry.in_sync
        least = min([self.own(), *(self.held(one) for one in members if one != 1)])
        if len(members) < 2 or end > least:
            self._wrong.append(f"{end} is confirmed, {least} is held by {members}")

    def judge(self) -> None:
        """Raises `AssertionError` if more was confirmed, at any time, than was held."""
        assert not self._wrong, "confirm: " + "; ".join(self._wrong[:2])

    async def _refuses(self, code: int, remark: str) -> None:
        answer = await self.peer.send(code, c="TBW102", d=2)
        assert remark in (answer.remark or ""), f"refusal: {answer.remark!r} for {remark!r}"

    def sends(self) -> int:
        """Begin to send a message; its number."""
        self.number += 1
        self.nursery.start_soon(self._send, self.number)
        return self.number

    async def _send(self, number: int) -> None:
        body = self.random.randbytes(self.random.choice((5, 300, 1500)))
        answer = await self.peer.send(body=body, c="TBW102", d=2, e=number % 2)
        self.sent.append((number, answer))

    async def _waits_in_vain(self) -> None:
        """A send that the end of this epoch may meet before its answer: either is right."""
        assert self.peer.connection is not None
        asked = self.peer.send_request(c="TBW102", d=2)
        await self.peer.connection.request(asked, timeout_s=60)

    async def written(self, count: int) -> list[int]:
        """So many sends are in the log, and none is answered; the ends of all records."""
        answered = len(self.sent)
        for _ in range(count):  # what comes at once is one write, and answered at once
            end = self.end
            self.sends()
            await self.until(lambda end=end: self.end > end, "a record")  # type: ignore[misc]
        await trio.sleep(0.05)
        assert len(self.sent) == answered, "acknowledged: before anybody has it"
        return self.ends()

    def ends(self) -> list[int]:
        low, data = read_log(self.node.store.log)
        return ends_of(data, low)

    async def hears(self, one: HandFollower) -> int:
        """A follower is sent all of the log; its end."""
        await self.until(lambda: len(one.log) == self.end, f"{one.number} hears {self.end}")
        low, data = read_log(self.node.store.log)
        assert one.log[low:] == data, f"log: {one.number}: other bytes"
        return self.end

    async def answered(self, count: int) -> None:
        """So many sends more, at once; all with success."""
        want = self.number if count < 0 else count
        await self.until(lambda: len(self.sent) >= want, f"{want} answers for {len(self.sent)}")
        assert len(self.sent) == want, f"acknowledged: {len(self.sent)} for {want}"

    def changes(self, since: int) -> list[Asked]:
        return self.controller.changes[since:]

    async def asked(self, since: int, members: dict[int, int], after_s: float, what: str) -> Asked:
        """A set is asked for, `after_s` from now, and nothing else before."""
        began = trio.current_time()
        wait_s = after_s + LATE_S
        await self.until(lambda: len(self.controller.changes) > since, what, wait_s)
        one = self.controller.changes[since]
        assert one.code == RequestCode.RB_ALTER_IN_SYNC, f"asked: {one} for {what}"
        assert one.members == members, f"asked: {one.members} for {members}: {what}"
        took_s = one.at_s - began
        assert took_s >= after_s - 0.06, f"early: {what}: after {took_s:.3f} s, not {after_s}"
        return one

    async def quiet(self, since: int, seconds: float, what: str) -> None:
        await trio.sleep(seconds)
        found = self.changes(since)
        assert not found, f"asked: {what}: {found}"

    @property
    def life(self) -> int:
        return self.controller.entry.replicas[1].incarnation

    async def _join(self, one: HandFollower) -> Welcome:
        epoch = self.controller.entry.epoch
        found = await one.joined(self.nursery, self.world, self.place, epoch)
        cut = found.cut
        size = self.segment
        start = max(0, (cut - 1) // size * size, cut - COMPARED_MAX) if cut else 0
        want = (start, zlib.crc32(one.log[start:cut]) if cut else 0)
        assert (found.compared, found.crc) == want, f"welcome: {found} for {want}"
        return found

    async def _follow(self, *ones: HandFollower | float) -> None:
        """Acknowledge all that comes, for a time."""
        *some, seconds = ones
        end = trio.current_time() + float(seconds)  # type: ignore[arg-type]
        while trio.current_time() < end:
            for one in some:
                assert isinstance(one, HandFollower)
                if one.is_linked:
                    await one.ack(len(one.log))
            await trio.sleep(0.015)

    async def _ask_over(self, code: int, **fields: Any) -> Command:
        values: dict[str, Any] = {"group": GROUP, "leader": 1, "to": 2, "op": "x", **fields}
        header = HandOverRequest(**values).encode()
        return await self.peer.ask(RequestCode.RB_HAND_OVER, header, code)

    def _left(self) -> list[Asked]:
        return [one for one in self.controller.changes if one.code == RequestCode.RB_LEAVE]
