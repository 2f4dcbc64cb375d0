"""Topics and groups: made, listed, deleted; what slaves copy; refusals (wire.md 2.3, 7.2)."""

import errno

import pytest
import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.faults import SimFault
from rocketbed.node.broker.refusals import FEATURES
from rocketbed.wire.bodies import (
    QUEUES_MAX,
    ConsumerOffsetTable,
    HaRuntimeInfo,
    KvTable,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigList,
    TopicConfigTable,
)
from rocketbed.wire.command import Command, RequestCode, ResponseCode
from rocketbed.wire.properties_text import parse_properties
from tests.support.broker import Session, node_run, with_node


def topic_fields(topic: str = "T", **changes: str) -> dict[str, str]:
    return {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": "2",
        "writeQueueNums": "2",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        **changes,
    }


def test_topics_are_made_changed_and_kept() -> None:
    async def make(session: Session) -> None:
        assert (await session.ask(17, topic_fields(attributes="+message.type=FIFO"))).code == 0
        first = await session.ask(351, {"topic": "T"})
        config = TopicConfig.decode(first.body)
        assert (config.read_queue_nums, config.attributes) == (2, {"message.type": "FIFO"})
        version = session.node.tables.topics.version
        assert (await session.ask(17, topic_fields())).code == 0
        assert session.node.tables.topics.version == version
        changed = await session.ask(17, topic_fields(readQueueNums="8", attributes="-message.type"))
        assert changed.code == 0
        assert session.node.tables.topics.version.counter == version.counter + 1
        session.world.mark("answered")
        await session.ask(30, {"topic": "T", "queueId": "0"})

    crashed = node_run(make, crash_at_mark="answered", kind="power", mode="strict")
    assert crashed.outcome == "power cut"

    async def look(session: Session) -> TopicConfig:
        return TopicConfig.decode((await session.ask(351, {"topic": "T"})).body)

    settings = node_run(look, image=crashed.image, boots=2).value
    assert (settings.read_queue_nums, settings.write_queue_nums, settings.attributes) == (8, 2, {})


def test_list_of_topics_is_all_or_none() -> None:
    async def scenario(session: Session) -> None:
        good = TopicConfig(topic_name="A")
        bad = TopicConfig(topic_name="a b")
        body = TopicConfigList(topic_config_list=[good, bad]).encode()
        assert (await session.ask(18, {}, body)).code == ResponseCode.INVALID_PARAMETER
        assert (await session.ask(351, {"topic": "A"})).code == ResponseCode.TOPIC_NOT_EXIST
        body = TopicConfigList(topic_config_list=[good, TopicConfig(topic_name="B")]).encode()
        assert (await session.ask(18, {}, body)).code == 0
        assert (await session.ask(351, {"topic": "B"})).code == 0

    with_node(scenario)


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"topic": "a/b"}, 29, "illegal characters"),
        ({"topic": ""}, 29, "blank"),
        ({"topic": "TBW102"}, 29, "conflict with system topic"),
        ({"readQueueNums": "-1"}, 29, "queues"),
        ({"writeQueueNums": "70000"}, 29, "queues"),
        ({"topicFilterType": "NO_TAG"}, 29, "topicFilterType"),
        ({"attributes": "key=value"}, 29, "attribute"),
        ({"perm": "rw"}, 1, "<perm>"),
    ],
)
def test_topics_that_are_refused(changes: dict[str, str], code: int, remark: str) -> None:
    async def scenario(session: Session) -> None:
        answer = await session.ask(17, {**topic_fields(), **changes})
        assert answer.code == code
        assert remark in (answer.remark or "")

    with_node(scenario)


def test_deleted_topic_loses_queues_and_offsets_for_good() -> None:
    async def delete(session: Session) -> None:
        await session.heartbeat()
        for _ in range(3):
            await session.send()
        await session.commit("g", "T", 2)
        assert len(await session.messages()) == 3
        assert (await session.ask(215, {"topic": "T"})).code == 0
        assert (await session.pull()).code == ResponseCode.TOPIC_NOT_EXIST
        assert session.node.tables.offsets.get("g", "T", 0) == -1
        assert (await session.ask(215, {"topic": "T"})).code == 0
        assert (await session.ask(215, {"topic": "TBW102"})).code == 29
        session.world.mark("deleted")
        await session.ask(30, {"topic": "T", "queueId": "0"})

    crashed = node_run(delete, crash_at_mark="deleted", kind="kill")
    assert crashed.outcome == "killed"

    async def send_after(session: Session) -> str:
        assert ("T", 0) not in session.node.store.queues()
        return (await session.send()).fields["queueOffset"]

    assert node_run(send_after, image=crashed.image).value == "0"


@pytest.mark.parametrize("path", ["*topics.json*", "*rocketbed.tmp*"])
def test_topic_whose_deletion_fails_on_a_full_disk_stays(path: str) -> None:
    async def scenario(session: Session) -> None:
        await session.send(body=b"old")
        disk = session.world.disk
        assert isinstance(disk, SimDisk)
        fault = SimFault(operation="write", path=path, error=errno.ENOSPC, times=None)
        disk.faults.append(fault)
        polls, answers = session.node.broker.puller.polls, list[Command]()

        async def pull() -> None:
            answers.append(await session.pull(offset=1, flags=4 | 2, hold_ms=15_000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pull)
            assert (await session.ask(215, {"topic": "T"})).code == 1
            assert [one.body for one in await session.messages()] == [b"old"]
            assert len(polls) == 1, "who waits for the next message goes on waiting"
            disk.faults.remove(fault)
            assert (await session.ask(215, {"topic": "T"})).code == 0
            assert (await session.send(body=b"new")).fields["queueOffset"] == "0"
        moved = answers[0].code, answers[0].fields["nextBeginOffset"]
        assert moved == (ResponseCode.PULL_OFFSET_MOVED, "0")
        assert [one.body for one in await session.messages()] == [b"new"]

    with_node(scenario)


def test_topics_complete_and_in_pages() -> None:
    async def scenario(session: Session) -> None:
        whole = await session.ask(21)
        table = TopicConfigTable.decode(whole.body)
        assert whole.fields == {}
        assert table.topic_config_table["TBW102"].perm == 7
        assert table.topic_config_table["SCHEDULE_TOPIC_XXXX"].read_queue_nums == 18
        assert b'"topicQueueMappingInfoMap":{}' in whole.body
        version = table.data_version.encode().decode()
        names: list[str] = []
        while True:
            page = await session.ask(
                21, {"topicSeq": str(len(names)), "maxTopicNum": "5", "dataVersion": version}
            )
            names += TopicConfigTable.decode(page.body).topic_config_table
            total = int(page.fields["totalTopicNum"])
            if len(names) >= total:
                break
        assert names == list(table.topic_config_table)
        stale = await session.ask(
            21, {"topicSeq": "7", "maxTopicNum": "1", "dataVersion": '{"counter":99}'}
        )
        assert list(TopicConfigTable.decode(stale.body).topic_config_table) == names[:1]

    with_node(scenario)


def test_groups_are_made_listed_and_deleted() -> None:
    async def scenario(session: Session) -> None:
        config = SubscriptionGroupConfig(group_name="g", retry_max_times=3)
        assert (await session.ask(200, {}, config.encode())).code == 0
        more = SubscriptionGroupList(
            group_config_list=[SubscriptionGroupConfig(group_name="h", consume_enable=False)]
        )
        assert (await session.ask(225, {}, more.encode())).code == 0
        table = SubscriptionGroupTable.decode((await session.ask(201)).body)
        assert table.subscription_group_table["g"] == config
        assert "TOOLS_CONSUMER" in table.subscription_group_table
        page = await session.ask(201, {"groupSeq": "0", "maxGroupNum": "2"})
        assert len(SubscriptionGroupTable.decode(page.body).subscription_group_table) == 2
        assert page.fields["totalGroupNum"] == str(len(table.subscription_group_table))
        await session.send()
        refused = await session.pull(group="h")
        assert refused.code == ResponseCode.NO_PERMISSION
        await session.commit("g", "T", 1)
        assert (await session.ask(207, {"groupName": "g", "cleanOffset": "true"})).code == 0
        assert (await session.ask(352, {"group": "g"})).code == 26
        assert session.node.tables.offsets.get("g", "T", 0) == -1
        assert (await session.ask(207, {"groupName": "TOOLS_CONSUMER"})).code == 29
        assert (await session.ask(200, {}, b'{"groupName":""}')).code == 1
        huge = b'{"groupName":"Huge","retryQueueNums":2147483647}'
        refused = await session.ask(200, {}, huge)
        assert (refused.code, "65536 queues at most" in (refused.remark or "")) == (1, True)

    with_node(scenario)


def test_retry_topic_may_have_the_maximum_of_queues() -> None:
    """The group comes from a table or from a master."""

    async def scenario(session: Session) -> None:
        topics = session.node.tables.topics
        topics.create_retry("Huge", 2**31 - 1)
        topic = topics.get("%RETRY%Huge")
        assert topic is not None
        assert topic.write_queue_nums == QUEUES_MAX

    with_node(scenario)


def test_tables_for_slaves() -> None:
    async def scenario(session: Session) -> None:
        await session.heartbeat()
        await session.send()
        await session.commit("g", "T", 1, queue_id=2)
        offsets = ConsumerOffsetTable.decode((await session.ask(43)).body)
        assert offsets.offset_table == {"T@g": {2: 1}}
        assert (await session.ask(45)).body == (
            b'{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":0},"offsetTable":{}}'
        )
        assert (await session.ask(402)).body == b'{"messageRequestModeMap":{}}'

    with_node(scenario)


def test_runtime_info_has_what_tools_need() -> None:
    async def scenario(session: Session) -> None:
        empty = KvTable.decode((await session.ask(28)).body).table
        assert float(empty["commitLogDiskRatio"]) >= 0
        assert int(empty["earliestMessageTimeStamp"]) >= 0
        await session.send()
        table = KvTable.decode((await session.ask(28)).body).table
        assert table["brokerActive"] == "true"
        assert table["brokerVersionDesc"] == "V5_3_3"
        assert len(table["putTps"].split()) == 3
        assert table["putMessageTimesTotal"] == "1"
        assert int(table["earliestMessageTimeStamp"]) > 1_600_000_000_000
        assert int(table["commitLogMaxOffset"]) > 0

    with_node(scenario)


def test_replication_status() -> None:
    async def scenario(session: Session) -> None:
        await session.send()
        status = HaRuntimeInfo.decode((await session.ask(907)).body)
        assert status.master
        assert status.master_commit_log_max_offset == session.node.store.max_offset

    with_node(scenario)


def test_config_is_properties_text() -> None:
    async def scenario(session: Session) -> None:
        answer = await session.ask(26)
        rows = {key: value for _, key, value in parse_properties(answer.body.decode())}
        assert rows["brokerName"] == "broker-a"
        assert rows["flushDiskType"] == "ASYNC_FLUSH"
        assert rows["mappedFileSizeCommitLog"] == "1048576"
        assert rows["autoCreateTopicEnable"] == "true"
        assert "counter" in answer.fields["version"]

    with_node(scenario)


@pytest.mark.parametrize("code", sorted(FEATURES))
def test_features_that_are_missing_are_refused_by_name(code: int) -> None:
    async def scenario(session: Session) -> None:
        answer = await session.ask(code, {})
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert answer.remark == f" request type {code} not supported: {FEATURES[code]}"

    with_node(scenario)


@pytest.mark.parametrize("code", [0, -1, 13, 99, 999, 2001, 3001, RequestCode.REGISTER_BROKER])
def test_unknown_codes(code: int) -> None:
    async def scenario(session: Session) -> None:
        answer = await session.ask(code)
        assert (answer.code, answer.remark) == (3, f" request type {code} not supported")

    with_node(scenario)
