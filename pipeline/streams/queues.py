"""A stream over a live cluster: ranges of queues, pulled through the client protocol.

As of a log, what a range of a queue holds does not change, and the end of a batch is in the
checkpoint before it runs. See `pipeline.wire.log` for what a classic cluster cannot promise.
"""

import logging
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from rocketbed.pipeline.errors import Condition
from rocketbed.pipeline.files.decode import Wanted
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.streams.offsets import (
    EARLIEST,
    LATEST,
    QUEUE,
    QUEUES_MAX,
    DataLoss,
    Mark,
    StreamError,
    StreamOffset,
    parse_starting,
    queue_name,
    shares,
    topic_of,
)
from rocketbed.pipeline.wire.log import QueueBounds, TopicGone, WireLog, describe
from rocketbed.pipeline.wire.plan import QueueRange, WirePlan, read_range
from rocketbed.portal import Portal
from rocketbed.wire.bodies import MessageQueue

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")

LOG: Final = logging.getLogger("rocketbed.pipeline.streams.reader")
LOOK_S: Final = 0.2
SAMPLE: Final = 32
"""Records that are looked at to learn how long records are."""
ASKED_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class Seen:
    """The cluster's queues at one moment."""

    queues: Mapping[str, MessageQueue]
    bounds: Mapping[str, QueueBounds]


class QueueLog:
    """The side of a stream that plans; lives in the driver for as long as the query runs."""

    def __init__(self, options: Options) -> None:
        """Raises `OptionError`."""
        WirePlan.of(options)
        self.options = options
        self._topics = sorted(options.topics or ())
        self._target: dict[str, int] | None = None
        self._held_up: dict[str, float] = {}
        self._compared: set[str] = set()
        self._portal: Portal | None = None
        self._log: WireLog | None = None

    def close(self) -> None:
        """End the connections; the next question opens others."""
        portal, self._portal = self._portal, None
        if portal is not None:
            portal.close()

    def _call(self, question: Callable[[WireLog], Awaitable[T]]) -> T:
        """Ask the cluster, over connections that stay open between batches."""
        if self._portal is None:
            log = self._log = WireLog(self.options.endpoints, limit_s=self.options.limit_s)
            self._portal = Portal(log)
            self._portal.open()
        assert self._log is not None
        return self._portal.call(partial(question, self._log))

    # --- offsets

    def initial(self) -> StreamOffset:
        """Where a stream without a checkpoint begins. Raises `StreamError`, `WireError`."""
        starting = parse_starting(self.options.starting_offsets, QUEUE)
        if isinstance(starting, StreamOffset):
            return starting
        seen = self._call(self._ask)
        assert starting in (EARLIEST, LATEST)
        return StreamOffset(
            QUEUE,
            {
                name: Mark(bounds.first if starting == EARLIEST else self._end(bounds))
                for name, bounds in seen.bounds.items()
            },
        )

    def ends(self) -> dict[str, int]:
        """Where each queue ends now. Raises `WireError`."""
        return {name: self._end(one) for name, one in self._call(self._ask).bounds.items()}

    def freeze(self) -> None:
        """From now on nothing behind the present ends is given (`Trigger.AvailableNow`)."""
        self._target = self.ends()

    def latest(
        self, start: StreamOffset, *, bytes_max: int | None, rows_max: int | None
    ) -> StreamOffset:
        """Where the batch that begins at `start` ends. Raises `StreamError`, `WireError`."""
        while True:
            found, is_held_up = self._call(
                lambda log: self._latest(log, start, bytes_max, rows_max)
            )
            if self._target is None or not is_held_up or found.marks != start.marks:
                return found
            time.sleep(LOOK_S)

    async def _latest(
        self, log: WireLog, start: StreamOffset, bytes_max: int | None, rows_max: int | None
    ) -> tuple[StreamOffset, bool]:
        """The end of a batch, and whether any queue holds the stream up."""
        seen = await self._ask(log)
        self._check_names(start, seen)
        await self._compare(log, start, seen)
        marks = {name: Mark(bounds.first) for name, bounds in seen.bounds.items()} | dict(
            start.marks
        )
        begins, ends = {}, {}
        for name, mark in marks.items():
            begins[name], ends[name] = self._stretch(name, mark, seen.bounds.get(name))
            if name in self._held_up:
                log.distrust(topic_of(name))
        backlog = {name: ends[name] - begins[name] for name in marks}
        limit = rows_max
        if bytes_max is not None:
            by_bytes = await self._rows_of(log, seen, begins, backlog, bytes_max)
            limit = by_bytes if limit is None else min(limit, by_bytes)
        if limit is not None:
            taken = shares(backlog, limit)
            ends = {name: begins[name] + taken.get(name, 0) for name in marks}
        found = {}
        for name, mark in marks.items():
            is_same = ends[name] == mark.at
            found[name] = mark if is_same else await self._mark(log, seen, name, ends[name])
        return StreamOffset(QUEUE, found), bool(self._held_up)

    def _stretch(self, name: str, mark: Mark, bounds: QueueBounds | None) -> tuple[int, int]:
        """Where reading a queue goes on, and up to where it may go now."""
        if bounds is None:
            self._hold_up(name, "the topic or the queue is not there any more")
            return mark.at, mark.at
        begin = mark.at
        if begin < bounds.first:
            self._data_lost(
                f"{name}: messages {begin} to {bounds.first} were deleted before the stream had "
                f"read them"
            )
            begin = bounds.first
        if begin > bounds.longest:
            if not self._hold_up(name, f"it ends at {bounds.longest}, the stream is at {begin}"):
                return begin, begin
            begin = bounds.longest
        elif begin > self._end(bounds):
            self._hold_up(name, f"a member ends at {bounds.end}, the stream is at {begin}")
            return begin, begin
        self._held_up.pop(name, None)
        end = self._end(bounds)
        if self._target is not None:
            end = min(end, self._target.get(name, begin))
        return begin, max(begin, end)

    def _hold_up(self, name: str, why: str) -> bool:
        """Note that a queue cannot go on; whether it has been so for too long.

        Raises `DataLoss` then, unless failOnDataLoss=false.
        """
        since = self._held_up.setdefault(name, time.monotonic())
        if time.monotonic() - since < self.options.limit_s:
            return False
        self._held_up.pop(name)
        self._data_lost(f"{name}: after {self.options.limit_s:g} s still: {why}")
        return True

    def _data_lost(self, what: str) -> None:
        if self.options.fail_on_data_loss:
            raise DataLoss(f"{what}; failOnDataLoss=false goes on with what is there")
        LOG.warning("stream.data_lost %s", what)

    def _end(self, bounds: QueueBounds) -> int:
        return bounds.longest if self.options.read_uncommitted else bounds.end

    # --- asking the cluster

    async def _ask_until_there(
        self, log: WireLog, changed: Mapping[str, tuple[Mark | None, Mark]]
    ) -> Seen:
        """The queues, once they are as long as a batch; or as they are when the limit is over.

        A broker that has just started may not know all of its queues yet.
        """
        deadline = trio.current_time() + self.options.limit_s
        while True:
            seen = await self._ask(log)
            short = [
                name
                for name, (_, mark) in changed.items()
                if name not in seen.bounds or seen.bounds[name].longest < mark.at
            ]
            if not short or trio.current_time() >= deadline:
                return seen
            for name in short:
                log.distrust(topic_of(name))
            await trio.sleep(LOOK_S)

    async def _ask(self, log: WireLog) -> Seen:
        queues: dict[str, MessageQueue] = {}
        for topic in self._topics:
            try:
                found = await log.queues(topic)
            except TopicGone:
                if self.options.fail_on_data_loss:
                    raise
                continue
            for queue in found:
                queues[queue_name(queue.broker_name, topic, queue.queue_id)] = queue
        if len(queues) > QUEUES_MAX:
            raise StreamError(
                f"{len(queues)} queues are more than one stream can keep in its checkpoint "
                f"({QUEUES_MAX}): read the files (option path), or fewer topics in each stream",
                Condition.ILLEGAL_OPTION,
            )
        bounds: dict[str, QueueBounds] = {}
        limiter = trio.CapacityLimiter(ASKED_AT_ONCE)

        async def ask(name: str, queue: MessageQueue) -> None:
            async with limiter:
                bounds[name] = await log.bounds(queue)

        failure: BaseException | None = None
        try:
            async with trio.open_nursery() as nursery:
                for name, queue in queues.items():
                    nursery.start_soon(ask, name, queue)
        except BaseExceptionGroup as group:
            failure = group.exceptions[0]
        if failure is not None:
            raise failure
        return Seen(queues, bounds)

    def _check_names(self, start: StreamOffset, seen: Seen) -> None:
        """Refuse the offsets of another cluster or of other topics."""
        brokers = {queue.broker_name for queue in seen.queues.values()}
        for name in start.marks:
            broker = name.partition("|")[0]
            if topic_of(name) not in self._topics:
                raise StreamError(
                    f"the checkpoint has an offset of {name}, but this stream reads topics "
                    f"{', '.join(self._topics)}: give each stream its own checkpointLocation"
                )
            if brokers and broker not in brokers:
                raise StreamError(
                    f"the checkpoint has an offset of {name}, but the cluster at "
                    f"{self.options.endpoints} has those topics on brokers "
                    f"{', '.join(sorted(brokers))} only: it is another cluster, or the broker is "
                    f"gone permanently; start with a new checkpointLocation"
                )

    async def _compare(self, log: WireLog, start: StreamOffset, seen: Seen) -> None:
        """Once a run: what lies before each mark has to be what lay there."""
        for name, mark in start.marks.items():
            bounds = seen.bounds.get(name)
            if name in self._compared or bounds is None or mark.crc == 0:
                continue
            if not bounds.first < mark.at <= bounds.end:
                continue
            crc = (await self._mark(log, seen, name, mark.at)).crc
            if crc not in (0, mark.crc):
                raise StreamError(
                    f"{describe(seen.queues[name])}: message {mark.at - 1} is not the one that the "
                    f"stream has read there: the topic was recreated, or it is another cluster; "
                    f"start with a new checkpointLocation"
                )
            self._compared.add(name)

    async def _mark(self, log: WireLog, seen: Seen, name: str, at: int) -> Mark:
        """The mark of an offset: a checksum of the stored record before it."""
        queue = seen.queues.get(name)
        if queue is None or at <= seen.bounds[name].first:
            return Mark(at)
        pulled = await log.pull(queue, at - 1, count=1)
        size = int.from_bytes(pulled.records[:4], "big")
        record = pulled.records[:size]
        return Mark(at, (zlib.crc32(record) or 1) if record else 0)

    async def _rows_of(
        self,
        log: WireLog,
        seen: Seen,
        begins: Mapping[str, int],
        backlog: Mapping[str, int],
        bytes_max: int,
    ) -> int:
        """About how many records have so many bytes, by a look at some of the longest backlog."""
        if not any(backlog.values()):
            return 1
        name = max(backlog, key=lambda one: backlog[one])
        pulled = await log.pull(seen.queues[name], begins[name], count=SAMPLE)
        count = max(pulled.next_offset - begins[name], 1)
        mean = max(len(pulled.records) // count, 1)
        return max(bytes_max // mean, 1)

    # --- batches

    def plan(self, start: StreamOffset, end: StreamOffset) -> list[QueueRange]:
        """Ranges of the batch between two offsets. Raises `StreamError`, `WireError`."""
        changed = {
            name: (start.marks.get(name), mark)
            for name, mark in end.marks.items()
            if name not in start.marks or start.marks[name].at < mark.at
        }
        if not changed:
            return []
        seen = self._call(lambda log: self._ask_until_there(log, changed))
        self._check_names(end, seen)
        found: list[QueueRange] = []
        for name, (begin, mark) in sorted(changed.items()):
            bounds = seen.bounds.get(name)
            if bounds is None:
                self._data_lost(f"{name}: the topic or the queue is not there any more")
                continue
            first = bounds.first if begin is None else begin.at
            if begin is not None and first < bounds.first:
                self._data_lost(f"{name}: messages {first} to {bounds.first} were deleted")
                first = bounds.first
            if bounds.longest < mark.at:
                self._data_lost(f"{name}: it ends at {bounds.longest}, the batch at {mark.at}")
            last = min(mark.at, bounds.longest)
            if first < last:
                found.append(QueueRange(seen.queues[name], first, last))
        total = sum(one.end - one.start for one in found)
        count = max(-(-total // self.options.min_partitions), 1)
        return [piece for one in found for piece in one.cut(count)]


def read_part(
    part: QueueRange, schema: "pyarrow.Schema", options: Options
) -> "Iterator[pyarrow.RecordBatch]":
    """Rows of a range. Raises `WireError`, `TopicGone`."""
    return read_range(part, schema, options, Wanted.of(options))
