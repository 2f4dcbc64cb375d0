"""Reading a store through Spark, against the plain file and against Spark's own binary files."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.spark.tree import MemoryWatch, cpu_of_tree

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = tuple[str, float, str]
MIB: Final = 1 << 20
ROUNDS: Final = 3


def fixed_costs(build: Callable[[], "SparkSession"], store: Path) -> Iterator[Row]:
    """Yield Spark's fixed costs: session, first query, a query of no rows."""
    began = time.monotonic()
    spark = build()
    yield "Spark: session", time.monotonic() - began, "s"
    began = time.monotonic()
    frame(spark, store, ["queue_id"]).limit(1).collect()
    yield "Spark: first query of a store", time.monotonic() - began, "s"
    began, before = time.monotonic(), cpu_of_tree(os.getpid())
    nothing = frame(spark, store, ["queue_id"], endOffset="0")
    nothing.write.format("noop").mode("overwrite").save()
    used = cpu_of_tree(os.getpid()) - before
    yield "Spark: query of no rows", time.monotonic() - began, "s"
    yield "  its CPU", sum(used), "s"


def reads(spark: "SparkSession", store: Path) -> Iterator[Row]:
    """Yield rates of reading all of a log whose pages are in memory, best of three."""
    from rocketbed.pipeline.schema import DEFAULT_COLUMNS

    log = store / "commitlog"
    size = sum(path.stat().st_size for path in log.iterdir())
    yield from _plain(log, size)
    without_body = [name for name in DEFAULT_COLUMNS if name not in ("body", "crc_ok")]
    kinds: dict[str, Callable[[], DataFrame]] = {
        "one column": lambda: frame(spark, store, ["queue_id"]),
        "all columns without the body": lambda: frame(
            spark, store, without_body, verifyCrc="false"
        ),
        "all columns with the body": lambda: frame(
            spark, store, [*without_body, "body"], verifyCrc="false"
        ),
        "the same with CRC check": lambda: frame(spark, store, [*without_body, "body", "crc_ok"]),
        "Spark's binaryFile": lambda: spark.read.format("binaryFile").load(str(log)),
    }
    for name, make in kinds.items():
        yield from _timed(name, size, make)


def memory(build: Callable[[str], "SparkSession"], store: Path, heap_mib: int) -> Iterator[Row]:
    """Shuffle all rows with a heap of a quarter of the log."""
    spark = build(f"{heap_mib}m")
    watch = MemoryWatch(os.getpid())
    watch.start()
    try:
        rows = frame(spark, store, ["topic", "queue_id", "queue_offset", "body"])
        ordered = rows.repartitionByRange(16, "queue_offset").sortWithinPartitions("queue_offset")
        ordered.write.format("noop").mode("overwrite").save()
    finally:
        watch.close()
    yield f"memory: heap of {heap_mib} MiB, Java", watch.java / MIB, "MiB"
    yield "memory: largest Python worker", watch.python / MIB, "MiB"


def frame(spark: "SparkSession", store: Path, columns: list[str], **options: str) -> "DataFrame":
    """Return a store's records."""
    from rocketbed.pipeline.schema import records_ddl

    reader = spark.read.format("rocketbed").schema(records_ddl(columns)).options(**options)
    return reader.load(str(store))


def _plain(log: Path, size: int) -> Iterator[Row]:
    files = sorted(map(str, log.iterdir()))
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.monotonic()
        for path in files:
            command = ["dd", f"if={path}", "of=/dev/null", "bs=1M", "status=none"]
            subprocess.run(command, check=True)
        best = min(best, time.monotonic() - began)
    yield "dd of the same files, one core", size / MIB / best, "MiB/s"


def _timed(name: str, size: int, make: Callable[[], "DataFrame"]) -> Iterator[Row]:
    best = (float("inf"), 0.0, 0.0)
    for _ in range(ROUNDS):
        began, before = time.monotonic(), cpu_of_tree(os.getpid())
        make().write.format("noop").mode("overwrite").save()
        used = cpu_of_tree(os.getpid()) - before
        best = min(best, (time.monotonic() - began, used.java_s, used.python_s))
    seconds, java_s, python_s = best
    yield f"{name}: rate", size / MIB / seconds, "MiB/s"
    yield "  CPU, Java", java_s, "s"
    yield "  CPU, Python", python_s, "s"
    yield "  rate on two free cores, by CPU", size / MIB / ((java_s + python_s) / 2), "MiB/s"
