"""A group under the load of four senders, and the outcome of its acknowledged messages."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import trio

from bench.testbed import testbed
from rocketbed.chaos.backends.process.backend import ProcessBackend
from rocketbed.chaos.backends.process.network.choice import Net
from rocketbed.chaos.backends.process.run import ProcessHost
from rocketbed.chaos.plan.plan import Plan, Shape
from rocketbed.chaos.run.api import Elected
from rocketbed.chaos.run.load import topic_names
from rocketbed.chaos.run.members import Members
from rocketbed.client.admin import Admin
from rocketbed.client.consumer import Consumer
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Sent
from rocketbed.client.producer import Producer
from rocketbed.wire.errors import RocketbedError

QUEUES: Final = 4
BODY: Final = bytes(1024 - 8)
"""Bytes after a message's number."""
SENDERS: Final = 4
SEND_S: Final = 10.0
STEADY_S: Final = 0.3
"""Time of acknowledgements before the leader is struck."""
LOOK_S: Final = 0.01
WHOLE_S: Final = 120.0
PULL: Final = 500

Recover = Callable[[], Awaitable[object]]
"""Undoes a strike, or waits for a state."""


@dataclass(slots=True)
class Outcome:
    """Results for the messages of a group."""

    acknowledged: int = 0
    lost: int = 0
    is_stuck: bool = False
    """True if nothing was acknowledged, or not all were in sync, for `WHOLE_S`; nothing was
    searched then."""


@dataclass(slots=True)
class Group:
    """A group under load."""

    backend: ProcessBackend
    members: Members
    admin: Admin
    name: str
    topic: str
    times: list[float] = field(default_factory=list)
    """Times of acknowledgements since the last strike, and of the last one before it."""
    stored: dict[tuple[int, int], int] = field(default_factory=dict)
    """Number of each acknowledged message, by queue and offset."""
    failed_sends: int = 0
    """Sends with another outcome."""

    async def wait_led(self, after: int = 0) -> Elected:
        """Wait until a replica leads in a later epoch. Raises `trio.TooSlowError`."""
        with trio.fail_after(WHOLE_S):
            while True:
                elected = await self.backend.elected(self.name)
                if elected is not None and elected.epoch > after:
                    return elected
                await trio.sleep(LOOK_S)

    async def wait_whole(self) -> Elected:
        """Wait until a replica leads and reports all in sync. Raises `trio.TooSlowError`."""
        with trio.fail_after(WHOLE_S):
            while True:
                elected = await self.wait_led()
                sample = await self.backend.observe(elected.node)
                if sample is not None and sample.is_master and sample.in_sync == len(self.nodes):
                    return elected
                await trio.sleep(LOOK_S)

    @property
    def nodes(self) -> list[str]:
        return self.members.nodes

    async def hand_over(self, led: Elected) -> None:
        """Make another replica lead that has everything."""
        host, port = self.backend.address(led.node)
        await self.admin.hand_over(f"{host}:{port}", self.name, to=-1, epoch=led.epoch)

    async def gap(
        self, strike: Callable[[], Awaitable[Recover]], until: Recover
    ) -> tuple[float, Recover]:
        """Return the longest time without an acknowledgement, seconds, and the function that undoes
        the strike."""
        await self._wait_acknowledged()
        await trio.sleep(STEADY_S)
        del self.times[:-1]
        recover = await strike()
        await until()
        await self._wait_acknowledged()
        return max(after - before for before, after in pairwise(self.times)), recover

    async def _wait_acknowledged(self) -> None:
        """Wait until one more message is acknowledged. Raises `trio.TooSlowError`."""
        count = len(self.times)
        with trio.fail_after(WHOLE_S):
            while len(self.times) == count:
                await trio.sleep(LOOK_S)


@asynccontextmanager
async def under_load(
    host: ProcessHost, net: Net, shape: Shape, outcome: Outcome
) -> AsyncIterator[Group]:
    """Yield a group in which all are in sync and four send; at the end the acknowledged messages
    are counted, and searched."""
    plan = Plan(name="bench", seed=1, shape=shape)
    topic = topic_names(plan)[0]
    async with testbed(host, net, plan) as backend:
        members = Members(shape, backend)
        for name in shape.nameserver_names:
            await backend.start(name, {})
        await members.start_all()
        world, names = backend.world, backend.nameservers()
        async with (
            Admin(world, nameservers=names) as admin,
            Producer(world, nameservers=names, timeout_s=SEND_S) as producer,
        ):
            group = Group(backend, members, admin, next(iter(shape.group_nodes())), topic)
            await group.wait_whole()
            await _make_topic(group)
            async with trio.open_nursery() as nursery:
                for sender in range(SENDERS):
                    nursery.start_soon(_send, producer, group, sender)
                yield group
                nursery.cancel_scope.cancel()
            outcome.acknowledged = len(group.stored)
            if not outcome.is_stuck:
                await group.wait_whole()
                outcome.lost = await _lost(group)


async def _make_topic(group: Group) -> None:
    with trio.fail_after(WHOLE_S):
        while True:
            with suppress(RocketbedError):
                await group.admin.create_topic(group.topic, queues=QUEUES)
                return
            await trio.sleep(LOOK_S)


async def _send(producer: Producer, group: Group, sender: int) -> None:
    number = sender
    while True:
        body = number.to_bytes(8, "big") + BODY
        outcome = await producer.send(Message(group.topic, body))
        if isinstance(outcome, Sent) and outcome.is_safe:
            group.times.append(trio.current_time())
            group.stored[outcome.queue.queue_id, outcome.queue_offset] = number
        else:
            group.failed_sends += 1
        number += SENDERS


async def _lost(group: Group) -> int:
    """Return how many acknowledged messages are not at their places."""
    missing = dict(group.stored)
    world, names = group.backend.world, group.backend.nameservers()
    async with Consumer(world, nameservers=names, group="bench-reader") as consumer:
        for queue in await consumer.queues(group.topic, fresh=True):
            offset = 0
            while True:
                pulled = await consumer.pull(queue, offset, count=PULL)
                for message in pulled.messages:
                    place = queue.queue_id, message.queue_offset
                    if missing.get(place) == int.from_bytes(message.body[:8], "big"):
                        del missing[place]
                if pulled.next_offset >= pulled.max_offset and not pulled.messages:
                    break
                offset = pulled.next_offset
    return len(missing)
