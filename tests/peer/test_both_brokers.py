"""Our client does the same things at a broker of ours and at a real RocketMQ 5.5.0: each step
records its result, and the two accounts have to agree."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from rocketbed.client.admin import Admin
from rocketbed.client.consumer import Consumer
from rocketbed.client.errors import ClientError
from rocketbed.client.messages import Message, Received
from rocketbed.client.outcome import Outcome, Sent
from rocketbed.client.producer import Producer
from rocketbed.wire.bodies import MessageQueue
from tests.support.peer.brokers import Kind, Site
from tests.support.peer.installation import Installation, install

TOPIC, TAGGED, SHARED, ORDERED, REFUSED = (
    "Both",
    "BothTagged",
    "BothShared",
    "BothOrdered",
    "BothNot",
)
QUEUES: Final = 4
LIMIT_S: Final = 120.0
"""For a hang only."""
Account = list[tuple[str, Any]]


@pytest.fixture(scope="session")
def installation() -> Installation:
    return install("5.5.0")


@pytest.mark.ci
async def test_our_client_does_the_same_at_both(installation: Installation, tmp_path: Path) -> None:
    accounts: dict[Kind, Account] = {"rocketbed": [], "rocketmq": []}
    for kind in accounts:
        (tmp_path / kind).mkdir()
    async with trio.open_nursery() as nursery:
        for kind, account in accounts.items():
            nursery.start_soon(partial(tell, installation, tmp_path / kind, kind, account))
    assert accounts["rocketbed"] == accounts["rocketmq"]
    assert dict(accounts["rocketbed"])["dead letters"] == [b"never"]


async def tell(installation: Installation, directory: Path, kind: Kind, account: Account) -> None:
    """Run all steps at a nameserver and a broker of one kind."""
    site = Site(directory, installation)
    try:
        await site.start_nameserver(kind)
        broker = site.broker()
        await site.start(broker, kind)
        async with (
            Admin(nameservers=site.nameserver) as admin,
            Producer(nameservers=site.nameserver, retries=0) as producer,
        ):
            for topic in (TOPIC, TAGGED, SHARED, ORDERED, REFUSED):
                await admin.create_topic(topic, queues=QUEUES)
            context = _Context(site, admin, producer, queue_of(TOPIC, broker.name, 0), account)
            with trio.fail_after(LIMIT_S):
                for step in STEPS:
                    account.append((step.__name__, await step(context)))
    finally:
        with trio.CancelScope(shield=True):
            await site.close()


def queue_of(topic: str, broker: str, number: int) -> MessageQueue:
    return MessageQueue(topic=topic, broker_name=broker, queue_id=number)


async def until(is_so: Callable[[], bool | Awaitable[bool]]) -> None:
    """Look again and again: a real broker's state has no event here."""
    while not (result := is_so()) or not (result is True or await result):  # noqa: ASYNC110
        await trio.sleep(0.05)


class _Context:
    def __init__(
        self, site: Site, admin: Admin, producer: Producer, queue: MessageQueue, account: Account
    ) -> None:
        self.site = site
        self.admin = admin
        self.producer = producer
        self.queue = queue
        """The first one of `TOPIC`."""
        self.account = account

    def place(self, topic: str, number: int) -> MessageQueue:
        return queue_of(topic, self.queue.broker_name, number)

    @asynccontextmanager
    async def consumer(self, group: str, **options: Any) -> AsyncIterator[Consumer]:
        async with Consumer(nameservers=self.site.nameserver, group=group, **options) as consumer:
            yield consumer


async def sends(context: _Context) -> Any:
    """Return acknowledged sends with their places, and refused ones with their codes."""
    first = [
        await context.producer.send(Message(TOPIC, b"%d" % n), queue=context.queue)
        for n in range(6)
    ]
    batch = [Message(TOPIC, b"batch %d" % n, tag="b", keys=("k",)) for n in range(3)]
    place = context.place(TOPIC, 1)
    labelled = Message(
        TOPIC, b"labelled", tag="red", keys=("one", "two"), properties={"colour": "ü"}, flag=7
    )
    outcomes = [
        await context.producer.send_batch(batch, queue=place),
        await context.producer.send(labelled, queue=place),
        await context.producer.send(Message(TOPIC, b"x"), queue=context.place(TOPIC, 99)),
    ]
    in_order = [
        await context.producer.send(Message(ORDERED, b"%d" % n), order_key="one key")
        for n in range(5)
    ]
    queues = {one.queue.queue_id for one in in_order if isinstance(one, Sent)}
    return list(map(summary, first + outcomes)), len(queues)


def summary(outcome: Outcome) -> Any:
    if isinstance(outcome, Sent):
        return outcome.status.name, outcome.queue.queue_id, outcome.queue_offset
    return type(outcome).__name__, outcome.code


def row(message: Received) -> Any:
    own = {key: value for key, value in message.properties.items() if key == "colour"}
    place = message.queue.topic, message.queue.queue_id, message.queue_offset
    return (*place, message.body, message.tag, message.keys, own, message.flag)


async def read(consumer: Consumer, count: int) -> list[Received]:
    messages: list[Received] = []
    while len(messages) < count:
        messages += await consumer.poll(timeout_s=5.0)
    return messages


async def reads(context: _Context) -> Any:
    """Everything, then back to a place, back in time, and on from what was committed."""
    async with context.consumer("readers") as consumer:
        await consumer.subscribe(TOPIC, start="first")
        everything = await read(consumer, 10)
        consumer.seek(context.queue, 4)
        reread = await read(consumer, 2)
        at = {one.queue_offset: one.stored_ms for one in everything if one.queue == context.queue}
        await consumer.seek_to_time(context.queue, at[5] + 60_000)
        future = consumer.position(context.queue)
        await consumer.seek_to_time(context.queue, at[0] - 60_000)
        past = consumer.position(context.queue)
        await read(consumer, 6)
        lag = {queue.queue_id: count for queue, count in (await consumer.lag()).items()}
        await consumer.commit({context.queue: 3})
        committed = await consumer.committed(context.queue)
    async with context.consumer("readers") as consumer:
        await consumer.assign([context.queue])
        on = await read(consumer, 3)
        consumer.pause(context.queue)
        await context.producer.send(Message(TOPIC, b"while paused"), queue=context.queue)
        paused = await consumer.poll(timeout_s=0.5)
        consumer.resume(context.queue)
        resumed = await read(consumer, 1)
    rows = sorted(map(row, everything))
    return rows, list(map(row, reread + on + paused + resumed)), future, past, lag, committed


async def filters(context: _Context) -> Any:
    """Just the tags that were asked for, one of a negative hash among them."""
    for tag in ("red", "green", "violet", None, "red"):
        await context.producer.send(Message(TAGGED, str(tag).encode(), tag=tag))
    async with context.consumer("filtering") as consumer:
        await consumer.subscribe(TAGGED, tags="red || violet", start="first")
        messages = await read(consumer, 3)
        await consumer.commit()
        ends = {q.queue_id: await consumer.offsets.max_offset(q) for q in consumer.positions()}
        stands = {q.queue_id: p for q, p in consumer.positions().items() if p > ends[q.queue_id]}
        await consumer.unsubscribe(TAGGED)
        return sorted(one.body for one in messages), sum(ends.values()), stands


async def questions(context: _Context) -> Any:
    """Offsets of queues, and messages by key and by id."""
    async with context.consumer("asking") as consumer:
        offsets = consumer.offsets
        beyond = context.place(TOPIC, 3)
        bounds = [
            (await offsets.min_offset(one), await offsets.max_offset(one))
            for one in (context.queue, beyond)
        ]
        nothing = await consumer.committed(context.queue)
        pulled = [await consumer.pull(context.queue, at) for at in (2, 7, 50)]
    by_key = await context.admin.messages_by_key(TOPIC, "k")
    by_id = await context.admin.message(by_key[0].message_id, TOPIC)
    shown_pulls = [
        (one.status.name, one.next_offset, one.min_offset, one.max_offset, len(one.messages))
        for one in pulled
    ]
    return bounds, nothing, shown_pulls, sorted(map(row, by_key)), row(by_id) in map(row, by_key)


async def shares(context: _Context) -> Any:
    """Two members of a group: each queue has one of them, and each message comes to one."""
    counts: list[int] = []
    async with context.consumer("sharing") as first, context.consumer("sharing") as second:
        for member in (first, second):
            await member.subscribe(SHARED, start="first")
        await until(lambda: [len(member.positions()) for member in (first, second)] == [2, 2])
        for number in range(8):
            await context.producer.send(
                Message(SHARED, b"%d" % number), queue=context.place(SHARED, number % QUEUES)
            )
        parts = [sorted(m.body for m in await read(member, 4)) for member in (first, second)]
        counts = [len(part) for part in parts]
        bodies = sorted(parts[0] + parts[1])
    async with context.consumer("sharing") as remaining_member:
        await remaining_member.subscribe(SHARED, start="first")
        await until(lambda: len(remaining_member.positions()) == QUEUES)
    return counts, bodies


async def listens(context: _Context) -> Any:
    """A message that a function refuses comes again, later, and in the end is a dead letter."""
    deliveries: list[tuple[bytes, int]] = []
    async with context.consumer("listening") as consumer:
        await consumer.subscribe(REFUSED, start="first")
        for body in (b"at once", b"later", b"never"):
            await context.producer.send(Message(REFUSED, body))
        await context.producer.send(Message(REFUSED, b"delayed", delay_level=1))

        async def handle(message: Received) -> None:
            deliveries.append((message.body, message.reconsume_times))
            if message.body == b"never" or (message.body, message.reconsume_times) == (b"later", 0):
                raise ValueError(message.body)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(consumer.listen, handle, max_retries=1))
            letters = await dead_letters(context)
            await until(lambda: len(deliveries) >= 6)
            consumer.stop_listening()
        context.account.append(("dead letters", [one.body for one in letters]))
    return sorted(deliveries)


async def dead_letters(context: _Context) -> list[Received]:
    async with context.consumer("burying") as consumer:
        while True:
            try:
                await consumer.subscribe("%DLQ%listening", start="first")
                return await read(consumer, 1)
            except ClientError:  # it is made with the first letter
                await trio.sleep(0.2)


async def keeps_order(context: _Context) -> Any:
    """An ordered listener tries a message again before it goes on."""
    deliveries: list[tuple[bytes, int]] = []
    async with context.consumer("inorder", ordered=True) as consumer:
        await consumer.subscribe(ORDERED, start="first")

        async def handle(message: Received) -> None:
            deliveries.append((message.body, message.reconsume_times))
            if len(deliveries) == 5 + 1:
                consumer.stop_listening()
            if deliveries[-1] == (b"2", 0):
                raise ValueError(message.body)

        await consumer.listen(handle)
    return deliveries


async def broadcasts(context: _Context) -> Any:
    """Each member has all, and goes on by its own file."""
    counts = []
    for turn in range(2):
        for name in ("one", "other"):
            path = str(context.site.directory / f"{name}.json")
            async with context.consumer("broad", broadcast=path) as consumer:
                await consumer.subscribe(TAGGED, start="first")
                if turn == 0:
                    counts.append(len(await read(consumer, 5)))
                    await consumer.commit()
                else:
                    counts.append(len(await consumer.poll(timeout_s=0.5)))
    return counts


async def administers(context: _Context) -> Any:
    config = await context.admin.topic_config(TOPIC, context.queue.broker_name)
    told_of = TOPIC in await context.admin.topics()
    await context.admin.delete_topic(TOPIC)

    async def is_gone() -> bool:
        return TOPIC not in await context.admin.topics()

    await until(is_gone)
    return config.read_queue_nums, config.write_queue_nums, config.perm, told_of


STEPS: Final = (
    sends,
    reads,
    filters,
    questions,
    shares,
    listens,
    keeps_order,
    broadcasts,
    administers,
)
