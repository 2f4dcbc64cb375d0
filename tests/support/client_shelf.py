"""A broker that keeps messages in memory, for tests of what a consumer does with its answers."""

from dataclasses import dataclass, field
from typing import Any

import trio

from rocketbed.client.consumer import Consumer
from rocketbed.wire.bodies import (
    ConsumerIdList,
    HeartbeatData,
    LockedQueues,
    LockQueues,
    MessageQueue,
)
from rocketbed.wire.codes import RequestCode as Code
from rocketbed.wire.command import Command, answer
from rocketbed.wire.message import RECORD_V4, body_crc, pack_host
from rocketbed.wire.properties import encode_properties
from tests.support.client import NAMESERVER, Peer, Stage, port_of

QUEUE = MessageQueue(topic="T", broker_name="a", queue_id=0)


def record(queue_id: int, offset: int, body: bytes, tag: str | None = None) -> bytes:
    """A stored record."""
    properties = encode_properties({"TAGS": tag, "UNIQ_KEY": f"K{offset}"}).encode()
    tail = b"\x01T" + len(properties).to_bytes(2, "big") + properties
    size = RECORD_V4.size + len(body) + len(tail)
    head = RECORD_V4.pack(
        size, -626843481, body_crc(body), queue_id, 0, offset, offset * 1000, 0, 1,
        pack_host("10.0.0.9", 5), 2, pack_host("10.0.0.1", 6), 0, 0, len(body),
    )  # fmt: skip
    return head + body + tail


@dataclass
class Shelf:
    """A broker that keeps messages in memory and speaks the pull protocol."""

    messages: dict[int, list[tuple[bytes, str | None]]] = field(default_factory=dict)
    """Queue id -> bodies and tags."""
    minimum: int = 0
    committed: dict[int, int] = field(default_factory=dict)
    suggests: int = 0
    """Which broker to ask next, in every answer."""
    fails: dict[int, tuple[int, str]] = field(default_factory=dict)
    """Request code -> code and remark of its answer."""
    held: list[Command] = field(default_factory=list)
    batch: int = 2
    peer: Peer | None = None
    """Where it listens."""

    def __call__(self, command: Command) -> Command | None:
        if command.code in self.fails:
            return answer(command, *self.fails[command.code])
        if command.code == Code.PULL_MESSAGE:
            return self.pull(command)
        if command.code == Code.GET_CONSUMER_LIST_BY_GROUP:
            return answer(command, fields={}, body=self.members())
        if command.code in (Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ):
            requested = LockQueues.decode(command.body).mq_set
            return answer(command, fields={}, body=LockedQueues(lock_ok_mq_set=requested).encode())
        queue_id = int(command.fields["queueId"])
        if command.code == Code.QUERY_CONSUMER_OFFSET:
            if queue_id not in self.committed:
                return answer(command, 22, "Not found")
            return offset_answer(command, self.committed[queue_id])
        if command.code == Code.UPDATE_CONSUMER_OFFSET:
            self.committed[queue_id] = int(command.fields["commitOffset"])
            return answer(command, fields={})
        if command.code == Code.GET_MAX_OFFSET:
            return offset_answer(command, len(self.messages.get(queue_id, [])))
        if command.code == Code.SEARCH_OFFSET_BY_TIMESTAMP:
            return offset_answer(command, int(command.fields["timestamp"]) // 1000)
        assert command.code == Code.GET_MIN_OFFSET
        return offset_answer(command, self.minimum)

    def members(self) -> bytes:
        """Body of 38: everybody who told of itself."""
        assert self.peer is not None
        beats = [one for one in self.peer.heartbeats if one.code == Code.HEART_BEAT]
        ids = {HeartbeatData.decode(one.body).client_id for one in beats}
        return ConsumerIdList(consumer_id_list=list(ids)).encode()

    def pull(self, command: Command) -> Command | None:
        fields = command.fields
        queue_id, offset = int(fields["queueId"]), int(fields["queueOffset"])
        queue = self.messages.get(queue_id, [])
        body, code, following = b"", 0, offset
        if offset < self.minimum:
            code, following = 21, self.minimum
        elif offset > len(queue):
            code, following = 21, len(queue)
        elif offset == len(queue):
            code = 19
            if int(fields["sysFlag"]) & 2:
                self.held.append(command)
                return None
        else:
            following = min(offset + min(self.batch, int(fields["maxMsgNums"])), len(queue))
            body = b"".join(record(queue_id, n, *queue[n]) for n in range(offset, following))
        numbers = {
            "suggestWhichBrokerId": self.suggests,
            "nextBeginOffset": following,
            "minOffset": self.minimum,
            "maxOffset": len(queue),
        }
        return answer(command, code, None, {k: str(v) for k, v in numbers.items()}, body)

    def add(self, peer: Peer, queue_id: int, body: bytes, tag: str | None = None) -> None:
        """Store a message and answer the pulls that waited for it."""
        self.messages.setdefault(queue_id, []).append((body, tag))
        held, self.held = self.held, []
        for command in held:
            response = self.pull(command)
            for connection in peer.server.connections:
                if response is not None:
                    connection.reply(command, response)


def offset_answer(command: Command, offset: int) -> Command:
    return answer(command, fields={"offset": str(offset)})


def bodies(count: int, tag: str | None = None) -> list[tuple[bytes, str | None]]:
    return [(b"%d" % number, tag) for number in range(count)]


def consumer(stage: Stage, **options: Any) -> Consumer:
    return Consumer(stage.world, nameservers=NAMESERVER, group="cg", **options)


async def shelf(
    stage: Stage, name: str = "a", number: int = 0, **content: Any
) -> tuple[Shelf, Peer]:
    content_shelf = Shelf(**content)
    content_shelf.peer = await stage.peer(port_of(name, number), content_shelf)
    return content_shelf, content_shelf.peer


async def read(reader: Consumer, count: int) -> list[bytes]:
    """Read `count` bodies by polling."""
    bodies: list[bytes] = []
    with trio.fail_after(60):
        while len(bodies) < count:
            bodies += [message.body for message in await reader.poll()]
    return bodies
