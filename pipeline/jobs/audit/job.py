"""`audit`: traffic of a cluster: rates, sizes, latencies, balance of queues, hot keys.

Latency is store time minus born time. These are two clocks, so latency is negative if the second
one is ahead. Such messages are counted separately and excluded from percentiles, since they reveal
something about clocks, not about the broker. Percentiles are approximate, to a ten thousandth of
the ranks.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocketbed.pipeline.errors import EXIT_FINDING, Unwritable
from rocketbed.pipeline.jobs.audit.page import write_page
from rocketbed.pipeline.jobs.common import Job
from rocketbed.pipeline.jobs.inputs import sources_now

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SHARES: Final = (0.5, 0.9, 0.99, 0.999)
ACCURACY: Final = 10_000
BUCKETS_MAX: Final = 240
BUCKETS_S: Final = (1, 5, 15, 60, 300, 900, 3600, 21_600, 86_400, 604_800)
"""Possible lengths of a time bucket; the shortest with at most `BUCKETS_MAX` buckets is used."""
COLUMNS: Final = (
    "broker", "topic", "queue_id", "queue_offset", "size", "body_length", "born_timestamp",
    "store_timestamp", "reconsume_times",
)  # fmt: skip
HOT: Final = {"keys": "key", "tags": "tag"}

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """Options of `audit` beyond the common ones."""

    topics: tuple[str, ...] = ()
    """Topics to read; empty for all."""
    top: int = 20
    """Number of hot keys and tags to report."""


@dataclass(slots=True)
class Audit:
    """Results of an audit. Times in milliseconds, sizes in bytes."""

    total: Row
    topics: list[Row]
    queues: list[Row]
    series: list[Row]
    """A row for each bucket of time that has messages, oldest first."""
    bucket_s: int
    hot: dict[str, list[Row]]
    """`keys` and `tags`, the most frequent first."""


def audit(job: Job, options: AuditOptions) -> None:
    """Read the log four times, for few columns each. Raises `PipelineError`, `WrongUsage`."""
    out = job.settings.out or Path("out/audit")
    sources = sources_now(job.settings, job.report, options.topics)
    job.spark  # noqa: B018 (its start is a phase of its own)

    def records(*columns: str) -> "DataFrame":
        return _records(job, sources, columns)

    with job.phase("topics"):
        # Without this column a read of topics skips damaged ranges, whose topic is unknown.
        topics = _topics(records(*COLUMNS, "_corrupt"))
    total = next((row for row in topics if row["topic"] is None and row["messages"]), None)
    if total is None:
        job.report.counts |= {"messages": 0}
        job.report.notes.append("no messages, so no page and no files")
        return
    bucket_s = bucket_of(_seconds(total))
    with job.phase("rates"):
        series = _series(records(*COLUMNS), bucket_s)
    with job.phase("queues"):
        queues = _queues(records(*COLUMNS))
    with job.phase("hot keys"):
        hot = {name: _hot(records(name), name, options.top) for name in HOT}
    result = Audit(
        total=total,
        topics=[row for row in topics if row["topic"] is not None],
        queues=queues,
        series=series,
        bucket_s=bucket_s,
        hot=hot,
    )
    _write(out, result)
    _fill_report(job, out, result)


def bucket_of(seconds: float) -> int:
    """Return the length of a time bucket for a span, both in seconds."""
    fitting = (bucket for bucket in BUCKETS_S if seconds / bucket <= BUCKETS_MAX)
    return next(fitting, BUCKETS_S[-1])


def _records(job: Job, sources: Sequence[dict[str, str]], columns: Sequence[str]) -> "DataFrame":
    """Return each message once, up to the end that all replicas hold. A bad record has no topic."""
    from rocketbed.pipeline.schema import records_ddl

    needed = list(dict.fromkeys(["topic", *columns]))
    reader = job.spark.read.format("rocketbed").schema(records_ddl(needed))
    frames = [reader.options(**source, verifyCrc="false").load() for source in sources]
    return reduce(lambda table, frame: table.unionAll(frame), frames)


def _latency() -> "Column":
    from pyspark.sql import functions as f

    return f.unix_millis("store_timestamp") - f.unix_millis("born_timestamp")


def _percentiles(value: "Column", name: str) -> "Column":
    from pyspark.sql import functions as f

    return f.percentile_approx(value, list(SHARES), ACCURACY).alias(name)


def _topics(records: "DataFrame") -> list[Row]:
    """Return a row for each topic, and a total row with topic None."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    latency = _latency()
    framed = f.col("topic").isNotNull()
    observation = Observation("audit")
    counted = records.observe(observation, f.count_if(~framed).alias("unreadable"))
    grouped = counted.where(framed).rollup("topic")
    measured = grouped.agg(
        f.count("*").alias("messages"),
        f.sum("size").alias("bytes"),
        f.avg("body_length").alias("body_mean"),
        f.max("body_length").alias("body_max"),
        _percentiles(f.col("body_length"), "body"),
        _percentiles(f.when(latency >= 0, latency), "latency"),
        f.max(latency).alias("latency_max_ms"),
        f.count_if(latency < 0).alias("negative_latency"),
        f.min(latency).alias("latency_min_ms"),
        f.count_if(f.col("reconsume_times") > 0).alias("redelivered"),
        f.min(f.unix_millis("store_timestamp")).alias("first_ms"),
        f.max(f.unix_millis("store_timestamp")).alias("last_ms"),
        f.count_if(f.col("store_timestamp").isNull()).alias("without_time"),
    )
    rows = [_flat(row.asDict()) for row in measured.collect()]
    for row in rows:
        row["unreadable"] = observation.get["unreadable"] if row["topic"] is None else 0
        row["rate"] = round(row["messages"] / max(1.0, _seconds(row)), 3)
    return sorted(rows, key=lambda row: -row["messages"])


def _seconds(row: Row) -> float:
    """Return the span of the store times; 0 if there is only damage."""
    return ((row["last_ms"] or 0) - (row["first_ms"] or 0)) / 1000


def _series(records: "DataFrame", bucket_s: int) -> list[Row]:
    from pyspark.sql import functions as f

    latency = _latency()
    width = bucket_s * 1000
    start = f.expr(f"unix_millis(store_timestamp) div {width} * {width}")
    rows = (
        records.where("topic IS NOT NULL AND store_timestamp IS NOT NULL")
        .groupBy(start.alias("start_ms"))
        .agg(
            f.count("*").alias("messages"),
            f.sum("size").alias("bytes"),
            _percentiles(f.when(latency >= 0, latency), "latency"),
            f.count_if(latency < 0).alias("negative_latency"),
        )
        .orderBy("start_ms")
    )
    return [_flat(row.asDict()) for row in rows.collect()]


def _queues(records: "DataFrame") -> list[Row]:
    from pyspark.sql import functions as f

    rows = (
        records.where(f.col("topic").isNotNull())
        .groupBy("broker", "topic", "queue_id")
        .agg(
            f.count("*").alias("messages"),
            f.sum("size").alias("bytes"),
            f.min("queue_offset").alias("first_offset"),
            f.max("queue_offset").alias("last_offset"),
        )
        .orderBy("broker", "topic", "queue_id")
    )
    return [row.asDict() for row in rows.collect()]


def _hot(records: "DataFrame", column: str, top: int) -> list[Row]:
    from pyspark.sql import functions as f

    value = f.explode(column) if column == "keys" else f.col(column)
    rows = (
        records.where(f.col("topic").isNotNull())
        .select("topic", value.alias(HOT[column]))
        .where(f.col(HOT[column]).isNotNull())
        .groupBy("topic", HOT[column])
        .agg(f.count("*").alias("messages"))
        .orderBy(f.desc("messages"), "topic", HOT[column])
        .limit(top)
    )
    return [row.asDict() for row in rows.collect()]


def _flat(row: Row) -> Row:
    """Turn lists of percentiles into columns: `latency_p99_ms`, `body_p50`."""
    flat: Row = {}
    for name, value in row.items():
        if name in ("latency", "body"):
            unit = "_ms" if name == "latency" else ""
            values = value or [None] * len(SHARES)
            for share, quantile in zip(SHARES, values, strict=True):
                flat[f"{name}_p{100 * share:g}{unit}".replace(".", "_")] = quantile
        else:
            flat[name] = round(value, 3) if isinstance(value, float) else value
    return flat


def _write(out: Path, result: Audit) -> None:
    """Write the CSV files and the page. Raises `Unwritable`."""
    tables = {
        "topics": result.topics,
        "queues": result.queues,
        "rates": result.series,
        **{f"hot_{name}": rows for name, rows in result.hot.items()},
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, rows in tables.items():
            with (out / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(rows[0]) if rows else [])
                writer.writeheader()
                writer.writerows(rows)
        write_page(out / "index.html", result)
    except OSError as error:
        raise Unwritable(out, error) from error


def _fill_report(job: Job, out: Path, result: Audit) -> None:
    report, total = job.report, result.total
    report.counts |= {
        "messages": total["messages"],
        "bytes": total["bytes"],
        "topics": len(result.topics),
        "queues": len(result.queues),
        "messages_per_s": total["rate"],
        "latency_p50_ms": total["latency_p50_ms"],
        "latency_p99_ms": total["latency_p99_ms"],
        "negative_latency": total["negative_latency"],
    }
    if total["negative_latency"]:
        report.notes.append(
            f"{total['negative_latency']} messages have store time before born time, by up to"
            f" {-total['latency_min_ms']} ms: clocks differ; they are excluded from percentiles"
        )
    if total["without_time"]:
        report.notes.append(
            f"{total['without_time']} messages have a store time that cannot be: they are in no"
            " latency and no bucket of time"
        )
    if total["unreadable"]:
        report.exit_code = EXIT_FINDING
        title = "places of the log that could not be read and are in no figure"
        report.findings.append({"id": "unreadable", "title": title, "count": total["unreadable"]})
    report.notes.append(f"page: {out / 'index.html'}")
