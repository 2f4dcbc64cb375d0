"""What a log holds that no reading of its records from the first to the last comes upon.

Bytes behind the last record, and whole segments that are not called by their first offset. Either
can be the trace of a crash, or of damage: what tells is said here, once for all readers.
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


class Behind(NamedTuple):
    """Bytes behind a log's last record that are none."""

    end: int
    """Physical offset behind the last that is not zero; the log's end where only the checkpoint
    knows of more."""
    is_damage: bool
    """Whether no crash can have left them there."""


def behind(replica: Replica, files: Sequence[SegmentFile], end: int) -> Behind | None:
    """What stands behind a log's last record, which ends at `end`, or stood there, as consume
    queues know; None: nothing.

    It is damage where the log holds no record at all, where a broker closed the store when a later
    record was on disk (its checkpoint has the time of the last one), and where a file is gone that
    queues or that time know records of, and one behind it, which was made later, is there. Anything
    else can be a crash's: RocketMQ cuts log and queues without zeroing them. `files`: those of the
    log up to the last that holds anything.
    """
    closed = closed_ms(replica)
    has_bytes = False
    pool = replica.storage.pool()
    try:
        found = last_known(replica, pool, end, asks_all=closed is not None)
        rest = [file for file in files if file.end > end]
        for file in rest:
            low = max(end - file.start, 0)
            if pool.first_data(file.path, low, min(low + WINDOW_MIN, file.size)) is not None:
                has_bytes = True
                found = max(found, rest[-1].start + _data_size(pool, rest[-1]))
                break
    finally:
        pool.close()
    if found <= end and closed is None:
        return None
    gap = _gap_behind(replica, end)
    if found > end and gap:
        return Behind(max(found, gap), True)
    last = last_store_ms(replica, end)
    is_late = closed is not None and closed > (last or 0)
    if found <= end:
        return Behind(max(gap, end), gap > 0) if is_late else None
    return Behind(found, is_late or (has_bytes and last is None))


def _gap_behind(replica: Replica, end: int) -> int:
    """Where the files go on behind `end` after one or more that are gone; 0: nowhere."""
    files = log_files(replica)
    size = max((file.size for file in files), default=0)
    ends = [
        two.start for one, two in pairwise(files) if end <= one.end and one.start + size < two.start
    ]
    return ends[-1] if ends else 0


def written_end(replica: Replica, files: Sequence[SegmentFile], end: int) -> int:
    """Physical offset up to which a log has to be read although its records end at `end`: the end
    of what is damage there. What may be a crash's is told in the log."""
    found = behind(replica, files, end)
    if found is None or data_end(replica) > end:  # a live log grew meanwhile
        return end
    if text := traces(replica, end, found):
        logger.warning("%s", text)
    return found.end if found.is_damage else end


def traces(replica: Replica, end: int, found: Behind) -> str:
    """What is said of bytes behind a log's end that are no damage; empty where a mark says that
    they never counted."""
    if found.is_damage or durable_offset(replica) != UNKNOWN:
        return ""
    if found.end == end:
        return (
            f"{replica.root}: the log ends at {end}, and a broker closed the store when a later"
            " record was on disk, as its checkpoint says: damage, unless the log was cut since"
            " (rocketbed store fsck looks closer)"
        )
    return (
        f"{replica.root}: the log ends at {end}, and {found.end - end} bytes behind that are no"
        " record, or are gone: a crash's traces, or damage (rocketbed store fsck looks closer)"
    )


def tell_overlaps(replica: Replica) -> None:
    """Say in the log which files of a log are longer than the distance to the next one."""
    files = listed_files(replica)
    for file, following in pairwise(files):
        if file.end > following.start:
            logger.warning(
                "%s: %d bytes longer than the distance to the next file: not read",
                file.path,
                file.end - following.start,
            )


def misnamed(replica: Replica, files: Sequence[SegmentFile]) -> list[SegmentFile]:
    """Files of the log's directory whose first record says that they are segments, and whose names
    do not; each with the start that the record claims. Copies of `files`, the log's, are none."""
    found: list[SegmentFile] = []
    pool = replica.storage.pool()
    try:
        directory = os.path.join(replica.root, "commitlog")
        strays = set(replica.storage.segments(directory).strays)
        for entry in replica.storage.entries(directory) if strays else ():
            head = pool.read(entry.path, 0, _HEAD) if entry.path in strays and entry.size else b""
            start = int.from_bytes(head[_OFFSET_AT], "big", signed=True)
            is_copy = any(one.start <= start < one.end for one in files)
            if start >= 0 and claims(head, 0, start) and not is_copy:
                found.append(SegmentFile(start, entry.path, entry.size))
    finally:
        pool.close()
    return found


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
