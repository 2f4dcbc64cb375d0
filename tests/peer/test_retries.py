"""Delay levels, messages that a Java consumer puts back, dead letters; a directory with all of that
goes to RocketMQ and comes back."""

from collections import Counter
from typing import Any

import pytest
import trio

from rocketbed.client.consumer import Consumer
from rocketbed.client.messages import Message
from tests.support.peer.brokers import Broker, Site
from tests.support.peer.directories import assert_sound
from tests.support.peer.java_client import JavaClient
from tests.support.peer.traffic import write

TOPIC, BACK = "PeerRetry", "PeerBack"
COUNT = 5
AGAIN = [b"again %d" % number for number in range(COUNT)]
SOON, LATE = 1, 3
"""Levels of a second and of ten seconds."""
COME_S = 90.0


@pytest.mark.ci
async def test_java_consumers_put_messages_back(site: Site) -> None:
    await site.start_nameserver("rocketbed")
    broker = site.broker()
    await site.start(broker, "rocketbed")
    async with JavaClient(site.installation, site.nameserver, site.directory / "java") as java:
        await prepare(java, broker)
        rows = await push(java, "peer-again", COUNT * 3, fails=2, level=SOON, max=16)
        assert Counter((row["body"], row["reconsumeTimes"]) for row in rows) == Counter(
            (body, times) for body in {row["body"] for row in rows} for times in range(3)
        )
        assert {row["topic"] for row in rows} == {BACK}  # it says so of a retry too
        expected: Counter[bytes] = Counter()
        await leave(site, java, "killed", expected)
        await site.kill(broker)
        await site.start(broker, "rocketbed")
        await check(site, "killed", expected)
        await site.stop(broker)
    assert_sound(broker.store)


@pytest.mark.parametrize("installation", ["5.3.3", "5.5.0"], indirect=True)
async def test_all_messages_come_once_at_either_broker(site: Site) -> None:
    await site.start_nameserver("rocketmq")
    broker = site.broker()
    await site.start(broker, "rocketbed")
    async with JavaClient(site.installation, site.nameserver, site.directory / "java") as java:
        await prepare(java, broker)
        expected: Counter[bytes] = Counter()
        await leave(site, java, "ours", expected)
        await site.stop(broker)
        assert_sound(broker.store)
        await site.start(broker, "rocketmq")
        await check(site, "ours", expected)
        await leave(site, java, "theirs", expected)
        await site.stop(broker)
        await site.start(broker, "rocketbed")
        await check(site, "theirs", expected)
    await site.stop(broker)
    assert_sound(broker.store)


async def prepare(java: JavaClient, broker: Broker) -> None:
    await java.create(broker.address, [TOPIC, BACK], 1)
    await java.send([Message(BACK, body) for body in AGAIN])


async def push(java: JavaClient, group: str, count: int, **more: Any) -> list[dict[str, Any]]:
    return await java.ask("push", topic=BACK, group=group, tags="*", count=count, **more)


async def leave(site: Site, java: JavaClient, name: str, expected: Counter[bytes]) -> None:
    """Leave dead letters; delayed messages of two levels and retries, some for much later."""
    rows = await push(java, f"{name}-dead", COUNT * 2, fails=9, level=SOON, max=1)
    assert Counter(row["reconsumeTimes"] for row in rows) == {0: COUNT, 1: COUNT}
    for level in (SOON, LATE):
        bodies = [f"{name} {level} {number}".encode() for number in range(COUNT)]
        expected.update(bodies)
        await write(site.nameserver, [Message(TOPIC, body, delay_level=level) for body in bodies])
    await bodies_of(site, TOPIC, expected.total() - COUNT)
    await push(java, f"{name}-late", COUNT, fails=1, level=LATE, max=16)


async def check(site: Site, name: str, expected: Counter[bytes]) -> None:
    """Check that the late ones come too, at each kind of broker, and none of the first ones once
    more.
    """
    assert await bodies_of(site, TOPIC, expected.total()) == expected
    for topic in (f"%DLQ%{name}-dead", f"%RETRY%{name}-late"):
        assert await bodies_of(site, topic, COUNT) == Counter(AGAIN), topic


async def bodies_of(site: Site, topic: str, count: int) -> Counter[bytes]:
    """Bodies of a topic, once there are so many and no more come."""
    counts: Counter[bytes] = Counter()
    async with Consumer(nameservers=site.nameserver, group="peer-onlooker") as consumer:
        await consumer.subscribe(topic, start="first")
        with trio.fail_after(COME_S):
            while counts.total() < count:
                counts.update(message.body for message in await consumer.poll())
        counts.update(message.body for message in await consumer.poll(timeout_s=1))
    return counts
