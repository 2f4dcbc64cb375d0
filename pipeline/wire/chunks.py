"""Answers about one queue, one after the other, until there are bytes enough to make rows of.

Several pulls are under way at once. What is in the way, and who allows loss goes on behind it: what
retention deleted meanwhile, messages that a broker refuses because they are damaged, a queue that
became shorter.
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
"""Messages that the first pull asks for."""
IN_FLIGHT: Final = 8
"""Pulls of one task under way at once."""
DOUBTED_MAX: Final = 128
"""Refused messages that are asked for at once, to learn where the next one is that is given."""
STALLED_MAX: Final = 3
"""Answers of a master without a record and without a step forward, one after the other, before it
is an error; others are waited for."""


async def chunk(options: Options, wanted: "QueueRange", start: int, log: WireLog) -> list[RawPull]:
    """Answers from `start` on until there are bytes enough or the range is over."""
    found: list[RawPull] = []
    size, offset, stalled, stalled_at, step = 0, start, 0, 0.0, 0
    begins: dict[int, int] = {}
    """Where members that were asked for the offset begin, as they do not have it any more."""
    short: set[int] = set()
    """Members that were asked for the offset and end before it."""
    while offset < wanted.end and size < CHUNK_BYTES:
        try:
            answers = await _pulls(log, wanted, offset, step)
        except Refused as refused:
            if step:
                step = 0  # to learn which of several it was
            elif options.fail_on_data_loss:
                raise refused.with_advice from refused
            else:
                offset = await _behind_damage(log, wanted, offset, refused)
                found.append(_nothing(offset))
            continue
        for pulled in answers:
            lost = _lost(pulled, offset, wanted)
            if lost:
                begins[pulled.broker_id] = lost
                passed = await _behind_deleted(log, wanted, offset, begins, options)
                if passed is None:
                    break
                pulled = passed
            if not pulled.records and pulled.next_offset <= offset:
                if options.read_uncommitted and await _goes_to_another(log, wanted, pulled, short):
                    break
                stalled_at = stalled_at if stalled else trio.current_time()
                stalled += 1
                if await _is_over(log, wanted, pulled, offset, stalled, stalled_at, options):
                    found.append(_nothing(wanted.end))
                    return found
                break
            if pulled.next_offset <= offset:
                raise WireError(
                    f"{describe(wanted.queue)}: the broker gives messages at {offset} and says that"
                    f" {pulled.next_offset} comes next, so the read would never end: its store is"
                    " damaged, or it is no broker of RocketMQ's",
                    Condition.CORRUPT_RECORD,
                )
            stalled = 0
            found.append(pulled)
            size += len(pulled.records)
            step = pulled.next_offset - offset if pulled.records else 0
            offset = pulled.next_offset
            begins, short = {}, set()
    return found


async def _goes_to_another(
    log: WireLog, wanted: "QueueRange", pulled: RawPull, short: set[int]
) -> bool:
    """Whether another member is asked from now on: the one that was asked is shorter, and the
    longest is wanted. Who was asked is noted in `short`."""
    if pulled.end >= wanted.end:
        return False
    short.add(pulled.broker_id)
    other = await log.another(wanted.queue, short)
    if other is None:
        short.clear()
        return False
    short.add(other)  # unless it answers
    log.ask_member(wanted.queue, other)
    return True


async def _pulls(log: WireLog, wanted: "QueueRange", offset: int, step: int) -> list[RawPull]:
    """Answers that follow one another, from `offset` on; at least one.

    Brokers give a few dozen messages at once. When one has given `step`, the next pulls are sent
    together, each beginning where the one before it should end; what does not fit is thrown away.
    """
    if step < 1:
        return [await log.pull(wanted.queue, offset, count=min(wanted.end - offset, COUNT_MAX))]
    starts = range(offset, min(offset + step * IN_FLIGHT, wanted.end), step)
    answers: dict[int, RawPull] = {}

    async def ask(at: int) -> None:
        answers[at] = await log.pull(wanted.queue, at, count=min(wanted.end - at, step))

    await together(ask, starts)
    found, at = [answers[offset]], offset
    while found[-1].records and at < found[-1].next_offset and found[-1].next_offset in answers:
        at = found[-1].next_offset
        found.append(answers[at])
    return found


def _nothing(following: int) -> RawPull:
    """An answer that leaves out what is before an offset."""
    return RawPull(records=b"", next_offset=following, first=0, end=0, broker_id=0)


async def _behind_deleted(
    log: WireLog, wanted: "QueueRange", offset: int, begins: dict[int, int], options: Options
) -> RawPull | None:
    """An answer that leaves out what no member has any more; None: another member, which deletes by
    itself, is asked from now on. Raises `WireError`."""
    other = await log.another(wanted.queue, begins)
    if other is not None:
        begins[other] = wanted.end  # unless it answers
        log.ask_member(wanted.queue, other)
        return None
    has_most = min(begins, key=lambda one: begins[one])
    if options.fail_on_data_loss:
        raise WireError(
            f"{describe(wanted.queue)}: messages {offset} to {begins[has_most]} were deleted while "
            f"they were being read, by all members that answer; failOnDataLoss=false continues "
            f"after them",
            Condition.DATA_LOSS,
        )
    log.ask_member(wanted.queue, has_most)
    return _nothing(begins[has_most])


async def _is_over(
    log: WireLog,
    wanted: "QueueRange",
    pulled: RawPull,
    offset: int,
    times: int,
    since_s: float,
    options: Options,
) -> bool:
    """After an answer without a message and without a step, the first of which came at `since_s`:
    whether a queue that became shorter is read to its end, for who allows loss. Until then the
    master is asked. Raises `WireError`."""
    is_short, is_masters = pulled.end <= offset, pulled.broker_id == MASTER_ID
    is_final = is_masters and options.fail_on_data_loss and not options.read_uncommitted
    if is_short and not is_final:  # the one that has it may come back
        is_enough = trio.current_time() - since_s >= options.limit_s
    else:
        is_enough = times >= STALLED_MAX
    if is_enough:
        who = "the broker" if is_masters else f"the slave that answers, {pulled.broker_id},"
        what = (
            f"{describe(wanted.queue)}: no messages at {offset}, though it was to be read up to "
            f"{wanted.end} and {who} says it has {pulled.first} to {pulled.end}: its log was "
            f"truncated, or another broker replaced it"
        )
        if not is_final:
            what += ", or the member that has them is away"
        if is_short and not options.fail_on_data_loss:
            LOG.warning("wire.shorter %s", what)
            return True
        if is_short:
            what += "; failOnDataLoss=false takes what is there"
            raise WireError(what, Condition.DATA_LOSS)
        raise WireError(what)
    log.ask_master(wanted.queue)
    await log.pause(times)
    return False


async def _behind_damage(log: WireLog, wanted: "QueueRange", offset: int, refused: Refused) -> int:
    """The first offset behind `offset` that is not refused, if any message of the queue is given: a
    broker that gives nothing has other troubles. Raises `Refused`."""
    bounds = await log.bounds(wanted.queue)
    for other in (offset + 1, bounds.first, offset - 1, offset + 2, bounds.end - 1):
        if other != offset and bounds.first <= other < bounds.end:
            with suppress(Refused):
                if (await log.pull(wanted.queue, other, count=1)).records:
                    break
    else:
        raise refused
    following = offset + 1
    if other != following:
        following = await _first_given(log, wanted.queue, following, wanted.end)
    LOG.warning("wire.left_out messages %d to %d: %s", offset, following - 1, refused)
    return following


async def _first_given(log: WireLog, queue: MessageQueue, start: int, end: int) -> int:
    """The first offset that is not refused, or the end. Each is asked for, and each refusal doubted
    for as long as one alone: more and more of them at once."""
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


def _lost(pulled: RawPull, offset: int, wanted: "QueueRange") -> int:
    """The first offset behind messages that are gone; 0 when none are."""
    if not pulled.records and pulled.first > offset:
        return min(pulled.first, wanted.end)
    return 0
