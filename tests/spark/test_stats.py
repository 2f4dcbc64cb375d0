"""The job `stats`, and reads that leave segments out, as they run on Spark."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from rocketbed import pipeline
from rocketbed.pipeline.jobs import stats as job_module
from rocketbed.pipeline.jobs.common import Job, JobSettings
from rocketbed.pipeline.jobs.stats import stats
from rocketbed.pipeline.report import Report
from tests.support.logs import SEGMENT, STORE_MS, Log, Message
from tests.support.s3 import BUCKET, S3Server, s3_server
from tests.support.stores import unpack

pytestmark = pytest.mark.spark
COLUMNS = ["topic", "queue_id", "queue_offset", "physical_offset", "body", "store_timestamp"]
TOPICS, EACH = 8, 50


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """Segments of one topic, then of the next, a minute between messages; one is damaged."""
    made = [
        Message(f"phase-{n // EACH}", bytes(200), store_ms=STORE_MS + n * 60_000)
        for n in range(TOPICS * EACH)
    ]
    log = Log(tmp_path_factory.mktemp("log") / "store").append(made)
    log.write(log.offsets[100], bytes(log.sizes[100]))
    return log


def made(spark: SparkSession, out: object, *stores: object, **conf: str) -> Report:
    settings = JobSettings(stores=tuple(map(str, stores)), conf=conf)
    job = Job("stats", settings, spark=spark)
    stats(job, str(out))
    return job.report


def same(one: DataFrame, other: DataFrame) -> int:
    """How many rows both have, which are the same."""
    found, expected = (sorted(map(str, frame.collect())) for frame in (one, other))
    assert found == expected
    return len(found)


@pytest.mark.slow
def test_reads_with_and_without(
    spark: SparkSession, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_module, "PIECE_BYTES", 8 * SEGMENT)
    report = made(spark, tmp_path, log.root)
    segments = report.counts["segments"]
    assert (report.exit_code, [one["id"] for one in report.findings]) == (1, ["malformed"])
    assert (report.counts["read"], report.counts["records"]) == (segments, TOPICS * EACH - 1)
    assert [row["tasks"] for row in report.tables["cost"]] == [-(-segments // 8)]

    def read(**options: Any) -> DataFrame:
        return pipeline.read(spark, str(log.root), [*COLUMNS, "_corrupt"], **options)

    known = {"stats": tmp_path}
    asked: list[dict[str, Any]] = [
        {},
        {"topics": "phase-3"},
        {"topicsPattern": "phase-[06]"},
        {"startTimestamp": STORE_MS + 6 * EACH * 60_000},
    ]
    for options in asked:
        assert same(read(**options, **known), read(**options)) > EACH
    for condition in ("topic = 'phase-5'", "store_timestamp < '2026-11-18 12:00:00'"):
        assert same(read(**known).where(condition), read().where(condition))
    parts = read(topics="phase-3", **known).rdd.getNumPartitions()
    assert parts < 10 < segments == read(topics="phase-3").rdd.getNumPartitions()


def test_the_statistics_are_a_table(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    made(spark, tmp_path, log.root)
    spark.read.parquet(str(tmp_path)).createOrReplaceTempView("segments")
    rows = spark.sql(
        "SELECT t.topic, sum(t.messages) n, sum(t.bytes) bytes FROM segments"
        " LATERAL VIEW explode(topics) AS t GROUP BY t.topic ORDER BY t.topic"
    ).collect()
    assert [(row.topic, row.n) for row in rows] == [
        (f"phase-{n}", EACH - (n == 2)) for n in range(TOPICS)
    ]
    assert sum(row.bytes for row in rows) == sum(log.sizes) - log.sizes[100]


@pytest.mark.slow
def test_a_store_that_another_one_replaced(spark: SparkSession, tmp_path: Path) -> None:
    """A few segments, and all of them, each of the same name and length as before."""
    body = [Message(f"phase-{n // EACH}", bytes(200)) for n in range(TOPICS * EACH)]
    log = Log(tmp_path / "store").append(body)
    other = Log(tmp_path / "other").append(body[::-1])
    made(spark, tmp_path / "stats", log.root)
    for segments in ([3, 5], range(30)):
        for number in segments:
            at = number * SEGMENT
            shutil.copyfile(other.path(at), log.path(at))
        for topic in range(TOPICS):
            plain = pipeline.read(spark, str(log.root), COLUMNS, topics=f"phase-{topic}")
            known = pipeline.read(
                spark,
                str(log.root),
                COLUMNS,
                topics=f"phase-{topic}",
                stats=tmp_path / "stats",
            )
            assert same(known, plain)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["clean", "killed"])
def test_real_stores(spark: SparkSession, tmp_path: Path, which: str) -> None:
    root = unpack(which, tmp_path)
    report = made(spark, tmp_path / "stats", root)
    whole = pipeline.read(spark, str(root), ["topic"])
    assert report.counts["messages"] == whole.count()
    for row in whole.distinct().collect():
        options = {"path": str(root), "columns": COLUMNS, "topics": row.topic}
        plain = pipeline.read(spark, **options)
        assert same(pipeline.read(spark, stats=tmp_path / "stats", **options), plain)
    again = made(spark, tmp_path / "stats", root)
    assert (again.counts["read"], again.counts["messages"]) == (1, report.counts["messages"])


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.mark.slow
def test_stores_and_statistics_elsewhere(spark: SparkSession, s3: S3Server, log: Log) -> None:
    there = s3.put(log.root, "stored/store")
    out = f"s3a://{BUCKET}/stats"
    conf = {f"spark.hadoop.{name}": value for name, value in s3.options.items()}
    report = made(spark, out, there, **conf)
    options: dict[str, Any] = {"topics": "phase-6", **s3.options}
    plain = pipeline.read(spark, there, COLUMNS, **options)
    known = pipeline.read(spark, there, COLUMNS, stats=out, **options)
    assert same(known, plain) == EACH
    assert known.rdd.getNumPartitions() < plain.rdd.getNumPartitions()
    assert made(spark, out, there, **conf).counts["known"] == report.counts["segments"] - 2
