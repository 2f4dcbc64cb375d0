"""Where the messages of a time begin or end in a queue: a broker's answer, held against the queue.

Brokers find it by halving, and no checksum covers a stored time: a single one that is wrong can
send the search to its wrong side. It is next to the answer then, and what lies behind it there
contradicts: so the records beside an answer are looked at, and the search is repeated here where
they say otherwise, by four neighbours at each step.
"""

import logging
from typing import Final

from rocketbed.pipeline.wire.log import Refused, WireLog
from rocketbed.pipeline.wire.questions import SHARED, describe
from rocketbed.wire.bodies import MessageQueue

LOG: Final = logging.getLogger("rocketbed.pipeline")
BESIDE: Final = 4
"""Records on each side of an answer that are looked at; so many wrong times in a row are not
noticed."""


async def place_of(
    log: WireLog,
    queue: MessageQueue,
    low: int,
    high: int,
    time_ms: int,
    *,
    margin_ms: int = 0,
    is_end: bool = False,
) -> int:
    """The first offset in [low, high] that was stored at or after a time; `is_end`: or a later one.

    Clocks may have been set back by the margin. Where records cannot be looked at, nothing is left
    out. Raises `WireError`.
    """
    time_ms = max(time_ms, 0)
    at = max(min(await log.offset_at(queue, time_ms), high), low)
    whole = high if is_end else low
    if at == whole or queue.topic.startswith(SHARED):
        return at
    try:
        beside = await _beside(log, queue, low, high, at, BESIDE)
        if is_end and not any(other >= at for other in beside):
            raise Refused(f"the member that answers gives nothing from {at} on")
        if not is_end and not any(other < at for other in beside):
            raise Refused(f"the member that answers begins at {at}")  # another has what is before
        if all(
            ms < time_ms + margin_ms if other < at else ms >= time_ms - margin_ms
            for other, ms in beside.items()
        ):
            return at
        LOG.warning(
            "wire.times %s: the broker finds a time at %d, and messages beside it say otherwise:"
            " their stored times may be damaged, or a clock was set back; it is searched by four"
            " neighbours at each step",
            describe(queue),
            at,
        )
        at = await _halved(log, queue, low, high, time_ms)
        beside = await _beside(log, queue, low, high, at, BESIDE)
    except Refused as refused:
        LOG.warning("wire.times %s: no time leaves any of it out: %s", describe(queue), refused)
        return whole
    if is_end:
        return min(max([at, *beside]) + 1, high)
    return min([other for other, ms in beside.items() if other < at and ms >= time_ms], default=at)


def stored_ms(record: bytes) -> int:
    """When it was stored: behind the sender's address, which may be a long one."""
    at = 56 + 12 * bool(int.from_bytes(record[36:40], "big") & 0x10)
    return max(int.from_bytes(record[at : at + 8], "big", signed=True), 0)


async def _halved(log: WireLog, queue: MessageQueue, first: int, end: int, time_ms: int) -> int:
    low, high = first, end
    while low < high:
        middle = (low + high) // 2
        times = (await _beside(log, queue, first, end, middle, 2)).values()
        if not times:
            raise Refused(f"the broker gives none at {middle}")
        if sum(one < time_ms for one in times) * 2 > len(times):
            low = middle + 1
        else:
            high = middle
    return low


async def _beside(
    log: WireLog, queue: MessageQueue, low: int, high: int, at: int, count: int
) -> dict[int, int]:
    """When records were stored, by their offsets: so many before a place, and from there on, as far
    as they are there. One may hold several messages."""
    found: dict[int, int] = {}
    following, stop = max(at - count, low), min(at + count, high)
    for _ in range(4 * count):
        if following >= high or sum(one >= at for one in found) >= count:
            break
        pulled = await log.pull(queue, following, count=max(stop - following, 1))
        found |= _stored(pulled.records)
        if pulled.next_offset <= following:
            break
        following = pulled.next_offset
    for _ in range(count):
        first = min(found, default=low)
        if first <= low or sum(one < at for one in found) >= count:
            break
        found |= _stored((await log.pull(queue, first - 1, count=1)).records)
    return found


def _stored(records: bytes) -> dict[int, int]:
    found: dict[int, int] = {}
    while size := int.from_bytes(records[:4], "big"):
        found[int.from_bytes(records[20:28], "big")] = stored_ms(records)
        records = records[size:]
    return found
