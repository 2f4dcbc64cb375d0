"""Java's string hash of many texts at once, without a loop over rows.

`h = 31 h + c` over a text is a sum of its characters, each times a power of 31. Modulo 2^32, 31 has
an inverse. So a single running sum over all texts, with each character divided by the power of 31
at its place, gives every text's hash by a subtraction and a multiplication.
"""

from typing import Any, Final

import numpy
import pyarrow
from numpy.typing import NDArray

Hashes = NDArray[numpy.uint32]
_INVERSE: Final = pow(31, -1, 1 << 32)
_TABLE_MIN: Final = 1 << 16
_tables: list[Hashes] = []


def text_parts(values: pyarrow.Array) -> tuple[NDArray[numpy.int64], NDArray[numpy.uint8]]:
    """Return the offsets (one more than values) and bytes of a string array; a null is empty."""
    offsets = numpy.frombuffer(values.buffers()[1], numpy.int32)
    offsets = offsets[values.offset : values.offset + len(values) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    data = values.buffers()[2]
    raw = numpy.frombuffer(data, numpy.uint8)[first:last] if last > first else _nothing()
    return offsets.astype(numpy.int64) - first, raw


def hashes_of(offsets: NDArray[numpy.int64], data: NDArray[numpy.uint8]) -> Hashes:
    """Return the Java hash of each text, as an unsigned pattern; every text has to be ASCII."""
    count = len(data)
    powers, inverses = _powers(count + 1)
    sums = numpy.zeros(count + 1, numpy.uint32)
    numpy.cumsum(data * inverses[:count], dtype=numpy.uint32, out=sums[1:])
    begins, ends = offsets[:-1], offsets[1:]
    return (sums[ends] - sums[begins]) * powers[numpy.maximum(ends - 1, 0)]


def appended(start: Hashes, sizes: NDArray[Any], hashes: Hashes) -> Hashes:
    """Return the hashes of concatenations: of prefixes with hashes `start`, and of texts with
    lengths `sizes` and hashes `hashes`."""
    powers, _ = _powers(int(sizes.max(initial=0)) + 1)
    joined: Hashes = start * powers[sizes] + hashes
    return joined


def key_hashes(hashes: Hashes) -> NDArray[numpy.int32]:
    """Return the hashes in index entries: absolute values, with 0 for -2^31 (store.md 4.1)."""
    signed = hashes.view(numpy.int32)
    return numpy.abs(numpy.where(signed == numpy.int32(-(1 << 31)), numpy.int32(0), signed))


def _powers(count: int) -> tuple[Hashes, Hashes]:
    """Return the powers of 31 and their inverses, modulo 2^32."""
    if not _tables or len(_tables[0]) < count:
        size = max(_TABLE_MIN, 2 * count)
        _tables[:] = [_table(31, size), _table(_INVERSE, size)]
    return _tables[0], _tables[1]


def _table(factor: int, size: int) -> Hashes:
    factors = numpy.full(size, factor, numpy.uint32)
    factors[0] = 1
    return numpy.cumprod(factors, dtype=numpy.uint32)


def _nothing() -> NDArray[numpy.uint8]:
    return numpy.zeros(0, numpy.uint8)
