"""Queues that a retention time deletes, and the rendered tables."""

import csv
from pathlib import Path
from typing import Any

import pytest

from rocketbed.pipeline.jobs.retention.job import retention_text, segment_uses, write_tables
from rocketbed.pipeline.jobs.retention.rules import (
    HOUR_MS,
    SegmentUse,
    expired,
    key_row,
    retention_row,
)

NOW_MS = 1_000 * HOUR_MS


def segments(*ages_h: float | None, broker: str = "b") -> list[SegmentUse]:
    """Segments whose first records were stored so many hours ago."""
    return [
        SegmentUse(
            broker=broker,
            segment=number * 100,
            messages=10,
            bytes=90,
            file_bytes=100,
            first_ms=None if age is None else int(NOW_MS - age * HOUR_MS),
            oldest_ms=None if age is None else int(NOW_MS - age * HOUR_MS),
            youngest_ms=None,
        )
        for number, age in enumerate(ages_h)
    ]


@pytest.mark.parametrize(
    ("ages_h", "hours", "count"),
    [
        ((100, 80, 60, 1), 72, 1),
        ((100, 80, 60, 1), 60, 2),
        ((100, 80, 60, 1), 0, 3),
        ((100, 80, 60, 1), 200, 0),
        ((100,), 0, 0),
        ((), 0, 0),
        ((100, 20, 80, 70), 72, 0),
        ((100, 80, None, 75), 72, 1),
        ((100, 72), 72, 1),
        ((100, 71.999), 72, 0),
    ],
)
def test_oldest_segments_go_until_one_must_stay(
    ages_h: tuple[float | None, ...], hours: float, count: int
) -> None:
    assert expired(segments(*ages_h), hours=hours, now_ms=NOW_MS) == count


def test_every_broker_keeps_its_newest_segment() -> None:
    both = [*segments(100, 90), *segments(50, 40, 30, broker="c")]
    row = retention_row(list(reversed(both)), hours=24, now_ms=NOW_MS)
    assert row == {
        "hours": 24,
        "deleted_segments": 3,
        "deleted_messages": 30,
        "deleted_bytes": 270,
        "freed_file_bytes": 300,
        "kept_segments": 2,
        "kept_messages": 20,
        "kept_bytes": 180,
        "oldest_kept_ms": NOW_MS - 90 * HOUR_MS,
    }
    assert retention_row([], hours=24, now_ms=NOW_MS)["oldest_kept_ms"] is None


def test_removals_by_compaction() -> None:
    row = key_row("T", messages=10, total=1000, keyed=8, keyed_bytes=800, keys=3, last=290)
    assert (row["compactable_messages"], row["compactable_bytes"]) == (5, 510)
    assert row["compactable_share"] == 0.51
    same = key_row("T", messages=3, total=300, keyed=3, keyed_bytes=300, keys=3, last=300)
    assert (same["compactable_messages"], same["compactable_share"]) == (0, 0.0)


def test_a_segment_without_records_is_there() -> None:
    cells: list[dict[str, Any]] = [
        {"by": "all", "broker": None, "segment": None, "messages": 4},
        {
            "by": "segment",
            "broker": "b",
            "segment": 0,
            "messages": 4,
            "bytes": 70,
            "first_ms": 5,
            "oldest_ms": 4,
            "youngest_ms": 9,
        },
    ]
    first, second = segment_uses(cells, {("b", 100): 100, ("b", 0): 100})
    assert (first.segment, first.messages, first.first_ms, first.file_bytes) == (0, 4, 5, 100)
    assert (second.segment, second.messages, second.first_ms) == (100, 0, None)


def test_tables_as_files_and_for_people(tmp_path: Path) -> None:
    topics = [
        {"topic": f"topic-{number}", "messages": 1000 * number, "bytes": number << 20}
        for number in range(12, 0, -1)
    ]
    keys = [{"topic": "topic-12", "compactable_share": 0.25}]
    rows = [retention_row(segments(100, 80), hours=72, now_ms=NOW_MS)]
    tables = {"retention": rows, "topics": topics, "keys": keys, "days": []}
    write_tables(tmp_path / "out", tables)
    with open(tmp_path / "out" / "topics.csv", newline="") as file:
        assert next(iter(csv.DictReader(file))) == {
            "topic": "topic-12",
            "messages": "12000",
            "bytes": str(12 << 20),
        }
    assert (tmp_path / "out" / "days.csv").read_text() == ""
    text = retention_text(tables)
    assert "72 h" in text
    assert "10 in 90 B" in text
    assert "1970-02-08 08:00:00" in text
    assert "12,000   12.0 MiB       25.0 %" in text
    assert "and 2 topics more" in text
    assert "topic-2 " not in text
