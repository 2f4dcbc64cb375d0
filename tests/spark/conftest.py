"""One Spark session for all tests of this folder: it takes longer to start than they to run."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pipeline.session import build_session

CONF = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-Xss8m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    place = tmp_path_factory.mktemp("spark")
    session = build_session(
        "tests",
        master="local[2]",
        conf=CONF | {"spark.sql.warehouse.dir": str(place), "spark.local.dir": str(place)},
    )
    yield session
    session.stop()
