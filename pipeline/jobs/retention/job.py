"""`retention`: use of a log's bytes, and the effects of deleting and compacting.

Reports bytes by segment, by day and by topic; the deletions of each retention time; and, for each
topic, the messages that are older than another one with the same key, which compaction would
remove. A key is the whole property KEYS within a queue, as in RocketMQ's compaction. Messages
without a key stay. A record with several messages counts with its own keys, since compaction does
not unpack it. One replica of each broker is read, up to the end that all of them hold.
"""

import csv
import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocketbed.pipeline.errors import EXIT_FINDING
from rocketbed.pipeline.jobs.common import Job
from rocketbed.pipeline.jobs.inputs import BrokerLog, distinct_logs, note_inputs
from rocketbed.pipeline.jobs.retention.rules import SegmentUse, key_row, retention_row
from rocketbed.pipeline.report import write_whole

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HOURS: Final = (24.0, 48.0, 72.0, 168.0)
TOPICS_MAX: Final = 10
COLUMNS: Final = (
    "broker",
    "segment",
    "topic",
    "queue_id",
    "queue_offset",
    "physical_offset",
    "size",
    "store_timestamp",
)

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionOptions:
    """Options of `retention` beyond the common ones."""

    hours: tuple[float, ...] = HOURS
    now_ms: int | None = None
    """Time from which retention times count; None: now."""
    keys: bool = True
    """True to look for older messages of a key, which shuffles all keys."""


def retention(job: Job, options: RetentionOptions) -> None:
    """Compute the tables. Raises `PipelineError`, `WrongUsage`, `OSError`."""
    logs = distinct_logs(job.settings)
    note_inputs(job.report, logs)
    now_ms = int(time.time() * 1000) if options.now_ms is None else options.now_ms
    job.spark  # noqa: B018 (its start is a phase of its own)
    with job.phase("bytes by segment, day and topic"):
        cells = _cells(_records(job, logs, COLUMNS, inner="unpack"))
    sizes = {
        (log.broker, file.start): file.size for log in logs for file in _files(log.replicas[0])
    }
    segments = segment_uses(cells, sizes)
    tables = job.report.tables
    tables["retention"] = [
        retention_row(segments, hours=hours, now_ms=now_ms) for hours in sorted(set(options.hours))
    ]
    tables["topics"] = _rows(cells, "topic")
    tables["days"] = _rows(cells, "day")
    tables["segments"] = [_segment_row(segment) for segment in segments]
    if options.keys:
        with job.phase("last messages of keys"):
            records = _records(job, logs, (*COLUMNS, "keys"), inner="keep")
            tables["keys"] = _keys(records, tables["topics"])
    _fill_report(job, cells, segments, now_ms)
    if job.settings.out is not None:
        write_tables(job.settings.out, tables)


def segment_uses(
    cells: Sequence[Row], file_sizes: Mapping[tuple[str, int], int]
) -> list[SegmentUse]:
    """Return the segments of all brokers, oldest first, including those without records."""
    by_segment = {(row["broker"], row["segment"]): row for row in cells if row["by"] == "segment"}
    uses = []
    for broker, segment in sorted({*by_segment, *file_sizes}):
        row = by_segment.get((broker, segment), {})
        uses.append(
            SegmentUse(
                broker=broker,
                segment=segment,
                messages=row.get("messages", 0),
                bytes=row.get("bytes", 0),
                file_bytes=file_sizes.get((broker, segment), 0),
                first_ms=row.get("first_ms"),
                oldest_ms=row.get("oldest_ms"),
                youngest_ms=row.get("youngest_ms"),
            )
        )
    return uses


def write_tables(out: Path, tables: Mapping[str, Sequence[Row]]) -> None:
    """Write a CSV file for each table; times in milliseconds since 1970. Raises `OSError`."""
    out.mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        text = io.StringIO()
        if rows:
            writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        write_whole(out / f"{name}.csv", text.getvalue())


def retention_text(tables: Mapping[str, Sequence[Row]]) -> str:
    """Return the tables as text, with the largest topics only."""
    lines = ["", f"  {'keep':>8} {'deletes':>28} {'leaves':>28}   oldest kept"]
    for row in tables.get("retention", ()):
        deleted = f"{row['deleted_messages']:,} in {_bytes(row['deleted_bytes'])}"
        remaining = f"{row['kept_messages']:,} in {_bytes(row['kept_bytes'])}"
        hours = f"{row['hours']:g} h"
        lines.append(
            f"  {hours:>8} {deleted:>28} {remaining:>28}   {_moment(row['oldest_kept_ms'])}"
        )
    shares = {row["topic"]: row["compactable_share"] for row in tables.get("keys", ())}
    lines += ["", f"  {'topic':<32} {'messages':>12} {'size':>10}  compactable"]
    topics = tables.get("topics", ())
    for row in topics[:TOPICS_MAX]:
        share = f"{100 * shares[row['topic']]:.1f} %" if row["topic"] in shares else "-"
        size = _bytes(row["bytes"])
        lines.append(f"  {row['topic']:<32.32} {row['messages']:>12,} {size:>10} {share:>12}")
    if len(topics) > TOPICS_MAX:
        lines.append(f"  and {len(topics) - TOPICS_MAX} topics more")
    return "\n".join(lines)


def _records(
    job: Job, logs: Sequence[BrokerLog], columns: Sequence[str], *, inner: str
) -> "DataFrame":
    """Read a replica of each broker, up to the end that all replicas hold.

    A bad range has no topic.
    """
    from rocketbed.pipeline.schema import records_ddl

    frames = []
    for log in logs:
        reader = job.spark.read.format("rocketbed").schema(records_ddl(columns))
        options = {
            "inner": inner,
            **log.replicas[0].source,
            "endOffset": str(log.end),
            "mode": job.settings.mode,
            "verifyCrc": "false",
        }
        frames.append(reader.options(**options).load())
    return reduce(lambda table, frame: table.unionAll(frame), frames)


def _cells(records: "DataFrame") -> list[Row]:
    """Return sums by segment, by day (UTC), by topic, and in total, in a single query.

    `by` names the grouping. Records are summed once by all three; these sums give the others.
    """
    from pyspark.sql import functions as f

    places = ("broker", "segment", "day", "topic")
    day = f.to_date("store_timestamp").alias("day")
    small = records.select("*", day).groupBy(*places).agg(*_sums())
    sums = [f.sum(name).alias(name) for name in ("messages", "bytes", "malformed")]
    grouped = small.groupingSets([["broker", "segment"], ["day"], ["topic"], []], *places).agg(
        f.grouping_id(*places).alias("place"),
        *sums,
        f.min_by("first_ms", "first_offset").alias("first_ms"),
        f.min("oldest_ms").alias("oldest_ms"),
        f.max("youngest_ms").alias("youngest_ms"),
    )
    names = {0b0011: "segment", 0b1101: "day", 0b1110: "topic", 0b1111: "all"}
    rows = [{**row.asDict(), "by": names[row["place"]]} for row in grouped.collect()]
    return [{**row, "day": None if row["day"] is None else str(row["day"])} for row in rows]


def _sums() -> "list[Column]":
    """Columns with the sums of a group: records only, or (without a topic) bad ranges only."""
    from pyspark.sql import functions as f

    good = f.col("topic").isNotNull()
    stored_ms = f.when(good, f.unix_millis("store_timestamp"))
    return [
        f.count_if(good).alias("messages"),
        f.coalesce(f.sum(f.when(good, f.col("size").cast("bigint"))), f.lit(0)).alias("bytes"),
        f.count_if(~good).alias("malformed"),
        f.min_by(stored_ms, f.when(good, f.col("physical_offset"))).alias("first_ms"),
        f.min(f.when(good, f.col("physical_offset"))).alias("first_offset"),
        f.min(stored_ms).alias("oldest_ms"),
        f.max(stored_ms).alias("youngest_ms"),
    ]


def _keys(records: "DataFrame", topics: Sequence[Row]) -> list[Row]:
    """Return compactable messages by topic, most bytes first, without topics that have no keys."""
    from pyspark.sql import functions as f

    key = f.array_join("keys", " ")
    rows = records.where(f.col("topic").isNotNull()).withColumn("key", key).where("key <> ''")
    last = rows.groupBy("broker", "topic", "queue_id", "key").agg(
        f.count("*").alias("messages"),
        f.sum(f.col("size").cast("bigint")).alias("bytes"),
        f.max_by("size", "queue_offset").cast("bigint").alias("last"),
    )
    sums = last.groupBy("topic").agg(
        f.sum("messages").alias("keyed"),
        f.sum("bytes").alias("keyed_bytes"),
        f.count("*").alias("keys"),
        f.sum("last").alias("last"),
    )
    by_topic = {row["topic"]: row for row in topics}
    key_rows = [
        key_row(
            row["topic"],
            messages=by_topic[row["topic"]]["messages"],
            total=by_topic[row["topic"]]["bytes"],
            keyed=row["keyed"],
            keyed_bytes=row["keyed_bytes"],
            keys=row["keys"],
            last=row["last"],
        )
        for row in sums.collect()
    ]
    return sorted(key_rows, key=lambda row: (-row["compactable_bytes"], row["topic"]))


def _files(log: Any) -> Any:
    from rocketbed.pipeline.files.splits import log_files

    return [file for file in log_files(log.replica) if file.start < log.end]


def _rows(cells: Sequence[Row], by: str) -> list[Row]:
    """Return the cells of topics (most bytes first) or days (in order)."""
    names = (by, "messages", "bytes", "oldest_ms", "youngest_ms")
    rows = [
        {name: cell[name] for name in names}
        for cell in cells
        if cell["by"] == by and cell[by] is not None and cell["messages"]
    ]
    return sorted(rows, key=lambda row: row[by] if by == "day" else (-row["bytes"], row[by]))


def _segment_row(segment: SegmentUse) -> Row:
    return {
        "broker": segment.broker,
        "segment": segment.segment,
        "messages": segment.messages,
        "bytes": segment.bytes,
        "file_bytes": segment.file_bytes,
        "oldest_ms": segment.oldest_ms,
        "youngest_ms": segment.youngest_ms,
    }


def _fill_report(
    job: Job, cells: Sequence[Row], segments: Sequence[SegmentUse], now_ms: int
) -> None:
    total = next((cell for cell in cells if cell["by"] == "all"), {})
    job.report.counts |= {
        "messages": total.get("messages", 0),
        "bytes": total.get("bytes", 0),
        "segments": len(segments),
        "topics": len(job.report.tables["topics"]),
        "counted_from": _moment(now_ms),
    }
    if malformed := total.get("malformed", 0):
        title = "places of the log are no records; they are in no table"
        job.report.findings.append({"id": "malformed", "title": title, "count": malformed})
        job.report.exit_code = EXIT_FINDING


def _moment(time_ms: int | None) -> str:
    if time_ms is None:
        return "-"
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
