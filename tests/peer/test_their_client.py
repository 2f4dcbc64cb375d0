"""RocketMQ's own Java client against a rocketbed cluster."""

from pathlib import Path

import pytest

from rocketbed.client.messages import Message
from rocketbed.client.packing import Codec
from rocketbed.client.producer import Producer
from rocketbed.client.select import by_hash
from rocketbed.cluster.cluster import LocalCluster
from rocketbed.wire.bodies import MessageQueue
from tests.support.peer.brokers import SMALL_FILES
from tests.support.peer.installation import Installation
from tests.support.peer.java_client import JavaClient
from tests.support.peer.rows import Row, Written, assert_held, by_key, by_place
from tests.support.peer.traffic import read, varied

TOPICS = ("PeerPlain", "PeerMade")
QUEUES = 6


@pytest.mark.ci
async def test_java_producer_and_consumers_work_against_our_cluster(
    installation: Installation, tmp_path: Path
) -> None:
    cluster = LocalCluster.create(
        tmp_path / "cluster", slaves=2, sync=True, settings=SMALL_FILES, tied=True
    )
    async with cluster:
        await cluster.start()
        nameserver = cluster.nameserver_address
        async with JavaClient(installation, nameserver, tmp_path / "java") as java:
            await java.create(cluster.address("master"), TOPICS[:1], QUEUES)
            written = await java.send(varied(TOPICS, 400, seed=1))
            batch = varied(TOPICS[:1], 30, seed=2)
            await java.send_batch(batch)
            written += await java.send([Message(TOPICS[0], b"packed by Java " * 1000)])
            packed = await send_packed(nameserver)
            await assert_same_queue_for_a_key(java)

            rows = by_place(await java.read(TOPICS))
            assert_held(rows, written)
            assert_batch_is_there(batch, rows)
            assert packed <= {row.body for row in rows.values()}
            assert by_place(await read(nameserver, TOPICS)) == rows
            for topic in TOPICS:
                by_keys = by_key(rows.values(), topic)
                assert await java.query(topic, by_keys) == by_keys
            await assert_found_by_id(java, written, rows)
            await assert_offsets(java, rows)
            await assert_pushed(java, rows)


async def send_packed(nameserver: str) -> set[bytes]:
    """Bodies that our client packs, for Java's to unpack."""
    bodies = set()
    codecs: tuple[Codec, ...] = ("zlib", "lz4", "zstd")
    for codec in codecs:
        body = f"packed by {codec} ".encode() * 1000
        async with Producer(nameservers=nameserver, compress=codec) as producer:
            outcome = await producer.send(Message(TOPICS[0], body, keys=[codec]))
            assert outcome.raise_for_outcome().is_safe
        bodies.add(body)
    return bodies


def assert_batch_is_there(batch: list[Message], rows: dict[tuple[str, int, int], Row]) -> None:
    """The messages of a batch stand next to each other in one queue, each with its own key."""
    second = next(row for row in rows.values() if batch[1].keys[0] in row.keys)
    for number, message in enumerate(batch):
        row = rows[second.topic, second.queue_id, second.queue_offset - 1 + number]
        assert (row.body, row.keys, row.tag) == (message.body, tuple(message.keys), message.tag)


async def assert_same_queue_for_a_key(java: JavaClient) -> None:
    queues = [
        MessageQueue(topic=TOPICS[0], broker_name="broker-a", queue_id=number)
        for number in range(QUEUES)
    ]
    for key in ("a", "order-17", "schlüssel", "键"):
        (sent,) = await java.send([Message(TOPICS[0], b"in order")], order_key=key)
        assert by_hash(queues, key).queue_id == sent.queue_id


async def assert_found_by_id(
    java: JavaClient, written: list[Written], rows: dict[tuple[str, int, int], Row]
) -> None:
    for sent in written[::40]:
        topic = sent.message.topic
        row = rows[topic, sent.queue_id, sent.queue_offset]
        assert await java.view(topic, [sent.offset_id, sent.message_id]) == [row, row]


async def assert_offsets(java: JavaClient, rows: dict[tuple[str, int, int], Row]) -> None:
    for topic in TOPICS:
        for row in await java.ask("offsets", topic=topic):
            count = sum(place[:2] == (topic, row["queueId"]) for place in rows)
            assert (row["min"], row["max"], row["committed"]) == (0, count, count)


async def assert_pushed(java: JavaClient, rows: dict[tuple[str, int, int], Row]) -> None:
    topic = TOPICS[0]
    expected = [row for row in rows.values() if row.topic == topic and row.tag in ("red", "Aa")]
    pushed = await java.ask(
        "push", topic=topic, group="PeerPush", tags="red || Aa", count=len(expected)
    )
    assert by_offset_id([Row.of_java(row) for row in pushed]) == by_offset_id(expected)


def by_offset_id(rows: list[Row]) -> dict[str, bytes]:
    bodies = {row.offset_id: row.body for row in rows}
    assert len(bodies) == len(rows), "a message was delivered twice"
    return bodies
