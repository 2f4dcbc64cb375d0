"""A broker whose disk takes no tables for a while.

Each change is refused as a whole; repeated when there is room, it succeeds and survives a power
cut.
"""

import errno
from functools import partial
from random import Random
from typing import Final

import trio

from rocketbed.chaos.backends.sim.faults import SimFault
from rocketbed.remoting.client import dial
from rocketbed.wire.command import RequestCode, ResponseCode
from rocketbed.wire.headers_admin import TopicRequest
from rocketbed.wire.message import decode_messages
from rocketbed.world.api import World
from tests.model.broker import Peer
from tests.model.durable import Loss
from tests.model.script import Script
from tests.model.stage import PORT, Stage

Code, Answer = RequestCode, ResponseCode
NODE: Final = "master"
SETTINGS: Final = {"flushDiskType": "SYNC_FLUSH", "autoCreateTopicEnable": True}
POSITIONS: Final = "/store/config/consumerOffset.json"
OPERATIONS: Final = ("create", "write", "sync", "rename")
LATE_S: Final = 30.0


def run_full_disk(seed: int) -> str:
    with Stage(f"tables/{seed}") as stage:
        stage.node(NODE, SETTINGS)
        operator = Operator(stage, Random(f"tables/{seed}"))
        Script(stage.simulation).play("peer", operator.change_all)
        stage.simulation.power_cut(NODE, "strict")
        stage.node(NODE, SETTINGS)
        Script(stage.simulation).play("peer", operator.check_all)
        return stage.simulation.digest()


class Operator:
    """A client that changes topics."""

    def __init__(self, stage: Stage, random: Random) -> None:
        self._stage, self._random = stage, random
        self._topics: dict[str, bool] = {}
        """True if the topic of this name exists in the end."""

    async def change_all(self, world: World) -> None:
        operations = list(OPERATIONS)
        self._random.shuffle(operations)
        for number, operation in enumerate(operations):
            async with trio.open_nursery() as nursery:
                peer = await _dialled(world, nursery)
                await peer.put_group(group_name="g")
                await self._change(peer, operation, number)
                nursery.cancel_scope.cancel()

    async def _change(self, peer: Peer, operation: str, number: int) -> None:
        disk = self._stage.simulation.process(NODE).disk
        old, new, auto = (f"{kind}{number}" for kind in ("old", "new", "auto"))
        await peer.create(topic=old)
        await peer.send(b=old, body=b"before")
        await peer.commit(Answer.SUCCESS, 1, topic=old)
        fault = SimFault(operation=operation, path="*/config/*", error=errno.ENOSPC, times=None)
        disk.faults.append(fault)
        delete = partial(peer.ask, Code.DELETE_TOPIC_IN_BROKER)
        fields = TopicRequest(topic=old).encode()
        await delete(fields, Answer.SYSTEM_ERROR)
        assert (await peer.topic(old)).topic_name == old, f"tables: {old} is half deleted"
        await peer.create(Answer.SYSTEM_ERROR, topic=new)
        await peer.send(Answer.SYSTEM_ERROR, b=auto, c="TBW102", d=2)
        assert fault.fired > 2, f"load: {operation} failed {fault.fired} times"
        messages = decode_messages((await peer.pull(Answer.SUCCESS, topic=old)).body)
        assert [message.body for message in messages] == [b"before"], f"tables: {old}: {messages}"
        await peer.send(Answer.SYSTEM_ERROR, b=old, body=b"refused")  # its topic is not on disk
        disk.faults.clear()
        await trio.sleep(LATE_S)
        await peer.send(b=old, body=b"later")
        await peer.create(topic=new)
        await peer.send(b=auto, c="TBW102", d=2, body=b"repeated")
        messages = decode_messages((await peer.pull(Answer.SUCCESS, topic=auto)).body)
        assert [message.body for message in messages] == [b"repeated"], (
            f"tables: {auto}: {messages}"
        )
        self._topics |= {old: number % 2 == 1, new: True, auto: True}
        row = b'"%s@g"' % old.encode()
        if not self._topics[old]:
            assert row in Loss(disk).left.contents(POSITIONS), "load: the position is not on disk"
            await delete(fields, Answer.SUCCESS)
            data = Loss(disk).left.contents(POSITIONS)
            assert row not in data, f"tables: positions in {old} would return: {data!r}"

    async def check_all(self, world: World) -> None:
        async with trio.open_nursery() as nursery:
            peer = await _dialled(world, nursery)
            for topic, exists in sorted(self._topics.items()):
                code = Answer.SUCCESS if exists else Answer.TOPIC_NOT_EXIST
                await peer.ask(Code.GET_TOPIC_CONFIG, TopicRequest(topic=topic).encode(), code)
                if topic.startswith("old") and exists:
                    messages = decode_messages((await peer.pull(Answer.SUCCESS, topic=topic)).body)
                    bodies = [message.body for message in messages]
                    assert bodies == [b"before", b"later"], f"tables: {topic}: {bodies}"
            nursery.cancel_scope.cancel()


async def _dialled(world: World, nursery: trio.Nursery) -> Peer:
    peer = Peer()
    peer.connection = await dial(world, (NODE, PORT), peer.handlers)
    nursery.start_soon(peer.connection.run)
    return peer
