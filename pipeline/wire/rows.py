"""Make rows of pulled records: the decoder for files, with another frame.

A pull's answer holds records back to back that are far apart in the broker's log, so each record
has its own physical offset. The broker's file is unknown: column `segment` is null. Column
`replica` is the id of the member that answered, "0" for the master."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy
import pyarrow
from numpy.typing import NDArray

from rocketbed.inspect.bodies import BatchItem, unpack_inner_batch
from rocketbed.pipeline.errors import Condition
from rocketbed.pipeline.files.decode import Decoder, Selection
from rocketbed.pipeline.files.derived import unpack_row
from rocketbed.pipeline.files.frame import Frame
from rocketbed.pipeline.files.inner import inner_rows, said_count
from rocketbed.pipeline.files.judge import Faults
from rocketbed.pipeline.files.segments import PADDING
from rocketbed.pipeline.files.splits import Replica, Split
from rocketbed.pipeline.files.walk import Positions, walk
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.wire.log import WireError
from rocketbed.pipeline.wire.questions import SHARED, describe
from rocketbed.wire.bodies import MessageQueue
from rocketbed.wire.message import INNER_BATCH

LOG: Final = logging.getLogger("rocketbed.pipeline")
ANY: Final = 1 << 62
_DIGITS_MAX: Final = 9
"""Maximum digits of the number of messages in a record."""
_PHYSICAL_AT: Final = 28
"""Position of the physical offset in a record (store.md 2.1)."""


class Uncut(WireError):
    """An answer has bytes that are not a record, so the start of the next record is unknown."""

    condition = Condition.CORRUPT_RECORD


class PulledFrame(Frame):
    __slots__ = ()

    def __init__(self, data: bytearray, positions: Positions) -> None:
        every: NDArray[Any] = numpy.ndarray(
            (len(data) - _PHYSICAL_AT - 7,), ">i8", buffer=data, offset=_PHYSICAL_AT, strides=(1,)
        )
        super().__init__(data, positions, every[positions].astype(numpy.int64) - positions)


class WireDecoder(Decoder):
    """Turns answers about one queue into batches."""

    def __init__(
        self,
        queue: MessageQueue,
        schema: pyarrow.Schema,
        options: Options,
        selection: Selection,
        first: int = ANY,
    ) -> None:
        """`first`: the first queue offset requested, if known."""
        replica = Replica(queue.broker_name, "", options.endpoints)
        split = Split(replica, describe(queue), 0, 0, 0, 0, is_tail=False)
        super().__init__(split, schema, options, selection)
        self._queue = queue
        self._next = first
        """Expected queue offset of the next record; `ANY`: unknown. Offsets in between are lost."""
        self.decoded_end = first
        """Queue offset after the last record decoded, or after its first message."""
        self._range = (0, ANY)

    def rows(
        self, records: bytes, broker_id: int, *, start: int, end: int, following: int = ANY
    ) -> Iterator[pyarrow.RecordBatch]:
        """Make rows of the messages with queue offsets in [start, end), from an answer that ends
        before offset `following`. A record of several messages that stays one row counts by its
        first. Raises `WireError`, `Uncut`."""
        data = bytearray(len(records) + PADDING)
        data[: len(records)] = records
        positions, stop = walk(data, 0, len(records), len(records))
        replica = Replica(self.split.replica.broker, str(broker_id), self.options.endpoints)
        self.split = Split(replica, self.split.path, 0, 0, 0, 0, is_tail=False)
        for first in range(0, len(positions), self.options.batch_rows):
            chosen = positions[first : first + self.options.batch_rows]
            frame = PulledFrame(data, chosen)
            if frame.count < len(chosen):
                stop = int(chosen[frame.count])
                break
            offsets = frame.field("queue_offset")
            self._check(frame, offsets, start, following)
            is_shared = self._queue.topic.startswith(SHARED)
            self.decoded_end = ANY if is_shared else int(offsets[-1]) + 1
            self._range = start, end
            is_cut = self._opens & (frame.sys_flags & INNER_BATCH != 0)
            mask = (is_cut | (offsets >= start)) & (offsets < end)
            if not mask.all():
                frame.keep(mask)
            if frame.count:
                yield from self._frame(frame)
        if stop < len(records):
            problem = (
                f"{describe(self._queue)}: the broker's response has bytes at {stop} that are not "
                f"a record; its store may be damaged"
            )
            if self.options.fail_on_data_loss:
                problem += "; failOnDataLoss=false goes on behind it"
            raise Uncut(problem)

    def finish(self, end: int) -> None:
        """Check after the last answer that the range is complete up to `end`. Raises
        `WireError`."""
        if self._next < end:
            self._report_gap(self._next, end)

    def _check(self, frame: Frame, offsets: NDArray[Any], start: int, following: int) -> None:
        """Check that records claim to be of this queue, and that each follows the one before: a
        consume queue unit or its record may be damaged, and records may be lost. Raises
        `WireError`."""
        if self._queue.topic.startswith(SHARED):
            return
        name = numpy.frombuffer(self._queue.topic.encode(), numpy.uint8)
        data = numpy.frombuffer(frame.data, numpy.uint8)
        queue_ids = frame.field("queue_id")
        is_here = (frame.topic_size == len(name)) & (queue_ids == self._queue.queue_id)
        places = frame.topic_at[is_here, None] + numpy.arange(len(name))
        is_here[is_here] = (data[places] == name).all(axis=1)
        first = int(offsets[0]) if self._next == ANY else self._next
        # The last record is always checked: the next answer begins after it.
        for looked_at in ((frame.count - 1,), range(frame.count)):
            counts, is_counted = _counts(frame, looked_at)
            ends = offsets + counts
            expected = numpy.concatenate(([first], ends[:-1]))
            is_placed = (offsets >= expected) & (offsets < following)
            # A range may begin within a batch, which the broker returns whole.
            is_placed[0] |= first == start and offsets[0] < first < ends[0]
            is_well = is_here & (is_placed | ~is_counted)
            is_known = numpy.concatenate(([True], is_counted[:-1]))
            gaps = numpy.flatnonzero((offsets > expected) & is_known).tolist()
            if is_well.all() and not gaps:
                break
        is_here = is_well
        self._next = int(ends[-1]) if is_counted[-1] else ANY
        if is_here.all():
            for at in gaps:
                self._report_gap(int(expected[at]), int(offsets[at]))
            return
        last = expected - 1
        at = int(numpy.argmin(is_here))
        begin, size = int(frame.topic_at[at]), int(frame.topic_size[at])
        problem = (
            f"{describe(self._queue)}: behind queue offset {last[at]} the broker gives a record"
            f" that says it is {offsets[at]} of queue {queue_ids[at]} of topic"
            f" {bytes(frame.data[begin : begin + size])!r}: its store is damaged"
        )
        if self.options.fail_on_data_loss:
            advice = "failOnDataLoss=false takes what it gives"
            raise WireError(f"{problem}; {advice}", Condition.CORRUPT_RECORD)
        LOG.warning("wire.misplaced %s", problem)
        self._next = ANY

    def _report_gap(self, first: int, end: int) -> None:
        problem = f"{describe(self._queue)}: the broker does not give messages {first} to {end - 1}"
        if self.options.fail_on_data_loss:
            raise WireError(
                f"{problem}; failOnDataLoss=false continues after them", Condition.DATA_LOSS
            )
        LOG.warning("wire.gap %s", problem)

    def _items(
        self, frame: Frame, faults: Faults, bodies: dict[int, bytes | None]
    ) -> dict[int, Sequence[BatchItem]]:
        items = super()._items(frame, faults, bodies)
        start, end = self._range
        for row in inner_rows(frame):
            first, messages = int(frame.field("queue_offset")[row]), items.get(row)
            if messages:
                if self.decoded_end == first + 1:
                    self.decoded_end = first + len(messages)
                items[row] = [one for one in messages if start <= first + one.number < end]
            elif first < start:
                items[row] = ()
        return items

    def _column(
        self,
        frame: Frame,
        name: str,
        kind: pyarrow.DataType,
        faults: Faults,
        bodies: dict[int, bytes | None],
    ) -> pyarrow.Array:
        if name == "segment":
            return pyarrow.nulls(frame.count, kind)
        return super()._column(frame, name, kind, faults, bodies)


def _counts(
    frame: Frame, looked_at: Sequence[int]
) -> tuple[NDArray[numpy.int64], NDArray[numpy.bool_]]:
    """Return the number of messages of each record, and a mask of the records that state it. A
    batch without a number, or in `looked_at` with a wrong one (damage), is False: the offset of the
    next record is then unknown."""
    counts, is_counted = numpy.ones(frame.count, numpy.int64), numpy.ones(frame.count, bool)
    for row in inner_rows(frame):
        stated = said_count(frame, row) or b""
        is_counted[row] = stated.isdigit() and len(stated) <= _DIGITS_MAX and int(stated) > 0
        if is_counted[row] and row in looked_at:
            is_counted[row] = len(unpack_inner_batch(unpack_row(frame, row) or b"") or ()) == int(
                stated
            )
        if is_counted[row]:
            counts[row] = int(stated)
    return counts, is_counted
