"""Checksums of consume queues, so that millions of entries need not become rows.

Two sums of products show whether entries and records are the same set: log offset times queue
offset, both modulo primes. Unlike a sum or an exclusive-or of the log offsets alone, they change
when two entries are swapped. Executors sum up the entries with numpy, Spark the records.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import Column, DataFrame, SparkSession

    from rocketbed.pipeline.jobs.inputs import ReplicaLog

PLACE_PRIME: Final = 2_147_483_629
SUM_PRIME: Final = 2_147_483_587
"""Less than 2^31: 4,000 million entries of a queue can be summed up in 63 bits."""
SUMS_DDL: Final = (
    "label string, topic string, queue_id int, entries bigint, first bigint, second bigint,"
    " beyond bigint"
)
LIGHT_TOPIC: Final = "%LMQ%"
"""Prefix of the queues that a message enters in addition to its own."""


def entry_sums(spark: "SparkSession", logs: "Sequence[ReplicaLog]") -> "DataFrame":
    """Return the sums for each queue of these replicas, over entries within the log's range.

    `beyond` counts the entries that point behind the log's end.
    """
    from rocketbed.pipeline.files.decode import Selection
    from rocketbed.pipeline.files.views import plan_view
    from rocketbed.pipeline.options import Options

    work: list[tuple[str, int, int, Any]] = []
    for log in logs:
        options = Options(path=log.path, view="consumequeue")
        parts = plan_view(options, Selection(), [(log.replica, log.end)])
        work += [(log.label, log.start, log.end, part) for part in parts]

    def reckon(batches: "Iterator[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from part_sums(*work[number])

    return spark.range(0, len(work), 1, max(1, len(work))).mapInArrow(reckon, SUMS_DDL)


def part_sums(label: str, start: int, end: int, part: Any) -> "Iterator[pyarrow.RecordBatch]":
    """Yield the sums of a part of the view `consumequeue`, one batch for each of its batches."""
    from rocketbed.pipeline.files.decode import Selection
    from rocketbed.pipeline.files.views import read_view
    from rocketbed.pipeline.options import Options
    from rocketbed.pipeline.schema import arrow_schema

    options = Options(path="-", view="consumequeue")
    for batch in read_view(part, arrow_schema("consumequeue"), options, Selection()):
        yield batch_sums(label, start, end, batch)


def batch_sums(label: str, start: int, end: int, batch: "pyarrow.RecordBatch") -> Any:
    """Return the sums of a batch of entries, by topic and queue."""
    import numpy
    import pyarrow

    places = numpy.asarray(batch.column("physical_offset")).astype(numpy.int64)
    slots = numpy.asarray(batch.column("queue_offset")).astype(numpy.int64)
    sizes = numpy.asarray(batch.column("size")).astype(numpy.int64)
    inside = ((places >= start) & (places < end)).astype(numpy.int64)
    first = (places % PLACE_PRIME) * ((slots + 1) % PLACE_PRIME) % SUM_PRIME
    second = ((places + sizes) % PLACE_PRIME) * ((slots + 7) % PLACE_PRIME) % SUM_PRIME
    table = pyarrow.table(
        {
            "topic": batch.column("topic"),
            "queue_id": batch.column("queue_id"),
            "entries": inside,
            "first": first * inside,
            "second": second * inside,
            "beyond": (places >= end).astype(numpy.int64),
        }
    )
    names = ("entries", "first", "second", "beyond")
    sums = table.group_by(["topic", "queue_id"]).aggregate([(name, "sum") for name in names])
    columns = [pyarrow.repeat(pyarrow.scalar(label), sums.num_rows)]
    columns += [sums.column(name).combine_chunks() for name in ("topic", "queue_id")]
    columns += [sums.column(f"{name}_sum").combine_chunks() for name in names]
    fields = [piece.split()[0] for piece in SUMS_DDL.split(", ")]
    return pyarrow.RecordBatch.from_arrays(columns, names=fields)


def record_sums(records: "DataFrame") -> "DataFrame":
    """Return the same sums over records, by topic and queue."""
    from pyspark.sql import functions as f

    return records.groupBy("topic", "queue_id").agg(
        f.count("*").alias("records"),
        f.sum(_product("physical_offset", 1)).alias("their_first"),
        f.sum(_product("physical_offset + size", 7)).alias("their_second"),
    )


def unequal_labels(
    entries: "DataFrame", records: "Mapping[tuple[str, ...], DataFrame]"
) -> "DataFrame":
    """Return the labels of replicas whose queues and records have different sums.

    `records` has, by labels of replicas, the records for which these need entries.
    """
    from pyspark.sql import functions as f

    total = entries.where(~f.col("topic").startswith(LIGHT_TOPIC))
    total = total.groupBy("label", "topic", "queue_id").agg(
        *[f.sum(name).alias(name) for name in ("entries", "first", "second", "beyond")]
    )
    unequal: DataFrame | None = None
    for labels, table in records.items():
        names = f.explode(f.array(*[f.lit(label) for label in labels])).alias("label")
        theirs = record_sums(table).select(names, "*")
        ours = total.where(f.col("label").isin(*labels))
        both = ours.join(theirs, ["label", "topic", "queue_id"], "full").fillna(0)
        same = (f.col("entries") == f.col("records")) & (f.col("beyond") == 0)
        for entry_sum, record_sum in (("first", "their_first"), ("second", "their_second")):
            same = same & (f.col(entry_sum) == f.col(record_sum))
        labels_unequal = both.where(~same).select("label")
        unequal = labels_unequal if unequal is None else unequal.unionAll(labels_unequal)
    assert unequal is not None
    return unequal.distinct()


def _product(place: str, add: int) -> "Column":
    from pyspark.sql import functions as f

    return f.expr(
        f"pmod(pmod(cast({place} as bigint), {PLACE_PRIME}L)"
        f" * pmod(queue_offset + {add}, {PLACE_PRIME}L), {SUM_PRIME}L)"
    )
