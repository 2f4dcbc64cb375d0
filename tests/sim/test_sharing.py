"""Members of a group share the queues of a topic out among themselves (wire.md 6.3)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from random import Random
from typing import Any

import pytest
import trio

from rocketbed.client.admin import Admin
from rocketbed.client.consumer import Consumer
from rocketbed.client.errors import NoNameserver
from rocketbed.client.messages import Message, Received
from rocketbed.client.outcome import Sent
from rocketbed.client.producer import Producer
from rocketbed.client.routes import Route
from rocketbed.client.subscriptions import SHARE_S
from rocketbed.wire.bodies import MessageQueue
from rocketbed.world.api import World
from tests.support.sim.client_cluster import NAMESERVERS, SimCluster


def consumer(world: World, **options: Any) -> Consumer:
    return Consumer(world, nameservers=NAMESERVERS, group="cg", **options)


async def settle(*members: Consumer, queues: int) -> list[set[MessageQueue]]:
    """Wait until the members have all queues, each of them once; return the assignment."""
    with trio.fail_after(60):
        while True:
            parts = [set(member.positions()) for member in members]
            if len(set().union(*parts)) == queues == sum(map(len, parts)):
                return parts
            await trio.sleep(0.1)


@asynccontextmanager
async def topic(world: World, queues: int) -> AsyncIterator[Producer]:
    async with (
        Admin(world, nameservers=NAMESERVERS) as upkeep,
        Producer(world, nameservers=NAMESERVERS) as sender,
    ):
        await upkeep.create_topic("T", queues=queues)
        yield sender


def run_cluster(main: Any, *names: str, seed: int = 0) -> None:
    with SimCluster(seed=seed) as cluster:
        cluster.start(*(names or ("a-0", "b-0")))
        cluster.simulation.run(1)
        cluster.run(main)


@pytest.mark.parametrize("allocation", ["average", "circle", "consistent_hash"])
def test_members_that_come_and_go_share_all_queues(allocation: Any) -> None:
    async def main(world: World) -> None:
        async with topic(world, 8), consumer(world, allocation=allocation) as first:
            await first.subscribe("T")
            assert len(first.positions()) == 16
            async with consumer(world, allocation=allocation) as second:
                await second.subscribe("T")
                parts = await settle(first, second, queues=16)
                if allocation != "consistent_hash":
                    assert [len(part) for part in parts] == [8, 8]
                async with consumer(world, allocation=allocation) as third:
                    await third.subscribe("T")
                    await settle(first, second, third, queues=16)
                began = trio.current_time()
                assert await settle(first, second, queues=16) == parts
                assert trio.current_time() - began < 1  # a broker tells who left
            await settle(first, queues=16)

    run_cluster(main)


@pytest.mark.parametrize("seed", range(0, 200, 20))
def test_members_joining_together_learn_of_each_other(seed: int) -> None:
    """A notice that came in between was for a topic that was not shared yet, and the next look at
    the members is 10 s later."""

    async def main(world: World) -> None:
        async with topic(world, 8):
            members: list[Consumer] = []

            async def stay(after_s: float) -> None:
                await trio.sleep(after_s)
                async with consumer(world) as member:
                    members.append(member)
                    await member.subscribe("T")
                    await trio.sleep_forever()

            async with trio.open_nursery() as nursery:
                for number in range(3):
                    nursery.start_soon(stay, number * (seed + 1) / 1000)
                began = trio.current_time()
                await trio.sleep(1)
                await settle(*members, queues=16)
                assert trio.current_time() - began < SHARE_S / 2
                nursery.cancel_scope.cancel()

    run_cluster(main, seed=seed)


def test_more_members_than_queues() -> None:
    async def main(world: World) -> None:
        async with (
            topic(world, 1),
            consumer(world) as first,
            consumer(world) as two,
            consumer(world) as three,
        ):
            members = [first, two, three]
            for member in members:
                await member.subscribe("T")
            parts = await settle(*members, queues=2)
            assert sorted(map(len, parts)) == [0, 1, 1]
            idle = members[[len(part) for part in parts].index(0)]
            assert await idle.poll(timeout_s=5) == []

    run_cluster(main)


def test_queue_without_commits_begins_where_the_group_began() -> None:
    """RocketMQ's clients begin at the end there, and what came meanwhile is lost."""

    async def main(world: World) -> None:
        async with topic(world, 1) as sender:
            await sender.send(Message("T", b"old"))
            async with consumer(world) as first:
                await first.subscribe("T")
                await sender.send(Message("T", b"new"))
                await sender.send(Message("T", b"newer"))
                assert (await first.poll())[0].body == b"new"
            async with consumer(world) as second:
                await second.subscribe("T")
                messages = [await anext(second), await anext(second)]
            assert [message.body for message in messages] == [b"new", b"newer"]

    run_cluster(main, "a-0")


def test_task_does_not_commit_messages_of_another() -> None:
    async def main(world: World) -> None:
        async with topic(world, 1) as sender, consumer(world) as reader:
            await reader.subscribe("T", start="first")
            for number in range(6):
                await sender.send(Message("T", b"%d" % number))
            (queue,) = reader.positions()
            first = await anext(reader)
            assert reader.position(queue) == 1

            async def read_two() -> None:
                messages = [await anext(reader), await anext(reader)]
                assert [message.body for message in messages] == [b"1", b"2"]
                await reader.commit()
                assert await reader.committed(queue) in (None, 0)
                reader.finish(first)
                await reader.commit()
                assert await reader.committed(queue) == 3

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read_two)
            assert [(await anext(reader)).body for _ in range(3)] == [b"3", b"4", b"5"]
            await reader.commit()
            assert await reader.committed(queue) == 6

    run_cluster(main, "a-0")


def test_pause_resume_time_lag_and_unsubscribe() -> None:
    async def main(world: World) -> None:
        async with topic(world, 1) as sender, consumer(world, auto_commit_s=60) as reader:
            await reader.subscribe("T", start="first")
            for number in range(6):
                await sender.send(Message("T", b"%d" % number))
                await trio.sleep(1)
            (queue,) = reader.positions()
            third = (await reader.pull(queue, 2)).messages[0]
            assert (await anext(reader)).body == b"0"
            assert await reader.lag() == {queue: 5}
            reader.pause(queue)
            assert await reader.poll(timeout_s=30) == []
            reader.resume(queue)
            assert (await anext(reader)).body == b"1"
            await reader.seek_to_time(queue, third.stored_ms)
            assert [m.body for m in await reader.poll()] == [b"2", b"3", b"4", b"5"]
            reader.seek(queue, 4)
            assert (await anext(reader)).body == b"4"
            await reader.unsubscribe("T")
            assert await reader.committed(queue) == 4  # the message in hand is not dealt with

    run_cluster(main, "a-0")


@pytest.mark.parametrize("seed", range(4))
def test_stopping_members_repeat_nothing_and_cut_ones_lose_nothing(seed: int) -> None:
    """Members come, stop in an orderly way, are cancelled, or are gone without a word."""

    async def main(world: World) -> None:
        random, received = Random(seed), list[Received]()
        sent = set[bytes]()
        is_over = False

        async def send(sender: Producer) -> None:
            nonlocal is_over
            for number in range(400):
                body = b"%d" % number
                assert isinstance(await sender.send(Message("T", body)), Sent)
                sent.add(body)
                await trio.sleep(0.05)
            is_over = True

        async def member(lives: int) -> None:
            for _ in range(lives):
                with trio.move_on_after(random.uniform(2, 9)) as scope:
                    async with consumer(world, auto_commit_s=0.5) as reader:
                        await reader.subscribe("T", start="first")
                        async for message in reader:
                            received.append(message)
                            await trio.sleep(random.uniform(0, 0.02))
                assert scope.cancelled_caught

        async with topic(world, 3) as sender, trio.open_nursery() as nursery:
            nursery.start_soon(send, sender)
            for lives in (1, 2, 3, 4):
                nursery.start_soon(member, lives)
        async with consumer(world) as reader_left:
            await reader_left.subscribe("T", start="first")
            while polled := await reader_left.poll(timeout_s=SHARE_S):
                received.extend(polled)
        assert is_over
        bodies = [message.body for message in received]
        assert set(bodies) == sent
        # A message in hand when its queue went to another member, or its member was cancelled.
        assert len(bodies) - len(sent) < 60, len(bodies)

    run_cluster(main, seed=seed)


@pytest.mark.parametrize("gap_ms", range(0, 260, 40))
def test_member_leaving_during_a_takeover_keeps_no_lock(gap_ms: int) -> None:
    """A queue that it had locked, and had not begun to read, was not consumed for a minute."""

    async def main(world: World) -> None:
        async with topic(world, 4), consumer(world, ordered=True) as stays:
            await stays.subscribe("T")
            async with consumer(world, ordered=True) as second:
                await second.subscribe("T")
                async with consumer(world, ordered=True) as first:
                    await first.subscribe("T")
                    await settle(stays, second, first, queues=8)
                await trio.sleep(gap_ms / 1000)
            began = trio.current_time()
            await settle(stays, queues=8)
            assert trio.current_time() - began < 5

    run_cluster(main, seed=gap_ms)


@pytest.mark.parametrize("after_ms", range(0, 420, 60))
def test_cancelled_subscription_keeps_no_lock(after_ms: int) -> None:
    async def main(world: World) -> None:
        async with topic(world, 4), consumer(world, ordered=True) as first:
            await first.subscribe("T")
            async with consumer(world, ordered=True) as second:
                with trio.move_on_after(after_ms / 1000):
                    await second.subscribe("T")
            began = trio.current_time()
            await settle(first, queues=8)
            assert trio.current_time() - began < 5

    run_cluster(main, seed=after_ms)


def test_locks_are_kept_while_nameservers_hang() -> None:
    """A broker keeps a lock for a minute; asking for 30 routes took longer."""

    async def main(world: World) -> None:
        query_times: dict[str, list[float]] = {}
        async with (
            Admin(world, nameservers=NAMESERVERS) as upkeep,
            consumer(world, ordered=True) as member,
        ):
            for number in range(30):
                await upkeep.create_topic(f"T{number}", queues=1)
                await member.subscribe(f"T{number}")
            locks = member._subscriptions._locks
            assert locks is not None
            hold = locks.hold

            async def hold_and_note(route: Route, queues: list[MessageQueue]) -> list[MessageQueue]:
                query_times.setdefault(route.topic, []).append(trio.current_time())
                return await hold(route, queues)

            async def hang(*_: object, **__: object) -> None:
                await trio.sleep(3.3)
                raise NoNameserver("hangs")

            locks.hold = hold_and_note  # type: ignore[method-assign,assignment]
            member._session.nameservers.read = hang  # type: ignore[method-assign,assignment]
            await trio.sleep(90)
        assert len(query_times) == 30
        for times in query_times.values():
            assert len(times) > 2
            assert max(later - earlier for earlier, later in pairwise(times)) < 30

    run_cluster(main, "a-0")
