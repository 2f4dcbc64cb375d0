"""Rows of the views other than `records`: units of queues, index entries, blocks, files.

Each function here gives the rows of one part as columns: arrays, or one value for all rows.
"""

import os
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute

from rocketbed.inspect.consumequeue import PRE_BLANK_SIZE, BatchConsumeQueue
from rocketbed.inspect.files import SegmentFile
from rocketbed.inspect.index import ENTRY, HEADER, SLOT, IndexLayout, read_header
from rocketbed.pipeline.files.corrupt import DataLost
from rocketbed.pipeline.files.decode import Decoder, Selection
from rocketbed.pipeline.files.splits import Replica, Split
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.schema import CORRUPT, arrow_schema

UNIT: Final = numpy.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tag_code", ">i8")])
INDEX_ENTRY: Final = numpy.dtype(
    [("key_hash", ">i4"), ("physical_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]
)
CHUNK_ROWS: Final = 65_536

Columns = dict[str, Any]


@dataclass(frozen=True, slots=True)
class QueuePart:
    replica: Replica
    topic: str
    queue_id: int
    files: tuple[SegmentFile, ...]
    is_batch: bool


@dataclass(frozen=True, slots=True)
class IndexPart:
    replica: Replica
    file: SegmentFile
    layout: IndexLayout


def rows_of(part: QueuePart | IndexPart) -> Iterator[Columns]:
    """Rows of one queue or index file."""
    if isinstance(part, IndexPart):
        return _index_rows(part)
    return _batch_units(part) if part.is_batch else _units(part)


def block_rows(split: Split, options: Options) -> Iterator[Columns]:
    """Checksum of each block of a split's bytes."""
    offsets: list[int] = []
    lengths: list[int] = []
    crcs: list[int] = []
    if not split.path:
        raise DataLost(split.replica.root, split.base, "the files that held it are not there")
    at, end = split.base + split.start, split.base + split.end
    window_size = max(options.block_bytes, 8 << 20)
    with split.segment(window=window_size) as segment:
        while at < end:
            window = segment.window(at - split.base)
            view = memoryview(window.data)[: window.length]
            first = at
            while at < end:
                stop = min(end, at - at % options.block_bytes + options.block_bytes)
                if stop - first > window.length:
                    break
                offsets.append(at)
                lengths.append(stop - at)
                crcs.append(zlib.crc32(view[at - first : stop - first]))
                at = stop
    if offsets:
        yield {
            "broker": split.replica.broker,
            "replica": split.replica.name,
            "segment": split.base,
            "offset": numpy.array(offsets, numpy.int64),
            "length": numpy.array(lengths, numpy.int32),
            "crc32": numpy.array(crcs, numpy.int64),
        }


def file_row(split: Split, options: Options) -> Iterator[Columns]:
    """Counts of one file, every record of it checked."""
    columns = arrow_schema("records", ["physical_offset", "size", "store_timestamp", CORRUPT])
    checking = replace(
        options, mode="PERMISSIVE", corrupt_column=CORRUPT, verify_crc=True, inner="keep"
    )
    decoder = Decoder(split, columns, checking, Selection())
    good, malformed_bytes = 0, 0
    reasons: Counter[str] = Counter()
    times: list[int] = []
    end = split.base + split.start
    for batch in decoder.run():
        bad = batch.column(CORRUPT)
        good += bad.null_count
        if bad.null_count < len(bad):
            whole = bad.drop_null()
            reasons.update(whole.field("reason").to_pylist())
            sizes = batch.column("size").filter(bad.is_valid())
            malformed_bytes += compute.sum(sizes).as_py()
        last = len(bad) - 1
        end = batch.column("physical_offset")[last].as_py() + batch.column("size")[last].as_py()
        times_known = batch.column("store_timestamp").drop_null().view(pyarrow.int64())
        if len(times_known):
            times = [*times[:1], times_known[0].as_py(), times_known[-1].as_py()]
    yield {
        "broker": split.replica.broker,
        "replica": split.replica.name,
        "path": split.path,
        "segment": split.base,
        "bytes": [split.size],
        "end": end,
        "records": good,
        "malformed": sum(reasons.values()),
        "malformed_bytes": malformed_bytes,
        "resyncs": decoder.resyncs,
        "reasons": ",".join(f"{reason}={count}" for reason, count in sorted(reasons.items())),
        "first_store_timestamp": times[:1] or [None],
        "last_store_timestamp": times[-1:] or [None],
    }


def _units(part: QueuePart) -> Iterator[Columns]:
    """Units of a queue that name a record."""
    pool = part.replica.storage.pool()
    for file in part.files:
        for first, last in pool.data_ranges(file.path, 0, file.size):
            begin = first - first % UNIT.itemsize
            end = min(file.size, -(-last // UNIT.itemsize) * UNIT.itemsize)
            for at in range(begin, end, CHUNK_ROWS * UNIT.itemsize):
                data = pool.read(file.path, at, min(CHUNK_ROWS * UNIT.itemsize, end - at))
                units: NDArray[Any] = numpy.frombuffer(data[: len(data) // 20 * 20], UNIT)
                used = (units["size"] > 0) & (units["size"] != PRE_BLANK_SIZE)
                slots = (file.start + at) // UNIT.itemsize + numpy.flatnonzero(used)
                yield _queue_columns(part) | {
                    "queue_offset": slots,
                    "physical_offset": _native(units["physical_offset"][used]),
                    "size": _native(units["size"][used]),
                    "tag_code": _native(units["tag_code"][used]),
                    "messages": 1,
                    "kind": "simple",
                }
    pool.close()


def _batch_units(part: QueuePart) -> Iterator[Columns]:
    pool = part.replica.storage.pool()
    queue = BatchConsumeQueue(pool, part.topic, part.queue_id, part.files)
    units = list(queue.units())
    pool.close()
    if units:
        yield _queue_columns(part) | {
            "queue_offset": [unit.base for unit in units],
            "physical_offset": [unit.offset for unit in units],
            "size": [unit.size for unit in units],
            "tag_code": [unit.tag_code for unit in units],
            "messages": [unit.messages for unit in units],
            "kind": "batch",
        }


def _queue_columns(part: QueuePart) -> Columns:
    return {
        "broker": part.replica.broker,
        "replica": part.replica.name,
        "topic": part.topic,
        "queue_id": part.queue_id,
    }


def _index_rows(part: IndexPart) -> Iterator[Columns]:
    """Entries of an index file, in the order they were made."""
    pool = part.replica.storage.pool()
    header = read_header(pool, part.file.path)
    begin = HEADER.size + SLOT.size * part.layout.slots
    count = min(header.next_entry, part.layout.entries)
    for first in range(1, count, CHUNK_ROWS):
        rows = min(CHUNK_ROWS, count - first)
        data = pool.read(part.file.path, begin + first * ENTRY.size, rows * ENTRY.size)
        entries: NDArray[Any] = numpy.frombuffer(data[: len(data) // 20 * 20], INDEX_ENTRY)
        seconds = _native(entries["seconds"])
        yield {
            "broker": part.replica.broker,
            "replica": part.replica.name,
            "file": os.path.basename(part.file.path),
            "number": numpy.arange(first, first + len(entries), dtype=numpy.int32),
            "key_hash": _native(entries["key_hash"]),
            "physical_offset": _native(entries["physical_offset"]),
            "store_timestamp": (header.begin_ms + seconds.astype(numpy.int64) * 1000) * 1000,
            "seconds": seconds,
            "previous": _native(entries["previous"]),
        }
    pool.close()


def _native(values: NDArray[Any]) -> NDArray[Any]:
    return values.astype(values.dtype.newbyteorder("="))
