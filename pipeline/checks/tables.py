"""The input tables of the checks of `verify`, and the keys by which they are joined.

A message is identified by its topic and its unique key, as two hashes (96 bits together), so that
joins and groups use numbers. With a thousand million messages, two of them share both hashes with a
chance of 1 in 10^11.

`sends` has the columns of a history's sends with `topic_key`, `key` (hashes), `place` (hash of
broker, topic, queue and queue offset). `records` has a row for each record of a log: `broker,
replica, topic, queue_id, queue_offset, physical_offset, size, sys_flag, body_crc, crc_ok, segment,
reason` and `uniq_key` hashed in the same way, with `firm`: true if the required number of replicas
hold it. `reason` is set if bytes are not a record, or a record with a wrong checksum.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY: Final = ("key", "key2")
"""Columns that identify a message."""
SYSTEM_TOPICS: Final = ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_", "rmq_sys_", "%RETRY%", "%DLQ%", "TBW102")
"""Prefixes of topics in which a broker stores a message again under its original key."""
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
"""Columns that are read of each record, in addition to the key's column."""


def with_keys(table: "DataFrame") -> "DataFrame":
    """Add the hashes of topic and unique key, null for a row without a key."""
    from pyspark.sql import functions as f

    named = f.col("uniq_key").isNotNull() & f.col("topic").isNotNull()
    return table.withColumn("key", f.when(named, f.xxhash64("topic", "uniq_key"))).withColumn(
        "key2", f.when(named, f.hash("uniq_key", "topic"))
    )


def place(*, by_broker: bool) -> "Column":
    """Column with a hash of a message's place in its queue; null if the place is unknown."""
    from pyspark.sql import functions as f

    names = [*(["broker"] if by_broker else []), "topic", "queue_id", "queue_offset"]
    is_known = f.lit(True)
    for name in names:
        is_known = is_known & f.col(name).isNotNull()
    return f.when(is_known, f.xxhash64(*names))


def send_table(history: "DataFrame", *, by_broker: bool = False) -> "DataFrame":
    """Return the sends of a history, with keys. `by_broker`: it has the broker of each send."""
    from pyspark.sql import functions as f

    sends = with_keys(history.where(f.col("kind") == "send"))
    return sends.withColumn("place", place(by_broker=by_broker)).drop("kind", "group")


def record_table(rows: "DataFrame", firm: "Column", *, by_broker: bool = False) -> "DataFrame":
    """Return the input table of the checks, from rows of the data source with `uniq_key`."""
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
    """Column with the unique value in a testbed's body (`chaos.evidence.workload`), as text."""
    from pyspark.sql import functions as f

    body = f.col("body")
    value = f.conv(f.hex(f.substring(body, 5, 8)), 16, 10)
    is_ours = (f.substring(body, 1, 4) == f.lit(TESTBED_BODY)) & f.col("crc_ok")
    return f.when(is_ours, value)


def first_key() -> "Column":
    """Column with the first UNIQ_KEY of the properties: the message's own, before a batch's."""
    from pyspark.sql import functions as f

    text = f.concat(f.lit("\x02"), f.col("properties"))
    key = f.regexp_extract(text, "\x02UNIQ_KEY\x01([^\x02]*)", 1)
    return f.when(key != "", key)


def inner_messages() -> "Column":
    """Column with the number of messages in a record; more than 1 only for an inner batch."""
    from pyspark.sql import functions as f

    text = f.concat(f.lit("\x02"), f.col("properties"))
    count = f.regexp_extract(text, "\x02INNER_NUM\x01(\\d+)", 1)
    batched = f.col("sys_flag").bitwiseAND(SYS_INNER_BATCH) != 0
    return f.when(batched & (count != ""), count.cast("int")).otherwise(f.lit(1))


def user_topic() -> "Column":
    """Column that is true for a topic in which only users' messages are written."""
    from pyspark.sql import functions as f

    ours = f.lit(False)
    for beginning in SYSTEM_TOPICS:
        ours = ours | f.col("topic").startswith(beginning)
    return ~ours


def at_place(*before: "Column | str") -> "Column":
    """Column with `topic/queue offset N` of a record, after the words in `before`."""
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
