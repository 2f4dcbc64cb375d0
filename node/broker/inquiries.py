"""Questions of tools about topics, groups and their members (wire.md 2.3, broker.md 8.2).

60, 61, 202, 203, 204, 208, 300, 305, 307, 314, 343. RocketMQ's own tools send 202 and 208 before
nearly anything else, and its slaves 60 every 3 s.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import trio

from rocketbed.node.broker.clients import Client, Clients, ConsumerGroup
from rocketbed.node.broker.offsets import Offsets
from rocketbed.node.broker.rates import SAMPLE_S, Rates
from rocketbed.node.broker.topics import Topics
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.node.store.errors import CorruptRecord
from rocketbed.node.store.store import MessageStore
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.bodies import DataVersion, MessageQueue, TopicList
from rocketbed.wire.bodies_admin import (
    ClientConnection,
    ConsumerConnection,
    ConsumeStats,
    GroupList,
    GroupOffset,
    ProducerConnection,
    TopicOffset,
    TopicStatsTable,
)
from rocketbed.wire.command import Command, ResponseCode, answer, request
from rocketbed.wire.encoding.json_dialect import dumps
from rocketbed.wire.headers import ConsumerGroupRequest
from rocketbed.wire.headers_admin import (
    CloneOffsetRequest,
    ConsumeStatsRequest,
    GroupRequest,
    ProducerGroupRequest,
    RunningInfoRequest,
    TopicRequest,
)
from rocketbed.world.api import World

RELAY_S: Final = 10.0
"""Time that a client has to answer a question which a tool waits for."""


class Inquiries:
    """Answers from the tables and the store; changes nothing but positions (314)."""

    def __init__(
        self,
        world: World,
        config: NodeConfig,
        store: MessageStore,
        topics: Topics,
        offsets: Offsets,
        clients: Clients,
    ) -> None:
        self._world = world
        self._broker = config.broker_name
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._clients = clients
        self._put = Rates(self._ends)
        self._consumed = Rates(offsets.totals)

    async def run(self) -> None:
        """Take samples for the rates, until cancelled."""
        while True:
            await trio.sleep(SAMPLE_S)
            await self._put.sample()
            await self._consumed.sample()

    # --- topics

    async def topic_stats(self, command: Command, connection: Connection) -> Command:
        """202: bounds of each queue of a topic. Raises `HeaderError`."""
        topic = TopicRequest.decode(command.fields).topic
        config = self._topics.get(topic)
        if config is None:
            return answer(command, ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        table: dict[MessageQueue, TopicOffset] = {}
        for queue_id in range(config.queue_nums):
            await trio.lowlevel.checkpoint()  # a topic may have thousands
            end = self._store.queue_max(topic, queue_id)
            table[self._queue(topic, queue_id)] = TopicOffset(
                min_offset=self._store.queue_min(topic, queue_id),
                max_offset=end,
                last_update_timestamp=await self._stored_ms(topic, queue_id, end - 1),
            )
        body = TopicStatsTable(offset_table=table, topic_put_tps=self._put.per_s(topic))
        return answer(command, ResponseCode.SUCCESS, None, {}, body.encode())

    def system_topics(self, command: Command, connection: Connection) -> Command:
        """305: topics that every broker has, which belong to no user."""
        body = TopicList(topic_list=self._topics.system_names())
        return answer(command, ResponseCode.SUCCESS, None, {}, body.encode())

    def timer_checkpoint(self, command: Command, connection: Connection) -> Command:
        """60: progress of RocketMQ's timer wheel, which this broker does not have: nothing waits in
        it. Time of the last check (ms), three offsets, and the longs of a data version."""
        now_ms = self._world.clock.wall_ms()
        body = struct.pack(">7q", now_ms - now_ms % 1000, 0, 0, 0, 0, 0, 0)
        return answer(command, ResponseCode.SUCCESS, None, {}, body)

    def timer_metrics(self, command: Command, connection: Connection) -> Command:
        """61: messages by topic that wait in that wheel."""
        body = dumps({"dataVersion": DataVersion().to_json(), "timingCount": {}})
        return answer(command, ResponseCode.SUCCESS, None, {}, body)

    def groups_of_topic(self, command: Command, connection: Connection) -> Command:
        """300: groups with a position in a topic, or members that read it. Raises `HeaderError`."""
        topic = TopicRequest.decode(command.fields).topic
        online = (
            name for name, group in self._clients.consumers.items() if topic in group.subscriptions
        )
        body = GroupList(group_list=_unique(self._offsets.groups_of(topic), online))
        return answer(command, ResponseCode.SUCCESS, None, {}, body.encode())

    def topics_of_group(self, command: Command, connection: Connection) -> Command:
        """343: topics in which a group has a position, or that it reads. Raises `HeaderError`."""
        group = GroupRequest.decode(command.fields).group
        body = TopicList(topic_list=self._topics_of(group))
        return answer(command, ResponseCode.SUCCESS, None, {}, body.encode())

    # --- positions

    async def consume_stats(self, command: Command, connection: Connection) -> Command:
        """208: positions of a group in each queue. Raises `HeaderError`."""
        header = ConsumeStatsRequest.decode(command.fields)
        group, stats = header.consumerGroup, ConsumeStats()
        requested = _unique([header.topic or ""], (header.topicList or "").split(";"))
        for topic in [name for name in requested if name] or self._topics_of(group):
            config = self._topics.get(topic)
            if config is None or not self._may_read(group, topic):
                continue
            stats.consume_tps += self._consumed.per_s(f"{topic}@{group}")
            for queue_id in range(config.read_queue_nums):
                await trio.lowlevel.checkpoint()
                queue = self._queue(topic, queue_id)
                stats.offset_table[queue] = await self._group_offset(group, topic, queue_id)
        return answer(command, ResponseCode.SUCCESS, None, {}, stats.encode())

    def clone_offsets(self, command: Command, connection: Connection) -> Command:
        """314: copy another group's positions to a group. Raises `HeaderError`."""
        header = CloneOffsetRequest.decode(command.fields)
        topics = [header.topic] if header.topic else self._topics_of(header.srcGroup)
        for topic in topics:
            # As upstream: unless `offline` is set, a group gets none in a topic that it does not
            # read.
            online = self._clients.consumers.get(header.destGroup)
            is_reading = online is not None and topic in online.subscriptions
            if self._topics.get(topic) is not None and (header.offline or is_reading):
                for queue_id, offset in self._offsets.queues(header.srcGroup, topic).items():
                    self._offsets.commit(header.destGroup, topic, queue_id, offset)
        return answer(command, ResponseCode.SUCCESS, None, {})

    # --- members

    def consumers(self, command: Command, connection: Connection) -> Command:
        """203: the members of a consumer group and what it reads. Raises `HeaderError`."""
        name = ConsumerGroupRequest.decode(command.fields).consumerGroup
        group = self._clients.consumers.get(name)
        if group is None:
            remark = f"the consumer group[{name}] not online"
            return answer(command, ResponseCode.CONSUMER_NOT_ONLINE, remark)
        body = ConsumerConnection(
            connection_set=_connections(group.members),
            subscription_table=group.subscriptions,
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
        )
        return answer(command, ResponseCode.SUCCESS, None, {}, body.encode())

    def producers(self, command: Command, connection: Connection) -> Command:
        """204: the members of a producer group. Raises `HeaderError`."""
        name = ProducerGroupRequest.decode(command.fields).producerGroup
        members = self._clients.producers.get(name)
        if not members:
            remark = f"the producer group[{name}] not exist"
            return answer(command, ResponseCode.SYSTEM_ERROR, remark)
        body = ProducerConnection(connection_set=_connections(members))
        return answer(command, ResponseCode.SUCCESS, None, {}, body.encode())

    async def running_info(self, command: Command, connection: Connection) -> Command:
        """307: relay the question to a member over its own connection. Raises `HeaderError`."""
        header = RunningInfoRequest.decode(command.fields)
        group = self._clients.consumers.get(header.consumerGroup)
        member = None if group is None else _member(group, header.clientId)
        if member is None:
            remark = f"The Consumer <{header.consumerGroup}> <{header.clientId}> not online"
            return answer(command, ResponseCode.CONSUMER_NOT_ONLINE, remark)
        question = request(command.code, header.encode())
        try:
            response = await member.request(question, timeout_s=RELAY_S)
        except RemotingError as exc:
            remark = f"consumer <{header.consumerGroup}> <{header.clientId}>: {exc}"
            return answer(command, ResponseCode.CONSUME_MSG_TIMEOUT, remark)
        return answer(command, response.code, response.remark, response.fields, response.body)

    # --- inside

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic=topic, broker_name=self._broker, queue_id=queue_id)

    def _ends(self) -> Iterator[tuple[str, int]]:
        for topic in self._topics.names():
            if (config := self._topics.get(topic)) is not None:
                for queue_id in range(config.queue_nums):
                    yield topic, self._store.queue_max(topic, queue_id)

    def _topics_of(self, group: str) -> list[str]:
        online = self._clients.consumers.get(group)
        return _unique(self._offsets.topics_of(group), online.subscriptions if online else ())

    def _may_read(self, group: str, topic: str) -> bool:
        """True if a topic is one of a group's; if its members read other topics only, the group has
        left it."""
        online = self._clients.consumers.get(group)
        return online is None or not online.subscriptions or topic in online.subscriptions

    async def _group_offset(self, group: str, topic: str, queue_id: int) -> GroupOffset:
        committed = max(self._offsets.get(group, topic, queue_id), 0)
        return GroupOffset(
            broker_offset=self._store.queue_max(topic, queue_id),
            consumer_offset=committed,
            pull_offset=max(committed, self._offsets.pulled(group, topic, queue_id)),
            last_timestamp=await self._stored_ms(topic, queue_id, committed - 1),
        )

    async def _stored_ms(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store time of a message; 0 if it no longer exists or cannot be read."""
        if offset < 0:
            return 0
        try:
            return max(await self._store.stored_ms(topic, queue_id, offset), 0)
        except CorruptRecord:
            return 0


def _connections(members: Mapping[Connection, Client]) -> list[ClientConnection]:
    return [
        ClientConnection(
            client_id=client.client_id,
            client_addr=connection.remote_text,
            language=client.language,
            version=client.version,
        )
        for connection, client in members.items()
    ]


def _member(group: ConsumerGroup, client_id: str) -> Connection | None:
    return next(
        (
            connection
            for connection, client in group.members.items()
            if client.client_id == client_id
        ),
        None,
    )


def _unique(*names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name for group in names for name in group))
