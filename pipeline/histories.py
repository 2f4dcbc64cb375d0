"""Histories of clients as tables: their requests, and the answers that they got.

Three forms are read: the testbed's own file (`chaos.evidence.history`), JSON lines, and Arrow or
Parquet files with the same columns as the JSON. A line of JSON is a send

    {"client": "p1", "uniq_key": "7F00..", "topic": "T", "queue_id": 0, "queue_offset": 17,
     "body_crc": 1824315850, "sent_ns": 1795144632571000000, "done_ns": 1795144632573000000,
     "outcome": "ok"}

or, with a `group`, a message that a consumer got (`queue_offset`, `received_ns`). `broker` and
`physical_offset` may be there too. Outcomes: `ok` was acknowledged, `fail` was refused for certain,
`weak` was stored but the promise was not reached, `unknown` may be there or not.

Half a history finds ghosts and overlooks losses, so a file that is not whole is refused, with the
place where it breaks off.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocketbed.pipeline.errors import PipelineError
from rocketbed.pipeline.history_files import (
    FILE_DDL,
    BadHistory,
    HistoryCut,
    arrow_batches,
    check_last_line,
    check_names,
    line_batches,
)

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

TESTBED_MAGIC: Final = b"RBHIST2\n"
SEND: Final = "send"
READ: Final = "read"
COMMIT: Final = "commit"
RESET: Final = "reset"
KINDS: Final = (SEND, READ, COMMIT, RESET)
OUTCOMES: Final = ("ok", "weak", "fail", "unknown")
COLUMNS: Final[Mapping[str, str]] = {
    "kind": "string",
    "clock": "string",
    "group": "string",
    "client": "string",
    "uniq_key": "string",
    "broker": "string",
    "topic": "string",
    "queue_id": "int",
    "queue_offset": "bigint",
    "physical_offset": "bigint",
    "body_crc": "bigint",
    "sent_ns": "bigint",
    "done_ns": "bigint",
    "outcome": "string",
}
"""The table. `kind` is send, read, commit or reset; `clock` says whose times can be compared;
for a read `done_ns` is when it was received. Offsets in messages and bytes, null if unknown."""
DDL: Final = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items())
RANGE_BYTES: Final = 32 << 20
BATCH_ROWS: Final = 16_384


@dataclass(frozen=True, slots=True)
class Names:
    """Facts about a run that a testbed's history needs."""

    brokers: Mapping[str, str] = field(default_factory=dict)
    """Node or broker name -> broker name."""
    only: str = ""
    """The broker, when there is only one."""


def kind_of(path: str | os.PathLike[str]) -> str:
    """`testbed`, `parquet`, `arrow` or `json`, by the first bytes. Raises `PipelineError`."""
    try:
        with open(path, "rb") as file:
            head = file.read(8)
    except OSError as error:
        raise PipelineError(f"the history {path} cannot be read: {error.strerror}") from error
    if head == TESTBED_MAGIC:
        return "testbed"
    if head[:4] == b"PAR1":
        return "parquet"
    return "arrow" if head[:6] == b"ARROW1" else "json"


def read_histories(
    spark: "SparkSession", paths: Sequence[str | os.PathLike[str]], names: Names | None = None
) -> "DataFrame":
    """Load all rows of the files as a table of `COLUMNS`. Raises `PipelineError`, `HistoryCut`.

    The files have to be at these places on the executors too.
    """
    if not paths:
        raise PipelineError("no history was given")
    tables = [_read_one(spark, str(Path(path).absolute()), names or Names()) for path in paths]
    whole = tables[0]
    for table in tables[1:]:
        whole = whole.unionByName(table)
    return whole


def check_history(table: "DataFrame") -> dict[str, int]:
    """Count the rows by kind and outcome. Raises `BadHistory` when some say too little."""
    from pyspark.sql import functions as f

    is_send, is_read = f.col("kind") == SEND, f.col("kind") == READ
    is_known = f.col("outcome").isin(*OUTCOMES)
    named = f.col("uniq_key").isNotNull() & f.col("topic").isNotNull()
    placed = f.col("queue_id").isNotNull() & f.col("queue_offset").isNotNull()
    grouped = f.col("group").isNotNull()
    measures = [
        f.count_if(~f.col("kind").isin(*KINDS)).alias("strange"),
        f.count_if(is_send & (~named | ~f.coalesce(is_known, f.lit(False)))).alias("nameless"),
        f.count_if(is_read & ~(grouped & placed)).alias("placeless"),
        f.count_if(is_send).alias("sends"),
        f.count_if(is_read).alias("reads"),
        f.count_if(f.col("broker").isNull()).alias("brokerless"),
        *[f.count_if(is_send & (f.col("outcome") == word)).alias(word) for word in OUTCOMES],
    ]
    counts: dict[str, int] = table.agg(*measures).collect()[0].asDict()
    if strange := counts.pop("strange"):
        raise BadHistory(
            f"{strange} rows of the history have a kind that is none of {', '.join(KINDS)}"
        )
    if nameless := counts.pop("nameless"):
        raise BadHistory(
            f"{nameless} sends of the history lack uniq_key or topic, or have an outcome that is"
            f" none of {', '.join(OUTCOMES)}"
        )
    if placeless := counts.pop("placeless"):
        raise BadHistory(f"{placeless} reads of the history lack group, queue_id or queue_offset")
    return counts


def history_batches(path: str, names: Names) -> "Iterator[pyarrow.RecordBatch]":
    """Read a testbed's history as batches of `COLUMNS`. Raises `HistoryCut`, `PipelineError`."""
    from rocketbed.chaos.evidence.history import read_history

    try:
        history = read_history(path)
    except OSError as error:
        raise PipelineError(f"the history {path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, OverflowError, IndexError) as error:
        raise HistoryCut(f"a block of the history {path} cannot be decoded: {error}") from error
    if history.cut is not None:
        raise HistoryCut(
            f"the history {path} is not whole: {history.cut} ({len(history.columns)} rows were"
            " read); nothing is judged by half a history"
        )
    brokers = {
        number: names.brokers.get(node, names.only or None)
        for number, node in history.nodes.items()
    }
    yield from _as_batches(history, brokers, names.only or None)


def arrow_schema() -> "pyarrow.Schema":
    import pyarrow

    kinds = {"string": pyarrow.string(), "int": pyarrow.int32(), "bigint": pyarrow.int64()}
    return pyarrow.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])


def _as_batches(
    history: Any, brokers: Mapping[int, str | None], only: str | None
) -> "Iterator[pyarrow.RecordBatch]":
    import pyarrow

    from rocketbed.chaos.evidence.history import Function, Outcome

    words = {
        Outcome.OK: "ok",
        Outcome.WEAK: "weak",
        Outcome.FAIL: "fail",
        Outcome.INFO: "unknown",
    }
    kinds = {
        Function.SEND: SEND,
        Function.SEND_ONEWAY: SEND,
        Function.DELIVER: READ,
        Function.COMMIT_OFFSET: COMMIT,
        Function.RESET_OFFSET: RESET,
    }
    schema = arrow_schema()
    rows: list[tuple[Any, ...]] = []
    for row in history.columns.rows():
        kind = kinds.get(row.function)
        if kind is None:
            continue
        rows.append(
            (
                kind,
                "run",
                None if kind == SEND else str(row.operation),
                str(row.process),
                str(row.value),
                brokers.get(row.node, only),
                history.topics.get(row.topic, ""),
                _or_none(row.queue),
                _or_none(row.queue_offset),
                _or_none(row.physical_offset),
                _or_none(row.body_crc),
                row.invoked_ns,
                _or_none(row.returned_ns),
                words[row.outcome],
            )
        )
        if len(rows) >= BATCH_ROWS:
            yield _batch(pyarrow, rows, schema)
            rows = []
    if rows:
        yield _batch(pyarrow, rows, schema)


def _batch(pyarrow: Any, rows: list[tuple[Any, ...]], schema: Any) -> Any:
    columns = [
        pyarrow.array(column, field.type)
        for column, field in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    return pyarrow.RecordBatch.from_arrays(columns, schema=schema)


def _or_none(number: int) -> int | None:
    return number if number >= 0 else None


def _read_one(spark: "SparkSession", path: str, names: Names) -> "DataFrame":
    kind = kind_of(path)
    if kind == "testbed":
        return _in_executor(spark, lambda: history_batches(path, names))
    if kind == "arrow":
        return _complete(_in_executor(spark, lambda: arrow_batches(path), FILE_DDL))
    if kind == "parquet":
        table = spark.read.parquet(path)
        check_names(path, table.columns)
        return _complete(table)
    check_last_line(path)
    return _complete(_from_json(spark, path))


def _from_json(spark: "SparkSession", path: str) -> "DataFrame":
    """Lines of JSON, some MiB to a task."""
    size = os.path.getsize(path)
    starts = range(0, max(size, 1), RANGE_BYTES)

    def produce(batches: Any) -> Any:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from line_batches(path, starts[number], starts[number] + RANGE_BYTES)

    return spark.range(0, len(starts), 1, len(starts)).mapInArrow(produce, FILE_DDL)


def _in_executor(spark: "SparkSession", read: Any, ddl: str = DDL) -> "DataFrame":
    """Rows that one task reads from a file."""

    def produce(_: Any) -> Any:
        yield from read()

    return spark.range(0, 1, 1, 1).mapInArrow(produce, ddl)


def _complete(table: "DataFrame") -> "DataFrame":
    """Fill in the columns that follow from others: the kind, and the clock."""
    from pyspark.sql import functions as f

    for name, kind in COLUMNS.items():
        if name not in table.columns:
            table = table.withColumn(name, f.lit(None).cast(kind))
    if "received_ns" in table.columns:
        table = table.withColumn("done_ns", f.coalesce("done_ns", "received_ns"))
    read = f.col("group").isNotNull() & f.col("outcome").isNull()
    row_kind = f.coalesce(f.col("kind"), f.when(read, READ).otherwise(SEND))
    clock = f.coalesce(f.col("clock"), f.col("client"), f.lit(""))
    table = table.withColumn("kind", row_kind).withColumn("clock", clock)
    return table.select(*[f.col(name).cast(kind) for name, kind in COLUMNS.items()])
