"""`onlyCommitted` over store directories: which rows count, and what hides that."""

import json
import os
import pickle
import shutil
import struct
from collections.abc import Collection, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pyarrow
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from rocketbed.pipeline.option_table import OptionError
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.schema import arrow_schema
from rocketbed.pipeline.sink.committed import CommittedPart, marked_runs, read_committed
from rocketbed.pipeline.sink.markers import BadMarker, encode_marker, marker_topic
from rocketbed.pipeline.sink.marking import _bodies, _queue, read_markers
from rocketbed.pipeline.sink.runs import Place, Runs
from rocketbed.pipeline.source import CommittedReader
from rocketbed.pipeline.wire.log import RawPull, WireError, WireLog
from rocketbed.pipeline.wire.questions import QueueBounds
from rocketbed.wire.bodies import MessageQueue
from tests.support.logs import SEGMENT, Log, Message

TOPIC = marker_topic("job")


def store(tmp_path: Path, segment: int = SEGMENT) -> Log:
    """Two batches of ten messages; a marker for each."""
    log = Log(tmp_path / "store", segment)
    row = Message(properties="RB_TXN\x01job\x02")
    marks = []
    for batch in range(2):
        runs = Runs()
        runs.add(Place("T", "broker-a", 0), 10 * batch, 10)
        (body,) = encode_marker("job", batch, "one", runs)
        marks.append(Message(topic=TOPIC, body=body))
    log.append([*[row] * 10, marks[0], *[row] * 10, marks[1]])
    (log.root / "config").mkdir()
    table: dict[str, dict[str, object]] = {"topicConfigTable": {"T": {}, TOPIC: {}}}
    (log.root / "config" / "topics.json").write_text(json.dumps(table))
    return log


def marked(log: Log, broker: str = "broker-a", **more: str) -> int:
    actual = marked_runs(Options.parse({"path": f"{broker}/0={log.root}", **more}))
    return sum(count for rows in actual.values() for row in rows or () for _, count in row[-1])


def test_marked_rows_are_read(tmp_path: Path) -> None:
    log = store(tmp_path)
    assert marked(log) == 20
    with pytest.raises(OptionError, match=r"name broker broker-a, and the path store: call each"):
        marked_runs(Options.parse({"path": str(log.root)}))


def test_store_that_may_have_a_wrong_name_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Check the warning: rows that a job wrote there would be left out silently."""
    log, runs = store(tmp_path), Runs()
    runs.add(Place("T", "broker-b", 0), 0, 1)
    (body,) = encode_marker("job", 2, "one", runs)
    unnamed = Log(tmp_path / "other").append([Message(topic=TOPIC, body=body)])
    for name, is_told in (("broker-b/0=", False), ("", True)):
        marked_runs(Options.parse({"path": f"broker-a/0={log.root},{name}{unnamed.root}"}))
        assert ("broker broker-b, and the path has other" in caplog.text) == is_told


def test_markers_of_a_lost_queue_are_found_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = store(tmp_path)
    shutil.rmtree(log.root / "consumequeue" / TOPIC)
    assert marked(log) == 20
    assert f"{log.root}: the queue of {TOPIC} lacks 2 markers, which its log has" in caplog.text
    limits = {"endOffset": "1", "endTimestamp": "1", "topicsPattern": "T", "decompress": "false"}
    assert marked(log, **limits) == 20  # of the rows
    log.flip(log.offsets[10] + 90)
    with pytest.raises(BadMarker, match=f"the marker of {TOPIC} at physical offset"):
        marked(log)


UNIT = struct.Struct(">qiq")


@pytest.mark.parametrize(
    ("unit", "lacking"),
    [
        ((1, (0, 0, 0)), 1),
        ((0, (0, 0, 0)), 2),
        ((1, (-1, 300, 0)), 1),
        ((0, (-1, 300, 0)), 2),
        ((1, (1 << 40, 300, 0)), 1),
        ((0, (1 << 40, 300, 0)), 2),
    ],
)
def test_markers_with_damaged_units_are_found_in_the_log(
    unit: tuple[int, tuple[int, int, int]],
    lacking: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A unit that points to nothing ended the queue, and rows were left out without a word."""
    log = store(tmp_path)
    with open(next((log.root / "consumequeue" / TOPIC / "0").iterdir()), "r+b") as file:
        file.seek(UNIT.size * unit[0])
        file.write(UNIT.pack(*unit[1]))
    assert marked(log) == 20
    assert f"the queue of {TOPIC} lacks {lacking} markers, which its log has" in caplog.text
    assert "expired" not in caplog.text


@pytest.mark.parametrize("size", [None, 0, 10, 20])
def test_markers_beyond_a_short_queue_are_found_in_the_log(
    size: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Crash state: the log is synced, and its queue is not yet."""
    log = store(tmp_path)
    path = next((log.root / "consumequeue" / TOPIC / "0").iterdir())
    if size is None:
        path.unlink()
    else:
        os.truncate(path, size)
    assert marked(log) == 20
    assert f"the queue of {TOPIC} lacks" in caplog.text


def test_marker_behind_a_wrong_unit_is_found(tmp_path: Path) -> None:
    log = store(tmp_path)
    with open(next((log.root / "consumequeue" / TOPIC / "0").iterdir()), "r+b") as file:
        first = file.read(UNIT.size)
        file.write(first)
    assert marked(log) == 20


@pytest.mark.parametrize("queue", [0, 3])
def test_topic_may_only_look_like_a_marker_topic(queue: int, tmp_path: Path) -> None:
    log = store(tmp_path)
    log.append([Message(topic=marker_topic("x"), queue_id=queue, body=b"hello")])
    actual = marked_runs(Options.parse({"path": f"broker-a/0={log.root}"}))
    assert actual["job"] is not None
    assert actual["x"] is None


def test_expired_markers_are_reported_and_hide_no_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They were taken for damaged, so that nothing could be read any more."""
    log = store(tmp_path, segment=2048)
    assert log.offsets[10] < 2048 < log.offsets[-1]
    assert marked(log) == 20
    assert not caplog.text
    for at in range(0, log.offsets[-1] // 2048 * 2048, 2048):
        log.path(at).unlink()
    assert marked(log) == 10
    assert f"the first 1 markers of {TOPIC} have expired" in caplog.text


class Answers:
    """A broker of markers that gives what it is told to, and where to go on."""

    def __init__(self, numbers: Sequence[int], step: int) -> None:
        self.numbers, self.step = numbers, step

    async def pull(self, queue: MessageQueue, offset: int, *, count: int) -> RawPull:
        messages = [Message(topic=TOPIC, body=b"%d" % one) for one in self.numbers]
        records = [one.encode(9, at) for one, at in zip(messages, self.numbers, strict=True)]
        following = offset + self.step
        data = b"".join(records)
        return RawPull(records=data, next_offset=following, first=0, end=4, broker_id=0)


@pytest.mark.parametrize("step", [-1, 0, 1, 4])
@pytest.mark.parametrize("numbers", [(), (1,), (0, 2), (0, 0)])
async def test_broker_that_omits_markers_is_not_believed(numbers: Sequence[int], step: int) -> None:
    """It was asked again without end, or what it left out counted for nothing."""
    log = cast(WireLog, Answers(numbers, step))
    queue = MessageQueue(topic=TOPIC, broker_name="b", queue_id=0)
    with pytest.raises(WireError, match=r"its broker gives (none|\[)"):
        await _bodies(log, queue, 0, 4)
    assert await _bodies(cast(WireLog, Answers((0, 1, 2, 3), step)), queue, 0, 4) == [
        b"0", b"1", b"2", b"3",
    ]  # fmt: skip


class Cluster(WireLog):
    """Markers of one job in a topic with one queue, and somebody's topic with four."""

    def __init__(self, marker: bytes) -> None:
        self.marker = marker
        self.own: list[int] = [0]
        """Members that have the marker; the master is asked first."""
        self.requests = 0

    async def has_topic(self, topic: str) -> bool:
        return True

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        count = 1 if topic == TOPIC else 4
        return tuple(MessageQueue(topic=topic, broker_name="b", queue_id=n) for n in range(count))

    async def bounds(self, queue: MessageQueue) -> QueueBounds:
        return QueueBounds(0, 1, 1)

    async def pull(self, queue: MessageQueue, offset: int, *, count: int = 1) -> RawPull:
        record, member = Message(topic=TOPIC, body=self.marker).encode(9, 0), self.requests
        if member in self.own:
            return RawPull(records=record, next_offset=1, first=0, end=1, broker_id=member)
        return RawPull(records=b"", next_offset=1, first=1, end=1, broker_id=member)

    async def another(self, queue: MessageQueue, tried: Collection[int]) -> int | None:
        return min({0, 1} - {*tried}, default=None)

    def ask_member(self, queue: MessageQueue, broker_id: int) -> None:
        self.requests = broker_id


def encoded() -> bytes:
    runs = Runs()
    runs.add(Place("T", "b", 0), 0, 2)
    (body,) = encode_marker("job", 0, "one", runs)
    return body


async def test_lookalike_marker_topic_stops_only_its_job() -> None:
    """Every read with onlyCommitted failed, as if a broker were away."""
    lookalike = marker_topic("x")
    markers = await read_markers(Cluster(encoded()), [TOPIC, lookalike, "T"])
    marked = {job: None if runs is None else runs.as_json() for job, runs in markers.items()}
    assert marked == {"job": [["T", "b", 0, [[0, 2]]]], "x": None}

    def committed(*jobs: str) -> list[int]:
        rows = {
            "queue_offset": list(range(len(jobs))),
            "broker": ["b"] * len(jobs),
            "topic": ["T"] * len(jobs),
            "queue_id": [0] * len(jobs),
            "properties": [f"RB_TXN\x01{job}\x02" for job in jobs],
        }
        plan = SimpleNamespace(read=lambda *_: iter([pyarrow.RecordBatch.from_pydict(rows)]))
        schema = arrow_schema("records", ["queue_offset"])
        batches = read_committed(plan, CommittedPart(None, marked), schema, "_corrupt")
        return [row for batch in batches for row in batch.column(0).to_pylist()]

    assert committed("job", "job", "job") == [0, 1]
    with pytest.raises(BadMarker, match=f"topic {lookalike} has more than one queue, or its first"):
        committed("job", "x")
    log = Cluster(b"")
    with pytest.raises(BadMarker, match="has 4 queues, not 1"):
        await _queue(log, "x")


@pytest.mark.parametrize("own", [[0, 1], [1], []])
async def test_markers_deleted_at_the_master_are_read_from_its_slave(own: list[int]) -> None:
    log = Cluster(encoded())
    log.own = own
    queue = MessageQueue(topic=TOPIC, broker_name="b", queue_id=0)
    if own:
        assert await _bodies(log, queue, 0, 1) == [encoded()]
    else:
        with pytest.raises(WireError, match="its broker gives none"):
            await _bodies(log, queue, 0, 1)


def test_markers_are_unknown_without_queues(tmp_path: Path) -> None:
    log = store(tmp_path)
    shutil.rmtree(log.root / "consumequeue")
    with pytest.raises(BadMarker, match="without consume queues the topics with markers"):
        marked(log)


@pytest.mark.parametrize("at", [90, 10, 5])
def test_a_damaged_marker_is_an_error(tmp_path: Path, at: int) -> None:
    log = store(tmp_path)
    log.flip(log.offsets[10] + at)
    with pytest.raises(BadMarker, match=f"{TOPIC} at physical offset {log.offsets[10]} is damaged"):
        marked(log)


def committed_reader(log: Log) -> CommittedReader:
    options = {"path": f"broker-a/0={log.root}", "splitBytes": "500", "topics": "T"}
    schema = StructType([StructField("queue_offset", LongType())])
    return CommittedReader(schema, Options.parse(options))


def test_marked_rows_are_sent_once_and_not_with_every_part(tmp_path: Path) -> None:
    """Spark packs the reader, then asks for its partitions."""
    reader = committed_reader(store(tmp_path))
    sent = pickle.loads(pickle.dumps(reader))
    parts = [pickle.dumps(one) for one in reader.partitions()]
    assert len(parts) > 5
    assert not any(b"broker-a|" in one or b"RB_TXN" in one or b"job" in one for one in parts)
    offsets = [
        row["queue_offset"]
        for part in parts
        for batch in sent.read(pickle.loads(part))
        for row in batch.to_pylist()
    ]
    assert offsets == list(range(20))


def test_unreadable_markers_are_reported_by_name(tmp_path: Path) -> None:
    log = store(tmp_path)
    log.flip(log.offsets[10] + 10)
    reader = committed_reader(log)
    pickle.dumps(reader)
    with pytest.raises(BadMarker, match=r"^\[ROCKETBED_BAD_MARKER\] .* is damaged"):
        reader.partitions()
