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
    """V6: in the order of the log, the offsets of each queue rise by one, starting at 0.

    If the log's start was deleted (`log_starts`, bytes by broker), a queue may begin anywhere. A
    record with several messages takes as many offsets. Records of an undecided or withdrawn
    transaction are in no queue.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    rows = records.where(in_a_queue())
    queue = Window.partitionBy("broker", "replica", "topic", "queue_id").orderBy("at")
    before = f.lag(f.col("queue_offset") + f.col("step")).over(queue)
    begins = f.lit(True)
    for broker, start in (log_starts or {}).items():
        begins = begins & ~((f.col("broker") == broker) & f.lit(start > 0))
    expected = f.coalesce(before, f.when(begins, f.lit(0)).otherwise(f.col("queue_offset")))
    wrong = rows.withColumn("expected", expected).where(f.col("expected") != f.col("queue_offset"))
    text = f.concat(
        at_place(), in_log(), f.lit(" stands where offset "), f.col("expected"), f.lit(" is due")
    )
    return Check(*DENSE, wrong.select(f.lit(False).alias("allowed"), text.alias("text")))


def in_a_queue() -> "Column":
    """Column that is true for a record that has a queue entry."""
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

    Only times of the same clock are compared: of a run of the testbed, or of a client. The stored
    place of a message counts if it is not the acknowledged one (`suspects` of V11). A lost message
    is ignored.
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
