"""Stretches of a log: planned, begun at a record, ended at one."""

import struct
from pathlib import Path

import pytest

from rocketbed.pipeline.files import reading, splits
from rocketbed.pipeline.files.paths import parse_paths
from rocketbed.pipeline.files.reading import Plan
from rocketbed.pipeline.files.segments import Segment
from rocketbed.pipeline.files.splits import (
    NotAStore,
    Replica,
    aligned_end,
    confirmed_end,
    data_end,
    plan_splits,
)
from rocketbed.pipeline.files.sync import first_record, queue_anchor
from rocketbed.pipeline.option_table import OptionError
from rocketbed.pipeline.options import Options
from tests.support.logs import Log, Message, messages, reasons, rows

MODES = ("auto", "index", "walk", "scan")


def replica(log: Log, name: str = "r") -> Replica:
    return Replica("b", name, str(log.root))


def store(tmp_path: Path, count: int = 60, first: int = 0) -> Log:
    return Log(tmp_path / "store", first=first).append(messages(count))


def test_paths_name_brokers_and_replicas(tmp_path: Path) -> None:
    root = tmp_path / "with=sign,and comma"
    root.mkdir()
    name = "with-sign-and comma"
    assert parse_paths(str(root)) == [Replica(name, name, str(root))]
    assert parse_paths("/data/a/store") == [Replica("store", "store", "/data/a/store")]
    assert parse_paths("b/m=/m, b/s=/s,c=/c") == [
        Replica("b", "m", "/m"),
        Replica("b", "s", "/s"),
        Replica("c", "c", "/c"),
    ]


@pytest.mark.parametrize("text", ["", " , ", "b/=/x", "=/x", "b/m=", "a=/x,a=/y", "/x/s,/x/s/"])
def test_paths_that_cannot_be(text: str) -> None:
    with pytest.raises(OptionError):
        parse_paths(text)


@pytest.mark.parametrize(
    ("name", "pattern"), [("nothing", "no such directory"), ("", "no commitlog")]
)
def test_directory_without_a_store(tmp_path: Path, name: str, pattern: str) -> None:
    with pytest.raises(NotAStore, match=pattern):
        rows(tmp_path / name)


def test_stretches_tile_the_log(tmp_path: Path) -> None:
    log = store(tmp_path)
    for size in (100, 999, 4096, 1 << 30):
        for start, end in ((None, None), (log.offsets[3], log.offsets[-3]), (5000, 5001)):
            plan = plan_splits([replica(log)], split_bytes=size, start=start, end=end)
            low, high = start or 0, log.segment * 3 if end is None else end
            at = low
            for split in plan:
                assert split.base + split.start == at
                assert 0 < split.end - split.start <= size
                at = split.base + split.end
            assert at == min(high, -(-log.end // 4096) * 4096)
    assert plan_splits([replica(log)], start=7, end=7) == []


def test_a_log_that_does_not_begin_at_zero(tmp_path: Path) -> None:
    log = store(tmp_path, first=40960)
    assert [row["physical_offset"] for row in rows(log.root)] == log.offsets
    assert log.offsets[0] == 40960
    assert data_end(replica(log)) == log.end


@pytest.mark.parametrize("mode", MODES)
def test_every_place_leads_to_the_next_record(tmp_path: Path, mode: str) -> None:
    log = store(tmp_path)
    inner = [offset for offset in log.offsets if offset < 4096]
    for start in range(0, inner[-1] + 1, 13):
        (split, *_) = plan_splits([replica(log)], start=start, end=4096)
        with Segment(split.path, split.base, split.size) as segment:
            expected = min(offset for offset in inner if offset >= start)
            assert first_record(segment, split, mode) == expected


def planted(tmp_path: Path, *, has_queues: bool = True) -> Log:
    """A log with a body that holds records which say, rightly, that they stand where they do."""
    log = Log(tmp_path / "store", has_queues=has_queues).append(messages(4))
    at = log.end + 88 + 60
    fake = bytearray(60)
    for number in range(6):
        fake += Message(topic="fake", body=b"f" * 90).encode(at + len(fake) - 60, number)
    return log.append([Message(topic="big", body=bytes(fake)), *messages(4)])


@pytest.mark.parametrize("mode", ["auto", "index", "walk"])
@pytest.mark.parametrize("has_queues", [True, False])
def test_planted_records_fool_no_safe_mode(tmp_path: Path, mode: str, has_queues: bool) -> None:
    log = planted(tmp_path, has_queues=has_queues)
    expected = rows(log.root)
    assert {row["topic"] for row in expected} == {"big", "topic-0", "topic-1", "topic-2"}
    for size in (50, 100, 333):
        assert rows(log.root, splitBytes=size, syncMode=mode) == expected


def test_planted_records_fool_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reason why `scan` is not the default."""
    monkeypatch.setattr("rocketbed.pipeline.files.sync.WINDOW_MIN", 250)
    actual_rows = rows(planted(tmp_path).root, splitBytes=100, syncMode="scan")
    assert any(row["topic"] == "fake" for row in actual_rows)


@pytest.mark.parametrize("size", [100, 200, 300, 500])
def test_a_search_loses_nothing_near_damage(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketbed.pipeline.files.sync.WINDOW_MIN", 64)
    log = store(tmp_path)
    data = log.path(0).read_bytes()
    moved = data[log.offsets[4] : log.offsets[4] + log.sizes[4]]
    log.write(log.offsets[9], moved)
    expected = rows(log.root)
    assert reasons(expected) == [(log.offsets[9], "position_mismatch")]
    assert rows(log.root, splitBytes=size, syncMode="scan") == expected


def test_a_least_number_of_tasks_and_a_largest(tmp_path: Path) -> None:
    log = store(tmp_path)
    plan = Plan.of(Options.parse({"path": str(log.root), "minPartitions": "8"}))
    assert 8 <= len(plan.splits()) <= 8 + len(list((log.root / "commitlog").iterdir()))
    assert rows(log.root, minPartitions=8) == rows(log.root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "TASKS_MAX", 100)
        with pytest.raises(OptionError, match="tasks: give a larger splitBytes"):
            rows(log.root, splitBytes=1)


def test_queue_with_a_wrong_place_is_not_believed(tmp_path: Path) -> None:
    log = store(tmp_path)
    expected = rows(log.root)
    queue = log.root / "consumequeue" / "topic-0" / "0" / f"{0:020d}"
    data = bytearray(queue.read_bytes())
    for at in range(0, 400, 20):
        (offset,) = struct.unpack_from(">q", data, at)
        struct.pack_into(">q", data, at, offset + 3)
    queue.write_bytes(data)
    assert rows(log.root, splitBytes=300, syncMode="index") == expected


def test_anchor_is_the_nearest_in_any_queue(tmp_path: Path) -> None:
    log = store(tmp_path)
    inner = [offset for offset in log.offsets if offset < 4096]
    with Segment(str(log.path(0)), 0, 4096) as segment:
        for offset in inner[1:]:
            assert queue_anchor(replica(log), segment, offset) == offset
            assert queue_anchor(replica(log), segment, offset - 1) < offset
        assert queue_anchor(replica(log), segment, 0) == 0
    with Segment(str(log.path(4096)), 4096, 4096) as segment:
        assert queue_anchor(replica(log), segment, 0) == 0


def test_the_end_of_the_data(tmp_path: Path) -> None:
    log = store(tmp_path)
    assert data_end(replica(log)) == log.end
    for since in (0, log.offsets[5], log.offsets[-1], log.end):
        assert data_end(replica(log), since) == log.end
    log.write(-(-log.end // 4096) * 4096, b"")
    assert data_end(replica(log)) == log.end
    for number in (-1, -2, -3):
        log.flip(log.offsets[number] + 90)
        assert data_end(replica(log)) == log.offsets[number]


def test_records_after_a_bad_one_count_unless_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = store(tmp_path)
    log.flip(log.offsets[-3] + 90)
    assert data_end(replica(log)) == log.end
    monkeypatch.setattr(splits, "durable_offset", lambda _: log.offsets[-5])
    assert data_end(replica(log)) == log.offsets[-3]
    log.flip(log.offsets[-4] + 5)
    assert data_end(replica(log)) == log.offsets[-4]


def test_the_end_of_a_log_without_records(tmp_path: Path) -> None:
    log = Log(tmp_path / "store", first=8192)
    assert data_end(replica(log)) == 0
    log.write(8192, b"")
    assert data_end(replica(log)) == 8192
    assert rows(log.root) == []


def test_common_end_of_a_brokers_replicas(tmp_path: Path) -> None:
    long = Log(tmp_path / "long").append(messages(60))
    short = Log(tmp_path / "short").append(messages(33))
    both = [replica(long, "long"), replica(short, "short")]
    assert confirmed_end(both) == short.end == confirmed_end(both, short.offsets[30])
    paths = f"b/long={long.root},b/short={short.root}"
    actual_rows = rows(paths)
    assert [row["replica"] for row in actual_rows] == ["long"] * 33 + ["short"] * 33
    assert len(rows(paths, readUncommitted="true")) == 93
    assert len(rows(f"b={long.root},c={short.root}")) == 93


def test_limit_moves_to_the_end_of_a_record(tmp_path: Path) -> None:
    log = store(tmp_path)
    ends = [offset + size for offset, size in zip(log.offsets, log.sizes, strict=True)]
    start = log.offsets[4]
    for limit in (1, log.sizes[4], log.sizes[4] + 1, 700, 5000):
        expected = max([end for end in ends if end <= start + limit], default=ends[4])
        assert aligned_end(replica(log), start, limit) == max(expected, ends[4])
    assert aligned_end(replica(log), start, 1 << 40) == log.end
    assert aligned_end(replica(log), start, 1 << 40, limit=ends[9]) == ends[9]
    assert aligned_end(replica(log), start, 1 << 40, rows_max=3) == ends[6]
    assert aligned_end(replica(log), log.end, 100) == log.end


def test_consecutive_limits_give_every_record_once(tmp_path: Path) -> None:
    log = store(tmp_path)
    log.write(log.offsets[20], bytes(log.sizes[20]))
    expected = rows(log.root)
    at, rows_read = 0, []
    while at < log.end:
        end = aligned_end(replica(log), at, 500, limit=log.end)
        assert end > at
        rows_read += rows(log.root, startOffset=at, endOffset=end)
        at = end
    assert rows_read == expected
    assert len(reasons(rows_read)) == 1


def test_files_out_of_time_are_not_opened(tmp_path: Path) -> None:
    hours = [
        Message(store_ms=1_795_000_000_000 + 3_600_000 * (n - n % 2), body=bytes(900))
        for n in range(20)
    ]
    log = Log(tmp_path / "store").append(hours)
    start = 1_795_000_000_000 + 3_600_000 * 9
    end = start + 3_600_000 * 4
    plan = plan_splits([replica(log)], start_ms=start, end_ms=end)
    assert [split.base for split in plan] == [8192, 12288]
    actual_rows = rows(log.root, startTimestamp=start, endTimestamp=end)
    assert [row["physical_offset"] for row in actual_rows] == log.offsets[10:14]
