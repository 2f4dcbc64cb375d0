"""Whatever a client asks, each request gets one answer and no handler breaks."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rocketbed.node.broker.refusals import FEATURES
from rocketbed.wire.command import Command, Encoding, RequestCode, request
from rocketbed.wire.encoding.fields import plans
from rocketbed.wire.encoding.registry import REQUESTS
from tests.support.broker import Session, node_run

NAMES = sorted(
    {plan.name for header in REQUESTS.values() for plan in plans(header)}
    | {"group", "groupName", "topicSeq", "groupSeq", "maxTopicNum", "dataVersion", "perm"}
    | {"readQueueNums", "writeQueueNums", "topicFilterType", "attributes", "cleanOffset"}
)
CODES = sorted({*RequestCode} - set(FEATURES) | {0, -1, 4711})
texts = st.text(st.characters(codec="utf-8"), max_size=12)
numbers = st.sampled_from(["0", "1", "-1", "3", "32", "2147483647", "-9223372036854775808", "1e3"])
words = st.sampled_from(
    ["T", "g", "TBW102", "%RETRY%g", "SINGLE_TAG", "true", "*", "a||b", "SQL92", "lower", "+a=b"]
)
values = numbers | words | texts
property_strings = st.lists(
    st.sampled_from(["UNIQ_KEY\x01U\x02", "TAGS\x01\x02", "KEYS\x01a  b\x02", "\x02", "x\x01y"])
    | st.sampled_from(["DELAY\x011\x02", "WAIT\x01false\x02", "POP_CK\x01p\x02", "\x01\x02\x01"])
    | texts,
    max_size=4,
).map("".join)
fields = st.fixed_dictionaries(
    {},
    optional={name: values for name in NAMES if name != "i"} | {"i": property_strings},
)
likely_fields = st.fixed_dictionaries(
    {"b": st.just("T"), "e": numbers, "f": numbers, "g": numbers, "h": numbers}
    | {"a": texts, "c": st.just("TBW102"), "d": numbers, "i": property_strings}
    | {"topic": st.sampled_from(["T", "%RETRY%g", "N"]), "queueId": numbers}
    | {"consumerGroup": st.just("g"), "queueOffset": numbers, "maxMsgNums": numbers}
    | {"sysFlag": numbers, "commitOffset": numbers, "suspendTimeoutMillis": st.just("0")}
    | {"subVersion": numbers, "offset": numbers, "timestamp": numbers, "key": texts}
    | {"maxNum": numbers, "beginTimestamp": numbers, "endTimestamp": numbers},
    optional={"j": numbers, "m": st.sampled_from(["true", "false"]), "subscription": words},
)
bodies = st.binary(max_size=40) | st.sampled_from(
    [
        b"",
        b"{}",
        b"[]",
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g"}]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":7,"subscriptionDataSet":[{}]}]}',
        b'{"topicConfigList":[{"topicName":"L"}]}',
        b'{"topicConfigList":[{"topicName":null}]}',
        b'{"groupName":"h","retryMaxTimes":"3"}',
        b'{"groupConfigList":{}}',
        b'{"subscriptionData":{"topic":"T","expressionType":"SQL92"}}',
        b"{" * 500,
    ]
)
requests = st.builds(
    lambda code, own, body, encoding: request(code, own, body, encoding=encoding),
    st.sampled_from(CODES),
    fields | likely_fields,
    bodies,
    st.sampled_from([Encoding.JSON, Encoding.MSGPACK]),
)


@settings(max_examples=150)
@given(st.lists(requests, min_size=1, max_size=12))
def test_every_request_is_answered_and_nothing_breaks(asked: list[Command]) -> None:
    async def scenario(session: Session) -> int:
        await session.send()
        for command in asked:
            answer = await session.connection.request(command, timeout_s=200)
            assert answer.is_response
            assert answer.encoding is command.encoding
        assert (await session.send("Other")).code == 0
        return len(asked)

    run = node_run(scenario)
    assert run.value == len(asked)
    assert not [line for line in run.log if line.level == "error"]
