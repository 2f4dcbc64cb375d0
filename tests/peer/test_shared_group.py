"""A consumer of ours and Java's push consumer in one group: each reads its part, in turn or at
once, of a broker of ours and of RocketMQ's."""

from base64 import b64decode
from collections import Counter
from collections.abc import Callable
from typing import Literal

import pytest
import trio

from rocketbed.client.consumer import Consumer
from rocketbed.client.messages import Message
from tests.support.peer.brokers import Site
from tests.support.peer.java_client import JavaClient
from tests.support.peer.traffic import write

TOPIC, GROUP = "PeerShared", "peer-shared"
QUEUES, COUNT = 4, 10
"""Queues of the topic, and messages of each in one round."""
SHARED_S = 90.0


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["rocketbed", "rocketmq"])
async def test_a_group_of_both_clients(site: Site, kind: Literal["rocketbed", "rocketmq"]) -> None:
    await site.start_nameserver("rocketmq" if kind == "rocketmq" else "rocketbed")
    broker = site.broker()
    await site.start(broker, kind)
    async with (
        JavaClient(site.installation, site.nameserver, site.directory / "java") as java,
        Consumer(nameservers=site.nameserver, group=GROUP, auto_commit_s=0.5) as ours,
        trio.open_nursery() as nursery,
    ):
        await java.create(broker.address, [TOPIC], QUEUES)
        theirs: list[str] = []

        async def push() -> None:
            rows = await java.ask(
                "push", topic=TOPIC, group=GROUP, tags="*", count=QUEUES * COUNT // 2
            )
            theirs.extend(b64decode(row["body"]).decode() for row in rows)

        await ours.subscribe(TOPIC, start="first")
        assert len(ours.positions()) == QUEUES
        nursery.start_soon(push)
        await until(lambda: len(ours.positions()) == QUEUES // 2)
        await send(site, "both")
        counts = await read(ours, QUEUES * COUNT // 2)
        await until(lambda: len(theirs) == QUEUES * COUNT // 2)
        # Java's consumer has ended: its part is ours again.
        await until(lambda: len(ours.positions()) == QUEUES)
        await send(site, "alone")
        counts += await read(ours, QUEUES * COUNT)
        await site.kill(broker)
        await site.start(broker, kind)
        await send(site, "after")
        last = {f"after {number}" for number in range(QUEUES * COUNT)}
        with trio.fail_after(SHARED_S):
            while not last <= counts.keys():  # what was not committed comes again
                counts += await read(ours, 1)
    assert len(theirs) == len(set(theirs))
    for word in ("both", "alone", "after"):
        expected = {f"{word} {number}" for number in range(QUEUES * COUNT)}
        assert expected == {one for one in {*counts, *theirs} if one.startswith(word)}
    combined = Counter(theirs) + counts
    assert sum(combined.values()) - len(combined) < QUEUES * COUNT, combined


async def send(site: Site, word: str) -> None:
    """Send `count` messages into each queue."""
    bodies = [f"{word} {number}".encode() for number in range(QUEUES * COUNT)]
    await write(site.nameserver, [Message(TOPIC, body) for body in bodies])


async def read(consumer: Consumer, count: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    with trio.fail_after(SHARED_S):
        while counts.total() < count:
            counts.update(message.body.decode() for message in await consumer.poll())
    return counts


async def until(is_so: Callable[[], bool]) -> None:
    with trio.fail_after(SHARED_S):
        while True:
            if is_so():
                return
            await trio.sleep(0.1)
