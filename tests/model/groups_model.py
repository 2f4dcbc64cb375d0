"""Clients of two groups, a model of what their node must know, and the comparison of both."""

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
    """State that the node must have."""

    sent: dict[tuple[str, int], list[tuple[bytes, str]]] = field(default_factory=dict)
    """Body and tag of each message of a queue."""
    stands: dict[Place, int] = field(default_factory=dict)
    """Positions."""
    resets: dict[Place, tuple[int, float]] = field(default_factory=dict)
    """Target of a reset, and the time until which pulls hear of it; infinite before the first."""
    pulled: dict[Place, int] = field(default_factory=dict)
    members: dict[tuple[str, str], None] = field(default_factory=dict)
    """Group and client."""
    reads: dict[str, set[str]] = field(default_factory=dict)
    """Topics of a group with members, by its last heartbeat."""
    locks: dict[Place, tuple[str, float]] = field(default_factory=dict)
    """Client and end."""
    lock_slack_s: float = 0.0
    """Time by which a lock may end early."""

    def end(self, topic: str, queue: int) -> int:
        return len(self.sent.get((topic, queue), ()))

    def forget(self, matches: Callable[[Place], bool]) -> None:
        """Delete a group or a topic."""
        tables: tuple[dict[Place, Any], ...] = (self.stands, self.resets, self.pulled)
        for table in tables:
            for place in [place for place in table if matches(place)]:
                del table[place]

    def is_doubtful(self, place: Place, now: float) -> bool:
        """Return True if a lock may have ended, or not."""
        end = self.locks.get(place, ("", 0.0))[1]
        return end - self.lock_slack_s <= now < end

    def leave(self, group: str, client: str) -> None:
        del self.members[group, client]
        if not self.clients(group):
            self.reads.pop(group, None)

    def clients(self, group: str) -> list[str]:
        return sorted(client for at, client in self.members if at == group)

    def restarted(self) -> None:
        """Forget state in memory, and bring positions down to the ends of their queues."""
        for memory in (self.resets, self.pulled, self.members, self.reads, self.locks):
            memory.clear()
        for place, offset in self.stands.items():
            self.stands[place] = min(offset, self.end(*place[1:]))


class Clients:
    """Clients with a connection each, and an operator."""

    def __init__(self, world: World, nursery: trio.Nursery, random: Random, model: Model) -> None:
        self.world, self.nursery, self.random, self.model = world, nursery, random, model
        self.peers: dict[str, Peer] = {}

    def close(self) -> None:
        for peer in self.peers.values():
            peer.close()

    async def peer(self, name: str) -> Peer:
        if name not in self.peers:
            self.peers[name] = await Peer.dialled(self.world, self.nursery)
        return self.peers[name]

    async def somebody(self) -> tuple[str, Peer]:
        """Return a random client."""
        name = self.random.choice(CLIENTS)
        return name, await self.peer(name)

    def queue(self) -> tuple[str, int]:
        topic = self.random.choice(list(QUEUES))
        return topic, self.random.randrange(QUEUES[topic])

    def place(self) -> Place:
        return self.random.choice(GROUPS), *self.queue()

    async def compare(self, act: str) -> None:
        """Compare members, positions and statistics with the model."""
        operator = await self.peer("operator")
        for peer in self.peers.values():  # a connection that is idle for two minutes is closed
            await peer.ask(Code.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}, 0)
        for group in GROUPS:
            members = self.model.clients(group)
            code = ResponseCode.SUCCESS if members else ResponseCode.SYSTEM_ERROR
            fields = {"consumerGroup": group}
            answer = await operator.ask(Code.GET_CONSUMER_LIST_BY_GROUP, fields, code)
            actual = ConsumerIdList.decode(answer.body).consumer_id_list if members else []
            assert sorted(actual) == members, f"members: {act}: {group}: {actual}, not {members}"
            for topic, count in QUEUES.items():
                for queue in range(count):
                    # A new group begins at 0 while the first message has not expired.
                    first = 0 if self.model.end(topic, queue) else None
                    position = self.model.stands.get((group, topic, queue), first)
                    fields_of_queue: dict[str, Any] = {"topic": topic, "queueId": queue}
                    await operator.check_position(position, consumerGroup=group, **fields_of_queue)
                await self._compare_stats(operator, act, group, topic)

    async def _compare_stats(self, operator: Peer, act: str, group: str, topic: str) -> None:
        """Compare what tools show of a topic, and of a group in it."""
        fields = TopicRequest(topic=topic).encode()
        answer = await operator.ask(Code.GET_TOPIC_STATS_INFO, fields, 0)
        rows = TopicStatsTable.decode(answer.body).offset_table
        actual = {queue.queue_id: (row.min_offset, row.max_offset) for queue, row in rows.items()}
        expected = {queue: (0, self.model.end(topic, queue)) for queue in range(QUEUES[topic])}
        assert actual == expected, f"statistics: {act}: {topic}: {actual}, expected {expected}"
        if not any(place[:2] == (group, topic) for place in self.model.stands):
            return
        fields = {"consumerGroup": group, "topic": topic}
        answer = await operator.ask(Code.GET_CONSUME_STATS, fields, 0)
        for queue, row in ConsumeStats.decode(answer.body).offset_table.items():
            place, end = (group, topic, queue.queue_id), self.model.end(topic, queue.queue_id)
            position = self.model.stands.get(place, 0)
            pulled = max(position, self.model.pulled.get(place, 0))
            offsets = row.broker_offset, row.consumer_offset, row.pull_offset
            assert offsets == (end, position, pulled), f"statistics: {act}: {place}: {offsets}"
            has_last = 0 < position <= end
            assert (row.last_timestamp > 0) == has_last, f"statistics: {act}: {place}: {row}"
