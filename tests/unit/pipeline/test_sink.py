"""Rows on their way into topics, up to the network: options, columns, requests, markers."""

import json
from collections.abc import Mapping
from typing import Any

import pyarrow
import pytest

from rocketbed.client.messages import Message
from rocketbed.client.packing import Codec, pack_body
from rocketbed.pipeline.errors import Condition
from rocketbed.pipeline.option_table import OptionError
from rocketbed.pipeline.sink import marking
from rocketbed.pipeline.sink.committed import COLUMNS, counting
from rocketbed.pipeline.sink.keys import ORIGIN, TRANSACTION, TaskKey
from rocketbed.pipeline.sink.markers import (
    RUNS_MAX,
    BadMarker,
    Committed,
    committed,
    decode_part,
    encode_marker,
    jobs_of,
    marker_topic,
)
from rocketbed.pipeline.sink.options import SinkError, SinkOptions
from rocketbed.pipeline.sink.requests import COUNT_MAX, make_requests
from rocketbed.pipeline.sink.rows import Outgoing, cells_of, check_columns, outgoing
from rocketbed.pipeline.sink.runs import Lookup, Place, Runs
from rocketbed.pipeline.sink.writer import finish, send_partition

KEY = TaskKey(job="job", batch=2, partition=1)


def options(**more: str) -> SinkOptions:
    return SinkOptions.parse({"endpoints": "host:9876", "topic": "T", **more}, streaming=False)


ONCE = options(delivery="exactly-once")


def test_options() -> None:
    assert options().delivery == "at-least-once"
    assert options().job != options().job
    assert options(jobId="night-7").job == "night-7"
    stream = SinkOptions.parse({"endpoints": "h:1"}, streaming=True)
    assert (stream.is_exactly_once, stream.job) == (True, "")
    settings = options(MAXBYTESPERSECOND="2m", Tasks="4", retryTimeoutMs="500", requestBytes="0")
    assert (settings.bytes_per_s, settings.tasks, settings.retry_timeout_ms) == (2 << 20, 4, 500)


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ({"endpoints": ""}, "endpoints is required"),
        ({"path": "/data"}, "cannot be written to"),
        ({"delivery": "once"}, "at-least-once, exactly-once"),
        ({"jobId": "a b"}, "up to 64"),
        ({"tasks": "0"}, "from 1"),
        ({"requestBytes": "4m"}, "from 0 to"),
        ({"retryTimeoutMs": "soon"}, "from 1"),
        ({"retries": "3"}, "unknown option retries"),
    ],
)
def test_options_that_are_refused(texts: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        options(**texts)
    with pytest.raises(OptionError, match="jobId is for batch writes"):
        SinkOptions.parse({"endpoints": "h:1", "jobId": "x"}, streaming=True)


def test_columns() -> None:
    check_columns({"topic": "string", "body": "binary", "queue_offset": "bigint"}, options())
    for columns, reason in (
        ({"topic": "string"}, "column body is required"),
        ({"body": "int"}, "column body is int, not binary or string"),
        ({"body": "binary", "color": "string"}, "column color is not part of a message"),
        ({"body": "binary", "keys": "array<int>"}, "column keys is array<int>"),
        ({"body": "binary", "headers": "map<string,string>"}, "headers is not written: read the"),
        ({"body": "binary", "broker": "string"}, "broker requires column queue_id"),
        ({"Body": "int"}, "column body is int"),
        ({"body": "binary", "BODY": "binary"}, "column BODY is there twice"),
    ):
        with pytest.raises(SinkError, match=reason):
            check_columns(columns, options())
    with pytest.raises(SinkError, match="no destination: add a column topic"):
        check_columns({"body": "binary"}, SinkOptions(endpoints="h:1"))


def test_a_queue_below_0_is_refused_at_once() -> None:
    """It was tried until `retryTimeoutMs` had passed."""
    columns: dict[str, list[Any]] = {"body": [b"x", b"y"], "queue_id": [0, -5]}
    rows = outgoing(columns, first_row=10, key=KEY, options=options())
    with pytest.raises(SinkError, match="row 11 of partition 1: queue_id -5 is below 0") as caught:
        list(rows)
    assert caught.value.condition is Condition.ILLEGAL_ROW


def test_columns_count_in_any_case() -> None:
    check_columns({"Topic": "string", "BODY": "binary", "Queue_Offset": "bigint"}, options())
    batch = pyarrow.RecordBatch.from_pylist([{"BODY": b"x", "Tags": "red", "Crc_OK": True}])
    (message,) = messages(cells_of(batch), options())
    assert (message.body, message.tag) == (b"x", "red")


def messages(columns: Mapping[str, list[Any]], options: SinkOptions) -> list[Message]:
    rows = outgoing(columns, first_row=10, key=KEY, options=options)
    return [row.message for row in rows]


def test_rows_as_messages() -> None:
    columns: dict[str, list[Any]] = {
        "topic": ["A", None],
        "body": [b"x", "ä"],
        "tags": ["red", None],
        "keys": [["k1", "k2"], "k3 k4"],
        "properties": [[("p", "q")], None],
        "flag": [7, None],
        "queue_offset": [5, 6],
    }
    first, two = messages(columns, options())
    assert first == Message(
        "A",
        b"x",
        tag="red",
        keys=("k1", "k2"),
        properties={"p": "q"},
        flag=7,
        message_id="job-2-1-a",
    )
    assert (two.topic, two.body, two.keys) == ("T", "ä".encode(), ("k3", "k4"))
    assert two.message_id == "job-2-1-b"
    assert TRANSACTION not in first.properties
    assert messages(columns, ONCE)[1].properties == {TRANSACTION: "job"}


def test_a_row_that_was_read_can_be_written() -> None:
    stored = (
        "KEYS\x01k1 k2\x02UNIQ_KEY\x01OLD\x02TAGS\x01red\x02WAIT\x01true\x02color\x01blue\x02"
        "RB_TXN\x01other\x02__CRC32#\x010123456789\x02TRAN_MSG\x01true\x02DELAY\x013\x02"
    )
    (message,) = messages({"body": [b"x"], "properties": [stored]}, options())
    assert (message.tag, message.keys) == ("red", ["k1", "k2"])
    assert message.properties == {"color": "blue", ORIGIN: "OLD"}
    assert message.message_id == "job-2-1-a"
    text = "UNIQ_KEY\x01NEW\x02RB_ORIGIN\x01FIRST\x02"
    (copied,) = messages({"body": [b"x"], "properties": [text]}, options())
    assert copied.properties == {ORIGIN: "FIRST"}


def test_columns_override_stored_properties_even_if_null() -> None:
    """The old tag and keys came back."""
    stored = "KEYS\x01k1\x02TAGS\x01red\x02color\x01blue\x02"
    blank: dict[str, list[Any]] = {"tags": [None], "keys": [None], "properties": [stored]}
    (message,) = messages({"body": [b"x"], **blank}, options())
    assert (message.tag, message.keys, message.properties) == (None, (), {"color": "blue"})


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"body": [b""]}, "row 10 of partition 1: the body must be non-empty bytes"),
        ({"body": [None]}, "must be non-empty bytes"),
        ({"body": [b"x"], "topic": ["no blanks"]}, "letters, digits"),
        ({"body": [b"x"], "keys": [["a b"]]}, "without spaces"),
        ({"body": [b"x"], "properties": [[("p", None)]]}, "property p has no value"),
        ({"body": [b"x"], "properties": [[("UNIQ_KEY", "x")]]}, "set by the client: UNIQ_KEY"),
        ({"body": [b"x"], "properties": [[("INNER_NUM", "5")]]}, "with several messages"),
        (
            {"body": [b"x"], "properties": [[("p", "q"), ("TRAN_MSG", "true")]]},
            "TRAN_MSG is of half",
        ),
        ({"body": [b"x"], "properties": [[("TIMER_DELAY_SEC", "1")]]}, "TIMER_DELAY_SEC is of"),
        ({"body": [b"x"], "properties": [[("DELAY", "3")]]}, "DELAY is of .* delay_level"),
        ({"body": [bytes(5 << 20)]}, "the limit is 4194304"),
        ({"body": [b"x"], "properties": ['{"color":"red"}']}, "is no name 0x01 value: give a map"),
        ({"body": [b"x"], "properties": ["A\x011\x02B"]}, "properties has 'B', which"),
        ({"body": [b"x"], "properties": ["\x011\x02"]}, "is no name 0x01 value"),
        ({"body": [b"x"], "queue_id": [None], "broker": ["a"]}, "broker a without a queue_id"),
    ],
)
def test_rows_that_cannot_be_messages(columns: dict[str, list[Any]], reason: str) -> None:
    with pytest.raises(SinkError, match=reason) as caught:
        messages(columns, options())
    assert caught.value.condition is Condition.ILLEGAL_ROW


def test_delayed_messages_cannot_be_exactly_once() -> None:
    columns: dict[str, list[Any]] = {"body": [b"x"], "delay_level": [3]}
    assert messages(columns, options())[0].delay_level == 3
    with pytest.raises(SinkError, match="delayed message cannot be exactly once"):
        messages(columns, ONCE)


def row(number: int, *, size: int = 10, topic: str = "T", queue: int | None = None) -> Outgoing:
    return Outgoing(number, Message(topic, bytes(size)), queue, None)


def test_requests_hold_every_row_once_in_queue_order() -> None:
    rows = [
        row(number, topic="TU"[number % 2], queue=None if number % 3 else number % 5)
        for number in range(3000)
    ]
    lanes = make_requests(rows, 5000)
    row_numbers = [one.row for lane in lanes.values() for item in lane for one in item.rows]
    assert sorted(row_numbers) == list(range(3000))
    for (topic, _, queue_id), lane in lanes.items():
        order = [one.row for item in lane for one in item.rows]
        assert order == sorted(order)
        for item in lane:
            assert item.size <= 5000
            assert {(one.message.topic, one.queue_id) for one in item.rows} == {
                (topic, queue_id if queue_id >= 0 else None)
            }


def test_requests_have_limits() -> None:
    (lane,) = make_requests([row(number, queue=0) for number in range(2500)], 1 << 22).values()
    assert [len(item.rows) for item in lane] == [COUNT_MAX, COUNT_MAX, 500]
    (lane,) = make_requests([row(0, queue=0), row(1, size=9000, queue=0)], 1000).values()
    assert [len(item.rows) for item in lane] == [1, 1]
    singles = make_requests([row(number) for number in range(8)], 0)
    assert [item.is_single for lane in singles.values() for item in lane] == [True] * 8
    (lane,) = make_requests([row(0, topic="%RETRY%g", queue=0)] * 3, 1 << 22).values()
    assert [item.is_single for item in lane] == [True] * 3, "brokers take no batch there"


def runs(*offsets: int, topic: str = "T") -> Runs:
    runs = Runs()
    for offset in offsets:
        runs.add(Place(topic, "a", 0), offset, 1)
    return runs


def test_a_batch_counts_when_its_marker_is_whole() -> None:
    many = runs(*range(0, 4 * RUNS_MAX + 20, 2))
    bodies = encode_marker("job", 3, "one", many)
    assert len(bodies) == 3
    assert all(len(body) < 1 << 20 for body in bodies)
    state = Committed("job")
    for body in (bodies[0], bodies[0], bodies[2]):
        state.add(decode_part(body, "job"))
        assert not state.has(3)
    state.add(decode_part(bodies[1], "job"))
    assert state.has(3)
    assert state.runs().count() == many.count()


def test_the_first_whole_marker_of_a_batch_counts() -> None:
    first = encode_marker("job", 0, "one", runs(1, 2))
    second = encode_marker("job", 0, "two", runs(7))
    committed_batch = committed("job", [*first, *second])
    assert committed_batch is not None
    assert committed_batch.runs().as_json() == runs(1, 2).merged().as_json()
    both = committed("job", [*first, *encode_marker("job", 1, "x", runs(9))])
    assert both is not None
    assert both.batches == (0, 1)
    assert both.runs().count() == 3


def test_a_batch_without_rows_is_marked_too() -> None:
    marker = committed("job", encode_marker("job", 0, "one", Runs()))
    assert marker is not None
    assert marker.has(0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        *encode_marker("other", 0, "one", Runs()),
        json.dumps(
            {"v": 1, "job": "job", "batch": 0, "attempt": "x", "part": 2, "parts": 2, "runs": []}
        ).encode(),
    ],
)
def test_invalid_marker_is_an_error(body: bytes) -> None:
    marker = encode_marker("job", 0, "one", runs(1))
    with pytest.raises(BadMarker):
        committed("job", [*marker, body])
    assert committed("job", [body, *marker]) is None


@pytest.mark.parametrize(
    ("topics", "error", "warning"),
    [
        (["T", "T"], "", ""),
        (["T", None], "", ""),
        (["T"], "", "with 2 rows of T, so 1 rows of T were not written"),
        (["T", "U"], "with 2 rows of T, so 2 rows of T, U were not written: give", ""),
    ],
)
def test_reused_row_id_is_reported(
    topics: list[str | None],
    error: str,
    warning: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing was written, and the job ended well."""

    async def marker_of(*_: object) -> Runs:
        return runs(7, 8)

    monkeypatch.setattr(marking, "marker_of", marker_of)
    batch = pyarrow.record_batch({"body": [b"x"] * len(topics), "Topic": topics})
    key = TaskKey(job=ONCE.job, batch=0, partition=0)
    done = send_partition(ONCE, key, iter([batch]))
    assert done.is_skipped
    if error:
        with pytest.raises(SinkError, match=error):
            finish(ONCE, [done])
    else:
        finish(ONCE, [done])
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == (
        [f"sink.marked_before job {ONCE.job} is marked already, {warning}: if they are other rows,"
         " give another jobId"] if warning else []
    )  # fmt: skip
    stream = SinkOptions.parse({"endpoints": "h:1"}, streaming=True)
    finish(stream, [send_partition(stream, key, iter([batch]))])


def test_marker_topics() -> None:
    assert list(jobs_of(["T", "RB_TXN_", marker_topic("a-1"), "x_RB_TXN_b"])) == ["a-1"]


def test_rows_that_count() -> None:
    """Rows of the job count if they are listed; all others always."""
    columns: dict[str, list[Any]] = {
        "broker": ["a"] * 5,
        "topic": ["T"] * 5,
        "queue_id": [0] * 5,
        "queue_offset": [1, 2, 3, 4, 5],
        "properties": [
            "UNIQ_KEY\x01x\x02RB_TXN\x01job\x02",
            "RB_TXN\x01job\x02",
            "color\x01RB_TXN\x02",
            None,
            "RB_TXN\x01unmarked\x02",
        ],
    }
    arrays = {name: pyarrow.array(columns[name]) for name in COLUMNS}
    unknown: set[str] = set()
    mask = counting(arrays, Lookup({"job": runs(1)}), unknown)
    assert mask.tolist() == [True, False, True, True, False]
    assert unknown == {"unmarked"}


@pytest.mark.parametrize("codec", ["zlib", "lz4", "zstd"])
def test_a_body_that_is_still_packed_is_refused(codec: Codec) -> None:
    """Its consumers would take it for the message."""
    packed, flag = pack_body(b"hello" * 100, codec)
    settings = options(topic="T")
    (unpacked,) = messages({"body": [b"hello" * 100], "sys_flag": [flag]}, settings)
    assert unpacked.body == b"hello" * 100
    with pytest.raises(SinkError, match="decompress=true"):
        messages({"body": [packed], "sys_flag": [flag]}, settings)
    # One that its program had packed before the client did it once more.
    columns: dict[str, list[Any]] = {
        "body": [packed],
        "sys_flag": [flag],
        "body_length": [len(packed) + 1],
    }
    (own,) = messages(columns, settings)
    assert own.body == packed
    with pytest.raises(SinkError, match="decompress=true"):
        messages(columns | {"body_length": [len(packed)]}, settings)
