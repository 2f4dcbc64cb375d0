"""Columns that are not in a record as they are shown: tags, keys and ids out of the property text,
hosts as text, bodies unpacked.

Of a property that stands twice the last one with a value counts (the Java client's reading; in a batch
every message carries its own id and then the batch's). The greedy start of the expressions gives it.
"""

import ipaddress
import zlib
from functools import lru_cache
from typing import Any, Final

import numpy
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute

from pipeline.frame import Frame
from rocketbed.inspect.bodies import BODY_SIZE_MAX, SYS_COMPRESSED

PROPERTIES: Final = {"tags": "TAGS", "keys": "KEYS", "uniq_key": "UNIQ_KEY"}
_HOSTS_REMEMBERED: Final = 65_536
_CODECS: Final = {1: "lz4", 2: "zstd"}
"""Compression by bits 8 to 10 of SYSFLAG; any other is ZLIB, as in RocketMQ."""


def property_column(properties: pyarrow.Array, column: str) -> pyarrow.Array:
    """Column `tags`, `keys` (a list) or `uniq_key` out of raw property texts; null where absent."""
    name = PROPERTIES[column]
    pattern = f"(?s)^(?:.*\\x02)?{name}\\x01(?P<value>[^\\x02]+)"
    found = compute.struct_field(compute.extract_regex(properties, pattern), "value")
    if column != "keys":
        return found
    tidy = compute.ascii_trim(compute.replace_substring_regex(found, " +", " "), " ")
    lists = compute.split_pattern(tidy, " ")
    return lists


def host_column(frame: Frame, name: str) -> pyarrow.Array:
    """Hosts as `1.2.3.4:10911` or `[::1]:10911`."""
    texts: NDArray[Any] = numpy.empty(frame.count, object)
    for rows, raw in frame.hosts(name):
        length = raw.dtype.itemsize
        if length == 8:
            packed = numpy.ascontiguousarray(raw).view(numpy.int64)
            encoded = pyarrow.array(packed).dictionary_encode()
            distinct = encoded.dictionary.to_numpy(zero_copy_only=False)
            names = [host_text(value.tobytes()) for value in distinct]
            if rows is None and len(frame.hosts(name)) == 1:
                return pyarrow.array(names, pyarrow.string()).take(encoded.indices)
            values = numpy.array(names, object)[encoded.indices.to_numpy()]
        else:
            values = numpy.array([host_text(bytes(value)) for value in raw.tolist()], object)
        texts[slice(None) if rows is None else rows] = values
    return pyarrow.array(texts, pyarrow.string())


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
    """The body of a row as it was before the sender packed it; None when that fails."""
    start = int(frame.body_at[row])
    body = bytes(frame.data[start : start + int(frame.body_size[row])])
    return unpack(body, int(frame.sys_flags[row])) if body else body


def unpack(body: bytes, sys_flag: int) -> bytes | None:
    """A packed body unpacked, at most 64 MiB; None when it is not what SYSFLAG says."""
    codec = _CODECS.get(sys_flag >> 8 & 7)
    try:
        if codec is None:
            inflater = zlib.decompressobj()
            data = inflater.decompress(body, BODY_SIZE_MAX)
            return data if inflater.eof else None
        with pyarrow.CompressedInputStream(pyarrow.BufferReader(body), codec) as stream:
            found: bytes = stream.read(BODY_SIZE_MAX + 1)
        return found if len(found) <= BODY_SIZE_MAX else None
    except (zlib.error, OSError):
        return None
