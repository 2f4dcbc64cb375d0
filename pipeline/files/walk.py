"""Walk from record to record by their sizes, many chains at once.

A loop in Python over every record takes as long as the rest of reading. So the window is divided
into lanes; each lane begins at a position that looks like a record, and numpy steps all lanes
together, a record at a time. Where a lane ends exactly where the next one begins, the two are one
chain. Lanes that do not meet the chain from the left are walked again by the loop, so a body with
bytes like a record costs time and never gives a wrong position: only records linked to the first
one by sizes count.
"""

import struct
from typing import Final

import numpy
from numpy.typing import NDArray

from rocketbed.inspect.record import MAGIC_PREFIX, RECORD_SIZE_MIN

LANE_RECORDS: Final = 32
"""Target number of records in a lane: a lane costs a search, a step a dozen array calls."""
LANES_MIN: Final = 16
"""Minimum number of lanes: with fewer the loop is as fast."""
SAMPLE_SIZE: Final = 32 << 10
"""Bytes walked first to estimate the size of records."""
_SAMPLE: Final = 16
_SIZE: Final = struct.Struct(">i")
_OFFSET: Final = struct.Struct(">q")
_OFFSET_AT: Final = 28

Positions = NDArray[numpy.int64]


def walk(
    data: bytearray, position: int, stop: int, end: int, offset: int = 0
) -> tuple[Positions, int]:
    """Positions of the records in `data[:end]` that begin in `[position, stop)`, and the next one.

    `position` is a record's start, `offset` the physical offset of `data[0]`. Ends at `stop`,
    before the first size below the minimum of a record, and before the first incomplete record.
    Only sizes are checked.
    """
    stop = min(stop, end - RECORD_SIZE_MIN + 1)
    sample, following = walk_one_by_one(data, position, min(stop, position + SAMPLE_SIZE), end)
    if len(sample) < _SAMPLE:
        remaining, following = walk_one_by_one(data, following, stop, end)
        return numpy.concatenate((sample, remaining)), following
    lanes = (stop - following) * len(sample) // (following - position) // LANE_RECORDS
    if lanes < LANES_MIN:
        remaining, following = walk_one_by_one(data, following, stop, end)
        return numpy.concatenate((sample, remaining)), following
    starts = _lane_starts(data, following, stop, lanes, offset)
    remaining, following = _walk_lanes(data, starts, stop, end)
    return numpy.concatenate((sample, remaining)), following


def walk_one_by_one(data: bytearray, position: int, stop: int, end: int) -> tuple[Positions, int]:
    positions: list[int] = []
    append, unpack = positions.append, _SIZE.unpack_from
    stop = min(stop, end - RECORD_SIZE_MIN + 1)
    while position < stop:
        (size,) = unpack(data, position)
        following = position + size
        if size < RECORD_SIZE_MIN or following > end:
            break
        append(position)
        position = following
    return numpy.array(positions, numpy.int64), position


def _lane_starts(data: bytearray, position: int, stop: int, lanes: int, offset: int) -> Positions:
    """Starts of lanes: `position`, then positions that claim to be records, some distance apart."""
    starts = [position]
    step = (stop - position) // lanes
    find, unpack = data.find, _OFFSET.unpack_from
    for lane in range(1, lanes):
        target = position + lane * step
        if target <= starts[-1]:
            continue
        limit = target + step
        at = find(MAGIC_PREFIX, target + 4, limit)
        while at >= 0:
            start = at - 4
            if start < stop and unpack(data, start + _OFFSET_AT)[0] == offset + start:
                starts.append(start)
                break
            at = find(MAGIC_PREFIX, at + 1, limit)
    return numpy.array(starts, numpy.int64)


def _walk_lanes(data: bytearray, starts: Positions, stop: int, end: int) -> tuple[Positions, int]:
    """Step all lanes to the beginning of the next one, then join those that meet."""
    targets = numpy.append(starts[1:], stop)
    every, counts, ends = _step(data, starts, targets, end)
    if (ends[:-1] == starts[1:]).all():
        mask = numpy.arange(every.shape[1]) < counts[:, None]
        joined, following = every[mask], int(ends[-1])
        if following < stop:
            remaining, following = walk_one_by_one(data, following, stop, end)
            joined = numpy.concatenate((joined, remaining))
        return joined, following
    pieces: list[Positions] = []
    following = int(starts[0])
    for lane, (start, target) in enumerate(zip(starts.tolist(), targets.tolist(), strict=True)):
        if start == following:
            pieces.append(every[lane, : counts[lane]])
            following = int(ends[lane])
        if following < target:
            piece, following = walk_one_by_one(data, following, target, end)
            pieces.append(piece)
            if following < target:
                break
    return numpy.concatenate(pieces), following


def _step(
    data: bytearray, starts: Positions, targets: Positions, end: int
) -> tuple[Positions, Positions, Positions]:
    """Positions by lane and step, the number of valid ones in each lane, and the end of each lane.

    A lane that ends before its target has met an impossible record, or has too many records.
    """
    sizes: NDArray[numpy.int32] = numpy.ndarray((len(data) - 3,), ">i4", buffer=data, strides=(1,))
    steps_max = 3 * LANE_RECORDS
    every = numpy.empty((len(starts), steps_max), numpy.int64)
    counts = numpy.zeros(len(starts), numpy.int64)
    at = starts.copy()
    going = at < targets
    for step in range(steps_max):
        every[:, step] = at
        size = sizes[at].astype(numpy.int64)
        following = at + size
        going &= (size >= RECORD_SIZE_MIN) & (following <= end)
        counts += going
        at = numpy.where(going, following, at)
        going &= at < targets
        if not going.any():
            break
    return every, counts, at
