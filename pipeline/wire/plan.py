"""What a batch read of a live cluster does, without Spark: ranges of queues, then their rows.

The queues' ends are asked for once, when the read is planned: what arrives later is not read. A
range is pulled chunk by chunk by a thread beside the one that makes rows, so that the next chunk is
on its way while rows are made of the last; a chunk is what bounds memory.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio

from rocketbed.pipeline.errors import Condition
from rocketbed.pipeline.files.decode import Wanted
from rocketbed.pipeline.files.splits import CLOCK_MARGIN_MS
from rocketbed.pipeline.option_table import OptionError
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.wire.log import RawPull, WireError, WireLog, describe
from rocketbed.wire.bodies import MessageQueue

if TYPE_CHECKING:
    import pyarrow

CHUNK_BYTES: Final = 8 << 20
"""Bytes of records that are pulled before rows are made of them."""
COUNT_MAX: Final = 4096
"""Messages that the first pull asks for."""
IN_FLIGHT: Final = 8
"""Pulls of one task under way at once."""
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
        if options.topics is None:
            raise OptionError("endpoints requires the option topics: a cluster is read by queue")
        return cls(options, Wanted.of(options))

    def splits(self) -> list[QueueRange]:
        """Ranges of all queues up to what every answering member has. Raises `WireError`."""
        found = trio.run(self._ranges)
        total = sum(one.end - one.start for one in found)
        count = max(-(-total // self.options.min_partitions), 1)
        return [piece for one in found for piece in one.cut(count)]

    def read(self, split: QueueRange, schema: "pyarrow.Schema") -> "Iterator[pyarrow.RecordBatch]":
        """The rows of one range. Raises `WireError`, `TopicGone`."""
        return read_range(split, schema, self.options, self.wanted)

    async def _ranges(self) -> list[QueueRange]:
        found: list[QueueRange] = []
        asked = self.options.topics or frozenset()
        if self.wanted.topics is not None:
            asked &= self.wanted.topics
        async with WireLog(self.options.endpoints, limit_s=self.options.limit_s) as log:
            for topic in sorted(asked):
                queues = await log.queues(topic)
                found += [await self._range(log, queue) for queue in queues]
        return [one for one in found if one.start < one.end]

    async def _range(self, log: WireLog, queue: MessageQueue) -> QueueRange:
        bounds = await log.bounds(queue)
        start, end = bounds.first, bounds.end
        wanted = self.wanted
        if self.options.read_uncommitted:
            end = bounds.longest
        if wanted.start_ms is not None:
            start = max(
                start, await log.offset_at(queue, max(wanted.start_ms - CLOCK_MARGIN_MS, 0))
            )
        if wanted.end_ms is not None:
            end = min(end, await log.offset_at(queue, max(wanted.end_ms + CLOCK_MARGIN_MS, 0)))
        return QueueRange(queue, start, end)


def read_range(
    wanted_range: QueueRange, schema: "pyarrow.Schema", options: Options, wanted: Wanted
) -> "Iterator[pyarrow.RecordBatch]":
    """Rows of a range, in the order of the queue. Raises `WireError`, `TopicGone`."""
    from rocketbed.pipeline.wire.rows import WireDecoder

    decoder = WireDecoder(wanted_range.queue, schema, options, wanted)
    with ThreadPoolExecutor(1, "rocketbed pull") as threads:

        def ask(start: int) -> "list[RawPull]":
            return trio.run(_chunk, options, wanted_range, start)

        coming = threads.submit(ask, wanted_range.start)
        while True:
            chunk = coming.result()
            following = chunk[-1].next_offset if chunk else wanted_range.end
            if following < wanted_range.end:
                coming = threads.submit(ask, following)
            for pulled in chunk:
                yield from decoder.rows(
                    pulled.records,
                    pulled.broker_id,
                    start=wanted_range.start,
                    end=wanted_range.end,
                )
            if following >= wanted_range.end:
                return


async def _chunk(options: Options, wanted: QueueRange, start: int) -> list[RawPull]:
    """Answers from `start` on until there are bytes enough or the range is over."""
    found: list[RawPull] = []
    size, offset, stalled, step = 0, start, 0, 0
    async with WireLog(options.endpoints, limit_s=options.limit_s) as log:
        while offset < wanted.end and size < CHUNK_BYTES:
            for pulled in await _pulls(log, wanted, offset, step):
                lost = _lost(pulled, offset, wanted)
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
                step = pulled.next_offset - offset
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

    failures: tuple[BaseException, ...] = ()
    try:
        async with trio.open_nursery() as nursery:
            for at in starts:
                nursery.start_soon(ask, at)
    except BaseExceptionGroup as group:
        failures = group.exceptions
    if failures:
        raise failures[0]
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


def _lost(pulled: RawPull, offset: int, wanted: QueueRange) -> int:
    """The first offset behind messages that are gone; 0 when none are."""
    if not pulled.records and pulled.first > offset:
        return min(pulled.first, wanted.end)
    return 0
