"""Writing rows into topics of a cluster: `df.write.format("rocketbed")` and `df.writeStream`.

    rows.write.format("rocketbed").option("endpoints", "host:9876").option("topic", "T") \
        .mode("append").save()

Columns: see `pipeline.sink.rows`; options: see `pipeline.sink.options`. Every message carries an id
made of the job, the batch, the partition and the number of the row (`pipeline.sink.keys`), so that
a reader can recognise the copies from failed attempts.

`delivery=at-least-once`: a task succeeds when brokers have acknowledged all of its rows. Messages
of failed attempts stay in the log.

`delivery=exactly-once`: messages carry the property `RB_TXN`, and the driver marks each batch
(`pipeline.sink.markers`). A reader with `onlyCommitted` sees every row of every marked batch once,
however often tasks, drivers and brokers died. Other readers see all copies. Each streaming query
and each batch job has its own topic `RB_TXN_<id>` for its markers. The topic may be deleted when
it is no longer read with `onlyCommitted`.

A classic cluster limits this promise: with asynchronous replication a failover can lose
acknowledged messages, marked or not, and give their queue offsets to other messages. Exactly once
holds as far as the cluster keeps acknowledged messages.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from rocketbed.pipeline.build import Planned
from rocketbed.pipeline.errors import user_errors
from rocketbed.pipeline.option_table import OptionError
from rocketbed.pipeline.sink.keys import TaskKey
from rocketbed.pipeline.sink.options import SinkError, SinkOptions
from rocketbed.pipeline.sink.rows import cells_of, check_columns, outgoing
from rocketbed.pipeline.sink.runs import Runs

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

BATCH_PROPERTY: Final = "streaming.sql.batchId"
QUERY_PROPERTY: Final = "sql.streaming.queryId"
LOG: Final = logging.getLogger("rocketbed.pipeline.sink.writer")


@dataclass(frozen=True, kw_only=True)
class TaskCommit(WriterCommitMessage):
    """Report of a successful task to the driver."""

    job: str
    batch: int
    partition: int
    rows: int = 0
    bytes: int = 0
    """Total size of bodies."""
    retries: int = 0
    doubtful: int = 0
    """Messages that may be in the log more than once."""
    runs: list[list[Any]] = field(default_factory=list)
    """Positions of the messages, as `Runs.as_json`."""
    is_skipped: bool = False
    """True if the batch was marked before, so that nothing was sent."""
    passed: dict[str, int] = field(default_factory=dict)
    """Rows of a skipped batch, by topic."""


class TopicWriter(Planned, DataSourceArrowWriter):
    def __init__(self, schema: "StructType", options: dict[str, str], *, overwrite: bool) -> None:
        """Raises `OptionError`, `SinkError` for options and columns that cannot be used."""
        if overwrite:
            raise OptionError("topics can only be appended to: use mode('append')")
        self.options = SinkOptions.parse(options, streaming=False)
        check_columns(columns_of(schema), self.options)

    @user_errors
    def write(self, iterator: "Iterator[pyarrow.RecordBatch]") -> TaskCommit:
        """Send a partition's rows. Raises `SinkError`, `WireError`."""
        key = TaskKey(job=self.options.job, batch=0, partition=_context().partitionId())
        return send_partition(self.options, key, iterator)

    @user_errors
    def commit(self, messages: "list[WriterCommitMessage | None]") -> None:
        """Mark the job if delivery is exactly once. Raises `SinkError`."""
        finish(self.options, messages)

    def abort(self, messages: "list[WriterCommitMessage | None]") -> None:
        """Say what may have been left behind."""
        warn_failed(messages)


class TopicStreamWriter(Planned, DataSourceStreamArrowWriter):
    """A streaming query's writer; Spark makes one for each micro-batch."""

    def __init__(self, schema: "StructType", options: dict[str, str], *, overwrite: bool) -> None:
        """Raises `OptionError`, `SinkError` for options and columns that cannot be used."""
        if overwrite:
            raise OptionError("topics can only be appended to: use outputMode('append')")
        self.options = SinkOptions.parse(options, streaming=True)
        check_columns(columns_of(schema), self.options)

    @user_errors
    def write(self, iterator: "Iterator[pyarrow.RecordBatch]") -> TaskCommit:
        """Send a partition's rows. Raises `SinkError`, `WireError`."""
        context = _context()
        job = context.getLocalProperty(QUERY_PROPERTY)
        batch = context.getLocalProperty(BATCH_PROPERTY)
        if not job or batch is None:
            raise SinkError("Spark does not say which query and micro-batch this task belongs to")
        key = TaskKey(job=job, batch=int(batch), partition=context.partitionId())
        return send_partition(self.options, key, iterator)

    @user_errors
    def commit(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:
        """Mark the batch if delivery is exactly once. Raises `SinkError`."""
        finish(self.options, messages)

    def abort(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:
        """Say what may have been left behind."""
        warn_failed(messages)


def columns_of(schema: "StructType") -> dict[str, str]:
    """Return the type of each column, in Spark's DDL notation."""
    return {item.name: item.dataType.simpleString() for item in schema.fields}


def send_partition(
    options: SinkOptions, key: TaskKey, batches: "Iterator[pyarrow.RecordBatch]"
) -> TaskCommit:
    """Send rows and wait for their acknowledgements; send none if their batch is marked already.

    Raises `SinkError`, `WireError`.
    """
    import trio

    from rocketbed.pipeline.sink.marking import marker_of
    from rocketbed.pipeline.sink.sending import SendReport, TaskSender

    async def run() -> SendReport | None:
        is_once = options.is_exactly_once
        if is_once and await marker_of(options, key.job, key.batch) is not None:
            return None
        async with TaskSender(options, key) as sender:
            first = 0
            for batch in batches:
                rows = outgoing(cells_of(batch), first_row=first, key=key, options=options)
                await sender.send(rows)
                first += batch.num_rows
        return sender.report

    report = trio.run(run)
    if report is None:
        passed: Counter[str] = Counter()
        for batch in batches:  # Spark waits until the rows have been read
            topics = cells_of(batch).get("topic") or [options.topic] * batch.num_rows
            passed.update(topic or options.topic for topic in topics)
        return TaskCommit(
            job=key.job,
            batch=key.batch,
            partition=key.partition,
            is_skipped=True,
            passed=dict(passed),
        )
    return TaskCommit(
        job=key.job,
        batch=key.batch,
        partition=key.partition,
        rows=report.rows,
        bytes=report.bytes,
        retries=report.retries,
        doubtful=report.doubtful,
        runs=report.runs.merged().as_json(),
    )


def finish(options: SinkOptions, messages: "Sequence[WriterCommitMessage | None]") -> None:
    """Finish a batch whose tasks all succeeded: mark it if delivery is exactly once.

    Raises `SinkError` if the marker cannot be written; the batch has to be run again then. Also if
    a job's id was used for other topics before; nothing was written in that case.
    """
    commits = [message for message in messages if isinstance(message, TaskCommit)]
    if not commits:
        return
    job, batch = commits[0].job, commits[0].batch
    runs = Runs()
    for commit in commits:
        runs.update(Runs.from_json(commit.runs))
    is_done_before = any(commit.is_skipped for commit in commits)
    if options.is_exactly_once and not is_done_before:
        import trio

        from rocketbed.pipeline.sink.marking import write_marker

        trio.run(write_marker, options, job, batch, runs)
    if is_done_before and options.job:  # a stream's batches are fixed by Spark's checkpoint
        _check_marked(options, commits)
    LOG.info(
        "sink.batch_done job=%s batch=%d tasks=%d rows=%d bytes=%d retries=%d doubtful=%d "
        "marked_before=%s ranges=%s",
        job,
        batch,
        len(commits),
        sum(commit.rows for commit in commits),
        sum(commit.bytes for commit in commits),
        sum(commit.retries for commit in commits),
        sum(commit.doubtful for commit in commits),
        is_done_before,
        {"|".join(map(str, place)): ends for place, ends in runs.ranges().items()},
    )


def _check_marked(options: SinkOptions, commits: "Sequence[TaskCommit]") -> None:
    """Compare the rows that a marked job skipped with its marker.

    Raises `SinkError` for other topics; logs a warning for another number of rows.
    """
    import trio

    from rocketbed.pipeline.sink.marking import marker_of

    marked = trio.run(marker_of, options, options.job, commits[0].batch) or Runs()
    passed: Counter[str] = Counter()
    for commit in commits:
        passed.update(commit.passed)
    rows = sum(commit.rows for commit in commits) + passed.total()
    topics = sorted({place.topic for place in marked.places()})
    problem = (
        f"job {options.job} is marked already, with {marked.count()} rows of"
        f" {', '.join(topics) or 'no topic'}, so {passed.total()} rows of"
        f" {', '.join(sorted(passed))} were not written"
    )
    if passed.keys() - set(topics):
        raise SinkError(f"{problem}: give other rows another jobId, or none")
    if rows != marked.count():
        LOG.warning("sink.marked_before %s: if they are other rows, give another jobId", problem)


def warn_failed(messages: "Sequence[WriterCommitMessage | None]") -> None:
    """Warn of a failed batch. The rows of its tasks stay; those of failed tasks are not counted."""
    commits = [message for message in messages if isinstance(message, TaskCommit)]
    LOG.warning(
        "sink.batch_failed tasks=%d ended_well=%d rows_left=%d",
        len(messages),
        len(commits),
        sum(commit.rows for commit in commits),
    )


def _context() -> Any:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise SinkError("a writer can run only in a Spark task")
    return context
