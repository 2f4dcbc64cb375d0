"""V9: a consumer group got every message that it passed, and ordered topics in their order."""

from typing import TYPE_CHECKING, Final

from rocketbed.pipeline.checks.findings import Check
from rocketbed.pipeline.checks.tables import KEY, with_keys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SKIPPED: Final = "V9", "passed by a group that never got it"
DISORDER: Final = "V9o", "delivered before what stands before it"
QUEUE: Final = ("broker", "topic", "queue_id")


def skipped(
    history: "DataFrame",
    records: "DataFrame",
    *,
    by_key: bool,
    by_broker: bool = False,
    excused: bool = False,
) -> Check:
    """V9: every stored message below a group's position was delivered to some member.

    The position is the committed offset; in a history without commits, the offset after the last
    delivered message. A group begins at the queue's start, or at the offset to which it was reset;
    without commits at the first message that it got. `by_key`: deliveries have message keys (as the
    testbed's), else the queue offset identifies the message. `by_broker`: the history has the
    broker of each row. `excused`: the run lost messages legally, so that positions may refer to
    the log before that loss.
    """
    from pyspark.sql import functions as f

    if not by_broker:
        no_broker = f.lit("")
        history, records = (table.withColumn("broker", no_broker) for table in (history, records))
    group = ["group", *QUEUE]
    reads = with_keys(history.where("kind = 'read'"))
    delivered = reads.groupBy(*group).agg(
        (f.max("queue_offset") + 1).alias("passed"), f.min("queue_offset").alias("first")
    )
    commits = history.where("kind = 'commit' and outcome = 'ok'")
    committed = commits.groupBy(*group).agg(f.max("queue_offset").alias("committed"))
    resets = history.where("kind = 'reset'").groupBy(*group)
    reset = resets.agg(f.max("queue_offset").alias("reset"))
    has_commits = commits.select("group").distinct().withColumn("commits", f.lit(True))
    limits = delivered.join(committed, group, "full").join(reset, group, "left")
    limits = limits.join(f.broadcast(has_commits), "group", "left")
    start = f.coalesce("reset", f.when(f.col("commits"), f.lit(0)).otherwise(f.col("first")))
    end = f.when(f.col("commits"), f.col("committed")).otherwise(f.col("passed"))
    limits = limits.select(*group, start.alias("start"), f.coalesce(end, f.lit(0)).alias("end"))
    rows = records.where(f.col("queue_offset").isNotNull())
    within = (f.col("queue_offset") >= f.col("start")) & (f.col("queue_offset") < f.col("end"))
    expected = rows.join(f.broadcast(limits), list(QUEUE)).where(within)
    columns = ["group", *KEY] if by_key else [*group, "queue_offset"]
    missed = expected.join(reads.select(*columns).distinct(), columns, "left_anti")
    text = f.concat(
        f.lit("group "),
        f.col("group"),
        f.lit(" passed "),
        f.col("topic"),
        f.lit("/"),
        f.col("queue_id"),
        f.lit(" offset "),
        f.col("queue_offset"),
        f.lit(" (up to "),
        f.col("end"),
        f.lit(") and none of its members got it"),
    )
    return Check(*SKIPPED, missed.select(f.lit(excused).alias("allowed"), text.alias("text")))


def out_of_order(history: "DataFrame", topics: tuple[str, ...], *, excused: bool = False) -> Check:
    """V9o: in a queue of an ordered topic, messages are first delivered in the order of offsets."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    reads = history.where((f.col("kind") == "read") & f.col("topic").isin(*topics))
    firsts = reads.groupBy("group", *QUEUE, "queue_offset").agg(f.min("done_ns").alias("first_ns"))
    queue = Window.partitionBy("group", *QUEUE).orderBy("queue_offset")
    latest = f.max("first_ns").over(queue.rowsBetween(Window.unboundedPreceding, -1))
    wrong = firsts.withColumn("before_ns", latest).where("before_ns > first_ns")
    text = f.concat(
        f.lit("group "),
        f.col("group"),
        f.lit(" got "),
        f.col("topic"),
        f.lit("/"),
        f.col("queue_id"),
        f.lit(" offset "),
        f.col("queue_offset"),
        f.lit(" before one that stands before it"),
    )
    return Check(*DISORDER, wrong.select(f.lit(excused).alias("allowed"), text.alias("text")))
