"""Views other than `records`: consume queues, index files, checksums of blocks, counts of files.

Each view is planned into parts, one for each task, and read part by part, without Spark. Queues and
index files are shown as they are on disk; the log is read up to the same end as its records.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy
import pyarrow
from pyarrow import compute

from rocketbed.inspect import NotAStore as NotReadable
from rocketbed.inspect import open_directory
from rocketbed.pipeline.errors import PipelineError
from rocketbed.pipeline.files.arrays import numbers
from rocketbed.pipeline.files.decode import Selection
from rocketbed.pipeline.files.remote import need_local
from rocketbed.pipeline.files.splits import NotAStore, Replica, Split, log_files, plan_splits
from rocketbed.pipeline.files.view_rows import (
    Columns,
    IndexPart,
    QueuePart,
    block_rows,
    file_row,
    rows_of,
)
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.schema import arrow_schema


class IndexUnreadable(PipelineError):
    """The number of slots of a store's index files is unknown."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Several parts that one task reads."""

    parts: tuple[QueuePart | IndexPart, ...]


def plan_view(
    options: Options, selection: Selection, ends: Sequence[tuple[Replica, int]]
) -> list[Any]:
    """Plan the parts of a view, one for each task. `ends`: offset up to which each log is read."""
    if options.view == "consumequeue":
        return _shared(_queue_parts([each for each, _ in ends], selection), options.split_bytes)
    if options.view == "index":
        return _shared(_index_parts([each for each, _ in ends]), options.split_bytes)
    splits: list[Split] = []
    for each, end in ends:
        limit = end if selection.end_offset is None else min(end, selection.end_offset)
        splits += plan_splits(
            [each], split_bytes=1 << 62, start=selection.start_offset, end=limit, durable=end
        )
    return _block_splits(splits, options) if options.view == "blocks" else splits


def read_view(
    part: Any, schema: pyarrow.Schema, options: Options, selection: Selection
) -> Iterator[pyarrow.RecordBatch]:
    """Read the rows of one part of a view as batches of exactly the given schema."""
    rows: Iterator[Columns]
    if isinstance(part, Parts):
        rows = (columns for each in part.parts for columns in rows_of(each))
    elif options.view == "blocks":
        rows = block_rows(part, options)
    else:
        rows = file_row(part, options)
    full = arrow_schema(options.view)
    for columns in rows:
        batch = _table(columns, full)
        mask = _mask(batch, selection)
        if mask is not None:
            batch = batch.filter(mask)
        if batch.num_rows:
            arrays = [batch.column(name) for name in schema.names]
            yield pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def _table(columns: Columns, schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    """Make a batch of columns; a single value is repeated in every row."""
    count = next(len(each) for each in columns.values() if isinstance(each, (numpy.ndarray, list)))
    arrays = []
    for field in schema:
        values = columns[field.name]
        if not isinstance(values, (numpy.ndarray, list)):
            arrays.append(pyarrow.repeat(pyarrow.scalar(values, field.type), count))
        elif isinstance(values, numpy.ndarray):
            arrays.append(numbers(values, field.type))
        elif field.type == pyarrow.timestamp("us", tz="UTC"):
            arrays.append(pyarrow.array(values, pyarrow.int64()).view(field.type))
        else:
            arrays.append(pyarrow.array(values, field.type))
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def _mask(batch: pyarrow.RecordBatch, selection: Selection) -> pyarrow.Array | None:
    """Mask of the selected rows, by the columns that the view has."""
    names = set(batch.schema.names)
    conditions = []
    if "topic" in names and not (selection.topics is None and selection.pattern is None):
        present = batch.column("topic").unique().to_pylist()
        values = pyarrow.array(
            [name for name in present if selection.has_topic(name)], pyarrow.string()
        )
        conditions.append(compute.is_in(batch.column("topic"), value_set=values))
    if "physical_offset" in names:
        offsets = batch.column("physical_offset")
        if selection.start_offset is not None:
            conditions.append(compute.greater_equal(offsets, selection.start_offset))
        if selection.end_offset is not None:
            conditions.append(compute.less(offsets, selection.end_offset))
    if "store_timestamp" in names:
        times = batch.column("store_timestamp").view(pyarrow.int64())
        if selection.start_ms is not None:
            conditions.append(compute.greater_equal(times, selection.start_ms * 1000))
        if selection.end_ms is not None:
            conditions.append(compute.less(times, selection.end_ms * 1000))
    mask = None
    for each in conditions:
        mask = each if mask is None else compute.and_(mask, each)
    return mask


def _shared(parts: Sequence[Any], split_bytes: int) -> list[Parts]:
    """Combine small parts, so that each task has enough to read."""
    combined: list[Parts] = []
    held: list[QueuePart | IndexPart] = []
    size = 0
    for part in parts:
        files = part.files if isinstance(part, QueuePart) else (part.file,)
        length = sum(file.size for file in files)
        if held and size + length > split_bytes:
            combined.append(Parts(tuple(held)))
            held, size = [], 0
        held.append(part)
        size += length
    return [*combined, Parts(tuple(held))] if held else combined


def _queue_parts(replicas: Sequence[Replica], selection: Selection) -> list[QueuePart]:
    """Make one part for each queue of the selected topics."""
    parts: list[QueuePart] = []
    for replica in replicas:
        log_files(replica)
        storage = replica.storage
        for kind in ("consumequeue", "batchconsumequeue"):
            root = os.path.join(replica.root, kind)
            for topic in storage.folders(root):
                if not selection.has_topic(topic):
                    continue
                for name in storage.folders(os.path.join(root, topic)):
                    if name.isascii() and name.isdigit():
                        files = storage.segments(os.path.join(root, topic, name)).segments
                        is_batch = kind == "batchconsumequeue"
                        parts.append(QueuePart(replica, topic, int(name), files, is_batch))
    return parts


def _index_parts(replicas: Sequence[Replica]) -> list[IndexPart]:
    parts: list[IndexPart] = []
    need_local((replica.root for replica in replicas), "view=index")
    for replica in replicas:
        log_files(replica)
        try:
            opened = open_directory(replica.root)
        except NotReadable as exc:
            raise NotAStore(str(exc)) from exc
        try:
            files = opened.index_listing.segments
            if opened.index_layout is None:
                raise IndexUnreadable(
                    f"{replica.root}/index: the number of slots cannot be told from the files"
                )
            parts += [IndexPart(replica, file, opened.index_layout) for file in files]
        finally:
            opened.close()
    return parts


def _block_splits(files: Sequence[Split], options: Options) -> list[Split]:
    """Divide splits at whole blocks, counted from the start of the log."""
    size = options.block_bytes
    step = max(1, options.split_bytes // size) * size
    splits: list[Split] = []
    for file in files:
        low, end = file.base + file.start, file.base + file.end
        while low < end:
            high = min(end, low - low % step + step)
            splits.append(replace(file, start=low - file.base, end=high - file.base))
            low = high
    return splits
