"""Requests of tools about topics, groups and their members (broker.md 8.2)."""

import json
import struct

import pytest
import trio

from rocketbed.node.broker.inquiries import RELAY_S
from rocketbed.node.broker.rates import SAMPLE_S, SAMPLES
from rocketbed.remoting.client import open_connection
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.handlers import Handlers
from rocketbed.wire.bodies import MessageQueue, TopicList
from rocketbed.wire.bodies_admin import (
    ConsumerConnection,
    ConsumeStats,
    GroupList,
    ProducerConnection,
    TopicStatsTable,
)
from rocketbed.wire.command import Command, RequestCode, ResponseCode, answer
from rocketbed.wire.headers_admin import CreateTopicRequest
from tests.support.broker import HOST, PORT, Session, with_node


def queue(number: int = 0, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic=topic, broker_name="broker-a", queue_id=number)


async def consume_stats(session: Session, group: str = "g", **fields: str) -> ConsumeStats:
    answer = await session.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": group, **fields})
    assert answer.code == 0
    return ConsumeStats.decode(answer.body)


async def sent(session: Session, count: int, topic: str = "T") -> int:
    """Messages to queue 0; the wall clock before the last one, milliseconds."""
    for number in range(count):
        if number == count - 1:
            await trio.sleep(5)
        at_ms = session.world.clock.wall_ms()
        assert (await session.send(topic)).code == 0
    await session.node.store.dispatched.wait_for(session.node.store.max_offset)
    return at_ms


def test_bounds_and_last_times_of_a_topics_queues() -> None:
    async def scenario(session: Session) -> None:
        at_ms = await sent(session, 3)
        answer = await session.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
        table = TopicStatsTable.decode(answer.body).offset_table
        assert sorted(table) == [queue(number) for number in range(4)]
        row = table[queue()]
        assert (row.min_offset, row.max_offset) == (0, 3)
        assert at_ms <= row.last_update_timestamp < at_ms + 1000
        empty = table[queue(1)]
        assert (empty.min_offset, empty.max_offset, empty.last_update_timestamp) == (0, 0, 0)
        unknown = await session.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "none"})
        assert (unknown.code, unknown.remark) == (17, "topic[none] not exist")

    with_node(scenario)


def test_rates_of_topics_and_groups() -> None:
    async def scenario(session: Session) -> None:
        async def rates() -> tuple[float, float]:
            answer = await session.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
            stats = await consume_stats(session)
            return TopicStatsTable.decode(answer.body).topic_put_tps, stats.consume_tps

        await session.heartbeat(topics={"T": "*"})
        for number in range(20):  # one in 5 s, and a commit of half a message
            await sent(session, 1)
            await session.commit("g", "T", number // 2)
        assert await rates() == pytest.approx((0.2, 0.1), rel=0.1)
        await trio.sleep(SAMPLES * SAMPLE_S)
        assert await rates() == (0, 0)

    with_node(scenario)


def test_positions_of_a_group() -> None:
    async def scenario(session: Session) -> None:
        at_ms = await sent(session, 3)
        assert (await consume_stats(session)).offset_table == {}
        await session.heartbeat(topics={"T": "*"})
        await session.commit("g", "T", 2)
        await session.pull(offset=3, consumerGroup="g", timeout_s=90)
        table = (await consume_stats(session)).offset_table
        assert sorted(one for one in table if one.topic == "T") == [queue(n) for n in range(4)]
        row = table[queue()]
        assert (row.broker_offset, row.consumer_offset, row.pull_offset) == (3, 2, 3)
        assert at_ms - 6000 < row.last_timestamp < at_ms
        assert table[queue(1)].consumer_offset == 0
        assert {one.topic for one in table} == {"T"}
        statistics = await consume_stats(session, topic="U")
        assert statistics.offset_table == {}

    with_node(scenario)


def test_abandoned_topic_of_a_group_is_not_shown() -> None:
    async def scenario(session: Session) -> None:
        await sent(session, 1)
        await sent(session, 1, "U")
        await session.heartbeat(topics={"T": "*"})
        await session.commit("g", "T", 1)
        await session.commit("g", "U", 1)
        assert {one.topic for one in (await consume_stats(session)).offset_table} == {"T"}
        answer = await session.ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "g"})
        assert TopicList.decode(answer.body).topic_list == ["T", "U"]

    with_node(scenario)


def test_groups_of_a_topic_have_positions_or_readers() -> None:
    async def scenario(session: Session) -> None:
        await sent(session, 1)
        await session.heartbeat("a", group="g", topics={"U": "*"})
        await session.commit("g", "T", 1)
        await session.heartbeat("b", group="h", topics={"T": "*"})
        answer = await session.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"})
        assert GroupList.decode(answer.body).group_list == ["g", "h"]

    with_node(scenario)


def test_system_topics() -> None:
    async def scenario(session: Session) -> None:
        answer = await session.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        names = TopicList.decode(answer.body).topic_list
        assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "broker-a", "DefaultCluster"} <= set(names)
        await sent(session, 1)
        answer = await session.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        assert TopicList.decode(answer.body).topic_list == names

    with_node(scenario)


def test_members_of_groups() -> None:
    async def scenario(session: Session) -> None:
        offline = await session.ask(
            RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"}
        )
        assert (offline.code, offline.remark) == (206, "the consumer group[g] not online")
        none = await session.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "x"})
        assert (none.code, none.remark) == (1, "the producer group[x] not exist")
        await session.heartbeat("one", topics={"T": "a || b"})
        answer = await session.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})
        group = ConsumerConnection.decode(answer.body)
        (member,) = group.connection_set
        assert member.client_id == "one"
        assert member.client_addr.startswith(f"{HOST}:")
        assert group.subscription_table["T"].sub_string == "a || b"
        producers = await session.ask(
            RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "producers"}
        )
        (producer,) = ProducerConnection.decode(producers.body).connection_set
        assert producer.client_id == "one"

    with_node(scenario)


def test_a_member_says_what_it_does() -> None:
    async def scenario(session: Session) -> None:
        inquiries: list[Command] = []

        def say(command: Command, _: Connection) -> Command | None:
            inquiries.append(command)
            silent = command.fields["jstackEnable"] == "true"
            return None if silent else answer(command, 0, None, {}, b'{"properties":{}}')

        async def running_info(client: str, *, stack: bool = False) -> Command:
            fields = {"consumerGroup": "g", "clientId": client, "jstackEnable": str(stack).lower()}
            return await session.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)

        handlers = Handlers(inline={RequestCode.GET_CONSUMER_RUNNING_INFO: say})
        async with open_connection(session.world, (HOST, PORT), handlers) as connection:
            await session.heartbeat("two", topics={"T": "*"}, connection=connection)
            reply = await running_info("two")
            assert (reply.code, reply.body) == (0, b'{"properties":{}}')
            assert inquiries[0].fields["clientId"] == "two"
            began = trio.current_time()
            silent = await running_info("two", stack=True)
            assert silent.code == ResponseCode.CONSUME_MSG_TIMEOUT
            assert RELAY_S <= trio.current_time() - began < RELAY_S + 1
            unknown = await running_info("three")
            assert (unknown.code, unknown.remark) == (206, "The Consumer <g> <three> not online")

    with_node(scenario)


def test_positions_of_one_group_for_another() -> None:
    async def scenario(session: Session) -> None:
        await sent(session, 3)
        await session.heartbeat(topics={"T": "*"})
        await session.commit("g", "T", 2)
        fields = {"srcGroup": "g", "destGroup": "h", "topic": "T", "offline": "false"}
        assert (await session.ask(RequestCode.CLONE_GROUP_OFFSET, fields)).code == 0
        assert session.node.tables.offsets.get("h", "T", 0) == -1
        fields |= {"offline": "true"}
        assert (await session.ask(RequestCode.CLONE_GROUP_OFFSET, fields)).code == 0
        assert session.node.tables.offsets.get("h", "T", 0) == 2

    with_node(scenario)


def test_slaves_of_rocketmq_hear_that_no_timer_waits() -> None:
    async def scenario(session: Session) -> None:
        checkpoint = await session.ask(RequestCode.GET_TIMER_CHECK_POINT)
        looked_ms, *zeros = struct.unpack(">7q", checkpoint.body)
        assert 0 <= session.world.clock.wall_ms() - looked_ms < 1000
        assert zeros == [0] * 6
        metrics = await session.ask(RequestCode.GET_TIMER_METRICS)
        assert json.loads(metrics.body)["timingCount"] == {}

    with_node(scenario)


def test_minimum_of_an_empty_batch_queue() -> None:
    async def scenario(session: Session) -> None:
        topic = CreateTopicRequest(
            topic="B", defaultTopic="TBW102", readQueueNums=1, writeQueueNums=1, perm=6,
            topicFilterType="SINGLE_TAG", attributes="+queue.type=BatchCQ",
        )  # fmt: skip
        assert (await session.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic.encode())).code == 0
        place = {"topic": "B", "queueId": "0"}
        assert (await session.ask(RequestCode.GET_MIN_OFFSET, place)).fields == {"offset": "-1"}
        await session.send("B")
        await session.node.store.dispatched.wait_for(session.node.store.max_offset)
        assert (await session.ask(RequestCode.GET_MIN_OFFSET, place)).fields == {"offset": "0"}

    with_node(scenario)
