"""A producer's routes, headers, heartbeats and connections."""

from typing import Any

import pytest
import trio

from rocketbed.client.errors import BadMessage, NoBroker, NoRoute
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Refused, Sent, Unknown
from rocketbed.client.producer import Producer
from rocketbed.wire.bodies import HeartbeatData
from rocketbed.wire.codes import RequestCode
from rocketbed.wire.command import Command, Encoding, answer
from tests.support.client import NAMESERVER, Stage, on_stage, route

MESSAGE = Message("T", b"hello")


def producer(stage: Stage, **options: Any) -> Producer:
    return Producer(stage.world, nameservers=NAMESERVER, group="pg", **options)


def test_moved_topic_is_found_after_code_17() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")
        await stage.broker("a", lambda command: answer(command, 17, "not here"))
        await stage.broker("b")
        async with producer(stage) as sender:
            stage.routes["T"] = route("a")
            first = await sender.queues("T")
            assert first[0].broker_name == "a"
            stage.routes["T"] = route("b")
            outcome = await sender.send(MESSAGE)
        assert isinstance(outcome, Sent)
        assert outcome.queue.broker_name == "b"

    on_stage(scenario)


def test_unknown_topic_goes_to_brokers_that_create_topics() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["TBW102"] = route("a", queues=8)
        broker = await stage.broker()
        async with producer(stage) as sender:
            assert len(await sender.queues("T")) == 4
            outcome = await sender.send(MESSAGE)
            assert isinstance(outcome, Sent)
            assert outcome.queue.topic == "T"
            stage.routes["T"] = route("a", queues=3)
            assert len(await sender.queues("T")) == 3
        assert len(broker.requests) == 1

    on_stage(scenario)


@pytest.mark.parametrize("is_known", [False, True])
def test_queue_missing_from_the_topic_refreshes_the_route(is_known: bool) -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["TBW102"] = route("a", queues=8)
        if is_known:
            stage.routes["T"] = route("a", queues=4)
        broker = await stage.broker(
            "a", lambda command: answer(command, 29, "request queueId[3] is illegal")
        )
        async with producer(stage) as sender:
            assert len(await sender.queues("T")) == 4
            stage.routes["T"] = route("a", queues=1)
            await trio.sleep(2.0)
            outcome = await sender.send(MESSAGE)
            assert isinstance(outcome, Refused)
            assert outcome.code == 29
            assert len(await sender.queues("T")) == 1
        assert len(broker.requests) == 2, "once more, with the newer route"

    on_stage(scenario)


def test_uncreatable_topic_is_refused() -> None:
    async def scenario(stage: Stage) -> None:
        async with producer(stage) as sender:
            outcome = await sender.send(MESSAGE)
            assert isinstance(outcome, Refused)
            assert outcome.code == 17
            assert "create it first" in outcome.reason
            with pytest.raises(NoRoute):
                await sender.send_oneway(MESSAGE)

    on_stage(scenario)


def test_without_a_master_nothing_is_sent() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", ids=(1,))
        async with producer(stage) as sender:
            outcome = await sender.send(MESSAGE)
            assert isinstance(outcome, Refused)
            assert "no master" in outcome.reason
            with pytest.raises(NoBroker):
                await sender.send_oneway(MESSAGE)

    on_stage(scenario)


def test_a_read_only_topic_takes_nothing() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", perm=4)
        broker = await stage.broker()
        async with producer(stage) as sender:
            assert isinstance(await sender.send(MESSAGE), Refused)
        assert broker.requests == []

    on_stage(scenario)


def test_no_nameserver_is_a_refusal_that_names_it() -> None:
    async def scenario(stage: Stage) -> None:
        async with Producer(stage.world, nameservers="10.0.0.1:1") as sender:
            outcome = await sender.send(MESSAGE)
        assert isinstance(outcome, Refused)
        assert "no nameserver answered" in outcome.reason
        assert "10.0.0.1:1" in outcome.reason

    on_stage(scenario)


def test_headers_change_to_msgpack_on_the_servers_offer() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")

        def sent_by_rocketbed(command: Command) -> Command:
            response = stage.sent(command)
            response.raw_fields["rbMsgpack"] = "1"
            return response

        broker = await stage.broker("a", sent_by_rocketbed)
        async with producer(stage) as sender:
            for _ in range(3):
                assert isinstance(await sender.send(MESSAGE), Sent)
        assert broker.encodings() == [Encoding.JSON, Encoding.MSGPACK, Encoding.MSGPACK]
        assert broker.requests[0].fields["i"] != broker.requests[2].fields["i"]
        assert set(stage.nameserver.encodings()) == {Encoding.JSON}

    on_stage(scenario)


def test_brokers_learn_of_the_groups_begin_and_end() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")
        broker = await stage.broker()
        async with producer(stage) as sender:
            await sender.send(MESSAGE)
            await trio.sleep(35)
        first, second, *ends = broker.heartbeats
        data = HeartbeatData.decode(first.body)
        assert data == HeartbeatData.decode(second.body)
        assert [item.group_name for item in data.producer_data_set] == [
            "pg",
            "CLIENT_INNER_PRODUCER",
        ]
        assert [command.code for command in ends] == [RequestCode.UNREGISTER_CLIENT] * 2
        assert ends[0].fields["clientID"] == data.client_id

    on_stage(scenario)


def test_dead_connection_is_closed_after_an_unanswered_send() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")
        broker = await stage.broker()
        broker.is_dead = True
        async with producer(stage, timeout_s=1.0) as sender:
            assert isinstance(await sender.send(MESSAGE), Unknown)
            (connection,) = broker.server.connections
            await trio.sleep(1.5)
            assert connection not in broker.server.connections
            broker.is_dead = False
            assert isinstance(await sender.send(MESSAGE), Sent)

    on_stage(scenario)


def test_errors_leave_the_block_unchanged() -> None:
    async def scenario(stage: Stage) -> None:
        with pytest.raises(KeyError):
            async with producer(stage):
                raise KeyError("own")
        with trio.move_on_after(1) as scope:
            async with producer(stage):
                await trio.sleep_forever()
        assert scope.cancelled_caught

    on_stage(scenario)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"group": "a b"}, "letters"),
        ({"timeout_s": 0}, "positive"),
        ({"retries": -1}, "at least 0"),
        ({"select": "best"}, "unknown queue selector"),
        ({"nameservers": ""}, "at least one nameserver"),
        ({"nameservers": "host"}, "host:port"),
    ],
)
def test_arguments_that_cannot_be_used(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadMessage, match=reason):
        Producer(**{"nameservers": NAMESERVER, **options})
