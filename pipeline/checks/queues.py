"""V8: every record has its entry in the consume queue, and every entry its record.

Checksums of both sides are compared first for each queue (`queue_sums`), which needs no join. Only
a replica whose sums differ is compared entry by entry.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rocketbed.pipeline.checks.findings import Check
from rocketbed.pipeline.checks.order import in_a_queue
from rocketbed.pipeline.checks.queue_sums import LIGHT_TOPIC, unequal_labels

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

QUEUES: Final = "V8", "consume queue and log disagree"
QUEUE: Final = ("topic", "queue_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSide:
    """The queues of a replica, and the records with which they have to agree."""

    label: str
    """`broker/replica`."""
    entries: "DataFrame"
    """The view `consumequeue` of this replica."""
    records: "DataFrame"
    """The records of its log."""
    start: int
    """Start of its log, bytes: earlier entries belong to expired records."""
    end: int
    topics: tuple[str, ...] | None = None
    """Topics that the node has; all others were deleted. None if the topics are unknown."""
    deleted: Mapping[str, int] = field(default_factory=dict)
    """By topic: records before this byte belong to a deleted topic of the same name."""
    may_lag: bool = False
    """True if the node was killed: queues may end before the log, or go beyond it."""


def unequal_sides(sums: "DataFrame", sides: Sequence[QueueSide]) -> set[str]:
    """Return the labels of the replicas whose queues and logs have different sums."""
    groups: dict[tuple[object, ...], list[QueueSide]] = {}
    for side in sides:
        alike = (id(side.records), side.start, side.end, side.topics, *side.deleted.items())
        groups.setdefault(alike, []).append(side)
    records = {
        tuple(side.label for side in members): _with_entries(members[0])
        for members in groups.values()
    }
    return {row[0] for row in unequal_labels(sums, records).collect()}


def queue_entries(side: QueueSide) -> Check:
    """V8 for one replica, entry by entry."""
    from pyspark.sql import functions as f

    place = [*QUEUE, "queue_offset", "physical_offset", "size"]
    entries = side.entries.where(~f.col("topic").startswith(LIGHT_TOPIC)).select(*place)
    beyond = entries.where(f.col("physical_offset") >= side.end)
    queue = entries.where(_in_range(side))
    log = _with_entries(side).select(*place)
    missing = log.join(queue, place, "left_anti")
    stray = queue.join(log, place, "left_anti")
    lagging = f.lit(False)
    if side.may_lag:
        dispatched = entries.agg(f.max("physical_offset").alias("dispatched"))
        missing = missing.crossJoin(f.broadcast(dispatched))
        lagging = f.col("physical_offset") > f.coalesce("dispatched", f.lit(-1))
    findings = (
        _sentences(missing, lagging, f"has no entry in the queues of {side.label}")
        .unionAll(_sentences(stray, f.lit(False), f"is in the queues of {side.label} alone"))
        .unionAll(_sentences(beyond, f.lit(side.may_lag), f"is beyond the log's end, {side.label}"))
    )
    return Check(QUEUES[0], f"{QUEUES[1]}: {side.label}", findings, "entries")


def _with_entries(side: QueueSide) -> "DataFrame":
    """Return the records that need a queue entry."""
    from pyspark.sql import functions as f

    records = side.records.where(in_a_queue() & _in_range(side) & f.col("topic").isNotNull())
    if side.topics is not None:
        records = records.where(f.col("topic").isin(*side.topics))
    for topic, below in side.deleted.items():
        records = records.where((f.col("topic") != topic) | (f.col("physical_offset") >= below))
    return records


def _in_range(side: QueueSide) -> "Column":
    from pyspark.sql import functions as f

    return (f.col("physical_offset") >= side.start) & (f.col("physical_offset") < side.end)


def _sentences(rows: "DataFrame", allowed: "Column", problem: str) -> "DataFrame":
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
        f.lit(f" bytes) {problem}"),
    )
    return rows.select(allowed.alias("allowed"), text.alias("text"))
