"""Reads the input of `verify` through the data source: store directories, or a live cluster."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocketbed.pipeline.checks.replicas import Divergence, first_difference, unequal_blocks
from rocketbed.pipeline.checks.tables import RECORD_COLUMNS, first_key, key_in_body, record_table
from rocketbed.pipeline.files.splits import log_files
from rocketbed.pipeline.jobs.inputs import BrokerLog, ReplicaLog
from rocketbed.pipeline.wire.cluster import QueueSnapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BLOCK_BYTES: Final = 1 << 20
READ: Final = {"mode": "PERMISSIVE", "readUncommitted": "true", "inner": "keep"}


def read_records(
    spark: "SparkSession",
    logs: Sequence[ReplicaLog],
    *,
    firm: Mapping[str, int],
    by_value: bool,
    by_broker: bool,
    with_properties: bool = False,
) -> "DataFrame":
    """Return all records of these logs, to their ends, as `tables.record_table` has them.

    `firm` has, by broker, the byte up to which enough replicas hold the log. `by_value`: messages
    are identified by the value in a testbed's body, else by their UNIQ_KEY. `with_properties`:
    count the messages in a record with an inner batch, and use the first UNIQ_KEY of several.
    """
    from pyspark.sql import functions as f

    source = READ | {"syncMode": "walk", "path": ",".join(log.path for log in logs)}
    rows = _rows(spark, source, by_value=by_value, with_properties=with_properties)
    is_firm = f.lit(False)
    for broker, end in firm.items():
        inside = f.col("physical_offset") + f.col("size") <= end
        is_firm = is_firm | ((f.col("broker") == broker) & inside)
    return record_table(rows, f.coalesce(is_firm, f.lit(False)), by_broker=by_broker)


@dataclass(frozen=True, slots=True)
class LiveQueues:
    """The queues of a live cluster, up to their ends at the time of the look."""

    source: dict[str, str]
    """Options of a read."""
    firm: tuple[str, ...]
    """Brokers with at least `copies` members that answered."""
    shortened: tuple[str, ...]
    """Brokers whose queues lost their beginning to retention."""

    @classmethod
    def of(cls, source: Mapping[str, str], state: QueueSnapshot, copies: int) -> "LiveQueues":
        """Build from a look at the cluster; with one copy, the longest member's end counts."""
        members: dict[str, int] = {}
        for name, queue in state.queues.items():
            count = members.get(queue.broker_name, copies)
            members[queue.broker_name] = min(count, state.bounds[name].members)
        ends = {
            name: bounds.longest if copies == 1 else bounds.end
            for name, bounds in state.bounds.items()
        }
        return cls(
            {**source, "endingOffsets": json.dumps(ends)},
            tuple(sorted(name for name, count in members.items() if count >= copies)),
            tuple(
                sorted(
                    {queue.broker_name for n, queue in state.queues.items() if state.bounds[n][0]}
                )
            ),
        )


def read_live(
    spark: "SparkSession",
    live: LiveQueues,
    *,
    by_value: bool,
    by_broker: bool,
    with_properties: bool = False,
) -> "DataFrame":
    """Return the records of a live cluster, as a log of each broker, whichever member answers."""
    from pyspark.sql import functions as f

    source = READ | live.source
    rows = _rows(spark, source, by_value=by_value, with_properties=with_properties)
    rows = rows.withColumn("replica", f.lit("live"))
    return record_table(rows, f.col("broker").isin(*live.firm), by_broker=by_broker)


def live_starts(records: "DataFrame", brokers: Sequence[str]) -> dict[str, int]:
    """Return the approximate start of each broker's log: the first message that a queue has."""
    from pyspark.sql import functions as f

    if not brokers:
        return {}
    rows = records.where(f.col("broker").isin(*brokers)).groupBy("broker").agg(f.min("at"))
    return {row[0]: row[1] for row in rows.collect()}


def _rows(
    spark: "SparkSession", source: Mapping[str, str], *, by_value: bool, with_properties: bool
) -> "DataFrame":
    from rocketbed.pipeline.schema import records_ddl

    key = "body" if by_value else "uniq_key"
    columns = [*RECORD_COLUMNS, key, *(["properties"] if with_properties else [])]
    reader = spark.read.format("rocketbed").schema(records_ddl(columns)).options(**source)
    rows = reader.load()
    if with_properties and not by_value:
        rows = rows.withColumn("uniq_key", first_key())
    if by_value:
        rows = rows.withColumn("uniq_key", key_in_body()).drop("body")
    return rows


def read_entries(spark: "SparkSession", log: ReplicaLog) -> "DataFrame":
    """Return the entries of a replica's consume queues."""
    return spark.read.format("rocketbed").option("view", "consumequeue").load(log.path)


def compare_replicas(
    spark: "SparkSession", brokers: Sequence[BrokerLog], leaders: Mapping[str, ReplicaLog]
) -> list[Divergence]:
    """Return the replicas that differ from their leader in their common range, to the byte."""
    several = [broker for broker in brokers if len(broker.replicas) > 1]
    if not several:
        return []
    divergences: list[Divergence] = []
    for broker in several:
        leader = leaders[broker.broker]
        followers = [log for log in broker.replicas if log is not leader]
        for end in sorted({min(leader.end, log.end) for log in followers}):
            logs = [leader, *(log for log in followers if min(leader.end, log.end) == end)]
            start = max(log.start for log in logs)
            if start >= end:
                continue
            reader = spark.read.format("rocketbed").option("view", "blocks")
            reader = reader.option("blockBytes", BLOCK_BYTES).option("readUncommitted", "true")
            reader = reader.option("startOffset", start).option("endOffset", end)
            blocks = reader.load(",".join(log.path for log in logs))
            divergences += unequal_blocks(blocks, {broker.broker: leader.replica.name})
    by_name = {(b.broker, log.replica.name): log for b in several for log in b.replicas}
    return [_refined(divergence, by_name) for divergence in divergences]


def firm_end(ends: Sequence[int], copies: int) -> int:
    """Return the offset that at least `copies` of the logs reach; 0 if there are fewer logs."""
    if len(ends) < copies:
        return 0
    return sorted(ends, reverse=True)[copies - 1]


def has_abort(log: ReplicaLog) -> bool:
    """Return True if the node was killed, so that its queues may be unfinished."""
    return (Path(log.replica.root) / "abort").exists()


def topic_table(log: ReplicaLog) -> tuple[tuple[str, ...] | None, dict[str, int]]:
    """Return a store's topics, and the ends of deleted topics.

    The topics are None if the table of topics is unreadable. Records of a topic before the byte in
    the second value belong to a deleted topic of the same name."""
    from rocketbed.inspect import open_directory

    directory = open_directory(log.replica.root)
    try:
        table = directory.topics()
        deleted = dict(directory.marks.deleted) if directory.marks else {}
        if table is None:
            return None, deleted
        queues = (topic for topic, _ in (*directory.queues, *directory.batch_queues))
        return tuple(sorted({*table, *queues})), deleted
    finally:
        directory.close()


def _refined(divergence: Divergence, logs: Mapping[tuple[str, str], ReplicaLog]) -> Divergence:
    """Find the exact first byte of a divergence, if both files can be read here."""
    follower_file = _file_of(logs[divergence.broker, divergence.replica], divergence.first)
    leader_file = _file_of(logs[divergence.broker, divergence.leader], divergence.first)
    if follower_file is None or leader_file is None or follower_file[1] != leader_file[1]:
        return divergence
    base = follower_file[1]
    at = base + first_difference(
        follower_file[0], leader_file[0], divergence.first - base, BLOCK_BYTES
    )
    return replace(divergence, first=at)


def _file_of(log: ReplicaLog, offset: int) -> tuple[Path, int] | None:
    """Return the file that holds a byte of the log, and the file's first offset."""
    files = [file for file in log_files(log.replica) if file.start <= offset]
    return (Path(files[-1].path), files[-1].start) if files else None
