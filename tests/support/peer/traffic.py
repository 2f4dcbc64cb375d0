"""Messages that our own client writes and reads in these tests."""

import random
from collections.abc import Iterable

import trio

from rocketbed.client.admin import Admin
from rocketbed.client.consumer import Consumer, PullStatus
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Sent
from rocketbed.client.producer import Producer
from tests.support.peer.rows import Row, Written

WORDS = ("plain", "kühl", "消息", "💾", "x" * 300)


def varied(topics: Iterable[str], count: int, seed: int) -> list[Message]:
    """Messages of all shapes: sizes, bytes, keys, tags, properties, flags."""
    draw = random.Random(seed)
    names = list(topics)
    messages = []
    for number in range(count):
        keys = [
            f"key-{seed}-{number}",
            *draw.sample(["half", "schlüssel", "键"], draw.randrange(3)),
        ]
        messages.append(
            Message(
                names[number % len(names)],
                draw.randbytes(draw.choice((1, 17, 400, 2000, 3500))),
                tag=draw.choice((None, "red", "grün", "Aa", "BB")),
                keys=keys if number % 5 else (),
                properties={f"p{i}": draw.choice(WORDS) for i in range(draw.randrange(3))},
                flag=draw.choice((0, 1, -(2**31), 2**31 - 1)),
            )
        )
    return messages


async def write(nameserver: str, messages: list[Message], *, batch: int = 1) -> list[Written]:
    """Send one after the other, or in batches of one topic; all have to be acknowledged."""
    written: list[Written] = []
    async with Producer(nameservers=nameserver, retries=0, timeout_s=10) as producer:
        for start in range(0, len(messages), batch):
            part = messages[start : start + batch]
            if batch > 1:
                outcome = await producer.send_batch(part)
            else:
                outcome = await producer.send(part[0])
            assert isinstance(outcome, Sent), outcome
            assert outcome.is_safe, outcome
            written += [
                Written(
                    message,
                    outcome.queue.queue_id,
                    outcome.queue_offset + number,
                    outcome.message_ids[number],
                    outcome.offset_ids[number],
                )
                for number, message in enumerate(part)
            ]
    return written


async def write_at_once(nameserver: str, messages: list[Message]) -> list[Written]:
    """Send all together, in batches that the producer makes."""
    written: list[Written] = []

    async def send(message: Message) -> None:
        outcome = await producer.send(message)
        assert isinstance(outcome, Sent), outcome
        place = outcome.queue.queue_id, outcome.queue_offset
        assert outcome.offset_id is not None
        written.append(Written(message, *place, outcome.message_id, outcome.offset_id))

    async with (
        Producer(nameservers=nameserver, timeout_s=10, linger_s=0.05) as producer,
        trio.open_nursery() as nursery,
    ):
        for message in messages:
            nursery.start_soon(send, message)
    return written


async def read(nameserver: str, topics: Iterable[str]) -> list[Row]:
    """Every message of every queue, by our consumer."""
    rows = []
    async with Consumer(nameservers=nameserver, group="peer-reader") as consumer:
        for topic in topics:
            for queue in await consumer.queues(topic):
                offset = 0
                while True:
                    pulled = await consumer.pull(queue, offset)
                    rows += [Row.of_ours(message) for message in pulled.messages]
                    if pulled.status is not PullStatus.FOUND and pulled.next_offset <= offset:
                        break
                    offset = pulled.next_offset
    return rows


async def query(nameserver: str, topic: str, keys: Iterable[str]) -> dict[str, set[str]]:
    """Offset ids of the messages with each key, by our client."""
    async with Admin(nameservers=nameserver) as admin:
        return {
            key: {found.offset_id for found in await admin.messages_by_key(topic, key)}
            for key in keys
        }
