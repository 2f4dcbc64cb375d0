"""V8: every record has its entry in the consume queue, and every entry its record.

Both sides are reckoned up for each queue (how many, and the combined hash of place and size), which
needs no join; only the queues whose sums differ are compared entry by entry.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pipeline.checks.found import Check
from pipeline.checks.order import in_a_queue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUEUES: Final = "V8", "consume queue and log disagree"
QUEUE: Final = ("topic", "queue_id")
LIGHT_TOPIC: Final = "%LMQ%"
"""Queues that a message enters besides its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSide:
    """One replica's queues, and the records that they have to agree with."""

    label: str
    """`broker/replica`."""
    entries: "DataFrame"
    """The view `consumequeue` of this replica."""
    records: "DataFrame"
    """The records of its log."""
    start: int
    """Of its log, bytes: entries before it are of records that expired."""
    end: int
    topics: tuple[str, ...] | None = None
    """Topics that the node knows; records of others are of deleted ones. None: not known."""
    deleted: Mapping[str, int] = field(default_factory=dict)
    """By topic: records before this byte are of one that was deleted."""
    may_lag: bool = False
    """Whether the node was killed: queues may end before the log, or go beyond it."""


def queue_entries(side: QueueSide) -> Check:
    """V8 for one replica."""
    from pyspark.sql import functions as f

    in_range = (f.col("physical_offset") >= side.start) & (f.col("physical_offset") < side.end)
    entries = side.entries.where(~f.col("topic").startswith(LIGHT_TOPIC))
    beyond = entries.where(f.col("physical_offset") >= side.end)
    entries = entries.where(in_range)
    records = side.records.where(in_a_queue() & in_range & f.col("topic").isNotNull())
    if side.topics is not None:
        records = records.where(f.col("topic").isin(*side.topics))
    for topic, below in side.deleted.items():
        records = records.where((f.col("topic") != topic) | (f.col("physical_offset") >= below))
    sums = _sums(records, "log").join(_sums(entries, "queue"), list(QUEUE), "full")
    names = [f"{side_}_{what}" for side_ in ("log", "queue") for what in ("count", "hash")]
    sums = sums.select(*QUEUE, *[f.coalesce(name, f.lit(0)).alias(name) for name in names])
    unequal = sums.where("log_count <> queue_count or log_hash <> queue_hash").select(*QUEUE)
    place = [*QUEUE, "queue_offset", "physical_offset", "size"]
    unequal = f.broadcast(unequal)
    log = records.join(unequal, list(QUEUE), "left_semi").select(*place)
    queue = entries.join(unequal, list(QUEUE), "left_semi").select(*place)
    missing = log.join(queue, place, "left_anti")
    stray = queue.join(log, place, "left_anti")
    lagging = f.lit(False)
    if side.may_lag:
        dispatched = entries.agg(f.max("physical_offset").alias("dispatched"))
        missing = missing.crossJoin(f.broadcast(dispatched))
        lagging = f.col("physical_offset") > f.coalesce("dispatched", f.lit(-1))
    found = (
        _sentences(missing, lagging, f"has no entry in the queues of {side.label}")
        .unionAll(_sentences(stray, f.lit(False), f"is in the queues of {side.label} alone"))
        .unionAll(_sentences(beyond, f.lit(side.may_lag), f"is beyond the log's end, {side.label}"))
    )
    return Check(QUEUES[0], f"{QUEUES[1]}: {side.label}", found, "entries")


def _sums(rows: "DataFrame", name: str) -> "DataFrame":
    from pyspark.sql import functions as f

    hashed = f.xxhash64("queue_offset", "physical_offset", f.col("size").cast("int"))
    return rows.groupBy(*QUEUE).agg(
        f.count("*").alias(f"{name}_count"), f.bit_xor(hashed).alias(f"{name}_hash")
    )


def _sentences(rows: "DataFrame", allowed: object, what: str) -> "DataFrame":
    from pyspark.sql import functions as f

    text = f.concat(
        f.col("topic"),
        f.lit("/"),
        f.col("queue_id"),
        f.lit(" offset "),
        f.col("queue_offset"),
        f.lit(" (log "),
        f.col("physical_offset"),
        f.lit(", "),
        f.col("size"),
        f.lit(f" bytes) {what}"),
    )
    return rows.select(allowed.alias("allowed"), text.alias("text"))  # type: ignore[attr-defined]
