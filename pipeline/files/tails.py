"""What a log holds that no reading of its records from the first to the last comes upon.

Bytes behind the last record, and whole segments that are not called by their first offset. Either
can be the trace of a crash, or of damage: what tells is said here, once for all readers.
"""

import logging
import os
from collections.abc import Sequence
from typing import Final

from rocketbed.inspect.commitlog import claims
from rocketbed.inspect.files import READ_SIZE, FilePool, SegmentFile
from rocketbed.pipeline.files.replicas import UNKNOWN, Replica, durable_offset
from rocketbed.pipeline.files.segments import WINDOW_MIN

logger = logging.getLogger("rocketbed.pipeline")

_HEAD: Final = 40
_OFFSET_AT: Final = slice(28, 36)


def written_end(replica: Replica, files: Sequence[SegmentFile], end: int) -> int:
    """Physical offset up to which the log has to be read although its records end at `end`.

    That is `end`, but where bytes stand behind it that cannot be a crash's: it is the end of these
    then. So it is in a store that was closed (a broker deletes `abort` after its last flush), and
    where the log holds no record at all. Elsewhere the bytes are told in the log. `files`: those of
    the log up to the last that holds anything.
    """
    pool = replica.storage.pool()
    try:
        behind = [file for file in files if file.end > end]
        for file in behind:
            low = max(end - file.start, 0)
            if pool.first_data(file.path, low, min(low + WINDOW_MIN, file.size)) is not None:
                break
        else:
            return end
        last = behind[-1]
        size = _data_size(pool, last)
    finally:
        pool.close()
    if end == files[0].start or _was_closed(replica):
        return max(last.start + size, end)
    if durable_offset(replica) == UNKNOWN:
        logger.warning(
            "%s: the log ends at %d, and up to %d bytes behind that are no record: what a crash"
            " left, or damage (rocketbed store fsck looks closer)",
            replica.root,
            end,
            last.start + size - end,
        )
    return end


def misnamed(replica: Replica) -> list[SegmentFile]:
    """Files of the log's directory whose first record says that they are segments, and whose names
    do not; each with the start that the record claims."""
    found: list[SegmentFile] = []
    pool = replica.storage.pool()
    try:
        directory = os.path.join(replica.root, "commitlog")
        strays = set(replica.storage.segments(directory).strays)
        for entry in replica.storage.entries(directory) if strays else ():
            head = pool.read(entry.path, 0, _HEAD) if entry.path in strays and entry.size else b""
            start = int.from_bytes(head[_OFFSET_AT], "big", signed=True)
            if start >= 0 and claims(head, 0, start):
                found.append(SegmentFile(start, entry.path, entry.size))
    finally:
        pool.close()
    return found


def _was_closed(replica: Replica) -> bool:
    """Whether a broker said of a store that all of it was on disk, and none has opened it since."""
    names = {entry.name for entry in replica.storage.entries(replica.root)}
    return "checkpoint" in names and "abort" not in names


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
