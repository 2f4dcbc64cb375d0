"""Three nodes with failover and the clients of `groups`, under a scripted controller: one node
after the other leads, and all that was answered holds at the next one.

Records that a former leader wrote and never confirmed may be lost, or appear once, at their own
queue offset, and the same at every node.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final

import trio

from rocketbed.node.node import Node
from rocketbed.remoting.client import dial
from rocketbed.remoting.errors import RemotingError
from rocketbed.replication.entry import Policy
from rocketbed.wire.command import Command, ResponseCode
from rocketbed.world.api import World
from tests.model.broker import Peer
from tests.model.groups import Acts, queues_of
from tests.model.groups_model import GROUPS, QUEUES, Code, Model
from tests.model.reading import all_of
from tests.model.script import Script, wait_until
from tests.model.stage import PORT, Stage
from tests.support.peers.controller import ScriptedController
from tests.support.sim.following_node import GROUP, PEERS, group_settings

NUMBERS: Final = (1, 2, 3)
ROUNDS, STEPS = 5, 8
NOTED_S: Final = 0.6
"""replication.md 7.3: what of positions a failover may forget is younger."""
LOCK_S, SCAN_S = 60.0, 11.0
"""After the end of a lock it is forgotten by then."""
TAG: Final = "red"
NEVER_MS: Final = 10**9
ENDS: Final = ("kill", "stop", "hand over", "all", "unconfirmed", "unconfirmed")


def run_leaders(seed: int) -> str:
    """Followers that hear of tables by the log alone, and those that copy them too. Raises
    `AssertionError`."""
    digest = ""
    for copies in (False, True):
        name = f"leaders/{seed}/{copies}"
        with Stage(name) as stage:
            script = Script(stage.simulation)
            script.play(PEERS, _main, stage, script, Random(name), copies)
            digest += stage.simulation.digest()
    return digest


async def _main(world: World, stage: Stage, script: Script, random: Random, copies: bool) -> None:
    async with trio.open_nursery() as nursery:
        clients = FailoverClients(world, nursery, random, Model())
        clients.stage, clients.script, clients.copies = stage, script, copies
        await clients.run()
        nursery.cancel_scope.cancel()


class FailoverClients(Acts):
    """Clients of a group whose leader changes between their acts."""

    stage: Stage
    script: Script
    copies = True
    """Whether followers copy tables besides."""
    leader = 1

    def __init__(self, world: World, nursery: trio.Nursery, random: Random, model: Model) -> None:
        super().__init__(world, nursery, random, model)
        self._pulled = {1: model.pulled}
        """What each process was asked for, since it began."""

    async def run(self) -> None:
        self.controller = ScriptedController(GROUP, replicas=3, policy=Policy.MEMORY)
        await self.controller.serve(self.world, self.nursery)
        for number in NUMBERS:
            self._begin(number)
        await self._until(lambda: len(self.controller.entry.replicas) == 3, "all register")
        self.controller.lead(1)
        await self._settled()
        await self.prepare()
        for _ in range(ROUNDS):
            await self.acts(STEPS)
            await self._forget_ended_locks()
            await trio.sleep(NOTED_S)
            self._same_tables()
            end = self.random.choice(ENDS)
            await self._another(end)
            await self.compare(f"after {end}")
        if not self.copies:
            await self._locks_end()

    async def _locks_end(self) -> None:
        """Locks that are not renewed are forgotten everywhere."""
        name, peer = await self.somebody()
        place = (GROUPS[0], *self.queue())
        self.model.locks.clear()
        await peer.ask(Code.LOCK_BATCH_MQ, {}, 0, queues_of(name, place[0], {place}))
        await trio.sleep(LOCK_S + SCAN_S)
        for number in NUMBERS:
            actual = self._tables(number)["locks"]
            assert not actual, f"locks: {number} has {actual}, which have ended"

    # --- the nodes

    def _begin(self, number: int) -> None:
        settings = {
            **group_settings(self.stage, Policy.MEMORY, replicas=3), "rbReplica": number,
            "rbMetadataSync": 500 if self.copies else NEVER_MS,
        }  # fmt: skip
        self.stage.begin(_name(number), settings)

    def _node(self, number: int) -> Node | None:
        return self.stage.nodes.get(_name(number))

    async def _until(self, holds: Callable[[], bool], case: str) -> None:
        await wait_until(holds, case, 30, 0.02, lambda: None)

    async def _settled(self) -> None:
        """The leader serves, and all are in sync."""

        def is_settled() -> bool:
            entry, node = self.controller.entry, self._node(self.leader)
            lives = {number: entry.replicas[number].incarnation for number in NUMBERS}
            failover = None if node is None else node.failover
            return entry.in_sync == lives and failover is not None and not failover.refusal()

        await self._until(is_settled, f"{self.leader} leads, and all follow it")

    async def _another(self, end: str) -> None:
        """The leader ends, and another one is named; or it is named itself, after all have ended.
        What is in memory only is gone."""
        simulation, old = self.stage.simulation, self.leader
        new = self.random.choice([one for one in NUMBERS if one != old])
        for peer in self.peers.values():
            peer.close()
        self.peers.clear()
        began = trio.current_time()
        pending: list[Pending] = []
        if end == "unconfirmed":
            pending = await self._unconfirmed(old, new)
        elif end == "kill":
            await self.script.outside(lambda: simulation.kill(_name(old)))
        elif end == "all":
            for number in NUMBERS:
                await self.script.outside(partial(simulation.kill, _name(number)))
            for number in NUMBERS:
                await self.script.outside(partial(self._begin, number))
            self._pulled.clear()
            await trio.sleep(1)
        elif end == "stop":
            process = simulation.process(_name(old))
            await self.script.outside(lambda: simulation.stop(_name(old)))
            await self._until(lambda: process.done, f"{old} stops")
        if end == "stop":
            new = self.controller.entry.leader or old
            assert new != old, f"handed over: by {old} to {new}"
        else:
            self.controller.lead(new)
        self.leader = new
        if end in ("kill", "stop", "unconfirmed"):
            self._pulled.pop(old, None)
            await self.script.outside(partial(self._begin, old))
        await self._settled()
        node = self._node(new)
        assert node is not None
        for locks in node.broker.locks._groups.values():
            for queue, lock in locks.items():
                assert lock.until - LOCK_S >= began, f"locks: {queue} ends too early"
        model, now = self.model, trio.current_time()
        model.lock_slack_s = now - began + 1
        model.members.clear()
        model.reads.clear()
        model.pulled = self._pulled.setdefault(new, {})
        for place, (client, _) in model.locks.items():
            model.locks[place] = client, now + LOCK_S
        for place, (target, _) in model.resets.items():
            model.resets[place] = target, float("inf")
        await trio.sleep(0.3)  # for what its epoch's beginning confirms
        await self._adopt(pending)
        for place, offset in model.stands.items():
            model.stands[place] = min(offset, model.end(*place[1:]))

    async def _unconfirmed(self, old: int, new: int) -> list["Pending"]:
        """Sends that one member has and the other has not, when the leader is killed."""
        (third,) = (one for one in NUMBERS if one not in (old, new))
        await self.script.outside(lambda: self.stage.simulation.pause(_name(third)))
        peer = await self.peer("operator")
        pending: list[Pending] = []
        async with trio.open_nursery() as nursery:
            for number in range(self.random.randint(1, 5)):
                body = b"unconfirmed %d of %d" % (number, self.random.getrandbits(30))
                pending.append(Pending(self.queue(), body))
                nursery.start_soon(pending[-1].send, peer)
            await trio.sleep(0.1)
            await self.script.outside(lambda: self.stage.simulation.kill(_name(old)))
        peer.close()
        self.peers.clear()
        await self.script.outside(lambda: self.stage.simulation.resume(_name(third)))
        return pending

    async def _adopt(self, pending: list["Pending"]) -> None:
        """Take in what is there of sends under way: of each queue some, once; all that were
        answered with success."""
        peer = await self.peer("operator")
        for topic, count in QUEUES.items():
            for queue in range(count):
                messages = self.model.sent.setdefault((topic, queue), [])
                remaining = {send.body: send for send in pending if send.place == (topic, queue)}
                for message in await all_of(peer, topic, queue, len(messages)):
                    body = message.body
                    assert body in remaining, f"sent: {topic}/{queue} has {body!r} at its end"
                    del remaining[body]
                    messages.append((body, TAG))
                lost = [body for body, send in remaining.items() if send.is_answered]
                assert not lost, f"lost: {topic}/{queue}: {lost}"

    # --- the tables

    async def _forget_ended_locks(self) -> None:
        """A lock that has ended, and that its leader has not dropped yet, may be renewed."""
        now = trio.current_time()
        for place, (client, end) in list(self.model.locks.items()):
            if end - self.model.lock_slack_s - 5 <= now:
                peer = await self.peer(client)
                body = queues_of(client, place[0], {place})
                await peer.ask(Code.UNLOCK_BATCH_MQ, {}, 0, body)
                del self.model.locks[place]

    def _same_tables(self) -> None:
        """Followers have what their leader has."""
        actual = {number: self._tables(number) for number in NUMBERS}
        for number, tables in actual.items():
            for kind, rows in tables.items():
                expected = actual[self.leader][kind]
                case = f"{kind} of {number}, led by {self.leader}"
                assert rows == expected, f"tables: {case}: {rows} for {expected}"

    def _tables(self, number: int) -> dict[str, Any]:
        node = self._node(number)
        assert node is not None
        tables = node.tables
        offsets = tables.offsets.body().offset_table
        held = node.broker.locks._groups
        return {
            "topics": sorted(tables.topics.body().topic_config_table),
            "groups": sorted(tables.groups.body().subscription_group_table),
            "positions": {key: rows for key, rows in sorted(offsets.items()) if rows},
            "resets": {
                place: reset.target for place, reset in sorted(tables.offsets._resets.items())
            },
            "locks": {
                (group, queue.topic, queue.queue_id): lock.client_id
                for group, locks in sorted(held.items())
                for queue, lock in locks.items()
            },
        }

    # --- clients

    async def rest(self) -> None:
        """Three nodes that beat make a longer one dear."""
        await trio.sleep(1)

    async def peer(self, name: str) -> Peer:
        if name not in self.peers:
            peer = Peer()
            address = self.stage.simulation.host(_name(self.leader)).address
            peer.connection = await dial(self.world, (address, PORT), peer.handlers)
            self.nursery.start_soon(peer.connection.run)
            self.peers[name] = peer
        return self.peers[name]


def _name(number: int) -> str:
    return f"node-{number}"


@dataclass(slots=True)
class Pending:
    """A send that may be under way when its leader ends."""

    place: tuple[str, int]
    body: bytes
    is_answered: bool = False
    """With success."""

    async def send(self, peer: Peer) -> None:
        assert peer.connection is not None
        header: Command = peer.send_request(
            b=self.place[0], e=self.place[1], body=self.body, properties={"TAGS": TAG}
        )
        with suppress(RemotingError):
            response = await peer.connection.request(header, timeout_s=5)
            self.is_answered = response.code == ResponseCode.SUCCESS
