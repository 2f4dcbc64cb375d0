"""A function for each message: what it cannot handle comes again, or to the dead letters."""

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

import pytest
import trio

from rocketbed.client.admin import Admin
from rocketbed.client.consumer import Consumer
from rocketbed.client.errors import BadMessage, ClientError
from rocketbed.client.messages import Message, Received
from rocketbed.client.outcome import Sent
from rocketbed.client.producer import Producer
from rocketbed.wire.bodies import MessageQueue
from rocketbed.world.api import World
from tests.support.sim.client_cluster import NAMESERVERS, SimCluster

Heard = list[Received]


def run_cluster(main: Callable[[World], Awaitable[Any]], *names: str) -> None:
    with SimCluster() as cluster:
        cluster.start(*(names or ("a-0",)))
        cluster.simulation.run(1)
        cluster.run(main, seconds=3600)


async def send(world: World, *bodies: bytes, queues: int = 2, attributes: str = "") -> None:
    async with (
        Admin(world, nameservers=NAMESERVERS) as admin,
        Producer(world, nameservers=NAMESERVERS) as sender,
    ):
        await admin.create_topic("T", queues=queues, attributes=attributes or None)
        messages = [Message("T", body, tag="A", keys=["k"], flag=7) for body in bodies]
        outcomes = (
            [await sender.send_batch(messages)]
            if attributes
            else [await sender.send(message) for message in messages]
        )
        assert {type(outcome) for outcome in outcomes} == {Sent}


async def one_send(body: bytes, world: World) -> str | None:
    """Send a message; return its offset id."""
    async with Producer(world, nameservers=NAMESERVERS, timeout_s=10) as sender:
        outcome = await sender.send(Message("T", body))
        assert isinstance(outcome, Sent)
        return outcome.offset_id


def consumer(world: World, group: str = "cg", **options: Any) -> Consumer:
    return Consumer(world, nameservers=NAMESERVERS, group=group, **options)


async def dead_letters(world: World) -> list[Received]:
    async with consumer(world, "undertaker") as reader:
        await reader.subscribe("%DLQ%cg", start="first")
        return [message async for message in _until_quiet(reader)]


async def _until_quiet(reader: Consumer) -> Any:
    while messages := await reader.poll(timeout_s=5):
        for message in messages:
            yield message


@pytest.mark.parametrize("attributes", ["", "+queue.type=BatchCQ"], ids=["ordinary", "batches"])
def test_unhandled_message_is_retried_and_then_dead(attributes: str) -> None:
    async def main(world: World) -> None:
        await send(world, b"good", b"late", b"bad", b"better", attributes=attributes)
        tries: Counter[bytes] = Counter()
        times: dict[bytes, list[float]] = {}

        async def handler(message: Received) -> None:
            tries[message.body] += 1
            times.setdefault(message.body, []).append(trio.current_time())
            assert (message.tag, message.keys, message.flag) == ("A", ("k",), 7)
            assert message.reconsume_times == tries[message.body] - 1
            if message.body == b"bad" or (message.body == b"late" and tries[b"late"] < 3):
                raise ValueError("no")

        async with consumer(world) as reader:
            await reader.subscribe("T", start="first")
            with trio.move_on_after(200):
                await reader.listen(handler, max_retries=2)
        assert tries == {b"good": 1, b"late": 3, b"bad": 3, b"better": 1}
        first, second, third = times[b"late"]
        assert 10 <= second - first < 23  # the retry topic is looked for every 10 s
        assert 30 <= third - second < 33
        (dead,) = await dead_letters(world)
        assert (dead.body, dead.tag, dead.flag) == (b"bad", "A", 7)
        assert dead.properties["RETRY_TOPIC"] == "T"
        async with consumer(world) as reader:
            await reader.subscribe("T", start="first")
            assert await reader.poll(timeout_s=20) == []

    run_cluster(main)


def test_hanging_function_delays_no_other_queue() -> None:
    async def main(world: World) -> None:
        await send(world, b"stuck", *(b"%d" % number for number in range(30)), queues=1)
        bodies: list[bytes] = []

        async def handler(message: Received) -> None:
            if message.body == b"stuck" and not message.reconsume_times:
                await trio.sleep_forever()
            bodies.append(message.body)

        async with consumer(world) as reader:
            await reader.subscribe("T", start="first")
            with trio.move_on_after(60):
                await reader.listen(handler, workers=2, timeout_s=20)
        assert bodies[-1] == b"stuck"
        assert sorted(bodies[:-1]) == sorted(b"%d" % number for number in range(30))

    run_cluster(main)


def test_stop_finishes_messages_in_progress() -> None:
    async def main(world: World) -> None:
        await send(world, *(b"%d" % number for number in range(60)))
        begun, done = set[bytes](), set[bytes]()

        async def handler(message: Received) -> None:
            begun.add(message.body)
            if len(begun) == 20:
                reader.stop_listening()
            await trio.sleep(1)
            done.add(message.body)

        async with consumer(world) as reader:
            await reader.subscribe("T", start="first")
            await reader.listen(handler, workers=5)
        assert begun == done
        assert 20 <= len(done) < 26
        remaining_bodies: list[bytes] = []
        async with consumer(world) as reader:
            await reader.subscribe("T", start="first")
            while messages := await reader.poll(timeout_s=5):
                remaining_bodies += [message.body for message in messages]
        assert len(remaining_bodies) == len(set(remaining_bodies)) == 60 - len(done)

    run_cluster(main)


def test_wrong_use_is_refused() -> None:
    async def handler(message: Received) -> None:
        """Is never called."""

    async def main(world: World) -> None:
        await send(world, b"x")
        async with consumer(world) as reader:
            with pytest.raises(ClientError, match="call subscribe first"):
                await reader.listen(handler)
            await reader.subscribe("T")
            for workers in (0, 2.5):
                with pytest.raises(BadMessage, match="workers must be"):
                    await reader.listen(handler, workers=workers)  # type: ignore[arg-type]
            with pytest.raises(BadMessage, match="timeout_s must be a positive"):
                await reader.listen(handler, timeout_s=float("nan"))

    run_cluster(main)


def test_a_master_that_is_killed_in_the_middle() -> None:
    """Each message is handled, though some twice: what was not committed comes again."""
    handled: Counter[bytes] = Counter()
    ready = False

    async def feed(world: World) -> None:
        nonlocal ready
        await send(world, *(b"%d" % number for number in range(400)), queues=4)
        ready = True

    async def listen(world: World) -> None:
        async def handler(message: Received) -> None:
            await trio.sleep(0.1)
            if message.physical_offset % 7 == 0 and not message.reconsume_times:
                raise ValueError("at first")
            handled[message.body] += 1

        async with consumer(world) as reader:
            await reader.subscribe("T", start="first")
            await reader.listen(handler, workers=4)

    with SimCluster() as cluster:
        cluster.start("a-0")
        cluster.simulation.run(1)
        cluster.run(feed)
        assert ready
        for number in range(2):
            cluster.simulation.start(f"app-{number}", listen)
        cluster.simulation.run(3)
        cluster.simulation.kill("a-0")
        cluster.simulation.run(2)
        cluster.start("a-0")
        cluster.simulation.run(200, until=lambda: len(handled) == 400)
        assert len(handled) == 400
        assert handled.total() < 480, handled.most_common(3)


@pytest.mark.parametrize("ordered", [False, True])
def test_lost_message_is_put_back_instead_of_its_successor(
    ordered: bool,
) -> None:
    """Its broker has another one at that offset: the function's program sends a copy (1306590)."""
    deliveries: list[tuple[bytes, int]] = []

    async def listen(world: World) -> None:
        async def handler(message: Received) -> None:
            deliveries.append((message.body, message.reconsume_times))
            if message.body == b"bad":
                await trio.sleep(20)  # meanwhile it is lost
                raise ValueError("no")

        async with consumer(world, ordered=ordered) as reader:
            await reader.subscribe("T", start="first")
            await reader.listen(handler, max_retries=1)

    with SimCluster() as cluster:
        cluster.start("a-0")
        cluster.simulation.run(1)
        cluster.run(lambda world: send(world, b"first", queues=1))
        cluster.simulation.start("app", listen)
        cluster.simulation.run(5)
        lost = cluster.run(partial(one_send, b"bad"))
        cluster.simulation.run(10, until=lambda: (b"bad", 0) in deliveries)
        cluster.simulation.power_cut("a-0", "strict")
        cluster.start("a-0")
        assert cluster.run(partial(one_send, b"new")) == lost
        cluster.simulation.run(90)
        assert [body for body, _ in deliveries] == [b"first", b"bad", b"bad"]
        (dead,) = cluster.run(dead_letters)
        assert dead.body == b"bad"


@pytest.mark.parametrize("seed", range(3))
def test_ordered_members_never_have_a_queue_at_once(seed: int) -> None:
    """Members come and go in the middle, and a message that fails holds up its queue."""
    random = Random(seed)
    busy: dict[MessageQueue, int] = {}
    handled: dict[MessageQueue, list[int]] = {}
    failed = set[tuple[MessageQueue, int]]()
    count = 300

    async def handler(message: Received) -> None:
        queue, offset = message.queue, message.queue_offset
        assert queue not in busy, f"{offset} of {queue} beside {busy[queue]}"
        busy[queue] = offset
        try:
            await trio.sleep(random.uniform(0, 0.3))
            if random.random() < 0.05 and (queue, offset) not in failed:
                failed.add((queue, offset))
                raise ValueError("not yet")
            handled.setdefault(queue, []).append(offset)
        finally:
            del busy[queue]

    async def member(world: World) -> None:
        async with consumer(world, ordered=True) as reader:
            await reader.subscribe("T", start="first")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(reader.listen, handler, workers=3))
                await trio.sleep(random.uniform(3, 12))
                reader.stop_listening()

    async def main(world: World) -> None:
        await send(world, *(b"%d" % number for number in range(count)), queues=4)

        async def lives() -> None:
            while sum(len(set(one)) for one in handled.values()) < count:
                await member(world)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(lives)

    with SimCluster(seed) as cluster:
        cluster.start("a-0")
        cluster.simulation.run(1)
        cluster.run(main, seconds=3600)
    assert failed
    for offsets in handled.values():
        steps = [after - before for before, after in pairwise(offsets)]
        assert max(steps) == 1, "a message was passed over"
        assert len(offsets) - len(set(offsets)) < 10, "too many come again"


def test_ordered_message_failing_for_ever_is_dead_at_last() -> None:
    async def main(world: World) -> None:
        await send(world, b"0", b"bad", b"2", queues=1)
        deliveries: list[tuple[bytes, int]] = []

        async def handler(message: Received) -> None:
            deliveries.append((message.body, message.reconsume_times))
            if message.body == b"bad":
                raise ValueError("no")

        async with consumer(world, ordered=True) as reader:
            await reader.subscribe("T", start="first")
            with trio.move_on_after(20):
                await reader.listen(handler, max_retries=2)
        assert deliveries == [(b"0", 0), (b"bad", 0), (b"bad", 1), (b"bad", 2), (b"2", 0)]
        assert [message.body for message in await dead_letters(world)] == [b"bad"]

    run_cluster(main)


def test_lock_of_a_vanished_member_expires() -> None:
    """A broker keeps it for a minute; one that ends in an orderly way gives it back."""

    async def main(world: World) -> None:
        await send(world, b"0", b"1", queues=1)
        async with consumer(world, ordered=True) as reader:
            await reader.subscribe("T", start="first")
            assert (await anext(reader)).body == b"0"
        async with consumer(world, ordered=True) as reader:
            await reader.subscribe("T", start="first")
            assert (await anext(reader)).body == b"0"
            reader._subscriptions._locks = None  # says nothing at its end
        began = trio.current_time()
        async with consumer(world, ordered=True) as reader:
            await reader.subscribe("T", start="first")
            assert (await anext(reader)).body == b"0"
            assert 55 < trio.current_time() - began < 65

    run_cluster(main)
