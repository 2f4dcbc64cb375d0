"""Find bytes of a log that a scan of its records does not reach.

These are bytes after the last record, and whole segments that are not named by their first offset.
Both can be traces of a crash, or damage; this module decides which, for all readers.
"""

import logging
import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from rocketbed.inspect.commitlog import claims
from rocketbed.inspect.files import READ_SIZE, FilePool, SegmentFile
from rocketbed.pipeline.files.replicas import (
    UNKNOWN,
    Replica,
    closed_ms,
    durable_offset,
    listed_files,
    log_files,
)
from rocketbed.pipeline.files.segments import WINDOW_MIN
from rocketbed.pipeline.files.splits import data_end, last_store_ms
from rocketbed.pipeline.files.sync import last_known

logger = logging.getLogger("rocketbed.pipeline")

_HEAD: Final = 40
_OFFSET_AT: Final = slice(28, 36)


class TailBytes(NamedTuple):
    """Bytes after a log's last record that are not records."""

    end: int
    """Physical offset after the last byte that is not zero; the log's end if only the checkpoint
    knows of more."""
    is_damage: bool
    """True if no crash can have left them there."""


def bytes_after(replica: Replica, files: Sequence[SegmentFile], end: int) -> TailBytes | None:
    """Return the bytes after a log's last record, which ends at `end`, or bytes that were there, as
    consume queues know; None: nothing.

    It is damage if the log holds no record at all, if a broker closed the store when a later record
    was on disk (its checkpoint has the time of the last one), or if a file is missing that held
    records by the queues or that time, and a later file exists. Anything else can come from a
    crash: RocketMQ truncates log and queues without zeroing them. `files`: the files of the log up
    to the last one with data."""
    closed = closed_ms(replica)
    has_bytes = False
    pool = replica.storage.pool()
    try:
        last_end = last_known(replica, pool, end, asks_all=closed is not None)
        later_files = [file for file in files if file.end > end]
        for file in later_files:
            low = max(end - file.start, 0)
            if pool.first_data(file.path, low, min(low + WINDOW_MIN, file.size)) is not None:
                has_bytes = True
                last_end = max(last_end, later_files[-1].start + _data_size(pool, later_files[-1]))
                break
    finally:
        pool.close()
    if last_end <= end and closed is None:
        return None
    gap = _gap_after(replica, end)
    if last_end > end and gap:
        return TailBytes(max(last_end, gap), True)
    last = last_store_ms(replica, end)
    is_late = closed is not None and closed > (last or 0)
    if last_end <= end:
        return TailBytes(max(gap, end), gap > 0) if is_late else None
    return TailBytes(last_end, is_late or (has_bytes and last is None))


def _gap_after(replica: Replica, end: int) -> int:
    """Start of the next file after missing ones beyond `end`; 0 if none is missing."""
    files = log_files(replica)
    size = max((file.size for file in files), default=0)
    ends = [
        following.start
        for file, following in pairwise(files)
        if end <= file.end and file.start + size < following.start
    ]
    return ends[-1] if ends else 0


def written_end(replica: Replica, files: Sequence[SegmentFile], end: int) -> int:
    """Physical offset up to which a log is to be read although its records end at `end`: the end of
    damaged bytes. Warns of bytes that may come from a crash."""
    tail = bytes_after(replica, files, end)
    if tail is None or data_end(replica) > end:  # a live log grew meanwhile
        return end
    if text := traces(replica, end, tail):
        logger.warning("%s", text)
    return tail.end if tail.is_damage else end


def traces(replica: Replica, end: int, tail: TailBytes) -> str:
    """Warning about bytes after a log's end that are not damage; empty if a mark shows that they
    were never confirmed."""
    if tail.is_damage or durable_offset(replica) != UNKNOWN:
        return ""
    if tail.end == end:
        return (
            f"{replica.root}: the log ends at {end}, and a broker closed the store when a later"
            " record was on disk, as its checkpoint says: damage, unless the log was truncated"
            " since (rocketbed store fsck looks closer)"
        )
    return (
        f"{replica.root}: the log ends at {end}, and {tail.end - end} bytes behind that are no"
        " record, or are gone: a crash's traces, or damage (rocketbed store fsck looks closer)"
    )


def tell_overlaps(replica: Replica) -> None:
    """Warn of files of a log that are longer than the distance to the next one."""
    files = listed_files(replica)
    for file, following in pairwise(files):
        if file.end > following.start:
            logger.warning(
                "%s: %d bytes longer than the distance to the next file: not read",
                file.path,
                file.end - following.start,
            )


def misnamed(replica: Replica, files: Sequence[SegmentFile]) -> list[SegmentFile]:
    """Return files of the log's directory whose first record shows that they are segments, and
    whose names do not fit; each with the start that the record claims. Copies of `files`, the
    log's, are not returned."""
    segments: list[SegmentFile] = []
    pool = replica.storage.pool()
    try:
        directory = os.path.join(replica.root, "commitlog")
        strays = set(replica.storage.segments(directory).strays)
        for entry in replica.storage.entries(directory) if strays else ():
            head = pool.read(entry.path, 0, _HEAD) if entry.path in strays and entry.size else b""
            start = int.from_bytes(head[_OFFSET_AT], "big", signed=True)
            is_copy = any(one.start <= start < one.end for one in files)
            if start >= 0 and claims(head, 0, start) and not is_copy:
                segments.append(SegmentFile(start, entry.path, entry.size))
    finally:
        pool.close()
    return segments


def _data_size(pool: FilePool, file: SegmentFile) -> int:
    """Bytes of a file up to the last one that is not zero."""
    for first, last in reversed(list(pool.data_ranges(file.path, 0, file.size))):
        while last > first:
            low = max(first, last - READ_SIZE)
            filled = pool.read(file.path, low, last - low).rstrip(b"\0")
            if filled:
                return low + len(filled)
            last = low
    return 0
