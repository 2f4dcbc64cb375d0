"""A producer before peers that answer as told: outcomes, retries, routes (wire.md 4)."""

import sys
from random import randbytes
from typing import Any

import pytest
import trio

from rocketbed.client.errors import BadMessage, MissingLibrary
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Outcome, Refused, SendStatus, Sent, Unknown
from rocketbed.client.packing import Codec
from rocketbed.client.producer import Producer
from rocketbed.inspect.bodies import unpack_body
from rocketbed.remoting.errors import NotConnected
from rocketbed.wire.bodies import MessageQueue
from rocketbed.wire.codes import RequestCode, ResponseCode
from rocketbed.wire.command import Command, answer
from rocketbed.wire.message import decode_batch
from rocketbed.wire.properties import decode_properties
from tests.support.client import NAMESERVER, Answering, Stage, on_stage, route

MESSAGE = Message("T", b"hello", tag="A", keys=["k"], properties={"x": "y"})


def producer(stage: Stage, **options: Any) -> Producer:
    return Producer(stage.world, nameservers=NAMESERVER, group="pg", **options)


def coded(code: int, remark: str | None = "because") -> Answering:
    """A broker that answers every request with a code."""
    return lambda command: answer(command, code, remark, {"queueId": "0", "queueOffset": "3"})


def silent(command: Command) -> None:
    """A broker that answers nothing."""


def send_to(answering: Answering | None, **options: Any) -> tuple[Outcome, int]:
    """The outcome of one send to one broker, and how often the broker was asked."""

    async def scenario(stage: Stage) -> tuple[Outcome, int]:
        stage.routes["T"] = route("a")
        requests = (await stage.broker("a", answering)).requests
        async with producer(stage, **options) as sender:
            outcome = await sender.send(MESSAGE)
        return outcome, len(requests)

    outcome, count = on_stage(scenario).value
    return outcome, count


def test_a_send_names_everything_that_a_broker_needs() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")
        broker = await stage.broker()
        async with producer(stage) as sender:
            outcome = await sender.send(MESSAGE)
        assert isinstance(outcome, Sent)
        (command,) = broker.requests
        assert (command.code, command.body) == (RequestCode.SEND_MESSAGE_V2, b"hello")
        fields = command.fields
        assert {name: fields[name] for name in "abcdfhjkmn"} == {
            "a": "pg", "b": "T", "c": "TBW102", "d": "4", "f": "0", "h": "0", "j": "0",
            "k": "false", "m": "false", "n": "a",
        }  # fmt: skip
        assert decode_properties(fields["i"]) == {
            "UNIQ_KEY": outcome.message_id, "KEYS": "k", "TAGS": "A", "WAIT": "true", "x": "y",
        }  # fmt: skip
        assert outcome.queue == MessageQueue(topic="T", broker_name="a", queue_id=int(fields["e"]))
        assert (outcome.queue_offset, outcome.attempts, outcome.may_be_double) == (0, 1, False)

    on_stage(scenario)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (0, SendStatus.SEND_OK),
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
def test_codes_of_stored_messages(code: int, status: SendStatus) -> None:
    outcome, count = send_to(coded(code))
    assert isinstance(outcome, Sent)
    assert (outcome.status, outcome.queue_offset, outcome.offset_ids) == (status, 3, ())
    assert count == 1


def test_unsafe_messages_are_resent_only_if_allowed() -> None:
    outcome, count = send_to(coded(11), retry_unsafe=True)
    assert isinstance(outcome, Sent)
    assert (count, outcome.may_be_double) == (3, True)


@pytest.mark.parametrize(
    ("code", "kind", "count"),
    [
        (1, Unknown, 3),
        (2, Refused, 11),  # busy: as long as there is time
        (13, Refused, 1),
        (14, Unknown, 3),
        (16, Refused, 3),
        (17, Refused, 3),
        (29, Refused, 1),
        (204, Refused, 3),
        (205, Refused, 3),
        (1500, Refused, 3),
        (9999, Refused, 1),
    ],
)
def test_codes_of_refused_messages(code: int, kind: type, count: int) -> None:
    outcome, request_count = send_to(coded(code))
    assert type(outcome) is kind
    assert isinstance(outcome, Refused | Unknown)
    assert (outcome.code, request_count, outcome.attempts) == (code, count, count)
    assert "because" in outcome.reason
    assert "10.0.0.1:10000" in outcome.reason


def test_no_answer_is_unknown_within_the_time_limit() -> None:
    async def scenario(stage: Stage) -> float:
        stage.routes["T"] = route("a")
        await stage.broker("a", silent)
        async with producer(stage, timeout_s=2.0) as sender:
            began = trio.current_time()
            outcome = await sender.send(MESSAGE)
            assert isinstance(outcome, Unknown)
            assert "no answer" in outcome.reason
            return trio.current_time() - began

    assert 1.9 < on_stage(scenario).value < 2.2


def test_broken_connection_is_unknown_and_retried_with_the_id() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")

        def break_once(command: Command) -> Command | None:
            if len(broker.requests) == 1:
                broker.hang_up()
                return None
            return stage.sent(command)

        broker = await stage.broker("a", break_once)
        async with producer(stage) as sender:
            outcome = await sender.send(MESSAGE)
        assert isinstance(outcome, Sent)
        assert (outcome.may_be_double, outcome.attempts) == (True, 2)
        keys = [decode_properties(c.fields["i"])["UNIQ_KEY"] for c in broker.requests]
        assert keys == [outcome.message_id] * 2

    on_stage(scenario)


def test_unknown_is_not_retried_if_forbidden() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")

        def break_off(command: Command) -> None:
            broker.hang_up()

        broker = await stage.broker("a", break_off)
        async with producer(stage, retry_unknown=False) as sender:
            outcome = await sender.send(MESSAGE)
        assert isinstance(outcome, Unknown)
        assert (len(broker.requests), outcome.code) == (1, None)

    on_stage(scenario)


def test_a_retry_goes_to_another_broker() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", "b")
        brokers = [await stage.broker(name, coded(16)) for name in "ab"]
        async with producer(stage, retries=1) as sender:
            assert isinstance(await sender.send(MESSAGE), Refused)
        assert [len(broker.requests) for broker in brokers] == [1, 1]

    on_stage(scenario)


def test_withdrawn_queue_is_not_chosen_again() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", queues=2)

        def answering(command: Command) -> Command:
            queue_id = command.fields["e"]
            code = 0 if queue_id == "0" else ResponseCode.INVALID_PARAMETER
            return answer(command, code, "illegal", {"queueId": queue_id, "queueOffset": "3"})

        broker = await stage.broker("a", answering)
        async with producer(stage) as sender:
            await sender.queues("T")
            await trio.sleep(2)  # the age of the route
            stage.routes["T"] = route("a", queues=1)
            attempts = []
            for _ in range(4):
                outcome = await sender.send(MESSAGE)
                assert isinstance(outcome, Sent)
                attempts.append(outcome.attempts)
        assert sorted(attempts) == [1, 1, 1, 2]
        assert len(broker.requests) == 5

    on_stage(scenario)


def test_withdrawn_queue_that_the_program_chose_is_refused() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", queues=2)
        broker = await stage.broker("a", coded(ResponseCode.INVALID_PARAMETER))
        async with producer(stage) as sender:
            queue = (await sender.queues("T"))[1]
            await trio.sleep(2)
            assert isinstance(await sender.send(MESSAGE, queue=queue), Refused)
        assert len(broker.requests) == 2, "once more, after a look at the route"

    on_stage(scenario)


def test_missing_listener_is_a_refusal() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")
        async with producer(stage) as sender:
            outcome = await sender.send(MESSAGE)
            assert isinstance(outcome, Refused)
            assert outcome.code is None
            assert outcome.attempts > 3
            assert "cannot connect to 10.0.0.1:10000" in outcome.reason
            with pytest.raises(NotConnected):
                await sender.send_oneway(MESSAGE)

    on_stage(scenario)


def test_a_silent_broker_leaves_time_for_the_other() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", "b")
        dumb = await stage.broker("a", silent)
        await stage.broker("b")
        async with producer(stage, timeout_s=20.0) as sender:
            for _ in range(2):  # each of them is the first once
                began = trio.current_time()
                assert isinstance(await sender.send(MESSAGE), Sent)
                assert trio.current_time() - began < 8
        assert len(dumb.requests) == 1

    on_stage(scenario)


def test_returning_broker_is_found_by_the_next_attempt() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")
        async with producer(stage, timeout_s=20.0) as sender, trio.open_nursery() as nursery:

            async def return_later() -> None:
                await trio.sleep(15)
                await stage.broker("a")

            nursery.start_soon(return_later)
            outcome = await sender.send(MESSAGE)
        assert isinstance(outcome, Sent)
        assert not outcome.may_be_double

    on_stage(scenario)


def test_chosen_queues_and_order_keys() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", "b", queues=4)
        for name in "ab":
            await stage.broker(name)
        async with producer(stage) as sender:
            target = MessageQueue(topic="T", broker_name="b", queue_id=2)
            outcome = await sender.send(MESSAGE, queue=target)
            assert isinstance(outcome, Sent)
            assert outcome.queue == target
            by_key = [await sender.send(MESSAGE, order_key="customer-7") for _ in range(5)]
            assert len({o.queue for o in by_key if isinstance(o, Sent)}) == 1
            with pytest.raises(BadMessage, match="not both"):
                await sender.send(MESSAGE, queue=target, order_key="x")
            queue = MessageQueue(topic="U", broker_name="b", queue_id=2)
            with pytest.raises(BadMessage, match="the queue belongs to topic U"):
                await sender.send(MESSAGE, queue=queue)

    on_stage(scenario)


def test_order_key_waits_for_its_master() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", "b", queues=1)
        brokers = {name: await stage.broker(name) for name in "ab"}
        async with producer(stage) as sender:
            first = await sender.send(MESSAGE, order_key="k")
            assert isinstance(first, Sent)
            home = first.queue.broker_name
            for broker in stage.routes["T"].broker_datas:
                if broker.broker_name == home:
                    broker.broker_addrs = {1: broker.broker_addrs[0]}
            brokers[home].stop()
            second = await sender.send(MESSAGE, order_key="k")
        assert isinstance(second, Refused | Unknown)
        away = next(broker for name, broker in brokers.items() if name != home)
        assert away.requests == []

    on_stage(scenario)


def test_a_batch_is_one_request() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")
        broker = await stage.broker(
            "a",
            lambda command: answer(
                command, 0, None, {"msgId": "A,B,C", "queueId": "1", "queueOffset": "5"}
            ),
        )
        async with producer(stage) as sender:
            outcome = await sender.send_batch([Message("T", b"%d" % n, tag="A") for n in range(3)])
        assert isinstance(outcome, Sent)
        assert (outcome.offset_ids, outcome.queue_offset) == (("A", "B", "C"), 5)
        (command,) = broker.requests
        assert (command.code, command.fields["m"]) == (RequestCode.SEND_BATCH_MESSAGE, "true")
        items = decode_batch(command.body)
        assert [item.body for item in items] == [b"0", b"1", b"2"]
        keys = [decode_properties(item.properties.decode())["UNIQ_KEY"] for item in items]
        assert tuple(keys) == outcome.message_ids
        assert len({*keys, decode_properties(command.fields["i"])["UNIQ_KEY"]}) == 4

    on_stage(scenario)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "at least one message"),
        ([Message("T", b"x"), Message("U", b"x")], "of the same topic"),
        ([Message("T", bytes(1 << 20))] * 4, "split it"),
        ([Message("T", b"")], "non-empty bytes"),
        ([Message("T", b"x", delay_level=1)], "cannot be delayed"),
    ],
)
def test_batches_that_cannot_be_sent(messages: list[Message], reason: str) -> None:
    async def scenario(stage: Stage) -> None:
        async with producer(stage) as sender:
            with pytest.raises(BadMessage, match=reason):
                await sender.send_batch(messages)

    on_stage(scenario)


def test_oneway_waits_for_nothing() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")
        arrived = trio.Event()

        def note(command: Command) -> None:
            assert command.is_oneway
            arrived.set()

        broker = await stage.broker("a", note)
        async with producer(stage) as sender:
            key = await sender.send_oneway(MESSAGE)
            await arrived.wait()
        assert decode_properties(broker.requests[0].fields["i"])["UNIQ_KEY"] == key

    on_stage(scenario)


@pytest.mark.parametrize(("codec", "flag"), [("zlib", 0x301), ("lz4", 0x101), ("zstd", 0x201)])
def test_long_bodies_are_packed(codec: Codec, flag: int) -> None:
    """Bodies that would not shrink, are short or part of a batch are sent unchanged (4.5)."""
    long, noise = b"coffee " * 1000, randbytes(5000)

    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")
        broker = await stage.broker()
        async with producer(stage, compress=codec) as sender:
            for body in (long, noise, b"coffee"):
                await sender.send(Message("T", body))
            await sender.send_oneway(Message("T", long))
            await sender.send_batch([Message("T", long)])
        packed, *plain, oneway, batch = broker.requests
        assert len(packed.body) < len(long) / 10
        assert packed.fields["f"] == oneway.fields["f"] == str(flag)
        assert unpack_body(packed.body, flag) == unpack_body(oneway.body, flag) == long
        assert [(one.fields["f"], one.body) for one in plain] == [("0", noise), ("0", b"coffee")]
        assert batch.fields["f"] == "0"
        assert long in batch.body

    on_stage(scenario)


def test_unavailable_compressions(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(stage: Stage) -> None:
        with pytest.raises(BadMessage, match="one of lz4, zstd, zlib"):
            producer(stage, compress="gzip")
        monkeypatch.setitem(sys.modules, "lz4.frame", None)
        monkeypatch.setitem(sys.modules, "zstandard", None)
        for codec in ("lz4", "zstd"):
            with pytest.raises(MissingLibrary, match=rf"rocketbed\[{codec}\]"):
                producer(stage, compress=codec)

    on_stage(scenario)
