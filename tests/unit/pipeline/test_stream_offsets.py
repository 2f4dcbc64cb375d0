"""Contents of a stream's checkpoint, what it refuses there, and how a limit is distributed."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketbed.pipeline.option_table import OptionError, Use
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.streams.offsets import (
    PHYSICAL,
    QUEUE,
    Mark,
    StreamError,
    StreamOffset,
    Topics,
    check_names,
    check_order,
    parse_offsets,
    queue_name,
    shares,
)
from rocketbed.pipeline.streams.physical import shares_of_rows
from rocketbed.pipeline.wire.plan import WirePlan

MARKS = st.dictionaries(
    st.text("abc-|0", min_size=1),
    st.builds(Mark, st.integers(0, 1 << 62), st.integers(0, 1 << 32), st.integers(0, 1 << 62)),
)


TOPICS = (
    st.none()
    | st.builds(
        Topics,
        st.none(),
        st.none()
        | st.text("ab.*", min_size=1).filter(lambda text: text[0] != "*" and "**" not in text),
    )
    | st.builds(Topics, st.frozensets(st.text()), st.none())
)


@given(st.sampled_from([PHYSICAL, QUEUE]), MARKS, TOPICS)
def test_an_offset_survives_the_checkpoint(
    kind: str, marks: dict[str, Mark], topics: Topics | None
) -> None:
    offset = StreamOffset(kind, marks, topics)
    text = json.dumps(offset.as_json())
    parsed = StreamOffset.parse(json.loads(text), kind)
    assert parsed == offset
    assert json.dumps(parsed.as_json()) == text


def test_equal_offsets_are_equal_texts() -> None:
    """Spark compares offsets as texts to see whether there is anything new."""
    first = StreamOffset(PHYSICAL, {"b": Mark(2), "a": Mark(1)})
    two = StreamOffset(PHYSICAL, {"a": Mark(1), "b": Mark(2)})
    assert json.dumps(first.as_json()) == json.dumps(two.as_json())


def test_the_form_on_disk() -> None:
    physical = StreamOffset(PHYSICAL, {"broker-a": Mark(10636254, 7)})
    assert physical.as_json() == {
        "v": 1,
        "kind": "physical",
        "brokers": {"broker-a": {"crc": 7, "epoch": 0, "pos": 10636254}},
    }
    queue = StreamOffset(QUEUE, {queue_name("broker-a", "T", 3): Mark(120031)})
    assert queue.as_json() == {
        "v": 1,
        "kind": "queue",
        "queues": {"broker-a|T|3": {"crc": 0, "off": 120031}},
    }
    timed = StreamOffset(QUEUE, {"a|T|0": Mark(3, 9, 5000)})
    assert timed.as_json()["queues"] == {"a|T|0": {"crc": 9, "off": 3, "time": 5000}}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({}, "does not contain a rocketbed offset"),
        (7, "does not contain a rocketbed offset"),
        ({"v": 2, "kind": "physical", "brokers": {}}, "format 2"),
        ({"v": 1, "kind": "queue", "queues": {}}, "kind queue, this stream needs physical"),
        ({"v": 1, "kind": "physical", "brokers": {"a": {"pos": -1}}}, "not an integer"),
        ({"v": 1, "kind": "physical", "brokers": {"a": {"pos": 1.5}}}, "not an integer"),
        ({"v": 1, "kind": "physical", "brokers": {"a": 5}}, "does not contain a rocketbed offset"),
    ],
)
def test_invalid_offset_is_refused(value: Any, reason: str) -> None:
    with pytest.raises(StreamError, match=reason):
        StreamOffset.parse(value, PHYSICAL)


def test_offsets_of_another_cluster_are_refused() -> None:
    check_names({"a": Mark(1)}, {"a", "b"}, "this", "do that")
    with pytest.raises(StreamError, match=r"^this has offsets of other.* reads a, b: do that"):
        check_names({"a": Mark(1), "other": Mark(1)}, {"a", "b"}, "this", "do that")


def test_starting_offsets() -> None:
    assert parse_offsets("EARLIEST", PHYSICAL) == "earliest"
    assert parse_offsets(" latest ", QUEUE) == "latest"
    plain = parse_offsets('{"broker-a": 4096}', PHYSICAL)
    assert plain == StreamOffset(PHYSICAL, {"broker-a": Mark(4096)})
    whole = StreamOffset(QUEUE, {"a|T|0": Mark(3, 9)})
    assert parse_offsets(json.dumps(whole.as_json()), QUEUE) == whole
    for text, reason in (
        ("tomorrow", "earliest, latest or JSON"),
        ('{"broker-a": -3}', "-3 is no offset"),
        ('{"broker-a": "x"}', "does not contain a rocketbed offset"),
        ("[1]", "does not contain a rocketbed offset"),
        ('{"a": "7"}', r"'a': '7' in it; expected a whole number for each broker, as"),
        ('{"a": true}', r"'a': True in it; expected a whole number"),
        ('{"a": 1.5}', r"'a': 1\.5 in it; expected a whole number"),
        ('{"a": 1, "a": 2}', "'a' stands twice"),
    ):
        with pytest.raises(StreamError, match=reason):
            parse_offsets(text, PHYSICAL)
    with pytest.raises(
        StreamError, match=r"""'Q': {'0': 1} in it.*queue, as {"broker-a\|T\|3": 17}"""
    ):
        parse_offsets('{"Q": {"0": 1}}', QUEUE)


def test_a_queue_that_ends_before_it_begins() -> None:
    """It gave no row, in silence."""
    plan = WirePlan.of(
        Options.parse(
            {
                "endpoints": "127.0.0.1:9",
                "startingOffsets": '{"a|T|0": 20, "a|T|1": 5}',
                "endingOffsets": '{"a|T|0": 10, "a|T|1": 5}',
            }
        )
    )
    with pytest.raises(
        StreamError, match=r"startingOffsets 20 of a\|T\|0 is after endingOffsets 10"
    ):
        plan.splits()
    ends = StreamOffset(QUEUE, {"a": Mark(-1), "b": Mark(5)})
    check_order(StreamOffset(QUEUE, {"a": Mark(7), "b": Mark(5), "c": Mark(9)}), ends)


@given(st.dictionaries(st.text("abcdef", min_size=1), st.integers(0, 10**6)), st.integers(1, 10**6))
def test_shares(backlog: dict[str, int], limit: int) -> None:
    parts = shares(backlog, limit)
    waiting = {name for name, size in backlog.items() if size}
    assert set(parts) == waiting
    assert all(1 <= parts[name] <= backlog[name] for name in waiting)
    assert sum(parts.values()) == min(sum(backlog.values()), max(limit, len(waiting)))
    if sum(backlog.values()) <= limit:
        assert parts == {name: backlog[name] for name in waiting}


@pytest.mark.parametrize("deal", [shares, shares_of_rows])
def test_a_limit_holds_where_some_have_little(
    deal: Callable[[dict[str, int], int], dict[str, int]],
) -> None:
    """Each was rounded up to 1: 12 of 10."""
    backlog = {"a": 40, "b": 4, "c": 3, "d": 3, "e": 1, "f": 1, "g": 0}
    parts = deal(backlog, 10)
    assert sum(parts.values()) == 10
    assert sorted(parts) == list("abcdef")
    assert parts["a"] > parts["b"] >= 1
    assert deal(backlog, 3) == dict.fromkeys("abcdef", 1)


def stream(**given_options: str) -> Options:
    return Options.parse({"path": "/nowhere", **given_options}, Use.STREAM)


def test_options() -> None:
    assert stream() == Options(path="/nowhere")
    limits = stream(maxBytesPerTrigger="64k", maxRowsPerTrigger="5", retryTimeoutMs="1500")
    assert (limits.max_bytes_per_trigger, limits.max_rows_per_trigger) == (65536, 5)
    assert limits.limit_s == 1.5
    for name, value, reason in (
        ("maxBytesPerTrigger", "0", "from 1"),
        ("maxRowsPerTrigger", "many", "from 1"),
        ("retryTimeoutMs", "86400001", "to 86400000"),
        ("view", "blocks", "view=records"),
    ):
        with pytest.raises(OptionError, match=reason):
            stream(**{name: value})


def test_invalid_topics_in_a_checkpoint_are_refused() -> None:
    row = StreamOffset(PHYSICAL, {}, Topics(pattern="(")).as_json()
    with pytest.raises(StreamError, match="does not contain a rocketbed offset"):
        StreamOffset.parse(row, PHYSICAL)
