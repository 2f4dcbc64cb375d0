"""V6 and V7: queues without holes, and messages in the order in which they were sent."""

from typing import TYPE_CHECKING, Final

from rocketbed.pipeline.checks.findings import Check
from rocketbed.pipeline.checks.tables import (
    KEY,
    SYS_PREPARED,
    SYS_ROLLBACK,
    SYS_TRANSACTION,
    at_place,
    in_log,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DENSE: Final = "V6", "queue offsets with a hole or out of order"
ORDER: Final = "V7", "sent later, stored before"


def dense_queues(records: "DataFrame", log_starts: dict[str, int] | None = None) -> Check:
    """V6: in the order of the log the offsets of each queue rise by one, from 0 on.

    Where the log's start is gone (`log_starts`, bytes by broker) a queue may begin anywhere. A
    record that holds several messages takes as many offsets; those of an undecided or withdrawn
    transaction have no queue.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    rows = records.where(in_a_queue())
    queue = Window.partitionBy("broker", "replica", "topic", "queue_id").orderBy("at")
    before = f.lag(f.col("queue_offset") + f.col("step")).over(queue)
    begins = f.lit(True)
    for broker, start in (log_starts or {}).items():
        begins = begins & ~((f.col("broker") == broker) & f.lit(start > 0))
    due = f.coalesce(before, f.when(begins, f.lit(0)).otherwise(f.col("queue_offset")))
    wrong = rows.withColumn("due", due).where(f.col("due") != f.col("queue_offset"))
    text = f.concat(
        at_place(), in_log(), f.lit(" stands where offset "), f.col("due"), f.lit(" is due")
    )
    return Check(*DENSE, wrong.select(f.lit(False).alias("allowed"), text.alias("text")))


def in_a_queue() -> "Column":
    """Whether a record is one that a queue has an entry for."""
    from pyspark.sql import functions as f

    transaction = f.col("sys_flag").bitwiseAND(SYS_TRANSACTION)
    return f.col("queue_offset").isNotNull() & ~transaction.isin(SYS_PREPARED, SYS_ROLLBACK)


def send_order(
    sends: "DataFrame",
    records: "DataFrame",
    suspects: "DataFrame",
    excused: "DataFrame | None" = None,
) -> Check:
    """V7: in one queue, a send that returned before another began has the lower queue offset.

    Only times of one clock are compared: of one run of the testbed, or of one client. A message
    counts where it is, if that is not where it was acknowledged (`suspects` of V11); one that is
    gone counts not.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    timed = f.col("sent_ns").isNotNull() & f.col("done_ns").isNotNull()
    acked = sends.where((f.col("outcome") == "ok") & f.col("place").isNotNull() & timed)
    doubtful = suspects.where("is_lost or is_elsewhere").select(*KEY, "stored")
    strays = records.join(doubtful.where("stored = 1").select(*KEY), list(KEY))
    actual = strays.select(
        *KEY, f.col("queue_id").alias("now_queue"), f.col("queue_offset").alias("now_offset")
    )
    acked = acked.join(doubtful, list(KEY), "left").where("coalesce(stored, 1) > 0")
    acked = acked.join(actual, list(KEY), "left")
    acked = acked.withColumn("queue_id", f.coalesce("now_queue", "queue_id"))
    acked = acked.withColumn("queue_offset", f.coalesce("now_offset", "queue_offset"))
    if excused is not None:
        acked = acked.join(f.broadcast(excused.select("uniq_key")), "uniq_key", "left_anti")
    queue = Window.partitionBy("clock", "broker", "topic", "queue_id").orderBy("queue_offset")
    latest = f.max(f.struct("sent_ns", "uniq_key", f.col("queue_offset").alias("at")))
    rows = acked.withColumn("before", latest.over(queue.rowsBetween(Window.unboundedPreceding, -1)))
    wrong = rows.where(f.col("before.sent_ns") > f.col("done_ns"))
    text = f.concat(
        f.lit("key "),
        f.col("before.uniq_key"),
        f.lit(" was sent after key "),
        f.col("uniq_key"),
        f.lit(" had been acknowledged, and stands before it, at offset "),
        f.col("before.at"),
        f.lit(": "),
        at_place(),
    )
    return Check(*ORDER, wrong.select(f.lit(False).alias("allowed"), text.alias("text")))
