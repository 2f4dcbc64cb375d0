"""`tail` over a store that grows: lines, Parquet, and nothing twice."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rocketbed.pipeline.jobs.common import Job, JobSettings, WrongUsage
from rocketbed.pipeline.jobs.tail.job import TailOptions, tail
from rocketbed.pipeline.report import Report
from tests.support.logs import SEGMENT, Log, Message

pytestmark = pytest.mark.spark


def run(
    spark: SparkSession,
    store: Path,
    out: Path | None = None,
    columns: tuple[str, ...] = (),
    **options: Any,
) -> tuple[list[str], Report]:
    settings = JobSettings(stores=(f"a/0={store}",), out=out, columns=columns)
    job = Job("tail", settings, spark=spark)
    lines: list[str] = []
    try:
        tail(job, TailOptions(once=True, **options), lines.append)
    finally:
        job.close()
    return lines, job.report


def test_lines_of_what_is_there(spark: SparkSession, tmp_path: Path) -> None:
    log = Log(tmp_path / "store").append(
        [Message(topic="AB"[n % 2], body=b"%d" % n, properties="TAGS\x01t\x02") for n in range(60)]
    )
    assert log.end > SEGMENT
    log.write(log.offsets[4], bytes(8))
    lines, report = run(spark, log.root, start="earliest", as_json=True)
    rows = [json.loads(line) for line in lines]
    assert [int(row["body"]) for row in rows if row["topic"]] == [n for n in range(60) if n != 4]
    assert rows[0]["tags"] == "t"
    assert rows[0]["store_timestamp"] == "2026-11-18T11:06:40.000Z"
    assert [row["_corrupt"]["offset"] for row in rows if not row["topic"]] == [log.offsets[4]]
    assert report.counts == {"messages": 59, "batches": 1}
    assert [(one["id"], one["count"]) for one in report.findings] == [("unreadable", 1)]
    named, report = run(
        spark, log.root, start="earliest", topics=("B",), columns=("body",), as_json=True
    )
    rows = [json.loads(line) for line in named]
    (torn,) = [row for row in rows if row["body"] is None]
    assert torn["_corrupt"]["offset"] == log.offsets[4]
    assert [row for row in rows if row != torn] == [{"body": f"{n}"} for n in range(1, 60, 2)]
    assert (report.counts["messages"], report.exit_code) == (30, 1)


@pytest.mark.slow
def test_second_run_into_parquet_adds_only_new_rows(spark: SparkSession, tmp_path: Path) -> None:
    log = Log(tmp_path / "store").append([Message(topic="A", body=b"%d" % n) for n in range(5)])
    out = tmp_path / "out"

    def bodies() -> list[int]:
        body_rows = spark.read.parquet(str(out)).select("body").collect()
        return sorted(int(row.body) for row in body_rows)

    run(spark, log.root, out, start="earliest", topics=("A",))
    assert bodies() == list(range(5))
    log.append([Message(topic=topic, body=b"%d" % n) for n in range(5, 8) for topic in "AB"])
    log.write(log.offsets[-1], bytes(8))
    log.append([Message(topic="B")])
    lines, report = run(spark, log.root, out, start="earliest", topics=("A",))
    assert (lines, report.counts["messages"]) == ([], 3)
    assert [(one["id"], one["count"]) for one in report.findings] == [("unreadable", 1)]
    assert bodies() == list(range(8))
    with pytest.raises(WrongUsage, match="would be duplicated"):
        run(spark, log.root, out, checkpoint=tmp_path / "other")


@pytest.mark.slow
@pytest.mark.parametrize("end", ["Ctrl-C", "reader gone"])
def test_following_until_it_is_ended(tmp_path: Path, end: str) -> None:
    log = Log(tmp_path / "store").append([Message(body=b"old")])
    report = tmp_path / "report.json"
    words = ["pipeline", "tail", "--store", str(log.root), "--from", "earliest"]
    words += ["--master", "local[2]", "--report", str(report)]
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "rocketbed", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().endswith("/T/0/0 old\n")
        log.append([Message(body=b"new")])
        assert process.stdout.readline().endswith(" new\n")
        if end == "Ctrl-C":
            process.send_signal(signal.SIGINT)
        else:
            process.stdout.close()
            log.append([Message(body=b"unread")])
        errors = process.stderr.read()
        assert process.wait() == 0
    assert "Traceback" not in errors
    report_read = json.loads(report.read_text())
    assert (report_read["verdict"], report_read["counts"]["messages"] >= 2) == ("good", True)
    assert not list(tmp_path.glob("rocketbed-tail-*"))
