"""Histories: which form a file has, what a testbed's tells, and that half of one is refused."""

import json
from pathlib import Path

import pyarrow
import pytest

from chaos.history import Function, HistoryWriter, Outcome
from pipeline.errors import PipelineError
from pipeline.histories import (
    HistoryCut,
    Names,
    arrow_schema,
    check_last_line,
    history_batches,
    kind_of,
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


def test_a_row_without_a_node_is_of_the_only_broker(tmp_path: Path) -> None:
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
def test_a_last_line_that_breaks_off_is_told_by_number(tmp_path: Path, cut: int) -> None:
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


def test_an_empty_history_is_whole_and_a_missing_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    check_last_line(str(tmp_path / "empty"))
    with pytest.raises(PipelineError, match="cannot be read: No such file"):
        kind_of(tmp_path / "none")
