"""Cutting the log at an offset so that the cut bytes cannot come back (store.md 8.6, Cut; T4).

RocketMQ only moves its position back; the bytes stay, and a crash before they are overwritten finds
them valid again. Here the cut is first recorded, then done, then its record is removed: a crash
between any two steps repeats it.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass

import trio

from rocketbed.node.store.aside import CUT_DIR
from rocketbed.node.store.checkpoint import Checkpoint
from rocketbed.node.store.checkpointer import store_ms_at
from rocketbed.node.store.cursor import LogCursor, Verdict
from rocketbed.node.store.entry import Entry
from rocketbed.node.store.parts import StoreParts
from rocketbed.node.store.scan import RecordScanner

_CHUNK = 4 << 20
_ZEROS = bytes(_CHUNK)


async def cut_log(parts: StoreParts, offset: int, *, record_start: int) -> None:
    """Make `offset` the end of the log.

    `record_start` is the start of the last record below it, -1 if there is none. Queues and index
    must hold nothing of records at or above `offset` when W is above it: they are cut first.
    """
    log, marks = parts.log, parts.marks
    log.cuts += 1
    # W and F are lowered before a byte of the log is zeroed: otherwise a crash in between would
    # leave a log that is shorter than they promise, which a boot takes for damage.
    if marks.mark.offset > offset:
        await _lower_mark(parts, offset, record_start)
    flushed = marks.load_flushed()
    if flushed is not None and flushed > offset:
        await marks.store_flushed(offset, durable=True)
    deleted = marks.mark.deleted_below(offset)
    await marks.update(cut_to=offset, clean=None, deleted=deleted)
    parts.world.mark("store.cut_recorded")
    start = log.segments.start_of(offset)
    if log.segments.has(offset):
        # Zeros on disk before the cut's record is removed, or the old records come back (T4).
        log.segments.zero(offset, start + log.segment_size)
        await log.segments.sync(start)
    parts.world.mark("store.cut_zeroed")
    last = offset if offset == start else start + log.segment_size
    log.segments.drop_from(last)
    await parts.pool.sync_names()
    await marks.update(cut_to=None)
    parts.world.mark("store.cut_done")
    log.written.reset(offset)
    log.flushed.reset(min(log.flushed.value, offset))
    log.cuts += 1


async def _lower_mark(parts: StoreParts, offset: int, record_start: int) -> None:
    """Lower checkpoint, F and W to `offset`, and only then cut queues and index."""
    parts.queues.write_pending()
    ends = parts.queues.find_ends(offset, thorough=False, deleted=parts.marks.mark.deleted)
    count, total = parts.queues.totals(ends)
    parts.index.write()
    await parts.index.sync()
    index = parts.index.mark_at(offset, lambda at: store_ms_at(parts, at))
    # F before W: a boot that resumes the cut still compares the log with the F it read, and would
    # take the cut bytes for damage. In the other order W stands in for F, and nothing has changed
    # yet.
    await parts.witnesses.store_checkpoint(Checkpoint())
    await parts.marks.store_flushed(min(offset, parts.log.flushed.value), durable=True)
    await parts.marks.update(
        offset=offset,
        record_start=record_start,
        queue_count=count,
        queue_total=total,
        queue_first=-1,
        index=index,
        index_filled_ms=0,
        clean=None,
        cut_to=offset,
    )
    parts.queues.cut_units(ends, keeps_first=True)
    parts.index.restore(index)
    parts.index.filled_ms = 0  # the next mark computes it from the files that are still full
    await parts.queues.sync()
    await parts.index.sync()


@dataclass(frozen=True, slots=True)
class Boundary:
    """End of a record, and the record."""

    last: Entry
    """The last whole record."""
    end: int
    """Its end, or that of the blank record after it. Physical offset."""


async def boundary_below(
    parts: StoreParts, offset: int, scanner: RecordScanner | None = None
) -> Boundary | None:
    """Return the last end of a record at or below `offset`; None without a whole record there.

    Reads a segment from its beginning with `scanner`, by default the store's own, which compares no
    checksums.
    """
    log = parts.log
    cursor = LogCursor(log.segments, scanner or parts.scanner)
    while offset > log.min_offset:
        position = start = log.segments.start_of(offset - 1)
        last: Entry | None = None
        step = cursor.step(position, offset)
        while step.verdict in (Verdict.GOOD, Verdict.BLANK):
            last, position = step.entries[-1] if step.entries else last, step.end
            await trio.lowlevel.checkpoint()
            step = cursor.step(position, offset)
        if last is not None:
            end = last.physical_offset + last.size
            return Boundary(last, position if position == offset else end)
        offset = start
    return None


async def keep_cut_bytes(parts: StoreParts, offset: int, *, end: int) -> tuple[str, int]:
    """Copy [offset, end) of the log to `rocketbed.cut`, durably.

    Returns the copy's path and its size; ("", 0) if the range is empty. Raises `OSError`.
    """
    if end <= offset:
        return "", 0
    return await keep_bytes(parts, offset, end), end - offset


async def keep_bytes(parts: StoreParts, start: int, end: int, why: str = "") -> str:
    """Copy any range of the log there; return the copy's path. `why` ends its name."""

    def read(position: int) -> bytes:
        return parts.log.segments.read(position, min(_CHUNK, end - position))

    return await _keep(parts, f"{start:020d}" + (f".{why}" if why else ""), read, start, end)


async def keep_file(parts: StoreParts, path: str) -> str:
    """Copy a file of the log to `rocketbed.cut`, durably; return the copy's path. Raises
    `OSError`."""
    source = parts.world.disk.open(path, writable=False)
    try:
        name = f"{path.rpartition('/')[2]}.segment"
        return await _keep(parts, name, lambda at: source.read_at(at, _CHUNK), 0, source.size())
    finally:
        source.close()


async def _keep(
    parts: StoreParts, name: str, read: Callable[[int], bytes], start: int, end: int
) -> str:
    """Copy the bytes that `read` returns for positions from `start` to `end`; return the copy's
    path."""
    disk = parts.world.disk
    directory = f"{parts.config.root}/{CUT_DIR}"
    parts.pool.make_dir(directory)
    path = f"{directory}/{name}"
    if disk.exists(path):
        at_ms = parts.world.clock.wall_ms()
        while disk.exists(f"{path}.{at_ms}"):  # of the same moment, or of a clock that was set back
            at_ms += 1
        path = f"{path}.{at_ms}"
    temporary = f"{path}.new"
    if disk.exists(temporary):
        disk.unlink(temporary)
    file = disk.open(temporary, create=True)
    try:
        position = start
        while position < end:
            data = read(position)
            if not data:
                raise OSError(errno.EIO, f"nothing to read at {position}")
            file.write_at(position - start, data)
            position += len(data)
            await trio.lowlevel.checkpoint()
        await file.sync()
    except OSError:
        disk.unlink(temporary)
        raise
    finally:
        file.close()
    disk.rename(temporary, path)
    parts.pool.named(path)
    await parts.pool.sync_names()
    return path


def is_zero(data: bytes) -> bool:
    return data == (_ZEROS if len(data) == _CHUNK else bytes(len(data)))


def last_nonzero(parts: StoreParts, offset: int) -> int:
    """Return the end of the last non-zero byte at or after `offset`; `offset` if there is none."""
    segments = parts.log.segments
    end = offset
    position = offset
    while segments.has(position):
        data = segments.read(position, _CHUNK)
        if not is_zero(data):
            end = position + len(data.rstrip(b"\0"))
        position += len(data)
    return end
