"""`spark.readStream.format("rocketbed")`: a stream of stored messages.

    spark.readStream.format("rocketbed").option("path", "broker-a/0=/data/a,broker-a/1=/data/b")
    spark.readStream.format("rocketbed").option("endpoints", "host:9876").option("topics", "T")

Over `path` a stream reads each broker's log up to what all of its listed replicas hold, from any of
them; over `endpoints` it reads queues up to what all answering members have. Options:
`pipeline.options` beside those of batch reads. With a Parquet sink every record is there
exactly once, also when the driver was killed in the middle of a batch: readers other than Spark
have to follow the sink's `_spark_metadata`. A batch that is run again has the same rows; only the
column `replica` may differ, since another replica may serve it.

A classic cluster cannot promise which messages a failover will keep. A record that every listed
replica held stays; with `readUncommitted=true` the stream also shows the rest of the longest
replica, which a failover may remove. Micro-batches only: Spark has no continuous mode for
sources in Python.
"""

import time
from collections.abc import Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from rocketbed.pipeline.build import Planned
from rocketbed.pipeline.errors import PipelineError, explained, user_errors
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.schema import renamed
from rocketbed.pipeline.streams.offsets import PHYSICAL, QUEUE, StreamOffset, lags

if TYPE_CHECKING:
    import pyarrow

    from rocketbed.pipeline.streams.physical import PhysicalLog
    from rocketbed.pipeline.streams.queues import QueueLog


class StreamPart(InputPartition):
    """Share of a micro-batch that a task reads."""

    def __init__(self, share: Any) -> None:
        super().__init__(share)
        self.share = share


class StreamReader(Planned, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A micro-batch reader over store directories or over a live cluster."""

    def __init__(self, arrow: "pyarrow.Schema", options: Options, names: Sequence[str]) -> None:
        """`arrow`: the columns, in our spelling; `names`: in the user's. Raises `OptionError`."""
        self.arrow = arrow
        self.names = names
        self.options = options
        self.kind = QUEUE if options.endpoints else PHYSICAL
        self.log = log_of(options)
        self._is_ending = False
        self._last_batch_s = -inf
        """Start of the last batch that had rows; the first one does not wait."""

    @user_errors
    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a query without a checkpoint: the option `startingOffsets`."""
        return self.log.initial().as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit by `maxBytesPerTrigger` or `maxRowsPerTrigger`; if both are set, both
        count."""
        if self.options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self.options.max_bytes_per_trigger)
        if self.options.max_rows_per_trigger is not None:
            return ReadMaxRows(self.options.max_rows_per_trigger)
        return ReadAllAvailable()

    @user_errors
    def prepareForTriggerAvailableNow(self) -> None:
        """Make the query end at the present end of the log."""
        self._is_ending = True
        self.log.freeze()

    @user_errors
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch, at a record's end; `start` if there is nothing new."""
        bytes_max = rows_max = None
        if isinstance(limit, ReadMaxBytes):
            bytes_max, rows_max = limit.max_bytes, self.options.max_rows_per_trigger
        elif isinstance(limit, ReadMaxRows):
            bytes_max, rows_max = self.options.max_bytes_per_trigger, limit.max_rows
        begin = StreamOffset.parse(start, self.kind)
        end = self.log.latest(begin, bytes_max=bytes_max, rows_max=rows_max)
        return (begin if self._waits(begin, end) else end).as_json()

    def _waits(self, begin: StreamOffset, end: StreamOffset) -> bool:
        """True if a batch is still too small: `minOffsetsPerTrigger`, `maxTriggerDelay`."""
        least, newest = self.options.min_offsets_per_trigger, self.log.newest
        now = time.monotonic()
        if least is None or self._is_ending or newest is None or end == begin:
            return False
        is_overdue = now - self._last_batch_s >= self.options.max_trigger_delay / 1000
        if not is_overdue and sum(lags(begin, newest).values()) < least:
            return True
        self._last_batch_s = now
        return False

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of all logs or queues when the last batch was planned: the progress of a
        query shows them as `latestOffset`, see `pipeline.lag`."""
        return None if self.log.newest is None else self.log.newest.as_json()

    @user_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of the batch between two offsets; they read the same rows each time."""
        first, last = StreamOffset.parse(start, self.kind), StreamOffset.parse(end, self.kind)
        return [StreamPart(part) for part in self.log.plan(first, last)]

    @user_errors
    def read(self, partition: InputPartition) -> "Iterator[pyarrow.RecordBatch]":
        if not isinstance(partition, StreamPart):
            return iter(())
        if self.kind == QUEUE:
            from rocketbed.pipeline.streams import queues as stream_queues

            batches = stream_queues.read_part(partition.share, self.arrow, self.options)
            return renamed(batches, self.names)
        from rocketbed.pipeline.streams import physical as stream_physical

        batches = stream_physical.read_part(partition.share, self.arrow, self.options)
        return renamed(batches, self.names)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the checkpoint alone holds the position of the query."""

    def stop(self) -> None:
        """Close the connections of the planning side."""
        self.log.close()

    def __getstate__(self) -> dict[str, Any]:
        """State for a task, without the planning side: reading does not need it."""
        state = self.__dict__.copy()
        state.pop("log", None)
        return state


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream that cannot begin: every method raises the reason.

    Spark 4.3 buries an error that `DataSource.streamReader` itself raises under an
    UnboundLocalError of its own (`python_streaming_source_runner.main`).
    """

    def __init__(self, error: PipelineError) -> None:
        self.error = error

    def refuse(self, *_: Any) -> Any:
        """Raise the reason."""
        raise explained(self.error) from None

    getDefaultReadLimit = prepareForTriggerAvailableNow = initialOffset = refuse
    latestOffset: Any = refuse
    reportLatestOffset: Any = refuse
    partitions: Any = refuse
    read: Any = refuse


def log_of(options: Options) -> "PhysicalLog | QueueLog":
    """Return the planning side of a stream: over queues if the option endpoints is set, else
    files."""
    if options.endpoints:
        from rocketbed.pipeline.streams.queues import QueueLog

        return QueueLog(options)
    from rocketbed.pipeline.streams.physical import PhysicalLog

    return PhysicalLog(options)
