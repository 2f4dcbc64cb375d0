"""`spark.readStream.format("rocketbed")`: stored messages as they come.

    spark.readStream.format("rocketbed").option("path", "broker-a/0=/data/a,broker-a/1=/data/b")
    spark.readStream.format("rocketbed").option("endpoints", "host:9876").option("topics", "T")

Over `path` a stream reads each broker's log up to what all of its listed replicas hold, from any of
them; over `endpoints` it reads queues up to what all answering members have. Options:
`pipeline.options` beside those of batch reads. With a Parquet sink every record is there
exactly once, also when the driver was killed in the middle of a batch: readers other than Spark
have to go by the sink's `_spark_metadata`. A batch that is run again has the same rows; only the
column `replica` may differ, since another replica may serve it.

What a classic cluster cannot promise: which messages a failover will keep. A record that every
listed replica held stays; with `readUncommitted=true` the stream shows what the longest replica
had, and a failover may take that away again. Micro-batches only: Spark has no continuous mode for
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
from rocketbed.pipeline.errors import PipelineError, shown, user_errors
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.schema import renamed
from rocketbed.pipeline.streams.offsets import PHYSICAL, QUEUE, StreamOffset, lags

if TYPE_CHECKING:
    import pyarrow

    from rocketbed.pipeline.streams.physical import PhysicalLog
    from rocketbed.pipeline.streams.queues import QueueLog


class StreamPart(InputPartition):
    """One task's share of a micro-batch."""

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
        """When the last one began that had something; the first one does not wait."""

    @user_errors
    def initialOffset(self) -> dict[str, Any]:
        """Where the query begins when it has no checkpoint: the option `startingOffsets`."""
        return self.log.initial().as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """The options `maxBytesPerTrigger`, `maxRowsPerTrigger`; both count if both are given."""
        if self.options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self.options.max_bytes_per_trigger)
        if self.options.max_rows_per_trigger is not None:
            return ReadMaxRows(self.options.max_rows_per_trigger)
        return ReadAllAvailable()

    @user_errors
    def prepareForTriggerAvailableNow(self) -> None:
        """The query ends where the log ends now."""
        self._is_ending = True
        self.log.freeze()

    @user_errors
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch, at a record's end; `start` when there is nothing new."""
        bytes_max = rows_max = None
        if isinstance(limit, ReadMaxBytes):
            bytes_max, rows_max = limit.max_bytes, self.options.max_rows_per_trigger
        elif isinstance(limit, ReadMaxRows):
            bytes_max, rows_max = self.options.max_bytes_per_trigger, limit.max_rows
        begin = StreamOffset.parse(start, self.kind)
        found = self.log.latest(begin, bytes_max=bytes_max, rows_max=rows_max)
        return (begin if self._waits(begin, found) else found).as_json()

    def _waits(self, begin: StreamOffset, found: StreamOffset) -> bool:
        """Whether a batch is too small yet: `minOffsetsPerTrigger`, `maxTriggerDelay`."""
        least, newest = self.options.min_offsets_per_trigger, self.log.newest
        now = time.monotonic()
        if least is None or self._is_ending or newest is None or found == begin:
            return False
        is_due = now - self._last_batch_s >= self.options.max_trigger_delay / 1000
        if not is_due and sum(lags(begin, newest).values()) < least:
            return True
        self._last_batch_s = now
        return False

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Where the logs or queues ended when the last batch was planned: the progress of a query
        shows it as `latestOffset`, see `pipeline.lag`."""
        return None if self.log.newest is None else self.log.newest.as_json()

    @user_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Tasks of the batch between two offsets; the same rows each time they are asked for."""
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
        """Nothing: the checkpoint alone says where the query stands."""

    def stop(self) -> None:
        """End what the planning side keeps open."""
        self.log.close()

    def __getstate__(self) -> dict[str, Any]:
        """What a task gets: reading needs no plan."""
        state = self.__dict__.copy()
        state.pop("log", None)
        return state


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream that cannot begin says why when it is first asked for something.

    What `DataSource.streamReader` itself raises Spark 4.3 buries under an UnboundLocalError of its
    own (`python_streaming_source_runner.main`).
    """

    def __init__(self, why: PipelineError) -> None:
        self.why = why

    def refuse(self, *_: Any) -> Any:
        """Raises why."""
        raise shown(self.why) from None

    getDefaultReadLimit = prepareForTriggerAvailableNow = initialOffset = refuse
    latestOffset: Any = refuse
    reportLatestOffset: Any = refuse
    partitions: Any = refuse
    read: Any = refuse


def log_of(options: Options) -> "PhysicalLog | QueueLog":
    """What plans a stream: over files, or over queues where the option endpoints is given."""
    if options.endpoints:
        from rocketbed.pipeline.streams.queues import QueueLog

        return QueueLog(options)
    from rocketbed.pipeline.streams.physical import PhysicalLog

    return PhysicalLog(options)
