"""Second pass of `rebuild`: writes a file of a queue, or of the index, from its runs.

A file of a plain queue is written at once if its units are gapless, as a broker writes them. Any
other file (duplicate slots, gaps, batch queues) depends on earlier units of the whole queue, so
`write_queue` writes the queue in order, with the independent reader's own writer.
"""

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple
from uuid import uuid4

import numpy
import pyarrow
from numpy.typing import NDArray

from rocketbed.inspect.consumequeue import PRE_BLANK, UNIT, BatchUnit
from rocketbed.inspect.index import ENTRY, HEADER, IndexLayout
from rocketbed.inspect.slots import PlacedQueue
from rocketbed.inspect.writers import BatchQueueWriter, QueueWriter
from rocketbed.pipeline.jobs.rebuild.blobs import BATCH, Run, columns_of

_UNIT: Final = numpy.dtype([("offset", ">i8"), ("size", ">i4"), ("tag_code", ">i8")])
_ENTRY: Final = numpy.dtype(
    [("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]
)
_SECONDS_MAX: Final = (1 << 31) - 1
_READ: Final = 4 << 20
SHOWN_MAX: Final = 20
"""Records without a place in their queue that are reported individually."""


class Written(NamedTuple):
    """A written file, or (not `is_even`) a file that `write_queue` has to write."""

    path: str
    """Path below the output directory."""
    entries: int = 0
    crc: int = 0
    """CRC-32 of the whole file."""
    file: int = 0
    is_even: bool = True
    first: int = 0
    """Slot of the first unit; of an index file the store time of its first key, ms."""
    last: int = 0
    first_offset: int = 0
    """Physical offset of the first unit's record."""
    last_offset: int = 0
    odd: str = ""
    """JSON: numbers and first examples of the records without a slot (`refused`), or with another
    slot than their queue offset (`corrected`)."""


WRITTEN_DDL: Final = (
    "path string, entries bigint, crc bigint, file bigint, is_even boolean, first bigint,"
    " last bigint, first_offset bigint, last_offset bigint, odd string"
)
_TYPES: Final = {"path": pyarrow.string(), "odd": pyarrow.string(), "is_even": pyarrow.bool_()}
_SCHEMA: Final = pyarrow.schema(
    [(name, _TYPES.get(name, pyarrow.int64())) for name in Written._fields]
)


def written_batch(files: Iterable[Written]) -> pyarrow.RecordBatch:
    return columns_of(list(files), _SCHEMA)


def write_queue_file(out: str, runs: Sequence[Run], segment_size: int) -> Written:
    """Write the file of a plain queue from its runs, in order. Raises `OSError`.

    A missing head is filled as in a queue's first file; the caller has to check that only the first
    file lacks its head.
    """
    path, number = runs[0].path, runs[0].file
    units = numpy.concatenate([run.read() for run in runs])
    slots = units["slot"]
    first, last = int(slots[0]), int(slots[-1])
    per_file = segment_size // UNIT.size
    is_even = first >= 0 and last < (1 << 62) // UNIT.size and bool((numpy.diff(slots) == 1).all())
    name = f"{path}/{number * segment_size:020d}"
    if not is_even:
        return Written(path, file=number, is_even=False)
    stored = numpy.empty(len(units), _UNIT)
    for field in ("offset", "size", "tag_code"):
        stored[field] = units[field]
    data = PRE_BLANK * (first - number * per_file) + stored.tobytes()
    write_file(os.path.join(out, name), data, segment_size)
    crc = zlib.crc32(bytes(segment_size - len(data)), zlib.crc32(data))
    return Written(
        path=name,
        entries=len(units),
        crc=crc,
        file=number,
        first=first,
        last=last,
        first_offset=int(units["offset"][0]),
        last_offset=int(units["offset"][-1]),
    )


def write_queue(out: str, runs: Sequence[Run], segment_size: int) -> list[Written]:
    """Write all files of a queue, plain or batch, unit by unit. Raises `OSError`.

    `runs` are in order of `at`; those with the same `at` are sorted together.
    """
    place = os.path.join(out, runs[0].path)
    os.makedirs(place, exist_ok=True)
    for name in os.listdir(place):
        os.unlink(os.path.join(place, name))
    entries, odd = 0, ""
    if runs[0].kind == BATCH:
        batch_writer = BatchQueueWriter(place, segment_size)
        for row in _rows(runs):
            offset, size, code, store_ms = row[1:5]
            batch_writer.put(BatchUnit(0, offset, size, code, store_ms, row[0], row[5]))
            entries += 1
        batch_writer.close()
    else:
        queue = PlacedQueue(QueueWriter(place, segment_size), runs[0].path.partition("/")[2])
        for slot, offset, size, code in _rows(runs):
            queue.put(slot, offset, size, code)
        queue.close()
        entries = queue.units
        if queue.refused or queue.corrected:
            lists = {"refused": queue.refused, "corrected": queue.corrected}
            odd = json.dumps(
                {
                    name: {"count": len(texts), "first": texts[:SHOWN_MAX]}
                    for name, texts in lists.items()
                }
            )
    files = [
        Written(f"{runs[0].path}/{name}", crc=_synced_crc(os.path.join(place, name)))
        for name in sorted(os.listdir(place))
    ]
    if not files:
        os.rmdir(place)
        return [Written("", odd=odd)]
    return [files[0]._replace(entries=entries, odd=odd), *files[1:]]


def write_index_file(out: str, runs: Sequence[Run], layout: IndexLayout) -> Written:
    """Write an index file. Raises `OSError`.

    It is named by its number for now, since the final name depends on the files before it. The
    first entry's seconds count from the end of the previous file, as in a broker (store.md 4.2).
    """
    number = runs[0].file
    path = os.path.join(out, "index", f"{number:020d}")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    table = numpy.zeros(layout.slots, numpy.int32)
    count, used = 1, 0
    before_ms = runs[0].last_ms
    begin_ms = begin_offset = end_ms = end_offset = 0
    pending = f"{path}.{uuid4().hex}"
    with open(pending, "wb") as file:
        file.truncate(layout.size)
        file.seek(HEADER.size + 4 * layout.slots + ENTRY.size)
        for run in runs:
            keys = run.read()
            times = keys["store_ms"]
            if count == 1:
                begin_ms, begin_offset = int(times[0]), int(keys["offset"][0])
            entries = numpy.empty(len(keys), _ENTRY)
            entries["hash"], entries["offset"] = keys["hash"], keys["offset"]
            entries["seconds"] = _seconds(times, begin_ms)
            if count == 1:
                entries["seconds"][0] = _seconds(times[:1], before_ms)[0]
            entries["previous"], fresh = _chain(keys["hash"], table, count)
            file.write(entries.tobytes())
            used += fresh
            count += len(keys)
            end_ms, end_offset = int(times[-1]), int(keys["offset"][-1])
        file.seek(0)
        file.write(HEADER.pack(begin_ms, end_ms, begin_offset, end_offset, used, count))
        file.write(table.astype(">i4").tobytes())
        file.flush()
        os.fsync(file.fileno())
    crc = file_crc(pending, HEADER.size + 4 * layout.slots + ENTRY.size * count)
    os.replace(pending, path)
    return Written(f"index/{number:020d}", count - 1, crc, number, first=begin_ms)


def write_file(path: str, data: bytes, length: int) -> None:
    """Write a file of that length atomically, synced, and padded with zeros after the data."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    pending = f"{path}.{uuid4().hex}"
    with open(pending, "wb") as file:
        file.write(data)
        file.truncate(length)
        file.flush()
        os.fsync(file.fileno())
    os.replace(pending, path)


def file_crc(path: str, data_size: int | None = None) -> int:
    """Return the CRC-32 of a file; bytes after `data_size` are assumed to be zeros and not read."""
    crc = 0
    with open(path, "rb") as file:
        padding = os.fstat(file.fileno()).st_size
        unread = padding if data_size is None else min(data_size, padding)
        padding -= unread
        while unread and (data := file.read(min(_READ, unread))):
            crc = zlib.crc32(data, crc)
            unread -= len(data)
    zeros = bytes(min(_READ, padding))
    while padding:
        zeros = zeros[:padding]
        crc = zlib.crc32(zeros, crc)
        padding -= len(zeros)
    return crc


def _synced_crc(path: str) -> int:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    return file_crc(path)


def _rows(runs: Sequence[Run]) -> Iterator[tuple[int, ...]]:
    """Yield the units of a queue in the order of the log."""
    for _, together in groupby(runs, key=attrgetter("at")):
        units = numpy.concatenate([run.read() for run in together])
        yield from units[numpy.argsort(units["offset"], kind="stable")].tolist()


def _seconds(times_ms: NDArray[numpy.int64], begin_ms: int) -> NDArray[numpy.int64]:
    if begin_ms <= 0:
        return numpy.zeros(len(times_ms), numpy.int64)
    return numpy.clip((times_ms - begin_ms) // 1000, 0, _SECONDS_MAX)


def _chain(
    hashes: NDArray[Any], table: NDArray[numpy.int32], first: int
) -> tuple[NDArray[numpy.int32], int]:
    """Return the previous entry in the slot of each entry, and the number of new slots.

    Entries are numbered from `first` on. Updates the slot table.
    """
    numbers = numpy.arange(first, first + len(hashes), dtype=numpy.int64)
    slots = hashes.astype(numpy.int64) % len(table)
    both = numpy.sort(slots << 32 | numbers)  # sorting numbers is faster than their order
    ordered, numbers = both >> 32, (both & 0xFFFFFFFF).astype(numpy.int32)
    is_first = numpy.ones(len(both), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    previous = numpy.zeros(len(both), numpy.int32)
    previous[1:] = numbers[:-1]
    previous[is_first] = table[ordered[is_first]]
    fresh = int((previous[is_first] == 0).sum())
    is_last = numpy.ones(len(both), bool)
    is_last[:-1] = is_first[1:]
    table[ordered[is_last]] = numbers[is_last]
    by_number = numpy.empty(len(both), numpy.int32)
    by_number[numbers - first] = previous
    return by_number, fresh
