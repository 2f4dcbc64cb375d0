"""Several tasks of one consumer, and its end: nothing is passed over, nothing breaks trio."""

from collections.abc import Awaitable, Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.testing

from rocketbed.client.admin import Admin
from rocketbed.client.consumer import Consumer
from rocketbed.client.errors import BadMessage, NoRoute
from rocketbed.client.messages import Message, Received
from rocketbed.client.outcome import Sent
from rocketbed.client.producer import Producer
from rocketbed.client.progress import POLLER
from rocketbed.remoting.errors import RequestTimeout
from rocketbed.wire.bodies import MessageQueue
from rocketbed.world.api import World
from tests.support.sim.client_cluster import NAMESERVERS, SimCluster


def run_cluster(main: Callable[[World], Awaitable[Any]], *names: str) -> None:
    with SimCluster() as cluster:
        cluster.start(*(names or ("a-0",)))
        cluster.simulation.run(1)
        cluster.run(main, seconds=3600)


async def send(world: World, count: int) -> None:
    async with (
        Admin(world, nameservers=NAMESERVERS) as admin,
        Producer(world, nameservers=NAMESERVERS) as sender,
    ):
        await admin.create_topic("T", queues=1)
        for number in range(count):
            assert isinstance(await sender.send(Message("T", b"%d" % number)), Sent)


def consumer(world: World, **options: Any) -> Consumer:
    return Consumer(world, nameservers=NAMESERVERS, group="g", **options)


async def committed(world: World) -> int:
    async with consumer(world) as reader:
        (queue,) = await reader.queues("T")
        return await reader.committed(queue) or 0


def test_tasks_that_wait_pass_nothing_over() -> None:
    """A waiting task received what the queue returned after a batch before the rest of the batch,
    and the whole batch counted as processed.
    """

    async def main(world: World) -> None:
        await send(world, 10)
        got: list[bytes] = []

        async def first(reader: Consumer) -> None:
            message = await anext(reader)
            got.append(message.body)
            reader.finish(message)

        async def second(reader: Consumer) -> None:
            async for message in reader:
                got.append(message.body)
                await trio.sleep(40)

        async with consumer(world, auto_commit_s=60) as reader:
            await reader.subscribe("T", start="first")
            with trio.move_on_after(60):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(second, reader)
                    nursery.start_soon(first, reader)
        assert sorted(got) == [b"0", b"1", b"2"]
        assert await committed(world) == 2

    run_cluster(main)


def test_every_worker_of_a_listener_gets_messages() -> None:
    """Each worker returned what it did not take without waking another, and the others slept on."""

    async def main(world: World) -> None:
        await send(world, 20)
        async with consumer(world) as reader:
            await reader.subscribe("T", start="first")
            done = 0
            began = trio.current_time()

            async def handler(message: Received) -> None:
                nonlocal done
                await trio.sleep(3)
                done += 1
                if done == 20:
                    reader.stop_listening()

            await reader.listen(handler, workers=20)
            assert trio.current_time() - began < 5
        assert await committed(world) == 20

    run_cluster(main)


@pytest.mark.parametrize("how", ["end", "error", "sleep", "late", "interrupt"])
@pytest.mark.parametrize("ordered", [False, True])
def test_an_end_in_a_cancelled_scope_commits(how: str, ordered: bool) -> None:
    """Trio took it for a broken nursery, which ends the whole program."""

    async def main(world: World) -> None:
        await send(world, 3)
        with trio.CancelScope() as scope:
            try:
                async with consumer(world, auto_commit_s=60, ordered=ordered) as reader:
                    await reader.subscribe("T", start="first")
                    reader.finish(*await reader.poll())
                    if how == "late":  # a time limit passes during the last commit
                        scope.deadline = trio.current_time() + 0.0001
                    elif how != "interrupt":
                        scope.cancel()
                    if how == "error":
                        raise ValueError("own")
                    if how == "sleep":
                        await trio.sleep(1)
                    if how == "interrupt":  # a signal, while it commits
                        reader._commits.try_all = interrupted  # type: ignore[method-assign]
            except ValueError:
                assert how == "error"
            except KeyboardInterrupt:
                assert how == "interrupt"
        if how != "interrupt":
            assert await committed(world) == (1 if ordered else 3)

    async def interrupted() -> None:
        await trio.sleep(0.001)
        raise KeyboardInterrupt

    run_cluster(main)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_listener_that_is_cancelled_leaves_its_messages(ordered: bool) -> None:
    async def main(world: World) -> None:
        await send(world, 6)
        done: list[bytes] = []

        async def handler(message: Received) -> None:
            await trio.sleep(2)
            done.append(message.body)

        async with consumer(world, ordered=ordered, hold_s=1) as reader:
            await reader.subscribe("T", start="first")
            for _ in range(3):
                with trio.move_on_after(5):
                    await reader.listen(handler, workers=1)
            with trio.move_on_after(30):
                await reader.listen(handler, workers=1)
        assert done == [b"%d" % number for number in range(6)]
        assert await committed(world) == 6

    run_cluster(main)


def test_returned_message_waits_while_its_queue_is_paused() -> None:
    async def main(world: World) -> None:
        await send(world, 3)
        async with consumer(world) as reader:
            await reader.subscribe("T", start="first")
            (queue,) = reader.positions()
            polled = await reader.poll()
            reader.give_back(polled)
            reader.pause(queue)
            assert await reader.poll(timeout_s=5) == []
            batches: list[list[Received]] = []

            async def poll() -> None:
                batches.append(await reader.poll(timeout_s=5))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(poll)
                await trio.sleep(0.1)
                assert not batches
                reader.resume(queue)
            assert batches == [polled]
            await reader.commit()

    run_cluster(main)


def test_tasks_of_a_function_hold_their_own_messages() -> None:
    """They took over who their worker was, and one committed what another had in hand."""

    async def main(world: World) -> None:
        await send(world, 5)
        async with consumer(world) as reader:
            await reader.subscribe("T", start="first")
            (queue,) = reader.positions()

            async def handler(message: Received) -> None:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(hold)
                    await trio.sleep(1)
                    nursery.start_soon(take)
                    await trio.sleep(1)
                    await reader.commit()
                    positions.append(await reader.committed(queue))
                    nursery.cancel_scope.cancel()
                reader.stop_listening()

            async def hold() -> None:
                await anext(reader)
                await trio.sleep(100)

            async def take() -> None:
                await anext(reader)
                await anext(reader)

            positions: list[int | None] = []
            await reader.listen(handler, workers=1, timeout_s=50)
            assert positions == [1]

    run_cluster(main)


def test_many_tasks_that_live_are_remembered() -> None:
    """More of them than tasks that have ended are remembered for."""

    async def main(world: World) -> None:
        await send(world, 400)
        async with consumer(world) as reader:
            await reader.subscribe("T", start="first")

            async def iterate() -> None:
                async for _ in reader:
                    pass

            async with trio.open_nursery() as nursery:
                for _ in range(300):
                    nursery.start_soon(iterate)
                await trio.sleep(10)
                nursery.cancel_scope.cancel()
            await reader.commit()
            for _ in range(400):  # what a task leaves that ends without a word is forgotten
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(reader.poll)
            assert len(reader._inbox._in_hand) < 300
        assert await committed(world) >= 100

    run_cluster(main)


def test_hanging_broker_does_not_delay_commits_elsewhere() -> None:
    async def main(world: World) -> None:
        async with Admin(world, nameservers=NAMESERVERS) as admin:
            await admin.create_topic("T", queues=8)
        async with consumer(world, auto_commit_s=1) as reader:
            await reader.subscribe("T", start="first")
            hung = min(reader.positions()).broker_name
            times: list[float] = []
            commit = reader.offsets.commit

            async def slow(group: str, queue: MessageQueue, offset: int) -> None:
                if queue.broker_name == hung:
                    await trio.sleep(3)
                    raise RequestTimeout("hung")
                times.append(trio.current_time())
                await commit(group, queue, offset)

            reader.offsets.commit = slow  # type: ignore[method-assign]
            async with Producer(world, nameservers=NAMESERVERS) as sender:
                for number in range(160):
                    queue = sorted(reader.positions())[number % 16]
                    await sender.send(Message("T", b"x"), queue=queue)
                    await trio.sleep(0.2)
                    reader.finish(*await reader.poll(timeout_s=0.2))
            assert max(later - earlier for earlier, later in pairwise(times)) < 6

    run_cluster(main, "a-0", "b-0")


def test_commit_is_retried_on_its_own_connection() -> None:
    """The first one after a restart found the old connection broken."""

    async def main(world: World) -> None:
        await send(world, 3)
        async with consumer(world) as reader:
            await reader.subscribe("T", start="first")
            await reader.poll()
            for link in reader._session.connections.open_links():
                link.connection.close()
            await reader.commit()
        assert await committed(world) == 3

    run_cluster(main)


def test_finish_by_another_task_advances_an_ordered_queue() -> None:
    async def main(world: World) -> None:
        await send(world, 3)
        async with consumer(world, ordered=True) as reader:
            await reader.subscribe("T", start="first")

            for number in range(3):
                taken_messages: list[Received] = []

                async def take(messages_polled: list[Received] = taken_messages) -> None:
                    messages_polled.extend(await reader.poll(timeout_s=60))

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(take)
                assert [message.body for message in taken_messages] == [b"%d" % number]
                assert await reader.poll(timeout_s=1) == []  # it is in somebody's hand
                reader.finish(*taken_messages)
            await reader.commit()
        assert await committed(world) == 3

    run_cluster(main)


def test_concurrent_calls_of_one_task_get_separate_messages() -> None:
    """asyncio's `gather(consumer.poll(), consumer.poll())` makes two at once."""

    async def main(world: World) -> None:
        await send(world, 1)
        async with consumer(world) as reader:
            await reader.subscribe("T", start="first")
            batches: list[list[Received]] = []
            poller = object()

            async def poll() -> None:
                POLLER.set(poller)
                batches.append(await reader.poll(timeout_s=60))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(poll)
                nursery.start_soon(poll)
                await trio.testing.wait_all_tasks_blocked()
                async with Producer(world, nameservers=NAMESERVERS) as sender:
                    await sender.send(Message("T", b"1"))
            assert sorted(message.body for some in batches for message in some) == [b"0", b"1"]
            POLLER.set(poller)
            reader.give_back(batches[0])
            await reader.commit()  # the other call's is dealt with
            POLLER.set(None)
            assert await reader.poll(timeout_s=60) == batches[0]
            await reader.commit()
        assert await committed(world) == 2

    run_cluster(main)


def test_seek_discards_an_arriving_answer() -> None:
    """An answer that has arrived cannot be cancelled; it was taken for the new place's (seed
    859221).
    """

    async def main(world: World) -> None:
        await send(world, 5)
        async with consumer(world, auto_commit_s=None) as reader:
            pull, moves = reader._puller.pull, [3]

            async def pull_and_move(queue: MessageQueue, *args: Any, **options: Any) -> Any:
                pulled = await pull(queue, *args, **options)
                if moves:
                    reader.seek(queue, moves.pop())
                return pulled

            reader._puller.pull = pull_and_move  # type: ignore[method-assign]
            await reader.subscribe("T", start="first")
            assert [message.body for message in await reader.poll()] == [b"3", b"4"]
            await reader.commit()
        assert await committed(world) == 5

    run_cluster(main)


def test_a_poll_without_time_returns_what_is_here() -> None:
    async def main(world: World) -> None:
        await send(world, 3)
        async with consumer(world) as reader:
            await reader.subscribe("T", start="first")
            await trio.sleep(1)
            assert [message.body for message in await reader.poll(timeout_s=0)] == [
                b"0",
                b"1",
                b"2",
            ]
            assert await reader.poll(timeout_s=0) == []

    run_cluster(main)


def test_invalid_offset_is_refused_at_once() -> None:
    async def main(world: World) -> None:
        await send(world, 1)
        async with consumer(world) as reader:
            await reader.subscribe("T", start="first")
            (queue,) = reader.positions()
            wrong: list[Any] = [-1, 2.5, "3", None, 1 << 63]
            for offset in wrong:
                with pytest.raises(BadMessage, match="an offset must be"):
                    await reader.commit({queue: offset})
                with pytest.raises(BadMessage, match="an offset must be"):
                    reader.seek(queue, offset)
            assert len(await reader.poll()) == 1
        for seconds in (0, -1):
            with pytest.raises(BadMessage, match="auto_commit_s"):
                consumer(world, auto_commit_s=seconds)

    run_cluster(main)


@pytest.mark.parametrize("stops", [False, True])
def test_time_counts_from_when_the_function_begins(stops: bool) -> None:
    """It may wait for a thread, or for a loop that is busy; messages became dead letters that no
    function had ever seen."""

    async def main(world: World) -> None:
        await send(world, 2)
        async with consumer(world) as reader:
            await reader.subscribe("T", start="first")
            called = list[bytes]()

            async def call(message: Received, begun: Callable[[], None]) -> None:
                if stops:
                    await trio.sleep_forever()
                await trio.sleep(30)
                begun()
                called.append(message.body)

            async with trio.open_nursery() as nursery:
                listen = partial(reader.listen_by, call, workers=1, max_retries=0, timeout_s=1)
                nursery.start_soon(listen)
                await trio.sleep(70)
                assert called == ([] if stops else [b"0", b"1"])
                reader.stop_listening()
            with pytest.raises(NoRoute):
                await reader.queues("%DLQ%g")
        assert await committed(world) == (0 if stops else 2)

    run_cluster(main)


def test_stopping_listener_returns_unhandled_messages() -> None:
    """It tried again for ever, while the broker was away."""

    async def main(world: World) -> None:
        await send(world, 1)
        failed = trio.Event()

        async def handler(message: Received) -> None:
            failed.set()
            cluster.simulation.pause("a-0")
            raise ValueError("not now")

        async with consumer(world) as reader:
            await reader.subscribe("T", start="first")
            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(reader.listen, handler)
                    await failed.wait()
                    reader.stop_listening()
            cluster.simulation.resume("a-0")
        assert await committed(world) == 0

    with SimCluster() as cluster:
        cluster.start("a-0")
        cluster.simulation.run(1)
        cluster.run(main, seconds=3600)
