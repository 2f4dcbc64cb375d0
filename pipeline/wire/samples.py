"""Whether a topic is still the one that a batch read was planned for.

A topic that is deleted and made again gives other messages at the same offsets, and no answer of a
broker's says so. One message for each topic and broker, the last that is to be read of the first
queue, is therefore looked at when a read is planned, and again when a task has read its share.
Where that cannot be done soon it is not done: a read neither fails nor waits for it.
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
"""For all of a look together; a member may hang, and a message be damaged."""
GONE: Final = -1
"""In place of a checksum: the queue of a member that had it ends before it."""
Place = tuple[str, str]
"""A topic and a broker."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A message as it was when the read was planned."""

    queue: MessageQueue
    at: int
    crc: int
    """Of what is the same at each member, and after a compaction."""
    is_everywhere: bool
    """Whether all members of its broker had it, so that one without it has lost it."""


def place_of_queue(queue: MessageQueue) -> Place:
    return queue.topic, queue.broker_name


async def samples_of(
    log: WireLog, lasts: Mapping[MessageQueue, int], everywhere: Collection[MessageQueue]
) -> dict[Place, Sample]:
    """One for each topic and broker, by the last offsets to be read of queues, and in which queues
    all members have them."""
    chosen: dict[Place, MessageQueue] = {}
    for queue in lasts:
        if not queue.topic.startswith(SHARED):
            chosen.setdefault(place_of_queue(queue), queue)
    found = await _checksums(log, {queue: lasts[queue] for queue in chosen.values()})
    return {
        place: Sample(queue, lasts[queue], found[queue], queue in everywhere)
        for place, queue in chosen.items()
        if found.get(queue, GONE) != GONE
    }


async def others(samples: Iterable[Sample], log: WireLog) -> list[Sample]:
    """Those in whose places there are other messages now, or none at a member that had them."""
    wanted = {one.queue: one for one in samples}
    everywhere = {queue for queue, one in wanted.items() if one.is_everywhere}
    found = await _checksums(log, {queue: one.at for queue, one in wanted.items()}, everywhere)
    return [one for queue, one in wanted.items() if found.get(queue, one.crc) != one.crc]


async def _checksums(
    log: WireLog, places: Mapping[MessageQueue, int], everywhere: Collection[MessageQueue] = ()
) -> dict[MessageQueue, int]:
    """Of messages at offsets, as far as they are given soon."""
    found: dict[MessageQueue, int] = {}

    async def ask(queue: MessageQueue) -> None:
        pulled = await log.pull(queue, places[queue], count=1)
        if pulled.end <= places[queue] and pulled.broker_id != MASTER_ID:
            if queue in everywhere:
                found[queue] = GONE  # unless the master has it
            log.ask_master(queue)
            pulled = await log.pull(queue, places[queue], count=1)
        record = pulled.records[:64]
        # What was there may have expired, and a later one be given.
        if record and int.from_bytes(record[20:28], "big") <= places[queue]:
            # Of the body, which has rows of its own if it is damaged, its checksum only.
            found[queue] = zlib.crc32(record[8:28] + record[40:])
        elif pulled.end <= places[queue] and pulled.broker_id == MASTER_ID:
            found[queue] = GONE

    async def try_to(queue: MessageQueue) -> None:
        with suppress(WireError):
            await ask(queue)

    with trio.move_on_after(SAMPLES_S):
        await together(try_to, places)
    return found
