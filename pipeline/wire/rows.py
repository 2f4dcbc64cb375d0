"""Rows out of pulled records: the same decoder as for files, another frame.

A pull's answer holds records back to back that stand far apart in the broker's log, so each record
brings its own physical offset. Which file of the broker holds it is not told: column `segment` is
null. Column `replica` is the id of the member that answered, "0" for the master.
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy
import pyarrow
from numpy.typing import NDArray

from rocketbed.pipeline.files.decode import Decoder, Wanted
from rocketbed.pipeline.files.frame import Frame
from rocketbed.pipeline.files.judge import Faults
from rocketbed.pipeline.files.segments import PADDING
from rocketbed.pipeline.files.splits import Replica, Split
from rocketbed.pipeline.files.walk import Positions, walk
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.wire.log import WireError
from rocketbed.pipeline.wire.questions import describe
from rocketbed.wire.bodies import MessageQueue

_PHYSICAL_AT: Final = 28
"""Where a record says its physical offset (store.md 2.1)."""


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
        self, queue: MessageQueue, schema: pyarrow.Schema, options: Options, wanted: Wanted
    ) -> None:
        replica = Replica(queue.broker_name, "", options.endpoints)
        split = Split(replica, describe(queue), 0, 0, 0, 0, is_tail=False)
        super().__init__(split, schema, options, wanted)
        self._queue = queue

    def rows(
        self, records: bytes, broker_id: int, *, start: int, end: int
    ) -> Iterator[pyarrow.RecordBatch]:
        """Rows of the records with queue offsets in [start, end). Raises `WireError`."""
        data = bytearray(len(records) + PADDING)
        data[: len(records)] = records
        positions, stop = walk(data, 0, len(records), len(records))
        replica = Replica(self.split.replica.broker, str(broker_id), self.options.endpoints)
        self.split = Split(replica, self.split.path, 0, 0, 0, 0, is_tail=False)
        for first in range(0, len(positions), self.options.batch_rows):
            wanted = positions[first : first + self.options.batch_rows]
            frame = PulledFrame(data, wanted)
            if frame.count < len(wanted):
                stop = int(wanted[frame.count])
                break
            offsets = frame.field("queue_offset")
            mask = (offsets >= start) & (offsets < end)
            if not mask.all():
                frame.keep(mask)
            if frame.count:
                yield from self._frame(frame)
        if stop < len(records):
            raise WireError(
                f"{describe(self._queue)}: the broker's response has bytes at {stop} that are not "
                f"a record; its store may be damaged"
            )

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
