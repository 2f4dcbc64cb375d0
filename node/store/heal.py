"""Filling what is missing of a log that was on disk with the same bytes from a replica.

For a directory that no node has open. What is missing is what has no good record below the end
that this node knew to be on disk, and between good records above it. All of it is fetched beside
the log first, and compared with what is good around it: a replica may have another history, and
once its records were in the log nobody could tell them from ours. Only then is the log written;
the bytes that stood there are kept.
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
"""Hands a replica's log from one offset to another to a function, in pieces with their offsets."""
COMPARED = 64 * 1024
"""Bytes of good records before a hole that the replica has to have too, one record at least."""
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Hole:
    """Bytes of the log without a good record. Physical offsets."""

    start: int
    end: int
    before: int
    """Start of the good records before it that were compared, `start` if there are none."""
    kept: str = ""
    """Where the bytes that stood there were kept; empty if they were zeros."""


@dataclass(frozen=True, slots=True)
class _Gap:
    """A hole, and the good records around it."""

    start: int
    end: int
    beside: tuple[tuple[int, int], ...]
    """Starts and ends of the records before it, and of the one behind it; in order."""

    @property
    def fetched(self) -> tuple[int, int]:
        """What a replica is asked for: it begins and ends with a record."""
        low = min([self.start, *(start for start, _ in self.beside)])
        return low, max([self.end, *(end for _, end in self.beside)])


async def heal(world: World, config: StoreConfig, fetch: Fetch) -> list[Hole]:
    """Fill every hole; what was filled. Raises `NotHealed`, `StoreLocked`, `OSError`.

    A heal that is killed is done again by another: before it writes, the log is as it was; from
    then on it has a part of what fits.
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
    """What is there, and what is missing. The parts that come back have the log's segment size."""
    world, mark = parts.world, parts.marks.load()
    lengths = file_lengths(world, parts.config.log_dir)
    size = segment_size(parts.config, mark, lengths)
    parts = make_parts(world, replace(parts.config, segment_size=size), None)
    known = max(parts.marks.load_flushed() or UNKNOWN, mark.offset if mark else UNKNOWN)
    first = mark.first if mark else UNKNOWN
    view = await view_of(parts, lengths, first=first, known=known)
    parts.log.segments = view
    return parts, view, await _gaps(parts, view, known)


async def _gaps(parts: StoreParts, view: LogView, known: int) -> list[_Gap]:
    """Every hole of the log, in order."""
    cursor = ViewCursor(view, crc_scanner(parts.config))
    found: list[_Gap] = []
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
        end = good if good >= 0 else known
        if end > step.end:
            behind = map(_extent, cursor.one(good).entries) if good >= 0 else ()
            found.append(_Gap(step.end, end, (*before, *behind)))
        if good < 0:
            break
        position, before = good, []
    return found


def _extent(entry: Entry) -> tuple[int, int]:
    return entry.physical_offset, entry.physical_offset + entry.size


def _newest(records: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The last of them, `COMPARED` bytes or a single one."""
    return [one for one in records if one == records[-1] or records[-1][1] - one[0] <= COMPARED]


async def _stage(
    parts: StoreParts, view: LogView, gaps: list[_Gap], staged: Staged, fetch: Fetch
) -> None:
    """Fetch what is missing beside the log, and see that it fits. The log is not touched."""
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
    """What is missing is held twice for a while, beside the log and in it."""
    made = sum(view.size - view.lengths.get(start, 0) for start in view.unmade)
    room = sum(gap.end - gap.start for gap in gaps) + made
    free = parts.world.disk.usage(parts.config.root).free
    if room > free:
        raise NotHealed(
            f"{parts.config.root} needs {room} bytes of room for what is missing, fetched beside"
            f" the log first, and has {free}"
        )


async def _fetch(view: LogView, gap: _Gap, staged: Staged, fetch: Fetch) -> _Gap:
    """Have a replica send one gap and what is good beside it, which it must have too.

    The gap that comes back is wider by a record next to it that only seemed good: damage in its
    topic or properties, which no checksum covers.
    """
    seeming: dict[tuple[int, int], bytearray] = {
        (start, stop): bytearray(stop - start)
        for start, stop in gap.beside
        if stop == gap.start or start == gap.end
    }

    def take(offset: int, data: bytes) -> None:
        end = offset + len(data)
        for start, stop in gap.beside if offset < gap.start or end > gap.end else ():
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
        beside = tuple(one for one in gap.beside if one != (start, stop))
        gap = _Gap(min(gap.start, start), max(gap.end, stop), beside)
    return gap


def _other_log(gap: _Gap, start: int) -> NotHealed:
    return NotHealed(
        f"the replica has other bytes than this log in the record at {start}, beside what is"
        f" missing from {gap.start} to {gap.end}: its log is another one; ask another replica"
    )


def _checked_part(record: bytes) -> int:
    """Length of a good record's head and body; no checksum covers what is behind (store.md 2.1)."""
    system_flag = HEAD.unpack_from(record)[7]
    at = HEAD.size + 8 + (20 if system_flag & BORN_IPV6 else 8)
    at += 20 if system_flag & STORE_IPV6 else 8
    return int(at + TAIL.size + TAIL.unpack_from(record, at)[2])


async def _check(parts: StoreParts, view: LogView, gap: _Gap) -> None:
    """What came for one gap is whole records, up to where this log goes on."""
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
    """Keep what stood in the gaps, and write what came, durably."""
    try:
        holes = [await _keep(parts, view, gap) for gap in gaps]
    except OSError as exc:
        raise NotHealed(
            f"what stands in the log cannot be kept: {exc}. Nothing was changed"
        ) from exc
    try:
        for start in view.unmade:
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
    """Copy what is not zero of a gap to `rocketbed.cut`."""
    end = position = gap.start
    while position < gap.end:
        data = view.read(position, min(_CHUNK, gap.end - position))
        await trio.lowlevel.checkpoint()
        if not is_zero(data):
            end = position + len(data.rstrip(b"\0"))
        position += len(data)
    kept = await keep_bytes(parts, gap.start, end, "healed") if end > gap.start else ""
    return Hole(gap.start, gap.end, gap.fetched[0], kept)


def _make(parts: StoreParts, view: LogView, start: int) -> None:
    """Give a segment its length; what a short one holds stays."""
    path = view.path(start)
    if start in view.lengths:
        parts.pool.get(path).allocate(view.size)
    else:
        parts.pool.create(path, view.size, staging=parts.staging, allocate=True)
    view.lengths[start] = view.size
    view.dirty[start] = None
