"""Find the first record at or after a position of a file.

Records have no marks between them, and a search for the bytes of a record's head can be fooled: a
client that guesses offsets can plant whole chains of records inside one body. So a boundary is
reached from a known boundary: the file's start, or an entry of a consume queue, which the broker
writes and no client can. The search is available too, as mode `scan`.
"""

import math
import os
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rocketbed.inspect.commitlog import claims
from rocketbed.inspect.consumequeue import BATCH_UNIT, UNIT
from rocketbed.inspect.files import OFFSET_END, FilePool, SegmentFile
from rocketbed.inspect.record import blank_size
from rocketbed.pipeline.files.replicas import Replica
from rocketbed.pipeline.files.scan import Scan, good_records
from rocketbed.pipeline.files.segments import WINDOW_MIN, Segment

if TYPE_CHECKING:
    from rocketbed.pipeline.files.splits import Split

CHAIN: Final = 3
"""Consecutive records that `scan` requires to accept the first."""
_ENTRY: Final = struct.Struct(">qi")


def first_record(segment: Segment, split: "Split", mode: str) -> int:
    """Position in the file of the first record, or corrupt range, that begins at or after the
    split's start.

    `mode` is the option syncMode. The position may be after the split's end.
    """
    if split.is_aligned or split.start == 0:
        return split.start
    anchor = 0
    if mode == "scan":
        anchor = _search(segment, split.start)
    elif mode != "walk":
        anchor = queue_anchor(split.replica, segment, split.start)
    return walk_to(segment, split, anchor)


def walk_to(segment: Segment, split: "Split", anchor: int) -> int:
    """Follow records from `anchor`, a record's start, to the first start at or after the
    split's."""
    scan = Scan(segment, anchor, split.start, is_tail=split.is_tail, durable=split.durable)
    for _ in scan:
        pass
    return scan.position if scan.position >= split.start else split.end


def queue_anchor(replica: Replica, segment: Segment, position: int) -> int:
    """Largest start of a record at or before `position` that a consume queue points at; 0 without
    one."""
    low, best = segment.base, segment.base
    high = segment.base + position
    pool = replica.storage.pool()
    try:
        for files, unit in _queues(replica, replica.storage.queues_max):
            entry = _largest(pool, files, unit, low, high)
            if entry is not None and entry[0] > best:
                data = segment.peek(entry[0] - segment.base, 40)
                if claims(data, 0, entry[0]):
                    best = entry[0]
    finally:
        pool.close()
    return best - segment.base


def last_known(replica: Replica, pool: FilePool, low: int, *, asks_all: bool) -> int:
    """End of the last record at or after `low` that a consume queue points at; `low` without one.
    `asks_all`: search any number of queues, if they are local."""
    best = low
    most = math.inf if asks_all and replica.storage.is_local else replica.storage.queues_max
    for files, unit in _queues(replica, most):
        entry = _largest(pool, files, unit, low, OFFSET_END)
        if entry is not None:
            best = max(best, sum(entry))
    return best


def _queues(replica: Replica, queues_max: float) -> Iterator[tuple[tuple[SegmentFile, ...], int]]:
    """Yield the files of some of a replica's consume queues, and the size of their entries."""
    storage = replica.storage
    count = 0
    for kind, unit in (("consumequeue", UNIT.size), ("batchconsumequeue", BATCH_UNIT.size)):
        root = os.path.join(replica.root, kind)
        for topic in storage.folders(root):
            for queue in storage.folders(os.path.join(root, topic)):
                yield storage.segments(os.path.join(root, topic, queue)).segments, unit
                count += 1
                if count >= queues_max:
                    return


def _largest(
    pool: FilePool, files: tuple[SegmentFile, ...], unit: int, low: int, high: int
) -> tuple[int, int] | None:
    """Return the largest physical offset in `[low, high]` of a queue's entries, and its record's
    size; None without one.

    Offsets grow along a queue; its files end in zeros and may begin with filler entries.
    """
    for file in reversed(files):
        first, last = 0, file.size // unit
        while first < last:
            middle = (first + last) // 2
            data = pool.read(file.path, middle * unit, _ENTRY.size)
            offset, size = _ENTRY.unpack(data) if len(data) == _ENTRY.size else (0, 0)
            is_unused = size <= 0
            if is_unused or offset > high:
                last = middle
            else:
                first = middle + 1
        if first:
            offset, size = _ENTRY.unpack(pool.read(file.path, (first - 1) * unit, _ENTRY.size))
            if offset < low:
                return None
            if size != 0x7FFFFFFF and offset <= high:
                return int(offset), int(size)
    return None


def _search(segment: Segment, position: int) -> int:
    """Nearest position before `position` that looks like a chain of records; 0 without one."""
    distance = WINDOW_MIN
    while distance < position:
        for at in good_records(segment, position - distance):
            if at >= position:
                break
            if _chain_holds(segment, at):
                return at
        distance *= 16
    return 0


def _chain_holds(segment: Segment, position: int) -> bool:
    """True if further records follow, or the end of the file or of the written part."""
    for _ in range(CHAIN - 1):
        position += int.from_bytes(segment.peek(position, 4), "big")
        head = segment.peek(position, 40)
        if not claims(head, 0, segment.base + position):
            remaining = segment.size - position
            return not head[:8].strip(b"\0") or blank_size(head, 0) == remaining
    return True
