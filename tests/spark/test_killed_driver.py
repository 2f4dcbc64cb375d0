"""Drivers that are killed in the middle of a batch: every record is there once all the same."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
import trio
from pyspark.sql import SparkSession

from rocketbed.pipeline.options import Options
from rocketbed.pipeline.schema import arrow_schema
from rocketbed.pipeline.sink.committed import CommittedPart, marked_runs, read_committed
from rocketbed.pipeline.wire.plan import WirePlan
from tests.support.spark_live import cluster_in, read
from tests.support.stores import some, write_log

pytestmark = [pytest.mark.spark, pytest.mark.slow]
COUNT = 3000
LOOK_S = 0.002
LIMIT_S = 240


class Driver:
    """A driver process and all that it starts, which end with it."""

    def __init__(
        self, source: Mapping[str, str], sink: Mapping[str, str], checkpoint: Path
    ) -> None:
        self.checkpoint = checkpoint
        self._words = [json.dumps(source), json.dumps(sink), str(checkpoint)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start in a session of its own: whatever it leaves can be found by that."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.stream_driver", *self._words],
            cwd=Path(__file__).parents[2],
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def kill(self) -> None:
        """SIGKILL for the driver, its Java and its Python workers."""
        assert self._process is not None
        for pid in members(self._process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.communicate()

    def end(self) -> None:
        """Wait until it ends well."""
        assert self._process is not None
        _, errors = self._process.communicate(timeout=LIMIT_S)
        assert self._process.returncode == 0, errors.decode()[-4000:]

    def open_batch(self) -> int | None:
        """The batch that is planned and not committed, if there is one."""
        planned, committed = (self._last(name) for name in ("offsets", "commits"))
        return planned if planned > committed else None

    def _last(self, name: str) -> int:
        folder = self.checkpoint / name
        names = os.listdir(folder) if folder.is_dir() else []
        return max((int(one) for one in names if one.isdigit()), default=-1)


def members(session_id: int) -> list[int]:
    """Processes of a session."""
    pids = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path(f"/proc/{name}/stat").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[3]) == session_id:
                pids.append(int(name))
    return pids


async def killed_in_mid_batch(driver: Driver, after: int) -> int:
    """Kill a driver when a batch behind `after` is planned and not committed; its number."""
    while True:
        with trio.fail_after(LIMIT_S):
            driver.start()
            while (batch := driver.open_batch()) is None or batch <= after:
                assert driver._process is not None
                assert driver._process.poll() is None, "the driver ended before it was killed"
                await trio.sleep(LOOK_S)
            driver.kill()
        if (batch := driver.open_batch()) is not None:
            return batch


async def killed_twice(driver: Driver) -> None:
    try:
        first = await killed_in_mid_batch(driver, 3)
        second = await killed_in_mid_batch(driver, first + 2)
        assert second > first
        driver.start()
        driver.end()
    finally:
        driver.kill()


@pytest.mark.ci
def test_each_record_is_in_parquet_once(spark: SparkSession, tmp_path: Path) -> None:
    offsets = write_log(tmp_path / "store", some(COUNT), segment=1 << 18)
    source = {
        "path": f"broker-a={tmp_path / 'store'}",
        "maxBytesPerTrigger": "24k",
        "minPartitions": "2",
        "schema": "physical_offset bigint, body binary",
    }
    sink = {"format": "parquet", "path": str(tmp_path / "out")}
    driver = Driver(source, sink, tmp_path / "checkpoint")
    trio.run(killed_twice, driver)
    rows = spark.read.parquet(str(tmp_path / "out")).select("physical_offset").collect()
    assert sorted(row.physical_offset for row in rows) == offsets


def test_each_row_is_in_the_topic_once(spark: SparkSession, tmp_path: Path) -> None:
    write_log(tmp_path / "store", some(COUNT), segment=1 << 18)
    with cluster_in(tmp_path / "c") as cluster:
        source = {
            "path": f"broker-a={tmp_path / 'store'}",
            "maxBytesPerTrigger": "48k",
            "minPartitions": "2",
            "schema": "body binary",
        }
        sink = {"format": "rocketbed", "endpoints": cluster.nameserver_address, "topic": "T"}
        driver = Driver(source, sink, tmp_path / "checkpoint")
        trio.run(killed_twice, driver)
        options = Options.parse({"endpoints": cluster.nameserver_address, "topics": "T"})
        plan, schema = WirePlan.of(options), arrow_schema("records", ["body"])
        marked = marked_runs(options)
        every: Counter[bytes] = Counter()
        counted: Counter[bytes] = Counter()
        for split in plan.splits():
            for batch in plan.read(split, schema):
                every.update(batch.column(0).to_pylist())
            for batch in read_committed(plan, CommittedPart(split, marked), schema, "_corrupt"):
                counted.update(batch.column(0).to_pylist())
        expected = Counter(spec.body for spec in some(COUNT))
        assert counted == expected
        assert every >= expected
        live = {"endpoints": cluster.nameserver_address, "topics": "T", "onlyCommitted": "true"}
        assert read(spark, live, "body binary").distinct().count() == COUNT
