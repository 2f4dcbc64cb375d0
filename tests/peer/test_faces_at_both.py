"""The faces for asyncio and for plain programs do the same things at a broker of ours and at a real
RocketMQ 5.5.0: what each says of each step has to agree."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import pytest
import trio

from rocketbed import aio, blocking
from rocketbed.client.messages import Message, Received
from rocketbed.client.outcome import Outcome, Sent
from rocketbed.wire.bodies import MessageQueue
from tests.support.peer.brokers import Kind, Site
from tests.support.peer.installation import Installation

LIMIT_S: Final = 120.0
"""For a hang only."""
LARGE: Final = b"packed " * 3000
SENDERS: Final = 6
Clients = Callable[..., Any]
"""Class name and options -> a client of one face."""
Account = dict[str, Any]


class Plain:
    """A client of `rocketbed.blocking` as if it were one of `rocketbed.aio`."""

    def __init__(self, client: Any) -> None:
        self._client = client
        # A consumer keeps account of what each thread was given.
        is_consumer = isinstance(client, blocking.Consumer)
        self._threads = ThreadPoolExecutor(1 if is_consumer else SENDERS)

    async def __aenter__(self) -> Self:
        await self._call(self._client.__enter__)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._call(partial(self._client.__exit__, *error))
        self._threads.shutdown()

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._client, name)
        return lambda *args, **kwargs: self._call(partial(method, *args, **kwargs))

    def stop_listening(self) -> None:
        self._client.stop_listening()

    async def listen(self, handler: Callable[[Received], Awaitable[None]], **options: Any) -> None:
        def handle(message: Received) -> None:
            asyncio.run(_awaited(handler(message)))

        await self._call(partial(self._client.listen, handle, **options))

    async def _call(self, function: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)


async def _awaited(result: Awaitable[None]) -> None:
    await result


FACES: Final[dict[str, Clients]] = {
    "aio": lambda name, **options: getattr(aio, name)(**options),
    "blocking": lambda name, **options: Plain(getattr(blocking, name)(**options)),
}


@pytest.mark.ci
@pytest.mark.parametrize("installation", ["5.5.0"], indirect=True)
async def test_both_faces_do_the_same_at_both(installation: Installation, tmp_path: Path) -> None:
    accounts: dict[tuple[Kind, str], Account] = {}

    async def at(kind: Kind) -> None:
        (tmp_path / kind).mkdir()
        site = Site(tmp_path / kind, installation)
        try:
            await site.start_nameserver(kind)
            broker = site.broker()
            await site.start(broker, kind)
            for face, clients in FACES.items():
                queue = MessageQueue(topic=f"Of-{face}", broker_name=broker.name, queue_id=0)
                account = partial(tell, partial(clients, nameservers=site.nameserver), queue, site)
                accounts[kind, face] = await trio.to_thread.run_sync(asyncio.run, account())
        finally:
            with trio.CancelScope(shield=True):
                await site.close()

    async with trio.open_nursery() as nursery:
        for kind in ("rocketbed", "rocketmq"):
            nursery.start_soon(at, kind)
    expected = accounts["rocketmq", "aio"]
    for client_and_broker, account in accounts.items():
        assert account == expected, client_and_broker
    assert expected["listens"] == [(b"again", 0), (b"again", 1), (b"once", 0)]


async def tell(clients: Clients, queue: MessageQueue, site: Site) -> Account:
    """Run all steps by one face at one broker."""
    account: Account = {}
    async with asyncio.timeout(LIMIT_S), clients("Admin") as admin:
        await admin.create_topic(queue.topic, queues=2)
        for step in (sends, reads, listens, broadcasts):
            account[step.__name__] = await step(clients, queue, site)
        config = await admin.topic_config(queue.topic, queue.broker_name)
        account["queues"] = config.read_queue_nums
    return account


async def sends(clients: Clients, queue: MessageQueue, site: Site) -> Any:
    """Send one message, a batch, a refused one; a packed body; several at once, which go as
    batches.
    """
    topic = queue.topic
    beyond = MessageQueue(topic=topic, broker_name=queue.broker_name, queue_id=99)
    batch = [Message(topic, b"batch %d" % n, tag="b", keys=("k",)) for n in range(3)]
    async with clients("Producer", retries=0, compress="zlib") as producer:
        outcomes = [
            await producer.send(Message(topic, b"one", properties={"colour": "ü"}), queue=queue),
            await producer.send_batch(batch, queue=queue),
            await producer.send(Message(topic, b"x"), queue=beyond),
            await producer.send(Message(topic, LARGE), queue=queue),
        ]
    async with clients("Producer", retries=0, linger_s=0.2) as producer:
        together = await asyncio.gather(
            *(producer.send(Message(topic, b"at once"), queue=queue) for _ in range(SENDERS))
        )
    return list(map(summary, outcomes)), sorted(map(summary, together))


def summary(outcome: Outcome) -> Any:
    if isinstance(outcome, Sent):
        return outcome.status.name, outcome.queue.queue_id, outcome.queue_offset
    return type(outcome).__name__, outcome.code


async def reads(clients: Clients, queue: MessageQueue, site: Site) -> Any:
    """Everything; nothing more after a commit."""
    async with clients("Consumer", group=f"{queue.topic}-readers") as consumer:
        await consumer.subscribe(queue.topic, start="first")
        messages = await read(consumer, 5 + SENDERS)
        await consumer.commit()
        committed = await consumer.committed(queue)
    async with clients("Consumer", group=f"{queue.topic}-readers") as consumer:
        await consumer.assign([queue])
        more = await consumer.poll(timeout_s=0.5)
    rows = [
        (one.queue_offset, one.body, one.tag, one.keys, one.properties.get("colour"))
        for one in messages
    ]
    return rows, committed, len(more)


async def read(consumer: Any, count: int) -> list[Received]:
    messages: list[Received] = []
    while len(messages) < count:
        messages += await consumer.poll(timeout_s=5.0)
    return messages


async def listens(clients: Clients, queue: MessageQueue, site: Site) -> Any:
    """A message that a function refuses once comes once more."""
    deliveries: list[tuple[bytes, int]] = []
    async with (
        clients("Consumer", group=f"{queue.topic}-listeners") as consumer,
        clients("Producer", retries=0) as producer,
    ):
        await consumer.subscribe(queue.topic, start="last")
        for body in (b"once", b"again"):
            await producer.send(Message(queue.topic, body), queue=queue)

        async def handle(message: Received) -> None:
            deliveries.append((message.body, message.reconsume_times))
            if len(deliveries) == 2 + 1:
                consumer.stop_listening()
            if deliveries[-1] == (b"again", 0):
                raise ValueError(message.body)

        await consumer.listen(handle, workers=1)
    return sorted(deliveries)


async def broadcasts(clients: Clients, queue: MessageQueue, site: Site) -> Any:
    """Each member has all, and goes on by its own file."""
    bodies = []
    for count in (5 + SENDERS + 2, 0):
        for name in ("one", "other"):
            path = str(site.directory / f"{queue.topic}-{name}.json")
            group = f"{queue.topic}-broad"
            async with clients("Consumer", group=group, broadcast=path) as consumer:
                await consumer.subscribe(queue.topic, start="first")
                got = await read(consumer, count) or await consumer.poll(timeout_s=0.5)
                await consumer.commit()
                bodies.append([one.body for one in got])
    return bodies
