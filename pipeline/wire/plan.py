"""Batch reads of a live cluster, without Spark: plan ranges of queues, then read their rows.

The queues' ends are fixed when the read is planned: later messages are not read. One thread pulls a
range chunk by chunk while another makes rows of the previous chunk; the size of a chunk bounds the
memory. All tasks of a process pull through one client, which stays open when they end.
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
from rocketbed.pipeline.files.decode import Selection
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
from rocketbed.pipeline.wire.samples import (
    Place,
    Sample,
    place_of_queue,
    replaced_samples,
    samples_of,
)
from rocketbed.pipeline.wire.times import place_of
from rocketbed.wire.bodies import MessageQueue

if TYPE_CHECKING:
    import pyarrow

    from rocketbed.pipeline.wire.rows import WireDecoder

TASKS_MAX: Final = 1000
"""Approximate maximum of tasks of a read, unless the options ask for more: a cluster may have tens
of thousands of queues."""
LOG: Final = logging.getLogger("rocketbed.pipeline")


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Messages [start, end) of one queue, by queue offset."""

    queue: MessageQueue
    start: int
    end: int
    sample: Sample | None = None
    """Message of the topic at this broker, to recognize the topic by."""

    def cut(self, count: int) -> "list[QueueRange]":
        """Divide the range into pieces of at most `count` messages."""
        return [
            replace(self, start=start, end=min(start + count, self.end))
            for start in range(self.start, self.end, count)
        ]


Share = tuple[QueueRange, ...]
"""Ranges that one task reads."""


def shared(ranges: Sequence[QueueRange], at_least: int) -> list[Share]:
    """Divide ranges into at least `at_least` shares; many short ranges are combined, so that
    thousands of queues do not make thousands of tasks."""
    total = sum(one.end - one.start for one in ranges)
    count = max(-(-total // at_least), 1)
    pieces = [piece for one in ranges for piece in one.cut(count)]
    if len(pieces) <= TASKS_MAX:
        return [(piece,) for piece in pieces]
    full = min(count, -(-total // TASKS_MAX))
    shares: list[list[QueueRange]] = []
    size = full
    for piece in pieces:
        length = piece.end - piece.start
        if size + length > full:
            shares.append([])
            size = 0
        shares[-1].append(piece)
        size += length
    return [tuple(each) for each in shares]


@dataclass(frozen=True, slots=True)
class WirePlan:
    """Plan of a batch read: options, and the selection of records."""

    options: Options
    selection: Selection = field(default_factory=Selection)

    @classmethod
    def of(cls, options: Options) -> "WirePlan":
        """Make the plan for options. Raises `OptionError`."""
        if options.path:
            raise OptionError("give path or endpoints, not both")
        if options.view != "records":
            raise OptionError(f"view={options.view} needs the files: give path, not endpoints")
        return cls(options, Selection.of(options))

    def splits(self) -> list[Share]:
        """Plan the ranges of all queues, up to the shortest answering member or as the options say.

        Raises `WireError`, `StreamError`.
        """
        starting = parse_offsets(self.options.starting_offsets, QUEUE, "startingOffsets")
        ending = parse_offsets(self.options.ending_offsets, QUEUE, "endingOffsets")
        check_order(starting, ending)
        return shared(trio.run(self._ranges, starting, ending), self.options.min_partitions)

    def read(self, split: Share, schema: "pyarrow.Schema") -> "Iterator[pyarrow.RecordBatch]":
        """Read the rows of one share. Raises `WireError`, `TopicGone`."""
        return read_share(split, schema, self.options, self.selection)

    async def _ranges(
        self, starting: str | StreamOffset, ending: str | StreamOffset
    ) -> list[QueueRange]:
        cluster = Cluster(self.options, is_batch=True)
        wanted_ends: dict[str, int] = {}
        for offset in (starting, ending):
            if isinstance(offset, StreamOffset):
                wanted_ends |= {name: mark.at for name, mark in offset.marks.items()}
        async with WireLog(self.options.endpoints, limit_s=self.options.limit_s) as log:
            snapshot = await cluster.look_until(log, wanted_ends)
            starts = cluster.places(EARLIEST, snapshot, "") | cluster.places(
                starting, snapshot, "startingOffsets"
            )
            ends = cluster.places(ending, snapshot, "endingOffsets")
            cluster.tell_unanswered(snapshot)
            if ending == LATEST:
                cluster.tell_left_out(snapshot)
            planned: list[QueueRange] = []

            async def ask(name: str) -> None:
                queue, bounds = snapshot.queues[name], snapshot.bounds[name]
                start = self._nearest(queue, starts[name], bounds)
                end = self._nearest(queue, ends[name], bounds, start=start)
                if start < end:
                    planned.append(await self._timed(log, QueueRange(queue, start, end)))

            await together(
                ask,
                [name for name in ends if self.selection.has_topic(snapshot.queues[name].topic)],
            )
            in_order = sorted(planned, key=lambda planned_range: planned_range.queue)
            ranges = [one for one in in_order if one.start < one.end]
            samples = await self._samples(log, ranges, snapshot)
            return [replace(one, sample=samples.get(place_of_queue(one.queue))) for one in ranges]

    def _nearest(
        self, queue: MessageQueue, at: int, bounds: QueueBounds, *, start: int | None = None
    ) -> int:
        """Return an offset, or the nearest one that the queue has. Raises `DataLoss`."""
        low = bounds.first if start is None else start
        near = max(min(at, bounds.longest), low)
        is_lost = at > bounds.longest or (start is None and at < low)
        if is_lost:
            problem = (
                f"{describe(queue)} has {bounds.first} to {bounds.longest}, and {at} was asked for"
            )
            if self.options.fail_on_data_loss:
                raise DataLoss(f"{problem}; failOnDataLoss=false continues with the rest")
            LOG.warning("wire.data_lost %s", problem)
        return near

    async def _samples(
        self, log: WireLog, ranges: Sequence[QueueRange], snapshot: QueueSnapshot
    ) -> dict[Place, Sample]:
        bounds = {queue: snapshot.bounds[name] for name, queue in snapshot.queues.items()}
        everywhere = {queue for queue, one in bounds.items() if not one.silent}
        ends = {one.queue: min(one.end, bounds[one.queue].end) for one in ranges}
        if self.options.read_uncommitted:
            everywhere, ends = set(), {one.queue: one.end for one in ranges}
        lasts = {one.queue: end - 1 for one in ranges if (end := ends[one.queue]) > one.start}
        return await samples_of(log, lasts, everywhere)

    async def _timed(self, log: WireLog, queue_range: QueueRange) -> QueueRange:
        """Narrow a range to about the messages stored between the two times."""
        start, end, selection = queue_range.start, queue_range.end, self.selection
        find = partial(place_of, log, queue_range.queue, start, end, margin_ms=CLOCK_MARGIN_MS)
        if selection.start_ms is not None:
            start = await find(selection.start_ms - CLOCK_MARGIN_MS)
        if selection.end_ms is not None:
            end = await find(selection.end_ms + CLOCK_MARGIN_MS, is_end=True)
        return QueueRange(queue_range.queue, start, end)


def read_share(
    share: Share, schema: "pyarrow.Schema", options: Options, selection: Selection
) -> "Iterator[pyarrow.RecordBatch]":
    """Read the rows of ranges, each in the order of its queue. Raises `WireError`, `TopicGone`."""
    for queue_range in share:
        yield from _read_range(queue_range, schema, options, selection)
    samples = dict.fromkeys(
        queue_range.sample for queue_range in share if queue_range.sample is not None
    )
    replaced = shared_log(options).call(partial(replaced_samples, samples)) if samples else []
    for sample in replaced:
        problem = (
            f"{describe(sample.queue)}: message {sample.at} is not the one that was there when the"
            f" read was planned: the topic was recreated, or lost its end, and messages that came"
            f" after that may be among those read"
        )
        if options.fail_on_data_loss:
            raise WireError(
                f"{problem}; failOnDataLoss=false takes what is there", Condition.DATA_LOSS
            )
        LOG.warning("wire.made_again %s", problem)


def _read_range(
    queue_range: QueueRange, schema: "pyarrow.Schema", options: Options, selection: Selection
) -> "Iterator[pyarrow.RecordBatch]":
    from rocketbed.pipeline.wire.rows import ANY, Uncut, WireDecoder

    queue = queue_range.queue
    decoder = WireDecoder(queue, schema, options, selection, first=queue_range.start)
    with ThreadPoolExecutor(1, "rocketbed pull") as threads:

        def ask(start: int) -> "list[RawPull]":
            return shared_log(options).call(partial(chunk, options, queue_range, start))

        coming = threads.submit(ask, queue_range.start)
        while True:
            pulls = coming.result()
            following = pulls[-1].next_offset if pulls else queue_range.end
            if following < queue_range.end:
                coming = threads.submit(ask, following)
            for pulled in pulls:
                try:
                    yield from decoder.rows(
                        pulled.records,
                        pulled.broker_id,
                        start=queue_range.start,
                        end=queue_range.end,
                        following=pulled.next_offset,
                    )
                except Uncut as uncut:
                    if options.fail_on_data_loss or decoder.decoded_end == ANY:
                        raise
                    LOG.warning("wire.uncut %s: its messages are asked for one by one", uncut)
                    end = min(pulled.next_offset, queue_range.end)
                    one_by_one = QueueRange(queue, decoder.decoded_end, end)
                    yield from _one_by_one(decoder, one_by_one, options)
            if following >= queue_range.end:
                decoder.finish(queue_range.end)
                return


def _one_by_one(
    decoder: "WireDecoder", queue_range: QueueRange, options: Options
) -> "Iterator[pyarrow.RecordBatch]":
    """Read the messages of a range one by one, and yield rows of the readable ones."""
    from rocketbed.pipeline.wire.rows import Uncut

    at = queue_range.start
    while at < queue_range.end:
        with suppress(Refused, Uncut):  # the decoder reports the gap
            pulled = shared_log(options).call(partial(_pull_one, queue_range.queue, at))
            following = min(pulled.next_offset, queue_range.end)
            yield from decoder.rows(
                pulled.records, pulled.broker_id, start=at, end=queue_range.end, following=following
            )
            at = max(following - 1, at)
        at += 1


async def _pull_one(queue: MessageQueue, at: int, log: WireLog) -> RawPull:
    return await log.pull(queue, at, count=1)
