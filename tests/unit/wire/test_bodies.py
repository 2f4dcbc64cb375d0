"""Bodies: what real peers sent comes out again byte for byte (wire.md 2.7)."""

import pytest

from rocketbed.wire.bodies import (
    ClusterInfo,
    ConsumerIdList,
    ConsumerOffsetTable,
    DataVersion,
    HeartbeatData,
    MessageQueue,
    RegisterBrokerBody,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
    TopicRouteData,
)
from rocketbed.wire.bodies_admin import TopicOffset, TopicStatsTable
from rocketbed.wire.body_fields import Body
from rocketbed.wire.encoding.json_dialect import BodyError, dumps_standard
from rocketbed.wire.frame import FrameReader
from tests.support.wire_sessions import SESSIONS, recorded_frames

KINDS: dict[object, type[Body]] = {
    ("c2s", 34): HeartbeatData,
    ("c2s", 103): RegisterBrokerBody,
    ("s2c", 106): ClusterInfo,
    ("s2c", 38): ConsumerIdList,
    ("s2c", 105): TopicRouteData,
}


@pytest.mark.parametrize("session", SESSIONS)
def test_recorded_bodies_are_written_as_they_came(session: str) -> None:
    kinds: set[object] = set()
    for frame in recorded_frames(session):
        (command,) = FrameReader().feed(frame.data)
        code = frame.about.get("requestCode", command.code)
        kind = KINDS.get((frame.about["direction"], code))
        if kind is None or not command.body:
            continue
        kinds.add(kind)
        body = kind.decode(command.body)
        text = dumps_standard(body.to_json()) if kind is TopicRouteData else body.encode()
        assert text == command.body
    assert kinds == set(KINDS.values())


def test_queue_keys_are_objects() -> None:
    queue = MessageQueue(topic="t", broker_name="b", queue_id=1)
    table = TopicStatsTable(offset_table={queue: TopicOffset(max_offset=5)})
    text = table.encode()
    assert text == (
        b'{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"t"}:'
        b'{"lastUpdateTimestamp":0,"maxOffset":5,"minOffset":0}},"topicPutTps":0.0}'
    )
    assert TopicStatsTable.decode(text) == table


def test_empty_bodies_and_missing_members_are_defaults() -> None:
    assert TopicConfigTable.decode(b"") == TopicConfigTable.decode(b"{}") == TopicConfigTable()
    assert TopicConfig.from_json({"topicName": "T", "perm": None}).perm == 6
    assert HeartbeatData.decode(b'{"clientID":"c"}').producer_data_set == []


def test_fastjson_coercions_apply() -> None:
    config = TopicConfig.from_json({"topicName": 5, "perm": "4", "order": "true"})
    assert (config.topic_name, config.perm, config.order) == ("5", 4, True)


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b'{"topicConfigTable":[]}',
        b'{"topicConfigTable":{"T":{"topicName":"T","perm":"x"}}}',
        b'{"topicConfigTable":{"T":{}}}',
        b'{"dataVersion":7}',
        b'{"dataVersion":{"counter":1.5}}',
        b"not json",
        b'{"dataVersion":{"counter":"9223372036854775808"}}',
        b'{0:1,"dataVersion":{"counter":-9223372036854775809}}',
    ],
)
def test_members_of_the_wrong_type_are_refused(text: bytes) -> None:
    with pytest.raises(BodyError):
        TopicConfigTable.decode(text)


@pytest.mark.parametrize(
    "value", [b"1e400", b"[" * 101 + b"]" * 101, b"{{1:2}:3}", b"9223372036854775808"]
)
def test_unwritable_value_is_refused_in_a_free_field(value: bytes) -> None:
    text = b'{0:1,"groupName":"g","groupRetryPolicy":{"a":%s}}'
    with pytest.raises(BodyError):
        SubscriptionGroupConfig.decode(text % value)
    decoded = SubscriptionGroupConfig.decode(text % b'[1,2.5,"x",true,null,{}]')
    assert SubscriptionGroupConfig.decode(decoded.encode()) == decoded


def test_consumer_offsets_with_bare_keys() -> None:
    table = ConsumerOffsetTable.decode(b'{"groupTopicMap":{},"offsetTable":{"T@g":{0:7,3:9}}}')
    assert table.offset_table == {"T@g": {0: 7, 3: 9}}
    assert b"{0:7,3:9}" in table.encode()


def test_group_table_of_a_real_broker() -> None:
    text = (
        b'{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":9},"forbiddenTable":{"g":{"T":4}}'
        b',"subscriptionGroupTable":{"g":{"groupName":"g","retryMaxTimes":3}}}'
    )
    table = SubscriptionGroupTable.decode(text)
    assert table.forbidden_table == {"g": {"T": 4}}
    group = table.subscription_group_table["g"]
    assert (group.retry_max_times, group.consume_enable, group.retry_queue_nums) == (3, True, 1)


def test_data_version_counts_changes() -> None:
    version = DataVersion().next(1000).next(2000)
    assert (version.counter, version.timestamp) == (2, 2000)
