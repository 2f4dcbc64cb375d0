"""Pulls of one queue, in order, until there are enough bytes to make rows of.

Several pulls are under way at once. Three obstacles are errors, or are skipped if loss is allowed:
messages that retention deleted meanwhile, messages that a broker refuses because they are damaged,
and a queue that became shorter.
"""

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from rocketbed.client.routes import MASTER_ID
from rocketbed.pipeline.errors import Condition
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.wire.log import RawPull, Refused, WireError, WireLog
from rocketbed.pipeline.wire.questions import describe, together
from rocketbed.wire.bodies import MessageQueue

if TYPE_CHECKING:
    from rocketbed.pipeline.wire.plan import QueueRange

LOG: Final = logging.getLogger("rocketbed.pipeline")
CHUNK_BYTES: Final = 8 << 20
"""Bytes of records that are pulled before rows are made of them."""
COUNT_MAX: Final = 4096
"""Messages requested by the first pull."""
IN_FLIGHT: Final = 8
"""Concurrent pulls of one task."""
DOUBTED_MAX: Final = 128
"""Refused messages pulled concurrently in search of the next readable one."""
STALLED_MAX: Final = 3
"""Consecutive answers of a master without a record and without progress that make an error; a slave
is waited for."""


async def chunk(options: Options, part: "QueueRange", start: int, log: WireLog) -> list[RawPull]:
    """Pull from `start` on until there are enough bytes or the range is complete."""
    results: list[RawPull] = []
    size, offset, stalled, stalled_at, step = 0, start, 0, 0.0, 0
    begins: dict[int, int] = {}
    """First offset of each member asked that has already deleted the present one."""
    short: set[int] = set()
    """Members asked that end before the present offset."""
    while offset < part.end and size < CHUNK_BYTES:
        try:
            answers = await _pulls(log, part, offset, step)
        except Refused as refused:
            if step:
                step = 0  # find out which of several was refused
            elif options.fail_on_data_loss:
                raise refused.with_advice from refused
            else:
                offset = await _next_after_damage(log, part, offset, refused)
                results.append(_skip_to(offset))
            continue
        for pulled in answers:
            lost = _deleted_up_to(pulled, offset, part)
            if lost:
                begins[pulled.broker_id] = lost
                passed = await _next_after_deletion(log, part, offset, begins, options)
                if passed is None:
                    break
                pulled = passed
            if not pulled.records and pulled.next_offset <= offset:
                if options.read_uncommitted and await _goes_to_another(log, part, pulled, short):
                    break
                stalled_at = stalled_at if stalled else trio.current_time()
                stalled += 1
                if await _is_over(log, part, pulled, offset, stalled, stalled_at, options):
                    results.append(_skip_to(part.end))
                    return results
                break
            if pulled.next_offset <= offset:
                raise WireError(
                    f"{describe(part.queue)}: the broker gives messages at {offset} and says that"
                    f" {pulled.next_offset} comes next, so the read would never end: its store is"
                    " damaged, or it is no broker of RocketMQ's",
                    Condition.CORRUPT_RECORD,
                )
            stalled = 0
            results.append(pulled)
            size += len(pulled.records)
            step = pulled.next_offset - offset if pulled.records else 0
            offset = pulled.next_offset
            begins, short = {}, set()
    return results


async def _goes_to_another(
    log: WireLog, part: "QueueRange", pulled: RawPull, short: set[int]
) -> bool:
    """Switch to another member if the one asked is too short, and return True if there was one.
    Adds the members asked to `short`."""
    if pulled.end >= part.end:
        return False
    short.add(pulled.broker_id)
    member = await log.another(part.queue, short)
    if member is None:
        short.clear()
        return False
    short.add(member)  # unless it answers
    log.ask_member(part.queue, member)
    return True


async def _pulls(log: WireLog, part: "QueueRange", offset: int, step: int) -> list[RawPull]:
    """Pull consecutive answers from `offset` on; returns at least one.

    Brokers give a few dozen messages at once. After an answer of `step` messages the next pulls are
    sent together, each beginning where the previous one should end; answers that do not fit are
    discarded.
    """
    if step < 1:
        return [await log.pull(part.queue, offset, count=min(part.end - offset, COUNT_MAX))]
    starts = range(offset, min(offset + step * IN_FLIGHT, part.end), step)
    answers: dict[int, RawPull] = {}

    async def ask(at: int) -> None:
        answers[at] = await log.pull(part.queue, at, count=min(part.end - at, step))

    await together(ask, starts)
    pulls, at = [answers[offset]], offset
    while pulls[-1].records and at < pulls[-1].next_offset and pulls[-1].next_offset in answers:
        at = pulls[-1].next_offset
        pulls.append(answers[at])
    return pulls


def _skip_to(following: int) -> RawPull:
    """Make an empty answer that skips to an offset."""
    return RawPull(records=b"", next_offset=following, first=0, end=0, broker_id=0)


async def _next_after_deletion(
    log: WireLog, part: "QueueRange", offset: int, begins: dict[int, int], options: Options
) -> RawPull | None:
    """Make an answer that skips messages which no member has any more; None if another member,
    which may have deleted less, is to be asked now. Raises `WireError`."""
    member = await log.another(part.queue, begins)
    if member is not None:
        begins[member] = part.end  # unless it answers
        log.ask_member(part.queue, member)
        return None
    has_most = min(begins, key=lambda member: begins[member])
    if options.fail_on_data_loss:
        raise WireError(
            f"{describe(part.queue)}: messages {offset} to {begins[has_most]} were deleted while "
            f"they were being read, by all members that answer; failOnDataLoss=false continues "
            f"after them",
            Condition.DATA_LOSS,
        )
    log.ask_member(part.queue, has_most)
    return _skip_to(begins[has_most])


async def _is_over(
    log: WireLog,
    part: "QueueRange",
    pulled: RawPull,
    offset: int,
    attempts: int,
    since_s: float,
    options: Options,
) -> bool:
    """True if a queue that became shorter counts as read to its end, because loss is allowed.

    Called after each answer without messages and without progress, the first at `since_s`. Asks the
    master next while it returns False. Raises `WireError`.
    """
    is_short, is_masters = pulled.end <= offset, pulled.broker_id == MASTER_ID
    is_final = is_masters and options.fail_on_data_loss and not options.read_uncommitted
    if is_short and not is_final:  # the member that has the message may come back
        is_enough = trio.current_time() - since_s >= options.limit_s
    else:
        is_enough = attempts >= STALLED_MAX
    if is_enough:
        source = "the broker" if is_masters else f"the slave that answers, {pulled.broker_id},"
        problem = (
            f"{describe(part.queue)}: no messages at {offset}, though it was to be read up to "
            f"{part.end} and {source} says it has {pulled.first} to {pulled.end}: its log was "
            f"truncated, or another broker replaced it"
        )
        if not is_final:
            problem += ", or the member that has them is away"
        if is_short and not options.fail_on_data_loss:
            LOG.warning("wire.shorter %s", problem)
            return True
        if is_short:
            problem += "; failOnDataLoss=false takes what is there"
            raise WireError(problem, Condition.DATA_LOSS)
        raise WireError(problem)
    log.ask_master(part.queue)
    await log.pause(attempts)
    return False


async def _next_after_damage(
    log: WireLog, part: "QueueRange", offset: int, refused: Refused
) -> int:
    """Return the first offset after `offset` that is not refused. Raises `Refused` if none of a few
    messages of the queue can be pulled: the cause is not a damaged message then."""
    bounds = await log.bounds(part.queue)
    for probe in (offset + 1, bounds.first, offset - 1, offset + 2, bounds.end - 1):
        if probe != offset and bounds.first <= probe < bounds.end:
            with suppress(Refused):
                if (await log.pull(part.queue, probe, count=1)).records:
                    break
    else:
        raise refused
    following = offset + 1
    if probe != following:
        following = await _first_readable(log, part.queue, following, part.end)
    LOG.warning("wire.left_out messages %d to %d: %s", offset, following - 1, refused)
    return following


async def _first_readable(log: WireLog, queue: MessageQueue, start: int, end: int) -> int:
    """Return the first offset that is not refused, or the end. Pulls each message, with the usual
    retries of a refusal, and more and more of them concurrently."""
    count = 1
    while start < end:
        answered: list[int] = []

        async def ask(at: int, answered: list[int] = answered) -> None:
            with suppress(Refused):
                await log.pull(queue, at, count=1)
                answered.append(at)

        await together(ask, range(start, min(start + count, end)), at_once=DOUBTED_MAX)
        if answered:
            return min(answered)
        start, count = min(start + count, end), min(count * 2, DOUBTED_MAX)
    return end


def _deleted_up_to(pulled: RawPull, offset: int, part: "QueueRange") -> int:
    """Return the first offset after deleted messages; 0 if none were deleted."""
    if not pulled.records and pulled.first > offset:
        return min(pulled.first, part.end)
    return 0
