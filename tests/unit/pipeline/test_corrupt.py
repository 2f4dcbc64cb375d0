"""Each way in which bytes are no record, in each of the three modes."""

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from rocketbed.inspect import Scanned, open_directory
from rocketbed.pipeline.files.corrupt import REASONS, DataLost, RocketbedCorrupt
from rocketbed.pipeline.files.reading import Plan
from rocketbed.pipeline.files.segments import Segment, Window
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.schema import arrow_schema
from tests.support.logs import STORE_MS, Log, Message, messages, reasons, rows

COUNT = 40
BAD = 17
"""Number of the record that is harmed."""


def healthy(tmp_path: Path) -> Log:
    return Log(tmp_path / "store").append(messages(COUNT))


def at(log: Log) -> int:
    return log.offsets[BAD]


def tail(log: Log) -> int:
    """Position of the topic's length in the damaged record (topic-2, 7 characters)."""
    (body,) = struct.unpack_from(">i", log.path(at(log)).read_bytes(), at(log) % 4096 + 84)
    return int(at(log) + 88 + body)


HARM: dict[str, tuple[str, Callable[[Log], None]]] = {
    "magic": ("bad_magic", lambda log: log.flip(at(log) + 5)),
    "zeroed": ("bad_magic", lambda log: log.write(at(log), bytes(log.sizes[BAD]))),
    "size too small": ("bad_size", lambda log: log.write(at(log), struct.pack(">i", 90))),
    "size a little more": (
        "bad_size",
        lambda log: log.write(at(log), struct.pack(">i", log.sizes[BAD] + 1)),
    ),
    "size of two records": (
        "bad_size",
        lambda log: log.write(at(log), struct.pack(">i", sum(log.sizes[BAD : BAD + 2]))),
    ),
    "size beyond the file": ("short_record", lambda log: log.write(at(log), b"\x7f")),
    "a filler": ("bad_size", lambda log: log.write(at(log), struct.pack(">iI", 50, 0xCBD43194))),
    "position": ("position_mismatch", lambda log: log.flip(at(log) + 35)),
    "body length": ("bad_size", lambda log: log.write(at(log) + 84, b"\x7f")),
    "topic length": ("bad_topic", lambda log: log.write(tail(log), b"\x7f")),
    "properties length": ("bad_properties", lambda log: log.write(tail(log) + 8, b"\x7f\xff")),
    "body": ("crc_mismatch", lambda log: log.flip(at(log) + 90)),
    "topic": ("bad_topic", lambda log: log.write(tail(log) + 1, b"\xff\xfe")),
    "properties": ("bad_properties", lambda log: log.write(tail(log) + 12, b"\xff\xfe")),
}
CONTENT = {"body", "topic", "properties"}
"""Harm that leaves the lengths whole: the row keeps its fields."""


@pytest.mark.parametrize("how", HARM)
def test_harm_in_each_mode(tmp_path: Path, how: str) -> None:
    log = healthy(tmp_path)
    before = rows(log.root)
    assert not reasons(before)
    reason, harm = HARM[how]
    harm(log)
    actual_rows = rows(log.root)
    assert reasons(actual_rows) == [(at(log), reason)]
    assert [row for row in actual_rows if not row["_corrupt"]] == before[:BAD] + before[BAD + 1 :]
    (bad,) = (row for row in actual_rows if row["_corrupt"])
    assert (bad["physical_offset"], bad["size"]) == (at(log), log.sizes[BAD])
    damaged_bytes = log.path(at(log)).read_bytes()[at(log) % 4096 :][: log.sizes[BAD]]
    assert bad["_corrupt"]["bytes"] == damaged_bytes
    if how in CONTENT:
        assert bad["queue_offset"] == before[BAD]["queue_offset"]
        assert bad["crc_ok"] == (how != "body")
    else:
        assert bad["queue_offset"] is bad["topic"] is bad["body"] is None
    assert rows(log.root, mode="DROPMALFORMED") == before[:BAD] + before[BAD + 1 :]
    with pytest.raises(RocketbedCorrupt) as caught:
        rows(log.root, mode="FAILFAST")
    assert str(log.path(at(log))) in str(caught.value)
    assert f"{at(log)}: {reason}" in str(caught.value)
    assert rows(log.root, ["physical_offset"], mode="DROPMALFORMED") == [
        {"physical_offset": row["physical_offset"]} for row in before if row is not before[BAD]
    ]


def test_reasons_of_files_and_bodies_are_tested_elsewhere() -> None:
    assert set(REASONS) - {reason for reason, _ in HARM.values()} == {
        "bad_body",
        "torn_tail",
        "missing_segment",
    }


def test_dropped_rows_are_counted_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = healthy(tmp_path)
    rows(log.root, mode="DROPMALFORMED")
    assert not caplog.records
    log.flip(at(log) + 90)
    log.flip(log.offsets[BAD + 2] + 5)
    rows(log.root, mode="DROPMALFORMED")
    logged = [record.getMessage() for record in caplog.records]
    assert sum(int(text.split(": ")[1].split()[0]) for text in logged) == 2


def test_damaged_length_does_not_cost_as_much_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    original = Segment.window

    def window(self: Segment, position: int, size: int = 0, most: int = 1 << 23) -> Window:
        sizes.append(size)
        return original(self, position, size, most)

    monkeypatch.setattr(Segment, "window", window)
    log = Log(tmp_path / "store", segment=32 << 20).append(messages(COUNT))
    log.append([Message(body=bytes(9 << 20)), Message()])
    assert len(rows(log.root)) == COUNT + 2
    assert [size for size in sizes if size] == [log.sizes[-2]] * len([s for s in sizes if s])
    sizes.clear()
    log.write(at(log), struct.pack(">i", 20 << 20))
    assert reasons(rows(log.root)) == [(at(log), "bad_size")]
    assert 20 << 20 not in sizes
    assert max(sizes) == log.sizes[-2]


@pytest.mark.parametrize("how", HARM)
def test_every_split_sees_the_same_damage(tmp_path: Path, how: str) -> None:
    log = healthy(tmp_path)
    HARM[how][1](log)
    whole = rows(log.root)
    for size, mode in ((97, "auto"), (1000, "walk")):
        assert rows(log.root, splitBytes=size, syncMode=mode) == whole


def test_unselected_rows_are_not_judged(tmp_path: Path) -> None:
    log = healthy(tmp_path)
    log.flip(at(log) + 90)
    assert len(rows(log.root, ["body"])) == COUNT
    assert not reasons(rows(log.root, verifyCrc="false"))
    assert {row["crc_ok"] for row in rows(log.root, ["crc_ok"], verifyCrc="false")} == {None}
    assert [row["crc_ok"] for row in rows(log.root, ["crc_ok"])].count(False) == 1


def test_the_checksum_of_a_whole_record(tmp_path: Path) -> None:
    log = Log(tmp_path / "store").append([Message(has_crc=True, topic="abc")] * 3)
    assert not reasons(rows(log.root))
    log.write(log.offsets[1] + 16, b"\x01")
    assert reasons(rows(log.root)) == [(log.offsets[1], "crc_mismatch")]


@pytest.mark.parametrize(("part", "reason"), [("topic", "bad_topic"), ("props", "bad_properties")])
def test_a_sector_lost_to_zeros(tmp_path: Path, part: str, reason: str) -> None:
    """A sector of 512 bytes of a text reads as zeros: valid UTF-8, and still lost."""
    long = Message(topic="t" * 1200, is_wide=True, properties="P\x01" + "v" * 1200)
    log = Log(tmp_path / "store", has_queues=False).append([Message(), long, Message()])
    inside = log.offsets[1] + 88 + 5 + 2 + (0 if part == "topic" else 1202)
    sector = -(-inside // 512) * 512
    log.write(sector, bytes(511))
    assert not reasons(rows(log.root))
    log.write(sector, bytes(512))
    assert reasons(rows(log.root)) == [(log.offsets[1], reason)]


def test_damage_to_the_end_of_a_file(tmp_path: Path) -> None:
    """No record stands behind it in its file, and other files follow: damage, not the end."""
    log = healthy(tmp_path)
    number = max(n for n, offset in enumerate(log.offsets) if offset < 4096) - 2
    log.write(log.offsets[number], bytes(4096 - log.offsets[number]))
    actual_rows = rows(log.root)
    assert reasons(actual_rows) == [(log.offsets[number], "bad_magic")]
    (bad,) = (row for row in actual_rows if row["_corrupt"])
    assert bad["size"] == 4096 - log.offsets[number]
    assert len(actual_rows) == COUNT - 2


def test_shown_bytes_are_cut(tmp_path: Path) -> None:
    log = Log(tmp_path / "store", segment=1 << 16).append(messages(100, body=b"x" * 200))
    log.write(log.offsets[10], bytes(log.offsets[60] - log.offsets[10]))
    (bad,) = (row for row in rows(log.root) if row["_corrupt"])
    assert bad["size"] == log.offsets[60] - log.offsets[10] > 4096
    assert bad["_corrupt"]["bytes"] == bytes(4096)


def torn(tmp_path: Path) -> Log:
    log = healthy(tmp_path)
    log.write(log.offsets[-1] + 60, bytes(log.sizes[-1] - 60))
    return log


def test_torn_tail_is_the_end_of_the_log(tmp_path: Path) -> None:
    log = torn(tmp_path)
    actual_rows = rows(log.root)
    assert len(actual_rows) == COUNT - 1
    assert not reasons(actual_rows)
    assert rows(log.root, mode="FAILFAST", readUncommitted="true") == actual_rows


def test_torn_tail_below_the_mark_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = torn(tmp_path)
    for module in ("reading", "splits"):
        monkeypatch.setattr(f"rocketbed.pipeline.files.{module}.durable_offset", lambda _: log.end)
    assert reasons(rows(log.root)) == [(log.offsets[-1], "torn_tail")]
    assert reasons(rows(log.root, splitBytes=200)) == [(log.offsets[-1], "torn_tail")]
    with pytest.raises(RocketbedCorrupt, match="torn_tail"):
        rows(log.root, mode="FAILFAST")


def test_bad_range_may_match_any_filter(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = healthy(tmp_path)
    log.flip(at(log) + 5)
    for options in ({"topics": "topic-0"}, {"startTimestamp": 0}):
        assert reasons(rows(log.root, **options)) == [(at(log), "bad_magic")]
        caplog.clear()
        actual_rows = rows(log.root, ["topic"], **options)
        assert all(row["topic"] for row in actual_rows)
        assert "1 ranges are not records, so it is unknown" in caplog.text
        assert not reasons(rows(log.root, mode="DROPMALFORMED", **options))


@pytest.mark.parametrize("value", [bytes(8), struct.pack(">q", 1 << 45)])
def test_damaged_time_leaves_no_file_out(tmp_path: Path, value: bytes) -> None:
    log = Log(tmp_path / "store").append(messages(60, store_ms=STORE_MS))
    for file in sorted((log.root / "commitlog").iterdir()):
        log.write(int(file.name) + 56, value)
    files = len(list((log.root / "commitlog").iterdir()))
    assert len(rows(log.root, startTimestamp=STORE_MS - 1)) >= 60 - files
    assert len(rows(log.root, endTimestamp=STORE_MS + 1)) >= 60 - files


def test_torn_tail_of_a_closed_store_is_damage(tmp_path: Path) -> None:
    log = torn(tmp_path).close()
    assert reasons(rows(log.root)) == [(log.offsets[-1], "torn_tail")]
    (bad,) = (row for row in rows(log.root) if row["_corrupt"])
    assert bad["size"] == log.sizes[-1]  # as the queue knows
    assert sum(row["malformed"] for row in rows(log.root, view="files")) == 1
    with pytest.raises(RocketbedCorrupt, match="torn_tail"):
        rows(log.root, mode="FAILFAST")
    assert not reasons(rows(log.root, endOffset=log.offsets[-1]))
    shutil.rmtree(log.root / "consumequeue")
    (bad,) = (row for row in rows(log.root) if row["_corrupt"])
    assert bad["size"] == 60


def test_crash_leftovers_in_a_closed_store_are_no_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """RocketMQ cuts log and queues after a crash, and zeroes neither."""
    log = torn(tmp_path).close(STORE_MS + (COUNT - 2) * 1000)  # the last that is whole
    assert len(rows(log.root, mode="FAILFAST")) == COUNT - 1
    assert f"the log ends at {log.offsets[-1]}, and {log.sizes[-1]} bytes" in caplog.text


def test_bytes_after_a_foreign_end_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = torn(tmp_path).close()
    (log.root / "abort").write_bytes(b"")
    assert not reasons(rows(log.root))
    assert (
        f"the log ends at {log.offsets[-1]}, and {log.sizes[-1]} bytes behind that" in caplog.text
    )


@pytest.mark.parametrize("has_abort", [False, True])
def test_garbage_instead_of_all_records_is_damage(tmp_path: Path, has_abort: bool) -> None:
    log = healthy(tmp_path)
    if has_abort:
        (log.root / "abort").write_bytes(b"")
    files = sorted((log.root / "commitlog").iterdir())
    assert len(files) > 1
    for file in files:
        file.write_bytes(b"\xa5" * 4096)
    actual_rows = rows(log.root)
    assert [row["size"] for row in actual_rows] == [4096] * len(files)
    assert [why for _, why in reasons(actual_rows)] == ["bad_magic"] * (len(files) - 1) + [
        "torn_tail"
    ]
    with pytest.raises(RocketbedCorrupt):
        rows(log.root, mode="FAILFAST")


def test_garbage_last_file_of_a_closed_store(tmp_path: Path) -> None:
    log = healthy(tmp_path).close()
    log.append([Message(body=bytes(3000))])
    start = log.offsets[-1]
    assert start % 4096 == 0
    log.path(start).write_bytes(b"\xa5" * 4096)
    assert reasons(rows(log.root)) == [(start, "torn_tail")]
    assert reasons(rows(log.root, splitBytes=500)) == [(start, "torn_tail")]


@pytest.mark.parametrize("how", ["zeroed", "deleted", "emptied"])
def test_a_last_record_that_only_its_queue_knows(tmp_path: Path, how: str) -> None:
    log = healthy(tmp_path).append([Message(body=bytes(3900))]).close()
    at = log.offsets[-1]
    assert at % 4096 == 0
    log.write(at + 4096, bytes(8))  # prepared, never used
    if how == "zeroed":
        log.write(at, bytes(4096))
    elif how == "deleted":
        log.path(at).unlink()
    else:
        os.truncate(log.path(at), 0)
    with pytest.raises(DataLost, match=f"data from physical offset {at} on is gone"):
        rows(log.root)
    assert reasons(rows(log.root, failOnDataLoss="false")) == [(at, "missing_segment")]
    assert not reasons(rows(log.root, endOffset=at))
    (log.root / "abort").write_bytes(b"")
    if how == "zeroed":
        assert not reasons(rows(log.root))  # may be a crash's
    else:  # the file behind it would not be there
        with pytest.raises(DataLost, match=f"data from physical offset {at} on is gone"):
            rows(log.root)
        assert reasons(rows(log.root, failOnDataLoss="false")) == [(at, "missing_segment")]


def test_a_last_record_that_only_the_checkpoint_knows(tmp_path: Path) -> None:
    log = Log(tmp_path / "store", has_queues=False).append(messages(12))
    log.append([Message(body=bytes(3900))])
    at = log.offsets[-1]
    log.write(at + 4096, bytes(8))  # prepared, never used
    log.path(at).unlink()
    assert not reasons(rows(log.root))  # no broker closed the store, so nothing shows the loss
    log.close()
    with pytest.raises(DataLost, match=f"data from physical offset {at} on is gone"):
        rows(log.root)
    assert reasons(rows(log.root, failOnDataLoss="false")) == [(at, "missing_segment")]


def test_later_record_of_unknown_place(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    created = messages(12)
    log = Log(tmp_path / "store", has_queues=False).append(created)
    log.close(created[-1].store_ms)
    assert len(rows(log.root)) == 12
    assert not caplog.text
    log.write(log.offsets[-2], bytes(log.end - log.offsets[-2]))
    assert len(rows(log.root)) == 10
    expected_text = (
        f"ends at {log.offsets[-2]}, and a broker closed the store when a later record was on"
    )
    assert expected_text in caplog.text


def test_a_whole_log_that_only_its_queues_know(tmp_path: Path) -> None:
    log = healthy(tmp_path).close()
    shutil.rmtree(log.root / "commitlog")
    (log.root / "commitlog").mkdir()
    with pytest.raises(DataLost, match="data from physical offset 0 on is gone"):
        rows(log.root)
    assert reasons(rows(log.root, failOnDataLoss="false")) == [(0, "missing_segment")]


def test_loss_known_to_one_of_very_many_queues(tmp_path: Path) -> None:
    log = Log(tmp_path / "store").append([Message(topic=f"T{n:03d}") for n in range(300)])
    log.append([Message(topic="Z", body=bytes(3900))]).close()
    log.path(log.offsets[-1]).unlink()
    with pytest.raises(DataLost, match=f"from physical offset {log.offsets[-1]} on is gone"):
        rows(log.root)


def test_an_emptied_first_file_is_missing(tmp_path: Path) -> None:
    log = healthy(tmp_path)
    os.truncate(log.path(0), 0)
    with pytest.raises(DataLost, match="data from physical offset 0 on is gone"):
        rows(log.root)
    assert reasons(rows(log.root, failOnDataLoss="false"))[0] == (0, "missing_segment")
    log.path(0).unlink()
    assert not reasons(rows(log.root))  # as by retention


def test_a_file_longer_than_to_the_next_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = healthy(tmp_path)
    whole = rows(log.root)
    with open(log.path(0), "ab") as file:
        file.write(log.path(4096).read_bytes())
    assert rows(log.root) == whole
    assert f"{log.path(0)}: 4096 bytes longer than the distance to the next file" in caplog.text


def test_bytes_after_a_filler_are_not_the_log(tmp_path: Path) -> None:
    """RocketMQ truncates a log after a crash without zeroing what was there."""
    log = healthy(tmp_path)
    at = log.offsets[3]
    log.write(at, struct.pack(">iI", 4096 - at, 0xCBD43194))
    actual_rows = rows(log.root, mode="FAILFAST")
    assert {row["physical_offset"] for row in actual_rows} == {
        offset for offset in log.offsets if not at <= offset < 4096
    }


def test_file_name_without_an_offset(tmp_path: Path) -> None:
    log = healthy(tmp_path)
    (log.root / "commitlog" / ("9" * 20)).write_bytes(b"x")
    assert len(rows(log.root)) == COUNT


@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_segment_under_another_name(tmp_path: Path, number: int) -> None:
    log = healthy(tmp_path).append([Message(body=bytes(3000))] * 2)
    whole = rows(log.root)
    path = sorted((log.root / "commitlog").iterdir())[number]
    start = int(path.name)
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    assert rows(log.root) == whole
    copy.unlink()
    path.rename(path.with_name("seg"))
    with pytest.raises(DataLost, match=f"/seg: .* under another name than {start:020d}"):
        rows(log.root)
    actual_rows = rows(log.root, failOnDataLoss="false")
    assert reasons(actual_rows) == [(start, "missing_segment")]
    expected = [row for row in whole if not start <= row["physical_offset"] < start + 4096]
    assert sorted((row for row in actual_rows if not row["_corrupt"]), key=str) == sorted(
        expected, key=str
    )
    low, high = (0, start) if number else (4096, log.end)
    assert not reasons(rows(log.root, startOffset=low, endOffset=high))


def test_bad_checksum_at_the_end_is_torn_too(tmp_path: Path) -> None:
    log = healthy(tmp_path)
    log.flip(log.offsets[-1] + 90)
    opened = open_directory(log.root)
    good = [item.offset for item in opened.log.scan() if isinstance(item, Scanned)]
    opened.close()
    assert [row["physical_offset"] for row in rows(log.root)] == good == log.offsets[:-1]


def test_a_missing_file(tmp_path: Path) -> None:
    log = Log(tmp_path / "store").append(messages(COUNT))
    log.append([Message(body=bytes(2000))] * 4)
    lost = [offset for offset in log.offsets if 4096 <= offset < 8192]
    log.path(4096).unlink()
    with pytest.raises(DataLost, match="failOnDataLoss"):
        rows(log.root)
    actual_rows = rows(log.root, failOnDataLoss="false")
    assert reasons(actual_rows) == [(4096, "missing_segment")]
    assert len(actual_rows) == len(log.offsets) - len(lost) + 1
    dropped = rows(log.root, failOnDataLoss="false", mode="DROPMALFORMED")
    assert dropped == [row for row in actual_rows if not row["_corrupt"]]
    assert rows(log.root, startOffset=8192) == [
        r for r in actual_rows if r["physical_offset"] >= 8192
    ]


def test_last_file_truncated_after_its_records_is_complete(tmp_path: Path) -> None:
    log = healthy(tmp_path)
    log.write(log.end - log.end % 4096 + 4096, bytes(8))  # prepared, never used
    os.truncate(log.path(log.end), log.end % 4096 + 10)
    assert not reasons(rows(log.root))


def test_property_ending_like_the_checksum_is_another(tmp_path: Path) -> None:
    names = ("x__CRC32#", "__CRC32#")
    log = Log(tmp_path / "store").append(
        [Message(properties=f"{name}\x010123456789\x02") for name in names] + messages(3)
    )
    actual_rows = rows(log.root, ["physical_offset", "crc_ok"])
    assert [row["crc_ok"] for row in actual_rows] == [True, False, True, True, True]


@pytest.mark.parametrize("how", ["deleted", "emptied", "cut"])
def test_a_file_that_shrinks_between_planning_and_reading(tmp_path: Path, how: str) -> None:
    log = healthy(tmp_path)
    schema = arrow_schema("records", ["physical_offset", "_corrupt"])
    for lenient in ("true", "false"):
        options = {"path": str(log.root), "splitBytes": "1000", "failOnDataLoss": lenient}
        plan = Plan.of(Options.parse(options))
        splits = plan.splits()
        saved = log.path(0).read_bytes()
        if how == "deleted":
            log.path(0).unlink()
        else:
            os.truncate(log.path(0), 0 if how == "emptied" else 2000)
        if lenient == "true":
            with pytest.raises(DataLost, match=str(log.path(0))):
                [list(plan.read(split, schema)) for split in splits]
        else:
            actual = [
                row for s in splits for batch in plan.read(s, schema) for row in batch.to_pylist()
            ]
            assert {reason for _, reason in reasons(actual)} == {"missing_segment"}
            assert len(actual) > sum(offset >= 4096 for offset in log.offsets)
        log.path(0).write_bytes(saved)


@pytest.mark.parametrize("lenient", ["true", "false"])
def test_file_that_shrinks_during_its_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lenient: str
) -> None:
    """Cut while a task is between two batches: an error or a row, and no crash of the process."""
    monkeypatch.setattr(
        "rocketbed.pipeline.files.segments.Segment.__init__.__kwdefaults__", {"window": 1000}
    )
    log = healthy(tmp_path)
    schema = arrow_schema("records", ["physical_offset", "size", "_corrupt"])
    plan = Plan.of(Options.parse({"path": str(log.root), "failOnDataLoss": lenient}))
    split = plan.splits()[0]
    reading = plan.read(split, schema)
    first_batch = next(reading).to_pylist()
    os.truncate(log.path(0), 100)
    if lenient == "true":
        with pytest.raises(DataLost, match="it had 4096 bytes, it has 100"):
            list(reading)
        return
    following = first_batch[-1]["physical_offset"] + first_batch[-1]["size"]
    (lost,) = (row for batch in reading for row in batch.to_pylist())
    assert (lost["_corrupt"]["offset"], lost["_corrupt"]["reason"]) == (
        following,
        "missing_segment",
    )
    assert following + lost["size"] == 4096
