"""First pass of `rebuild`: the units and keys of a split of the log.

The rules are those of `rocketbed.inspect.dispatch`. Ordinary rows (topic, queue, tag, keys in
ASCII) are processed by numpy, a window at once. The rare other rows (batch queues, delayed
messages, multi-dispatch, texts beyond ASCII) are processed individually by the dispatcher itself.
Both kinds are then merged in the log's order.
"""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy
from numpy.typing import NDArray
from pyarrow import compute

from rocketbed.inspect.consumequeue import UNIT
from rocketbed.inspect.dispatch import PLAIN, Dispatcher, Topic, tag_key
from rocketbed.inspect.properties import SCHEDULE_TOPIC, java_hash
from rocketbed.inspect.record import (
    SYS_PREPARED,
    SYS_ROLLBACK,
    SYS_TRANSACTION,
    Scanned,
    scan_record,
)
from rocketbed.pipeline.files.arrays import mask_of, numbers_of, slices
from rocketbed.pipeline.files.corrupt import CRC_MISMATCH, Gap
from rocketbed.pipeline.files.frame import Frame
from rocketbed.pipeline.files.judge import crc_faults, text_faults
from rocketbed.pipeline.files.segments import Segment
from rocketbed.pipeline.files.splits import Split, scan_split
from rocketbed.pipeline.files.sync import first_record
from rocketbed.pipeline.jobs.rebuild.blobs import (
    BATCH,
    BATCH_UNITS,
    DAMAGE,
    INDEX,
    KEYS,
    QUEUE,
    SPLIT,
    UNITS,
    BlobWriter,
    Run,
)
from rocketbed.pipeline.jobs.rebuild.keys import NotAscii, row_keys, tag_codes

ROWS: Final = 16_384
"""Records of a frame: about a window."""
GATHERED_MAX: Final = 1 << 17
"""Units, or keys, that a task gathers before it writes them as runs."""
DAMAGE_MAX: Final = 50
"""Damaged places of a split that are reported individually; all are counted."""
MULTI: Final = b"INNER_MULTI_DISPATCH\x01"
_OFFSET_MAX: Final = (1 << 63) - 1


def queue_path(kind: str, topic: str, queue_id: int) -> str:
    """Return the path of a queue's files, below the directory that holds `consumequeue`."""
    name = topic.replace("/", "_").replace("\0", "_")
    folder = "consumequeue" if kind == QUEUE else "batchconsumequeue"
    return f"{folder}/{name if name not in ('', '.', '..') else '_'}/{queue_id}"


class _TopicInfo(NamedTuple):
    """Properties of a topic that each of its rows needs."""

    topic: Topic
    is_slow: bool
    start_hash: int
    deleted_below: int


class SplitDispatch:
    """Units and keys of the records that begin in a split."""

    def __init__(
        self, dispatcher: Dispatcher, *, queue_segment: int, with_tags: bool, blobs: BlobWriter
    ) -> None:
        """`queue_segment`: bytes of a plain queue's file; `with_tags`: tags are indexed too."""
        self._dispatcher = dispatcher
        self._with_tags = with_tags
        self._per_file = queue_segment // UNIT.size
        self._blobs = blobs
        self._infos: list[_TopicInfo] = []
        self._numbers: dict[bytes, int] = {}
        self._queues: dict[tuple[str, str, int], int] = {}
        self._units: list[tuple[NDArray[Any], NDArray[Any]]] = []
        self._batches: dict[int, list[tuple[int, ...]]] = {}
        self._keys: list[NDArray[Any]] = []
        self._unit_count = self._key_count = 0
        self._first = -1
        self._records = self._damaged = 0
        self._left_out: dict[str, int] = {}

    def run(self, split: Split) -> Iterator[Run]:
        """Yield runs and damage, and finally a row about the split. Raises `DataLost`."""
        if not split.path:
            yield from self._damage(split.base, split.base + split.end, "missing_segment")
        else:
            with Segment(split.path, split.base, split.size) as segment:
                start = first_record(segment, split, "walk")
                for item in scan_split(segment, split, start, rows=ROWS):
                    if isinstance(item, Gap):
                        yield from self._damage(item.offset, item.end, item.reason)
                    else:
                        yield from self._frame(item)
                    if max(self._unit_count, self._key_count) >= GATHERED_MAX:
                        yield from self._flush()
        yield from self._flush()
        summary = {"left_out": self._left_out, "damaged": self._damaged}
        at = split.base + split.start
        yield Run(SPLIT, at=at, items=self._records, text=json.dumps(summary))

    def _damage(self, begin: int, end: int, reason: str) -> Iterator[Run]:
        self._damaged += 1
        if self._damaged <= DAMAGE_MAX:
            yield Run(DAMAGE, at=begin, items=end - begin, text=reason)

    def _frame(self, frame: Frame) -> Iterator[Run]:
        if self._first < 0:
            self._first = int(frame.physical_offsets[0])
        slow = numpy.zeros(frame.count, bool)
        bad = numpy.zeros(frame.count, bool)
        for row, reason in sorted((text_faults(frame) | crc_faults(frame)).items()):
            # Texts that are not UTF-8 are damage for Spark's readers, but not for a broker.
            if reason != CRC_MISMATCH and scanned_row(frame, row) is not None:
                slow[row] = True
                continue
            bad[row] = True
            begin = int(frame.physical_offsets[row])
            yield from self._damage(begin, begin + int(frame.sizes[row]), reason)
        self._records += frame.count - int(bad.sum())
        topics = self._topics(frame)
        slow |= numpy.array([info.is_slow for info in self._infos])[topics]
        slow |= self._multi(frame)
        slow &= ~bad
        self._take(frame, topics, slow, bad)

    def _topics(self, frame: Frame) -> NDArray[numpy.int64]:
        """Return the number of each record's topic."""
        encoded = slices(frame.data, frame.topic_at, frame.topic_size).dictionary_encode()
        numbers = [self._topic(raw) for raw in encoded.dictionary.to_pylist()]
        return numpy.array(numbers, numpy.int64)[numbers_of(encoded.indices)]

    def _topic(self, raw: bytes) -> int:
        number = self._numbers.get(raw)
        if number is None:
            topic = self._dispatcher.dispatch(Scanned(0, 0, 0, 0, 0, 0, raw, b"")).topic
            is_slow = topic.is_batch or topic.name == SCHEDULE_TOPIC
            start_hash = java_hash(topic.name + "#") & 0xFFFFFFFF
            below = min(topic.deleted_below, _OFFSET_MAX)
            number = self._numbers[raw] = len(self._infos)
            self._infos.append(_TopicInfo(topic, is_slow, start_hash, below))
        return number

    @staticmethod
    def _multi(frame: Frame) -> NDArray[numpy.bool_]:
        """Return a mask of the rows that may enter further queues."""
        begin = int(frame.positions[0])
        end = int(frame.positions[-1] + frame.sizes[-1])
        if frame.data.find(MULTI, begin, end) < 0:
            return numpy.zeros(frame.count, bool)
        properties = slices(frame.data, frame.properties_at, frame.properties_size)
        return mask_of(compute.match_substring(properties, MULTI))

    def _take(
        self,
        frame: Frame,
        topics: NDArray[numpy.int64],
        slow: NDArray[numpy.bool_],
        bad: NDArray[numpy.bool_],
    ) -> None:
        """Add the units and keys of a frame's good rows."""
        quick = ~(slow | bad)
        part, part_topics = frame, topics
        if not quick.all():
            part, part_topics = frame.part(quick), topics[quick]
        if part.count:
            odd = self._take_quick(part, part_topics)
            if odd is not None:
                slow[numpy.flatnonzero(quick)[odd]] = True
                self._take(frame, topics, slow, bad)
                return
        if slow.any():
            self._take_slow(frame, numpy.flatnonzero(slow).tolist())

    def _take_quick(
        self, frame: Frame, topics: NDArray[numpy.int64]
    ) -> NDArray[numpy.bool_] | None:
        """Add the rows of a frame; if some are not ASCII, add none and return a mask of those."""
        codes = tag_codes(frame)
        if isinstance(codes, NotAscii):
            return codes.mask
        starts = numpy.array([info.start_hash for info in self._infos], numpy.uint32)[topics]
        keys = row_keys(frame, starts, with_tags=self._with_tags)
        if isinstance(keys, NotAscii):
            return keys.mask
        offsets = frame.physical_offsets
        transaction = frame.sys_flags & SYS_TRANSACTION
        rolled_back = transaction == SYS_ROLLBACK
        prepared = transaction == SYS_PREPARED
        below = numpy.array([info.deleted_below for info in self._infos], numpy.int64)[topics]
        deleted = (offsets < below) & ~prepared & ~rolled_back
        self._count_left_out(topics[deleted])
        self._add_units(frame, topics, codes, ~(prepared | rolled_back | deleted))
        rows = keys.rows[~(rolled_back | deleted)[keys.rows]]
        entries = numpy.empty(len(rows), KEYS)
        entries["hash"] = keys.hashes[~(rolled_back | deleted)[keys.rows]]
        entries["offset"] = offsets[rows]
        entries["store_ms"] = frame.field("store_ms")[rows]
        self._add_keys(entries)
        return None

    def _count_left_out(self, topics: NDArray[numpy.int64]) -> None:
        for number, count in zip(*numpy.unique(topics, return_counts=True), strict=True):
            name = self._infos[number].topic.name
            self._left_out[name] = self._left_out.get(name, 0) + int(count)

    def _add_units(
        self,
        frame: Frame,
        topics: NDArray[numpy.int64],
        codes: NDArray[numpy.int64],
        mask: NDArray[numpy.bool_],
    ) -> None:
        units = numpy.empty(frame.count, UNITS)
        units["slot"] = frame.field("queue_offset")
        units["offset"] = frame.physical_offsets
        units["size"] = frame.sizes
        units["tag_code"] = codes
        pairs = topics << 32 | frame.field("queue_id").astype(numpy.uint32).astype(numpy.int64)
        distinct, place = numpy.unique(pairs[mask], return_inverse=True)
        queues = [
            self._queue(QUEUE, self._infos[pair >> 32].topic.name, _signed(pair & 0xFFFFFFFF))
            for pair in distinct.tolist()
        ]
        self._hold(numpy.array(queues, numpy.int64)[place], units[mask])

    def _take_slow(self, frame: Frame, rows: list[int]) -> None:
        """Add some rows individually, by the dispatcher's rules."""
        queues: list[int] = []
        units: list[tuple[int, ...]] = []
        keys: list[tuple[int, ...]] = []
        for row in rows:
            entry = scanned_row(frame, row)
            if entry is None:
                raise AssertionError(f"the record at {frame.physical_offsets[row]} was good before")
            dispatch = self._dispatcher.dispatch(entry)
            for target in dispatch.targets:
                kind = QUEUE if target.kind == PLAIN else BATCH
                queue = self._queue(kind, target.topic, target.queue_id)
                unit = (target.slot, entry.offset, entry.size, target.tag_code)
                if kind == QUEUE:
                    queues.append(queue)
                    units.append(unit)
                else:
                    more = (*unit, entry.store_ms, target.messages)
                    self._batches.setdefault(queue, []).append(more)
                    self._unit_count += 1
            if dispatch.deleted:
                name = dispatch.topic.name
                self._left_out[name] = self._left_out.get(name, 0) + 1
                continue
            key_hash = dispatch.topic.hash.key_hash
            keys += [(key_hash(key), entry.offset, entry.store_ms) for key in dispatch.keys]
            if self._with_tags and dispatch.tags:
                keys.append((key_hash(tag_key(dispatch.tags)), entry.offset, entry.store_ms))
        self._hold(numpy.array(queues, numpy.int64), numpy.array(units, UNITS))
        self._add_keys(numpy.array(keys, KEYS))

    def _queue(self, kind: str, topic: str, queue_id: int) -> int:
        return self._queues.setdefault((kind, topic, queue_id), len(self._queues))

    def _hold(self, queues: NDArray[numpy.int64], units: NDArray[Any]) -> None:
        if len(units):
            self._units.append((queues, units))
            self._unit_count += len(units)

    def _add_keys(self, keys: NDArray[Any]) -> None:
        if len(keys):
            self._keys.append(keys)
            self._key_count += len(keys)

    def _flush(self) -> Iterator[Run]:
        """Write the gathered units and keys, by queue and file, in the log's order."""
        names = list(self._queues)
        if self._units:
            queues = numpy.concatenate([queues for queues, _ in self._units])
            units = numpy.concatenate([units for _, units in self._units])
            files = units["slot"] // self._per_file
            order = numpy.lexsort((units["offset"], files, queues))
            queues, files, units = queues[order], files[order], units[order]
            is_new = (queues[1:] != queues[:-1]) | (files[1:] != files[:-1])
            bounds = [0, *(numpy.flatnonzero(is_new) + 1).tolist(), len(units)]
            for begin, end in pairwise(bounds):
                path = queue_path(*names[queues[begin]])
                run = Run(QUEUE, path, int(files[begin]), self._first)
                yield self._blobs.add(units[begin:end], run)
        for queue, rows in self._batches.items():
            run = Run(BATCH, queue_path(*names[queue]), 0, self._first)
            yield self._blobs.add(numpy.array(rows, BATCH_UNITS), run)
        if self._keys:
            keys = numpy.concatenate(self._keys)
            keys = keys[numpy.argsort(keys["offset"], kind="stable")]
            run = Run(INDEX, at=self._first, last_ms=int(keys["store_ms"][-1]))
            yield self._blobs.add(keys, run)
        self._units, self._batches, self._keys = [], {}, []
        self._unit_count = self._key_count = 0
        self._first = -1


def scanned_row(frame: Frame, row: int) -> Scanned | None:
    """Read a record of a frame with the independent reader; None if it is not valid."""
    start = int(frame.positions[row])
    data = bytes(frame.data[start : start + int(frame.sizes[row])])
    return scan_record(data, memoryview(data), 0, frame.shift(row) + start)


def _signed(value: int) -> int:
    return value - (1 << 32) if value & 0x80000000 else value
