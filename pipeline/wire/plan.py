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
from dataclasses import dataclass, field, replace
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
    LATEST,
    QUEUE,
    DataLoss,
    StreamOffset,
    check_order,
    parse_offsets,
)
from rocketbed.pipeline.wire.chunks import chunk
from rocketbed.pipeline.wire.clients import shared_log
from rocketbed.pipeline.wire.cluster import Cluster, QueueSnapshot
from rocketbed.pipeline.wire.log import RawPull, Refused, WireError, WireLog
from rocketbed.pipeline.wire.questions import QueueBounds, describe, together
from rocketbed.pipeline.wire.samples import Place, Sample, others, place_of_queue, samples_of
from rocketbed.pipeline.wire.times import place_of
from rocketbed.wire.bodies import MessageQueue

if TYPE_CHECKING:
    import pyarrow

    from rocketbed.pipeline.wire.rows import WireDecoder

TASKS_MAX: Final = 1000
"""Of a read, about, unless more are asked for: a cluster may have tens of thousands of queues."""
LOG: Final = logging.getLogger("rocketbed.pipeline")


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Messages [start, end) of one queue, by queue offset."""

    queue: MessageQueue
    start: int
    end: int
    sample: Sample | None = None
    """A message of the topic at this broker, by which it is known."""

    def cut(self, count: int) -> "list[QueueRange]":
        """The range in pieces of at most so many messages."""
        return [
            replace(self, start=start, end=min(start + count, self.end))
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
        check_order(starting, ending)
        return shared(trio.run(self._ranges, starting, ending), self.options.min_partitions)

    def read(self, split: Share, schema: "pyarrow.Schema") -> "Iterator[pyarrow.RecordBatch]":
        """The rows of one share. Raises `WireError`, `TopicGone`."""
        return read_share(split, schema, self.options, self.wanted)

    async def _ranges(
        self, starting: str | StreamOffset, ending: str | StreamOffset
    ) -> list[QueueRange]:
        cluster = Cluster(self.options, is_batch=True)
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
            cluster.tell_unanswered(seen)
            if ending == LATEST:
                cluster.tell_left_out(seen)
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
            ranges = [one for one in in_order if one.start < one.end]
            samples = await self._samples(log, ranges, seen)
            return [replace(one, sample=samples.get(place_of_queue(one.queue))) for one in ranges]

    def _there(
        self, queue: MessageQueue, at: int, bounds: QueueBounds, *, start: int | None = None
    ) -> int:
        """A place, or the nearest one that is there. Raises `DataLoss`."""
        low = bounds.first if start is None else start
        near = max(min(at, bounds.longest), low)
        is_lost = at > bounds.longest or (start is None and at < low)
        if is_lost:
            what = (
                f"{describe(queue)} has {bounds.first} to {bounds.longest}, and {at} was asked for"
            )
            if self.options.fail_on_data_loss:
                raise DataLoss(f"{what}; failOnDataLoss=false goes on with what is there")
            LOG.warning("wire.data_lost %s", what)
        return near

    async def _samples(
        self, log: WireLog, ranges: Sequence[QueueRange], seen: QueueSnapshot
    ) -> dict[Place, Sample]:
        bounds = {queue: seen.bounds[name] for name, queue in seen.queues.items()}
        everywhere = {queue for queue, one in bounds.items() if not one.silent}
        ends = {one.queue: min(one.end, bounds[one.queue].end) for one in ranges}
        if self.options.read_uncommitted:
            everywhere, ends = set(), {one.queue: one.end for one in ranges}
        lasts = {one.queue: end - 1 for one in ranges if (end := ends[one.queue]) > one.start}
        return await samples_of(log, lasts, everywhere)

    async def _timed(self, log: WireLog, one: QueueRange) -> QueueRange:
        """A range without most of what was stored before and after the times."""
        start, end, wanted = one.start, one.end, self.wanted
        find = partial(place_of, log, one.queue, start, end, margin_ms=CLOCK_MARGIN_MS)
        if wanted.start_ms is not None:
            start = await find(wanted.start_ms - CLOCK_MARGIN_MS)
        if wanted.end_ms is not None:
            end = await find(wanted.end_ms + CLOCK_MARGIN_MS, is_end=True)
        return QueueRange(one.queue, start, end)


def read_share(
    share: Share, schema: "pyarrow.Schema", options: Options, wanted: Wanted
) -> "Iterator[pyarrow.RecordBatch]":
    """Rows of ranges, each in the order of its queue. Raises `WireError`, `TopicGone`."""
    for one in share:
        yield from _read_range(one, schema, options, wanted)
    samples = dict.fromkeys(one.sample for one in share if one.sample is not None)
    changed = shared_log(options).call(partial(others, samples)) if samples else []
    for sample in changed:
        what = (
            f"{describe(sample.queue)}: message {sample.at} is not the one that was there when the"
            f" read was planned: the topic was made again, or lost its end, and messages that came"
            f" after that may be among those read"
        )
        if options.fail_on_data_loss:
            raise WireError(
                f"{what}; failOnDataLoss=false takes what is there", Condition.DATA_LOSS
            )
        LOG.warning("wire.made_again %s", what)


def _read_range(
    wanted_range: QueueRange, schema: "pyarrow.Schema", options: Options, wanted: Wanted
) -> "Iterator[pyarrow.RecordBatch]":
    from rocketbed.pipeline.wire.rows import ANY, Uncut, WireDecoder

    queue = wanted_range.queue
    decoder = WireDecoder(queue, schema, options, wanted, first=wanted_range.start)
    with ThreadPoolExecutor(1, "rocketbed pull") as threads:

        def ask(start: int) -> "list[RawPull]":
            return shared_log(options).call(partial(chunk, options, wanted_range, start))

        coming = threads.submit(ask, wanted_range.start)
        while True:
            found = coming.result()
            following = found[-1].next_offset if found else wanted_range.end
            if following < wanted_range.end:
                coming = threads.submit(ask, following)
            for pulled in found:
                try:
                    yield from decoder.rows(
                        pulled.records,
                        pulled.broker_id,
                        start=wanted_range.start,
                        end=wanted_range.end,
                        following=pulled.next_offset,
                    )
                except Uncut as uncut:
                    if options.fail_on_data_loss or decoder.behind == ANY:
                        raise
                    LOG.warning("wire.uncut %s: its messages are asked for one by one", uncut)
                    end = min(pulled.next_offset, wanted_range.end)
                    one_by_one = QueueRange(queue, decoder.behind, end)
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
            pulled = shared_log(options).call(partial(_pull_one, wanted.queue, at))
            following = min(pulled.next_offset, wanted.end)
            yield from decoder.rows(
                pulled.records, pulled.broker_id, start=at, end=wanted.end, following=following
            )
            at = max(following - 1, at)
        at += 1


async def _pull_one(queue: MessageQueue, at: int, log: WireLog) -> RawPull:
    return await log.pull(queue, at, count=1)
