"""What a batch read of a live cluster does, without Spark: ranges of queues, then their rows.

The queues' ends are asked for once, when the read is planned: what arrives later is not read. A
range is pulled chunk by chunk by a thread beside the one that makes rows, so that the next chunk is
on its way while rows are made of the last; a chunk is what bounds memory. All tasks of a process
pull through one client, which stays when they end.
"""

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from rocketbed.pipeline.errors import Condition
from rocketbed.pipeline.files.decode import Wanted
from rocketbed.pipeline.files.splits import CLOCK_MARGIN_MS
from rocketbed.pipeline.option_table import OptionError
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.streams.offsets import (
    EARLIEST,
    QUEUE,
    DataLoss,
    StreamOffset,
    parse_offsets,
)
from rocketbed.pipeline.wire.cluster import Cluster
from rocketbed.pipeline.wire.kept import kept_log
from rocketbed.pipeline.wire.log import RawPull, Refused, WireError, WireLog
from rocketbed.pipeline.wire.questions import QueueBounds, describe, together
from rocketbed.wire.bodies import MessageQueue

if TYPE_CHECKING:
    import pyarrow

    from rocketbed.pipeline.wire.rows import WireDecoder

TASKS_MAX: Final = 1000
"""Of a read, about, unless more are asked for: a cluster may have tens of thousands of queues."""
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
"""Answers without a record and without a step forward, one after the other, before it is an
error."""


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Messages [start, end) of one queue, by queue offset."""

    queue: MessageQueue
    start: int
    end: int

    def cut(self, count: int) -> "list[QueueRange]":
        """The range in pieces of at most so many messages."""
        return [
            QueueRange(self.queue, start, min(start + count, self.end))
            for start in range(self.start, self.end, count)
        ]


Share = tuple[QueueRange, ...]
"""What one task reads."""


def shared(ranges: Sequence[QueueRange], at_least: int) -> list[Share]:
    """Ranges as shares, cut and put together: at least so many, and not one for each of thousands
    of queues."""
    total = sum(one.end - one.start for one in ranges)
    count = max(-(-total // at_least), 1)
    pieces = [piece for one in ranges for piece in one.cut(count)]
    if len(pieces) <= TASKS_MAX:
        return [(piece,) for piece in pieces]
    full = min(count, -(-total // TASKS_MAX))
    found: list[list[QueueRange]] = []
    size = full
    for piece in pieces:
        length = piece.end - piece.start
        if size + length > full:
            found.append([])
            size = 0
        found[-1].append(piece)
        size += length
    return [tuple(each) for each in found]


@dataclass(frozen=True, slots=True)
class WirePlan:
    """What is to be read, and what is wanted of it."""

    options: Options
    wanted: Wanted = field(default_factory=Wanted)

    @classmethod
    def of(cls, options: Options) -> "WirePlan":
        """The plan that the options ask for. Raises `OptionError`."""
        if options.path:
            raise OptionError("give path or endpoints, not both")
        if options.view != "records":
            raise OptionError(f"view={options.view} needs the files: give path, not endpoints")
        return cls(options, Wanted.of(options))

    def splits(self) -> list[Share]:
        """Ranges of all queues up to what every answering member has, or as the options say.

        Raises `WireError`, `StreamError`.
        """
        starting = parse_offsets(self.options.starting_offsets, QUEUE, "startingOffsets")
        ending = parse_offsets(self.options.ending_offsets, QUEUE, "endingOffsets")
        return shared(trio.run(self._ranges, starting, ending), self.options.min_partitions)

    def read(self, split: Share, schema: "pyarrow.Schema") -> "Iterator[pyarrow.RecordBatch]":
        """The rows of one share. Raises `WireError`, `TopicGone`."""
        return read_share(split, schema, self.options, self.wanted)

    async def _ranges(
        self, starting: str | StreamOffset, ending: str | StreamOffset
    ) -> list[QueueRange]:
        cluster = Cluster(self.options)
        wanted_ends: dict[str, int] = {}
        for given in (starting, ending):
            if isinstance(given, StreamOffset):
                wanted_ends |= {name: mark.at for name, mark in given.marks.items()}
        async with WireLog(self.options.endpoints, limit_s=self.options.limit_s) as log:
            seen = await cluster.look_until(log, wanted_ends)
            starts = cluster.places(EARLIEST, seen, "") | cluster.places(
                starting, seen, "startingOffsets"
            )
            ends = cluster.places(ending, seen, "endingOffsets")
            found: list[QueueRange] = []

            async def ask(name: str) -> None:
                queue, bounds = seen.queues[name], seen.bounds[name]
                start = self._there(queue, starts[name], bounds)
                end = self._there(queue, ends[name], bounds, start=start)
                if start < end:
                    found.append(await self._timed(log, QueueRange(queue, start, end)))

            await together(
                ask, [name for name in ends if self.wanted.has_topic(seen.queues[name].topic)]
            )
        in_order = sorted(found, key=lambda one: one.queue)
        return [one for one in in_order if one.start < one.end]

    def _there(
        self, queue: MessageQueue, at: int, bounds: QueueBounds, *, start: int | None = None
    ) -> int:
        """A place, or the nearest one that is there. Raises `DataLoss`."""
        low = bounds.first if start is None else start
        near = max(min(at, bounds.longest), low)
        is_lost = at > bounds.longest or (start is None and at < low)
        if is_lost and self.options.fail_on_data_loss:
            raise DataLoss(
                f"{describe(queue)} has {bounds.first} to {bounds.longest}, and {at} was asked for;"
                f" failOnDataLoss=false goes on with what is there"
            )
        return near

    async def _timed(self, log: WireLog, one: QueueRange) -> QueueRange:
        """A range without most of what was stored before and after the times."""
        start, end, wanted = one.start, one.end, self.wanted
        if wanted.start_ms is not None:
            since = max(wanted.start_ms - CLOCK_MARGIN_MS, 0)
            start = max(start, await log.offset_at(one.queue, since))
        if wanted.end_ms is not None:
            until = max(wanted.end_ms + CLOCK_MARGIN_MS, 0)
            end = min(end, await log.offset_at(one.queue, until))
        return QueueRange(one.queue, start, end)


def read_share(
    share: Share, schema: "pyarrow.Schema", options: Options, wanted: Wanted
) -> "Iterator[pyarrow.RecordBatch]":
    """Rows of ranges, each in the order of its queue. Raises `WireError`, `TopicGone`."""
    for one in share:
        yield from _read_range(one, schema, options, wanted)


def _read_range(
    wanted_range: QueueRange, schema: "pyarrow.Schema", options: Options, wanted: Wanted
) -> "Iterator[pyarrow.RecordBatch]":
    from rocketbed.pipeline.wire.rows import ANY, Uncut, WireDecoder

    queue = wanted_range.queue
    decoder = WireDecoder(queue, schema, options, wanted, first=wanted_range.start)
    with ThreadPoolExecutor(1, "rocketbed pull") as threads:

        def ask(start: int) -> "list[RawPull]":
            return kept_log(options).call(partial(_chunk, options, wanted_range, start))

        coming = threads.submit(ask, wanted_range.start)
        while True:
            chunk = coming.result()
            following = chunk[-1].next_offset if chunk else wanted_range.end
            if following < wanted_range.end:
                coming = threads.submit(ask, following)
            for pulled in chunk:
                try:
                    yield from decoder.rows(
                        pulled.records,
                        pulled.broker_id,
                        start=wanted_range.start,
                        end=wanted_range.end,
                        following=pulled.next_offset,
                    )
                except Uncut as uncut:
                    if options.fail_on_data_loss or decoder.next == ANY:
                        raise
                    LOG.warning("wire.uncut %s: its messages are asked for one by one", uncut)
                    end = min(pulled.next_offset, wanted_range.end)
                    one_by_one = QueueRange(queue, decoder.next, end)
                    yield from _one_by_one(decoder, one_by_one, options)
            if following >= wanted_range.end:
                decoder.finish(wanted_range.end)
                return


def _one_by_one(
    decoder: "WireDecoder", wanted: QueueRange, options: Options
) -> "Iterator[pyarrow.RecordBatch]":
    """Rows of those messages of a range that can be read by themselves."""
    from rocketbed.pipeline.wire.rows import Uncut

    at = wanted.start
    while at < wanted.end:
        with suppress(Refused, Uncut):  # that it is left out, the decoder tells
            pulled = kept_log(options).call(partial(_pull_one, wanted.queue, at))
            following = min(pulled.next_offset, wanted.end)
            yield from decoder.rows(
                pulled.records, pulled.broker_id, start=at, end=wanted.end, following=following
            )
            at = max(following - 1, at)
        at += 1


async def _pull_one(queue: MessageQueue, at: int, log: WireLog) -> RawPull:
    return await log.pull(queue, at, count=1)


async def _chunk(options: Options, wanted: QueueRange, start: int, log: WireLog) -> list[RawPull]:
    """Answers from `start` on until there are bytes enough or the range is over."""
    found: list[RawPull] = []
    size, offset, stalled, step = 0, start, 0, 0
    doubted = -1
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
                found.append(RawPull(records=b"", next_offset=offset, first=0, end=0, broker_id=0))
            continue
        for pulled in answers:
            lost = _lost(pulled, offset, wanted)
            if lost and pulled.broker_id and doubted != offset:
                doubted = offset  # a slave may keep less than its master
                log.ask_master(wanted.queue)
                break
            if lost and options.fail_on_data_loss:
                raise WireError(
                    f"{describe(wanted.queue)}: messages {offset} to {lost} were deleted while "
                    f"they were being read; failOnDataLoss=false continues after them",
                    Condition.DATA_LOSS,
                )
            if not pulled.records and pulled.next_offset <= offset:
                stalled += 1
                await _stand_still(log, wanted, pulled, offset, stalled)
                break
            stalled = 0
            found.append(pulled)
            size += len(pulled.records)
            step = pulled.next_offset - offset if pulled.records else 0
            offset = pulled.next_offset
    return found


async def _pulls(log: WireLog, wanted: QueueRange, offset: int, step: int) -> list[RawPull]:
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
    found = [answers[offset]]
    while found[-1].records and found[-1].next_offset in answers:
        found.append(answers[found[-1].next_offset])
    return found


async def _stand_still(
    log: WireLog, wanted: QueueRange, pulled: RawPull, offset: int, times: int
) -> None:
    """An answer without a message and without a step: ask the master, but not for ever."""
    if times >= STALLED_MAX:
        raise WireError(
            f"{describe(wanted.queue)}: no messages at {offset}, though it was to be read up to "
            f"{wanted.end} and the broker says it has {pulled.first} to {pulled.end}: its log was "
            f"truncated, or another broker replaced it"
        )
    log.ask_master(wanted.queue)
    await log.pause(times)


async def _behind_damage(log: WireLog, wanted: QueueRange, offset: int, refused: Refused) -> int:
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


def _lost(pulled: RawPull, offset: int, wanted: QueueRange) -> int:
    """The first offset behind messages that are gone; 0 when none are."""
    if not pulled.records and pulled.first > offset:
        return min(pulled.first, wanted.end)
    return 0
