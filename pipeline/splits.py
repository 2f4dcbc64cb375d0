"""Which bytes of which files a task reads.

A task owns the records that *begin* in its stretch, and reads past the end to finish the last of
them. So any cut of a log into stretches gives every record once, wherever it falls.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy

from pipeline.errors import PipelineError
from pipeline.frame import Frame
from pipeline.options import OptionError
from pipeline.scan import Scan
from pipeline.segments import Segment
from rocketbed.inspect.files import SegmentFile, list_segments
from rocketbed.inspect.marks import CKPT_NAME, FLUSHED_NAME, read_marks
from rocketbed.inspect.record import scan_record

UNKNOWN: Final = -1
CLOCK_MARGIN_MS: Final = 600_000
"""Store times grow along the log but for clocks that were set back; a file is left out for its time
only when this is far from what is asked for."""


class NotAStore(PipelineError):
    """A path of the option `path` is no store directory."""


class Replica(NamedTuple):
    """One store directory: which broker group it is of, what it is called there, where it lies."""

    broker: str
    name: str
    root: str


@dataclass(frozen=True, slots=True)
class Split:
    """What one task reads: records that begin in `[start, end)` of one file of one replica.

    `start`, `end` and `size` are bytes from the file's first; `base` is that byte's physical
    offset.
    """

    replica: Replica
    path: str
    """Empty for a hole in the row of files: `[base, base + end)` is missing."""
    base: int
    start: int
    end: int
    size: int
    """Length of the file when the read was planned."""
    is_tail: bool
    """Whether no later file holds records: only there the log may end."""
    durable: int = UNKNOWN
    """Physical offset up to which the log is known to have been on disk; -1: nobody knows."""
    is_aligned: bool = False
    """Whether a record is known to begin at `start`."""


def parse_paths(text: str) -> list[Replica]:
    """Replicas of the option `path`: a root, or `broker/replica=root` or `broker=root`, by commas.

    A root without names is called after its last folder. Raises `OptionError`.
    """
    if os.path.isdir(text):
        return [_unnamed(text)]
    replicas = []
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        name, separator, root = piece.partition("=")
        if os.path.isdir(piece) or not separator:
            replicas.append(_unnamed(piece))
            continue
        broker, slash, replica = name.partition("/")
        if not broker or not root or (slash and not replica):
            raise OptionError(f"path {piece!r}: write it as broker/replica=root")
        replicas.append(Replica(broker, replica or broker, root))
    if not replicas:
        raise OptionError("option path is missing: the root of a store, or broker/replica=root,...")
    names = [(replica.broker, replica.name) for replica in replicas]
    if len(set(names)) < len(names):
        raise OptionError(f"two stores have the same name in path {text!r}: name them apart")
    return replicas


def log_files(replica: Replica) -> tuple[SegmentFile, ...]:
    """Files of a replica's log by their first offset. Raises `NotAStore`."""
    directory = os.path.join(replica.root, "commitlog")
    if not os.path.isdir(directory):
        what = "no commitlog is in it" if os.path.isdir(replica.root) else "no such directory"
        raise NotAStore(f"{replica.root} is no store directory: {what}")
    return tuple(file for file in list_segments(directory).segments if file.size)


def durable_offset(replica: Replica) -> int:
    """Up to where the log is known to have been on disk, from rocketbed's own marks; else -1.

    RocketMQ leaves no such mark.
    """
    abort = os.path.join(replica.root, "abort")
    marks = read_marks(
        _content(replica, CKPT_NAME),
        _content(replica, FLUSHED_NAME),
        abort_lines=_content(replica, "abort").decode(errors="replace").splitlines()
        if os.path.exists(abort)
        else None,
        checkpoint=_content(replica, "checkpoint"),
    )
    if marks is None or not marks.trusted or marks.flushed_offset is None:
        return UNKNOWN
    return marks.flushed_offset


def data_end(replica: Replica, since: int | None = None) -> int:
    """Physical offset behind the last good record of a replica.

    Reads the last file that holds anything, or from `since` on, a record's start that an earlier
    call gave; the files before it not at all. A live log may be longer a moment later.
    """
    files = log_files(replica)
    durable = durable_offset(replica)
    for file in reversed(files):
        with Segment(file.path, file.start, file.size) as segment:
            if segment.first_data(0) is None:
                continue
            start = since - file.start if since is not None and since >= file.start else 0
            end = _end_within(segment, min(start, file.size), durable)
        if end > 0 or file is files[0]:
            return file.start + end
    return files[0].start if files else 0


def confirmed_end(replicas: Sequence[Replica], since: int | None = None) -> int:
    """Physical offset, at a record's end, up to which every one of a broker's replicas has the log.

    In classic mode nothing on disk says what a cluster promised; what all replicas hold is what
    no failover among them can take away. One replica alone: its own end.
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
    """Where a stretch from `start` (a record's start) ends after at most so many bytes and rows.

    A record's end, never behind `limit`; at least one record, however long, while there is one.
    """
    target = start + bytes_max
    rows_left = rows_max
    reached = start
    for split in plan_splits([replica], start=start, end=limit, is_aligned=True):
        for ends in _ends(split):
            taken = max(int(numpy.searchsorted(ends, target, "right")), int(reached == start))
            if rows_left is not None:
                taken = min(taken, rows_left)
                rows_left -= taken
            if taken:
                reached = int(ends[taken - 1])
            if taken < len(ends) or rows_left == 0:
                return reached
    return reached


def plan_splits(
    replicas: Iterable[Replica],
    *,
    split_bytes: int = 128 << 20,
    start: int | None = None,
    end: int | None = None,
    is_aligned: bool = False,
    start_ms: int | None = None,
    end_ms: int | None = None,
) -> list[Split]:
    """Splits of the log between two physical offsets (None: all there is), in order.

    `is_aligned`: a record begins at `start`. `start_ms` leaves out files whose follower's first
    record was stored over ten minutes before it, `end_ms` files that began ten minutes after.
    """
    found: list[Split] = []
    for replica in replicas:
        found += _splits_of(replica, split_bytes, start, end, is_aligned, start_ms, end_ms)
    return found


def scan_split(segment: Segment, split: Split, start: int, *, rows: int = 4096) -> Scan:
    """The scan of a split from `start`, a record's start, on."""
    return Scan(segment, start, split.end, rows=rows, is_tail=split.is_tail, durable=split.durable)


def _ends(split: Split) -> Iterator["numpy.ndarray[tuple[int], numpy.dtype[numpy.int64]]"]:
    """Offsets behind each record and each corrupt range of a split that begins at a record."""
    if not split.path:
        yield numpy.array([split.base + split.end])
        return
    with Segment(split.path, split.base, split.size) as segment:
        for item in scan_split(segment, split, split.start):
            yield item.ends if isinstance(item, Frame) else numpy.array([item.end])


def _end_within(segment: Segment, start: int, durable: int) -> int:
    """Position behind the last good record at or behind `start`, 0 when there is none."""
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
    """How many records stand up to the last good one."""
    for number in range(frame.count - 1, -1, -1):
        if _is_good(frame, number):
            return number + 1
    return 0


def _leading_good(frame: Frame, durable: int) -> int:
    """How many records stand before the first bad one behind what is known to be on disk."""
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
) -> list[Split]:
    files = _used_files(replica)
    durable = durable_offset(replica)
    found: list[Split] = []
    for number, file in enumerate(files):
        is_tail = number + 1 == len(files)
        low = file.start if start is None else max(start, file.start)
        high = file.end if end is None else min(end, file.end)
        whole = Split(replica, file.path, file.start, 0, file.size, file.size, is_tail, durable)
        if number and files[number - 1].end < file.start:
            found += _hole(whole, files[number - 1].end, start, end)
        following = None if is_tail else files[number + 1]
        if low >= high or _is_out_of_time(file, following, start_ms, end_ms):
            continue
        aligned = low == file.start or is_aligned
        for at in range(low, high, split_bytes):
            stop = min(high, at + split_bytes)
            found.append(
                replace(
                    whole,
                    start=at - file.start,
                    end=stop - file.start,
                    is_aligned=aligned and at == low,
                )
            )
    return found


def _hole(near: Split, begin: int, start: int | None, end: int | None) -> list[Split]:
    """A split for the files missing between `begin` and a file, if they are asked for."""
    low = begin if start is None else max(start, begin)
    high = near.base if end is None else min(end, near.base)
    if low >= high:
        return []
    return [replace(near, path="", base=low, start=0, end=high - low, size=high - low)]


def _used_files(replica: Replica) -> list[SegmentFile]:
    """Files of the log up to the last that holds anything: later ones are only prepared."""
    files = list(log_files(replica))
    while len(files) > 1:
        last = files[-1]
        with Segment(last.path, last.start, last.size) as segment:
            if segment.first_data(0) is not None:
                break
        files.pop()
    return files


def _is_out_of_time(
    file: SegmentFile, following: SegmentFile | None, start_ms: int | None, end_ms: int | None
) -> bool:
    if start_ms is not None and following is not None:
        begun = _first_store_ms(following)
        if begun is not None and begun < start_ms - CLOCK_MARGIN_MS:
            return True
    if end_ms is not None:
        begun = _first_store_ms(file)
        if begun is not None and begun >= end_ms + CLOCK_MARGIN_MS:
            return True
    return False


def _first_store_ms(file: SegmentFile) -> int | None:
    """Store time of the first record of a file, if a record stands there."""
    with Segment(file.path, file.start, file.size) as segment:
        for item in Scan(segment, 0, 1):
            return int(item.field("store_ms")[0]) if isinstance(item, Frame) else None
    return None


def _content(replica: Replica, name: str) -> bytes:
    try:
        with open(os.path.join(replica.root, name), "rb") as file:
            return file.read(1 << 20)
    except OSError:
        return b""


def _unnamed(root: str) -> Replica:
    name = os.path.basename(os.path.abspath(root))
    return Replica(name, name, root)
