"""Batches that a producer packed into one record (`queue.type=BatchCQ`): a row for each message.

Each has its own place in the queue, body and properties; where the record lies is the same for all.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy
import pyarrow

from rocketbed.inspect.bodies import BatchItem
from rocketbed.pipeline.files.arrays import numbers
from rocketbed.pipeline.files.frame import Frame
from rocketbed.wire.message import COMPRESSED, COMPRESSION_MASK, INNER_BATCH
from rocketbed.wire.properties import INNER_NUM, KEYS, TAGS, UNIQUE_KEY, find_property, split_keys

Items = Mapping[int, Sequence[BatchItem]]
"""By row of a batch, the messages of its record."""
_PACKED: Final = INNER_BATCH | COMPRESSED | COMPRESSION_MASK


def inner_rows(frame: Frame) -> list[int]:
    """Numbers of the rows whose record holds several messages."""
    numbers: list[int] = numpy.flatnonzero(frame.sys_flags & INNER_BATCH).tolist()
    return numbers


def said_count(frame: Frame, row: int) -> bytes | None:
    """Return the stored number of messages of a record as text. It has no checksum, so it may be
    wrong or missing."""
    start = int(frame.properties_at[row])
    stored = bytes(frame.data[start : start + int(frame.properties_size[row])])
    return find_property(stored, f"{INNER_NUM}\x01".encode())


def is_whole(item: BatchItem) -> bool:
    """True if a message's own checksum holds; most producers leave it 0 and rely on the record's
    (RocketMQ: `MessageDecoder.encodeMessage`)."""
    return item.body_crc in (0, zlib.crc32(item.body) & 0x7FFFFFFF)


def one_a_message(
    batch: pyarrow.RecordBatch, columns: Sequence[str], items: Items
) -> pyarrow.RecordBatch:
    """A batch with rows for messages in place of some rows for records; `columns` are the names
    that its columns have in the table of records."""
    counts = numpy.ones(batch.num_rows, numpy.int64)
    counts[list(items)] = [len(each) for each in items.values()]
    rows = numpy.repeat(numpy.arange(batch.num_rows), counts)
    is_inner = numpy.isin(rows, list(items))
    # The messages' own values follow those of the records.
    places = rows.copy()
    places[is_inner] = batch.num_rows + numpy.arange(is_inner.sum())
    messages = [(row, item) for row in sorted(items) for item in items[row]]
    arrays = []
    for name, array in zip(columns, batch.columns, strict=True):
        if name not in _VALUES:
            arrays.append(array.take(numbers(rows)))
            continue
        value, whole = _VALUES[name], array.to_pylist() if name in _GO_BY_RECORD else None
        own = [value(item, whole[row] if whole else None) for row, item in messages]
        both = pyarrow.concat_arrays([array, pyarrow.array(own, array.type)])
        arrays.append(both.take(numbers(places)))
    return pyarrow.RecordBatch.from_arrays(arrays, schema=batch.schema)


_VALUES: Final[Mapping[str, Callable[[BatchItem, Any], Any]]] = {
    "size": lambda item, whole: None if item.number else whole,
    "queue_offset": lambda item, first: first + item.number,
    "sys_flag": lambda item, stored: stored & ~_PACKED,
    "flag": lambda item, _: item.flag,
    "body_crc": lambda item, _: item.body_crc,
    "tags": lambda item, _: item.properties.get(TAGS),
    "keys": lambda item, _: _keys(item),
    "uniq_key": lambda item, _: item.properties.get(UNIQUE_KEY),
    "headers": lambda item, _: list(item.properties.items()),
    "properties": lambda item, _: item.stored.decode(errors="replace"),
    "body": lambda item, _: item.body,
    "body_length": lambda item, _: len(item.body),
}
"""Columns of a message, not of its record. The bytes of a record count for its first message."""
_GO_BY_RECORD: Final = ("size", "queue_offset", "sys_flag")


def _keys(item: BatchItem) -> list[str] | None:
    text = item.properties.get(KEYS)
    return None if text is None else list(split_keys(text))
