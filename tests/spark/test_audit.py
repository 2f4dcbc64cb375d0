"""An audit of a small log whose every figure is known, with a clock that was ahead."""

import csv
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rocketbed.pipeline.jobs.audit.job import AuditOptions, audit
from rocketbed.pipeline.jobs.common import Job, JobSettings
from rocketbed.pipeline.jobs.verify.job import interpreted
from tests.support.logs import STORE_MS, Log, Message

pytestmark = pytest.mark.spark


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_every_figure(spark: SparkSession, tmp_path: Path) -> None:
    log = Log(tmp_path / "store").append(
        [
            Message(
                topic="A" if number < 15 else "B",
                body=bytes(10 + number),
                properties="KEYS\x01hot one\x02TAGS\x01t\x02"
                if number < 12
                else "KEYS\x01cold\x02",
                queue_id=number % 2,
                store_ms=STORE_MS + 1000 * number,
                latency_ms=-3 if number == 19 else number,
            )
            for number in range(20)
        ]
    )
    settings = JobSettings(stores=(str(log.root),), out=tmp_path / "out")
    job = Job("audit", settings, spark=spark)
    with interpreted(spark, is_small=True):
        audit(job, AuditOptions(top=2))
    counts = job.report.counts
    assert (counts["messages"], counts["topics"], counts["queues"]) == (20, 2, 4)
    assert (counts["latency_p50_ms"], counts["latency_p99_ms"]) == (9, 18)
    assert counts["negative_latency"] == 1
    assert "by up to 3 ms: clocks differ" in job.report.notes[0]
    assert job.report.exit_code == 0
    first, second = table(tmp_path / "out" / "topics.csv")
    assert (first["topic"], first["messages"], first["body_max"]) == ("A", "15", "24")
    assert (second["topic"], second["latency_max_ms"], second["negative_latency"]) == (
        "B",
        "18",
        "1",
    )
    assert float(first["body_mean"]) == 17.0
    rates = table(tmp_path / "out" / "rates.csv")
    assert [int(row["start_ms"]) for row in rates] == [STORE_MS + 1000 * n for n in range(20)]
    assert {row["messages"] for row in rates} == {"1"}
    queues = table(tmp_path / "out" / "queues.csv")
    assert [(row["topic"], row["messages"]) for row in queues] == [
        ("A", "8"),
        ("A", "7"),
        ("B", "2"),
        ("B", "3"),
    ]
    keys = table(tmp_path / "out" / "hot_keys.csv")
    assert [(row["key"], row["messages"]) for row in keys] == [("hot", "12"), ("one", "12")]
    assert [row["messages"] for row in table(tmp_path / "out" / "hot_tags.csv")] == ["12"]
    page = (tmp_path / "out" / "index.html").read_text()
    assert page.count("<svg") == 3
    assert "stored before they were born" in page


@pytest.mark.slow
@pytest.mark.parametrize("good", [1, 0])
def test_a_store_time_that_cannot_be(spark: SparkSession, tmp_path: Path, good: int) -> None:
    """Damage may leave such a time. It ended the job if it was the only one of its topic."""
    bad = Message(topic="B", store_ms=1 << 62)
    log = Log(tmp_path / "store").append([Message(topic="A")] * good + [bad])
    job = Job("audit", JobSettings(stores=(str(log.root),), out=tmp_path / "out"), spark=spark)
    with interpreted(spark, is_small=True):
        audit(job, AuditOptions())
    assert job.report.counts["messages"] == good + 1
    assert job.report.notes[0].startswith("1 messages have a store time that cannot be")
    assert [row["messages"] for row in table(tmp_path / "out" / "rates.csv")] == ["1"] * good


@pytest.mark.slow
def test_damage_that_may_belong_to_the_topic_is_a_finding(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = Log(tmp_path / "store").append([Message(topic="AB"[n % 2]) for n in range(6)])
    log.write(log.offsets[2], bytes(8))
    job = Job("audit", JobSettings(stores=(str(log.root),), out=tmp_path / "out"), spark=spark)
    with interpreted(spark, is_small=True):
        audit(job, AuditOptions(topics=("A",)))
    assert (job.report.counts["messages"], job.report.exit_code) == (2, 1)
    assert [(one["id"], one["count"]) for one in job.report.findings] == [("unreadable", 1)]


def test_nothing_to_audit(spark: SparkSession, tmp_path: Path) -> None:
    log = Log(tmp_path / "store").append([])
    log.write(0, b"")
    job = Job("audit", JobSettings(stores=(str(log.root),), out=tmp_path / "out"), spark=spark)
    audit(job, AuditOptions())
    assert (job.report.counts, job.report.exit_code) == ({"messages": 0}, 0)
    assert job.report.notes == ["no messages, so no page and no files"]
    assert not (tmp_path / "out").exists()
