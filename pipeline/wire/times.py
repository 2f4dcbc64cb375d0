"""Where the messages of a time begin or end in a queue: a broker's answer, held against the queue.

Brokers find it by halving, and no checksum covers a stored time: a single one that is wrong can
send the search to its wrong side. It is next to the answer then, and what lies behind it there
contradicts: so the messages beside an answer are looked at, and the search is repeated here where
they say otherwise, by three neighbours at each step.
"""

import logging
from typing import Final

from rocketbed.pipeline.wire.log import Refused, WireLog
from rocketbed.pipeline.wire.questions import describe
from rocketbed.wire.bodies import MessageQueue

LOG: Final = logging.getLogger("rocketbed.pipeline")
BESIDE: Final = 4
"""Messages next to an answer that are looked at; so many wrong times in a row are not noticed."""


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

    Clocks may have been set back by the margin. Where messages cannot be looked at, nothing is left
    out. Raises `WireError`.
    """
    time_ms = max(time_ms, 0)
    at = max(min(await log.offset_at(queue, time_ms), high), low)
    whole = high if is_end else low
    if at == whole:
        return at
    try:
        beside = await _times(log, queue, max(at - BESIDE, low), min(at + BESIDE, high))
        if not is_end and not any(other < at for other in beside):
            raise Refused(f"the member that answers begins at {at}")  # another has what is before
        if all(
            ms < time_ms + margin_ms if other < at else ms >= time_ms - margin_ms
            for other, ms in beside.items()
        ):
            return at
        LOG.warning(
            "wire.times %s: the broker finds a time at %d, and messages beside it say otherwise:"
            " their stored times may be damaged, or a clock was set back; it is searched by three"
            " neighbours at each step",
            *(describe(queue), at),
        )
        at = await _halved(log, queue, low, high, time_ms)
        if is_end:
            return min(at + BESIDE, high)
        for other in range(max(at - BESIDE, low), at):
            times = await _times(log, queue, other, other + 1)
            if times and times[other] >= time_ms:
                return other
    except Refused as refused:
        LOG.warning("wire.times %s: no time leaves any of it out: %s", describe(queue), refused)
        return whole
    return at


def stored_ms(record: bytes) -> int:
    """When it was stored: behind the sender's address, which may be a long one."""
    at = 56 + 12 * bool(int.from_bytes(record[36:40], "big") & 0x10)
    return max(int.from_bytes(record[at : at + 8], "big", signed=True), 0)


async def _halved(log: WireLog, queue: MessageQueue, first: int, end: int, time_ms: int) -> int:
    low, high = first, end
    while low < high:
        middle = (low + high) // 2
        times = (await _times(log, queue, max(middle - 1, first), min(middle + 2, end))).values()
        if sum(one < time_ms for one in times) * 2 > len(times):
            low = middle + 1
        else:
            high = middle
    return low


async def _times(log: WireLog, queue: MessageQueue, start: int, end: int) -> dict[int, int]:
    """When messages were stored, by their offsets."""
    found: dict[int, int] = {}
    at = start
    while at < end:
        pulled = await log.pull(queue, at, count=end - at)
        records = pulled.records
        while size := int.from_bytes(records[:4], "big"):
            offset = int.from_bytes(records[20:28], "big")
            if offset < end:
                found[offset] = stored_ms(records)
            records = records[size:]
        if pulled.next_offset <= at:
            break
        at = pulled.next_offset
    return found
