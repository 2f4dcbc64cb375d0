"""V1, V2, V3, V11, V12: every message that was sent against every message that is stored.

A union of both sides is grouped by key once. A key whose counts and places agree needs no further
work. The other keys, usually none, are the `suspects`: only these are joined with the rows again to
say what is wrong and where.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rocketbed.pipeline.checks.findings import Check
from rocketbed.pipeline.checks.tables import KEY, at_place, in_log, user_topic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

LOST: Final = "V1", "acknowledged and lost"
RESURRECTED: Final = "V2", "refused and yet stored"
DUPLICATED: Final = "V3", "stored more often than sent"
MOVED: Final = "V11", "not where it was acknowledged"
ALTERED: Final = "V12", "another body, or never sent"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTables:
    """Input of the checks by key."""

    sends: "DataFrame | None"
    """None without a history; only V3 can be checked then."""
    records: "DataFrame"
    """Rows with keys, of one log for each broker."""
    excused: "DataFrame | None" = None
    """Keys of messages that may be missing."""
    is_whole: bool = False
    """True if the history holds every send to its topics, as the testbed's does."""
    copies: int = 1
    """Number of replicas that have to hold a message."""
    log_starts: "dict[str, int] | None" = None
    """Start of each broker's log, if retention deleted something."""


def key_checks(tables: KeyTables, *, label: str = "") -> tuple[list[Check], "DataFrame"]:
    """Return the checks, and their shared table of suspects, which the caller persists."""
    records = tables.records.where(tables.records["key"].isNotNull())
    if tables.sends is None:
        suspects = _repeated(records)
        return [_titled(DUPLICATED, label, _duplicated(suspects, records))], suspects
    sent_topics = tables.sends.select("topic").distinct()
    records = records.join(_small(sent_topics), "topic", "left_semi")
    unnamed = tables.records.join(_small(sent_topics), "topic", "left_semi")
    suspects = _suspects(tables.sends, records, is_whole=tables.is_whole).persist()
    findings = [
        (LOST, _lost(suspects, tables)),
        (RESURRECTED, _resurrected(suspects, records)),
        (DUPLICATED, _duplicated(suspects, records)),
        (MOVED, _moved(suspects, tables.sends, records)),
        (ALTERED, _altered(suspects, records, unnamed, is_whole=tables.is_whole)),
    ]
    return [_titled(title, label, table) for title, table in findings], suspects


def _titled(title: tuple[str, str], label: str, table: "DataFrame") -> Check:
    return Check(title[0], f"{title[1]}{label}", table)


def _suspects(sends: "DataFrame", records: "DataFrame", *, is_whole: bool) -> "DataFrame":
    """Return the keys whose sends and records disagree, with their counts and marks."""
    from pyspark.sql import functions as f

    whole = _sent_side(sends).unionAll(_stored_side(records))
    by_key = whole.groupBy(*KEY).agg(
        f.sum("ok").alias("ok"),
        f.sum("maybe").alias("maybe"),
        f.sum("refused").alias("refused"),
        f.sum("stored").alias("stored"),
        f.sum("firm").alias("firm"),
        f.max("sent_place").alias("sent_place"),
        f.max("stored_place").alias("stored_place"),
        f.max("sent_at").alias("sent_at"),
        f.max("stored_at").alias("stored_at"),
        f.min("crc").alias("crc_min"),
        f.max("crc").alias("crc_max"),
    )
    ok, maybe, stored = f.col("ok"), f.col("maybe"), f.col("stored")
    several = (ok > 1) | (stored > 1)
    moved = f.coalesce(f.col("sent_place") != f.col("stored_place"), f.lit(False))
    moved |= f.coalesce(f.col("sent_at") != f.col("stored_at"), f.lit(False))
    marks = {
        "is_lost": (ok > 0) & (f.col("firm") == 0),
        "is_risen": (ok + maybe == 0) & (f.col("refused") > 0) & (stored > 0),
        "is_repeated": stored > f.greatest(f.lit(1), ok + maybe),
        "is_elsewhere": (ok > 0) & (stored > 0) & (several | moved),
        "is_altered": (stored > 0) & f.coalesce(f.col("crc_min") != f.col("crc_max"), f.lit(False)),
        "is_foreign": f.lit(is_whole) & (stored > 0) & (ok + maybe + f.col("refused") == 0),
    }
    any_mark: Column = f.lit(False)
    for name, mark in marks.items():
        by_key = by_key.withColumn(name, mark)
        any_mark = any_mark | f.col(name)
    return by_key.where(any_mark)


def _sent_side(sends: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as f

    outcome = f.col("outcome")
    is_ok = outcome == "ok"
    return sends.select(
        *KEY,
        f.when(is_ok, 1).otherwise(0).alias("ok"),
        f.when(outcome.isin("weak", "unknown"), 1).otherwise(0).alias("maybe"),
        f.when(outcome == "fail", 1).otherwise(0).alias("refused"),
        f.lit(0).alias("stored"),
        f.lit(0).alias("firm"),
        f.when(is_ok, f.col("place")).alias("sent_place"),
        f.lit(None).cast("bigint").alias("stored_place"),
        f.when(is_ok, f.col("physical_offset")).alias("sent_at"),
        f.lit(None).cast("bigint").alias("stored_at"),
        f.col("body_crc").alias("crc"),
    )


def _stored_side(records: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as f

    return records.select(
        *KEY,
        *[f.lit(0).alias(name) for name in ("ok", "maybe", "refused")],
        f.lit(1).alias("stored"),
        f.when(f.col("firm"), 1).otherwise(0).alias("firm"),
        f.lit(None).cast("bigint").alias("sent_place"),
        f.col("place").alias("stored_place"),
        f.lit(None).cast("bigint").alias("sent_at"),
        f.col("physical_offset").alias("stored_at"),
        plain_crc().alias("crc"),
    )


def plain_crc() -> "Column":
    """Column with the checksum of the body that was sent; null if it is stored compressed."""
    from pyspark.sql import functions as f

    packed = f.col("sys_flag").bitwiseAND(1) != 0
    return f.when(~packed, f.col("body_crc").cast("bigint"))


def _repeated(records: "DataFrame") -> "DataFrame":
    """Return the keys that are stored more than once in a user topic, without using a history."""
    from pyspark.sql import functions as f

    counted = records.where(user_topic()).groupBy(*KEY).agg(f.count("*").alias("stored"))
    none = f.lit(0)
    return counted.where("stored > 1").select(
        "*", none.alias("ok"), none.alias("maybe"), f.lit(True).alias("is_repeated")
    )


def _lost(suspects: "DataFrame", tables: KeyTables) -> "DataFrame":
    from pyspark.sql import functions as f

    assert tables.sends is not None
    lost = suspects.where("is_lost").select(*KEY, "stored")
    rows = tables.sends.where(f.col("outcome") == "ok").join(lost, list(KEY))
    allowed = f.lit(False)
    if tables.excused is not None:
        excused = tables.excused.select("uniq_key", f.lit(True).alias("excused"))
        rows = rows.join(_small(excused), "uniq_key", "left")
        allowed = f.coalesce(f.col("excused"), f.lit(False))
    for broker, start in (tables.log_starts or {}).items():
        of_broker = f.coalesce(f.col("broker"), f.lit(broker)) == broker
        expired = of_broker & (f.col("physical_offset") < start)
        allowed = allowed | f.coalesce(expired, f.lit(False))
    few = f.concat(f.lit(" is held by fewer than "), f.lit(str(tables.copies)), f.lit(" replicas"))
    ending = f.when(f.col("stored") > 0, few).otherwise(f.lit(" is in no log"))
    text = f.concat(
        f.lit("key "), f.col("uniq_key"), f.lit(", acknowledged at "), at_place(), ending
    )
    return rows.select(allowed.alias("allowed"), text.alias("text"))


def _resurrected(suspects: "DataFrame", records: "DataFrame") -> "DataFrame":
    risen = suspects.where("is_risen").select(*KEY)
    return _sentences(records.join(risen, list(KEY)), "refused to its producer, is at ")


def _duplicated(suspects: "DataFrame", records: "DataFrame") -> "DataFrame":
    """Return a finding for each key that is stored too often."""
    from pyspark.sql import functions as f

    often = suspects.where("is_repeated").select(*KEY, "stored", "ok", "maybe")
    places = f.array_sort(f.collect_list(f.concat(at_place(), in_log())))
    grouped = records.join(often, list(KEY)).groupBy(*KEY, "stored", "ok", "maybe")
    sends = f.col("ok") + f.col("maybe")
    text = f.concat(
        f.col("stored").cast("string"),
        f.lit(" times stored, "),
        f.when(sends > 0, f.concat(sends.cast("string"), f.lit(" times sent: "))).otherwise(
            f.lit("under one key: ")
        ),
        f.array_join(f.slice("places", 1, 4), ", "),
    )
    table = grouped.agg(places.alias("places"))
    return table.select(f.lit(False).alias("allowed"), text.alias("text"))


def _moved(suspects: "DataFrame", sends: "DataFrame", records: "DataFrame") -> "DataFrame":
    """Return a finding for each message that is stored, but not where it was acknowledged."""
    from pyspark.sql import functions as f

    doubtful = suspects.where("is_elsewhere").select(*KEY)
    in_queue, at = f.col("place"), f.col("physical_offset")
    has_position = in_queue.isNotNull() | at.isNotNull()
    acked = sends.where((f.col("outcome") == "ok") & has_position)
    acked = acked.join(doubtful, list(KEY), "left_semi")
    stored = records.join(doubtful, list(KEY), "left_semi")
    stored_places = stored.select(
        *[f.col(name).alias(f"stored_{name}") for name in (*KEY, "place", "physical_offset")]
    )
    same = f.coalesce(in_queue == f.col("stored_place"), in_queue.isNull())
    same &= f.coalesce(at == f.col("stored_physical_offset"), at.isNull())
    for name in KEY:
        same &= f.col(name) == f.col(f"stored_{name}")
    missing = acked.join(stored_places, same, "left_anti")
    where = stored.groupBy(*KEY).agg(f.first(f.concat(at_place(), in_log())).alias("where"))
    text = f.concat(
        f.lit("key "),
        f.col("uniq_key"),
        f.lit(", acknowledged at "),
        at_place(),
        f.coalesce(f.concat(f.lit(" (log "), at.cast("string"), f.lit(")")), f.lit("")),
        f.lit(", is at "),
        f.col("where"),
    )
    rows = missing.join(where, list(KEY))
    return rows.select(f.lit(False).alias("allowed"), text.alias("text"))


def _altered(
    suspects: "DataFrame", records: "DataFrame", unnamed: "DataFrame", *, is_whole: bool
) -> "DataFrame":
    from pyspark.sql import functions as f

    changed = suspects.where("is_altered and not is_foreign").select(*KEY)
    findings = _sentences(
        records.join(changed, list(KEY)), "with another body than the one sent, at "
    )
    if not is_whole:
        return findings
    foreign = suspects.where("is_foreign").select(*KEY)
    strange = unnamed.where(f.col("key").isNull() & f.col("crc_ok") & f.col("reason").isNull())
    return findings.unionAll(
        _sentences(records.join(foreign, list(KEY)), "that was never sent, at ")
    ).unionAll(_sentences(strange, "whose body names no writer, at "))


def _sentences(rows: "DataFrame", problem: str) -> "DataFrame":
    from pyspark.sql import functions as f

    text = f.concat(at_place(f"a message, {problem}"), in_log())
    return rows.select(f.lit(False).alias("allowed"), text.alias("text"))


def _small(table: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as f

    return f.broadcast(table)
