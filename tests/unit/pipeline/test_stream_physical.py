"""Streams over store directories, without Spark: where batches end, which rows they have, and what
holds them up."""

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from rocketbed.pipeline.errors import Condition
from rocketbed.pipeline.files import decode
from rocketbed.pipeline.files.corrupt import DataLost
from rocketbed.pipeline.files.splits import Split
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.streams.offsets import (
    PHYSICAL,
    DataLoss,
    Mark,
    StreamError,
    StreamOffset,
    lags,
)
from rocketbed.pipeline.streams.physical import LogPart, PhysicalLog, read_part
from tests.support.logs import Log, messages
from tests.support.stores import STORE_MS, Spec, manifest, some, unpack, write_log

SEGMENT = 4096
SPECS = some(200)


def log(path: str, **more: Any) -> PhysicalLog:
    texts = {name: str(one) for name, one in more.items()}
    options = Options.parse({"path": path, "inner": "keep", **texts})
    return PhysicalLog(options)


def end(stream: PhysicalLog, start: StreamOffset, **limits: int | None) -> StreamOffset:
    return stream.latest(start, bytes_max=limits.get("bytes_max"), rows_max=limits.get("rows_max"))


def rows(stream: PhysicalLog, start: StreamOffset, stop: StreamOffset) -> list[tuple[str, int]]:
    """Broker and physical offset of each row."""
    rows_read = []
    for part in stream.plan(start, stop):
        for batch in read_part(part, ["broker", "physical_offset"], stream.options):
            columns = [column.to_pylist() for column in batch.columns]
            rows_read += list(zip(*columns, strict=True))
    return rows_read


def two_replicas(tmp_path: Path, counts: Sequence[int]) -> str:
    """Replicas of one broker with so many messages each."""
    for number, count in enumerate(counts):
        root = tmp_path / str(number)
        shutil.rmtree(root, ignore_errors=True)
        write_log(root, SPECS[:count], segment=SEGMENT)
    return ",".join(f"a/{number}={tmp_path / str(number)}" for number in range(len(counts)))


def test_stream_starts_at_a_time_or_at_either_end(tmp_path: Path) -> None:
    offsets = write_log(tmp_path / "a", SPECS, segment=SEGMENT)
    for number in (0, 1, 77, 199):
        stream = log(f"a/0={tmp_path / 'a'}", startingTimestamp=STORE_MS + 1000 * number - 1)
        assert stream.initial().marks["a"].at == offsets[number]
    late = log(f"a/0={tmp_path / 'a'}", startingTimestamp="2031-01-01T00:00:00Z").initial()
    newest = log(f"a/0={tmp_path / 'a'}", startingOffsets='{"a": -1}').initial()
    assert late == newest == log(f"a/0={tmp_path / 'a'}", startingOffsets="latest").initial()
    assert log(f"a/0={tmp_path / 'a'}", startingOffsets='{"a": -2}').initial().marks["a"].at == 0


def test_a_stream_knows_how_far_it_is_behind(tmp_path: Path) -> None:
    offsets = write_log(tmp_path / "a", SPECS, segment=SEGMENT)
    stream = log(f"a/0={tmp_path / 'a'}")
    assert stream.newest is None
    start = stream.initial()
    first = end(stream, start, rows_max=50)
    assert stream.newest is not None
    (lag,) = lags(first, stream.newest).values()
    assert first.marks["a"].at == offsets[50]
    assert lag == stream.newest.marks["a"].at - offsets[50] > 0


def test_a_stream_reads_what_every_replica_holds(tmp_path: Path) -> None:
    offsets = write_log(tmp_path / "whole", SPECS, segment=SEGMENT)
    stream = log(two_replicas(tmp_path, [120, 80]))
    start = stream.initial()
    assert start.marks == {"a": Mark(0)}
    first = end(stream, start)
    assert [at for _, at in rows(stream, start, first)] == offsets[:80]
    assert end(stream, first) == first
    two_replicas(tmp_path, [150, 140])
    second = end(stream, first)
    assert [at for _, at in rows(stream, first, second)] == offsets[80:140]
    # A batch that is planned again, by a driver that has just started, has the same rows.
    restarted = log(two_replicas(tmp_path, [200, 190]))
    assert [at for _, at in rows(restarted, start, first)] == offsets[:80]
    assert [at for _, at in rows(restarted, first, second)] == offsets[80:140]
    latest = log(two_replicas(tmp_path, [200, 190]), startingOffsets="latest").initial()
    assert end(restarted, second).marks["a"] == latest.marks["a"]


def test_uncommitted_reads_go_as_far_as_the_longest(tmp_path: Path) -> None:
    stream = log(two_replicas(tmp_path, [120, 80]), readUncommitted="true")
    assert len(rows(stream, stream.initial(), end(stream, stream.initial()))) == 120


@pytest.mark.parametrize(
    "limits",
    [
        {"bytes_max": 1},
        {"bytes_max": 1000},
        {"bytes_max": 10**9},
        {"rows_max": 1},
        {"rows_max": 7},
        {"bytes_max": 1000, "rows_max": 5},
    ],
)
def test_limits(tmp_path: Path, limits: dict[str, int]) -> None:
    """Any limit moves on, holds, and gives every record once; filler and file ends included."""
    offsets = write_log(tmp_path / "s", SPECS[:90], segment=SEGMENT)
    stream = log(f"a={tmp_path / 's'}")
    position = stream.initial()
    offsets_read: list[int] = []
    while True:
        following = end(stream, position, **limits)
        if following == position:
            break
        batch = [at for _, at in rows(stream, position, following)]
        assert 1 <= len(batch) <= limits.get("rows_max", len(offsets))
        if len(batch) > 1:
            batch_bytes = following.marks["a"].at - position.marks["a"].at
            assert batch_bytes <= limits.get("bytes_max", batch_bytes) + SEGMENT
        offsets_read += batch
        position = following
    assert offsets_read == offsets


def test_several_brokers_share_a_limit(tmp_path: Path) -> None:
    write_log(tmp_path / "a", SPECS[:100], segment=SEGMENT)
    write_log(tmp_path / "b", SPECS[:10], segment=SEGMENT)
    stream = log(f"a={tmp_path / 'a'},b={tmp_path / 'b'}")
    start = stream.initial()
    first = end(stream, start, rows_max=20)
    names = [name for name, _ in rows(stream, start, first)]
    assert 1 <= names.count("b") < names.count("a") <= 20
    whole = end(stream, start)
    assert len(rows(stream, start, whole)) == 110
    # A broker that is listed from now on begins at its start.
    only_a = StreamOffset("physical", {"a": whole.marks["a"]})
    assert {name for name, _ in rows(stream, only_a, end(stream, only_a))} == {"b"}


def test_more_partitions_have_the_same_rows(tmp_path: Path) -> None:
    offsets = write_log(tmp_path / "s", SPECS, segment=1 << 20)
    for count in (1, 3, 17):
        stream = log(f"a={tmp_path / 's'}", minPartitions=count)
        start = stream.initial()
        stop = end(stream, start)
        assert len(stream.plan(start, stop)) >= count
        assert [at for _, at in rows(stream, start, stop)] == offsets


def test_available_now_ends_where_the_log_ended(tmp_path: Path) -> None:
    root = tmp_path / "s"
    offsets = write_log(root, SPECS[:50], segment=SEGMENT)
    stream = log(f"a={root}")
    start = stream.initial()
    stream.freeze()
    write_log(root, SPECS[:80], segment=SEGMENT)
    first = end(stream, start, rows_max=30)
    second = end(stream, first, rows_max=30)
    assert [at for _, at in rows(stream, start, second)] == offsets
    assert end(stream, second, rows_max=30) == second


def test_starting_offsets_have_to_be_a_records(tmp_path: Path) -> None:
    offsets = write_log(tmp_path / "s", SPECS[:50], segment=SEGMENT)
    path = f"a={tmp_path / 's'}"
    stream = log(path, startingOffsets=f'{{"a": {offsets[20]}}}')
    start = stream.initial()
    assert [at for _, at in rows(stream, start, end(stream, start))] == offsets[20:]
    for wrong in (offsets[20] + 1, SEGMENT - 6):  # that is in the blank at a segment's end
        with pytest.raises(StreamError, match="no record of broker a begins at"):
            log(path, startingOffsets=f'{{"a": {wrong}}}').initial()
    newest = log(path, startingOffsets="latest").initial()
    assert log(path, startingOffsets=f'{{"a": {newest.marks["a"].at}}}').initial() == newest
    with pytest.raises(StreamError, match=r"startingOffsets has offsets of z, .* reads a: name"):
        log(path, startingOffsets='{"z": 0}').initial()


def test_a_checkpoint_of_another_log_is_refused(tmp_path: Path) -> None:
    """The broker has the same name: only the bytes tell."""
    write_log(tmp_path / "one", SPECS[:50], segment=SEGMENT)
    write_log(tmp_path / "two", some(80, topic="U"), segment=SEGMENT)
    first_log = log(f"a={tmp_path / 'one'}")
    at = end(first_log, first_log.initial())
    assert end(log(f"a={tmp_path / 'one'}"), at) == at
    two = log(f"a={tmp_path / 'two'}", failOnDataLoss="false")
    with pytest.raises(StreamError, match="not the one that this checkpoint was made with"):
        end(two, at)
    with pytest.raises(StreamError, match="offsets of a, but this stream reads b"):
        end(log(f"b={tmp_path / 'one'}"), at)


def retained(root: Path, count: int) -> None:
    """Delete the oldest files of a log."""
    for path in sorted((root / "commitlog").iterdir())[:count]:
        path.unlink()


def test_retention_under_a_stream(tmp_path: Path) -> None:
    root = tmp_path / "s"
    offsets = write_log(root, SPECS, segment=SEGMENT)
    stream = log(f"a={root}")
    start = stream.initial()
    first = end(stream, start, rows_max=10)
    retained(root, 2)
    with pytest.raises(DataLoss, match=r"physical offsets \d+ to 8192 were deleted"):
        end(stream, first)
    with pytest.raises(DataLoss, match="were deleted"):
        stream.plan(start, first)
    loose = log(f"a={root}", failOnDataLoss="false")
    assert rows(loose, start, first) == []
    last = end(loose, first)
    assert [at for _, at in rows(loose, first, last)] == [at for at in offsets if at >= 8192]
    assert end(loose, last) == last


def test_an_emptied_first_file_is_not_retention(tmp_path: Path) -> None:
    path = two_replicas(tmp_path, [200])
    whole = log(path)
    start = whole.initial()
    expected = rows(whole, start, end(whole, start))
    os.truncate(tmp_path / "0/commitlog" / f"{0:020d}", 0)
    stream = log(path)
    assert stream.initial() == start
    with pytest.raises(DataLost, match="data from physical offset 0 on is gone"):
        rows(stream, start, end(stream, start))
    lenient = log(path, failOnDataLoss=False)
    assert rows(lenient, start, end(lenient, start))[:2] == [("a", 0), ("a", SEGMENT)]

    write_log(tmp_path / "1", SPECS, segment=SEGMENT)
    both = log(f"{path},a/1={tmp_path / '1'}")
    assert rows(both, start, end(both, start)) == expected


def test_single_replica_with_the_data_is_enough(tmp_path: Path) -> None:
    offsets = write_log(tmp_path / "whole", SPECS, segment=SEGMENT)
    stream = log(two_replicas(tmp_path, [200, 200]))
    start = stream.initial()
    retained(tmp_path / "0", 3)
    stop = end(stream, start)
    assert [at for _, at in rows(stream, start, stop)] == offsets


def test_replaced_replica_holds_the_stream_until_caught_up(tmp_path: Path) -> None:
    stream = log(two_replicas(tmp_path, [100, 100]), retryTimeoutMs=60_000)
    first = end(stream, stream.initial())
    two_replicas(tmp_path, [150, 10])
    assert end(stream, first) == first
    assert stream._held_up
    two_replicas(tmp_path, [150, 150])
    assert len(rows(stream, first, end(stream, first))) == 50
    assert not stream._held_up


def test_waiting_for_a_replica_has_a_limit(tmp_path: Path) -> None:
    path = two_replicas(tmp_path, [100, 100])
    stream, loose = log(path, retryTimeoutMs=1), log(path, retryTimeoutMs=1, failOnDataLoss="false")
    first = end(stream, stream.initial())
    two_replicas(tmp_path, [150, 10])
    for waiting_log in (stream, loose):
        assert end(waiting_log, first) == first
        waiting_log._held_up["a"] -= 1.0
    with pytest.raises(StreamError, match=r"replica 1 .* ends before, it has 0 to \d+"):
        end(stream, first)
    assert len(rows(loose, first, end(loose, first))) == 50
    shutil.rmtree(tmp_path / "1")
    with pytest.raises(StreamError, match=r"replica 1 .* cannot be read"):
        end(stream, first)


def test_a_log_that_is_shorter_everywhere(tmp_path: Path) -> None:
    path = two_replicas(tmp_path, [100, 100])
    stream, loose = log(path, retryTimeoutMs=1), log(path, retryTimeoutMs=1, failOnDataLoss="false")
    first = end(stream, stream.initial())
    two_replicas(tmp_path, [40, 30])
    for waiting_log in (stream, loose):
        assert end(waiting_log, first) == first
        waiting_log._held_up["a"] -= 1.0
    with pytest.raises(DataLoss, match="no replica has the log up to"):
        end(stream, first)
    back = end(loose, first)
    assert back.marks["a"].at < first.marks["a"].at
    assert rows(loose, first, back) == []
    two_replicas(tmp_path, [60, 60])
    assert len(rows(loose, back, end(loose, back))) == 20


def test_missing_directory_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(StreamError, match=r"after 0\.001 s still: .*nowhere"):
        log(f"a={tmp_path / 'nowhere'}", retryTimeoutMs=1).initial()


def test_a_replica_that_vanishes_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one goes on where the first has stopped; nothing twice, nothing left out."""
    offsets = write_log(tmp_path / "whole", SPECS, segment=1 << 20)
    for name in ("0", "1"):
        write_log(tmp_path / name, SPECS, segment=1 << 20)
    stream = log(f"a/0={tmp_path / '0'},a/1={tmp_path / '1'}", batchRows=16)
    start = stream.initial()
    (part,) = stream.plan(start, end(stream, start))

    def failing(split: Split, *arguments: Any) -> Iterator[pyarrow.RecordBatch]:
        for number, batch in enumerate(decode.batches(split, *arguments)):
            if split.replica.name == "0" and number == 2:
                yield batch.slice(0, 5)
                raise DataLost(split.path, split.base, "the file was deleted")
            yield batch

    monkeypatch.setattr("rocketbed.pipeline.streams.physical.batches", failing)

    def read(part_read: LogPart) -> list[tuple[str, int]]:
        rows_read: list[tuple[str, int]] = []
        for batch in read_part(part_read, ["replica", "physical_offset"], stream.options):
            rows_read += zip(*(column.to_pylist() for column in batch.columns), strict=True)
        return rows_read

    rows_of_part = read(part)
    assert [at for _, at in rows_of_part] == offsets
    assert [name for name, _ in rows_of_part] == ["0"] * 37 + ["1"] * 163
    with pytest.raises(DataLost, match="is gone"):
        read(replace(part, fallbacks=()))


@pytest.mark.parametrize("loses", ["true", "false"])
def test_next_replica_has_records_lost_since_the_plan(tmp_path: Path, loses: str) -> None:
    """A reader that allows loss got a gap, though the second replica had all of it."""
    stream = log(two_replicas(tmp_path, [200, 200]), failOnDataLoss=loses)
    offsets = write_log(tmp_path / "whole", SPECS, segment=SEGMENT)
    start = stream.initial()
    stop = end(stream, start)
    parts = stream.plan(start, stop)

    def offsets_read() -> list[int]:
        columns = ["physical_offset"]
        read = (batch for one in parts for batch in read_part(one, columns, stream.options))
        return [at for batch in read for at in batch.column(0).to_pylist()]

    lost = f"commitlog/{2 * SEGMENT:020d}"
    (tmp_path / "0" / lost).unlink()
    assert offsets_read() == offsets
    (tmp_path / "1" / lost).unlink()
    if loses == "true":
        with pytest.raises(DataLost):
            offsets_read()
    else:
        gap = 2 * SEGMENT  # a row with the reason `missing_segment`
        assert offsets_read() == sorted([gap, *(at for at in offsets if at // SEGMENT != 2)])


def test_longest_rest_is_read_where_all_lost_the_beginning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It was that of the first one that is listed, without a word."""
    offsets = write_log(tmp_path / "whole", SPECS, segment=SEGMENT)
    loose = log(two_replicas(tmp_path, [200, 200, 200]), failOnDataLoss="false")
    start = loose.initial()
    stop = end(loose, start)
    for name, count in (("0", 4), ("1", 1), ("2", 3)):
        retained(tmp_path / name, count)
    assert [at for _, at in rows(loose, start, stop)] == [at for at in offsets if at >= SEGMENT]
    assert f"stream.data_lost broker=a from=0 to={SEGMENT}" in caplog.text


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_a_real_brokers_store(tmp_path: Path, name: str) -> None:
    """Small batches of it have the records that its manifest lists, each once."""
    stream = log(f"a={unpack(name, tmp_path)}", maxRowsPerTrigger=50)
    position = stream.initial()
    offsets_read: list[int] = []
    while (following := end(stream, position, rows_max=50)) != position:
        batch = [at for _, at in rows(stream, position, following)]
        assert 1 <= len(batch) <= 50
        offsets_read += batch
        position = following
    # Messages of an inner batch share a record.
    assert offsets_read == sorted({row["commitLogOffset"] for row in manifest(name)["stored"]})


def test_rows_of_topics_only(tmp_path: Path) -> None:
    specs = [Spec(topic="T" if number % 3 else "U") for number in range(60)]
    write_log(tmp_path / "s", specs, segment=SEGMENT)
    stream = log(f"a={tmp_path / 's'}", topics="U")
    start = stream.initial()
    assert len(rows(stream, start, end(stream, start))) == 20


def drained(path: str, *, limits: dict[str, int] | None = None, **more: Any) -> int:
    """Rows of a stream that ends where the log ends."""
    stream = log(path, **more)
    stream.freeze()
    at, count = stream.initial(), 0
    while (following := end(stream, at, **(limits or {}))) != at:
        count += len(rows(stream, at, following))
        at = following
    return count


@pytest.mark.parametrize(
    ("before", "after", "is_refused"),
    [
        ({"topics": "A"}, {"topics": "A,B"}, True),
        ({"topics": "A"}, {}, True),
        ({"topics": "A"}, {"topicsPattern": "A"}, True),
        ({"topicsPattern": "A.*"}, {"topicsPattern": ".*"}, True),
        ({"topicsPattern": "A.*"}, {"topics": "A1,B"}, True),
        ({"topicsPattern": "A.*"}, {"topics": "A1,A"}, False),
        ({"topicsPattern": "A.*"}, {"topicsPattern": "A.*"}, False),
        ({"topics": "A,B"}, {"topics": "B"}, False),
        ({}, {"topics": "B"}, False),
        ({}, {"topicsPattern": "B.*"}, False),
        ({}, {}, False),
    ],
)
def test_passed_records_of_other_topics_are_reported(
    tmp_path: Path, before: dict[str, str], after: dict[str, str], is_refused: bool
) -> None:
    write_log(tmp_path / "a", SPECS, segment=SEGMENT)
    path = f"a/0={tmp_path / 'a'}"
    checkpoint = log(path, **before).initial().as_json()
    start = StreamOffset.parse(checkpoint, PHYSICAL)
    stream = log(path, **after)
    if not is_refused:
        stop = end(stream, start)
        assert stop == replace(stop, topics=stream.initial().topics)
        stream.plan(start, stop)
        return
    for ask in (partial(end, stream, start), partial(stream.plan, start, start)):
        with pytest.raises(StreamError, match="own checkpointLocation"):
            ask()


def test_checkpoint_without_topics_is_continued(tmp_path: Path) -> None:
    write_log(tmp_path / "a", SPECS, segment=SEGMENT)
    stream = log(f"a/0={tmp_path / 'a'}", topics="A")
    checkpoint = stream.initial().as_json()
    del checkpoint["topics"]
    assert end(stream, StreamOffset.parse(checkpoint, PHYSICAL)).topics == stream.initial().topics


LIMITS = [{}, {"rows_max": 7}, {"bytes_max": 1 << 20}, {"bytes_max": 500, "rows_max": 3}]


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("how", ["zeroed", "deleted", "emptied"])
def test_lost_end_is_seen_at_any_batch_limit(
    tmp_path: Path, how: str, limits: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    """The last file that is left ends with a filler."""
    root = tmp_path / "a"
    created = messages(60)
    store = Log(root).append(created)
    last = store.path(store.end)
    if how == "zeroed":
        last.write_bytes(bytes(SEGMENT))
    elif how == "deleted":
        last.unlink()
    else:
        os.truncate(last, 0)
    (root / "abort").touch()
    assert drained(str(root), limits=limits) == 48
    assert caplog.text.count("2208 bytes behind that are no record, or are gone") == 1
    (root / "abort").unlink()
    store.close(created[-1].store_ms)
    with pytest.raises(StreamError, match="2208 bytes from 8192 on, the log's end, are damaged"):
        drained(str(root), limits=limits)


def test_empty_replica_does_not_define_the_beginning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Log(tmp_path / "0", first=3 * SEGMENT).append(messages(40))
    (tmp_path / "1/commitlog").mkdir(parents=True)
    path = f"a/0={tmp_path / '0'},a/1={tmp_path / '1'}"
    assert log(path).initial().marks["a"].at == 3 * SEGMENT
    assert drained(path, readUncommitted="true") == 40
    with pytest.raises(StreamError, match="What not every listed replica holds is not confirmed"):
        drained(path, retryTimeoutMs=100)
    assert "stream.held_up broker=a" in caplog.text
    shutil.copytree(tmp_path / "0/commitlog", tmp_path / "1/commitlog", dirs_exist_ok=True)
    assert drained(path) == 40


def test_ending_stream_reports_what_a_replica_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = two_replicas(tmp_path, [200, 100])
    assert drained(path) == 100
    assert caplog.text.count("since not all replicas of a that are listed hold the rest") == 1


def test_a_segment_under_another_name_ends_a_stream(tmp_path: Path) -> None:
    write_log(tmp_path / "a", SPECS, segment=SEGMENT)
    files = sorted((tmp_path / "a" / "commitlog").iterdir())
    for file in (files[0], files[-1]):
        renamed = file.rename(file.with_name("seg"))
        with pytest.raises(StreamError, match=r"/seg is a segment, and not called") as caught:
            drained(str(tmp_path / "a"))
        assert caught.value.condition is Condition.DATA_LOSS
        assert 0 < drained(str(tmp_path / "a"), failOnDataLoss="false") < 200
        renamed.rename(file)
    assert drained(str(tmp_path / "a")) == 200


@pytest.mark.parametrize("is_closed", [True, False])
def test_damage_after_the_last_record_ends_a_stream(
    tmp_path: Path, is_closed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "a"
    if is_closed:
        Log(root).append(messages(50)).close()  # with queues, which know what is gone
        files = sorted((root / "commitlog").iterdir())[-1:]
    else:
        write_log(root, SPECS[:50], segment=SEGMENT)
        files = sorted((root / "commitlog").iterdir())  # not one record is left
    for file in files:
        file.write_bytes(b"\xa5" * SEGMENT)
    with pytest.raises(StreamError, match="the log's end, are damaged") as caught:
        drained(str(root))
    assert caught.value.condition is Condition.CORRUPT_RECORD
    assert drained(str(root), failOnDataLoss="false") < 50
    assert caplog.text.count("stream.damaged") == 1


def test_first_record_in_transit_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen once it may be; seen again a second later it is."""
    root = tmp_path / "a"
    write_log(root, SPECS[:1], segment=SEGMENT)
    file = root / "commitlog" / f"{0:020d}"
    whole = file.read_bytes()
    file.write_bytes(whole[:60] + bytes(SEGMENT - 60))
    monkeypatch.setattr("rocketbed.pipeline.streams.physical.CLOSE_LOOK_S", 0)
    stream = log(str(root))
    start = stream.initial()
    assert end(stream, start) == start
    file.write_bytes(whole)
    assert len(rows(stream, start, end(stream, start))) == 1
    file.write_bytes(whole[:60] + bytes(SEGMENT - 60))
    assert end(stream, start) == start
    with pytest.raises(StreamError, match="60 bytes from 0 on"):
        end(stream, start)
