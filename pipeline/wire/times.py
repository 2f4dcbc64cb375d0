"""Find where a time begins or ends in a queue, and check the broker's answer against the queue.

Brokers search by bisection, and no checksum covers a stored time: a single wrong time can send the
search to the wrong side. The wrong record is then next to the answer, and its neighbours contradict
it. So the records around an answer are compared, and if they contradict it the bisection is
repeated here, with four neighbours at each step.
"""

import logging
from typing import Final

from rocketbed.pipeline.wire.log import Refused, WireLog
from rocketbed.pipeline.wire.questions import SHARED, describe
from rocketbed.wire.bodies import MessageQueue

LOG: Final = logging.getLogger("rocketbed.pipeline")
BESIDE: Final = 4
"""Records compared on each side of an answer; this many consecutive wrong times go unnoticed."""


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
    """Return the first offset in [low, high] stored at or after a time; `is_end`: or a later one.

    Clocks may have been set back by the margin. If the records cannot be pulled, the whole range
    is kept. Raises `WireError`.
    """
    time_ms = max(time_ms, 0)
    at = max(min(await log.offset_at(queue, time_ms), high), low)
    whole = high if is_end else low
    if at == whole or queue.topic.startswith(SHARED):
        return at
    try:
        neighbours = await _times_around(log, queue, low, high, at, BESIDE)
        if is_end and not any(offset >= at for offset in neighbours):
            raise Refused(f"the member that answers gives nothing from {at} on")
        if not is_end and not any(offset < at for offset in neighbours):
            raise Refused(
                f"the member that answers begins at {at}"
            )  # another member has the earlier messages
        if all(
            ms < time_ms + margin_ms if offset < at else ms >= time_ms - margin_ms
            for offset, ms in neighbours.items()
        ):
            return at
        LOG.warning(
            "wire.times %s: the broker finds a time at %d, and messages beside it say otherwise:"
            " their stored times may be damaged, or a clock was set back; it is searched by four"
            " neighbours at each step",
            describe(queue),
            at,
        )
        at = await _bisect(log, queue, low, high, time_ms)
        neighbours = await _times_around(log, queue, low, high, at, BESIDE)
    except Refused as refused:
        LOG.warning("wire.times %s: no time leaves any of it out: %s", describe(queue), refused)
        return whole
    if is_end:
        return min(max([at, *neighbours]) + 1, high)
    return min(
        [offset for offset, ms in neighbours.items() if offset < at and ms >= time_ms], default=at
    )


def stored_ms(record: bytes) -> int:
    """Return the store time of a record. It follows the sender's address, which may be IPv6."""
    at = 56 + 12 * bool(int.from_bytes(record[36:40], "big") & 0x10)
    return max(int.from_bytes(record[at : at + 8], "big", signed=True), 0)


async def _bisect(log: WireLog, queue: MessageQueue, first: int, end: int, time_ms: int) -> int:
    low, high = first, end
    while low < high:
        middle = (low + high) // 2
        times = (await _times_around(log, queue, first, end, middle, 2)).values()
        if not times:
            raise Refused(f"the broker gives none at {middle}")
        if sum(one < time_ms for one in times) * 2 > len(times):
            low = middle + 1
        else:
            high = middle
    return low


async def _times_around(
    log: WireLog, queue: MessageQueue, low: int, high: int, at: int, count: int
) -> dict[int, int]:
    """Return store times by offset, for up to `count` records before `at` and `count` from it on. A
    record may hold several messages."""
    times: dict[int, int] = {}
    following, stop = max(at - count, low), min(at + count, high)
    for _ in range(4 * count):
        if following >= high or sum(one >= at for one in times) >= count:
            break
        pulled = await log.pull(queue, following, count=max(stop - following, 1))
        times |= _stored(pulled.records)
        if pulled.next_offset <= following:
            break
        following = pulled.next_offset
    for _ in range(count):
        first = min(times, default=low)
        if first <= low or sum(one < at for one in times) >= count:
            break
        times |= _stored((await log.pull(queue, first - 1, count=1)).records)
    return times


def _stored(records: bytes) -> dict[int, int]:
    times: dict[int, int] = {}
    while size := int.from_bytes(records[:4], "big"):
        times[int.from_bytes(records[20:28], "big")] = stored_ms(records)
        records = records[size:]
    return times
