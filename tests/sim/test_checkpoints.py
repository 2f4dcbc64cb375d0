"""Every public coroutine of the client is a checkpoint of trio, and does nothing once cancelled.

The coroutines are listed by introspection, so that a new one has to be added here.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest
import trio
import trio.testing

from rocketbed.client.admin import Admin
from rocketbed.client.consumer import Consumer
from rocketbed.client.errors import RequestRefused
from rocketbed.client.listener import here
from rocketbed.client.messages import Message
from rocketbed.client.offsets import QueueOffsets
from rocketbed.client.outcome import Sent
from rocketbed.client.producer import Producer
from rocketbed.wire.bodies import MessageQueue, SubscriptionGroupConfig
from rocketbed.wire.codes import RequestCode as Code
from rocketbed.world.api import World
from tests.support.sim.client_cluster import NAMESERVERS, SimCluster

QUEUE = MessageQueue(topic="T", broker_name="a", queue_id=0)
MESSAGE = Message("T", b"x", message_id="ID")
CLASSES = (Producer, Consumer, Admin, QueueOffsets)


@dataclass(frozen=True)
class Clients:
    """Open clients, and what calls of their methods name."""

    producer: Producer
    consumer: Consumer
    idle: Consumer
    """A consumer without a subscription, which keeps positions on its machine."""
    admin: Admin
    broker: str
    """Address of broker a."""
    sent: Sent


Call = Callable[[Clients], Awaitable[Any]]


def stopped(clients: Clients, listening: Awaitable[None]) -> Awaitable[None]:
    """Return a call of `listen` that ends at once."""

    async def listen() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop)
            await listening

    async def stop() -> None:
        await trio.testing.wait_all_tasks_blocked()
        clients.consumer.stop_listening()

    return listen()


async def ignore(message: object) -> None:
    await trio.lowlevel.checkpoint()


LISTENING: dict[str, Any] = {"workers": 1, "max_retries": 1, "timeout_s": 1.0}
CALLS: dict[str, Call] = {
    "Producer.send": lambda c: c.producer.send(MESSAGE),
    "Producer.send_batch": lambda c: c.producer.send_batch([MESSAGE]),
    "Producer.send_oneway": lambda c: c.producer.send_oneway(MESSAGE),
    "Producer.queues": lambda c: c.producer.queues("T"),
    "Consumer.__anext__": lambda c: anext(c.consumer),
    "Consumer.queues": lambda c: c.consumer.queues("T"),
    "Consumer.pull": lambda c: c.consumer.pull(QUEUE, 0),
    "Consumer.subscribe": lambda c: c.consumer.subscribe("T", start="first"),
    "Consumer.assign": lambda c: c.consumer.assign([QUEUE], start="first"),
    "Consumer.unsubscribe": lambda c: c.consumer.unsubscribe("Other"),
    "Consumer.poll": lambda c: c.consumer.poll(),
    "Consumer.listen": lambda c: stopped(c, c.consumer.listen(ignore, workers=1)),
    "Consumer.listen_by": lambda c: stopped(c, c.consumer.listen_by(here(ignore), **LISTENING)),
    "Consumer.seek_to_time": lambda c: c.consumer.seek_to_time(QUEUE, 0),
    "Consumer.lag": lambda c: c.consumer.lag(),
    "Consumer.commit": lambda c: c.consumer.commit(),
    "Consumer.commit of nothing": lambda c: c.consumer.commit({}),
    "Consumer.committed": lambda c: c.consumer.committed(QUEUE),
    "Consumer.lag of no queue": lambda c: c.idle.lag(),
    "Consumer.committed on this machine": lambda c: c.idle.committed(QUEUE),
    "Admin.create_topic": lambda c: c.admin.create_topic("T"),
    "Admin.delete_topic": lambda c: c.admin.delete_topic("Other"),
    "Admin.topics": lambda c: c.admin.topics(),
    "Admin.route": lambda c: c.admin.route("T"),
    "Admin.topic_config": lambda c: c.admin.topic_config("T", "a"),
    "Admin.topic_configs": lambda c: c.admin.topic_configs(c.broker),
    "Admin.cluster": lambda c: c.admin.cluster(),
    "Admin.masters": lambda c: c.admin.masters(),
    "Admin.runtime_info": lambda c: c.admin.runtime_info(c.broker),
    "Admin.failover_groups": lambda c: c.admin.failover_groups(),
    "Admin.hand_over": lambda c: c.admin.hand_over(c.broker, "a", to=-1, epoch=1),
    "Admin.force_leader": lambda c: c.admin.force_leader("a", 1),
    "Admin.ask": lambda c: c.admin.ask(c.broker, Code.GET_BROKER_RUNTIME_INFO, what="state"),
    "Admin.broker_config": lambda c: c.admin.broker_config(c.broker),
    "Admin.change_broker_config": lambda c: c.admin.change_broker_config(c.broker, {}),
    "Admin.wipe_write_permission": lambda c: c.admin.wipe_write_permission("b"),
    "Admin.add_write_permission": lambda c: c.admin.add_write_permission("b"),
    "Admin.groups": lambda c: c.admin.groups(),
    "Admin.create_group": lambda c: c.admin.create_group(SubscriptionGroupConfig(group_name="h")),
    "Admin.delete_group": lambda c: c.admin.delete_group("h"),
    "Admin.group_members": lambda c: c.admin.group_members("cg"),
    "Admin.message": lambda c: c.admin.message(c.sent.offset_ids[0]),
    "Admin.messages_by_unique_key": lambda c: c.admin.messages_by_unique_key("T", "ID"),
    "Admin.messages_by_key": lambda c: c.admin.messages_by_key("T", "k"),
    "QueueOffsets.committed": lambda c: c.admin.offsets.committed("cg", QUEUE),
    "QueueOffsets.commit": lambda c: c.admin.offsets.commit("cg", QUEUE, 0),
    "QueueOffsets.min_offset": lambda c: c.admin.offsets.min_offset(QUEUE),
    "QueueOffsets.max_offset": lambda c: c.admin.offsets.max_offset(QUEUE),
    "QueueOffsets.offset_at": lambda c: c.admin.offsets.offset_at(QUEUE, 0),
}
"""Calls of each coroutine with an outcome that no earlier one changes."""


def public_coroutines() -> set[str]:
    """Return the public coroutine functions of the clients; opening and closing apart."""
    return {
        f"{kind.__name__}.{name}"
        for kind in CLASSES
        for name, member in vars(kind).items()
        if inspect.iscoroutinefunction(member) and (not name.startswith("_") or name == "__anext__")
    }


def test_every_public_coroutine_is_called_here() -> None:
    assert public_coroutines() == {name.partition(" ")[0] for name in CALLS}


@asynccontextmanager
async def open_clients(world: World) -> AsyncIterator[Clients]:
    async with (
        Producer(world, nameservers=NAMESERVERS, group="pg") as producer,
        Consumer(world, nameservers=NAMESERVERS, group="cg") as consumer,
        Consumer(world, nameservers=NAMESERVERS, group="ig", broadcast="/positions") as idle,
        Admin(world, nameservers=NAMESERVERS) as admin,
    ):
        await admin.create_topic("T")
        await admin.create_topic("Other")
        await producer.send(MESSAGE, queue=QUEUE)
        sent = await producer.send(MESSAGE, queue=QUEUE)
        assert isinstance(sent, Sent)
        await consumer.subscribe("T", start="first")
        data = await admin.cluster()
        broker = data.broker_addr_table["a"].broker_addrs[0]
        yield Clients(producer, consumer, idle, admin, broker, sent)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_is_a_checkpoint(name: str) -> None:
    async def main(world: World) -> None:
        async with open_clients(world) as clients:
            with trio.testing.assert_checkpoints(), suppress(RequestRefused):
                await CALLS[name](clients)

    run_beside_brokers(main)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_raises_cancelled_before_it_does_anything(name: str) -> None:
    async def main(world: World) -> None:
        async with open_clients(world) as clients:
            await trio.sleep(1)  # messages are here, routes known and connections open
            with trio.CancelScope() as scope:
                scope.cancel()
                await CALLS[name](clients)
            assert scope.cancelled_caught

    run_beside_brokers(main)


def run_beside_brokers(main: Callable[[World], Awaitable[None]]) -> None:
    with SimCluster() as cluster:
        cluster.start("a-0", "b-0")
        cluster.simulation.run(1)
        cluster.run(main)


def test_loop_of_one_way_sends_can_be_cancelled() -> None:
    async def main(world: World) -> int:
        count = 0
        async with open_clients(world) as clients:
            with trio.CancelScope() as scope:
                while count < 10:
                    await clients.producer.send_oneway(MESSAGE)
                    count += 1
                    if count == 3:
                        scope.cancel()
        return count

    with SimCluster() as cluster:
        cluster.start("a-0")
        cluster.simulation.run(1)
        assert cluster.run(main) == 3
