"""The tables that the checks of `verify` work on, and the keys by which they are joined.

A message is known by its topic and its unique key, as two hashes (96 bits together): joins and
groups then run over numbers. With a thousand million messages two of them share both with a chance
of 1 in 10^11.

`sends` has the columns of a history's sends with `topic_key`, `key` (hashes), `place` (hash of
broker, topic, queue and queue offset). `records` has a row for each record of a log: `broker,
replica, topic, queue_id, queue_offset, physical_offset, size, sys_flag, body_crc, crc_ok, segment,
reason` and `uniq_key` hashed in the same way, with `firm`: whether as many replicas hold it as were
asked for. `reason` is set where bytes are no record, or one with a wrong checksum.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY: Final = ("key", "key2")
"""What names a message."""
SYSTEM_TOPICS: Final = ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_", "rmq_sys_", "%RETRY%", "%DLQ%", "TBW102")
"""Beginnings of topics in which a broker writes a message again under its own key."""
SYS_COMPRESSED: Final = 0x1
SYS_TRANSACTION: Final = 0xC
SYS_PREPARED: Final = 0x4
SYS_ROLLBACK: Final = 0xC
SYS_INNER_BATCH: Final = 0x80
TESTBED_BODY: Final = b"RBW1"
RECORD_COLUMNS: Final = (
    "broker",
    "replica",
    "topic",
    "queue_id",
    "queue_offset",
    "physical_offset",
    "size",
    "sys_flag",
    "body_crc",
    "crc_ok",
    "segment",
    "_corrupt",
)
"""What is read of each record, with the key's own column."""


def with_keys(table: "DataFrame") -> "DataFrame":
    """Add the hashes of topic and unique key, null for a row without a key."""
    from pyspark.sql import functions as f

    named = f.col("uniq_key").isNotNull() & f.col("topic").isNotNull()
    return table.withColumn("key", f.when(named, f.xxhash64("topic", "uniq_key"))).withColumn(
        "key2", f.when(named, f.hash("uniq_key", "topic"))
    )


def place(*, by_broker: bool) -> "Column":
    """A hash of where a message is in its queue; null when that is not known."""
    from pyspark.sql import functions as f

    names = [*(["broker"] if by_broker else []), "topic", "queue_id", "queue_offset"]
    known = f.lit(True)
    for name in names:
        known = known & f.col(name).isNotNull()
    return f.when(known, f.xxhash64(*names))


def send_table(history: "DataFrame", *, by_broker: bool = False) -> "DataFrame":
    """The sends of a history, with keys. `by_broker`: it says which broker each went to."""
    from pyspark.sql import functions as f

    sends = with_keys(history.where(f.col("kind") == "send"))
    return sends.withColumn("place", place(by_broker=by_broker)).drop("kind", "group")


def record_table(rows: "DataFrame", firm: "Column", *, by_broker: bool = False) -> "DataFrame":
    """Rows of the data source, with `uniq_key`, as the checks want them."""
    from pyspark.sql import functions as f

    reason = f.col("_corrupt.reason")
    step = inner_messages() if "properties" in rows.columns else f.lit(1)
    rows = with_keys(rows).withColumn("place", place(by_broker=by_broker))
    return rows.select(
        *[name for name in RECORD_COLUMNS if name != "_corrupt"],
        f.coalesce("physical_offset", "_corrupt.offset").alias("at"),
        reason.alias("reason"),
        *KEY,
        "place",
        step.alias("step"),
        firm.alias("firm"),
    )


def key_in_body() -> "Column":
    """The unique value in a body of the testbed's workload (`chaos.evidence.workload`), as text."""
    from pyspark.sql import functions as f

    body = f.col("body")
    value = f.conv(f.hex(f.substring(body, 5, 8)), 16, 10)
    is_ours = (f.substring(body, 1, 4) == f.lit(TESTBED_BODY)) & f.col("crc_ok")
    return f.when(is_ours, value)


def first_key() -> "Column":
    """The first UNIQ_KEY among the properties: a message's own, where a batch's follows it."""
    from pyspark.sql import functions as f

    text = f.concat(f.lit("\x02"), f.col("properties"))
    key = f.regexp_extract(text, "\x02UNIQ_KEY\x01([^\x02]*)", 1)
    return f.when(key != "", key)


def inner_messages() -> "Column":
    """How many messages a record holds: more than 1 only for one that was batched inside."""
    from pyspark.sql import functions as f

    text = f.concat(f.lit("\x02"), f.col("properties"))
    count = f.regexp_extract(text, "\x02INNER_NUM\x01(\\d+)", 1)
    batched = f.col("sys_flag").bitwiseAND(SYS_INNER_BATCH) != 0
    return f.when(batched & (count != ""), count.cast("int")).otherwise(f.lit(1))


def user_topic() -> "Column":
    """Whether a topic is one in which a broker writes nothing of its own accord."""
    from pyspark.sql import functions as f

    ours = f.lit(False)
    for beginning in SYSTEM_TOPICS:
        ours = ours | f.col("topic").startswith(beginning)
    return ~ours


def at_place(*before: "Column | str") -> "Column":
    """`topic/queue offset N (log M of broker/replica)` of a record, after other words."""
    from pyspark.sql import functions as f

    words = [f.lit(word) if isinstance(word, str) else word for word in before]
    return f.concat(
        *words,
        f.coalesce("topic", f.lit("?")),
        f.lit("/"),
        f.coalesce(f.col("queue_id").cast("string"), f.lit("?")),
        f.lit(" offset "),
        f.coalesce(f.col("queue_offset").cast("string"), f.lit("?")),
    )


def in_log() -> "Column":
    from pyspark.sql import functions as f

    at = f.col("at").cast("string")
    return f.concat(
        f.lit(" (log "),
        at,
        f.lit(" of "),
        f.col("broker"),
        f.lit("/"),
        f.col("replica"),
        f.lit(")"),
    )
