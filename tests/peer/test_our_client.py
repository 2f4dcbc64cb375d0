"""rocketbed's client against a real nameserver and broker."""

import pytest
import trio

from rocketbed.client.admin import Admin
from rocketbed.client.consumer import Consumer
from rocketbed.client.errors import NotFound
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Refused, Sent
from rocketbed.client.producer import Producer
from rocketbed.wire.bodies import MessageQueue
from tests.support.peer.brokers import Broker, Site
from tests.support.peer.java_client import JavaClient
from tests.support.peer.rows import Row, assert_held, by_key, by_place
from tests.support.peer.traffic import query, read, varied, write, write_at_once

MADE, FIRST_SEND, ORDERED = "PeerMade", "PeerFirstSend", "PeerOrdered"
QUEUES = 5
POLL_S = 10.0


@pytest.mark.ci
async def test_our_client_works_against_a_real_broker(site: Site) -> None:
    await site.start_nameserver("rocketmq")
    broker = site.broker()
    await site.start(broker, "rocketmq")
    nameserver = site.nameserver
    async with Admin(nameservers=nameserver) as admin:
        for topic in (MADE, ORDERED):
            assert await admin.create_topic(topic, queues=QUEUES) == [broker.name]
        assert (await admin.topic_config(MADE, broker.name)).write_queue_nums == QUEUES
        assert {MADE, ORDERED} <= set(await admin.topics())
        assert (await admin.broker_config(broker.address))["brokerName"] == broker.name

        single = await write(nameserver, varied((MADE, FIRST_SEND), 300, seed=1))
        batches = await write(nameserver, varied((MADE,), 60, seed=2), batch=12)
        batches += await write_at_once(nameserver, varied((MADE,), 60, seed=3))
        await send_in_order(nameserver)
        topics = (MADE, FIRST_SEND, ORDERED)
        rows = by_place(await read(nameserver, topics))
        assert_held(rows, single)
        assert_held(rows, batches, has_own_id=False)
        for topic in topics:
            by_keys = by_key(rows.values(), topic)
            assert await query(nameserver, topic, by_keys) == by_keys
        await assert_found_by_id(admin, rows)

    async with JavaClient(site.installation, nameserver, site.directory / "java") as java:
        assert by_place(await java.read(topics)) == rows
        await assert_refusals(nameserver, broker)
        await assert_groups_go_on_where_they_committed(nameserver, rows)
        packed = await java.send([Message(MADE, b"packed by Java " * 1000)])
    assert_held(by_place(await read(nameserver, (MADE,))), packed)


async def send_in_order(nameserver: str) -> None:
    async with Producer(nameservers=nameserver) as producer:
        for key in ("a", "order-17", "键"):
            places = []
            for number in range(10):
                sent = await producer.send(Message(ORDERED, b"%d" % number), order_key=key)
                assert isinstance(sent, Sent)
                places.append((sent.queue.queue_id, sent.queue_offset))
            first = places[0]
            assert places == [(first[0], first[1] + number) for number in range(10)]


async def assert_found_by_id(admin: Admin, rows: dict[tuple[str, int, int], Row]) -> None:
    for row in list(rows.values())[::30]:
        assert Row.of_ours(await admin.message(row.offset_id)) == row
        if row.topic == FIRST_SEND:
            assert Row.of_ours(await admin.message(row.message_id, row.topic)) == row


async def assert_refusals(nameserver: str, broker: Broker) -> None:
    async with Producer(nameservers=nameserver, retries=0) as producer:
        no_queue = MessageQueue(topic=MADE, broker_name=broker.name, queue_id=99)
        refused = await producer.send(Message(MADE, b"x"), queue=no_queue)
        assert isinstance(refused, Refused), refused
    async with Admin(nameservers=nameserver) as admin:
        for unknown in ("7F00000100002A9F0000000000FFFFFF", "no id"):
            try:
                await admin.message(unknown)
            except NotFound:
                continue
            raise AssertionError(f"{unknown} was found")


async def assert_groups_go_on_where_they_committed(
    nameserver: str, rows: dict[tuple[str, int, int], Row]
) -> None:
    expected = [row for row in rows.values() if row.topic == FIRST_SEND]
    half = await poll(nameserver, len(expected) // 2)
    remaining = await poll(nameserver, len(expected) - len(half))
    assert by_place(half + remaining) == by_place(expected)
    async with Consumer(nameservers=nameserver, group="peer-group") as consumer:
        await consumer.subscribe(FIRST_SEND, tags="red || grün")
        (queue, *_) = await consumer.queues(FIRST_SEND)
        async with Producer(nameservers=nameserver) as producer:
            for tag in ("blau", "grün"):
                message = Message(FIRST_SEND, tag.encode(), tag=tag)
                assert isinstance(await producer.send(message, queue=queue), Sent)
        with trio.fail_after(POLL_S):
            (green,) = await consumer.poll(timeout_s=POLL_S)
        assert (green.body, green.tag) == ("grün".encode(), "grün")


async def poll(nameserver: str, count: int) -> list[Row]:
    """At least so many messages of the group, committed."""
    rows: list[Row] = []
    async with Consumer(nameservers=nameserver, group="peer-group") as consumer:
        await consumer.subscribe(FIRST_SEND, start="first")
        with trio.fail_after(POLL_S):
            while len(rows) < count:
                rows += [Row.of_ours(message) for message in await consumer.poll()]
        await consumer.commit()
    return rows
