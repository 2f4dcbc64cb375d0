"""Requests of every code that a broker serves, drawn: nearly right, or with a field or a member of
the body absent, of another type, or extreme."""

import json
from collections.abc import Iterator
from typing import Any, Final

from hypothesis import strategies as st

from rocketbed.node.config.changes import CHANGEABLE
from rocketbed.wire import headers, headers_admin
from rocketbed.wire.command import Command, Encoding, request
from rocketbed.wire.command import RequestCode as Code
from rocketbed.wire.encoding.fields import Header, plans
from rocketbed.wire.encoding.registry import REQUESTS

NO_FIELDS: Final = (
    Code.UPDATE_BROKER_CONFIG, Code.GET_BROKER_CONFIG, Code.GET_BROKER_RUNTIME_INFO,
    Code.HEART_BEAT, Code.CHECK_CLIENT_CONFIG, Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ,
    Code.UPDATE_AND_CREATE_TOPIC_LIST, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, Code.QUERY_ASSIGNMENT,
    Code.SET_MESSAGE_REQUEST_MODE, Code.GET_ALL_MESSAGE_REQUEST_MODE,
    Code.GET_ALL_CONSUMER_OFFSET, Code.GET_ALL_DELAY_OFFSET, Code.GET_TIMER_CHECK_POINT,
    Code.GET_TIMER_METRICS, Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    Code.GET_BROKER_HA_STATUS, Code.RB_READINESS,
)  # fmt: skip
HEADERS: Final[dict[int, type[Header] | None]] = {
    **{int(code): header for code, header in REQUESTS.items()},
    **dict.fromkeys(NO_FIELDS),
    Code.CONSUMER_SEND_MSG_BACK: headers.SendBackRequest,
    Code.UPDATE_AND_CREATE_TOPIC: headers_admin.CreateTopicRequest,
    Code.DELETE_TOPIC_IN_BROKER: headers_admin.TopicRequest,
    Code.GET_TOPIC_CONFIG: headers_admin.TopicRequest,
    Code.GET_ALL_TOPIC_CONFIG: headers_admin.AllTopicConfigRequest,
    Code.DELETE_SUBSCRIPTIONGROUP: headers_admin.DeleteGroupRequest,
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: headers_admin.GroupRequest,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: headers_admin.AllGroupConfigRequest,
    Code.GET_TOPIC_STATS_INFO: headers_admin.TopicRequest,
    Code.GET_CONSUME_STATS: headers_admin.ConsumeStatsRequest,
    Code.GET_CONSUMER_CONNECTION_LIST: headers.ConsumerGroupRequest,
    Code.GET_PRODUCER_CONNECTION_LIST: headers_admin.ProducerGroupRequest,
    Code.GET_CONSUMER_RUNNING_INFO: headers_admin.RunningInfoRequest,
    Code.QUERY_TOPIC_CONSUME_BY_WHO: headers_admin.TopicRequest,
    Code.QUERY_TOPICS_BY_CONSUMER: headers_admin.GroupRequest,
    Code.CLONE_GROUP_OFFSET: headers_admin.CloneOffsetRequest,
    Code.INVOKE_BROKER_TO_RESET_OFFSET: headers_admin.ResetOffsetRequest,
}
"""Codes that the broker serves: the class of their header, None for one without fields."""
LIKELY: Final = {
    "topic": "T", "b": "T", "group": "g", "consumerGroup": "g", "groupName": "g", "a": "p",
    "producerGroup": "producers", "clientId": "c", "clientID": "c", "c": "TBW102",
    "defaultTopic": "TBW102", "srcGroup": "g", "destGroup": "h", "topicFilterType": "SINGLE_TAG",
    "subscription": "*", "expressionType": "TAG", "i": "UNIQ_KEY\x01U\x02", "m": "false",
    "properties": "TAGS\x01a\x02DELAY\x0199\x02", "perm": "6", "key": "k", "offset": "0",
}  # fmt: skip
ODD: Final[list[Any]] = [
    "", " ", "0", "-1", "9" * 30, str(2**31), str(-(2**63)), str(2**63 - 1), "1.5", "NaN", "true",
    "\0", "%RETRY%", "é" * 300, "x" * 5000, "{}", "a||b", "\x01\x02", None, True, 7, -1.5, 10**18,
    [], [1], {}, {"topic": "T"},
]  # fmt: skip
"""Text, and what only a JSON header can hold."""
ODD_JSON: Final = [
    *(json.dumps(value) for value in ODD),
    str(10**30), "-9223372036854775809", "1e400", '"\\ud800"', '{"$ref":"$"}', "[[[[[]]]]]",
    "{{1:2}:3}",
]  # fmt: skip
QUEUE: Final = {"topic": "T", "brokerName": "broker-a", "queueId": 0}
TOPIC: Final = {
    "topicName": "L", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6, "order": False,
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "attributes": {"a": "b"},
}  # fmt: skip
GROUP: Final = {
    "groupName": "h", "consumeEnable": True, "retryQueueNums": 1, "retryMaxTimes": 3,
    "brokerId": 0, "groupRetryPolicy": {"type": "CUSTOMIZED"}, "attributes": {"a": "b"},
    "consumeTimeoutMinute": 15, "notifyConsumerIdsChangedEnable": True, "groupSysFlag": 0,
    "subscriptionDataSet": [{"topic": "T"}],
}  # fmt: skip
READS: Final = {
    "topic": "T", "subString": "a || b", "expressionType": "TAG", "tagsSet": ["a"],
    "codeSet": [97], "subVersion": 1, "classFilterMode": False,
}  # fmt: skip
LOCKS: Final = {"consumerGroup": "g", "clientId": "c", "mqSet": [QUEUE]}
BODIES: Final[dict[int, Any]] = {
    Code.HEART_BEAT: {
        "clientID": "c", "heartbeatFingerprint": 0, "withoutSub": False,
        "consumerDataSet": [{
            "groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [READS],
        }],
        "producerDataSet": [{"groupName": "producers"}],
    },
    Code.CHECK_CLIENT_CONFIG: {"clientId": "c", "group": "g", "subscriptionData": READS},
    Code.LOCK_BATCH_MQ: LOCKS,
    Code.UNLOCK_BATCH_MQ: LOCKS,
    Code.UPDATE_AND_CREATE_TOPIC_LIST: {"topicConfigList": [TOPIC]},
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: GROUP,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: {"groupConfigList": [GROUP]},
    Code.QUERY_ASSIGNMENT: {
        "topic": "T", "consumerGroup": "g", "clientId": "c", "strategyName": "AVG",
        "messageModel": "CLUSTERING",
    },
    Code.SET_MESSAGE_REQUEST_MODE: {
        "topic": "T", "consumerGroup": "g", "mode": "PULL", "popShareQueueNum": 0,
    },
}  # fmt: skip
"""A body that is fine, for codes that have one."""
SETTINGS: Final = sorted(
    CHANGEABLE
    - {"maxMessageSize", "rbDirtyMax", "startAcceptSendRequestTimeStamp"}
    # Of these some values keep others from sending, as they should.
    - {"osPageCacheBusyTimeOutMills", "diskSpaceWarningLevelRatio", "brokerPermission"}
    - {"autoCreateTopicEnable"}
)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each member of a body, and of the body itself."""
    yield at
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*at, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from places(item, (*at, number))


def changed(value: Any, at: tuple[Any, ...], text: str | None) -> str:
    """Return the body as JSON with the member at `at` replaced by `text`, or removed if `text` is
    None.
    """
    if not at:
        return text or ""
    is_present = text is not None or len(at) > 1
    if isinstance(value, list):
        remaining = [
            (number, one) for number, one in enumerate(value) if number != at[0] or is_present
        ]
        rows = [
            changed(one, at[1:], text) if n == at[0] else json.dumps(one) for n, one in remaining
        ]
        return f"[{','.join(rows)}]"
    members = [
        f"{json.dumps(key)}:{changed(one, at[1:], text) if key == at[0] else json.dumps(one)}"
        for key, one in value.items()
        if key != at[0] or is_present
    ]
    return f"{{{','.join(members)}}}"


@st.composite
def requests_of(draw: st.DrawFn, code: int) -> Command:
    """Generate requests of a code: nearly right, or far from it."""
    header = HEADERS[code]
    fields: dict[str, Any] = {}
    for plan in plans(header) if header is not None else ():
        kind = draw(st.sampled_from(("likely", "likely", "likely", "absent", "odd")))
        if kind != "absent":
            usual = LIKELY.get(plan.name, "1" if plan.is_number else "false")
            fields[plan.name] = usual if kind == "likely" else draw(st.sampled_from(ODD))
    encoding = draw(st.sampled_from(Encoding))
    if encoding is Encoding.ROCKETMQ:
        fields = {name: str(value) for name, value in fields.items() if value is not None}
    return request(code, fields, draw(bodies(code)), encoding=encoding)


def bodies(code: int) -> st.SearchStrategy[bytes]:
    rough = st.sampled_from([b"", b"x", b"[]", b"null", b"\xff", b"{" * 500, b"\0" * 50])
    if code == Code.UPDATE_BROKER_CONFIG:
        values = (
            st.sampled_from([*SETTINGS, "noKey"]),
            st.sampled_from(["1", "true", "x", "9" * 18]),
        )
        return st.tuples(*values).map(lambda row: f"{row[0]}={row[1]}\n".encode()) | rough
    fine = BODIES.get(code)
    if fine is None:
        return rough
    change = st.sampled_from(list(places(fine))), st.none() | st.sampled_from(ODD_JSON)
    return st.tuples(*change).map(lambda row: changed(fine, *row).encode()) | rough
