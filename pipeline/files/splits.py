"""Splits: the bytes of a file that a task reads.

A task owns the records that *begin* in its stretch, and reads past the end to finish the last one.
So any division of a log into stretches yields every record once.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy

from rocketbed.inspect.files import SegmentFile
from rocketbed.inspect.record import scan_record
from rocketbed.pipeline.files.frame import Frame
from rocketbed.pipeline.files.replicas import (
    UNKNOWN,
    NotAStore,
    Replica,
    durable_offset,
    listed_files,
    log_files,
)
from rocketbed.pipeline.files.scan import Scan
from rocketbed.pipeline.files.segments import WINDOW, WINDOW_MIN, Segment
from rocketbed.pipeline.files.storage import spread
from rocketbed.pipeline.files.sync import queue_anchor

__all__ = [
    "CLOCK_MARGIN_MS",
    "UNKNOWN",
    "NotAStore",
    "Replica",
    "Split",
    "aligned_end",
    "confirmed_end",
    "data_end",
    "durable_offset",
    "log_files",
    "plan_splits",
    "scan_split",
    "used_files",
]

CLOCK_MARGIN_MS: Final = 600_000
"""Margin for clocks that were set back, without which store times would grow along the log. A file
is skipped only if its times are this far outside of the requested ones."""


@dataclass(frozen=True, slots=True)
class Split:
    """Share of one task: the records that begin in `[start, end)` of one file of one replica.

    `start`, `end` and `size` are bytes from the file's first; `base` is that byte's physical
    offset.
    """

    replica: Replica
    path: str
    """Path of the file; empty for a gap between files: `[base, base + end)` is missing."""
    base: int
    start: int
    end: int
    size: int
    """Length of the file when the read was planned."""
    is_tail: bool
    """True if no later file holds records: only there the log may end."""
    durable: int = UNKNOWN
    """Physical offset up to which the log is known to have been on disk; -1: unknown."""
    is_aligned: bool = False
    """True if a record is known to begin at `start`."""

    @property
    def file(self) -> SegmentFile:
        """File of the split, as it was listed."""
        return SegmentFile(self.base, self.path, self.size)

    @property
    def is_full(self) -> bool:
        """True if the split ends with its file and the log goes on in the next file: no broker
        changes these bytes any more."""
        return not self.is_tail and self.end == self.size

    def segment(self, *, window: int = WINDOW) -> Segment:
        """Open the file of the split. Raises `DataLost`."""
        storage = self.replica.storage
        return Segment(self.path, self.base, self.size, window=window, storage=storage)


def data_end(replica: Replica, since: int | None = None) -> int:
    """Physical offset after the last good record of a replica.

    Reads only the last file with data, from the last record in it that a consume queue points at,
    or from `since`, the start of a record by an earlier call. A live log may be longer a moment
    later."""
    files = log_files(replica)
    durable = durable_offset(replica)
    for file in reversed(files):
        with replica.segment(file) as segment:
            if segment.first_data(0) is None:
                continue
            start = _start_within(segment, replica, since, durable)
            end = _end_within(segment, start, durable)
            if end == start and since is None:
                end = _end_within(segment, 0, durable)
        if end > 0 or file is files[0]:
            return file.start + end
    return files[0].start if files else 0


def last_store_ms(replica: Replica, end: int) -> int | None:
    """Store time of the last record before a record's end; None without one."""
    for file in log_files(replica):
        if file.start < end <= file.end:
            with replica.segment(file) as segment:
                start = queue_anchor(replica, segment, end - file.start - 1)
                stored_ms = None
                for item in Scan(segment, start, end - file.start):
                    if isinstance(item, Frame):
                        stored_ms = int(item.field("store_ms")[-1])
                return stored_ms
    return None


def confirmed_end(replicas: Sequence[Replica], since: int | None = None) -> int:
    """Physical offset, at a record's end, up to which all of a broker's replicas have the log.

    In classic mode nothing on disk says what is confirmed; no failover among these replicas can
    remove records that all of them hold. For one replica alone it is its own end.
    """
    return min(data_end(replica, since) for replica in replicas)


def aligned_end(
    replica: Replica,
    start: int,
    bytes_max: int,
    *,
    rows_max: int | None = None,
    limit: int | None = None,
) -> int:
    """Return the end of a stretch from `start` (a record's start) of at most so many bytes and
    rows.

    The end is a record's end, at most `limit`, and `limit` itself if no record is left before it.
    The stretch has at least one record, however long, if there is one.
    """
    target = start + bytes_max
    rows_left = rows_max
    reached = start
    for split in plan_splits([replica], start=start, end=limit, is_aligned=True):
        for ends in _ends(split):
            count = max(int(numpy.searchsorted(ends, target, "right")), int(reached == start))
            if rows_left is not None:
                count = min(count, rows_left)
                rows_left -= count
            if count:
                reached = int(ends[count - 1])
            if count < len(ends) or rows_left == 0:
                return reached
    return max(reached, limit or 0)


def plan_splits(
    replicas: Iterable[Replica],
    *,
    split_bytes: int = 128 << 20,
    start: int | None = None,
    end: int | None = None,
    is_aligned: bool = False,
    start_ms: int | None = None,
    end_ms: int | None = None,
    durable: int | None = None,
    holds: Mapping[int, bool] | None = None,
) -> list[Split]:
    """Divide the log between two physical offsets (None: its start or end) into splits, in order.

    `is_aligned`: a record begins at `start`. `durable`: offset up to which there must be records
    (None: by the store's own marks). `start_ms` skips files if the first record of the next file
    was stored over ten minutes before it, `end_ms` files that began ten minutes after it.
    `holds`: for files whose content is known, by first offset, True if they hold selected records;
    their times are not checked, and a file without selected records stays one split.
    """
    splits: list[Split] = []
    for replica in replicas:
        mark = durable_offset(replica) if durable is None else durable
        splits += _splits_of(
            replica, split_bytes, start, end, is_aligned, start_ms, end_ms, mark, holds or {}
        )
    return splits


def scan_split(segment: Segment, split: Split, start: int, *, rows: int = 4096) -> Scan:
    """Make the scan of a split from `start`, a record's start."""
    return Scan(segment, start, split.end, rows=rows, is_tail=split.is_tail, durable=split.durable)


def _ends(split: Split) -> Iterator["numpy.ndarray[tuple[int], numpy.dtype[numpy.int64]]"]:
    """Offsets after each record and each corrupt range of a split that begins at a record."""
    if not split.path:
        yield numpy.array([split.base + split.end])
        return
    with split.segment() as segment:
        for item in scan_split(segment, split, split.start):
            yield item.ends if isinstance(item, Frame) else numpy.array([item.end])


def _start_within(segment: Segment, replica: Replica, since: int | None, durable: int) -> int:
    """Latest position in the file at which a record is known to start."""
    if since is not None:
        return min(max(since - segment.base, 0), segment.size)
    limit = segment.size
    if durable != UNKNOWN:
        limit = min(max(durable - segment.base, 0), limit)
    return queue_anchor(replica, segment, limit)


def _end_within(segment: Segment, start: int, durable: int) -> int:
    """Return the position after the last good record at or after `start`; 0 if there is none."""
    scan = Scan(segment, start, segment.size, durable=durable)
    end = start
    for item in scan:
        if not isinstance(item, Frame):
            continue
        ends = item.ends - segment.base
        if durable != UNKNOWN and segment.base + int(ends[-1]) > durable:
            good = _leading_good(item, durable)
        else:
            good = _last_good(item)
        if good:
            end = int(ends[good - 1])
        if good < item.count and durable != UNKNOWN:
            return end
    return segment.size if scan.position == segment.size and end > 0 else end


def _last_good(frame: Frame) -> int:
    """Number of records up to the last good one."""
    for number in range(frame.count - 1, -1, -1):
        if _is_good(frame, number):
            return number + 1
    return 0


def _leading_good(frame: Frame, durable: int) -> int:
    """Number of records before the first bad one after the part known to be on disk."""
    for number in range(frame.count):
        if int(frame.ends[number]) > durable and not _is_good(frame, number):
            return number
    return frame.count


def _is_good(frame: Frame, number: int) -> bool:
    position = int(frame.positions[number])
    data = bytes(frame.data[position : position + int(frame.sizes[number])])
    return scan_record(data, memoryview(data), 0, frame.shift(number) + position) is not None


def _splits_of(
    replica: Replica,
    split_bytes: int,
    start: int | None,
    end: int | None,
    is_aligned: bool,
    start_ms: int | None,
    end_ms: int | None,
    durable: int,
    holds: Mapping[int, bool],
) -> list[Split]:
    files = used_files(replica)
    splits: list[Split] = []
    listed = listed_files(replica)
    if files and listed[0].start < files[0].start:  # an empty file: deletion takes whole ones
        near = Split(replica, "", files[0].start, 0, 0, 0, is_tail=False)
        splits += _hole(near, listed[0].start, start, end)
    left_out = _out_of_time(replica, files, start_ms, end_ms, holds)
    for number, file in enumerate(files):
        is_tail = number + 1 == len(files)
        low = file.start if start is None else max(start, file.start)
        high = file.end if end is None else min(end, file.end)
        whole = Split(replica, file.path, file.start, 0, file.size, file.size, is_tail, durable)
        if number and files[number - 1].end < file.start:
            splits += _hole(whole, files[number - 1].end, start, end)
        if low >= high or number in left_out:
            continue
        aligned = low == file.start or is_aligned
        step = split_bytes if holds.get(file.start, True) else high - low
        for at in range(low, high, step):
            stop = min(high, at + step)
            splits.append(
                replace(
                    whole,
                    start=at - file.start,
                    end=stop - file.start,
                    is_aligned=aligned and at == low,
                )
            )
    log_end = files[-1].end if files else 0
    if log_end < durable:
        near = Split(replica, "", durable, 0, 0, 0, is_tail=False)
        splits += _hole(near, log_end, start, end)
    return splits


def _hole(near: Split, begin: int, start: int | None, end: int | None) -> list[Split]:
    """Make a split for the files missing between `begin` and a file, if they are in the range."""
    low = begin if start is None else max(start, begin)
    high = near.base if end is None else min(end, near.base)
    if low >= high:
        return []
    return [replace(near, path="", base=low, start=0, end=high - low, size=high - low)]


def used_files(replica: Replica) -> list[SegmentFile]:
    """Files of the log up to the last one with data: later ones are only preallocated."""
    files = list(log_files(replica))
    while len(files) > 1:
        last = files[-1]
        with replica.segment(last) as segment:
            if segment.first_data(0) is not None:
                break
        files.pop()
    return files


def _out_of_time(
    replica: Replica,
    files: Sequence[SegmentFile],
    start_ms: int | None,
    end_ms: int | None,
    holds: Mapping[int, bool],
) -> set[int]:
    """Numbers of the files that hold nothing in a range of times, among those not in `holds`."""
    if start_ms is None and end_ms is None:
        return set()
    unknown = {number for number, file in enumerate(files) if file.start not in holds}
    to_check = sorted(unknown | {number + 1 for number in unknown if number + 1 < len(files)})
    is_local = replica.storage.is_local
    begun = spread(
        lambda number: _first_store_ms(replica, files[number]), to_check, is_local=is_local
    )
    numbers: set[int] = set()
    for number, at in zip(to_check, begun, strict=True):
        if at is None:
            continue
        if number and start_ms is not None and at < start_ms - CLOCK_MARGIN_MS:
            numbers.add(number - 1)
        if end_ms is not None and at >= end_ms + CLOCK_MARGIN_MS:
            numbers.add(number)
    return numbers & unknown


def _first_store_ms(replica: Replica, file: SegmentFile) -> int | None:
    """Store time of the first record of a file; None where the second one's is far from it.

    No checksum covers store times: a single one may be damaged, and decides nothing.
    """
    with replica.segment(file, window=WINDOW_MIN) as segment:
        for item in Scan(segment, 0, segment.size, rows=2):
            if not isinstance(item, Frame) or item.count < 2:
                return None
            first, second = item.field("store_ms").tolist()
            return int(first) if abs(second - first) <= CLOCK_MARGIN_MS else None
    return None
