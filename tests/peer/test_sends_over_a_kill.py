"""Outcomes of our producer's sends over the death of their broker, and the messages stored then: at
a broker of ours and of a RocketMQ 5.5.0, both of which wait for their disks."""

from collections import Counter
from typing import Final

import pytest
import trio

from rocketbed.client.admin import Admin
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Outcome, Refused, Sent, Unknown
from rocketbed.client.producer import Producer
from tests.support.peer.brokers import Kind, Site
from tests.support.peer.traffic import read

TOPIC: Final = "OverAKill"
SENDERS, ROUND = 8, 200
"""Tasks that send, and messages acknowledged before the kill and after the restart."""
LIMIT_S: Final = 150.0


@pytest.mark.ci
@pytest.mark.parametrize("installation", ["5.5.0"], indirect=True)
@pytest.mark.parametrize("kind", ["rocketbed", "rocketmq"])
async def test_outcome_of_each_send_is_true(site: Site, kind: Kind) -> None:
    await site.start_nameserver(kind)
    broker = site.broker(settings={"flushDiskType": "SYNC_FLUSH"})
    await site.start(broker, kind)
    async with Admin(nameservers=site.nameserver) as admin:
        await admin.create_topic(TOPIC, queues=4)
    outcomes: dict[bytes, Outcome] = {}

    async def send(producer: Producer, number: int) -> None:
        while True:
            body = b"%d" % number
            outcomes[body] = await producer.send(Message(TOPIC, body))
            number += SENDERS
            if not isinstance(outcomes[body], Sent):
                await trio.sleep(0.05)

    async def until(count: int, kinds: type[Outcome] | tuple[type[Outcome], ...]) -> None:
        before = len(outcomes)
        while True:
            if sum(isinstance(one, kinds) for one in list(outcomes.values())[before:]) >= count:
                return
            await trio.sleep(0.01)

    with trio.fail_after(LIMIT_S):
        async with (
            Producer(nameservers=site.nameserver, retries=0, timeout_s=2) as producer,
            trio.open_nursery() as nursery,
        ):
            for number in range(SENDERS):
                nursery.start_soon(send, producer, number)
            await until(ROUND, Sent)
            await site.kill(broker)
            await until(2 * SENDERS, (Refused, Unknown))  # one in flight each, one refused
            await site.start(broker, kind)
            await until(ROUND, Sent)
            nursery.cancel_scope.cancel()  # these are not in the account
    rows = await read(site.nameserver, [TOPIC])
    places = {row.body: (row.queue_id, row.queue_offset) for row in rows}
    assert len(rows) == len(places)  # none is there twice
    for body, outcome in outcomes.items():
        if isinstance(outcome, Sent):
            assert places[body] == (outcome.queue.queue_id, outcome.queue_offset), outcome
        elif isinstance(outcome, Refused):
            assert body not in places, outcome
    counts = Counter(type(outcome) for outcome in outcomes.values())
    assert counts[Sent] >= 2 * ROUND
    assert counts[Refused] >= SENDERS
