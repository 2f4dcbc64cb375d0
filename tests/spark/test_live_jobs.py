"""Jobs that read a live cluster in place of its files: `export`, `audit`, `verify`, `tail`."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from pyspark.sql import SparkSession

from rocketbed.cluster.cluster import LocalCluster
from rocketbed.pipeline.errors import PipelineError
from rocketbed.pipeline.jobs.audit.job import AuditOptions, audit
from rocketbed.pipeline.jobs.common import Job, JobSettings, WrongUsage
from rocketbed.pipeline.jobs.export.job import ExportOptions, export
from rocketbed.pipeline.jobs.export.manifest import NAME
from rocketbed.pipeline.jobs.tail.job import TailOptions, tail
from rocketbed.pipeline.jobs.verify.job import VerifyOptions, verify
from rocketbed.pipeline.report import Report
from tests.support.pipeline_live import send, sink
from tests.support.spark_live import cluster_in

pytestmark = pytest.mark.spark


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with cluster_in(tmp_path / "c") as running:
        yield running


def put(cluster: LocalCluster, topic: str, first: int, end: int) -> None:
    send(sink(cluster, topic=topic, requestBytes="200"), first, end)


def settings(cluster: LocalCluster, out: Path | None = None, **more: Any) -> JobSettings:
    return JobSettings(endpoints=cluster.nameserver_address, out=out, **more)


def exported(spark: SparkSession, settings: JobSettings, *topics: str) -> Report:
    job = Job("export", settings, spark=spark)
    try:
        export(job, ExportOptions(topics=topics))
    finally:
        job.close()
    return job.report


def bodies(spark: SparkSession, out: Path) -> dict[str, list[int]]:
    numbers_by_topic: dict[str, list[int]] = {}
    for row in spark.read.parquet(str(out)).select("topic", "body").collect():
        numbers_by_topic.setdefault(row.topic, []).append(int(row.body))
    return {topic: sorted(numbers) for topic, numbers in numbers_by_topic.items()}


@pytest.mark.slow
def test_export_continues_at_the_queues_ends(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    put(cluster, "A", 0, 40)
    put(cluster, "B", 0, 20)
    out = tmp_path / "out"
    first = exported(spark, settings(cluster, out))
    assert (first.exit_code, first.counts["rows"], first.counts["parts"]) == (0, 60, 1)
    assert {"A", "B", "TBW102"} <= set(first.inputs[0]["topics"])
    idle = exported(spark, settings(cluster, out))
    assert idle.counts["rows"] == 0
    assert "nothing new" in idle.notes[0]
    put(cluster, "B", 20, 30)
    put(cluster, "C", 0, 5)
    second = exported(spark, settings(cluster, out))
    assert (second.counts["rows"], second.counts["rows_in_all"]) == (15, 75)
    assert bodies(spark, out) == {"A": [*range(40)], "B": [*range(30)], "C": [*range(5)]}

    # A part that was begun and not ended is written once more, and what came later is another.
    manifest = json.loads((out / NAME).read_text())
    manifest["pending"] = [manifest["parts"].pop()]
    (out / NAME).write_text(json.dumps(manifest))
    put(cluster, "C", 5, 9)
    third = exported(spark, settings(cluster, out))
    assert (third.counts["rows"], third.counts["parts"]) == (19, 2)
    assert bodies(spark, out)["C"] == [*range(9)]

    store = f"broker-a={cluster.member_directory('master')}/store"
    with pytest.raises(WrongUsage, match=r"exported with source=queues, not logs"):
        exported(spark, JobSettings(stores=(store,), out=out))


@pytest.mark.slow
def test_topics_of_an_export_and_a_recreated_one(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    for topic in ("Orders-1", "Orders-2", "Trades"):
        put(cluster, topic, 0, 40)
    matching, named = tmp_path / "matching", tmp_path / "named"
    live = settings(cluster, matching, topics_pattern="Orders-.")
    assert exported(spark, live).counts["rows"] == 80
    assert exported(spark, settings(cluster, named), "Trades").counts["rows"] == 40
    assert bodies(spark, named) == {"Trades": [*range(40)]}

    async def delete() -> None:
        async with cluster.admin() as admin:
            await admin.delete_topic("Orders-2")

    trio.run(delete)
    without_topic = exported(spark, live)
    assert without_topic.counts["rows"] == 0
    assert any("not there now" in note for note in without_topic.notes)
    put(cluster, "Orders-2", 1000, 1100)
    with pytest.raises(PipelineError, match=r"is not the one that was exported: .*recreated"):
        exported(spark, live)


@pytest.mark.slow
def test_audit_of_a_cluster_matches_its_files(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    put(cluster, "A", 0, 40)
    put(cluster, "B", 0, 20)
    store = f"broker-a={cluster.member_directory('master')}/store"
    figures = []
    for name, job_settings in (
        ("live", settings(cluster, tmp_path / "live")),
        ("files", JobSettings(stores=(store,), out=tmp_path / "files")),
    ):
        job = Job("audit", job_settings, spark=spark)
        audit(job, AuditOptions(topics=("A", "B")))
        with (tmp_path / name / "topics.csv").open(newline="") as file:
            figures.append((job.report.counts, list(csv.DictReader(file))))
    assert figures[0] == figures[1]
    assert figures[0][0]["messages"] == 60


@pytest.mark.slow
def test_a_cluster_is_verified_against_a_history(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    put(cluster, "A", 0, 30)
    out = tmp_path / "rows"
    exported(spark, settings(cluster, out, columns=("uniq_key", "queue_id", "queue_offset")), "A")
    rows = spark.read.parquet(str(out)).collect()
    lines = [
        {
            "kind": "send",
            "topic": "A",
            "uniq_key": row.uniq_key,
            "outcome": "ok",
            "queue_id": row.queue_id,
            "queue_offset": row.queue_offset,
        }
        for row in rows
    ]

    def verdicts(extra: list[dict[str, Any]], **more: Any) -> tuple[Report, dict[str, str]]:
        path = tmp_path / "history.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, *extra]))
        job = Job("verify", settings(cluster), spark=spark)
        verify(job, VerifyOptions(histories=(path,), **more))
        return job.report, {one["id"]: one["verdict"] for one in job.report.checks}

    report, verdict_of = verdicts([], copies=2)
    assert (report.exit_code, report.counts["records"]) == (0, 30)
    assert {verdict_of[name] for name in ("V1", "V2", "V3", "V6", "V7", "V10", "V11")} == {"ok"}
    assert {verdict_of[name] for name in ("V4", "V5", "V8")} == {"not-applicable"}
    lost = {**lines[0], "uniq_key": "F" * 32, "queue_offset": 999}
    report, verdict_of = verdicts([lost])
    assert (report.exit_code, verdict_of["V1"]) == (1, "violated")
    with pytest.raises(WrongUsage, match="--leader is for stores"):
        verdicts([], leaders={"broker-a": "0"})


def test_tail_follows_all_topics_of_a_pattern(spark: SparkSession, cluster: LocalCluster) -> None:
    put(cluster, "Orders-1", 0, 3)
    put(cluster, "Trades", 0, 3)
    put(cluster, "Orders-2", 3, 5)
    job = Job("tail", settings(cluster, topics_pattern="Orders.*"), spark=spark)
    lines: list[str] = []
    try:
        tail(job, TailOptions(once=True, start="earliest", as_json=True), lines.append)
    finally:
        job.close()
    assert sorted(int(json.loads(line)["body"]) for line in lines) == list(range(5))
