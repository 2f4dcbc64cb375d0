"""Filling what is missing of a log that was on disk with the same bytes from a replica.

For a directory that no node has open. What is missing is what has no good record below the end
that this node knew to be on disk, and between good records above it. The bytes that stood there are
kept; those that come are checked before the directory counts as healed.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.cursor import LogCursor, Verdict
from rocketbed.node.store.cut import keep_bytes, keep_file, last_nonzero
from rocketbed.node.store.errors import StoreError, StoreLocked
from rocketbed.node.store.evidence import UNKNOWN
from rocketbed.node.store.parts import StoreParts, make_parts
from rocketbed.node.store.scan import crc_scanner
from rocketbed.node.store.segments import NAME_DIGITS
from rocketbed.node.store.tail import next_good
from rocketbed.world.api import World

Fetch = Callable[[int, int, Callable[[int, bytes], None]], Awaitable[None]]
"""Hands a replica's log from one offset to another to a function, in pieces with their offsets."""


class NotHealed(StoreError):
    """What came from the replica is not what is missing here; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Hole:
    """Bytes of the log without a good record. Physical offsets."""

    start: int
    end: int
    before: int
    """Start of the good record before it, `start` if there is none."""
    kept: str = ""
    """Where the bytes that stood there were kept; empty if they were zeros."""


async def heal(world: World, config: StoreConfig, fetch: Fetch) -> list[Hole]:
    """Fill every hole; what was filled. Raises `NotHealed`, `StoreLocked`, `OSError`.

    A heal that is killed is done again by another.
    """
    lock = world.disk.lock(f"{config.root}/lock")
    if lock is None:
        raise StoreLocked(f"{config.root} is held by another process: stop that broker first")
    parts = make_parts(world, config, None)
    mark = parts.marks.load()
    if mark is not None and mark.sizes:
        parts = make_parts(world, replace(config, segment_size=mark.sizes[0]), None)
        parts.marks.load()
    try:
        known = max(parts.marks.load_flushed() or UNKNOWN, mark.offset if mark else UNKNOWN)
        await _complete_row(parts, mark.first if mark else UNKNOWN, known)
        healed: list[Hole] = []
        cursor = LogCursor(parts.log.segments, crc_scanner(parts.config))
        while (hole := await _next_hole(parts, cursor, known, healed)) is not None:
            healed.append(await _fill(parts, cursor, hole, fetch))
        return healed
    finally:
        parts.pool.close()
        lock.release()


async def _complete_row(parts: StoreParts, first: int, known: int) -> None:
    """Make the segments that are missing or short, zeroed; what short ones hold is kept."""
    segments, disk = parts.log.segments, parts.world.disk
    names = [name for name in disk.listdir(segments.directory) if len(name) == NAME_DIGITS]
    starts = sorted(int(name) for name in names if name.isascii() and name.isdigit())
    size = segments.size
    low = min([first] * (first >= 0) + starts, default=0)
    high = max([known] * (known > 0) + [start + 1 for start in starts], default=0)
    for start in range(segments.start_of(low), high, size):
        path = segments.path(start)
        if disk.exists(path):
            file = disk.open(path, writable=False)
            try:
                length = file.size()
            finally:
                file.close()
            if length == size:
                continue
            if length:
                await keep_file(parts, path)
        parts.pool.create(path, size, staging=parts.staging, allocate=True)
        file = disk.open(path)
        try:
            await file.sync()
        finally:
            file.close()
    await parts.pool.sync_names()
    segments.load(key="mappedFileSizeCommitLog")


async def _next_hole(
    parts: StoreParts, cursor: LogCursor, known: int, healed: list[Hole]
) -> Hole | None:
    """The first hole behind those that are healed."""
    segments = parts.log.segments
    position = before = healed[-1].end if healed else parts.log.min_offset
    while position < segments.end:
        step = await cursor.step_beside(parts.world, position, segments.end)
        if step.entries:
            before = step.entries[-1].physical_offset
        if step.verdict in (Verdict.GOOD, Verdict.BLANK):
            position = step.end
            continue
        good = await next_good(parts, cursor, step.end + 1)
        end = good if good >= 0 else known
        return Hole(step.end, end, before) if end > step.end else None
    return None


async def _fill(parts: StoreParts, cursor: LogCursor, hole: Hole, fetch: Fetch) -> Hole:
    segments = parts.log.segments
    kept_to = min(last_nonzero(parts, hole.start), hole.end)
    if kept_to > hole.start:
        hole = replace(hole, kept=await keep_bytes(parts, hole.start, kept_to, "healed"))

    def take(offset: int, data: bytes) -> None:
        _same_history(parts, hole, offset, data)
        _write(parts, max(offset, hole.start), data[max(hole.start - offset, 0) :])

    await fetch(hole.before, hole.end, take)
    for start in sorted(segments.dirty):
        await segments.sync(start)
    position = hole.start
    while position < hole.end:
        step = await cursor.step_beside(parts.world, position, segments.end)
        if step.verdict not in (Verdict.GOOD, Verdict.BLANK):
            raise NotHealed(
                f"what the replica has at offset {position} is no record ({step.reason}): ask"
                f" another one. What stood here before is kept: {hole.kept or 'only zeros'}"
            )
        ends = [entry.physical_offset + entry.size for entry in step.entries]
        position = next((end for end in ends if end >= hole.end), step.end)
    if position != hole.end:
        raise NotHealed(
            f"the replica's records do not end at {hole.end}, where this log goes on, but at"
            f" {position}: its log is another one; ask another replica"
        )
    return hole


def _same_history(parts: StoreParts, hole: Hole, offset: int, data: bytes) -> None:
    """The record before the hole has to be the same on both."""
    overlap = data[: max(hole.start - offset, 0)]
    if overlap != parts.log.segments.read(offset, len(overlap)):
        raise NotHealed(
            f"the replica has other bytes than this log between {hole.before} and {hole.start}: its"
            " log is another one. Nothing was changed; ask another replica"
        )


def _write(parts: StoreParts, offset: int, data: bytes) -> None:
    segments = parts.log.segments
    while data:
        room = segments.start_of(offset) + segments.size - offset
        segments.write(offset, data[:room])
        offset, data = offset + min(room, len(data)), data[room:]
