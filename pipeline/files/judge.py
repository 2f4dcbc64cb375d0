"""Check the contents of well-framed records: checksums, texts, packed bodies.

Framing never depends on these checks; they are made when the result can show, that is when a
checksum column, the corrupt column or one of the modes that drop or refuse is asked for.
"""

import zlib
from typing import Final

import numpy
from numpy.typing import NDArray

from rocketbed.inspect.record import CRC_PROPERTY, CRC_PROPERTY_SIZE, SECTOR, crc_digits
from rocketbed.pipeline.files.arrays import mask_of
from rocketbed.pipeline.files.corrupt import BAD_PROPERTIES, BAD_TOPIC, CRC_MISMATCH
from rocketbed.pipeline.files.frame import Frame
from rocketbed.pipeline.files.texts import text_column
from rocketbed.pipeline.files.walk import Positions

_CRC_MASK: Final = 0x7FFFFFFF
_BEHIND: Final = 8
"""Bytes read after a record: a blank record's head."""
_TAIL: Final = numpy.frombuffer(CRC_PROPERTY, numpy.uint8)

Faults = dict[int, str]
"""Reasons by row."""


def crc_faults(frame: Frame) -> Faults:
    """Rows whose body does not have its checksum, or whose record does not (property __CRC32#)."""
    view = memoryview(frame.data)
    crc32 = zlib.crc32
    starts = frame.body_at.tolist()
    ends = (frame.body_at + frame.body_size).tolist()
    computed = numpy.array(
        [crc32(view[start:end]) for start, end in zip(starts, ends, strict=True)], numpy.uint32
    ) & numpy.uint32(_CRC_MASK)
    wrong = (computed != frame.field("body_crc").astype(numpy.uint32)) & (frame.body_size > 0)
    faults = dict.fromkeys(numpy.flatnonzero(wrong).tolist(), CRC_MISMATCH)
    for row in _carrying_crc(frame).tolist():
        if row not in faults and not _record_crc_holds(frame, view, row):
            faults[row] = CRC_MISMATCH
    return faults


def text_faults(frame: Frame) -> Faults:
    """Rows whose topic or properties are no UTF-8 or have lost a sector of the disk to zeros."""
    faults: Faults = {}
    parts = (
        ("properties", BAD_PROPERTIES, frame.properties_at, frame.properties_size),
        ("topic", BAD_TOPIC, frame.topic_at, frame.topic_size),
    )
    for part, reason, at, size in parts:
        texts = text_column(frame, part)
        if texts.null_count:
            absent = mask_of(texts.is_null())
            faults |= dict.fromkeys(numpy.flatnonzero(absent).tolist(), reason)
        faults |= dict.fromkeys(_zeroed(frame, at, size), reason)
    return faults | dict.fromkeys(_unwritten(frame), BAD_PROPERTIES)


def _carrying_crc(frame: Frame) -> Positions:
    """Rows whose properties end in a checksum of the record (store.md 2.7)."""
    rows: Positions = numpy.flatnonzero(frame.properties_size >= CRC_PROPERTY_SIZE)
    at = frame.properties_at + frame.properties_size - CRC_PROPERTY_SIZE
    rows = rows[frame.bytes[at[rows]] == _TAIL[0]]
    if len(rows):
        tails = frame.bytes[at[rows][:, None] + numpy.arange(CRC_PROPERTY_SIZE)]
        same = (tails[:, : len(_TAIL)] == _TAIL).all(axis=1) & (tails[:, -1] == 2)
        # Another property's name may end in the same text.
        is_all = frame.properties_size[rows] == CRC_PROPERTY_SIZE
        rows = rows[same & (is_all | (frame.bytes[at[rows] - 1] == 2))]
    return rows


def _record_crc_holds(frame: Frame, view: memoryview, row: int) -> bool:
    start = int(frame.positions[row])
    end = start + int(frame.sizes[row]) - CRC_PROPERTY_SIZE
    digits = bytes(view[end + len(CRC_PROPERTY) : end + CRC_PROPERTY_SIZE - 1])
    return digits == crc_digits(zlib.crc32(view[start:end]))


def _zeroed(frame: Frame, at: Positions, size: Positions) -> list[int]:
    """Rows of whose text a 512-byte sector of the disk holds nothing but zeros (store.md 8.6).

    A sector that is all zero within the text begins with a zero: at the text's start or at the
    sector's. Only rows with such a zero are looked at closely.
    """
    u1, shift = frame.bytes, frame.offset
    suspects: NDArray[numpy.bool_] = (u1[at] == 0) & (size > 0)
    end = at + size
    sector = at + (-(at + shift)) % SECTOR
    while (inside := sector < end).any():
        suspects |= inside & (u1[numpy.where(inside, sector, 0)] == 0)
        sector = sector + SECTOR
    return [
        row
        for row in numpy.flatnonzero(suspects).tolist()
        if _has_zero_sector(frame, row, int(at[row]), int(end[row]))
    ]


def _unwritten(frame: Frame) -> list[int]:
    """The last record, if its end reads as zeros and nothing follows it: a kill leaves any first
    part of a record (T5)."""
    end = frame.positions + frame.sizes
    return [
        row
        for row in numpy.flatnonzero(frame.bytes[end - 1] == 0).tolist()
        if bytes(frame.data[end[row] : end[row] + _BEHIND]) == bytes(_BEHIND)
        and (frame.properties_size[row] or not frame.bytes[end[row] - 3])
    ]


def _has_zero_sector(frame: Frame, row: int, start: int, end: int) -> bool:
    while start < end:
        stop = min(end, start + SECTOR - (start + frame.shift(row)) % SECTOR)
        if not frame.data[start:stop].strip(b"\0"):
            return True
        start = stop
    return False
