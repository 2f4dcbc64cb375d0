"""A live cluster under Spark: rows written, read back over the wire, from files, by a stream."""

from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from rocketbed.pipeline import lag
from tests.support.spark_live import FORMAT, bodies, cluster_in, read, replicas

pytestmark = pytest.mark.spark
DONE_S = 60


def done(query: StreamingQuery) -> list[int]:
    """Return the rows of each batch of a query that ends without being stopped."""
    assert query.awaitTermination(DONE_S)
    return [progress["numInputRows"] for progress in query.recentProgress]


@pytest.mark.slow
def test_writing_and_reading_a_live_cluster(spark: SparkSession, tmp_path: Path) -> None:
    with cluster_in(tmp_path / "c") as cluster:
        live = {"endpoints": cluster.nameserver_address}

        def write(begin: int, end: int) -> None:
            job = {"delivery": "exactly-once", "jobId": f"job-{begin}", "topic": "T"}
            rows = bodies(spark, begin, end)
            rows.write.format(FORMAT).mode("append").options(**live, **job).save()

        write(0, 200)
        wire = read(spark, {**live, "topics": "T", "onlyCommitted": "true"}).collect()
        path = f"broker-a/0={cluster.member_directory('master')}/store"
        files = read(spark, {"path": path, "topics": "T"}).collect()
        assert sorted(wire) == sorted(files)
        assert Counter(int(row.body) for row in wire) == Counter(range(200))

        # From the replicas into Parquet, in small batches; a second run goes on from there.
        source = {"path": replicas(cluster), "topics": "T", "maxRowsPerTrigger": "150"}
        stored, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")

        lags: list[int] = []

        def run() -> list[int]:
            rows = spark.readStream.format(FORMAT).schema("body binary").options(**source).load()
            sink = rows.writeStream.format("parquet").trigger(availableNow=True)
            query = sink.start(stored, checkpointLocation=checkpoint)
            counts = done(query)
            lags.extend(lag(progress)["broker-a"] for progress in query.recentProgress)
            return counts

        first = run()
        assert sum(first) == 200
        assert lags[-1] == 0 < lags[0]
        assert max(first) <= 150
        write(200, 250)
        assert sum(run()) == 50
        stored_rows = spark.read.schema("body binary").parquet(stored).collect()
        assert Counter(int(row.body) for row in stored_rows) == Counter(range(250))


def test_impossible_write_is_refused_before_any_task(spark: SparkSession) -> None:
    rows = bodies(spark, 0, 1)
    write = rows.write.format(FORMAT).mode("append")
    with pytest.raises(PySparkException, match="endpoints is required"):
        write.option("topic", "T").save()
    replace = rows.write.format(FORMAT).mode("overwrite")
    with pytest.raises(PySparkException, match="can only be appended to"):
        replace.options(endpoints="127.0.0.1:1", topic="T").save()
