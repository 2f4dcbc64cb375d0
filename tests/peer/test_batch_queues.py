"""Topics of `queue.type=BatchCQ`, written by one kind of broker and booted by the other."""

import pytest

from rocketbed.client.admin import Admin
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Sent
from rocketbed.client.producer import Producer
from rocketbed.inspect import Severity
from tests.support.peer.brokers import Kind, Site
from tests.support.peer.directories import assert_sound
from tests.support.peer.java_client import JavaClient
from tests.support.peer.rows import Row
from tests.support.peer.traffic import read, varied

TOPIC = "PeerBatchCQ"
Contents = list[tuple[int, int, bytes, str | None, tuple[str, ...], int]]


def contents(rows: list[Row]) -> Contents:
    """Return the contents given by the producers, and the place."""
    return sorted((r.queue_id, r.queue_offset, r.body, r.tag, r.keys, r.flag) for r in rows)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("first", "second"), [("rocketmq", "rocketbed"), ("rocketbed", "rocketmq")]
)
async def test_batch_topic_messages_survive_a_change_of_broker(
    site: Site, first: Kind, second: Kind
) -> None:
    await site.start_nameserver("rocketbed")
    broker = site.broker()
    await site.start(broker, first)
    async with Admin(nameservers=site.nameserver) as admin:
        await admin.create_topic(TOPIC, queues=2, attributes="+queue.type=BatchCQ")
    async with JavaClient(site.installation, site.nameserver, site.directory / "java") as java:
        sent = await write_batches(java, site.nameserver)
        before = contents(await java.read([TOPIC]))
        assert sorted((body, keys) for _, _, body, _, keys, _ in before) == sent
        assert contents(await read(site.nameserver, [TOPIC])) == before
        await site.kill(broker)
        assert_sound(broker.store, Severity.TAIL)

        await site.start(broker, second)
        assert contents(await java.read([TOPIC])) == before
        assert contents(await read(site.nameserver, [TOPIC])) == before
        sent = sorted(sent + await write_batches(java, site.nameserver))
        after = contents(await java.read([TOPIC]))
        assert sorted((body, keys) for _, _, body, _, keys, _ in after) == sent
        assert contents(await read(site.nameserver, [TOPIC])) == after


async def write_batches(java: JavaClient, nameserver: str) -> list[tuple[bytes, tuple[str, ...]]]:
    """Batches and single messages of both clients; bodies and keys of all, sorted."""
    messages: list[Message] = []
    async with Producer(nameservers=nameserver, retries=0) as producer:
        for seed in range(4):
            batch, single = varied([TOPIC], 5, seed), varied([TOPIC], 1, seed + 10)[0]
            await java.send_batch(batch)
            await java.send([single])
            assert isinstance(await producer.send_batch(batch), Sent)
            assert isinstance(await producer.send(single), Sent)
            messages += [*batch, *batch, single, single]
    return sorted((message.body, tuple(message.keys)) for message in messages)
