"""Requests of brokers to a running consumer (wire.md 2.2, 6.7)."""

from functools import partial

import pytest
import trio

from rocketbed.client.messages import Received
from rocketbed.wire.bodies import MessageQueue
from rocketbed.wire.bodies_admin import ConsumerRunningInfo, ConsumerStatus, QueueInfo, QueueOffsets
from rocketbed.wire.codes import RequestCode as Code
from rocketbed.wire.command import request
from tests.support.client import NAMESERVER, Stage, on_stage, route
from tests.support.client_shelf import QUEUE, bodies, consumer, read, shelf


def test_a_broker_sends_a_running_consumer_elsewhere() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")
        broker, peer = await shelf(stage, messages={0: bodies(6)})
        async with consumer(stage) as reader:
            await reader.subscribe("T", start="first")
            assert await read(reader, 6) == [b"%d" % number for number in range(6)]
            table = {QUEUE: 4, MessageQueue(topic="other", broker_name="a", queue_id=0): 1}
            fields = {"topic": "T", "group": "cg", "timestamp": "4000", "isForce": "true"}
            (connection,) = peer.server.connections
            body = QueueOffsets(offset_table=table).encode()
            connection.notify(request(Code.RESET_CONSUMER_CLIENT_OFFSET, fields, body))
            assert await read(reader, 2) == [b"4", b"5"]
            await trio.sleep(1)
            assert broker.committed == {0: 4}

    on_stage(scenario)


@pytest.mark.parametrize(("topic", "group"), [("T", "other"), ("other", "cg")])
def test_a_reset_for_somebody_else_is_passed_over(topic: str, group: str) -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")
        broker, peer = await shelf(stage, messages={0: bodies(6)})
        async with consumer(stage) as reader:
            await reader.subscribe("T", start="first")
            await read(reader, 6)
            (connection,) = peer.server.connections
            fields = {"topic": topic, "group": group, "timestamp": "0", "isForce": "true"}
            table = QueueOffsets(offset_table={QUEUE: 1})
            for body in (table.encode(), b"null", b"[" * 1000):
                connection.notify(request(Code.RESET_CONSUMER_CLIENT_OFFSET, fields, body))
            await trio.sleep(1)
            assert (reader.position(QUEUE), broker.committed) == (6, {})

    on_stage(scenario)


def test_ordered_queue_moves_when_no_message_is_in_progress() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")
        _, peer = await shelf(stage, messages={0: bodies(8)})
        in_hand, most, handled = 0, 0, list[bytes]()

        async def handle(received: Received) -> None:
            nonlocal in_hand, most
            in_hand += 1
            most = max(most, in_hand)
            await trio.sleep(3)
            handled.append(received.body)
            in_hand -= 1

        async with consumer(stage, ordered=True) as reader:
            await reader.subscribe("T", start="first")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(reader.listen, handle, workers=4))
                await trio.sleep(8)
                assert in_hand == 1
                (connection,) = peer.server.connections
                fields = {"topic": "T", "group": "cg", "timestamp": "0", "isForce": "true"}
                body = QueueOffsets(offset_table={QUEUE: 0}).encode()
                connection.notify(request(Code.RESET_CONSUMER_CLIENT_OFFSET, fields, body))
                await trio.sleep(40)
                nursery.cancel_scope.cancel()
        assert most == 1
        assert handled[-8:] == [b"%d" % number for number in range(8)]

    on_stage(scenario)


@pytest.mark.parametrize(("how", "begin"), [("seek", 0), ("subscribe", 2)])
def test_reassigned_ordered_queue_has_one_owner(how: str, begin: int) -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")
        await shelf(stage, messages={0: bodies(8)})
        in_hand, most, handled = 0, 0, list[bytes]()

        async def handle(received: Received) -> None:
            nonlocal in_hand, most
            in_hand += 1
            most = max(most, in_hand)
            await trio.sleep(3)
            handled.append(received.body)
            in_hand -= 1

        async with consumer(stage, ordered=True) as reader:
            await reader.subscribe("T", start="first")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(reader.listen, handle, workers=4))
                await trio.sleep(8)
                assert in_hand == 1
                if how == "seek":
                    reader.seek(QUEUE, 0)
                else:
                    await reader.subscribe("T", start="first")
                await trio.sleep(40)
                nursery.cancel_scope.cancel()
        assert most == 1
        assert handled == [b"%d" % number for number in [0, 1, 2, *range(begin, 8)]]

    on_stage(scenario)


@pytest.mark.parametrize("is_finished", [True, False])
def test_polling_task_holds_an_ordered_queue_until_done(is_finished: bool) -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")
        await shelf(stage, messages={0: bodies(3)})
        async with consumer(stage, ordered=True) as reader, trio.open_nursery() as nursery:
            await reader.subscribe("T", start="first")
            first = (await reader.poll())[0]
            reader.seek(QUEUE, 0)
            bodies_later = list[bytes]()

            async def poll_later() -> None:
                bodies_later.extend([one.body for one in await reader.poll(timeout_s=60)])

            nursery.start_soon(poll_later)
            await trio.sleep(5)
            assert bodies_later == []
            if is_finished:
                reader.finish(first)
            else:
                assert await reader.poll(timeout_s=0) == []
            await trio.sleep(5)
            assert bodies_later == [b"0"]

    on_stage(scenario)


def test_resubscribed_ordered_topic_is_read_soon() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")
        await shelf(stage, messages={0: bodies(2)})
        async with consumer(stage, ordered=True) as reader:
            await reader.subscribe("T", start="first")
            assert await read(reader, 1) == [b"0"]
            await reader.unsubscribe("T")
            await reader.subscribe("T", start="first")
            begun = trio.current_time()
            assert await read(reader, 2) == [b"0", b"1"]
            assert trio.current_time() - begun < 3

    on_stage(scenario)


def test_consumer_reports_its_positions_and_state() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")
        _, peer = await shelf(stage, messages={0: bodies(3)})
        async with consumer(stage) as reader:
            await reader.subscribe("T", tags="*", start="first")
            await read(reader, 3)
            (connection,) = peer.server.connections
            fields = {"topic": "T", "group": "cg"}
            inquiry = request(Code.GET_CONSUMER_STATUS_FROM_CLIENT, fields)
            reply = await connection.request(inquiry, timeout_s=5)
            assert (reply.code, ConsumerStatus.decode(reply.body).message_queue_table[QUEUE]) == (
                0,
                2,
            )
            fields = {"consumerGroup": "cg", "clientId": "any"}
            inquiry = request(Code.GET_CONSUMER_RUNNING_INFO, fields)
            reply = await connection.request(inquiry, timeout_s=5)
            info = ConsumerRunningInfo.decode(reply.body)
            assert info.mq_table[QUEUE] == QueueInfo(
                commit_offset=2,
                cached_msg_min_offset=2,
                cached_msg_max_offset=3,
                cached_msg_count=1,
            )
            assert [one.topic for one in info.subscription_set] == ["T"]
            assert info.properties["PROP_NAMESERVER_ADDR"] == NAMESERVER

    on_stage(scenario)
