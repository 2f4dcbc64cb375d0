"""Streams under Spark while brokers die, logs are cleaned up and topics go."""

from collections import Counter
from pathlib import Path

import pytest
import trio
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from rocketbed.cluster.cluster import LocalCluster
from rocketbed.pipeline.sink.keys import TaskKey
from rocketbed.pipeline.sink.options import SinkOptions
from rocketbed.pipeline.sink.rows import outgoing
from rocketbed.pipeline.sink.sending import TaskSender
from tests.support.spark_live import FORMAT, cluster_in
from tests.support.stores import some, write_log

pytestmark = [pytest.mark.spark, pytest.mark.slow]
LIMIT_S = 120
LOOK_S = 0.1


def send(cluster: LocalCluster, begin: int, end: int) -> None:
    """Messages with these numbers into topic T."""
    options = SinkOptions(endpoints=cluster.nameserver_address, topic="T")
    key = TaskKey(job="test", batch=begin, partition=0)
    bodies = [b"%d" % number for number in range(begin, end)]

    async def run() -> None:
        async with TaskSender(options, key) as sender:
            await sender.send(outgoing({"body": bodies}, first_row=0, key=key, options=options))

    trio.run(run)


def start(
    spark: SparkSession, place: Path, options: dict[str, str], *, now: bool = False
) -> StreamingQuery:
    rows = spark.readStream.format(FORMAT).schema("body binary").options(**options).load()
    writing = rows.writeStream.format("parquet").option("path", str(place / "out"))
    writing = writing.option("checkpointLocation", str(place / "checkpoint"))
    return (writing.trigger(availableNow=True) if now else writing).start()


def stored(spark: SparkSession, place: Path) -> Counter[str]:
    rows = spark.read.schema("body binary").parquet(str(place / "out"))
    return Counter(row.body.decode() for row in rows.collect())


def texts(begin: int, end: int) -> Counter[str]:
    return Counter(map(str, range(begin, end)))


async def has_rows(query: StreamingQuery, count: int) -> None:
    """Wait until a query has taken so many rows. Raises its failure."""
    with trio.fail_after(LIMIT_S):
        while sum(one["numInputRows"] for one in query.recentProgress) < count:
            if (failure := query.exception()) is not None:
                raise failure
            await trio.sleep(LOOK_S)


def failure_of(query: StreamingQuery) -> str:
    """Return the error of a query that fails."""
    with pytest.raises(PySparkException) as caught:
        assert query.awaitTermination(LIMIT_S)
    return str(caught.value)


@pytest.mark.ci
def test_a_broker_that_is_killed_and_restarted(spark: SparkSession, tmp_path: Path) -> None:
    with cluster_in(tmp_path / "c", slaves=0) as cluster:
        send(cluster, 0, 50)
        options = {"endpoints": cluster.nameserver_address, "topics": "T"}
        query = start(spark, tmp_path, options)
        try:
            trio.run(has_rows, query, 50)
            cluster.kill("master")
            trio.run(cluster.wait_ended, "master")
            trio.run(cluster.start, "master")
            send(cluster, 50, 80)
            trio.run(has_rows, query, 80)
        finally:
            query.stop()
        assert stored(spark, tmp_path) == texts(0, 80)
        # Gone for good: the query says so after the limit, and hangs nowhere.
        cluster.kill("master")
        short = options | {"retryTimeoutMs": "500"}
        assert "after 0.5 s still" in failure_of(start(spark, tmp_path, short))


def test_a_broker_group_read_from_its_files(spark: SparkSession, tmp_path: Path) -> None:
    """A slave is killed, falls behind and comes back; rows wait for it and come once."""
    with cluster_in(tmp_path / "c", slaves=1) as cluster:
        send(cluster, 0, 50)
        stores = {name: cluster.member_directory(name) / "store" for name in cluster.nodes}
        path = ",".join(f"a/{name}={store}" for name, store in stores.items())
        query = start(spark, tmp_path, {"path": path, "topics": "T"})
        try:
            trio.run(has_rows, query, 50)
            cluster.kill("slave-1")
            trio.run(cluster.wait_ended, "slave-1")
            trio.run(cluster.start, "slave-1")
            send(cluster, 50, 80)
            trio.run(has_rows, query, 80)
        finally:
            query.stop()
        assert stored(spark, tmp_path) == texts(0, 80)


def test_retention_and_a_foreign_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "store"
    specs = some(200)
    offsets = write_log(root, specs[:60])
    options = {"path": f"a={root}"}
    query = start(spark, tmp_path, options, now=True)
    assert query.awaitTermination(LIMIT_S)
    write_log(root, specs)
    for path in sorted((root / "commitlog").iterdir())[:-1]:
        path.unlink()
    assert "were deleted before the stream had read them" in failure_of(
        start(spark, tmp_path, options, now=True)
    )
    loose = start(spark, tmp_path, options | {"failOnDataLoss": "false"}, now=True)
    assert loose.awaitTermination(LIMIT_S)
    counts = stored(spark, tmp_path)
    assert max(counts.values()) == 1
    assert len(offsets) < len(counts) < 200
    write_log(tmp_path / "other", some(300, topic="U"))
    foreign = {"path": f"a={tmp_path / 'other'}"}
    assert "not the one that this checkpoint was made with" in failure_of(
        start(spark, tmp_path, foreign, now=True)
    )
    renamed = {"path": f"b={root}"}
    assert "offsets of a, but this stream reads b" in failure_of(
        start(spark, tmp_path, renamed, now=True)
    )


def test_a_topic_that_is_deleted(spark: SparkSession, tmp_path: Path) -> None:
    with cluster_in(tmp_path / "c", slaves=0) as cluster:
        send(cluster, 0, 50)
        options = {"endpoints": cluster.nameserver_address, "topics": "T", "retryTimeoutMs": "5000"}
        query = start(spark, tmp_path, options)
        try:
            trio.run(has_rows, query, 50)

            async def delete() -> None:
                async with cluster.admin() as admin:
                    await admin.delete_topic("T")

            trio.run(delete)
            assert "topic T" in failure_of(query)
        finally:
            query.stop()
        assert stored(spark, tmp_path) == texts(0, 50)


def test_from_one_topic_into_another(spark: SparkSession, tmp_path: Path) -> None:
    """A stream over queues that writes: at least once and exactly once."""
    with cluster_in(tmp_path / "c", slaves=1) as cluster:
        send(cluster, 0, 250)
        live = {"endpoints": cluster.nameserver_address}
        for topic, delivery in (("U", "exactly-once"), ("V", "at-least-once")):
            source = spark.readStream.format(FORMAT).schema("body binary, properties string")
            rows = source.options(**live, topics="T", maxRowsPerTrigger="150").load()
            writing = rows.writeStream.format(FORMAT).options(**live, topic=topic)
            writing = writing.option("delivery", delivery).trigger(availableNow=True)
            query = writing.start(checkpointLocation=str(tmp_path / topic))
            assert query.awaitTermination(LIMIT_S)
            assert len(query.recentProgress) == 2
            for marked in ("true", "false"):
                reading = spark.read.format(FORMAT).schema("body binary, properties string")
                copied_rows = (
                    reading.options(**live, topics=topic, onlyCommitted=marked).load().collect()
                )
                assert Counter(row.body.decode() for row in copied_rows) == texts(0, 250)
                assert all("RB_ORIGIN\x01" in row.properties for row in copied_rows)
