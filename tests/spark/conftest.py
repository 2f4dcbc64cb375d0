"""A Spark session for all tests of this folder: it takes longer to start than they to run."""

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from rocketbed.pipeline.session import build_session

DESCRIPTORS_MAX = 900
"""Spark's callbacks into Python use `select`, which ends at 1,024: they would wait for ever."""
CONF = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-Xss8m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    opened = len(os.listdir("/proc/self/fd"))
    assert opened < DESCRIPTORS_MAX, f"{opened} files are open: some test does not close its own"
    place = tmp_path_factory.mktemp("spark")
    session = build_session(
        "tests",
        master="local[2]",
        conf=CONF | {"spark.sql.warehouse.dir": str(place), "spark.local.dir": str(place)},
    )
    yield session
    session.stop()
