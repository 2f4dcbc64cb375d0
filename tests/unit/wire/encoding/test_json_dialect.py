"""JSON as fastjson writes it: bare integer keys, object keys, references (wire.md 1.11)."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketbed.wire.encoding.json_dialect import BodyError, ObjectKey, dumps, dumps_standard, loads
from rocketbed.wire.errors import LocalProtocolError

QUEUE = {"brokerName": "b", "queueId": 0, "topic": "t"}


def test_integer_keys_are_unquoted() -> None:
    assert dumps({0: "10.0.0.1:10911", 1: "x"}) == b'{0:"10.0.0.1:10911",1:"x"}'
    assert loads(b'{0:"a",-1:"b"}') == loads(b'{"0":"a","-1":"b"}') == {"0": "a", "-1": "b"}


@pytest.mark.parametrize("text", [b"\xef\xbb\xbf{0:1}", "\ufeff{0:1}"])
def test_byte_order_mark_is_no_part_of_the_text(text: bytes | str) -> None:
    assert loads(text) == {"0": 1}


def test_standard_form_quotes_integer_keys_and_escapes() -> None:
    assert dumps_standard({0: "\u00e9"}) == b'{"0":"\\u00e9"}'


def test_object_keys() -> None:
    text = b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:{"maxOffset":5}}}'
    value = loads(text)
    ((key, row),) = value["offsetTable"].items()
    assert key == ObjectKey.of(QUEUE)
    assert key.as_dict() == QUEUE
    assert row == {"maxOffset": 5}
    assert dumps(value) == text


def test_key_order_inside_an_object_key_is_ignored() -> None:
    assert loads(b'{{"topic":"t","queueId":0,"brokerName":"b"}:1}') == {ObjectKey.of(QUEUE): 1}


def test_references_are_resolved_or_null() -> None:
    text = b'{"a":[{"x":1}],"b":{"$ref":"$.a[0]"},"c":{"$ref":"$.nowhere"},"d":{"$ref":"@"}}'
    assert loads(text) == {"a": [{"x": 1}], "b": {"x": 1}, "c": None, "d": None}


def test_reference_to_the_whole_does_not_loop() -> None:
    assert loads(b'{"a":{"$ref":"$"}}') == {"a": None}
    assert loads(b'{"a":{"$ref":"$.b"},"b":{"$ref":"$.a"}}')["a"] is None


def test_pretty_text_of_a_config_file() -> None:
    text = b'{\n\t"offsetTable":{\n\t\t"T@g":{0:7,1:6\n\t\t}\n\t},"x":1.5e3,"y":[],"z":{}\n}\n'
    assert loads(text) == {
        "offsetTable": {"T@g": {"0": 7, "1": 6}},
        "x": 1500.0,
        "y": [],
        "z": {},
    }


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{0:1",
        b"{0 1}",
        b"{true:1}",
        b"{0:1}x",
        b"{0:}",
        b"{[1]:2}",
        b'{0:"abc}',
        b"\xff",
        b"{0:" * 2000,
        b"{0:" + b"1" * 5000 + b"}",
        b'{"a":"\\ud800"}',
    ],
)
def test_text_that_is_neither_is_refused(text: bytes) -> None:
    with pytest.raises(BodyError):
        loads(text)


def test_a_value_without_json_is_our_own_error() -> None:
    with pytest.raises(LocalProtocolError):
        dumps({0: object()})


keys = st.text(st.characters(codec="utf-8"), max_size=8)
leaves = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | keys
object_keys = st.dictionaries(keys, st.integers(0, 9) | keys, max_size=3).map(ObjectKey.of)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(keys.filter(lambda key: key != "$ref") | object_keys, inner, max_size=4)
    ),
    max_leaves=12,
)


@given(values)
def test_values_round_trip(value: object) -> None:
    assert loads(dumps(value)) == value


@given(st.text(max_size=40) | st.binary(max_size=40))
def test_any_text_is_read_or_refused(text: str | bytes) -> None:
    with suppress(BodyError):
        value = loads(text)
        assert loads(dumps(value)) == value
