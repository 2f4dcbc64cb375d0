"""V5 and V10: the log is a sequence of records without a gap, and every checksum is right."""

from typing import TYPE_CHECKING, Final

from rocketbed.pipeline.checks.findings import Check
from rocketbed.pipeline.checks.tables import at_place, in_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CHAIN: Final = "V5", "a gap, an overlap or bytes that are no record"
CHECKSUM: Final = "V10", "stored checksum wrong"
WRONG_BODY: Final = ("crc_mismatch", "bad_body")
"""Reasons that leave a record a record, with a wrong body."""


def whole_chain(records: "DataFrame") -> Check:
    """V5: the log consists of records, each beginning where the previous one ends.

    The reader reports other bytes itself. As an independent check at no cost, the sizes of a file's
    records have to add up to the range that they cover.
    """
    from pyspark.sql import functions as f

    is_gap = f.col("reason").isNotNull() & ~f.col("reason").isin(*WRONG_BODY)
    gap_text = f.concat(
        f.col("size").cast("string"),
        f.lit(" bytes that are no record, "),
        f.col("reason"),
        f.lit(","),
        in_log(),
    )
    gaps = records.where(is_gap).select(gap_text.alias("text"))
    end = f.col("at") + f.col("size")
    files = records.groupBy("broker", "replica", "segment").agg(
        f.min("at").alias("first"),
        f.max(end).alias("last"),
        f.sum("size").alias("sum"),
        f.max(is_gap.cast("int")).alias("has_gap"),
    )
    uneven = files.where("last - first <> sum and has_gap = 0")
    text = f.concat(
        f.lit("the records of file "),
        f.col("segment"),
        f.lit(" cover "),
        f.col("last") - f.col("first"),
        f.lit(" bytes and have "),
        f.col("sum"),
        f.lit(", of "),
        f.col("broker"),
        f.lit("/"),
        f.col("replica"),
    )
    whole = gaps.unionAll(uneven.select(text.alias("text")))
    return Check(*CHAIN, whole.select(f.lit(False).alias("allowed"), "text"), "records")


def checksums(records: "DataFrame", damaged: tuple[str, ...] = ()) -> Check:
    """V10: bodies match their stored checksums. Damage that a run did deliberately is allowed."""
    from pyspark.sql import functions as f

    wrong = records.where((f.col("crc_ok") == f.lit(False)) | f.col("reason").isin(*WRONG_BODY))
    allowed = f.col("replica").isin(*damaged) if damaged else f.lit(False)
    text = f.concat(f.lit("the body of "), at_place(), in_log(), f.lit(" has another checksum"))
    return Check(*CHECKSUM, wrong.select(allowed.alias("allowed"), text.alias("text")))
