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
    created = [
        Message(f"phase-{n // EACH}", bytes(200), store_ms=STORE_MS + n * 60_000)
        for n in range(TOPICS * EACH)
    ]
    log = Log(tmp_path_factory.mktemp("log") / "store").append(created)
    log.write(log.offsets[100], bytes(log.sizes[100]))
    return log


def make_stats(spark: SparkSession, out: object, *stores: object, **conf: str) -> Report:
    settings = JobSettings(stores=tuple(map(str, stores)), conf=conf)
    job = Job("stats", settings, spark=spark)
    stats(job, str(out))
    return job.report


def same(first: DataFrame, second: DataFrame) -> int:
    """Return the number of rows of both, which are the same."""
    actual, expected = (sorted(map(str, frame.collect())) for frame in (first, second))
    assert actual == expected
    return len(actual)


@pytest.mark.slow
def test_reads_with_and_without(
    spark: SparkSession, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_module, "PIECE_BYTES", 8 * SEGMENT)
    report = make_stats(spark, tmp_path, log.root)
    segments = report.counts["segments"]
    assert (report.exit_code, [one["id"] for one in report.findings]) == (1, ["malformed"])
    assert (report.counts["read"], report.counts["records"]) == (segments, TOPICS * EACH - 1)
    assert [row["tasks"] for row in report.tables["cost"]] == [-(-segments // 8)]

    def read(**options: Any) -> DataFrame:
        return pipeline.read(spark, str(log.root), [*COLUMNS, "_corrupt"], **options)

    with_stats = {"stats": tmp_path}
    selections: list[dict[str, Any]] = [
        {},
        {"topics": "phase-3"},
        {"topicsPattern": "phase-[06]"},
        {"startTimestamp": STORE_MS + 6 * EACH * 60_000},
    ]
    for options in selections:
        assert same(read(**options, **with_stats), read(**options)) > EACH
    for condition in ("topic = 'phase-5'", "store_timestamp < '2026-11-18 12:00:00'"):
        assert same(read(**with_stats).where(condition), read().where(condition))
    parts = read(topics="phase-3", **with_stats).rdd.getNumPartitions()
    assert parts < 10 < segments == read(topics="phase-3").rdd.getNumPartitions()


def test_the_statistics_are_a_table(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    make_stats(spark, tmp_path, log.root)
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
    replacement = Log(tmp_path / "other").append(body[::-1])
    make_stats(spark, tmp_path / "stats", log.root)
    for segments in ([3, 5], range(30)):
        for number in segments:
            at = number * SEGMENT
            shutil.copyfile(replacement.path(at), log.path(at))
        for topic in range(TOPICS):
            plain = pipeline.read(spark, str(log.root), COLUMNS, topics=f"phase-{topic}")
            with_stats = pipeline.read(
                spark,
                str(log.root),
                COLUMNS,
                topics=f"phase-{topic}",
                stats=tmp_path / "stats",
            )
            assert same(with_stats, plain)


@pytest.mark.slow
@pytest.mark.parametrize("fixture", ["clean", "killed"])
def test_real_stores(spark: SparkSession, tmp_path: Path, fixture: str) -> None:
    root = unpack(fixture, tmp_path)
    report = make_stats(spark, tmp_path / "stats", root)
    whole = pipeline.read(spark, str(root), ["topic"])
    assert report.counts["messages"] == whole.count()
    for row in whole.distinct().collect():
        options = {"path": str(root), "columns": COLUMNS, "topics": row.topic}
        plain = pipeline.read(spark, **options)
        assert same(pipeline.read(spark, stats=tmp_path / "stats", **options), plain)
    second = make_stats(spark, tmp_path / "stats", root)
    assert (second.counts["read"], second.counts["messages"]) == (1, report.counts["messages"])


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.mark.slow
def test_stores_and_statistics_elsewhere(spark: SparkSession, s3: S3Server, log: Log) -> None:
    location = s3.put(log.root, "stored/store")
    out = f"s3a://{BUCKET}/stats"
    conf = {f"spark.hadoop.{name}": value for name, value in s3.options.items()}
    report = make_stats(spark, out, location, **conf)
    options: dict[str, Any] = {"topics": "phase-6", **s3.options}
    plain = pipeline.read(spark, location, COLUMNS, **options)
    with_stats = pipeline.read(spark, location, COLUMNS, stats=out, **options)
    assert same(with_stats, plain) == EACH
    assert with_stats.rdd.getNumPartitions() < plain.rdd.getNumPartitions()
    assert make_stats(spark, out, location, **conf).counts["known"] == report.counts["segments"] - 2
