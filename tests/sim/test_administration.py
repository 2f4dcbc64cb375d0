"""Ordinary acts of an operator while clients run: none of them ends a consumer or loses a message
that is sent afterwards."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from rocketbed.client.admin import Admin
from rocketbed.client.consumer import Consumer
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Outcome, Sent
from rocketbed.client.producer import Producer
from rocketbed.wire.bodies import MessageQueue
from rocketbed.world.api import World
from tests.support.sim.client_cluster import NAMESERVERS, SimCluster

QUEUES = 4
COUNT = 40
PAUSE_S = 15.0
"""Pause of an act that is taken back: longer than a share, and than a refusal may last."""
HOLD_S = 0.5
"""Time of a long poll: shorter than a share, so that a broker refuses a queue before the route is
looked at again."""

Act = Callable[[Admin], Awaitable[Any]]


async def fewer_queues(operator: Admin) -> None:
    await operator.create_topic("T", queues=1)


async def more_queues(operator: Admin) -> None:
    await operator.create_topic("T", queues=2 * QUEUES)


async def made_again(operator: Admin) -> None:
    await operator.delete_topic("T")
    await trio.sleep(PAUSE_S)
    await operator.create_topic("T", queues=QUEUES)


async def made_again_at_once(operator: Admin) -> None:
    await operator.delete_topic("T")
    await operator.create_topic("T", queues=QUEUES)


async def write_only(operator: Admin) -> None:
    await operator.create_topic("T", queues=QUEUES, perm=2)
    await trio.sleep(PAUSE_S)
    await operator.create_topic("T", queues=QUEUES)


async def closed(operator: Admin) -> None:
    await operator.create_topic("T", queues=QUEUES, perm=0)
    await trio.sleep(PAUSE_S)
    await operator.create_topic("T", queues=QUEUES)


async def group_deleted(operator: Admin) -> None:
    await operator.delete_group("cg")


ACTS = (
    fewer_queues,
    more_queues,
    made_again,
    made_again_at_once,
    write_only,
    closed,
    group_deleted,
)


async def send_all(sender: Producer, bodies: list[bytes]) -> None:
    """Send each message until a broker has it."""
    for body in bodies:
        outcome: Outcome | None = None
        with trio.fail_after(60):
            while not isinstance(outcome, Sent):
                outcome = await sender.send(Message("T", body))


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize("start", ["first", "last"])
@pytest.mark.parametrize("act", ACTS)
def test_consumer_goes_on_after(act: Act, start: Any, is_ordered: bool) -> None:
    before = [b"before %d" % number for number in range(COUNT)]
    after = [b"after %d" % number for number in range(COUNT)]
    received: dict[bytes, None] = {}

    async def read(reader: Consumer) -> None:
        async for message in reader:
            received[message.body] = None

    async def arrive(bodies: list[bytes]) -> None:
        with trio.fail_after(60):
            while not received.keys() >= set(bodies):  # noqa: ASYNC110, in virtual time
                await trio.sleep(0.1)

    async def main(world: World) -> None:
        async with (
            Admin(world, nameservers=NAMESERVERS) as operator,
            Producer(world, nameservers=NAMESERVERS, group="pg") as sender,
            Consumer(
                world,
                nameservers=NAMESERVERS,
                group="cg",
                auto_commit_s=0.5,
                hold_s=HOLD_S,
                ordered=is_ordered,
            ) as reader,
            trio.open_nursery() as nursery,
        ):
            await operator.create_topic("T", queues=QUEUES)
            await reader.subscribe("T", start=start)
            nursery.start_soon(read, reader)
            await send_all(sender, before)
            await arrive(before)
            await act(operator)
            await send_all(sender, after)
            await arrive(after)
            nursery.cancel_scope.cancel()

    with SimCluster() as cluster:
        cluster.start("a-0", "b-0")
        cluster.simulation.run(1)
        cluster.run(main, seconds=300)


def test_withdrawn_queue_is_named_once_in_the_log() -> None:
    queue = MessageQueue(topic="T", broker_name="a", queue_id=3)

    async def main(world: World) -> None:
        async with (
            Admin(world, nameservers=NAMESERVERS) as operator,
            Consumer(world, nameservers=NAMESERVERS, group="cg", hold_s=HOLD_S) as reader,
        ):
            await operator.create_topic("T", queues=QUEUES)
            await reader.subscribe("T", start="first")
            await operator.create_topic("T", queues=queue.queue_id)
            assert await reader.poll(timeout_s=60) == []
            assert len(reader.positions()) == queue.queue_id

    with SimCluster() as cluster:
        cluster.start("a-0")
        cluster.simulation.run(1)
        cluster.run(main, seconds=300)
        lines = [line for line in cluster.simulation.log if "queue_withdrawn" in str(line)]
        assert len(lines) == 1
        assert "queue 3 of topic T at a" in str(lines[0])
