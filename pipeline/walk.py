"""From one record to the next by their sizes, many chains at once.

A loop in Python over every record costs more than all the rest of reading. So the window is cut into
lanes; each lane begins at a place that looks like a record, and numpy steps all lanes together, a
record at a time. Where a lane ends at the beginning of the next one, the two are one chain. Whether
they meet is checked for every lane against the walk from the left, so a body that holds bytes like a
record costs time and never a wrong position: only what is linked to the first record by sizes counts.
"""

import struct
from typing import Final

import numpy
from numpy.typing import NDArray

from rocketbed.inspect.record import MAGIC_PREFIX, RECORD_SIZE_MIN

_SIZE: Final = struct.Struct(">i")

Positions = NDArray[numpy.int64]


def walk(data: bytearray, position: int, stop: int, end: int) -> tuple[Positions, int]:
    """Positions of the records in `data[:end]` that begin in `[position, stop)`, and what follows.

    `position` is a record's start. Ends at `stop`, before the first size that is under a record's
    least, and before the first record that is not wholly there. Sizes alone are looked at.
    """
    found: list[int] = []
    append, unpack = found.append, _SIZE.unpack_from
    stop = min(stop, end - RECORD_SIZE_MIN + 1)
    while position < stop:
        (size,) = unpack(data, position)
        following = position + size
        if size < RECORD_SIZE_MIN or following > end:
            break
        append(position)
        position = following
    return numpy.array(found, numpy.int64), position
