"""Spark over a store in an S3 server of the test's own: tables, streams, jobs."""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from rocketbed import pipeline
from rocketbed.pipeline.errors import PipelineError
from rocketbed.pipeline.jobs.common import Job, JobSettings
from rocketbed.pipeline.jobs.export.job import ExportOptions, export
from rocketbed.pipeline.jobs.export.manifest import NAME as MANIFEST
from rocketbed.pipeline.jobs.verify.job import VerifyOptions, verify
from tests.support.paths import FIXTURES
from tests.support.s3 import BUCKET, S3Server, s3_server

pytestmark = pytest.mark.spark
COLUMNS = ["topic", "queue_id", "queue_offset", "physical_offset", "body", "keys"]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("rocketmq")
    with tarfile.open(FIXTURES / "rocketmq-store-clean.tar.gz") as archive:
        archive.extractall(place, filter="data")
    return place / "store"


@pytest.fixture(scope="module")
def remote_store(s3: S3Server, here: Path) -> str:
    return s3.put(here, "broker-a/store")


@pytest.mark.slow
def test_a_table_and_a_stream_are_the_same(
    spark: SparkSession, s3: S3Server, here: Path, remote_store: str, tmp_path: Path
) -> None:
    local = pipeline.read(spark, str(here), COLUMNS)
    remote = pipeline.read(
        spark, f"s3a://{BUCKET}/*/store", COLUMNS, splitBytes=50_000, **s3.options
    )
    assert remote.count() == local.count()
    assert remote.exceptAll(local).count() == 0
    stream = spark.readStream.format("rocketbed").options(**s3.options)
    writer = (
        stream.schema("topic string, body binary").load(remote_store).writeStream.format("memory")
    )
    writer = writer.option("checkpointLocation", str(tmp_path)).queryName("from_s3")
    writer.trigger(availableNow=True).start().awaitTermination()
    assert spark.table("from_s3").count() == local.count()


def test_an_error_of_the_server_is_one_line(spark: SparkSession, s3: S3Server) -> None:
    reader = spark.read.format("rocketbed").options(**s3.options)
    with pytest.raises(AnalysisException) as caught:
        reader.load(f"s3a://{BUCKET}/nope").collect()
    expected_text = (
        f"[ROCKETBED_NOT_A_STORE] s3a://{BUCKET}/nope is no store directory: no such directory"
    )
    assert expected_text in str(caught.value)


@pytest.mark.slow
def test_jobs_take_the_settings_from_sparks_configuration(
    spark: SparkSession, s3: S3Server, remote_store: str, tmp_path: Path
) -> None:
    conf = {f"spark.hadoop.{name}": value for name, value in s3.options.items()}
    settings = JobSettings(stores=(f"broker-a/0={remote_store}",), out=tmp_path / "out", conf=conf)
    job = Job("export", settings, spark=spark)
    export(job, ExportOptions())
    assert (job.report.exit_code, job.report.inputs[0]["path"]) == (0, remote_store)
    (part,) = json.loads((tmp_path / "out" / MANIFEST).read_text())["parts"]
    assert part["rows"] == job.report.counts["rows"] == 268
    with pytest.raises(PipelineError, match="verify reads local directories only, not s3a://"):
        verify(Job("verify", settings, spark=spark), VerifyOptions())
