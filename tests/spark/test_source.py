"""The data source as Spark's users meet it."""

from pathlib import Path

import pytest
from pyspark.errors import (
    AnalysisException,
    PySparkException,
    PythonException,
    StreamingQueryException,
)
from pyspark.sql import SparkSession

from rocketbed import pipeline
from rocketbed.pipeline.errors import PipelineError
from rocketbed.pipeline.schema import DEFAULT_COLUMNS, RECORDS, arrow_schema
from tests.support.logs import Log, messages, rows
from tests.support.stores import unpack

pytestmark = pytest.mark.spark

COUNT = 200


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    damaged_log = Log(tmp_path_factory.mktemp("log") / "store").append(messages(COUNT))
    damaged_log.flip(damaged_log.offsets[50] + 90)
    damaged_log.write(damaged_log.offsets[90], bytes(damaged_log.sizes[90]))
    return damaged_log


@pytest.mark.slow
def test_found_by_its_name_with_every_column(spark: SparkSession, log: Log) -> None:
    """Not registered by anybody; the types are those that Spark itself makes of the DDL."""
    frame = spark.read.format("rocketbed").option("splitBytes", "20k").load(str(log.root))
    assert tuple(frame.columns) == DEFAULT_COLUMNS
    table = pipeline.read(spark, str(log.root), list(RECORDS), splitBytes="20k").toArrow()
    assert table.schema.equals(arrow_schema("records", list(RECORDS)))
    actual_rows = sorted(table.to_pylist(), key=lambda row: row["physical_offset"])
    assert actual_rows == rows(log.root)
    assert len(actual_rows) == COUNT


@pytest.mark.slow
def test_session_with_timestamps_without_zone(spark: SparkSession, log: Log) -> None:
    """No read with times worked there, and what the error advised failed again."""
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        frame = spark.read.format("rocketbed").load(str(log.root))
        assert dict(frame.dtypes)["store_timestamp"] == "timestamp"
        assert frame.select("store_timestamp").distinct().count() > COUNT - 2
        assert pipeline.read(spark, str(log.root), ["store_timestamp"]).count() == COUNT
    finally:
        spark.conf.unset("spark.sql.timestampType")


def test_real_stores(spark: SparkSession, tmp_path: Path) -> None:
    root = unpack("killed", tmp_path)
    frame = pipeline.read(spark, f"fx/a={root}", ["replica", "topic", "crc_ok", "body_length"])
    frame.createOrReplaceTempView("stored")
    (row,) = spark.sql(
        "SELECT count(*) n, count(DISTINCT topic) topics, min(crc_ok) ok, max(replica) r "
        "FROM stored"
    ).collect()
    expected = rows(root)
    topics = {each["topic"] for each in expected}
    assert (row.n, row.topics, row.ok, row.r) == (len(expected), len(topics), True, "a")


def test_sql(spark: SparkSession, log: Log) -> None:
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW messages USING rocketbed "
        f"OPTIONS (path '{log.root}', columnNameOfCorruptRecord 'bad')"
    )
    condition = (
        "topic = 'topic-1' AND physical_offset >= 2000 AND physical_offset < 20000 AND queue_id = 1"
    )
    query = spark.sql(f"SELECT physical_offset, body FROM messages WHERE {condition}")
    expected = [
        (row["physical_offset"], row["body"])
        for row in rows(log.root)
        if row["topic"] == "topic-1"
        and 2000 <= row["physical_offset"] < 20000
        and row["queue_id"] == 1
    ]
    assert sorted((row[0], bytes(row[1])) for row in query.collect()) == expected
    assert expected
    plain = spark.read.format("rocketbed").load(str(log.root)).where(condition)
    assert plain.count() == len(expected)


@pytest.mark.slow
@pytest.mark.parametrize("is_allowed", ["true", "false"])
def test_filters_of_another_query_do_not_narrow_a_table(
    spark: SparkSession, log: Log, is_allowed: str
) -> None:
    """Spark 4.3 keeps one read of each table, and in it the filters that the source has taken."""
    key = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(key)
    assert before == "false"
    spark.conf.set(key, is_allowed)
    try:
        frame = pipeline.read(spark, str(log.root), ["topic"])
        first, second = (frame.where(f"topic = 'topic-{number}'") for number in (1, 2))
        counts = {
            name: sum(row["topic"] == name for row in rows(log.root))
            for name in ("topic-1", "topic-2")
        }
        assert first.count() == counts["topic-1"]
        assert frame.count() == COUNT
        assert second.count() == counts["topic-2"]
        assert frame.count() == COUNT
        counted = first.union(second).groupBy("topic").count().collect()
        assert {row[0]: row[1] for row in counted} == counts
    finally:
        spark.conf.set(key, before)


@pytest.mark.parametrize(
    "how",
    ["OPTIONS (path '{}')", "LOCATION '{}'", "OPTIONS (endpoints '127.0.0.1:9', topics 'T')"],
)
def test_catalog_table_is_refused_as_unreadable(spark: SparkSession, log: Log, how: str) -> None:
    """Spark 4.3 gives its options to what finds the schema, and to no reader."""
    using = f"USING rocketbed {how.format(log.root)}"
    with pytest.raises(AnalysisException, match="use CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE catalogued {using}")
    assert not spark.catalog.tableExists("catalogued")
    spark.sql(f"CREATE TABLE catalogued (topic string) {using}")
    try:
        with pytest.raises(AnalysisException, match=r"option path is missing.*TEMPORARY VIEW"):
            spark.sql("SELECT * FROM catalogued").collect()
    finally:
        spark.sql("DROP TABLE catalogued")
    assert log.root.is_dir()


def test_modes(spark: SparkSession, log: Log) -> None:
    frame = pipeline.read(spark, str(log.root), ["bad"], columnNameOfCorruptRecord="bad")
    bad_rows = frame.where("bad IS NOT NULL").select("bad.offset", "bad.reason").collect()
    assert sorted(map(tuple, bad_rows)) == [
        (log.offsets[50], "crc_mismatch"),
        (log.offsets[90], "bad_magic"),
    ]
    dropped = pipeline.read(spark, str(log.root), ["topic"], mode="dropMalformed")
    assert dropped.count() == COUNT - 2
    with pytest.raises(PythonException, match=rf"{log.offsets[50]}: crc_mismatch"):
        pipeline.read(
            spark, str(log.root), ["topic"], mode="FAILFAST", endOffset=log.offsets[60]
        ).collect()


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("topic string, nope int", "has no column nope; it has: broker, replica"),
        ("topic int", "topic string, not int32; write: `topic` string"),
        ("topic string not null", "topic may be null; write: `topic` string"),
    ],
)
def test_a_schema_that_the_view_does_not_have(
    spark: SparkSession, log: Log, schema: str, pattern: str
) -> None:
    with pytest.raises(AnalysisException, match=pattern):
        spark.read.format("rocketbed").schema(schema).load(str(log.root)).collect()


def test_unreadable_input_is_reported_in_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    reader = spark.read.format("rocketbed")
    with pytest.raises(AnalysisException, match=f"{tmp_path} is no store directory"):
        reader.load(str(tmp_path)).collect()
    with pytest.raises(AnalysisException, match=r"unknown option pathh \(is path meant\?\)"):
        spark.read.format("rocketbed").option("pathh", "/x").load()
    with pytest.raises(AnalysisException, match="option path is missing"):
        spark.read.format("rocketbed").load().collect()


@pytest.mark.slow
def test_error_arrives_by_name_without_a_traceback(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    """Spark's own lines: one before, three of a traceback's beginning, one behind."""

    def failed(options: dict[str, str], schema: str = "topic string") -> str:
        with pytest.raises(PySparkException) as caught:
            spark.read.format("rocketbed").options(**options).schema(schema).load().collect()
        return str(caught.value)

    root = str(log.root)
    for text, name in (
        (failed({"path": root, "pathh": "x"}), "option_table.OptionError: [ROCKETBED_UNKNOWN_OPTI"),
        (failed({"path": root}, "nope int"), "schema.SchemaError: [ROCKETBED_ILLEGAL_SCHEMA] the"),
        (failed({"path": root, "topics": "No"}), "option_table.OptionError: [ROCKETBED_UNKNOWN_TO"),
        (failed({"path": "/nope"}), "files.replicas.NotAStore: [ROCKETBED_NOT_A_STORE] /nope is"),
        (
            failed({"path": root, "mode": "FAILFAST"}),
            "files.corrupt.RocketbedCorrupt: [ROCKETBED_CORRUPT_RECORD] /",
        ),
    ):
        lines = [line for line in text.splitlines() if not line.startswith(" SQLSTATE")]
        assert len(lines) <= 5, text
        assert lines[-1].startswith(f"rocketbed.pipeline.{name}"), text

    with pytest.raises(PipelineError, match=r"^\[ROCKETBED_ILLEGAL_SCHEMA\] the view records"):
        pipeline.read(spark, root, ["nope"])

    stream = spark.readStream.format("rocketbed").option("startingOffsets", "banana")
    writer = stream.schema("topic string").load(root).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination()
    text = str(caught.value).partition("\n=== Streaming Query ===")[0]
    assert "[ROCKETBED_ILLEGAL_OPTION] option startingOffsets='banana'" in text.splitlines()[-2]
    assert "UnboundLocalError" not in text
    assert len(text.splitlines()) <= 7


@pytest.mark.slow
def test_an_empty_body_is_refused_in_one_line(spark: SparkSession) -> None:
    writer = spark.range(0, 1, 1, 1).selectExpr("'' BODY").write.format("rocketbed").mode("append")
    with pytest.raises(PythonException) as caught:
        writer.options(endpoints="127.0.0.1:1", topic="T").save()
    lines = str(caught.value).splitlines()
    assert len(lines) <= 5
    assert lines[-1].endswith(
        "[ROCKETBED_ILLEGAL_ROW] row 0 of partition 0: the body must be non-empty bytes: leave out"
        " such rows, by where length(body) > 0"
    )


@pytest.mark.slow
def test_columns_match_in_any_case_and_keep_their_spelling(spark: SparkSession, log: Log) -> None:
    reader = spark.read.format("rocketbed").option("columnNameOfCorruptRecord", "Bad")
    columns = "TOPIC string, Body_Length int, bad struct<offset:bigint,reason:string,bytes:binary>"
    frame = reader.schema(columns).load(str(log.root))
    assert frame.columns == ["TOPIC", "Body_Length", "bad"]
    (row,) = frame.selectExpr("count(topic) n", "count(BAD) bad").collect()
    assert (row.n, row.bad) == (COUNT - 1, 2)


def test_stream_option_is_refused_by_a_batch(spark: SparkSession, log: Log) -> None:
    reader = spark.read.format("rocketbed").option("maxRowsPerTrigger", "5")
    with pytest.raises(AnalysisException, match="PerTrigger is for streams, not batch"):
        reader.load(str(log.root)).collect()


@pytest.mark.slow
def test_views_and_an_empty_store(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    files = pipeline.read(spark, str(log.root), view="files").collect()
    assert sum(row.records for row in files) == COUNT - 2
    assert sum(row.malformed for row in files) == 2
    empty = Log(tmp_path / "empty")
    both = spark.read.format("rocketbed").schema("replica string, topic string")
    loaded = both.load([f"b/full={log.root}", f"c/empty={empty.root}"]).collect()
    assert {row.replica for row in loaded} == {"full"}
    assert len(loaded) == COUNT
    assert pipeline.read(spark, str(empty.root)).collect() == []
    assert pipeline.read(spark, str(empty.root), view="consumequeue").collect() == []
