"""Arrow arrays over numpy's memory.

Made from buffers, since `pyarrow.array`, `pyarrow.scalar` and `to_numpy` import pandas to ask
whether they are given a series: 0.8 CPU seconds in every new worker, and reading does not need
pandas.
"""

from collections.abc import Sequence
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
    return pyarrow.Array.from_buffers(pyarrow.bool_(), len(values), [None, _bits(values)])


def texts(values: Sequence[bytes], kind: pyarrow.DataType | None = None) -> pyarrow.Array:
    """Byte strings as a binary array, or as `kind`; a string's bytes have to be UTF-8."""
    ends = numpy.cumsum([len(value) for value in values], dtype=numpy.int32)
    offsets = numpy.zeros(len(values) + 1, numpy.int32)
    offsets[1:] = ends
    buffers = [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(b"".join(values))]
    return pyarrow.Array.from_buffers(kind or pyarrow.binary(), len(values), buffers)


def repeated(value: str | int, count: int) -> pyarrow.Array:
    """Repeat a value in every row: a string, or a number of 64 bits."""
    if isinstance(value, int):
        return numbers(numpy.full(count, value, numpy.int64))
    single = texts([value.encode()], pyarrow.string())
    return single.take(numbers(numpy.zeros(count, numpy.int32)))


def scalar(value: str | int) -> pyarrow.Scalar:
    """Make a scalar to compare arrays with, like Arrow's own conversion but without pandas."""
    return repeated(value, 1)[0]


def mask_of(values: pyarrow.Array) -> NDArray[numpy.bool_]:
    """Booleans without nulls, as numpy has them."""
    raw = numpy.frombuffer(values.buffers()[1], numpy.uint8)
    bits = numpy.unpackbits(raw, count=values.offset + len(values), bitorder="little")
    return bits[values.offset :].astype(bool)


def numbers_of(values: pyarrow.Array) -> NDArray[numpy.int64]:
    """Numbers of 32 bits without nulls, as numpy has them, widened."""
    assert values.type == pyarrow.int32(), values.type
    raw = numpy.frombuffer(values.buffers()[1], numpy.int32)
    return raw[values.offset : values.offset + len(values)].astype(numpy.int64)


def slices(data: bytearray, at: NDArray[Any], size: NDArray[Any]) -> pyarrow.Array:
    """Byte ranges as a binary array, one copy. Ranges are in order and do not overlap.

    They are every other slot of an array over all the bytes whose offsets are starts and ends in
    turn; Arrow takes those slots.
    """
    count = len(at)
    if count == 0:
        return texts([])
    offsets = numpy.empty(2 * count, numpy.int32)
    offsets[0::2] = at
    offsets[1::2] = at + size
    buffers = [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(data)]
    every = pyarrow.Array.from_buffers(pyarrow.binary(), 2 * count - 1, buffers)
    return every.take(numbers(numpy.arange(0, 2 * count - 1, 2, dtype=numpy.int32)))


def _bits(values: NDArray[numpy.bool_]) -> pyarrow.Buffer:
    return pyarrow.py_buffer(numpy.packbits(values, bitorder="little"))
