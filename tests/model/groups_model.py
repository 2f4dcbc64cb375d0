"""Clients of two groups by hand, a model of what their node is to know, and their comparison."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import trio

from rocketbed.wire.bodies import ConsumerIdList
from rocketbed.wire.bodies_admin import ConsumeStats, TopicStatsTable
from rocketbed.wire.command import RequestCode, ResponseCode
from rocketbed.wire.headers_admin import TopicRequest
from rocketbed.world.api import World
from tests.model.broker import Peer

Code: Final = RequestCode
QUEUES: Final = {"T": 3, "U": 2}
GROUPS: Final = ("g", "h")
CLIENTS: Final = ("a", "b", "c")
Place = tuple[str, str, int]
"""Group, topic, queue."""


@dataclass(slots=True)
class Model:
    """What the node is to know."""

    sent: dict[tuple[str, int], list[tuple[bytes, str]]] = field(default_factory=dict)
    """Body and tag of each message of a queue."""
    stands: dict[Place, int] = field(default_factory=dict)
    resets: dict[Place, tuple[int, float]] = field(default_factory=dict)
    """Where a group was sent, and until when it is told; for ever before its first pull."""
    pulled: dict[Place, int] = field(default_factory=dict)
    members: dict[tuple[str, str], None] = field(default_factory=dict)
    """Group and client."""
    reads: dict[str, set[str]] = field(default_factory=dict)
    """Topics of a group that has members, by its last heartbeat."""
    locks: dict[Place, tuple[str, float]] = field(default_factory=dict)
    """Client and end."""
    lock_slack_s: float = 0.0
    """By so much a lock may end earlier."""

    def end(self, topic: str, queue: int) -> int:
        return len(self.sent.get((topic, queue), ()))

    def forget(self, which: Callable[[Place], bool]) -> None:
        """A group or a topic was deleted."""
        tables: tuple[dict[Place, Any], ...] = (self.stands, self.resets, self.pulled)
        for table in tables:
            for place in [one for one in table if which(one)]:
                del table[place]

    def is_doubtful(self, place: Place, now: float) -> bool:
        """Whether a lock may have ended, or not."""
        end = self.locks.get(place, ("", 0.0))[1]
        return end - self.lock_slack_s <= now < end

    def leave(self, group: str, client: str) -> None:
        del self.members[group, client]
        if not any(one == group for one, _ in self.members):
            self.reads.pop(group, None)

    def started_again(self) -> None:
        """What is in memory only is gone, and no position is beyond its queue."""
        for memory in (self.resets, self.pulled, self.members, self.reads, self.locks):
            memory.clear()
        for place, offset in self.stands.items():
            self.stands[place] = min(offset, self.end(*place[1:]))


class Clients:
    """Each with a connection of its own; an operator besides."""

    def __init__(self, world: World, nursery: trio.Nursery, random: Random, model: Model) -> None:
        self.world = world
        self.nursery = nursery
        self.random = random
        self.model = model
        self.peers: dict[str, Peer] = {}

    def close(self) -> None:
        for peer in self.peers.values():
            peer.close()

    async def peer(self, name: str) -> Peer:
        if name not in self.peers:
            self.peers[name] = await Peer.dialled(self.world, self.nursery)
        return self.peers[name]

    async def somebody(self) -> tuple[str, Peer]:
        name = self.random.choice(CLIENTS)
        return name, await self.peer(name)

    def queue(self) -> tuple[str, int]:
        topic = self.random.choice(list(QUEUES))
        return topic, self.random.randrange(QUEUES[topic])

    def place(self) -> Place:
        return self.random.choice(GROUPS), *self.queue()

    async def compare(self, act: str) -> None:
        operator = await self.peer("operator")
        for peer in self.peers.values():  # one that is silent for two minutes is closed
            await peer.ask(Code.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}, 0)
        for group in GROUPS:
            want = sorted(client for one, client in self.model.members if one == group)
            code = ResponseCode.SUCCESS if want else ResponseCode.SYSTEM_ERROR
            fields = {"consumerGroup": group}
            answer = await operator.ask(Code.GET_CONSUMER_LIST_BY_GROUP, fields, code)
            told = ConsumerIdList.decode(answer.body).consumer_id_list if want else []
            assert sorted(told) == want, f"members: {act}: {group}: {told} for {want}"
            for topic, count in QUEUES.items():
                for queue in range(count):
                    # A new group begins at 0 where the first message is there still.
                    first = 0 if self.model.end(topic, queue) else None
                    stands = self.model.stands.get((group, topic, queue), first)
                    where: dict[str, Any] = {"topic": topic, "queueId": queue}
                    await operator.check_position(stands, consumerGroup=group, **where)
                await self._compare_stats(operator, act, group, topic)

    async def _compare_stats(self, operator: Peer, act: str, group: str, topic: str) -> None:
        """What tools show of a topic, and of a group in it."""
        fields = TopicRequest(topic=topic).encode()
        answer = await operator.ask(Code.GET_TOPIC_STATS_INFO, fields, 0)
        rows = TopicStatsTable.decode(answer.body).offset_table
        told = {one.queue_id: (row.min_offset, row.max_offset) for one, row in rows.items()}
        want = {one: (0, self.model.end(topic, one)) for one in range(QUEUES[topic])}
        assert told == want, f"statistics: {act}: {topic}: {told} for {want}"
        if not any(place[:2] == (group, topic) for place in self.model.stands):
            return
        answer = await operator.ask(
            Code.GET_CONSUME_STATS, {"consumerGroup": group, "topic": topic}, 0
        )
        for one, row in ConsumeStats.decode(answer.body).offset_table.items():
            place = group, topic, one.queue_id
            stands = self.model.stands.get(place, 0)
            pulled = max(stands, self.model.pulled.get(place, 0))
            told_of = row.broker_offset, row.consumer_offset, row.pull_offset
            wanted = self.model.end(topic, one.queue_id), stands, pulled
            assert told_of == wanted, f"statistics: {act}: {place}: {told_of} for {wanted}"
            has_last = 0 < stands <= wanted[0]
            assert (row.last_timestamp > 0) == has_last, f"statistics: {act}: {place}: {row}"
