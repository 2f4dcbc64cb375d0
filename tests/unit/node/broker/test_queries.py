"""Offsets, bounds, single messages (wire.md 2.1, 6.5)."""

from typing import Any

import pytest
import trio

from rocketbed.wire.command import Command, RequestCode, ResponseCode
from rocketbed.wire.message import decode_messages, parse_offset_message_id
from tests.support.broker import Session, with_node

QUEUE = {"topic": "T", "queueId": "0"}


async def fill(session: Session, count: int = 3, **changes: Any) -> list[Command]:
    answers = []
    for number in range(count):
        answers.append(await session.send(body=b"%d" % number, **changes))
        await trio.sleep(1)
    await session.node.store.dispatched.wait_for(session.node.store.max_offset)
    return answers


def test_bounds() -> None:
    async def scenario(session: Session) -> None:
        await fill(session)
        assert (await session.ask(30, QUEUE)).fields == {"offset": "3"}
        assert (await session.ask(30, {**QUEUE, "committed": "false"})).fields == {"offset": "3"}
        assert (await session.ask(31, QUEUE)).fields == {"offset": "0"}
        assert (await session.ask(30, {"topic": "N", "queueId": "9"})).fields == {"offset": "0"}
        assert (await session.ask(32, {"topic": "N", "queueId": "0"})).fields == {"timestamp": "-1"}

    with_node(scenario)


def test_offset_by_time() -> None:
    async def scenario(session: Session) -> None:
        await fill(session)
        times = [message.store_timestamp for message in await session.messages()]
        first = await session.ask(32, QUEUE)
        assert first.fields == {"timestamp": str(times[0])}

        async def at(time_ms: int, **more: str) -> str:
            fields = {**QUEUE, "timestamp": str(time_ms), **more}
            return (await session.ask(29, fields)).fields["offset"]

        assert await at(times[1]) == "1"
        assert await at(times[1], boundaryType="LOWER") == "1"
        assert await at(times[1], boundaryType="upper") == "1"
        assert await at(times[1] + 1) == "2"
        assert await at(times[1] + 1, boundaryType="UPPER") == "1"
        assert await at(0) == "0"
        assert await at(times[2] + 1) == "3"

    with_node(scenario)


def test_message_by_id() -> None:
    async def scenario(session: Session) -> None:
        sent = await fill(session)
        _, _, offset = parse_offset_message_id(sent[1].fields["msgId"])
        actual = await session.ask(33, {"offset": str(offset)})
        assert [message.body for message in decode_messages(actual.body)] == [b"1"]
        for wrong in (offset + 1, -1, 1 << 50):
            answer = await session.ask(33, {"offset": str(wrong)})
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert str(wrong) in (answer.remark or "")

    with_node(scenario)


def query(key: str, **changes: str) -> dict[str, str]:
    return {
        "topic": "T",
        "key": key,
        "maxNum": "64",
        "beginTimestamp": "0",
        "endTimestamp": "9223372036854775807",
        **changes,
    }


def test_query_by_key_and_time() -> None:
    async def scenario(session: Session) -> None:
        await fill(session, 4, properties={"KEYS": "k1 k2"})
        await session.send(body=b"u", properties={"UNIQ_KEY": "UNIQUE"})
        await session.node.store.dispatched.wait_for(session.node.store.max_offset)
        answer = await session.ask(12, query("k2"))
        bodies = [message.body for message in decode_messages(answer.body)]
        assert bodies == [b"0", b"1", b"2", b"3"]
        assert int(answer.fields["indexLastUpdateTimestamp"]) > 0
        assert "indexLastUpdatePhyoffset" in answer.fields
        two = await session.ask(12, query("k1", maxNum="2"))
        assert len(decode_messages(two.body)) == 2
        unique = await session.ask(12, query("UNIQUE", _UNIQUE_KEY_QUERY="true", indexType="U"))
        assert [message.body for message in decode_messages(unique.body)] == [b"u"]
        early = await session.ask(12, query("k1", endTimestamp="1000"))
        assert early.code == ResponseCode.QUERY_NOT_FOUND
        nobody = await session.ask(12, query("nobody"))
        assert nobody.code == ResponseCode.QUERY_NOT_FOUND
        assert (await session.ask(12, query("k1", maxNum="-5"))).code == 22

    with_node(scenario)


def test_query_by_tag_like_rocketmq_5_5_clients() -> None:
    """`indexType=T`: found where the index holds tags, which only that release's does."""

    async def scenario(session: Session) -> None:
        store = session.node.store
        await session.send(body=b"0", properties={"TAGS": "red", "KEYS": "k"})
        store.log.tail.index_tags = True
        await session.send(body=b"1", properties={"TAGS": "red"})
        await session.send(body=b"2", properties={"KEYS": "red"})
        await store.dispatched.wait_for(store.max_offset)
        for index_type, bodies in (("T", [b"1"]), ("K", [b"2"]), ("?", [b"2"])):
            answer = await session.ask(12, query("red", indexType=index_type))
            assert [message.body for message in decode_messages(answer.body)] == bodies

    with_node(scenario)


def test_query_gives_at_most_64() -> None:
    async def scenario(session: Session) -> None:
        for _ in range(70):
            await session.send(properties={"KEYS": "same"})
        await session.node.store.dispatched.wait_for(session.node.store.max_offset)
        answer = await session.ask(12, query("same", maxNum="1000"))
        assert len(decode_messages(answer.body)) == 64

    with_node(scenario)


def test_record_is_found_once_for_each_of_its_keys() -> None:
    """Upstream does the same: the fixtures' `multi-1` is such a key."""

    async def scenario(session: Session) -> None:
        for number in range(2):
            await session.send(body=b"%d" % number, properties={"KEYS": "same other same"})
        await session.node.store.dispatched.wait_for(session.node.store.max_offset)
        answer = await session.ask(12, query("same"))
        bodies = [message.body for message in decode_messages(answer.body)]
        assert bodies == [b"0", b"0", b"1", b"1"]

    with_node(scenario)


def test_record_in_two_index_files_is_found_once() -> None:
    async def scenario(session: Session) -> None:
        store = session.node.store
        for number in range(3):
            await session.send(body=b"%d" % number, properties={"KEYS": "same", "UNIQ_KEY": "u"})
        await store.dispatched.wait_for(store.max_offset)
        assert store._dispatcher.last is not None
        store._parts.index.put_all([store._dispatcher.last])
        store._parts.index.drain()
        assert len(store._parts.index.files) == 2
        answer = await session.ask(12, query("same"))
        bodies = [message.body for message in decode_messages(answer.body)]
        assert bodies == [b"0", b"1", b"2"]

    with_node(scenario, "maxIndexNum=7")


def test_consumer_offsets() -> None:
    async def scenario(session: Session) -> None:
        await fill(session)
        fields = {"consumerGroup": "g", **QUEUE}
        young = await session.ask(14, fields)
        assert young.fields == {"offset": "0"}
        strict = await session.ask(14, {**fields, "setZeroIfNotFound": "false"})
        assert strict.code == ResponseCode.QUERY_NOT_FOUND
        empty = await session.ask(14, {**fields, "queueId": "1"})
        assert empty.code == ResponseCode.QUERY_NOT_FOUND
        unknown = await session.commit("g", "T", 2)
        assert unknown.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        await session.heartbeat()
        assert (await session.commit("g", "T", 2)).code == 0
        assert (await session.ask(14, fields)).fields == {"offset": "2"}
        assert (await session.commit("g", "T", -1)).code == 0
        assert (await session.commit("g", "T", 1)).code == 0
        assert (await session.ask(14, fields)).fields == {"offset": "1"}
        assert (await session.commit("g", "N", 1)).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await session.commit("g", "T", 1, queue_id=-1)).code == 29

    with_node(scenario)


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.QUERY_MESSAGE,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
    ],
)
def test_bad_fields_are_answered_with_code_1(code: int) -> None:
    async def scenario(session: Session) -> None:
        missing = await session.ask(code, {})
        assert missing.code == 1
        assert "is null" in (missing.remark or "")
        names = ("topic", "key", "consumerGroup")
        values = dict.fromkeys(names, "T") | dict.fromkeys(
            ("queueId", "timestamp", "offset", "maxNum", "beginTimestamp"), "x"
        )
        values |= {"endTimestamp": "1", "commitOffset": "1"}
        wrong = await session.ask(code, values)
        assert wrong.code == 1
        assert "is not a number: 'x'" in (wrong.remark or "")

    with_node(scenario)
