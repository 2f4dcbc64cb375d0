"""Limits of queries by key, queries of the newest record, and resets by time."""

from typing import Any

import trio

from rocketbed.wire.bodies_admin import QueueOffsets
from rocketbed.wire.command import RequestCode, ResponseCode, request
from rocketbed.wire.frame import FrameReader, encode
from rocketbed.wire.headers import (
    QueryConsumerOffsetRequest,
    QueryMessageRequest,
    ViewMessageRequest,
)
from rocketbed.wire.headers_admin import CreateTopicRequest, ResetOffsetRequest
from rocketbed.wire.message import decode_messages
from tests.support.broker import HOST, PORT, Session, send_fields, with_node

KEY_MAX, UNIQUE_MAX = 64, 32
"""Most messages of an answer by key, and by unique key."""
ANSWER_MAX = 8 << 20
BODY = 900_000


async def query(session: Session, key: str, **changes: Any) -> int:
    """Return the number of different messages."""
    values: dict[str, Any] = {
        "topic": "T", "key": key, "maxNum": 100, "beginTimestamp": 0, "endTimestamp": 1 << 50,
    }  # fmt: skip
    fields = QueryMessageRequest(**values | changes).encode()
    reply = await session.ask(RequestCode.QUERY_MESSAGE, fields)
    messages = decode_messages(reply.body)
    offsets = {message.physical_offset for message in messages}
    assert len(offsets) == len(messages)
    assert reply.code == (ResponseCode.SUCCESS if messages else ResponseCode.QUERY_NOT_FOUND)
    assert int(reply.fields["indexLastUpdatePhyoffset"]) >= max(offsets, default=0)
    return len(messages)


def test_queries_by_key_have_limits() -> None:
    async def scenario(session: Session) -> None:
        for number in range(KEY_MAX + 6):
            text = {"KEYS": "often", "UNIQ_KEY": "always"}
            await session.send(body=b"%d" % number, properties=text)
        first_ms = (await session.messages())[0].store_timestamp
        for most, count in ((100, KEY_MAX), (KEY_MAX + 1, KEY_MAX), (7, 7), (0, 0), (-1, 0)):
            assert await query(session, "often", maxNum=most) == count
        for most, count in ((100, UNIQUE_MAX), (UNIQUE_MAX - 1, UNIQUE_MAX - 1)):
            assert await query(session, "always", maxNum=most, uniqueKeyQuery=True) == count
        assert await query(session, "often", endTimestamp=first_ms - 1001) == 0
        assert await query(session, "often", beginTimestamp=first_ms - 1000) == KEY_MAX
        assert await query(session, "often", beginTimestamp=first_ms + 1_000_000) == 0
        await session.send("U", properties={"KEYS": "rare"})
        assert await query(session, "often", topic="U") == 0

    with_node(scenario)


def test_an_answer_has_a_limit_of_bytes() -> None:
    async def scenario(session: Session) -> None:
        for _ in range(10):
            await session.send(body=bytes(BODY), properties={"KEYS": "large"})
        (message, *_) = decode_messages((await session.pull(count=1)).body)
        await session.node.store.dispatched.wait_for(session.node.store.max_offset)
        assert await query(session, "large") == ANSWER_MAX // message.size

    with_node(scenario)


def test_finds_a_message_by_id_before_it_is_dispatched() -> None:
    async def scenario(session: Session) -> None:
        await session.send()
        view = ViewMessageRequest(offset=session.node.store.max_offset).encode()
        commands = [
            request(RequestCode.SEND_MESSAGE_V2, send_fields(), b"body"),
            request(RequestCode.VIEW_MESSAGE_BY_ID, view),
        ]
        for opaque, command in enumerate(commands):
            command.opaque = opaque
        stream, reader = await session.world.network.connect(HOST, PORT), FrameReader()
        await stream.send_all(b"".join(map(encode, commands)))
        codes: dict[int, int] = {}
        while len(codes) < 2:
            replies = reader.feed(bytes(await stream.receive_some(65_536)))
            codes |= {reply.opaque: reply.code for reply in replies}
        assert codes == {0: 0, 1: 0}
        await trio.aclose_forcefully(stream)

    with_node(scenario)


def test_resets_a_group_by_time() -> None:
    async def scenario(session: Session) -> None:
        for _ in range(6):
            await session.send()
            await trio.sleep(0.01)
        await session.commit("g", "T", 0)
        times = [message.store_timestamp for message in await session.messages()]
        for at_ms, offset in ((-1, 6), (times[0] - 5, 0), (times[3], 3), (times[3] + 1, 4)):
            header = ResetOffsetRequest(topic="T", group="g", timestamp=at_ms, isForce=True)
            reply = await session.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header.encode())
            table = QueueOffsets.decode(reply.body).offset_table
            assert {one.queue_id: at for one, at in table.items()}[0] == offset

    with_node(scenario)


def test_a_new_group_begins_where_nothing_has_expired() -> None:
    async def position(session: Session, zero: bool | None) -> tuple[int, str | None]:
        header = QueryConsumerOffsetRequest(
            consumerGroup="new", topic="T", queueId=0, setZeroIfNotFound=zero
        )
        reply = await session.ask(RequestCode.QUERY_CONSUMER_OFFSET, header.encode())
        return reply.code, reply.fields.get("offset")

    async def scenario(session: Session) -> None:
        header = CreateTopicRequest(
            topic="T", defaultTopic="TBW102", readQueueNums=1, writeQueueNums=1, perm=6,
            topicFilterType="SINGLE_TAG",
        )  # fmt: skip
        await session.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header.encode())
        missing = ResponseCode.QUERY_NOT_FOUND, None
        assert [await position(session, zero) for zero in (None, True, False)] == [missing] * 3
        await session.send()
        await session.messages()
        assert [await position(session, zero) for zero in (None, True)] == [(0, "0")] * 2
        assert await position(session, False) == missing

    with_node(scenario)
