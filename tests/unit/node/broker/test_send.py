"""Sends: what is stored, what is answered, what is refused (wire.md 4)."""

from types import SimpleNamespace
from typing import cast

import pytest

from rocketbed.node.store.batch_queue import batch_unit
from rocketbed.node.store.cursor import LogCursor
from rocketbed.node.store.errors import StoreFailed
from rocketbed.remoting.connection import Connection
from rocketbed.wire.command import Command, Encoding, RequestCode, ResponseCode, request
from rocketbed.wire.frame import FrameReader
from rocketbed.wire.headers import SendMessageRequest
from rocketbed.wire.message import (
    MULTI_TAGS,
    BatchItem,
    decode_messages,
    encode_batch,
    parse_offset_message_id,
)
from tests.support.broker import HOST, PORT, Session, node_run, send_fields, with_node


def outcome(scenario: object, *options: str) -> Command:
    """The answer that a scenario returns."""
    value = with_node(scenario, *options)  # type: ignore[arg-type]
    assert isinstance(value, Command)
    return value


def test_message_is_stored_and_answered_with_its_position() -> None:
    async def scenario(session: Session) -> None:
        sent = {"KEYS": "k1 k2", "TAGS": "A", "UNIQ_KEY": "AB12", "WAIT": "true", "own": "x y"}
        for number in range(3):
            answer = await session.send(body=b"%d" % number, properties=sent, h=-7, queue_id=2)
            assert (answer.code, answer.remark) == (0, None)
            assert answer.fields["queueId"] == "2"
            assert answer.fields["queueOffset"] == str(number)
            assert answer.fields["transactionId"] == "AB12"
            assert answer.fields["MSG_REGION"] == "DefaultRegion"
            assert answer.fields["TRACE_ON"] == "true"
            host, port, offset = parse_offset_message_id(answer.fields["msgId"])
            assert (host, port) == (HOST, PORT)
            record = await session.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})
            assert record.code == 0
        stored = await session.messages(queue_id=2)
        assert [message.body for message in stored] == [b"0", b"1", b"2"]
        first = stored[0]
        assert first.properties == {
            **sent,
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "CLUSTER": "DefaultCluster",
        }
        assert (first.flag, first.born_timestamp, first.born_host[0]) == (
            -7,
            1_700_000_000_000,
            HOST,
        )
        assert first.store_host == (HOST, PORT)

    with_node(scenario)


@pytest.mark.parametrize("encoding", list(Encoding))
def test_every_encoding_is_answered_in_kind(encoding: Encoding) -> None:
    async def scenario(session: Session) -> None:
        await session.send()
        for number in range(1, 4):
            command = request(
                310, send_fields(properties={"UNIQ_KEY": "K"}), b"x", encoding=encoding
            )
            answer = await session.connection.request(command)
            assert answer.encoding is encoding
            assert answer.code == 0
            assert answer.fields["queueOffset"] == str(number)

    with_node(scenario)


def test_v1_names_and_missing_optional_fields() -> None:
    async def scenario(session: Session) -> None:
        header = SendMessageRequest(
            producerGroup="p",
            topic="T",
            defaultTopic="TBW102",
            defaultTopicQueueNums=4,
            queueId=1,
            sysFlag=0,
            bornTimestamp=1,
            flag=0,
        )
        answer = await session.ask(RequestCode.SEND_MESSAGE, header.encode(), b"v1")
        assert answer.code == 0
        assert len(answer.fields["transactionId"]) == 32
        (stored,) = await session.messages(queue_id=1)
        assert stored.unique_key == answer.fields["transactionId"]

    with_node(scenario)


def test_raw_numbers_and_booleans_of_ali_ons() -> None:
    async def scenario(session: Session) -> None:
        await session.send()
        command = request(310, {}, b"raw")
        command.raw_fields.update(
            {
                "a": "p", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 5, "h": 0,
                "i": "TAGS\x01undefined\x02UNIQ_KEY\x01U\x02", "j": 0, "k": False,
            }
        )  # fmt: skip
        answer = await session.connection.request(command)
        assert answer.fields["queueOffset"] == "1"

    with_node(scenario)


def test_one_way_send_is_stored_and_unanswered() -> None:
    async def scenario(session: Session) -> None:
        await session.send()
        session.connection.notify(request(310, send_fields(), b"one way"))
        session.connection.notify(request(310, send_fields(queue_id=99), b"refused silently"))
        answer = await session.send(body=b"after")
        assert answer.fields["queueOffset"] == "2"
        assert [message.body for message in await session.messages()] == [
            b"hello",
            b"one way",
            b"after",
        ]

    with_node(scenario)


def test_negative_queue_id_lets_the_broker_choose() -> None:
    async def scenario(session: Session) -> set[str]:
        return {(await session.send(queue_id=-1)).fields["queueId"] for _ in range(40)}

    assert with_node(scenario) == {"0", "1", "2", "3"}


def test_batch_is_stored_as_messages_with_own_properties() -> None:
    items = [
        BatchItem(
            b"b%d" % number, number, f"UNIQ_KEY\x01U{number}\x02KEYS\x01k{number}\x02".encode()
        )
        for number in range(3)
    ]

    async def scenario(session: Session) -> None:
        await session.send()
        answer = await session.send(
            body=encode_batch(items),
            code=RequestCode.SEND_BATCH_MESSAGE,
            properties={"UNIQ_KEY": "BATCH"},
            m=True,
        )
        assert answer.code == 0
        assert answer.fields["queueOffset"] == "1"
        assert answer.fields["transactionId"] == "BATCH"
        ids = answer.fields["msgId"].split(",")
        stored = (await session.messages())[1:]
        assert [message.offset_message_id for message in stored] == ids
        assert [message.unique_key for message in stored] == ["U0", "U1", "U2"]
        assert [message.flag for message in stored] == [0, 1, 2]

    with_node(scenario)


def test_batch_to_a_batch_queue_becomes_one_record() -> None:
    items = [BatchItem(b"x", 0, b""), BatchItem(b"y", 0, b"")]

    async def scenario(session: Session) -> None:
        created = await session.ask(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            {
                "topic": "B", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
                "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
                "attributes": "+queue.type=BatchCQ",
            },
        )  # fmt: skip
        assert created.code == 0
        answers = [
            await session.send(
                "B", encode_batch(items), properties={"UNIQ_KEY": "W"}, m=True, code=320
            )
            for _ in range(2)
        ]
        assert [answer.fields["queueOffset"] for answer in answers] == ["0", "2"]
        assert answers[0].fields["batchUniqId"] == "W"
        too_many = encode_batch([BatchItem(b"x", 0, b"")] * 32_768)
        refused = await session.send("B", too_many, m=True, code=320)
        assert (refused.code, "32767 at once" in (refused.remark or "")) == (13, True)
        single = await session.send("B")
        assert (single.code, single.fields["queueOffset"]) == (0, "4")
        await session.node.store.dispatched.wait_for(session.node.store.max_offset)
        queue = {"topic": "B", "queueId": "0"}
        assert (await session.ask(30, queue)).fields == {"offset": "5"}
        assert (await session.ask(31, queue)).fields == {"offset": "0"}
        whole = encode_batch(items)
        for offset, bodies in ((0, [whole, whole, b"hello"]), (3, [whole, b"hello"])):
            pulled = await session.pull("B", offset)
            assert [message.body for message in decode_messages(pulled.body)] == bodies
            assert pulled.fields["nextBeginOffset"] == "5"

    with_node(scenario)


def test_batch_queue_has_the_keys_and_tag_of_its_batch() -> None:
    async def scenario(session: Session) -> None:
        await make(session, "B", attributes="+queue.type=BatchCQ")
        whole = encode_batch([BatchItem(b"x", 0, b""), BatchItem(b"y", 0, b"")])
        properties = {"UNIQ_KEY": "W", "KEYS": "k l", "TAGS": "red"}
        sent = await session.send("B", whole, properties=properties, m=True, code=320)
        store = session.node.store
        await store.dispatched.wait_for(store.max_offset)
        at = (await session.messages("B"))[0].physical_offset
        (scanned,) = LogCursor(store.log.segments, store._parts.scanner).record_at(at).entries
        assert (sent.code, scanned.keys) == (0, ("W", "k", "l"))
        assert store._parts.queues.batch["B", 0].unit_at(0) == batch_unit(scanned)
        assert [store.places("B", key) for key in ("W", "k", "l")] == [store.places("B", "W")] * 3
        assert store.places("B", "W")

    with_node(scenario)


# --- topics


async def make(session: Session, topic: str, **changes: str) -> None:
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    assert (await session.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, {**fields, **changes})).code == 0


@pytest.mark.parametrize("properties", [{}, {"UNIQ_KEY": "K"}])
def test_messages_of_a_multi_tag_topic_are_marked(properties: dict[str, str]) -> None:
    async def scenario(session: Session) -> None:
        await make(session, "Tags", topicFilterType="MULTI_TAG")
        assert (await session.send("Tags", properties=properties)).code == 0
        (message,) = await session.messages("Tags")
        assert message.sys_flag & MULTI_TAGS

    with_node(scenario)


@pytest.mark.parametrize("properties", [{}, {"UNIQ_KEY": "K"}])
def test_ordered_topics_take_nothing_without_the_brokers_permission(
    properties: dict[str, str],
) -> None:
    async def scenario(session: Session) -> None:
        await make(session, "Ordered", order="true")
        answer = await session.send("Ordered", properties=properties)
        assert answer.code == ResponseCode.NO_PERMISSION

    with_node(scenario, "brokerPermission=4")


def test_unknown_topic_is_created_from_the_default() -> None:
    async def scenario(session: Session) -> None:
        answer = await session.send("New", d=3)
        assert answer.code == 0
        config = session.node.tables.topics.get("New")
        assert config is not None
        assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (3, 3, 6)
        assert session.node.tables.topics.is_durable("New")

    with_node(scenario)


def test_sends_waiting_for_a_new_topic_keep_their_order() -> None:
    async def scenario(session: Session) -> list[bytes]:
        for number in range(20):
            session.connection.notify(request(310, send_fields("New"), b"%02d" % number))
        await session.send("New", b"last")
        return [message.body for message in await session.messages("New")]

    assert with_node(scenario) == [b"%02d" % number for number in range(20)] + [b"last"]


def test_message_to_a_new_topic_survives_a_power_cut() -> None:
    async def send(session: Session) -> None:
        answer = await session.send("New", b"kept")
        assert answer.code == 0
        session.world.mark("answered")
        await session.send("New", b"more")

    crashed = node_run(
        send, "flushDiskType=SYNC_FLUSH", crash_at_mark="answered", kind="power", mode="strict"
    )
    assert crashed.outcome == "power cut"

    async def look(session: Session) -> list[bytes]:
        return [message.body for message in await session.messages("New")]

    run_after = node_run(look, "flushDiskType=SYNC_FLUSH", image=crashed.image, boots=2)
    assert run_after.value[:1] == [b"kept"]


def test_without_automatic_creation_an_unknown_topic_is_refused() -> None:
    async def scenario(session: Session) -> Command:
        return await session.send("New")

    answer = outcome(scenario, "autoCreateTopicEnable=false")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert answer.remark == "topic[New] not exist, apply first please!"


def test_unsaved_topic_gets_an_error_answer() -> None:
    async def scenario(session: Session) -> Command:
        topics = session.node.tables.topics
        topics.delete("gone")

        async def fail(value: object) -> None:
            raise OSError(28, "No space left on device")

        topics._file.write = fail  # type: ignore[method-assign]
        return await session.send("New")

    answer = outcome(scenario)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "No space left" in (answer.remark or "")


# --- refusals

REFUSALS: list[tuple[str, dict[str, object], int, str]] = [
    ("illegal characters", {"topic": "a b"}, 29, "illegal characters"),
    ("blank topic", {"topic": " "}, 29, "blank"),
    ("long topic", {"topic": "x" * 128}, 29, "longer than topic max length 127"),
    ("system topic", {"topic": "SCHEDULE_TOPIC_XXXX"}, 16, "is forbidden"),
    ("queue out of range", {"queue_id": 4}, 29, "request queueId[4] is illegal"),
    ("delay text", {"properties": {"DELAY": "soon"}}, 13, "DELAY"),
    ("timer", {"properties": {"TIMER_DELIVER_MS": "1900000000000"}}, 1, "timer messages"),
    ("prepared by flag", {"f": 4}, 16, "transactions"),
    ("prepared by property", {"properties": {"TRAN_MSG": "true"}}, 16, "transactions"),
    ("request", {"properties": {"REPLY_TO_CLIENT": "1@c"}}, 13, "request and reply"),
    ("lite topic", {"properties": {"__LITE_TOPIC": "a"}}, 13, "lite topics"),
    ("inner batch", {"properties": {"INNER_NUM": "3"}}, 13, "inner batch"),
    ("empty body", {"body": b""}, 13, "no body"),
    ("large body", {"body": bytes(4097)}, 13, "maxMessageSize is 4096"),
    ("large properties", {"properties": {"p": "x" * 32_767}}, 13, "at most 32767"),
    ("broken batch", {"body": b"\x00\x00\x00\x09abc", "m": True}, 13, "batch body"),
    ("empty batch", {"body": encode_batch([BatchItem(b"x", 0, b"DELAY\x013\x02")]), "m": True},
     13, "DELAY"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [row[1:] for row in REFUSALS],
    ids=[row[0] for row in REFUSALS],
)
def test_refusals(changes: dict[str, object], code: int, remark: str) -> None:
    async def scenario(session: Session) -> None:
        await session.send()
        answer = await session.send(**changes)  # type: ignore[arg-type]
        assert answer.code == code
        assert remark in (answer.remark or "")
        assert "queueOffset" not in answer.fields
        assert (await session.send()).fields["queueOffset"] == "1"
        assert [message.body for message in await session.messages()] == [b"hello"] * 2

    with_node(scenario, "maxMessageSize=4096")


def test_request_goes_to_a_retry_topic_as_it_is() -> None:
    """A consumer that got it from another broker sends it back there."""

    async def scenario(session: Session) -> Command:
        return await session.send(topic="%RETRY%g", properties={"REPLY_TO_CLIENT": "1@c"})

    assert outcome(scenario).code == 0


@pytest.mark.parametrize("name", ["_SYS_MSG_PRIORITY_", "INNER_MULTI_DISPATCH"])
def test_ignored_features_are_named_in_the_log_once(name: str) -> None:
    async def scenario(session: Session) -> None:
        for topic in ("A", "A", "B"):
            assert (await session.send(topic=topic, properties={name: "5"})).code == 0

    log = node_run(scenario).log
    lines = [line for line in log if line.event == "send.feature_ignored"]
    assert [line.fields["topic"] for line in lines] == ["A", "B"]


def test_delay_zero_is_no_delay() -> None:
    async def scenario(session: Session) -> Command:
        return await session.send(properties={"DELAY": "0"})

    assert outcome(scenario).code == 0


def test_message_consumed_too_often_becomes_a_dead_letter() -> None:
    async def scenario(session: Session) -> None:
        await session.send("%RETRY%g", b"again", j=16)
        await session.send("%RETRY%g", b"over", j=17, properties={"DELAY": "5"})
        await session.send("%RETRY%g", b"asked", j=4, l=3)
        assert [one.body for one in await session.messages("%RETRY%g")] == [b"again"]
        assert [one.body for one in await session.messages("%DLQ%g")] == [b"over", b"asked"]
        dead = session.node.broker.tables.topics.get("%DLQ%g")
        assert dead is not None
        assert (dead.read_queue_nums, dead.write_queue_nums, dead.perm) == (1, 1, 6)

    with_node(scenario)


def test_retry_topic_of_an_unknown_group_is_refused() -> None:
    async def scenario(session: Session) -> Command:
        return await session.send("%RETRY%nobody")

    answer = outcome(scenario, "autoCreateSubscriptionGroup=false")
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        ({"e": "x"}, "<e>"),
        ({"f": ""}, "<f>"),
        ({"h": str(2**31)}, "<h>"),
        ({"g": "1.5"}, "<g>"),
        ({"b": None}, "the custom field <b> is null"),
    ],
)
def test_wrongly_typed_header_fields_get_code_1(change: dict[str, str | None], remark: str) -> None:
    async def scenario(session: Session) -> None:
        await session.send()
        fields = {**send_fields(), **change}
        answer = await session.ask(
            310, {name: value for name, value in fields.items() if value is not None}, b"x"
        )
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert remark in (answer.remark or "")
        assert (await session.send()).code == 0

    with_node(scenario)


def test_a_slave_refuses_sends_as_busy() -> None:
    async def scenario(session: Session) -> Command:
        return await session.send()

    answer = outcome(scenario, "brokerRole=SLAVE", "brokerId=1")
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert (answer.remark or "").startswith("[REJECTREQUEST]")


@pytest.mark.parametrize("properties", [{}, {"UNIQ_KEY": "K"}])
def test_before_its_start_time_a_broker_refuses(properties: dict[str, str]) -> None:
    async def scenario(session: Session) -> Command:
        return await session.send("BenchmarkTest", properties=properties)

    answer = outcome(scenario, "startAcceptSendRequestTimeStamp=1900000000000")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "unable to service" in (answer.remark or "")


# --- waiting


def test_sync_flush_answers_when_the_log_is_flushed() -> None:
    async def scenario(session: Session) -> None:
        for _ in range(5):
            assert (await session.send()).code == 0
            assert session.node.store.flushed.value == session.node.store.max_offset

    with_node(scenario, "flushDiskType=SYNC_FLUSH")


def test_message_in_progress_at_a_disk_failure_is_refused() -> None:
    frames: list[bytes] = []

    async def scenario(session: Session) -> None:
        await session.send()
        store, sender = session.node.store, session.node.broker.sender
        end, queue_end = store.max_offset, store.queue_max("T", 0, committed=False)
        peer = cast(Connection, SimpleNamespace(remote_bytes=bytes(8), send=frames.append))
        command = request(RequestCode.SEND_MESSAGE_V2, send_fields(), b"in hand")
        assert sender.handle(command, peer) is None
        store._failure.set(StoreFailed("fsync of x failed: check the disk"))
        sender.end_of_run(peer)
        assert (store.max_offset, store.queue_max("T", 0, committed=False)) == (end, queue_end)

    with pytest.RaisesGroup(StoreFailed, flatten_subgroups=True):
        node_run(scenario)
    (answer,) = FrameReader().feed(b"".join(frames))
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert answer.remark == "fsync of x failed: check the disk"


def test_master_without_slaves_answers_flush_slave_timeout() -> None:
    async def scenario(session: Session) -> None:
        answer = await session.send()
        assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert answer.fields["queueOffset"] == "0"
        at_once = await session.send(properties={"WAIT": "false"})
        assert at_once.code == 0
        confirmed = session.node.confirmed
        assert confirmed is not None
        confirmed.advance(1 << 40)
        assert (await session.send()).code == 0
        assert session.connection.outbox_bytes == 0

    with_node(scenario, "brokerRole=SYNC_MASTER", "inSyncReplicas=2", "slaveTimeout=500")


def test_concurrent_sends_are_answered_in_offset_order() -> None:
    async def scenario(session: Session) -> None:
        import trio

        await session.send()
        offsets: list[int] = []

        async def send_one() -> None:
            answer = await session.send(properties={"UNIQ_KEY": "U"})
            offsets.append(int(answer.fields["queueOffset"]))

        async with trio.open_nursery() as nursery:
            for _ in range(64):
                nursery.start_soon(send_one)
        assert sorted(offsets) == list(range(1, 65))

    with_node(scenario)
