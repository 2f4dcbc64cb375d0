"""Age of a message when a stream has processed it."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.spark.reads import Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RATE: Final = 5_000
SECONDS: Final = 60
WARM_S: Final = 20
"""Seconds whose batches are left out: they compile what the later ones run."""
COLUMNS: Final = ["topic", "queue_id", "store_timestamp", "body_length"]


def micro_batches(place: Path, build: Callable[[dict[str, str]], "SparkSession"]) -> Iterator[Row]:
    """Yield batches of a stream over a log that a store writes meanwhile; rows end in Spark."""
    store = place / "live"
    command = [sys.executable, "-m", "bench.generate", "--out", str(store), "--no-index"]
    pace = ["--rate", str(RATE), "--messages", str(RATE * (SECONDS + WARM_S))]
    spark = build({"spark.sql.streaming.numRecentProgressUpdates": "10000"})
    with subprocess.Popen([*command, *pace], stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None
            writer.stdout.readline()
            progress = _stream(spark, store, writer)
        finally:
            writer.kill()
    yield from _rows(progress)


def _stream(
    spark: "SparkSession", store: Path, writer: "subprocess.Popen[bytes]"
) -> list[dict[str, Any]]:
    """Return the progress of every batch while the writer wrote."""
    from pyspark.sql import functions as f

    from rocketbed.pipeline.schema import records_ddl

    reader = spark.readStream.format("rocketbed").schema(records_ddl(COLUMNS))
    frame = reader.load(str(store)).observe("age", f.min("store_timestamp").alias("oldest"))
    query = frame.writeStream.format("noop").start()
    try:
        writer.wait()
        query.processAllAvailable()
        return [json.loads(batch.json) for batch in query.recentProgress]
    finally:
        query.stop()


def _rows(progress: list[dict[str, Any]]) -> Iterator[Row]:
    ages, durations, rows = [], [], 0
    first = _moment(progress[0]["timestamp"])
    for batch in progress:
        at = _moment(batch["timestamp"])
        if not batch["numInputRows"] or at - first < WARM_S:
            continue
        seconds = batch["durationMs"]["triggerExecution"] / 1000
        oldest = _moment(batch["observedMetrics"]["age"]["oldest"])
        durations.append(seconds)
        ages.append(at + seconds - oldest)
        rows += batch["numInputRows"]
    for name, values in (("batch", durations), ("oldest message when its batch is done", ages)):
        ordered = sorted(values)
        for share in (50, 99):
            value = ordered[min(len(ordered) - 1, len(ordered) * share // 100)]
            yield f"stream at {RATE:,}/s: {name}, p{share}", value, "s"
    yield "  batches", len(durations), ""
    yield "  messages", rows, ""


def _moment(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
