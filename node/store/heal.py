"""Filling holes of a log with the same bytes from a replica.

For a directory that no node has open. A hole is a range without a good record, below the end that
this node knew to be on disk, or between good records above it. All of them are fetched into a file
beside the log first, and compared with the good records around: a replica may have another history,
and once its records were in the log they could not be told from ours. Only then is the log written;
the bytes that were in the holes are saved.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import trio

from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.cursor import Verdict
from rocketbed.node.store.cut import is_zero, keep_bytes
from rocketbed.node.store.entry import Entry
from rocketbed.node.store.evidence import UNKNOWN
from rocketbed.node.store.heal_files import NotHealed, file_lengths, segment_size, view_of
from rocketbed.node.store.locks import lock_store
from rocketbed.node.store.parts import StoreParts, make_parts
from rocketbed.node.store.scan import crc_scanner
from rocketbed.node.store.segments import sync_rows
from rocketbed.node.store.tail import next_good
from rocketbed.node.store.view import LogView, Staged, ViewCursor
from rocketbed.wire.errors import RocketbedError
from rocketbed.wire.message import BORN_IPV6, HEAD, STORE_IPV6, TAIL
from rocketbed.world.api import World

Fetch = Callable[[int, int, Callable[[int, bytes], None]], Awaitable[None]]
"""Passes a replica's log from one offset to another to a function, in pieces with their offsets."""
COMPARED = 64 * 1024
"""Bytes of good records before a hole that the replica must have too, one record at least."""
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Hole:
    """Bytes of the log without a good record. Physical offsets."""

    start: int
    end: int
    before: int
    """Start of the good records before it that were compared, `start` if there are none."""
    kept: str = ""
    """Path of the copy of the bytes that were there; empty if they were zeros."""


@dataclass(frozen=True, slots=True)
class _Gap:
    """A hole, and the good records around it."""

    start: int
    end: int
    neighbours: tuple[tuple[int, int], ...]
    """Starts and ends of the records before it, and of the one after it; in order."""

    @property
    def fetched(self) -> tuple[int, int]:
        """Range to fetch from a replica: it begins and ends with a record."""
        low = min([self.start, *(start for start, _ in self.neighbours)])
        return low, max([self.end, *(end for _, end in self.neighbours)])


async def heal(world: World, config: StoreConfig, fetch: Fetch) -> list[Hole]:
    """Fill every hole; return the holes. Raises `NotHealed`, `StoreLocked`, `OSError`.

    A killed heal can be repeated: before it writes, the log is unchanged; from then on it has a
    part of what fits.
    """
    locks = lock_store(world, config)
    parts = make_parts(world, config, None)
    try:
        try:
            parts, view, gaps = await _survey(parts)
            staged = Staged(world, f"{parts.staging}/heal.fetched")
        except (RocketbedError, OSError) as exc:
            raise NotHealed(f"{exc}. Nothing was changed") from exc
        try:
            await _stage(parts, view, gaps, staged, fetch)
            return await _apply(parts, view, gaps, staged)
        finally:
            staged.close()
    finally:
        parts.pool.close()
        for lock in locks:
            lock.release()


async def _survey(parts: StoreParts) -> tuple[StoreParts, LogView, list[_Gap]]:
    """Return the present state and the holes. The returned parts have the log's segment size."""
    world, mark = parts.world, parts.marks.load()
    lengths = file_lengths(world, parts.config.log_dir)
    size = segment_size(parts.config, mark, lengths)
    parts = make_parts(world, replace(parts.config, segment_size=size), None)
    durable_end = max(parts.marks.load_flushed() or UNKNOWN, mark.offset if mark else UNKNOWN)
    first = mark.first if mark else UNKNOWN
    view = await view_of(parts, lengths, first=first, durable_end=durable_end)
    parts.log.segments = view
    return parts, view, await _gaps(parts, view, durable_end)


async def _gaps(parts: StoreParts, view: LogView, durable_end: int) -> list[_Gap]:
    """Return every hole of the log, in order."""
    cursor = ViewCursor(view, crc_scanner(parts.config))
    gaps: list[_Gap] = []
    before: list[tuple[int, int]] = []
    position = view.starts[0] if view.starts else 0
    while position < view.end:
        step = cursor.step(position, view.end)
        await trio.lowlevel.checkpoint()
        before = _newest([*before, *map(_extent, step.entries)])
        if step.verdict in (Verdict.GOOD, Verdict.BLANK):
            position = step.end
            continue
        good = await next_good(parts.world, cursor, step.end + 1)
        end = good if good >= 0 else durable_end
        if end > step.end:
            following = map(_extent, cursor.record_at(good).entries) if good >= 0 else ()
            gaps.append(_Gap(step.end, end, (*before, *following)))
        if good < 0:
            break
        position, before = good, []
    return gaps


def _extent(entry: Entry) -> tuple[int, int]:
    return entry.physical_offset, entry.physical_offset + entry.size


def _newest(records: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the last records, `COMPARED` bytes or a single one."""
    return [
        record
        for record in records
        if record == records[-1] or records[-1][1] - record[0] <= COMPARED
    ]


async def _stage(
    parts: StoreParts, view: LogView, gaps: list[_Gap], staged: Staged, fetch: Fetch
) -> None:
    """Fetch the holes into a file beside the log, and check that they fit. The log is not
    touched."""
    try:
        _check_room(parts, view, gaps)
        gaps[:] = [await _fetch(view, gap, staged, fetch) for gap in gaps]
        view.staged = staged
        for gap in gaps:
            await _check(parts, view, gap)
    except (RocketbedError, OSError) as exc:
        raise NotHealed(f"{exc}. Nothing was changed") from exc
    finally:
        view.staged = None


def _check_room(parts: StoreParts, view: LogView, gaps: list[_Gap]) -> None:
    """Check that there is room: the missing bytes exist twice for a while, beside the log and in
    it."""
    new_bytes = sum(view.size - view.lengths.get(start, 0) for start in view.incomplete)
    room = sum(gap.end - gap.start for gap in gaps) + new_bytes
    free = parts.world.disk.usage(parts.config.root).free
    if room > free:
        raise NotHealed(
            f"{parts.config.root} needs {room} bytes of room for what is missing, fetched beside"
            f" the log first, and has {free}"
        )


async def _fetch(view: LogView, gap: _Gap, staged: Staged, fetch: Fetch) -> _Gap:
    """Fetch one gap and the good records beside it, which the replica must have too.

    The returned gap includes an adjacent record that only seemed good: damage in its topic or
    properties, which no checksum covers.
    """
    seeming: dict[tuple[int, int], bytearray] = {
        (start, stop): bytearray(stop - start)
        for start, stop in gap.neighbours
        if stop == gap.start or start == gap.end
    }

    def take(offset: int, data: bytes) -> None:
        end = offset + len(data)
        for start, stop in gap.neighbours if offset < gap.start or end > gap.end else ():
            low, high = max(start, offset), min(stop, end)
            if low >= high:
                continue
            theirs = data[low - offset : high - offset]
            if (start, stop) in seeming:
                seeming[start, stop][low - start : high - start] = theirs
            elif view.read_all(low, high) != theirs:
                raise _other_log(gap, start)
        low, high = max(gap.start, offset), min(gap.end, end)
        if low < high:
            staged.add(low, data[low - offset : high - offset])

    await fetch(*gap.fetched, take)
    for (start, stop), theirs in seeming.items():
        ours = view.read_all(start, stop)
        if ours == theirs:
            continue
        checked = _checked_part(ours)
        if ours[:checked] != theirs[:checked]:
            raise _other_log(gap, start)
        staged.add(start, bytes(theirs))
        neighbours = tuple(record for record in gap.neighbours if record != (start, stop))
        gap = _Gap(min(gap.start, start), max(gap.end, stop), neighbours)
    return gap


def _other_log(gap: _Gap, start: int) -> NotHealed:
    return NotHealed(
        f"the replica has other bytes than this log in the record at {start}, beside what is"
        f" missing from {gap.start} to {gap.end}: its log is another one; ask another replica"
    )


def _checked_part(record: bytes) -> int:
    """Return the length of a good record's head and body; no checksum covers what follows (store.md
    2.1)."""
    system_flag = HEAD.unpack_from(record)[7]
    at = HEAD.size + 8 + (20 if system_flag & BORN_IPV6 else 8)
    at += 20 if system_flag & STORE_IPV6 else 8
    return int(at + TAIL.size + TAIL.unpack_from(record, at)[2])


async def _check(parts: StoreParts, view: LogView, gap: _Gap) -> None:
    """Check that the data for one gap is whole records, up to where this log continues."""
    cursor = ViewCursor(view, crc_scanner(parts.config))
    position = gap.start
    while position < gap.end:
        step = cursor.step(position, view.end)
        await trio.lowlevel.checkpoint()
        if step.verdict not in (Verdict.GOOD, Verdict.BLANK):
            raise NotHealed(
                f"what the replica has at offset {position} is no record ({step.reason}) of a log"
                f" in segments of {view.size} bytes that goes on at {gap.end}, as this one does:"
                " ask another replica"
            )
        ends = [end for _, end in map(_extent, step.entries)]
        position = next((end for end in ends if end >= gap.end), step.end)
    if position != gap.end:
        raise NotHealed(
            f"the replica's records do not end at {gap.end}, where this log goes on, but at"
            f" {position}: its log is another one; ask another replica"
        )


async def _apply(parts: StoreParts, view: LogView, gaps: list[_Gap], staged: Staged) -> list[Hole]:
    """Save what was in the gaps, and write the fetched data, durably."""
    try:
        holes = [await _keep(parts, view, gap) for gap in gaps]
    except OSError as exc:
        raise NotHealed(
            f"what stands in the log cannot be kept: {exc}. Nothing was changed"
        ) from exc
    try:
        for start in view.incomplete:
            _make(parts, view, start)
        for offset, size in staged.pieces(view.size):
            data = bytearray(size)
            staged.lay_over(offset, data)
            view.write(offset, data)
            await trio.lowlevel.checkpoint()
        await sync_rows(parts.pool, [view])
        await parts.pool.sync_names()
    except OSError as exc:
        raise NotHealed(
            f"{exc}. All that came fits, but not all of it is in the log: heal again"
        ) from exc
    return holes


async def _keep(parts: StoreParts, view: LogView, gap: _Gap) -> Hole:
    """Copy the non-zero part of a gap to `rocketbed.cut`."""
    end = position = gap.start
    while position < gap.end:
        data = view.read(position, min(_CHUNK, gap.end - position))
        await trio.lowlevel.checkpoint()
        if not is_zero(data):
            end = position + len(data.rstrip(b"\0"))
        position += len(data)
    copy = await keep_bytes(parts, gap.start, end, "healed") if end > gap.start else ""
    return Hole(gap.start, gap.end, gap.fetched[0], copy)


def _make(parts: StoreParts, view: LogView, start: int) -> None:
    """Give a segment its length; the contents of a short one stay."""
    path = view.path(start)
    if start in view.lengths:
        parts.pool.get(path).allocate(view.size)
    else:
        parts.pool.create(path, view.size, staging=parts.staging, allocate=True)
    view.lengths[start] = view.size
    view.dirty[start] = None
