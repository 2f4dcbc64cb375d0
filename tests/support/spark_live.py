"""A live cluster for the Spark tests; how its rows are written and read."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import trio
from pyspark.sql import DataFrame, SparkSession

from rocketbed.cluster.cluster import LocalCluster

FORMAT = "rocketbed"
SETTINGS = {"mappedFileSizeCommitLog": str(1 << 20)}


@contextmanager
def cluster_in(directory: Path, *, slaves: int = 1) -> Iterator[LocalCluster]:
    """A running cluster, gone at the end."""
    cluster = LocalCluster.create(directory, slaves=slaves, settings=SETTINGS, tied=True)
    trio.run(cluster.start)
    try:
        yield cluster
    finally:
        trio.run(cluster.close)


def bodies(spark: SparkSession, begin: int, end: int, parts: int = 2) -> DataFrame:
    """Rows with the numbers from `begin` to `end` as bodies and as keys."""
    return spark.range(begin, end, 1, parts).selectExpr(
        "cast(cast(id as string) as binary) as body", "array(concat('k', id)) as keys"
    )


def read(spark: SparkSession, options: Mapping[str, str], schema: str | None = None) -> DataFrame:
    """A batch read."""
    reader = spark.read.format(FORMAT).options(**options)
    return (reader.schema(schema) if schema else reader).load()


def replicas(cluster: LocalCluster) -> str:
    """The option `path` with all replicas."""
    return ",".join(
        f"broker-a/{number}={cluster.member_directory(name)}/store"
        for number, name in enumerate(cluster.nodes)
    )
