"""Contents of the log after the last good record: nothing, a torn tail, or good records (damage).

RocketMQ takes the first bad record for the end of the log and everything after it is lost (T7).
Here every byte position after it is searched for records that name their own offset.
"""

import re
from dataclasses import dataclass

import trio

from rocketbed.node.store.cursor import LogCursor, Verdict
from rocketbed.node.store.cut import is_zero
from rocketbed.node.store.parts import StoreParts
from rocketbed.node.store.scan import crc_scanner
from rocketbed.wire.message import HEAD
from rocketbed.world.api import World

_CHUNK = 1 << 20
_FIRST_CHUNK = 1 << 14
"""Size of the first read: the next good record mostly follows a bad one directly; further reads
grow."""
_MAGIC = re.compile(rb"\xda\xa3\x20[\xa7\xab]")
_TURN = 4096
"""Positions checked between two turns of the loop; a producer's body may be full of them."""


@dataclass(frozen=True, slots=True)
class Tail:
    """Good records after a bad one."""

    good_records: int
    first_good: int
    """Physical offset of the first of them, -1 without any."""


async def good_records_after(parts: StoreParts, offset: int, limit: int = -1) -> Tail:
    """Search everything after `offset`, this segment and later ones, for good records.

    With a `limit` only below that. Takes turns with the loop. Raises `OSError`.
    """
    cursor = LogCursor(parts.log.segments, crc_scanner(parts.config))
    good, first = 0, -1
    start = await next_good(parts.world, cursor, offset + 1, limit)
    while start >= 0:
        first = start if first < 0 else first
        step = cursor.step(start, parts.log.segments.end)
        while step.verdict in (Verdict.GOOD, Verdict.BLANK):
            good += len(step.entries)
            await trio.lowlevel.checkpoint()
            step = cursor.step(step.end, parts.log.segments.end)
        start = await next_good(parts.world, cursor, step.end + 1, limit)
    return Tail(good, first)


async def next_good(world: World, cursor: LogCursor, position: int, limit: int = -1) -> int:
    """Return the start of the first good record at or after `position`, below `limit` unless that
    is -1.

    -1 without one. Reads in a thread. Raises `OSError`.
    """
    segments = cursor.segments
    limit = segments.end if limit < 0 else min(limit, segments.end)
    chunk = _FIRST_CHUNK
    while position < limit and segments.has(position):
        segment_end = segments.start_of(position) + segments.size
        size = min(chunk, segment_end - position)
        chunk = min(2 * chunk, _CHUNK)
        data = await cursor.read_in_thread(world, position, size)
        await trio.lowlevel.checkpoint()
        for number, match in enumerate(() if is_zero(data) else _MAGIC.finditer(data)):
            if number % _TURN == _TURN - 1:
                await trio.lowlevel.checkpoint()
            at = match.start() - 4
            start = position + at
            # Its offset first, from the bytes at hand: only a record that names this offset is
            # worth a separate read.
            if at < 0 or (at + HEAD.size <= len(data) and HEAD.unpack_from(data, at)[6] != start):
                continue
            if start < limit and cursor.record_at(start).verdict is Verdict.GOOD:
                return start
        if position + len(data) >= segment_end or len(data) < size:
            position = segment_end
        else:
            position += len(data) - HEAD.size
    return -1
