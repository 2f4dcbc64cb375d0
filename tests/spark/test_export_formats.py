"""`export` in the formats that Spark brings, each read back, and what a place and a part hold."""

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from rocketbed import pipeline
from rocketbed.pipeline.errors import EXIT_SPARK
from rocketbed.pipeline.jobs.common import Job, JobSettings, WrongUsage
from rocketbed.pipeline.jobs.export.job import ExportOptions, export
from rocketbed.pipeline.jobs.export.manifest import NAME
from rocketbed.pipeline.jobs.export.writing import Form
from rocketbed.pipeline.jobs.failures import SparkFailed, explain
from rocketbed.pipeline.report import Report
from tests.support.logs import Log, Message
from tests.support.paths import CLEAN_STORE

pytestmark = pytest.mark.spark
PLAIN = ("broker", "topic", "queue_id", "queue_offset", "body_length", "tags", "store_timestamp")
"""Columns that every format takes."""
WITH_BODY = (*PLAIN, "keys", "body", "crc_ok")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with tarfile.open(CLEAN_STORE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "store"


def run(
    spark: SparkSession, store: Path, out: str, form: Form, columns: tuple[str, ...] = ()
) -> Report:
    job = Job("export", JobSettings(stores=(str(store),), columns=columns), spark=spark)
    try:
        export(job, ExportOptions(out=out, form=form))
    finally:
        job.close()
    return job.report


def rows_of(table: DataFrame) -> list[Any]:
    return sorted(map(tuple, table.collect()), key=repr)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "columns"),
    [
        (Form(format="parquet", partition_by=("broker", "date")), WITH_BODY),
        (Form(format="parquet", compression="gzip", partition_by=()), WITH_BODY),
        (Form(format="orc"), WITH_BODY),
        (Form(format="json", partition_by=("topic", "queue_id"), compact=True), WITH_BODY),
        (Form(format="csv", compression="gzip"), PLAIN),
    ],
    ids=["parquet", "whole", "orc", "json", "csv"],
)
def test_each_format_gives_back_what_is_stored(
    spark: SparkSession, store: Path, tmp_path: Path, form: Form, columns: tuple[str, ...]
) -> None:
    out = tmp_path / "out it is"
    report = run(spark, store, f"file:{out}", form, columns)
    assert (report.exit_code, report.counts["rows"]) == (0, 268)
    source = pipeline.read(spark, str(store), columns)
    schema = pipeline.read(spark, str(store), [*columns]).schema.add("part", "string")
    schema = schema.add("date", "date")
    reader = spark.read.format(form.format).schema(schema).option("header", "true")
    exported = reader.load(str(out))
    assert rows_of(exported.select(*columns)) == rows_of(source)
    for column in form.partition_by:
        assert exported.where(f.col(column).isNull()).isEmpty(), column
    (part,) = json.loads((out / NAME).read_text())["parts"]
    assert sum(file["rows"] for file in part["files"]) == part["rows"] == 268
    for file in part["files"]:
        assert (out / file["path"]).stat().st_size == file["bytes"]
        named = [piece.partition("=")[0] for piece in file["path"].split("/")[:-1]]
        assert named == ["part", *form.partition_by]


def test_a_part_that_was_begun_is_written_over(spark: SparkSession, tmp_path: Path) -> None:
    log = Log(tmp_path / "store").append([Message(topic="A", body=b"%d" % n) for n in range(9)])
    out = tmp_path / "out"
    form = Form(format="orc", partition_by=("topic",))
    run(spark, log.root, str(out), form)
    manifest = json.loads((out / NAME).read_text())
    manifest["pending"] = [manifest["parts"].pop()]  # as if the run had been killed at its end
    (out / NAME).write_text(json.dumps(manifest))
    log.append([Message(topic="A", body=b"%d" % n) for n in range(9, 12)])
    report = run(spark, log.root, str(out), form)
    assert (report.counts["parts"], report.counts["rows"]) == (2, 12)
    written_rows = spark.read.format("orc").load(str(out)).select("body").collect()
    assert sorted(int(row.body) for row in written_rows) == list(range(12))
    assert json.loads((out / NAME).read_text())["pending"] == []


@pytest.mark.parametrize("how", ["removed", "cut"])
def test_missing_files_of_an_earlier_part_are_reported(
    spark: SparkSession, tmp_path: Path, how: str
) -> None:
    log = Log(tmp_path / "store").append([Message(topic="A", body=b"x")])
    out, form = tmp_path / "out", Form(format="json", partition_by=("topic",))
    run(spark, log.root, str(out), form)
    log.append([Message(topic="A", body=b"y")])
    assert run(spark, log.root, str(out), form).findings == []
    file = next(out.glob("part=*-0-*/topic=A/*.json"))
    file.unlink() if how == "removed" else os.truncate(file, 1)
    (finding,) = run(spark, log.root, str(out), form).findings
    assert finding["id"] == "lost_files"
    assert file.name in finding["title"]


def test_odd_texts_survive_every_format(spark: SparkSession, tmp_path: Path) -> None:
    """Blanks at the ends, separators, quotes, line ends: also where a format is text."""
    texts = [" lead", "trail ", "a,b", 'a"b', "a\\", "a\nb", "a\r\nb", "a\tb", "null", "é", "#x"]
    log = Log(tmp_path / "store").append(
        [Message(topic="A", properties=f"TAGS\x01{text}\x02") for text in texts]
    )
    for name in ("csv", "json"):
        run(spark, log.root, str(tmp_path / name), Form(format=name, partition_by=()), ("tags",))
        reader = spark.read.format(name).schema("tags string").option("header", "true")
        exported = reader.option("multiLine", name == "csv").load(str(tmp_path / name))
        assert sorted(row.tags for row in exported.collect()) == sorted(texts), name


def test_too_long_folder_name_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    tags = "TAGS\x01" + "x" * 300 + "\x02"
    log = Log(tmp_path / "store").append([Message(topic="A", properties=tags)])
    with pytest.raises(Exception, match="TASK_WRITE_FAILED") as caught:
        run(spark, log.root, str(tmp_path / "out"), Form(partition_by=("tags",)))
    assert "tags=xxx" in str(explain(caught.value))


def test_format_without_its_jars_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    log = Log(tmp_path / "store").append([Message(topic="A", body=b"x")])
    with pytest.raises(SparkFailed, match=r"needs the jars of io\.delta:delta-spark") as caught:
        run(spark, log.root, str(tmp_path / "out"), Form(format="delta"))
    assert caught.value.exit_code == EXIT_SPARK
    with pytest.raises(WrongUsage, match="--format nonsense: this Spark has none of that name"):
        run(spark, log.root, str(tmp_path / "other"), Form(format="nonsense"))
    assert run(spark, log.root, str(tmp_path / "other"), Form(format="json")).counts["rows"] == 1


def test_numbers_are_exported_as_xml(spark: SparkSession, tmp_path: Path) -> None:
    log = Log(tmp_path / "store").append([Message(topic="A", body=b"x"), Message(topic="B")])
    run(spark, log.root, str(tmp_path / "out"), Form(format="xml"), ("queue_offset", "size"))
    (file,) = (tmp_path / "out").glob("part=*/topic=A/date=*/*.xml")
    exported = (
        spark.read.format("xml").option("rowTag", "message").schema("size int").load(str(file))
    )
    (row,) = pipeline.read(spark, str(log.root), ("size",), topics="A").collect()
    assert exported.collect() == [row]
