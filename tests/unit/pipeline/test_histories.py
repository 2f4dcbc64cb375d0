"""Histories: which form a file has, what a testbed's tells, and that half of one is refused."""

import json
from pathlib import Path

import pyarrow
import pytest

from rocketbed.chaos.evidence.history import Function, HistoryWriter, Outcome
from rocketbed.pipeline.errors import PipelineError
from rocketbed.pipeline.histories import Names, arrow_schema, history_batches, kind_of
from rocketbed.pipeline.history_files import (
    BadHistory,
    HistoryCut,
    arrow_batches,
    check_last_line,
    line_batches,
)

LINE = json.dumps({"uniq_key": "k", "topic": "t", "outcome": "ok"})


def write_testbed(path: Path) -> None:
    """A send that was acknowledged, one that was refused, a delivery, a commit, and a pull."""
    clock = iter(range(1, 100))
    with HistoryWriter(path, lambda: next(clock)) as writer:
        sent = writer.begin(
            Function.SEND, process=3, topic="t", queue=1, value=7, node="b1", body_crc=99
        )
        sent.finish(Outcome.OK, status=0, queue_offset=5, physical_offset=640)
        writer.begin(Function.SEND, process=3, topic="t", value=8, node="b1").finish(Outcome.FAIL)
        writer.begin(
            Function.DELIVER, process=9, topic="t", queue=1, value=7, operation=2, node="b2"
        ).finish(Outcome.OK, queue_offset=5)
        writer.begin(
            Function.COMMIT_OFFSET, process=9, topic="t", queue=1, operation=2, node="b2"
        ).finish(Outcome.OK, queue_offset=6)
        writer.begin(Function.PULL, process=9, topic="t", queue=1, node="b2").finish(Outcome.OK)


def test_a_testbeds_history_becomes_a_table(tmp_path: Path) -> None:
    path = tmp_path / "history.rbh"
    write_testbed(path)
    assert kind_of(path) == "testbed"
    names = Names({"b1": "b", "b2": "b"})
    table = pyarrow.Table.from_batches(history_batches(str(path), names), arrow_schema())
    rows = table.to_pylist()
    assert [row["kind"] for row in rows] == ["send", "send", "read", "commit"]
    sent, refused, read, commit = rows
    assert (sent["uniq_key"], sent["broker"], sent["outcome"]) == ("7", "b", "ok")
    assert (sent["queue_offset"], sent["physical_offset"], sent["body_crc"]) == (5, 640, 99)
    assert (refused["outcome"], refused["queue_id"], refused["queue_offset"]) == (
        "fail",
        None,
        None,
    )
    assert (read["group"], read["client"], read["queue_offset"]) == ("2", "9", 5)
    assert (commit["group"], commit["queue_offset"]) == ("2", 6)
    assert {row["clock"] for row in rows} == {"run"}


def test_row_without_a_node_belongs_to_the_only_broker(tmp_path: Path) -> None:
    path = tmp_path / "history.rbh"
    with HistoryWriter(path, lambda: 1) as writer:
        writer.begin(Function.SEND, process=1, topic="t", value=1).finish(Outcome.INFO)
    for names, broker in ((Names({}, "b"), "b"), (Names({"b1": "b"}), None)):
        (batch,) = history_batches(str(path), names)
        assert batch.to_pylist()[0]["broker"] == broker


@pytest.mark.parametrize("cut", [1, 40])
def test_a_testbeds_history_that_was_cut_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "history.rbh"
    write_testbed(path)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(HistoryCut, match="is not whole: the file ends"):
        list(history_batches(str(path), Names()))


@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\r\n"])
def test_lines_that_are_whole(tmp_path: Path, end: str) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(f"{LINE}\n{LINE}{end}")
    assert kind_of(path) == "json"
    check_last_line(str(path))


@pytest.mark.parametrize("cut", [1, 10, len(LINE) - 1])
def test_incomplete_last_line_is_reported_by_number(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(f"{LINE}\n" * 3 + LINE[:-cut])
    with pytest.raises(HistoryCut, match=f"its last line, 4, breaks off after {len(LINE) - cut} "):
        check_last_line(str(path))


def test_a_long_last_line_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(LINE + "\n" + json.dumps({"uniq_key": "k" * 200_000}))
    check_last_line(str(path))
    path.write_text(LINE + "\n" + json.dumps({"uniq_key": "k" * 200_000})[:-1])
    with pytest.raises(HistoryCut, match="its last line, 2,"):
        check_last_line(str(path))


def test_empty_history_is_complete_and_a_missing_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    check_last_line(str(tmp_path / "empty"))
    with pytest.raises(PipelineError, match="cannot be read: No such file"):
        kind_of(tmp_path / "none")


def lines(count: int) -> str:
    return "".join(
        json.dumps({"uniq_key": f"k{number}", "topic": "t", "done_ns": number, "more": [1]}) + "\n"
        for number in range(count)
    )


@pytest.mark.parametrize("step", [1, 7, 50, 51, 1000, 10**6])
def test_every_line_is_read_once_however_split(tmp_path: Path, step: int) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(lines(12).rstrip("\n"))
    size = path.stat().st_size
    rows = [
        row
        for start in range(0, size, step)
        for batch in line_batches(str(path), start, start + step)
        for row in batch.to_pylist()
    ]
    assert [row["uniq_key"] for row in rows] == [f"k{number}" for number in range(12)]
    assert [row["done_ns"] for row in rows] == list(range(12))
    assert {row["group"] for row in rows} == {None}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"uniq_key": "k"', "has an invalid line at byte {at}"),
        ("nonsense", "has an invalid line at byte {at}"),
        ("[1, 2]", "not a JSON object"),
        ('{"uniq_key": 7}', "a field of another type"),
        ('{"queue_offset": "7"}', "a field of another type"),
    ],
)
def test_invalid_line_is_reported_by_its_place(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(lines(2) + line + "\n" + lines(1))
    with pytest.raises(BadHistory, match=reason.format(at=len(lines(2)))):
        list(line_batches(str(path), 0, 10_000))


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [("bodycrc", "body_crc"), ("QUEUE_ID", "queue_id"), ("sent_ms", "sent_ns")],
)
def test_misspelled_field_is_reported(tmp_path: Path, name: str, suggestion: str) -> None:
    lined, arrow = tmp_path / "history.jsonl", tmp_path / "history.arrow"
    lined.write_text(lines(2) + json.dumps({"uniq_key": "k", name: 1}) + "\n" + lines(1))
    table = pyarrow.table({"uniq_key": ["a"], name: [1], "more": [1], "queue": [1]})
    with pyarrow.ipc.new_file(arrow, table.schema) as writer:
        writer.write_table(table)
    for batches in (line_batches(str(lined), 0, 10_000), arrow_batches(str(arrow))):
        with pytest.raises(BadHistory, match=f"has a field {name}: is {suggestion} meant"):
            list(batches)


def test_arrow_file_may_lack_columns_but_not_its_end(tmp_path: Path) -> None:
    path = tmp_path / "history.arrow"
    table = pyarrow.table({"uniq_key": ["a"], "queue_offset": pyarrow.array([4], pyarrow.int32())})
    with pyarrow.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    assert kind_of(path) == "arrow"
    (batch,) = arrow_batches(str(path))
    row = batch.to_pylist()[0]
    assert (row["uniq_key"], row["queue_offset"], row["outcome"]) == ("a", 4, None)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(HistoryCut, match="is not whole"):
        list(arrow_batches(str(path)))
