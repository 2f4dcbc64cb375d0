"""Rows into topics of a live cluster: `df.write.format("rocketbed")` and `df.writeStream`.

    rows.write.format("rocketbed").option("endpoints", "host:9876").option("topic", "T") \
        .mode("append").save()

Columns: see `pipeline.sink.rows`; options: see `pipeline.sink.options`. Every message carries an id
made of the job, the batch, the partition and the number of the row (`pipeline.sink.keys`), so that
a reader can tell the copies that failed attempts leave behind.

`delivery=at-least-once`: a task ends well when brokers have acknowledged all of its rows. What
failed attempts sent stays in the log.

`delivery=exactly-once`: messages carry the property `RB_TXN`, and the driver marks each batch
(`pipeline.sink.markers`). A reader with `onlyCommitted` sees every row of every marked batch once,
however often tasks, drivers and brokers died. Other readers see all copies. Each streaming query
and each batch job has a topic `RB_TXN_<id>` of its own for its markers; it may be deleted when
nobody reads with `onlyCommitted` any more.

What a classic cluster cannot promise: with asynchronous replication a failover can lose messages
that were acknowledged, marked or not, and give their queue offsets to others. Exactly once holds
as far as the cluster keeps what it acknowledges.
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
    """What a task that ended well tells the driver."""

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
    """`Runs.as_json`: where the messages are."""
    is_skipped: bool = False
    """The batch was marked before: nothing was sent."""
    passed: dict[str, int] = field(default_factory=dict)
    """Then: how many rows for each topic were not sent."""


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
        """Mark the job, if it is to be. Raises `SinkError`."""
        finish(self.options, messages)

    def abort(self, messages: "list[WriterCommitMessage | None]") -> None:
        """Say what may have been left behind."""
        given_up(messages)


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
        """Mark the batch, if it is to be. Raises `SinkError`."""
        finish(self.options, messages)

    def abort(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:
        """Say what may have been left behind."""
        given_up(messages)


def columns_of(schema: "StructType") -> dict[str, str]:
    """Column -> type, as Spark's DDL writes it."""
    return {item.name: item.dataType.simpleString() for item in schema.fields}


def send_partition(
    options: SinkOptions, key: TaskKey, batches: "Iterator[pyarrow.RecordBatch]"
) -> TaskCommit:
    """Send rows and wait for their acknowledgements; nothing if their batch is marked already.

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
        for batch in batches:  # Spark waits until someone has read them
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
    """All tasks of a batch ended well: mark it, where delivery is exactly once.

    Raises `SinkError` when the marker cannot be written; the batch then has to be run again. And
    when a job's id was used for other topics before: nothing was written then.
    """
    commits = [message for message in messages if isinstance(message, TaskCommit)]
    if not commits:
        return
    job, batch = commits[0].job, commits[0].batch
    runs = Runs()
    for one in commits:
        runs.update(Runs.from_json(one.runs))
    is_done_before = any(one.is_skipped for one in commits)
    if options.is_exactly_once and not is_done_before:
        import trio

        from rocketbed.pipeline.sink.marking import write_marker

        trio.run(write_marker, options, job, batch, runs)
    if is_done_before and options.job:  # of a stream Spark's checkpoint says what its batches are
        _check_marked(options, commits)
    LOG.info(
        "sink.batch_done job=%s batch=%d tasks=%d rows=%d bytes=%d retries=%d doubtful=%d "
        "marked_before=%s ranges=%s",
        job,
        batch,
        len(commits),
        sum(one.rows for one in commits),
        sum(one.bytes for one in commits),
        sum(one.retries for one in commits),
        sum(one.doubtful for one in commits),
        is_done_before,
        {"|".join(map(str, place)): ends for place, ends in runs.ranges().items()},
    )


def _check_marked(options: SinkOptions, commits: "Sequence[TaskCommit]") -> None:
    """Compare what a job did not write, as it is marked, with what its marker says. Raises
    `SinkError` for other topics; another number of rows is a warning."""
    import trio

    from rocketbed.pipeline.sink.marking import marker_of

    marked = trio.run(marker_of, options, options.job, commits[0].batch) or Runs()
    passed: Counter[str] = Counter()
    for one in commits:
        passed.update(one.passed)
    rows = sum(one.rows for one in commits) + passed.total()
    there = sorted({place.topic for place in marked.places()})
    what = (
        f"job {options.job} is marked already, with {marked.count()} rows of"
        f" {', '.join(there) or 'no topic'}, so {passed.total()} rows of"
        f" {', '.join(sorted(passed))} were not written"
    )
    if passed.keys() - set(there):
        raise SinkError(f"{what}: give other rows another jobId, or none")
    if rows != marked.count():
        LOG.warning("sink.marked_before %s: if they are other rows, give another jobId", what)


def given_up(messages: "Sequence[WriterCommitMessage | None]") -> None:
    """A batch failed. What its tasks sent stays; of those that failed nobody knows what it was."""
    commits = [message for message in messages if isinstance(message, TaskCommit)]
    LOG.warning(
        "sink.batch_failed tasks=%d ended_well=%d rows_left=%d",
        len(messages),
        len(commits),
        sum(one.rows for one in commits),
    )


def _context() -> Any:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise SinkError("a writer can run only in a Spark task")
    return context
