"""Statistics of segments, made by the job `stats` and used to skip segments in reads.

Below one path each store has one Parquet file, which is replaced atomically: it has a row with all
topics for each segment, whatever ended the job. A row is used only if it can be checked: it is of a
segment of the same store's path, at the same offset, of the same length, whose first and last
records have the same bytes. A log is written in order, so one that was truncated, recreated or
copied from elsewhere has another last record. The row of a segment that was not full yet, or that
had bytes that were not records, is written and never used.
"""

import hashlib
import os
import zlib
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import pyarrow
from pyarrow import compute

from rocketbed.inspect.files import FilePool, SegmentFile
from rocketbed.inspect.record import RECORD_SIZE_MIN
from rocketbed.pipeline.files.arrays import scalar
from rocketbed.pipeline.files.decode import Decoder, Selection
from rocketbed.pipeline.files.replicas import Replica, listed_files
from rocketbed.pipeline.files.splits import Split
from rocketbed.pipeline.files.storage import Storage
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.schema import arrow_schema

KEY: Final = b"rocketbed.statistics"
FORMAT: Final = 1
_DIGITS: Final = 8
_MARK: Final = b"%d crc=00000000" % FORMAT
"""Mark in the metadata of a file, which Parquet writes last; a checksum replaces the zeros."""
FILE_MAX: Final = 8 << 30
_FIGURES: Final[dict[str, tuple[str, str, Callable[[Iterable[int]], int]]]] = {
    "records": ("size", "count", sum),
    "messages": ("physical_offset", "count", sum),  # more than records where batch queues are
    "bytes": ("size", "sum", sum),
    "oldest_ms": ("store_timestamp", "min", min),  # of all records: clocks may go back
    "youngest_ms": ("store_timestamp", "max", max),
}
"""Figures of a topic: the column of its rows, the aggregation, and how figures of parts combine."""
_OF_TOPIC: Final = [("topic", pyarrow.string()), *((name, pyarrow.int64()) for name in _FIGURES)]
SCHEMA: Final = pyarrow.schema(
    [
        ("store", pyarrow.string()),
        ("segment", pyarrow.int64()),  # its first offset
        ("size", pyarrow.int64()),  # bytes of the file that count for the log
        ("is_full", pyarrow.bool_()),
        ("damaged", pyarrow.int64()),  # ranges that are no record, records without topic or time
        ("first_offset", pyarrow.int64()),
        ("last_offset", pyarrow.int64()),
        ("first_crc", pyarrow.int64()),
        ("last_crc", pyarrow.int64()),
        *_OF_TOPIC[1:],
        ("topics", pyarrow.list_(pyarrow.struct(_OF_TOPIC))),
    ],
    metadata={KEY: _MARK},
)
_READ: Final = Options(fail_on_data_loss=False, batch_rows=1 << 16)
_COLUMNS: Final = ("topic", "physical_offset", "size", "store_timestamp")


class SegmentIdentity(NamedTuple):
    """Identity of a segment: physical offset and checksum of its first and last records."""

    first_offset: int
    last_offset: int
    first_crc: int
    last_crc: int


class Unusable(Exception):
    """Statistics of a store cannot be used; the text is the reason."""


def store_of(replica: Replica) -> str:
    """Return the name of a store in statistics: its path."""
    root = replica.root.rstrip("/")
    return os.path.realpath(root or "/") if replica.storage.is_local else root


def file_of(store: str) -> str:
    """Return the name of a store's file."""
    return f"store-{hashlib.sha256(store.encode()).hexdigest()[:24]}.parquet"


def load(
    storage: Storage, path: str, store: str, columns: list[str] | None = None
) -> pyarrow.Table:
    """Load the rows of a store (None: all columns) from its file. Raises `Unusable`."""
    from pyarrow import parquet

    names = dict.fromkeys(["store", *(columns or SCHEMA.names)])
    try:
        data = storage.content(path, FILE_MAX)
        reader = pyarrow.BufferReader(pyarrow.py_buffer(data))
        file = parquet.ParquetFile(reader, read_dictionary=["topics.list.element.topic"])
        mark = (file.metadata.metadata or {}).get(KEY)
        if mark is None:
            raise Unusable("no statistics at all: another program wrote this Parquet file")
        format_text = mark.partition(b" ")[0].decode(errors="replace")
        if format_text != str(FORMAT):
            raise Unusable(f"of format {format_text}, not {FORMAT}")
        if mark != _mark(data, mark):
            raise Unusable("damaged")
        table = file.read(columns=list(names))
    except FileNotFoundError:
        raise Unusable("not there") from None
    except (OSError, LookupError, ValueError, pyarrow.ArrowException) as exc:
        raise Unusable(f"not readable: {' '.join(str(exc).split())}") from exc
    if compute.any(compute.not_equal(table["store"], scalar(store))).as_py():
        raise Unusable("of another store")
    return table


def packed(table: pyarrow.Table) -> bytes:
    """The file of some rows."""
    from pyarrow import parquet

    sink = pyarrow.BufferOutputStream()
    parquet.write_table(table.cast(SCHEMA), sink, compression="zstd")
    data = bytes(sink.getvalue())
    return _mark(data, _MARK).join(data.rsplit(_MARK, 1))


def _mark(data: bytes, mark: bytes) -> bytes:
    """The mark that a file should have: a checksum of all but the one that it has."""
    begin, end = data.rsplit(mark, 1)
    return _MARK[:-_DIGITS] + b"%08x" % zlib.crc32(end, zlib.crc32(begin))


def believed(table: pyarrow.Table) -> pyarrow.Table:
    """Rows of segments that were full, and all records."""
    whole = compute.and_(table["is_full"], compute.equal(table["damaged"], scalar(0)))
    return table.filter(compute.and_(whole, compute.is_valid(table["first_offset"])))


def describe(store: str, split: Split) -> pyarrow.Table | None:
    """The row of a segment, or of its part up to where it is read; all records are read. None for
    one that was deleted meanwhile.

    `store`: what the driver calls it; a task may have other links. Raises `NotAStore`.
    """
    summaries: list[pyarrow.Table] = []
    damaged = 0
    first = last = None
    for batch in Decoder(split, arrow_schema("records", _COLUMNS), _READ, Selection()).run():
        is_valid = compute.and_(batch["topic"].is_valid(), batch["store_timestamp"].is_valid())
        rows = batch.filter(is_valid)
        damaged += batch.num_rows - rows.num_rows
        if rows.num_rows:
            offsets = rows["physical_offset"]
            first = offsets[0].as_py() if first is None else first
            last = offsets[-1].as_py()
            summaries.append(_summed(rows))
    row: dict[str, Any] = {
        "store": store,
        "segment": split.base,
        "size": split.size,
        "is_full": split.is_full,
        "damaged": damaged,
        "topics": [],
    }
    if first is not None and last is not None:
        row |= identity_of(split.replica, split.file, first, last)._asdict()
        row["damaged"] += -1 in (row["first_crc"], row["last_crc"])  # it was cut meanwhile
        topics = pyarrow.concat_tables(summaries).group_by("topic")
        sums = topics.aggregate([(name, over.__name__) for name, (*_, over) in _FIGURES.items()])
        row["topics"] = sums.rename_columns(["topic", *_FIGURES]).sort_by("topic").to_pylist()
        for name, (*_, over) in _FIGURES.items():
            row[name] = over(one[name] for one in row["topics"])
    if row["damaged"] and not split.replica.storage.is_file(split.path):
        listed_files(split.replica)  # a machine may not have the store at all
        return None
    return pyarrow.Table.from_pylist([row], SCHEMA)


def identity_of(replica: Replica, file: SegmentFile, first: int, last: int) -> SegmentIdentity:
    """Return the present identity of a segment at the offsets of its first and last records; a
    checksum is -1 if no record is there."""
    pool = replica.storage.pool()
    try:
        return SegmentIdentity(
            first, last, *(_crc(pool, file, at - file.start) for at in (first, last))
        )
    finally:
        pool.close()


def _crc(pool: FilePool, file: SegmentFile, position: int) -> int:
    size = int.from_bytes(pool.read(file.path, position, 4), "big", signed=True)
    if not RECORD_SIZE_MIN <= size <= file.size - position:
        return -1
    return zlib.crc32(pool.read(file.path, position, size))


def _summed(rows: pyarrow.RecordBatch) -> pyarrow.Table:
    """Sum figures by topic over rows that are records, or messages of one record."""
    aggregations = [(column, how) for column, how, _ in _FIGURES.values()]
    sums = pyarrow.Table.from_batches([rows]).group_by("topic").aggregate(aggregations)
    columns = [sums["topic"]]
    for name, (column, how, _) in _FIGURES.items():
        values = sums[f"{column}_{how}"].combine_chunks()
        if name.endswith("_ms"):
            values = compute.divide(values.view(pyarrow.int64()), 1000)
        columns.append(values.cast(pyarrow.int64()))
    return pyarrow.table(columns, names=["topic", *_FIGURES])
