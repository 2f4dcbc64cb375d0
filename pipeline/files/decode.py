"""Decode records to Arrow batches with exactly the requested columns, filtered before any copy.

`batches` needs no Spark: the data source, the stream, the checks and the jobs call it inside
executors. Texts and bodies are not handled row by row: Arrow slices them out of the window by pairs
of offsets.
"""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute

from rocketbed.inspect.bodies import BatchItem, unpack_inner_batch
from rocketbed.pipeline.files.arrays import flags, mask_of, numbers, repeated, slices, texts
from rocketbed.pipeline.files.corrupt import (
    BAD_BODY,
    BAD_PROPERTIES,
    CRC_MISMATCH,
    MISSING_SEGMENT,
    SHOWN_MAX,
    DataLost,
    Gap,
    RocketbedCorrupt,
)
from rocketbed.pipeline.files.derived import compressed_rows, host_column, unpack_row
from rocketbed.pipeline.files.frame import Frame
from rocketbed.pipeline.files.inner import inner_rows, is_whole, one_a_message, said_count
from rocketbed.pipeline.files.judge import Faults, crc_faults, text_faults
from rocketbed.pipeline.files.splits import Split, scan_split
from rocketbed.pipeline.files.sync import first_record
from rocketbed.pipeline.files.texts import PROPERTIES, header_column, property_column, text_column
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.schema import CORRUPT, arrow_schema, canonical
from rocketbed.wire.message import COMPRESSED

logger = logging.getLogger("rocketbed.pipeline")

BODIES_MAX: Final = 32 << 20
"""Maximum bytes of unpacked bodies in a batch, which has at least one row."""
_NUMBERS: Final = {
    "queue_id": "queue_id",
    "queue_offset": "queue_offset",
    "flag": "flag",
    "reconsume_times": "reconsume_times",
    "prepared_transaction_offset": "prepared_transaction_offset",
    "body_crc": "body_crc",
}
_TIMES: Final = {"born_timestamp": "born_ms", "store_timestamp": "store_ms"}
_HOSTS: Final = {"born_host": "born_host", "store_host": "store_host"}
_TIME_MAX_MS: Final = 253_402_300_799_999
"""End of the year 9999, the last time that Spark and Python can show. Later times (damage) are
null."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection of records; None: all. Times in milliseconds, ends exclusive."""

    topics: frozenset[str] | None = None
    pattern: re.Pattern[str] | None = None
    """Pattern for whole names of topics."""
    start_offset: int | None = None
    end_offset: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None

    @classmethod
    def of(cls, options: Options) -> "Selection":
        return cls(
            topics=options.topics,
            pattern=options.topics_pattern,
            start_offset=options.start_offset,
            end_offset=options.end_offset,
            start_ms=options.start_timestamp,
            end_ms=options.end_timestamp,
        )

    def has_topic(self, name: str) -> bool:
        """True if the selection may contain records of a topic."""
        is_named = self.topics is None or name in self.topics
        return is_named and (self.pattern is None or self.pattern.fullmatch(name) is not None)

    @property
    def by_content(self) -> bool:
        """True if only a decoded record shows that it is selected."""
        content = (self.topics, self.pattern, self.start_ms, self.end_ms)
        return any(each is not None for each in content)

    def rows(self, frame: Frame) -> NDArray[numpy.bool_] | None:
        """Mask of the selected rows; None: all of them."""
        masks: list[NDArray[numpy.bool_]] = []
        offsets = frame.physical_offsets
        if self.start_offset is not None and int(offsets[0]) < self.start_offset:
            masks.append(offsets >= self.start_offset)
        if self.end_offset is not None and int(offsets[-1]) >= self.end_offset:
            masks.append(offsets < self.end_offset)
        if self.start_ms is not None or self.end_ms is not None:
            times = frame.field("store_ms")
            if self.start_ms is not None:
                masks.append(times >= self.start_ms)
            if self.end_ms is not None:
                masks.append(times < self.end_ms)
        if self.topics is not None or self.pattern is not None:
            topics = slices(frame.data, frame.topic_at, frame.topic_size)
            names = sorted(self.topics or ())
            if self.pattern is not None:
                present = (name.as_py().decode(errors="replace") for name in compute.unique(topics))
                names = [name for name in present if self.has_topic(name)]
            is_selected = compute.is_in(topics, value_set=texts([name.encode() for name in names]))
            masks.append(mask_of(is_selected))
        if not masks:
            return None
        mask = masks[0]
        for each in masks[1:]:
            mask = mask & each
        return mask


def batches(
    split: Split,
    columns: Sequence[str] | pyarrow.Schema | None,
    options: Options,
    selection: Selection | None = None,
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the records that begin in a split, in order, in batches of exactly the given schema.

    `columns`: names of the table `schema.RECORDS`, or their Arrow schema from Spark (None: the
    default ones). `selection`: default by the options. Raises `RocketbedCorrupt` in mode FAILFAST,
    `DataLost` for a file that vanished or got shorter.
    """
    schema = columns
    if not isinstance(schema, pyarrow.Schema):
        schema = arrow_schema("records", schema, options.corrupt_column)
    yield from Decoder(split, schema, options, selection or Selection.of(options)).run()


class Decoder:
    """Turns the frames of one split into batches."""

    def __init__(
        self, split: Split, schema: pyarrow.Schema, options: Options, selection: Selection
    ) -> None:
        self.split = split
        self.schema = schema
        self.options = options
        self.selection = selection
        self.columns = [canonical(name, options.corrupt_column) for name in schema.names]
        self.malformed = 0
        """Number of corrupt rows, including dropped ones."""
        self.resyncs = 0
        """Number of searches for the next record."""
        self.hidden = 0
        """Number of damaged ranges that may belong to the selection, and are not shown."""
        requested = set(self.columns)
        shows = bool(requested & {"crc_ok", CORRUPT}) or options.mode != "PERMISSIVE"
        self._checks_crc = shows and options.verify_crc
        self._checks_texts = shows
        self._unpacks = options.decompress and ("body" in requested or options.mode != "PERMISSIVE")
        self._opens = options.inner == "unpack"

    def run(self) -> Iterator[pyarrow.RecordBatch]:
        split = self.split
        position = split.start
        if not split.path:
            lost = DataLost(split.replica.root, split.base, "the files that held it are not there")
            yield from self._lost(lost, split.base)
            return
        try:
            with split.segment() as segment:
                start = first_record(segment, split, self.options.sync_mode)
                scan = scan_split(segment, split, start, rows=self.options.batch_rows)
                for item in scan:
                    if isinstance(item, Gap):
                        yield from self._gap(item)
                    else:
                        yield from self._frame(item)
                    position, self.resyncs = scan.position, scan.resyncs
        except DataLost as exc:
            yield from self._lost(exc, split.base + position)
        if self.malformed and self.options.mode == "DROPMALFORMED":
            logger.warning("%s: %d malformed rows dropped", split.path, self.malformed)
        if self.hidden:
            logger.warning(
                "%s: %d ranges are not records, so it is unknown if they are of the topics or"
                " times asked for: the column %s shows them",
                split.path,
                self.hidden,
                self.options.corrupt_column,
            )

    def _lost(self, lost: DataLost, offset: int) -> Iterator[pyarrow.RecordBatch]:
        if self.options.fail_on_data_loss:
            raise lost
        end = self.split.base + self.split.end
        yield from self._gap(Gap(offset, max(end, offset), MISSING_SEGMENT, b""))

    def _gap(self, gap: Gap) -> Iterator[pyarrow.RecordBatch]:
        """Make the row of a range that is not a record."""
        self.malformed += 1
        low, high = self.selection.start_offset, self.selection.end_offset
        if (low is not None and gap.offset < low) or (high is not None and gap.offset >= high):
            return
        if self.options.mode == "FAILFAST":
            raise RocketbedCorrupt(self.split.path, gap.offset, gap.reason)
        if self.options.mode == "DROPMALFORMED":
            return
        if self.selection.by_content and CORRUPT not in self.columns:
            self.hidden += 1
            return
        values: dict[str, Any] = {
            "broker": self.split.replica.broker,
            "replica": self.split.replica.name,
            "physical_offset": gap.offset,
            "size": min(gap.end - gap.offset, 0x7FFFFFFF),
            "segment": self.split.base,
            CORRUPT: {"offset": gap.offset, "reason": gap.reason, "bytes": gap.prefix},
        }
        arrays = [
            pyarrow.array([values.get(name)], field.type)
            for name, field in zip(self.columns, self.schema, strict=True)
        ]
        yield pyarrow.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _frame(self, frame: Frame) -> Iterator[pyarrow.RecordBatch]:
        mask = self.selection.rows(frame)
        if mask is not None and not mask.all():
            frame.keep(mask)
        if not frame.count:
            return
        faults: Faults = text_faults(frame) if self._checks_texts else {}
        if self._checks_crc:
            faults |= crc_faults(frame)
        faults |= self._inner_faults(frame)
        for rows, bodies in self._portions(frame, faults):
            part, part_faults = frame, faults
            if rows != slice(0, frame.count):
                part = frame.part(rows)
                part_faults = _within(faults, rows)
            yield from self._portion(part, part_faults, bodies)

    def _inner_faults(self, frame: Frame) -> Faults:
        """Find damaged records of several messages. Needed for any columns, since each of them
        stays one row."""
        if not self._opens or self._checks_texts or not (rows := inner_rows(frame)):
            return {}
        mask = numpy.zeros(frame.count, bool)
        mask[rows] = True
        part = frame.part(mask)
        inner_faults = text_faults(part)
        if self.options.verify_crc:
            inner_faults |= crc_faults(part)
        return {rows[number]: reason for number, reason in inner_faults.items()}

    def _portions(
        self, frame: Frame, faults: Faults
    ) -> Iterator[tuple[slice, dict[int, bytes | None]]]:
        """Divide a frame where its unpacked bodies grow too long; bodies by row of the portion."""
        first, held = 0, 0
        bodies: dict[int, bytes | None] = {}
        inner = set(inner_rows(frame)) if self._opens and self.options.decompress else ()
        for row in compressed_rows(frame):
            if not self._unpacks and row not in inner:
                continue
            body = None if row in faults else unpack_row(frame, row)
            if body is None and row not in faults:
                faults[row] = BAD_BODY
            length = len(body or b"")
            if held and held + length > BODIES_MAX:
                yield slice(first, row), bodies
                first, held, bodies = row, 0, {}
            held += length
            bodies[row - first] = body
        yield slice(first, frame.count), bodies

    def _portion(
        self, frame: Frame, faults: Faults, bodies: dict[int, bytes | None]
    ) -> Iterator[pyarrow.RecordBatch]:
        items: dict[int, Sequence[BatchItem]] = {}
        if self._opens:
            items = self._items(frame, faults, bodies)
            # A job that sends such a row again must not send the encoded messages as one.
            bodies |= {row: None for row in inner_rows(frame) if row in faults}
        if faults:
            self.malformed += len(faults)
            if self.options.mode == "FAILFAST":
                row = min(faults)
                offset = int(frame.physical_offsets[row])
                raise RocketbedCorrupt(self.split.path, offset, faults[row])
        batch = pyarrow.RecordBatch.from_arrays(
            [
                self._column(frame, name, field.type, faults, bodies)
                for name, field in zip(self.columns, self.schema, strict=True)
            ],
            schema=self.schema,
        )
        if faults and self.options.mode == "DROPMALFORMED":
            items |= dict.fromkeys(faults, ())
        if items:
            batch = one_a_message(batch, self.columns, items)
        if batch.num_rows:
            yield batch

    def _items(
        self, frame: Frame, faults: Faults, bodies: dict[int, bytes | None]
    ) -> dict[int, Sequence[BatchItem]]:
        """Unpack records of several messages, by row. Adds a fault for a record that holds none."""
        items: dict[int, Sequence[BatchItem]] = {}
        for row in inner_rows(frame):
            is_packed = bool(frame.sys_flags[row] & COMPRESSED)
            if row in faults or (is_packed and row not in bodies):
                continue
            start = int(frame.body_at[row])
            stored = bytes(frame.data[start : start + int(frame.body_size[row])])
            messages = unpack_inner_batch((bodies[row] or b"") if is_packed else stored)
            if not messages:
                faults[row] = BAD_BODY
            elif said_count(frame, row) not in (None, str(len(messages)).encode()):
                faults[row] = BAD_PROPERTIES
            elif self.options.verify_crc and not all(map(is_whole, messages)):
                faults[row] = CRC_MISMATCH
            else:
                items[row] = messages
        return items

    def _column(
        self,
        frame: Frame,
        name: str,
        kind: pyarrow.DataType,
        faults: Faults,
        bodies: dict[int, bytes | None],
    ) -> pyarrow.Array:
        if name in _NUMBERS:
            return numbers(frame.field(_NUMBERS[name]))
        if name in _TIMES:
            return _timestamps(frame.field(_TIMES[name]), kind)
        if name in _HOSTS:
            return host_column(frame, name)
        if name in PROPERTIES:
            return property_column(frame, name)
        if name == "headers":
            return header_column(frame, kind)
        if name == "body":
            return _bodies(frame, bodies)
        if name == CORRUPT:
            return _corrupt_column(frame, faults, kind)
        return self._simple_columns[name](self, frame, faults)

    def _crc_ok(self, frame: Frame, faults: Faults) -> pyarrow.Array:
        if not self.options.verify_crc:
            return pyarrow.nulls(frame.count, pyarrow.bool_())
        right = numpy.ones(frame.count, bool)
        right[[row for row, reason in faults.items() if reason == CRC_MISMATCH]] = False
        return flags(right)

    _simple_columns: Final[dict[str, Callable[["Decoder", Frame, Faults], pyarrow.Array]]] = {
        "broker": lambda self, frame, _: repeated(self.split.replica.broker, frame.count),
        "replica": lambda self, frame, _: repeated(self.split.replica.name, frame.count),
        "segment": lambda self, frame, _: repeated(self.split.base, frame.count),
        "topic": lambda _, frame, __: text_column(frame, "topic"),
        "properties": lambda _, frame, __: text_column(frame, "properties"),
        "physical_offset": lambda _, frame, __: numbers(frame.physical_offsets),
        "size": lambda _, frame, __: numbers(frame.sizes.astype(numpy.int32)),
        "sys_flag": lambda _, frame, __: numbers(frame.sys_flags),
        "body_length": lambda _, frame, __: numbers(frame.body_size.astype(numpy.int32)),
        "crc_ok": lambda self, frame, faults: self._crc_ok(frame, faults),
    }


def _timestamps(times_ms: NDArray[numpy.int64], kind: pyarrow.DataType) -> pyarrow.Array:
    impossible = (times_ms > _TIME_MAX_MS) | (times_ms < -_TIME_MAX_MS)
    if impossible.any():
        times_ms = numpy.where(impossible, 0, times_ms)
        return numbers(times_ms * 1000, kind, absent=impossible)
    return numbers(times_ms * 1000, kind)


def _bodies(frame: Frame, unpacked: dict[int, bytes | None]) -> pyarrow.Array:
    stored = slices(frame.data, frame.body_at, frame.body_size)
    if not unpacked:
        return stored
    mask = numpy.zeros(frame.count, bool)
    mask[list(unpacked)] = True
    values = pyarrow.array([unpacked[row] for row in sorted(unpacked)], pyarrow.binary())
    return compute.replace_with_mask(stored, flags(mask), values)


def _corrupt_column(frame: Frame, faults: Faults, kind: pyarrow.DataType) -> pyarrow.Array:
    if not faults:
        return pyarrow.nulls(frame.count, kind)
    rows: list[dict[str, Any] | None] = [None] * frame.count
    for row, reason in faults.items():
        start = int(frame.positions[row])
        prefix = bytes(frame.data[start : start + min(SHOWN_MAX, int(frame.sizes[row]))])
        rows[row] = {"offset": frame.shift(row) + start, "reason": reason, "bytes": prefix}
    return pyarrow.array(rows, kind)


def _within(faults: Faults, rows: slice) -> Faults:
    return {
        row - rows.start: reason for row, reason in faults.items() if rows.start <= row < rows.stop
    }
