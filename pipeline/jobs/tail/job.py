"""`tail`: prints stored messages as they arrive, a line each, or writes them to Parquet.

Lines are printed by the driver, batch by batch. A batch is bounded in rows and bytes, so neither a
fast cluster nor a start from the beginning of a large log fills its memory. Parquet is written by
the executors, exactly once: a second run with the same directories continues where the first ended,
and readers other than Spark have to follow the sink's `_spark_metadata`.

A tail without an end is ended by Ctrl-C, which is not an error then.
"""

import signal
import tempfile
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from rocketbed.pipeline.errors import EXIT_FINDING, Unwritable
from rocketbed.pipeline.jobs.common import Job, WrongUsage
from rocketbed.pipeline.jobs.export.writing import exported_columns
from rocketbed.pipeline.jobs.inputs import distinct_logs, note_inputs, note_unread_now
from rocketbed.pipeline.jobs.shared import check_shared
from rocketbed.pipeline.jobs.tail.lines import bad_range, json_line, text_line
from rocketbed.pipeline.jobs.tail.progress import COUNTED, UNREADABLE, BatchTotals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

STARTS: Final = ("earliest", "latest")
DEFAULT_COLUMNS: Final = (
    "broker", "topic", "queue_id", "queue_offset", "physical_offset", "store_timestamp", "tags",
    "keys", "body", "_corrupt",
)  # fmt: skip
"""Default columns of a line."""
BAD_RANGE_COLUMNS: Final = ("topic", "_corrupt")
"""Columns that identify bad ranges. They are always read: a read of topics would skip bad ranges
without them."""
ROWS_MAX: Final = 5000
BYTES_MAX: Final = "16m"
"""Maximum size of a batch of lines."""
FILE_BYTES_MAX: Final = "512m"
"""Maximum size of a batch of Parquet, so that a long backlog is written in steps."""
LINES_EVERY_S: Final = 0.25
FILES_EVERY_S: Final = 10.0
LOOK_S: Final = 1
CHECKPOINT: Final = "_checkpoint"
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Write = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TailOptions:
    """Options of `tail` beyond the common ones."""

    topics: tuple[str, ...] = ()
    """Topics to follow; empty for all, or those of the settings' pattern."""
    start: str = "latest"
    """`earliest` or `latest`; a checkpoint overrides it."""
    once: bool = False
    """Exit once everything stored now has been read."""
    as_json: bool = False
    """True to print JSON lines."""
    checkpoint: Path | None = None
    """Default: `_checkpoint` in OUT."""
    every_s: float | None = None
    """Seconds between batches; None: short for lines, long for files."""


def tail(job: Job, options: TailOptions, write: Write) -> None:
    """Follow until the end, an error or Ctrl-C. `write` gets each line, without its end.

    Raises `PipelineError`, `WrongUsage`; `KeyboardInterrupt` only with `once`.
    """
    source = _source(job, options)
    out = job.settings.out
    form = json_line if options.as_json else text_line
    lines = _Lines(form, write, exported_columns(job.settings.columns or DEFAULT_COLUMNS))
    job.spark  # noqa: B018 (its start is a phase of its own)
    # A spinner would disturb the lines.
    with job.report.phase("following") if out is None else job.phase("following"):
        if out is None:
            query = _into_lines(job, options, source, lines)
        else:
            query = _into_files(job, options, source, out)
        totals = BatchTotals()
        try:
            with _Ending() as ending:
                while not (ending.is_asked or lines.is_closed or query.awaitTermination(LOOK_S)):
                    totals.note(query.recentProgress)
        finally:
            totals.note(query.recentProgress)  # over Connect a stopped query has no progress
            query.stop()
            totals.note(query.recentProgress)
            # The query may end before Spark reports a batch whose lines are written.
            counts = lines.counts if out is None else totals.counts
            _fill_report(job, *counts)
    if ending.is_asked and options.once:
        raise KeyboardInterrupt
    if job.settings.endpoints:
        note_unread_now(job.report, job.settings, options.topics)
    if ending.is_asked:
        job.report.notes.append("ended by Ctrl-C")


def _fill_report(job: Job, messages: int, batches: int, unreadable: int) -> None:
    report = job.report
    report.counts |= {"messages": messages, "batches": batches}
    if unreadable:
        title = "places of the log that cannot be read and are no messages"
        report.findings.append({"id": UNREADABLE, "title": title, "count": unreadable})
        report.exit_code = EXIT_FINDING


class _Ending:
    """Context in which Ctrl-C, SIGTERM and SIGHUP set `is_asked` instead of raising an error.

    Spark would log an error that interrupts one of its calls.
    """

    def __init__(self) -> None:
        self.is_asked = False
        self._previous: list[tuple[int, Any]] = []

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = [(number, signal.signal(number, self._ask)) for number in SIGNALS]
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous:
            signal.signal(number, handler)

    def _ask(self, _number: int, _frame: object) -> None:
        self.is_asked = True


class _Lines:
    """Prints batches as lines. Called in a thread of Spark."""

    def __init__(
        self, form: Callable[[dict[str, Any]], str], write: Write, columns: Sequence[str]
    ) -> None:
        """`columns` are the columns of a message's line; a bad range also has place and reason."""
        self._form = form
        self._write = write
        self._columns = columns
        self.messages = 0
        """Number of printed messages."""
        self.batches = 0
        """Number of batches with rows."""
        self.unreadable = 0
        """Number of printed bad ranges."""
        self.is_closed = False
        """True if the reader has closed the pipe."""

    def take(self, rows: "DataFrame", _batch: int) -> None:
        """Write the rows of a batch, in the order in which they were stored."""
        if self.is_closed:
            return
        records = [row.asDict(recursive=True) for row in rows.collect()]
        self.batches += bool(records)
        try:
            for row in sorted(records, key=_age):
                if bad_range(row):
                    self._write(self._form(row))
                    self.unreadable += 1
                else:
                    self._write(self._form({name: row[name] for name in self._columns}))
                    self.messages += 1
        except BrokenPipeError:
            self.is_closed = True

    @property
    def counts(self) -> tuple[int, int, int]:
        """Messages, batches, bad ranges."""
        return self.messages, self.batches, self.unreadable


def _age(row: dict[str, Any]) -> tuple[int, int]:
    """Sort key by store time; equal and missing times keep the order of the log."""
    stored = row.get("store_timestamp")
    return (stored is None, stored or 0)


def _source(job: Job, options: TailOptions) -> dict[str, str]:
    """Return the stream's options. Raises `WrongUsage`, `PipelineError` for an invalid store."""
    settings = job.settings
    source = settings.source_options()
    if options.start not in STARTS:
        raise WrongUsage(f"--from must be {' or '.join(STARTS)}, not {options.start!r}")
    if settings.out is None and options.checkpoint is not None:
        raise WrongUsage("--checkpoint needs --out: printed messages have no checkpoint")
    if settings.out is None and settings.remote:
        raise WrongUsage("printing needs a local driver: with --remote give --out DIR")
    source |= settings.topic_options(options.topics)
    source["startingOffsets"] = options.start
    if settings.out is None:
        source |= {"maxRowsPerTrigger": str(ROWS_MAX), "maxBytesPerTrigger": BYTES_MAX}
    else:
        source["maxBytesPerTrigger"] = FILE_BYTES_MAX
    if settings.endpoints:
        topics = list(options.topics) or settings.topics_pattern or "all"
        job.report.inputs.append({"endpoints": settings.endpoints, "topics": topics})
    else:
        from rocketbed.pipeline.files.replicas import check_topics
        from rocketbed.pipeline.option_table import OptionError
        from rocketbed.pipeline.options import Options

        logs = distinct_logs(settings)
        note_inputs(job.report, logs)  # a stream would wait for a missing store
        try:
            pattern = Options.parse(source).topics_pattern
            replicas = [replica.replica for log in logs for replica in log.replicas]
            check_topics(replicas, options.topics, pattern)
        except OptionError as exc:
            job.report.notes.append(f"{exc}")
    return source


def _stream(job: Job, source: dict[str, str], columns: tuple[str, ...]) -> "DataFrame":
    from rocketbed.pipeline.schema import records_ddl

    reader = job.spark.readStream.format("rocketbed").schema(records_ddl(columns))
    return reader.options(**source).load()


def _into_lines(
    job: Job, options: TailOptions, source: dict[str, str], lines: _Lines
) -> "StreamingQuery":
    from pyspark.sql import functions as f

    columns = tuple(
        dict.fromkeys(
            (*exported_columns(job.settings.columns or DEFAULT_COLUMNS), *BAD_RANGE_COLUMNS)
        )
    )
    rows = _stream(job, source, columns).select(
        *(
            # Python would convert a timestamp to its own time zone.
            f.unix_millis(name).alias(name) if name.endswith("_timestamp") else f.col(name)
            for name in columns
        )
    )
    place = job.staging(Path(tempfile.gettempdir()) / f"rocketbed-tail-{uuid.uuid4()}")
    writer = rows.writeStream.foreachBatch(lines.take)
    writer = writer.option("checkpointLocation", str(place))
    return writer.trigger(**_trigger(options, LINES_EVERY_S)).start()


def _into_files(
    job: Job, options: TailOptions, source: dict[str, str], out: Path
) -> "StreamingQuery":
    from pyspark.sql import functions as f

    columns = exported_columns(job.settings.columns)
    checkpoint = options.checkpoint or out / CHECKPOINT
    try:
        out.mkdir(parents=True, exist_ok=True)
        checkpoint.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unwritable(error.filename, error) from error
    if not any(checkpoint.iterdir()) and any(out.glob("*.parquet")):
        raise WrongUsage(
            f"{out} holds Parquet files but {checkpoint} holds no checkpoint: messages would be"
            " duplicated; give another --out, or the --checkpoint that belongs to it"
        )
    check_shared(job, out)
    bad = f.col("topic").isNull()
    rows = _stream(job, source, tuple(dict.fromkeys((*columns, *BAD_RANGE_COLUMNS))))
    rows = rows.observe(COUNTED, f.count_if(bad).alias(UNREADABLE))
    if "_corrupt" not in columns:
        rows = rows.where(~bad)  # it would become a row of nulls
    writer = rows.select(*columns).writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(checkpoint.absolute()))
    writer = writer.trigger(**_trigger(options, FILES_EVERY_S))
    return writer.start(str(out.absolute()))


def _trigger(options: TailOptions, usual_s: float) -> dict[str, Any]:
    if options.once:
        return {"availableNow": True}
    every_s = usual_s if options.every_s is None else options.every_s
    return {"processingTime": f"{round(every_s * 1000)} milliseconds"}
