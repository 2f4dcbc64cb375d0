"""The directory of a RocketMQ 5.5.0, which indexes tags too: checked, built anew, given back."""

import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from rocketbed.client.admin import Admin
from rocketbed.client.consumer import Consumer
from rocketbed.client.errors import RequestRefused
from rocketbed.client.messages import Message
from rocketbed.inspect import Severity, open_directory, rebuild
from rocketbed.wire.command import RequestCode, ResponseCode
from rocketbed.wire.headers import QueryMessageRequest
from rocketbed.wire.message import decode_messages
from rocketbed.wire.properties import TAGS
from tests.support.peer.brokers import Broker, Site
from tests.support.peer.directories import assert_sound
from tests.support.peer.installation import Installation, install
from tests.support.peer.java_client import JavaClient
from tests.support.peer.rows import KEY_QUERY_MAX, Row, assert_held, by_key, by_place
from tests.support.peer.traffic import query, read, varied, write
from tests.support.stores import files_below

TOPICS = ("PeerTagged", "Peer-two_%|", "PeerBatch", "%RETRY%peer-group")
QUEUES = 3
DELAYED = 10
"""Messages that come a second late: by way of RocketMQ's own topic of delayed ones."""
ARRIVE_S = 30.0
Rows = dict[tuple[str, int, int], Row]


@pytest.fixture(scope="session")
def installation() -> Installation:
    return install("5.5.0")


def tagged(topics: Iterable[str], count: int, seed: int) -> list[Message]:
    """Messages with and without tags and keys; no tag on more than a query answers."""
    return [
        replace(message, tag=message.tag and f"{message.tag}-{seed}-{number // 40}")
        for number, message in enumerate(varied(topics, count, seed))
    ]


@pytest.mark.ci
async def test_directory_with_tag_index_survives_check_rebuild_and_return(
    site: Site, tmp_path: Path
) -> None:
    await site.start_nameserver("rocketmq")
    broker = site.broker()
    await site.start(broker, "rocketmq")
    async with JavaClient(site.installation, site.nameserver, site.directory / "java") as java:
        await java.create(broker.address, TOPICS, QUEUES)
        await send_all(java, site)
        theirs = by_place(await java.read(TOPICS))
        assert await java.query(TOPICS[0], by_key(theirs.values(), TOPICS[0])) != {}
        await assert_found(site, broker, theirs)
        await site.stop(broker)
        assert_sound(broker.store)
        assert fsck(broker.store) == 0
        assert_rebuilt_equal(broker.store, tmp_path / "rebuilt")

        await site.start(broker, "rocketbed")
        assert by_place(await read(site.nameserver, TOPICS)) == theirs
        await assert_found(site, broker, theirs)
        written = await write(site.nameserver, tagged(TOPICS, 300, seed=5))
        written += await write(site.nameserver, tagged(TOPICS[2:3], 40, seed=6), batch=8)
        both = by_place(await read(site.nameserver, TOPICS))
        assert theirs.items() <= both.items()
        assert_held(both, written)
        await assert_found(site, broker, both)
        await site.stop(broker)
        assert fsck(broker.store) == 0
        assert_rebuilt_equal(broker.store, tmp_path / "rebuilt-ours")

        await site.start(broker, "rocketmq")
        assert by_place(await java.read(TOPICS)) == both
        await assert_found(site, broker, both)
        written += await java.send(tagged(TOPICS, 100, seed=7))
        await site.stop(broker)
    assert fsck(broker.store) == 0


async def test_kill_does_not_damage_a_directory_with_tag_index(site: Site) -> None:
    await site.start_nameserver("rocketmq")
    broker = site.broker()
    await site.start(broker, "rocketmq")
    async with JavaClient(site.installation, site.nameserver, site.directory / "java") as java:
        await java.create(broker.address, TOPICS, QUEUES)
        await send_all(java, site)
        acknowledged = await java.load(
            TOPICS[0],
            broker,
            threads=3,
            queues=QUEUES,
            kill_after=1500,
            kill=lambda: site.kill_now(broker),
        )
        assert len(acknowledged) >= 1500
        await broker.process.wait_ended()
    assert (broker.store / "abort").exists()
    assert_sound(broker.store, Severity.TAIL)
    assert fsck(broker.store) in (0, 1)


async def send_all(java: JavaClient, site: Site) -> None:
    """Single messages and batches of both clients, and delayed ones, until they have come."""
    await java.send(tagged(TOPICS, 500, seed=1))
    for seed in range(10, 14):
        await java.send_batch(tagged(TOPICS[2:3], 8, seed))
    await write(site.nameserver, tagged(TOPICS[:2], 200, seed=2))
    late = [
        replace(message, properties={}, delay_level=1)
        for message in tagged(TOPICS[:1] + TOPICS[3:], DELAYED, seed=3)
    ]
    await write(site.nameserver, late)
    missing = {message.body for message in late}
    async with Consumer(nameservers=site.nameserver, group="peer-late") as consumer:
        for topic in {message.topic for message in late}:
            await consumer.subscribe(topic, start="first")
        with trio.fail_after(ARRIVE_S):
            while missing:
                missing -= {message.body for message in await consumer.poll()}


async def assert_found(site: Site, broker: Broker, rows: Rows) -> None:
    """Every key and every tag is answered with all that have it."""
    await site.wait_dispatched(broker)
    for topic in TOPICS:
        by_keys = by_key(rows.values(), topic)
        assert len(by_keys) > 50
        assert await query(site.nameserver, topic, by_keys) == by_keys
        tags = by_tag(rows.values(), topic)
        assert len(tags) > 5
        assert await query_tags(site.nameserver, broker, topic, tags) == tags


def by_tag(rows: Iterable[Row], topic: str) -> dict[str, set[str]]:
    """Tag -> offset ids of the topic's messages that have it."""
    ids_by_tag: dict[str, set[str]] = {}
    for row in rows:
        if row.topic == topic and row.tag:
            ids_by_tag.setdefault(row.tag, set()).add(row.offset_id)
    return {tag: ids for tag, ids in ids_by_tag.items() if len(ids) <= KEY_QUERY_MAX}


async def query_tags(
    nameserver: str, broker: Broker, topic: str, tags: Iterable[str]
) -> dict[str, set[str]]:
    """Offset ids of the messages with each tag, asked for as a client of 5.5.0 does."""
    ids_by_tag: dict[str, set[str]] = {}
    async with Admin(nameservers=nameserver) as admin:
        for tag in tags:
            header = QueryMessageRequest(
                topic=topic,
                key=tag,
                maxNum=KEY_QUERY_MAX,
                beginTimestamp=0,
                endTimestamp=2**63 - 1,
                indexType="T",
            )
            try:
                answer = await admin.ask(
                    broker.address, RequestCode.QUERY_MESSAGE, header, what=f"query by tag {tag}"
                )
            except RequestRefused as refused:
                if refused.code != ResponseCode.QUERY_NOT_FOUND:
                    raise
                ids_by_tag[tag] = set()
                continue
            ids_by_tag[tag] = {
                message.offset_message_id
                for message in decode_messages(answer.body)
                if message.properties.get(TAGS) == tag
            }
    return ids_by_tag


def fsck(store: Path) -> int:
    """The exit code of `rocketbed store fsck`."""
    command = [sys.executable, "-P", "-m", "rocketbed", "store", "fsck", str(store)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode


def assert_rebuilt_equal(store: Path, out: Path) -> None:
    """Queues and index built from the log alone are the broker's, byte for byte.

    But for the names of the index files: the moment at which a file was made stands nowhere else.
    """
    directory = open_directory(store)
    try:
        report = rebuild(directory, str(out))
    finally:
        directory.close()
    assert (report.holes, report.refused, report.left_out) == ([], [], {})
    queues = dict(files_below(store, "consumequeue"))
    assert dict(files_below(out, "consumequeue")) == queues
    assert len(queues) > len(TOPICS) * QUEUES
    indexes = [[data for _, data in sorted(files_below(root, "index"))] for root in (out, store)]
    assert len(indexes[0]) > 3
    assert indexes[0] == indexes[1]
