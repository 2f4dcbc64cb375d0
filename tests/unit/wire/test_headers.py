"""Header classes: types, mandatory fields, names on the wire (wire.md 1.7, 4.1)."""

import pytest

from rocketbed.wire.encoding.fields import Header, HeaderError, plans
from rocketbed.wire.encoding.registry import REQUESTS, RESPONSES
from rocketbed.wire.headers import (
    HeartbeatResponse,
    MaxOffsetRequest,
    PullMessageRequest,
    QueryMessageRequest,
    QueueRequest,
    SendMessageRequest,
    SendMessageV2Request,
)
from rocketbed.wire.headers_admin import RegisterBrokerRequest

SEND = {
    "a": "group",
    "b": "T",
    "c": "TBW102",
    "d": "4",
    "e": "-1",
    "f": "0",
    "g": "1795144706269",
    "h": "0",
}


def test_v2_and_plain_names_are_the_same_request() -> None:
    header = SendMessageV2Request.decode({**SEND, "i": "KEYS\x01k\x02", "m": "true", "n": "b"})
    plain = header.plain()
    assert plain.topic == "T"
    assert plain.queueId == -1
    assert plain.bornTimestamp == 1795144706269
    assert plain.batch
    assert plain.brokerName == "b"
    assert plain.reconsumeTimes is None
    assert SendMessageV2Request.of(plain) == header
    assert SendMessageRequest.decode(plain.encode()) == plain


def test_encode_leaves_out_what_is_not_set() -> None:
    assert QueueRequest(topic="T", queueId=3).encode() == {"topic": "T", "queueId": "3"}


def test_missing_mandatory_field_is_named() -> None:
    with pytest.raises(HeaderError, match="the custom field <queueId> is null") as caught:
        QueueRequest.decode({"topic": "T"})
    assert caught.value.response_code == 1


@pytest.mark.parametrize("text", ["", "x", "1.5", "1_0", " 1", "\u0663", "0x1", "--1", "9" * 50])
def test_non_numeric_text_is_refused(text: str) -> None:
    with pytest.raises(HeaderError, match="<queueId>"):
        QueueRequest.decode({"topic": "T", "queueId": text})


@pytest.mark.parametrize("text", [str(2**31), str(-(2**31) - 1)])
def test_numbers_have_java_widths(text: str) -> None:
    with pytest.raises(HeaderError, match="32 bits"):
        QueueRequest.decode({"topic": "T", "queueId": text})
    header = SendMessageV2Request.decode({**SEND, "g": text})
    assert header.g == int(text)


def test_raw_numbers_and_booleans_count_as_their_text() -> None:
    header = SendMessageV2Request.decode({**SEND, "d": 4, "e": 2, "k": True})
    assert (header.d, header.e, header.k) == (4, 2, True)


@pytest.mark.parametrize(("text", "value"), [("TRUE", True), ("false", False), ("yes", False)])
def test_booleans_as_java_reads_them(text: str, value: bool) -> None:
    assert MaxOffsetRequest.decode({"topic": "T", "queueId": "0", "committed": text}).committed is (
        value
    )


def test_names_that_python_cannot_spell() -> None:
    assert HeartbeatResponse(supportsV2=True, subscriptionChanged=False).encode() == {
        "IS_SUPPORT_HEART_BEAT_V2": "true",
        "IS_SUB_CHANGE": "false",
    }
    header = QueryMessageRequest.decode(
        {
            "topic": "T",
            "key": "k",
            "maxNum": "64",
            "beginTimestamp": "0",
            "endTimestamp": "9223372036854775807",
            "_UNIQUE_KEY_QUERY": "true",
        }
    )
    assert header.uniqueKeyQuery
    zone = RegisterBrokerRequest(
        brokerName="b",
        brokerAddr="h:1",
        clusterName="c",
        haServerAddr="h:2",
        brokerId=0,
        zoneName="z",
    )
    assert zone.encode()["__ZONE_NAME"] == "z"


def test_unknown_fields_are_ignored() -> None:
    assert QueueRequest.decode({"topic": "T", "queueId": "1", "ReqT": "0", "lo": "x"}).queueId == 1


def test_every_header_class_round_trips() -> None:
    classes: set[type[Header]] = {*REQUESTS.values(), *RESPONSES.values(), PullMessageRequest}
    for cls in classes:
        values = {plan.name: "7" if plan.is_number else "true" for plan in plans(cls)}
        header = cls.decode(values)
        assert cls.decode(header.encode()) == header
