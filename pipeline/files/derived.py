"""Columns that a record holds in another form: hosts as text, bodies as they were before
packing."""

import ipaddress
import zlib
from functools import lru_cache
from typing import Any, Final

import numpy
import pyarrow
from numpy.typing import NDArray

from rocketbed.inspect.bodies import BODY_SIZE_MAX, SYS_COMPRESSED
from rocketbed.pipeline.files.arrays import numbers, texts
from rocketbed.pipeline.files.frame import Frame

_HOSTS_REMEMBERED: Final = 65_536
_CODECS: Final = {1: "lz4", 2: "zstd"}
"""Compression by bits 8 to 10 of SYSFLAG; any other is ZLIB, as in RocketMQ."""


def host_column(frame: Frame, name: str) -> pyarrow.Array:
    """Hosts as `1.2.3.4:10911` or `[::1]:10911`."""
    groups = frame.hosts(name)
    if len(groups) == 1:
        return _texts_of(groups[0][1])
    names: NDArray[Any] = numpy.empty(frame.count, object)
    for rows, raw in groups:
        names[slice(None) if rows is None else rows] = _texts_of(raw).to_numpy(zero_copy_only=False)
    return pyarrow.array(names.tolist(), pyarrow.string())


def _texts_of(raw: NDArray[Any]) -> pyarrow.Array:
    """Hosts of one length as texts; each distinct one is made once."""
    width = raw.dtype.itemsize
    packed = numpy.ascontiguousarray(raw)
    if width == 8:
        values = numbers(packed.view(numpy.int64))
    else:
        buffers = [None, pyarrow.py_buffer(packed)]
        values = pyarrow.Array.from_buffers(pyarrow.binary(width), len(packed), buffers)
    encoded = values.dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    names = [
        host_text(value.to_bytes(8, "little", signed=True) if width == 8 else value).encode()
        for value in distinct
    ]
    return texts(names, pyarrow.string()).take(encoded.indices)


@lru_cache(_HOSTS_REMEMBERED)
def host_text(raw: bytes) -> str:
    """Address and port of a stored host: 4 or 16 bytes of address, then the port in 4."""
    port = int.from_bytes(raw[-4:], "big", signed=True)
    if len(raw) == 8:
        return f"{raw[0]}.{raw[1]}.{raw[2]}.{raw[3]}:{port}"
    return f"[{ipaddress.IPv6Address(raw[:-4])}]:{port}"


def compressed_rows(frame: Frame) -> list[int]:
    """Numbers of the rows whose body the sender packed."""
    packed: list[int] = numpy.flatnonzero(frame.sys_flags & SYS_COMPRESSED).tolist()
    return packed


def unpack_row(frame: Frame, row: int) -> bytes | None:
    """The body of a row as it was before the sender packed it, if so; None when that fails."""
    start, flags = int(frame.body_at[row]), int(frame.sys_flags[row])
    body = bytes(frame.data[start : start + int(frame.body_size[row])])
    return unpack(body, flags) if body and flags & SYS_COMPRESSED else body


def unpack(body: bytes, sys_flag: int) -> bytes | None:
    """A packed body unpacked, at most 64 MiB; None when it is not what SYSFLAG says."""
    codec = _CODECS.get(sys_flag >> 8 & 7)
    try:
        if codec is None:
            inflater = zlib.decompressobj()
            data = inflater.decompress(body, BODY_SIZE_MAX)
            return data if inflater.eof else None
        with pyarrow.CompressedInputStream(pyarrow.BufferReader(body), codec) as stream:
            unpacked: bytes = stream.read(BODY_SIZE_MAX + 1)
        return unpacked if len(unpacked) <= BODY_SIZE_MAX else None
    except (zlib.error, OSError):
        return None
