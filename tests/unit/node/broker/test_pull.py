"""Pulls: outcomes, filters, long polling, checks in order (wire.md 5)."""

from typing import Any

import pytest
import trio

from rocketbed.remoting.client import open_connection
from rocketbed.remoting.connection import OUTBOX_MAX
from rocketbed.remoting.errors import RequestTimeout
from rocketbed.wire.bodies import SubscriptionGroupConfig
from rocketbed.wire.command import Command, RequestCode, ResponseCode, request
from rocketbed.wire.frame import FrameReader, encode
from rocketbed.wire.message import decode_messages
from tests.support.broker import HOST, PORT, Session, pull_fields, send_fields, with_node
from tests.support.sim.store_session import put


async def settled(session: Session) -> None:
    """Wait until everything sent can be pulled."""
    await session.node.store.dispatched.wait_for(session.node.store.max_offset)


async def fill(session: Session, count: int, **changes: Any) -> None:
    for number in range(count):
        answer = await session.send(body=b"%d" % number, **changes)
        assert answer.code == 0
    await settled(session)


def bodies(answer: Command) -> list[bytes]:
    return [message.body for message in decode_messages(answer.body)]


def test_found() -> None:
    async def scenario(session: Session) -> None:
        await fill(session, 5)
        answer = await session.pull(offset=2)
        assert (answer.code, answer.remark) == (0, "FOUND")
        assert bodies(answer) == [b"2", b"3", b"4"]
        assert answer.fields == {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": "5",
            "minOffset": "0",
            "maxOffset": "5",
            "topicSysFlag": "0",
            "groupSysFlag": "0",
        }
        assert bodies(await session.pull(count=2)) == [b"0", b"1"]
        limited = await session.pull(maxMsgBytes=1)
        assert bodies(limited) == [b"0"]
        assert (await session.ask(361, pull_fields(offset=4))).code == 0

    with_node(scenario)


@pytest.mark.parametrize(
    ("offset", "code", "status", "next_offset"),
    [
        (3, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", "3"),
        (9, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", "3"),
        (-1, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", "0"),
    ],
)
def test_offsets_outside_the_queue(
    offset: int, code: ResponseCode, status: str, next_offset: str
) -> None:
    async def scenario(session: Session) -> None:
        await fill(session, 3)
        answer = await session.pull(offset=offset)
        assert (answer.code, answer.remark) == (code, status)
        assert answer.fields["nextBeginOffset"] == next_offset
        assert answer.fields["maxOffset"] == "3"

    with_node(scenario)


def test_empty_queue() -> None:
    async def scenario(session: Session) -> None:
        await fill(session, 1)
        fresh = await session.pull(queue_id=1)
        assert fresh.code == ResponseCode.PULL_NOT_FOUND
        moved = await session.pull(offset=7, queue_id=1)
        assert moved.code == ResponseCode.PULL_OFFSET_MOVED
        assert moved.fields["nextBeginOffset"] == "0"

    with_node(scenario)


def test_tags_are_filtered_by_hash() -> None:
    async def scenario(session: Session) -> None:
        for tag in ("Aa", "BB", "C", "Aa"):
            await session.send(body=tag.encode(), properties={"TAGS": tag})
        await session.send(body=b"none")
        await settled(session)
        answer = await session.pull(expression="Aa || D")
        assert bodies(answer) == [b"Aa", b"BB", b"Aa"]  # the two have the same hash
        assert answer.fields["nextBeginOffset"] == "5"
        nothing = await session.pull(expression="X")
        assert (nothing.code, nothing.remark) == (20, "NO_MATCHED_MESSAGE")
        assert nothing.fields["nextBeginOffset"] == "5"
        assert len(bodies(await session.pull(expression="*"))) == 5

    with_node(scenario)


CHECKS: list[tuple[str, dict[str, Any], tuple[str, ...], int, str]] = [
    ("broker not readable", {}, ("brokerPermission=2",), 16, "pulling message is forbidden"),
    ("unknown group", {"group": "x"}, ("autoCreateSubscriptionGroup=false",), 26, "[x]"),
    ("unknown topic", {"topic": "N"}, (), 17, "topic[N] not exist"),
    ("queue too high", {"queue_id": 4}, (), 29, "queueId[4] is illegal"),
    ("queue negative", {"queue_id": -1}, (), 29, "queueId[-1] is illegal"),
    ("no tag", {"expression": " || "}, (), 23, "parse the consumer's subscription failed"),
    ("sql", {"expression": "a > 1", "expressionType": "SQL92"}, (), 1, "SQL92"),
    ("no heartbeat", {"flags": 0}, (), 24, "group info not exist"),
]


@pytest.mark.parametrize(
    ("changes", "options", "code", "remark"),
    [row[1:] for row in CHECKS],
    ids=[row[0] for row in CHECKS],
)
def test_checks(changes: dict[str, Any], options: tuple[str, ...], code: int, remark: str) -> None:
    async def scenario(session: Session) -> None:
        await session.send()
        answer = await session.pull(**changes)
        assert answer.code == code
        assert remark in (answer.remark or "")

    with_node(scenario, *options)


def test_pull_without_expression_uses_the_heartbeat() -> None:
    async def scenario(session: Session) -> None:
        for tag in ("A", "B"):
            await session.send(body=tag.encode(), properties={"TAGS": tag})
        await settled(session)
        await session.heartbeat(topics={"T": "B"}, version=5)
        answer = await session.pull(flags=0, subVersion=5)
        assert bodies(answer) == [b"B"]
        newer = await session.pull(flags=0, subVersion=6)
        assert newer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
        disabled = await session.pull("BenchmarkTest", flags=0)
        assert disabled.code == ResponseCode.SUBSCRIPTION_NOT_EXIST

    with_node(scenario)


def test_commit_flag_stores_the_offset() -> None:
    async def scenario(session: Session) -> None:
        await fill(session, 3)
        await session.pull(flags=4 | 1, commitOffset=2)
        assert session.node.tables.offsets.get("g", "T", 0) == 2
        await session.pull(flags=4, commitOffset=1)
        assert session.node.tables.offsets.get("g", "T", 0) == 2

    with_node(scenario)


# --- long polling


def test_next_message_answers_a_held_pull() -> None:
    async def scenario(session: Session) -> None:
        await fill(session, 1)
        answers: list[Command] = []

        async def pull() -> None:
            answers.append(await session.pull(offset=1, flags=4 | 2, hold_ms=15_000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pull)
            await trio.sleep(3)
            assert not answers
            assert len(session.node.broker.puller.polls) == 1
            sent_at = trio.current_time()
            await session.send(body=b"new")
        assert bodies(answers[0]) == [b"new"]
        assert trio.current_time() - sent_at < 0.1
        assert len(session.node.broker.puller.polls) == 0

    with_node(scenario)


def test_held_pull_is_answered_at_its_timeout() -> None:
    async def scenario(session: Session) -> None:
        await fill(session, 1)
        answer = await session.pull(offset=1, flags=4 | 2, hold_ms=15_000)
        assert (answer.code, answer.remark) == (19, "OFFSET_OVERFLOW_ONE")
        assert 15 <= trio.current_time() <= 17

    with_node(scenario)


def test_filtered_messages_only_advance_a_held_pull() -> None:
    async def scenario(session: Session) -> None:
        await fill(session, 1)
        answers: list[Command] = []

        async def pull() -> None:
            answers.append(
                await session.pull(offset=1, flags=4 | 2, hold_ms=30_000, expression="A")
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pull)
            await trio.sleep(1)
            await session.send(body=b"other", properties={"TAGS": "B"})
        assert (answers[0].code, answers[0].fields["nextBeginOffset"]) == (20, "2")
        assert trio.current_time() < 8

    with_node(scenario)


def test_without_long_polling_pulls_are_held_shortly() -> None:
    async def scenario(session: Session) -> None:
        await fill(session, 1)
        started = trio.current_time()
        await session.pull(offset=1, flags=4 | 2, hold_ms=15_000)
        assert 1 <= trio.current_time() - started <= 3

    with_node(scenario, "longPollingEnable=false", "shortPollingTimeMills=1000")


def test_pulls_above_the_limit_are_answered_at_once() -> None:
    async def scenario(session: Session) -> None:
        await fill(session, 1)
        with pytest.raises(RequestTimeout):
            await session.pull(offset=1, flags=4 | 2, hold_ms=15_000, timeout_s=1)
        started = trio.current_time()
        answer = await session.pull(offset=1, flags=4 | 2, hold_ms=15_000)
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        assert trio.current_time() - started < 1

    with_node(scenario, "rbHeldPullsMax=1")


def test_unread_answers_are_limited_by_the_outbox() -> None:
    """A consumer with many held pulls stops reading: one large message wakes them all."""

    async def scenario(session: Session) -> None:
        await fill(session, 1)
        await trio.sleep(1)
        polls, count = session.node.broker.puller.polls, 128
        body = bytes(100_000)
        stream = await session.world.network.connect(HOST, PORT)
        fields = pull_fields(offset=1, flags=4 | 2, hold_ms=15_000)
        for _ in range(count):
            await stream.send_all(encode(request(11, fields)))
        await trio.sleep(1)
        assert len(polls) == count
        (held,) = {pull.connection for pulls in polls._table.values() for pull in pulls}
        await session.send(body=body)
        await trio.sleep(1)
        assert len(polls) == 0
        assert held._outbox_bytes < OUTBOX_MAX + 3 * len(body)
        frames = FrameReader()
        answers: list[Command] = []
        while len(answers) < count:
            answers += frames.feed(bytes(await stream.receive_some(1 << 20)))
        later = [answer for answer in answers if answer.code]
        assert 40 <= count - len(later) < 60
        assert {answer.code for answer in later} == {ResponseCode.PULL_RETRY_IMMEDIATELY}
        assert {answer.fields["nextBeginOffset"] for answer in later} == {"1"}

    with_node(scenario)


def test_pulls_of_a_closed_connection_are_forgotten() -> None:
    async def scenario(session: Session) -> None:
        await fill(session, 1)
        polls = session.node.broker.puller.polls
        async with open_connection(session.world, (HOST, PORT)) as connection:
            fields = pull_fields(offset=1, flags=4 | 2, hold_ms=100_000)
            with pytest.raises(RequestTimeout):
                await connection.request(request(11, fields), timeout_s=1)
            assert len(polls) == 1
        await trio.sleep(3)
        assert len(polls) == 0

    with_node(scenario)


def test_slave_serves_reads_and_sends_readers_to_a_living_master() -> None:
    async def scenario(session: Session) -> None:
        topics = session.node.tables.topics
        config = topics.create_for_send("T", "TBW102", 4)
        assert config is not None
        alone = await session.pull(offset=5)
        assert (alone.code, alone.fields["nextBeginOffset"]) == (20, "5")
        session.node.broker.puller.is_master_alive = lambda: True
        second_pull = await session.pull(offset=0, flags=4 | 2, hold_ms=9_000)
        assert (second_pull.code, second_pull.fields["suggestWhichBrokerId"]) == (20, "0")

    with_node(scenario, "brokerRole=SLAVE", "brokerId=1")


@pytest.mark.parametrize("checks", [False, True])
@pytest.mark.parametrize("reads", [False, True])
def test_a_slave_suggests_the_broker_to_read_from(reads: bool, checks: bool) -> None:
    """A living master is suggested; otherwise what the group's configuration says."""
    own_id, far = 5, 1000

    async def scenario(session: Session) -> None:
        node = session.node
        assert node.tables.topics.create_for_send("T", "TBW102", 4) is not None
        group = SubscriptionGroupConfig(group_name="g", broker_id=own_id)
        node.tables.groups.put(group)
        for number in range(3):
            put(node.store, body=b"%d" % number)
        await settled(session)
        end = node.store.queue_max("T", 0)
        later, moved = ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED
        alone = own_id if reads else 0
        for is_alive, offset, code, suggested in (
            (True, 0, ResponseCode.SUCCESS, 0),
            (True, end, later, 0),
            (True, end + far, later, 0),
            (False, 0, ResponseCode.SUCCESS, alone),
            (False, end, ResponseCode.PULL_NOT_FOUND, alone),
            (False, end + far, moved if checks else later, alone if checks else own_id),
        ):
            node.broker.puller.is_master_alive = lambda is_alive=is_alive: is_alive  # type: ignore[misc]
            answer = await session.pull(offset=offset, flags=4 | 1, commitOffset=1)
            actual = (answer.code, int(answer.fields["suggestWhichBrokerId"]))
            assert actual == (code, suggested), (is_alive, offset)
        assert "T@g" not in node.tables.offsets.body().offset_table, "only a master keeps positions"

    settings = (
        f"slaveReadEnable={str(reads).lower()}",
        f"offsetCheckInSlave={str(checks).lower()}",
    )
    with_node(scenario, "brokerRole=SLAVE", "brokerId=1", *settings)


def test_the_second_port_serves_all_but_pulls() -> None:
    async def scenario(session: Session) -> None:
        await fill(session, 1)
        async with open_connection(session.world, (HOST, PORT - 2)) as connection:
            sent = await connection.request(request(310, send_fields(), b"second port"))
            assert sent.fields["queueOffset"] == "1"
            assert (await connection.request(request(RequestCode.GET_ALL_TOPIC_CONFIG))).code == 0
            refused = await connection.request(request(11, pull_fields()))
            assert refused.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED

    with_node(scenario)


def test_header_fields_of_the_wrong_type() -> None:
    async def scenario(session: Session) -> None:
        fields = {**pull_fields(), "queueOffset": "x"}
        answer = await session.ask(11, fields)
        assert (answer.code, answer.remark) == (
            1,
            "the custom field <queueOffset> is not a number: 'x'",
        )
        del fields["queueOffset"]
        answer = await session.ask(11, fields)
        assert (answer.code, answer.remark) == (1, "the custom field <queueOffset> is null")

    with_node(scenario)


def test_cold_records_are_read_in_a_separate_task() -> None:
    async def scenario(session: Session) -> None:
        await fill(session, 3)
        store = session.node.store
        store.read_cached = lambda ranges: None  # type: ignore[method-assign]
        assert bodies(await session.pull()) == [b"0", b"1", b"2"]

        async def read_nothing(ranges: object) -> bytes:
            return b""

        store.read = read_nothing  # type: ignore[method-assign]
        answer = await session.pull()
        assert (answer.code, answer.remark) == (20, "MESSAGE_WAS_REMOVING")
        assert answer.fields["nextBeginOffset"] == "3"

    with_node(scenario)
