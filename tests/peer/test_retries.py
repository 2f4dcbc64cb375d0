"""Delay levels, messages that a Java consumer puts back, dead letters; a directory with all of that
goes to RocketMQ and comes back."""

from collections import Counter
from typing import Any

import trio

from rocketbed.client.consumer import Consumer
from rocketbed.client.messages import Message
from tests.support.peer.brokers import Broker, Site
from tests.support.peer.directories import assert_sound
from tests.support.peer.java_client import JavaClient
from tests.support.peer.traffic import write

TOPIC, GROUP = "PeerRetry", "peer-retry"
COUNT = 5
SOON, LATE = 1, 3
"""Levels of a second and of ten seconds."""
COME_S = 90.0


async def test_java_consumers_put_messages_back(site: Site) -> None:
    await site.start_nameserver("rocketbed")
    broker = site.broker()
    await site.start(broker, "rocketbed")
    async with JavaClient(site.installation, site.nameserver, site.directory / "java") as java:
        await java.create(broker.address, [TOPIC], 2)
        await java.send([Message(TOPIC, b"again %d" % number) for number in range(COUNT)])
        rows = await push(java, "peer-again", COUNT * 3, fails=2, level=SOON, max=16)
        assert Counter((row["body"], row["reconsumeTimes"]) for row in rows) == Counter(
            (body, times) for body in {row["body"] for row in rows} for times in range(3)
        )
        assert {row["topic"] for row in rows} == {TOPIC}  # it says so of a retry too

        more = {"fails": 9, "level": SOON, "max": 1, "dead": COUNT}
        rows = await push(java, "peer-dead", COUNT * 2, **more)
        assert Counter(row["reconsumeTimes"] for row in rows) == {0: COUNT, 1: COUNT}
        dead = await come(site, "%DLQ%peer-dead", COUNT)
        assert dead == Counter(b"again %d" % number for number in range(COUNT))
        await site.stop(broker)
    assert_sound(broker.store)


async def test_delayed_messages_come_once_whoever_serves_the_directory(site: Site) -> None:
    await site.start_nameserver("rocketmq")
    broker = site.broker()
    await site.start(broker, "rocketbed")
    async with JavaClient(site.installation, site.nameserver, site.directory / "java") as java:
        await java.create(broker.address, [TOPIC], 1)
    wanted: Counter[bytes] = Counter()
    await delay(site, wanted, b"ours")
    await site.stop(broker)
    assert_sound(broker.store)
    await check(site, broker, "rocketmq", wanted)
    await delay(site, wanted, b"theirs")
    await site.stop(broker)
    await check(site, broker, "rocketbed", wanted)
    await delay(site, wanted, b"killed")
    await site.kill(broker)
    await check(site, broker, "rocketbed", wanted)
    await site.stop(broker)
    assert_sound(broker.store)


async def push(java: JavaClient, group: str, count: int, **more: Any) -> list[dict[str, Any]]:
    return await java.ask("push", topic=TOPIC, group=group, tags="*", count=count, **more)


async def come(site: Site, topic: str, count: int) -> Counter[bytes]:
    """Bodies of a topic, once there are so many and no more come."""
    found: Counter[bytes] = Counter()
    async with Consumer(nameservers=site.nameserver, group="peer-onlooker") as consumer:
        await consumer.subscribe(topic, start="first")
        with trio.fail_after(COME_S):
            while found.total() < count:
                found.update(message.body for message in await consumer.poll())
        found.update(message.body for message in await consumer.poll(timeout_s=1))
    return found


async def delay(site: Site, wanted: Counter[bytes], name: bytes) -> None:
    """Messages of two levels; those of the first have come."""
    for level in (SOON, LATE):
        bodies = [name + b" %d %d" % (level, number) for number in range(COUNT)]
        wanted.update(bodies)
        await write(site.nameserver, [Message(TOPIC, body, delay_level=level) for body in bodies])
    await come(site, TOPIC, wanted.total() - COUNT)


async def check(site: Site, broker: Broker, kind: Any, wanted: Counter[bytes]) -> None:
    """The others come too, whoever serves, and none of the first ones once more."""
    await site.start(broker, kind)
    assert await come(site, TOPIC, wanted.total()) == wanted
