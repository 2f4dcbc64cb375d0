"""Check that a topic was not recreated since a batch read was planned.

A topic that is deleted and recreated has other messages at the same offsets, and no answer of a
broker shows it. For each topic and broker one message, the last to be read of the first queue, is
therefore pulled when a read is planned, and again when a task has read its share. The check is
skipped where it takes too long: a read neither fails nor waits for it.
"""

import zlib
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import trio

from rocketbed.client.routes import MASTER_ID
from rocketbed.pipeline.wire.log import WireError, WireLog
from rocketbed.pipeline.wire.questions import SHARED, together
from rocketbed.wire.bodies import MessageQueue

SAMPLES_S: Final = 2.0
"""Time for all samples together; a member may hang, and a message may be damaged."""
LOST: Final = -1
"""Value in place of a checksum: the queue of a member that had the message ends before it."""
Place = tuple[str, str]
"""A topic and a broker."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A message as it was when the read was planned."""

    queue: MessageQueue
    at: int
    crc: int
    """Checksum of the bytes that are the same at each member, and after a compaction."""
    is_everywhere: bool
    """True if all members of its broker had it, so that a member without it has lost it."""


def place_of_queue(queue: MessageQueue) -> Place:
    return queue.topic, queue.broker_name


async def samples_of(
    log: WireLog, lasts: Mapping[MessageQueue, int], everywhere: Collection[MessageQueue]
) -> dict[Place, Sample]:
    """Take a sample for each topic and broker. `lasts`: last offset to be read by queue;
    `everywhere`: queues whose last offset all members have."""
    chosen: dict[Place, MessageQueue] = {}
    for queue in lasts:
        if not queue.topic.startswith(SHARED):
            chosen.setdefault(place_of_queue(queue), queue)
    checksums = await _checksums(log, {queue: lasts[queue] for queue in chosen.values()})
    return {
        place: Sample(queue, lasts[queue], checksums[queue], queue in everywhere)
        for place, queue in chosen.items()
        if checksums.get(queue, LOST) != LOST
    }


async def replaced_samples(samples: Iterable[Sample], log: WireLog) -> list[Sample]:
    """Return samples whose message was replaced, or is missing at a member that had it."""
    by_queue = {one.queue: one for one in samples}
    everywhere = {queue for queue, one in by_queue.items() if one.is_everywhere}
    checksums = await _checksums(
        log, {queue: one.at for queue, one in by_queue.items()}, everywhere
    )
    return [one for queue, one in by_queue.items() if checksums.get(queue, one.crc) != one.crc]


async def _checksums(
    log: WireLog, places: Mapping[MessageQueue, int], everywhere: Collection[MessageQueue] = ()
) -> dict[MessageQueue, int]:
    """Checksums of messages at offsets, as far as they can be pulled in time."""
    checksums: dict[MessageQueue, int] = {}

    async def ask(queue: MessageQueue) -> None:
        pulled = await log.pull(queue, places[queue], count=1)
        if pulled.end <= places[queue] and pulled.broker_id != MASTER_ID:
            if queue in everywhere:
                checksums[queue] = LOST  # the master may have it
            log.ask_master(queue)
            pulled = await log.pull(queue, places[queue], count=1)
        record = pulled.records[:64]
        # The message may have expired, and the broker may give a later one.
        if record and int.from_bytes(record[20:28], "big") <= places[queue]:
            # Only the checksum of the body: a damaged body is reported by its row.
            checksums[queue] = zlib.crc32(record[8:28] + record[40:])
        elif pulled.end <= places[queue] and pulled.broker_id == MASTER_ID:
            checksums[queue] = LOST

    async def try_to(queue: MessageQueue) -> None:
        with suppress(WireError):
            await ask(queue)

    with trio.move_on_after(SAMPLES_S):
        await together(try_to, places)
    return checksums
