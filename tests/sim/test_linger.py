"""Sends that wait for others and go as one batch, and the limit of what is under way."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import pytest
import trio
import trio.testing

from rocketbed.client.consumer import Consumer
from rocketbed.client.errors import BadMessage
from rocketbed.client.memory import Memory
from rocketbed.client.messages import Message, Received
from rocketbed.client.outcome import Outcome, Refused, Sent, Unknown
from rocketbed.client.producer import Producer
from rocketbed.wire.bodies import MessageQueue
from rocketbed.wire.codes import ResponseCode
from rocketbed.world.api import World
from tests.support.sim.client_cluster import NAMESERVERS, SimCluster

COUNT = 100


def producer(world: World, **options: Any) -> Producer:
    settings = {"linger_s": 0.02, **options}
    return Producer(world, nameservers=NAMESERVERS, group="pg", **settings)


async def send_all(sender: Producer, messages: list[Message], **options: Any) -> list[Outcome]:
    """Send all at once; return outcomes in the order of the messages."""
    outcomes: dict[int, Outcome] = {}

    async def send(number: int, message: Message) -> None:
        outcomes[number] = await sender.send(message, **options)

    async with trio.open_nursery() as nursery:
        for number, message in enumerate(messages):
            nursery.start_soon(send, number, message)
    return [outcomes[number] for number in range(len(messages))]


async def read_all(world: World) -> list[Received]:
    messages_read: list[Received] = []
    async with Consumer(world, nameservers=NAMESERVERS, group="cg") as reader:
        await reader.subscribe("T", start="first")
        while messages := await reader.poll(timeout_s=10):
            messages_read += messages
    return messages_read


def place_of(outcome: Outcome) -> tuple[Any, ...]:
    assert isinstance(outcome, Sent), outcome
    return outcome.queue, outcome.queue_offset, outcome.message_id, outcome.offset_id


@pytest.mark.parametrize("order_key", [None, "key"])
def test_each_message_of_a_batch_gets_its_place(order_key: str | None) -> None:
    bodies = [b"%d" % number for number in range(COUNT)]

    async def main(world: World) -> tuple[list[Outcome], list[Received], float]:
        async with producer(world) as sender:
            await sender.send(Message("T", b"first"), order_key=order_key)
            began = trio.current_time()
            messages = [Message("T", body, tag="even" if len(body) % 2 else "") for body in bodies]
            outcomes = await send_all(sender, messages, order_key=order_key)
            took_s = trio.current_time() - began
        return outcomes, await read_all(world), took_s

    with SimCluster() as cluster:
        cluster.start("a-0")
        cluster.simulation.run(1)
        outcomes, messages_read, took_s = cluster.run(main)
    assert 0.02 <= took_s < 0.2
    places = {place_of(outcome): body for outcome, body in zip(outcomes, bodies, strict=True)}
    assert places == {
        (one.queue, one.queue_offset, one.message_id, one.offset_id): one.body
        for one in messages_read
        if one.body != b"first"
    }
    # One batch, in the order of the calls, in one queue.
    assert len({place[0] for place in places}) == 1
    offsets = [place[1] for place in map(place_of, outcomes)]
    assert sorted(offsets) == list(range(min(offsets), min(offsets) + COUNT))


@pytest.mark.parametrize("seed", range(3))
def test_killed_master_loses_no_batch_sent(seed: int) -> None:
    outcomes: dict[bytes, Outcome] = {}
    stopping: list[bool] = []

    async def send(world: World) -> None:
        async def produce(number: int) -> None:
            count = 0
            while not stopping:
                body = b"%d/%d" % (number, count)
                count += 1
                outcomes[body] = await sender.send(Message("T", body))

        async with producer(world, linger_s=0.004) as sender, trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(produce, number)

    with SimCluster(seed) as cluster:
        cluster.start("a-0", "a-1", sync=True)
        cluster.simulation.run(2)
        program = cluster.program(send)
        for pause_s in (0.3, 0.5):
            cluster.simulation.run(pause_s + 0.01 * seed)
            cluster.simulation.kill("a-0")
            cluster.simulation.run(0.2)
            cluster.start("a-0")
        cluster.simulation.run(2)
        stopping.append(True)
        cluster.simulation.run(60, until=lambda: program.done)
        program.value()
        counts = Counter(one.body for one in cluster.run(read_all))
    assert len(outcomes) > 1000
    for body, outcome in outcomes.items():
        if isinstance(outcome, Sent):
            assert counts[body] == 1 or (counts[body] > 1 and outcome.may_be_double)
        elif isinstance(outcome, Refused):
            assert not counts[body]


def test_unaccepted_message_is_refused_alone() -> None:
    """The brokers here take 16 KiB at once."""

    async def main(world: World) -> tuple[list[Outcome], int]:
        async with producer(world, batch_bytes=1 << 20) as sender:
            too_large = [Message("T", bytes(17 << 10)), Message("T", b"x")]
            outcomes = await send_all(sender, too_large)
            outcomes += await send_all(sender, [Message("T", bytes(10 << 10))] * 2)
            with pytest.raises(BadMessage, match="properties take"):
                await sender.send(Message("T", b"x", properties={"p": "x" * 40_000}))
            for delayed in (Message("T", b"late", delay_level=1), Message("T", b"soon")):
                await sender.send(delayed)
        return outcomes, len(await read_all(world))

    with SimCluster() as cluster:
        cluster.start("a-0")
        cluster.simulation.run(1)
        outcomes, count = cluster.run(main)
    refused, *sent = outcomes
    assert isinstance(refused, Refused)
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert len({place_of(outcome) for outcome in sent}) == 3
    assert count == 5


def test_cancelled_message_is_not_sent_and_others_are() -> None:
    async def main(world: World) -> tuple[list[Outcome], set[bytes]]:
        outcomes: list[Outcome] = []

        async def send(body: bytes, limit_s: float) -> None:
            with trio.move_on_after(limit_s):
                outcomes.append(await sender.send(Message("T", body)))

        async with producer(world, linger_s=0.5) as sender, trio.open_nursery() as nursery:
            nursery.start_soon(send, b"cancelled", 0.1)
            nursery.start_soon(send, b"kept", 9.0)
        return outcomes, {one.body for one in await read_all(world)}

    with SimCluster() as cluster:
        cluster.start("a-0")
        cluster.simulation.run(1)
        outcomes, bodies_read = cluster.run(main)
    assert [type(outcome) for outcome in outcomes] == [Sent]
    assert bodies_read == {b"kept"}


@pytest.mark.parametrize("how", ["end", "cancel"])
def test_closing_producer_sends_lingering_messages_at_once(how: str) -> None:
    async def main(world: World) -> tuple[Outcome, float]:
        outcomes: list[Outcome] = []

        async def send(sender: Producer) -> None:
            outcomes.append(await sender.send(Message("T", b"x")))

        async with trio.open_nursery() as outer:
            with trio.CancelScope() as scope:
                async with producer(world, linger_s=5.0, timeout_s=20.0) as sender:
                    outer.start_soon(send, sender)
                    await trio.sleep(0.1)
                    began = trio.current_time()
                    if how == "cancel":
                        scope.cancel()
        return outcomes[0], trio.current_time() - began

    with SimCluster() as cluster:
        cluster.start("a-0")
        cluster.simulation.run(1)
        outcome, took_s = cluster.run(main)
    assert took_s < 1
    assert isinstance(outcome, Sent if how == "end" else Refused)


def test_sends_wait_while_too_much_is_under_way() -> None:
    async def main(world: World) -> list[Outcome]:
        outcomes: list[Outcome] = []

        async def send(number: int) -> None:
            body = bytes([number]) * 10_000
            outcomes.append(await sender.send(Message("T", body), timeout_s=1.0 + number))

        async with producer(world, linger_s=0.0, memory_max=25_000) as sender:
            await sender.send(Message("T", b"first"))
            cluster.simulation.pause("a-0")
            async with trio.open_nursery() as nursery:
                for number in range(4):
                    nursery.start_soon(send, number)
                await trio.sleep(0.5)
                assert sender._memory.in_use == 20_000
            cluster.simulation.resume("a-0")
            outcomes.append(await sender.send(Message("T", bytes(16_000))))
            assert sender._memory.in_use == 0
        return outcomes

    with SimCluster() as cluster:
        cluster.start("a-0")
        cluster.simulation.run(1)
        *waited, last = cluster.run(main)
    assert isinstance(last, Sent)
    assert all(isinstance(outcome, Unknown | Refused) for outcome in waited)


class Choosy:
    """A selector that refuses at its second choice."""

    def __init__(self) -> None:
        self.chosen = 0

    def choose(
        self, queues: Sequence[MessageQueue], avoid: str | None, now_s: float
    ) -> MessageQueue:
        self.chosen += 1
        if self.chosen == 2:
            raise KeyError("own")
        return queues[0]

    def record(self, broker: str, latency_ms: float, *, failed: bool, now_s: float) -> None:
        pass


def test_raising_selector_fails_only_its_own_senders() -> None:
    async def main(world: World) -> list[Outcome]:
        async with producer(world, select=Choosy()) as sender:
            with pytest.raises(BadMessage, match="an order key is text"):
                await sender.send(Message("T", b"x"), order_key=cast("str", 7))
            outcomes = await send_all(sender, [Message("T", b"0"), Message("T", b"1")])
            failed = pytest.RaisesExc(KeyError)
            with pytest.RaisesGroup(failed, failed):
                await send_all(sender, [Message("T", b"2"), Message("T", b"3")])
            return [*outcomes, await sender.send(Message("T", b"4"))]

    with SimCluster() as cluster:
        cluster.start("a-0")
        cluster.simulation.run(1)
        assert all(isinstance(outcome, Sent) for outcome in cluster.run(main))


def test_after_the_end_nothing_is_sent() -> None:
    async def main(world: World) -> list[Outcome]:
        async with producer(world) as sender:
            await sender.send(Message("T", b"0"))
        return [await sender.send(Message("T", b"1")) for _ in range(2)]

    with SimCluster() as cluster:
        cluster.start("a-0")
        cluster.simulation.run(1)
        outcomes = cluster.run(main)
    reasons = {outcome.reason for outcome in outcomes if isinstance(outcome, Refused)}
    assert reasons == {"the client is closed"}
    assert len(outcomes) == 2


def test_waiter_for_memory_does_not_hurry_others() -> None:
    """They would fail with it, on a healthy broker."""

    async def main(world: World) -> list[Outcome]:
        outcomes: list[Outcome] = []
        async with producer(world, linger_s=0.05, memory_max=2000, timeout_s=1.0) as sender:

            async def send(size: int, after_s: float, timeout_s: float) -> None:
                await trio.sleep(after_s)
                outcome = await sender.send(Message("T", bytes(size)), timeout_s=timeout_s)
                outcomes.append(outcome)

            await sender.send(Message("T", b"first"))
            cluster.simulation.pause("a-0")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send, 1500, 0.0, 0.98)
                nursery.start_soon(send, 600, 0.0, 1.0)  # its turn comes with the end of the first
                for _ in range(3):
                    nursery.start_soon(send, 10, 0.99, 1.0)
                await trio.sleep(0.985)
                cluster.simulation.resume("a-0")
        return outcomes[-3:]

    with SimCluster() as cluster:
        cluster.start("a-0")
        cluster.simulation.run(1)
        assert all(isinstance(outcome, Sent) for outcome in cluster.run(main))


def test_memory_is_granted_in_order_and_not_after_leaving() -> None:
    async def main() -> list[str]:
        memory, order, over = Memory(10), list[str](), trio.Event()

        async def take(name: str, size: int, scope: trio.CancelScope) -> None:
            with scope:
                size_taken = await memory.take(size)
                order.append(name)
                await over.wait()
                memory.give(size_taken)

        scopes = {name: trio.CancelScope() for name in "abcde"}
        async with trio.open_nursery() as nursery:
            for name, size in (("a", 6), ("b", 99), ("c", 1), ("d", 3), ("e", 99)):
                nursery.start_soon(take, name, size, scopes[name])
                await trio.testing.wait_all_tasks_blocked()
            assert order == ["a"]
            scopes["b"].cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert order[0] == "a"
            assert set(order[1:]) == {"c", "d"}
            over.set()
        assert memory.in_use == 0
        return order

    assert trio.run(main)[-1] == "e"
