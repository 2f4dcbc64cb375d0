"""The lines of `tail`, and what it refuses before anything starts."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rocketbed.pipeline.errors import PipelineError
from rocketbed.pipeline.jobs.common import Job, JobSettings, WrongUsage
from rocketbed.pipeline.jobs.tail.job import DEFAULT_COLUMNS, TailOptions, _Lines, tail
from rocketbed.pipeline.jobs.tail.lines import BODY_MAX, json_line, shown_body, text_line
from rocketbed.pipeline.jobs.tail.progress import BatchTotals

ROW: dict[str, Any] = {
    "broker": "broker-a",
    "topic": "T",
    "queue_id": 2,
    "queue_offset": 17,
    "physical_offset": 4096,
    "store_timestamp": 1_795_000_000_123,
    "tags": "red",
    "keys": ["a", "b"],
    "body": b"hello",
    "_corrupt": None,
}
TORN: dict[str, Any] = dict.fromkeys(ROW) | {
    "broker": "broker-a",
    "_corrupt": {"offset": 99, "reason": "bad_magic", "bytes": b"\xff\x00"},
}


def test_a_message_is_one_line() -> None:
    line = text_line(ROW)
    assert line == "2026-11-18T11:06:40.123Z broker-a/T/2/17 tags=red keys=a,b hello"
    assert text_line({"queue_id": 2, "body": b"\xff"}) == "2 <1 bytes>"
    assert text_line({"flag": 0, "properties": "A\x01b\x02"}) == r"flag=0 properties=A\x01b\x02"
    odd = text_line({"tags": "\x1b[2J", "keys": ["a\n2026", "b"]})
    assert odd == r"tags=\x1b[2J keys=a\n2026,b"


def test_non_record_is_reported_and_bad_checksum_shown() -> None:
    assert text_line(TORN) == "! broker-a offset 99: bad_magic"
    wrong = ROW | {"_corrupt": {"offset": 4096, "reason": "crc_mismatch", "bytes": b""}}
    assert text_line(wrong).endswith("keys=a,b !crc_mismatch hello")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"plain", "plain"),
        ("zwei\nZeilen ü".encode(), "zwei\\nZeilen ü"),
        (b"\xff\xfe", "<2 bytes>"),
        (b"x" * BODY_MAX, "x" * BODY_MAX),
        (b"x" * (BODY_MAX + 1), "x" * BODY_MAX + "... <201 bytes>"),
    ],
)
def test_a_body_stays_on_its_line(body: bytes, expected: str) -> None:
    assert shown_body(body) == expected


def test_json_has_every_column_and_every_byte() -> None:
    row = json.loads(json_line(ROW))
    assert row == ROW | {"store_timestamp": "2026-11-18T11:06:40.123Z", "body": "hello"}
    torn = json.loads(json_line(TORN))
    assert torn["_corrupt"] == {"offset": 99, "reason": "bad_magic", "bytes_base64": "/wA="}
    assert torn["topic"] is None


@pytest.mark.parametrize(
    ("settings", "options", "pattern"),
    [
        ({}, {}, "no input: give"),
        ({"stores": ("x",), "endpoints": "h:1"}, {}, "two inputs: give --store DIR"),
        (
            {"endpoints": "h:1", "topics_pattern": "("},
            {},
            "--topics-pattern .*: expected a regular",
        ),
        ({"stores": ("x",), "topics_pattern": "T"}, {"topics": ("T",)}, "cannot be combined"),
        ({"stores": ("x",)}, {"start": "yesterday"}, "earliest or latest"),
        ({"stores": ("x",), "clusters": "C"}, {}, "--clusters is for live clusters: give --endp"),
        (
            {"endpoints": "h:1", "clusters": "C", "brokers": "b"},
            {},
            "--brokers and --clusters cannot be combined",
        ),
        ({"stores": ("x",)}, {"checkpoint": Path("c")}, "--checkpoint needs --out"),
        ({"stores": ("x",), "remote": "sc://h"}, {}, "with --remote give --out"),
    ],
)
def test_impossible_tails(settings: dict[str, Any], options: dict[str, Any], pattern: str) -> None:
    job = Job("tail", JobSettings(**settings))
    with pytest.raises(WrongUsage, match=pattern):
        tail(job, TailOptions(**options), print)


def test_directory_without_a_store_is_not_waited_for(tmp_path: Path) -> None:
    job = Job("tail", JobSettings(stores=(str(tmp_path),)))
    with pytest.raises(PipelineError, match="is no store directory"):
        tail(job, TailOptions(), print)


def test_bad_range_is_a_line_and_no_message() -> None:
    """It was counted as one, and without the column `_corrupt` its line was empty."""
    actual = [SimpleNamespace(asDict=lambda recursive, row=row: row) for row in (ROW, TORN)]
    for columns in (DEFAULT_COLUMNS, ("queue_offset", "body")):
        written: list[str] = []
        lines = _Lines(text_line, written.append, columns)
        lines.take(SimpleNamespace(collect=lambda: actual), 0)  # type: ignore[arg-type]
        assert lines.counts == (1, 1, 1)
        assert written[1] == "! broker-a offset 99: bad_magic"
    assert written[0] == "17 hello"


def test_kept_totals_of_batches_do_not_grow() -> None:
    """It was a few MiB a day. An idle batch is told of under the number of the next one."""
    totals = BatchTotals()
    counted = [{"unreadable": 1}, {"values": [1], "schema": {}}]  # the second over Connect
    for number in range(1000):
        batches = [
            SimpleNamespace(
                batchId=one,
                numInputRows=4 * (one < number),
                observedMetrics={"tail": counted[one % 2]} if one < number else {},
            )
            for one in range(max(number - 399, 0), number + 1)
        ]
        totals.note(batches)
    assert totals.counts == (3 * 999, 999, 999)
    assert len(totals.recent) <= 200
