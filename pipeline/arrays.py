"""Arrow arrays over numpy's memory.

Made from buffers, since `pyarrow.array` of a numpy array imports pandas to ask whether it is a
series: 0.8 CPU seconds in every new worker, and pandas need not be there to read.
"""

from typing import Any, Final

import numpy
import pyarrow
from numpy.typing import NDArray

_TYPES: Final = {
    "int8": pyarrow.int8(),
    "int32": pyarrow.int32(),
    "int64": pyarrow.int64(),
    "uint32": pyarrow.uint32(),
}


def numbers(
    values: NDArray[Any],
    kind: pyarrow.DataType | None = None,
    *,
    absent: NDArray[numpy.bool_] | None = None,
) -> pyarrow.Array:
    """Numbers of the machine's byte order, not copied; null where `absent`.

    `kind`: another type of the same width, a timestamp for instance.
    """
    values = numpy.ascontiguousarray(values)
    kind = kind or _TYPES[values.dtype.name]
    assert kind.bit_width == 8 * values.itemsize, (kind, values.dtype)
    validity = None if absent is None else _bits(~absent)
    buffers = [validity, pyarrow.py_buffer(values)]
    return pyarrow.Array.from_buffers(kind, len(values), buffers)


def flags(values: NDArray[numpy.bool_]) -> pyarrow.Array:
    """Booleans."""
    return pyarrow.Array.from_buffers(pyarrow.bool_(), len(values), [None, _bits(values)])


def slices(data: bytearray, at: NDArray[Any], size: NDArray[Any]) -> pyarrow.Array:
    """Byte ranges as a binary array, one copy. Ranges are in order and do not overlap.

    They are every other slot of an array over all the bytes whose offsets are starts and ends in
    turn; Arrow takes those slots.
    """
    count = len(at)
    if count == 0:
        return pyarrow.array([], pyarrow.binary())
    offsets = numpy.empty(2 * count, numpy.int32)
    offsets[0::2] = at
    offsets[1::2] = at + size
    buffers = [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(data)]
    every = pyarrow.Array.from_buffers(pyarrow.binary(), 2 * count - 1, buffers)
    return every.take(numbers(numpy.arange(0, 2 * count - 1, 2, dtype=numpy.int32)))


def _bits(values: NDArray[numpy.bool_]) -> pyarrow.Buffer:
    return pyarrow.py_buffer(numpy.packbits(values, bitorder="little"))
