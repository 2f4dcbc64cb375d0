"""Single pulls of a client: what is asked, of whom, and what an answer means (wire.md 5)."""

import math

import pytest
import trio

from rocketbed.client.errors import BadMessage, NoBroker, RequestRefused
from rocketbed.client.pulls import PullStatus, TagFilter
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.bodies import MessageQueue
from rocketbed.wire.codes import RequestCode as Code
from rocketbed.wire.command import Command
from rocketbed.wire.errors import RemoteProtocolError
from rocketbed.wire.message import RECORD_V4
from tests.support.client import Stage, on_stage, route
from tests.support.client_shelf import QUEUE, Shelf, bodies, consumer, record, shelf


def test_a_pull_brings_messages_and_offsets() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")
        _, peer = await shelf(stage, messages={0: bodies(3, "A")})
        async with consumer(stage) as reader:
            assert await reader.queues("T") == (
                QUEUE,
                MessageQueue(topic="T", broker_name="a", queue_id=1),
            )
            pulled = await reader.pull(QUEUE, 0, count=7)
            assert [(m.body, m.queue_offset, m.tag, m.queue) for m in pulled.messages] == [
                (b"0", 0, "A", QUEUE),
                (b"1", 1, "A", QUEUE),
            ]
            assert (pulled.status, pulled.next_offset) == (PullStatus.FOUND, 2)
            assert (pulled.min_offset, pulled.max_offset, pulled.broker_id) == (0, 3, 0)
            assert (await reader.pull(QUEUE, 3)).status is PullStatus.NO_NEW
            moved = await reader.pull(QUEUE, 9)
            assert (moved.status, moved.next_offset) == (PullStatus.MOVED, 3)
        fields = peer.requests[0].fields
        assert (fields["sysFlag"], fields["maxMsgNums"], fields["subscription"]) == ("4", "7", "*")
        assert (fields["consumerGroup"], fields["suspendTimeoutMillis"]) == ("cg", "0")

    on_stage(scenario)


def test_waiting_pull_says_so_and_outlasts_the_broker() -> None:
    async def scenario(stage: Stage) -> float:
        stage.routes["T"] = route("a")
        content, peer = await shelf(stage)
        async with consumer(stage) as reader, trio.open_nursery() as nursery:

            async def add_late() -> None:
                await trio.sleep(24)
                content.add(peer, 0, b"late")

            nursery.start_soon(add_late)
            pulled = await reader.pull(QUEUE, 0, hold_s=20)
            assert [message.body for message in pulled.messages] == [b"late"]
        assert peer.requests[0].fields["suspendTimeoutMillis"] == "20000"
        return trio.current_time()

    on_stage(scenario)


def test_tags_with_equal_hashes_are_told_apart() -> None:
    """`Aa` and `BB` have the same Java hash."""

    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")
        content = [(b"1", "Aa"), (b"2", "BB"), (b"3", None), (b"4", "Aa")]
        _, peer = await shelf(stage, messages={0: content}, batch=10)
        async with consumer(stage) as reader:
            pulled = await reader.pull(QUEUE, 0, tags=" Aa || C ")
            assert [message.body for message in pulled.messages] == [b"1", b"4"]
            assert pulled.next_offset == 4
        assert peer.requests[0].fields["subscription"] == "Aa || C"

    on_stage(scenario)


@pytest.mark.parametrize("expression", ["*", "", "  ", "A || *"])
def test_expressions_that_take_everything(expression: str) -> None:
    words = TagFilter(expression)
    assert (words.tags, words.expression) == (frozenset(), "*")


@pytest.mark.parametrize("expression", ["||", " || || "])
def test_expressions_without_a_tag_are_refused(expression: str) -> None:
    with pytest.raises(BadMessage, match="no tag is named"):
        TagFilter(expression)


@pytest.mark.parametrize("hold_s", [-1.0, math.inf, math.nan])
def test_invalid_hold_times_are_refused(hold_s: float) -> None:
    async def scenario(stage: Stage) -> None:
        with pytest.raises(BadMessage, match="hold_s"):
            consumer(stage, hold_s=hold_s)
        async with consumer(stage) as reader:
            with pytest.raises(BadMessage, match="hold_s"):
                await reader.pull(QUEUE, 0, hold_s=hold_s)

    on_stage(scenario)


@pytest.mark.parametrize(
    ("code", "remark"), [(17, "topic[T] not exist"), (16, "forbidden"), (26, "no group"), (1, "?")]
)
def test_refused_pulls(code: int, remark: str) -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")
        await shelf(stage, fails={Code.PULL_MESSAGE: (code, remark)})
        async with consumer(stage) as reader:
            with pytest.raises(RequestRefused) as caught:
                await reader.pull(QUEUE, 0)
        assert (caught.value.code, caught.value.remark) == (code, remark)
        assert "queue 0 of topic T at a" in str(caught.value)

    on_stage(scenario)


def test_records_before_damage_are_delivered_and_skippable() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")
        content = Shelf(messages={0: bodies(5)}, batch=4)

        def damaged(command: Command) -> Command | None:
            response = content(command)
            if response is not None and response.body:
                response.body = response.body.replace(good, damaged_record)
            return response

        good = record(0, 2, b"2")
        damaged_record = good[:8] + b"\x09" + good[9:]
        await stage.broker("a", damaged)
        async with consumer(stage) as reader:
            pulled = await reader.pull(QUEUE, 0)
            assert ([m.body for m in pulled.messages], pulled.next_offset) == ([b"0", b"1"], 2)
            with pytest.raises(RemoteProtocolError, match=r"queue 0 of topic T at a .*seek behind"):
                await reader.pull(QUEUE, 2)
            pulled = await reader.pull(QUEUE, 3)
            assert ([m.body for m in pulled.messages], pulled.next_offset) == ([b"3", b"4"], 5)

    on_stage(scenario)


def test_damaged_record_is_reported_and_not_delivered() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")
        content = Shelf(messages={0: bodies(2)})

        def damaged(command: Command) -> Command | None:
            response = content(command)
            if response is not None and response.body:
                at = RECORD_V4.size
                response.body = response.body[:at] + b"!" + response.body[at + 1 :]
            return response

        await stage.broker("a", damaged)
        async with consumer(stage) as reader:
            with pytest.raises(RemoteProtocolError):
                await reader.pull(QUEUE, 0)

    on_stage(scenario)


def test_pulls_from_missing_brokers() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a")
        async with consumer(stage) as reader:
            with pytest.raises(RemotingError):
                await reader.pull(QUEUE, 0)
            with pytest.raises(NoBroker, match="queue 0 of topic T at z"):
                await reader.pull(MessageQueue(topic="T", broker_name="z", queue_id=0), 0)
            with pytest.raises(BadMessage):
                await reader.pull(QUEUE, -1)

    on_stage(scenario)


@pytest.mark.parametrize("status", ["found", "nothing", "moved"])
def test_suggested_broker_is_asked_next_at_any_status(status: str) -> None:
    """Trap 14."""

    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", ids=(0, 1))
        offset = {"found": 0, "nothing": 1, "moved": 9}[status]
        master, _ = await shelf(stage, messages={0: bodies(1)}, suggests=1)
        slave, _ = await shelf(stage, number=1, messages={0: bodies(1)}, suggests=1)
        async with consumer(stage) as reader:
            ids = [(await reader.pull(QUEUE, offset)).broker_id for _ in range(3)]
            assert ids == [0, 1, 1]
            slave.suggests = 0
            ids = [(await reader.pull(QUEUE, offset)).broker_id for _ in range(2)]
            assert ids == [1, 0]
            master.suggests = 0
            assert (await reader.pull(QUEUE, offset)).broker_id == 1

    on_stage(scenario)


def test_a_failed_pull_forgets_the_suggestion() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", ids=(0, 1))
        await shelf(stage, messages={0: bodies(1)}, suggests=1)
        async with consumer(stage) as reader:
            assert (await reader.pull(QUEUE, 0)).broker_id == 0
            with pytest.raises(RemotingError):
                await reader.pull(QUEUE, 0)
            assert (await reader.pull(QUEUE, 0)).broker_id == 0

    on_stage(scenario)
