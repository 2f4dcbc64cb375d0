"""A stream over a live cluster: ranges of queues, pulled through the client protocol.

As of a log, what a range of a queue holds does not change, and the end of a batch is in the
checkpoint before it runs. See `pipeline.wire.log` for what a classic cluster cannot promise.
"""

import logging
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final

from rocketbed.pipeline.files.decode import Wanted
from rocketbed.pipeline.files.splits import CLOCK_MARGIN_MS
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.streams.offsets import (
    QUEUE,
    DataLoss,
    Mark,
    StreamError,
    StreamOffset,
    parse_offsets,
    shares,
    topic_of,
)
from rocketbed.pipeline.wire.cluster import Cluster, Seen
from rocketbed.pipeline.wire.kept import KeptLog
from rocketbed.pipeline.wire.log import Refused, WireError, WireLog
from rocketbed.pipeline.wire.plan import QueueRange, Share, WirePlan, read_share, shared
from rocketbed.pipeline.wire.questions import QueueBounds, describe, together
from rocketbed.pipeline.wire.times import place_of, stored_ms

if TYPE_CHECKING:
    import pyarrow

LOG: Final = logging.getLogger("rocketbed.pipeline.streams.reader")
LOOK_S: Final = 0.2
GUESS_BYTES: Final = 4096
"""Of a record of which nothing is known."""
SAMPLE: Final = 32
"""Records that are looked at to learn how long records are."""


class QueueLog:
    """The side of a stream that plans; lives in the driver for as long as the query runs."""

    def __init__(self, options: Options) -> None:
        """Raises `OptionError`."""
        WirePlan.of(options)
        self.options = options
        self._cluster = Cluster(options)
        self._target: dict[str, int] | None = None
        self._held_up: dict[str, float] = {}
        self._shortest: dict[str, int] = {}
        """How far members had come that hold queues up."""
        self._compared: dict[str, None] = {}
        """Queues, those first of which the last look back is the longest ago."""
        self._log = KeptLog(options)
        self._made: StreamOffset | None = None
        """The end of the last batch that was planned here, not by an earlier run."""
        self.newest: StreamOffset | None = None
        """Where queues ended when the last batch was planned."""

    def close(self) -> None:
        """End the connections; the next question opens others."""
        self._log.close()

    # --- offsets

    def initial(self) -> StreamOffset:
        """Where a stream without a checkpoint begins. Raises `StreamError`, `WireError`."""
        starting = parse_offsets(self.options.starting_offsets, QUEUE, "startingOffsets")
        seen, time_ms = self.look(), self.options.starting_timestamp
        places = self._cluster.places(starting, seen, "startingOffsets")
        if time_ms is not None:
            places = self._log.call(lambda log: self._cluster.since(log, seen, time_ms))
        given = starting.marks if isinstance(starting, StreamOffset) else {}
        known = {name: mark for name, mark in given.items() if mark.at >= 0}
        marks = {name: Mark(at) for name, at in places.items()} | known
        return StreamOffset(
            QUEUE, self._log.call(lambda log: self._with_checksums(log, seen, marks))
        )

    async def _with_checksums(
        self, log: WireLog, seen: Seen, marks: Mapping[str, Mark]
    ) -> dict[str, Mark]:
        """A queue that gets nothing new keeps its first mark, and its topic may be made again."""
        found = dict(marks)

        async def ask(name: str) -> None:
            with suppress(Refused):  # damage before all that the stream will read
                found[name] = await self._mark(log, seen, name, marks[name].at)

        await together(ask, [name for name, mark in marks.items() if not mark.crc])
        return found

    def look(self) -> Seen:
        """All queues now, with topics that were made a moment ago. Raises `WireError`."""
        return self._log.call(lambda log: self._cluster.look(log, fresh=True))

    def look_until(self, ends: Mapping[str, int]) -> Seen:
        """All queues, once they are so long, or the limit is over. Raises `WireError`."""
        return self._log.call(lambda log: self._cluster.look_until(log, ends))

    def compare(self, offset: StreamOffset, seen: Seen) -> None:
        """Raises `StreamError` where the cluster's queues are not those that an offset is of."""
        self._log.call(lambda log: self._compare(log, offset, seen))

    def ends(self) -> dict[str, int]:
        """Where each queue ends now. Raises `WireError`."""
        return self._ends(self.look())

    def _ends(self, seen: Seen) -> dict[str, int]:
        return {name: self._cluster.end(one) for name, one in seen.bounds.items()}

    def freeze(self) -> None:
        """From now on nothing behind the present ends is given (`Trigger.AvailableNow`)."""
        seen = self.look()
        self._cluster.tell_unanswered(seen)
        self._cluster.tell_left_out(seen)
        self._target = self._ends(seen)

    def latest(
        self, start: StreamOffset, *, bytes_max: int | None, rows_max: int | None
    ) -> StreamOffset:
        """Where the batch that begins at `start` ends. Raises `StreamError`, `WireError`."""
        while True:
            found, is_held_up = self._log.call(
                lambda log: self._latest(log, start, bytes_max, rows_max)
            )
            if self._target is None or not is_held_up or found.marks != start.marks:
                self._made = found
                return found
            time.sleep(LOOK_S)

    async def _latest(
        self, log: WireLog, start: StreamOffset, bytes_max: int | None, rows_max: int | None
    ) -> tuple[StreamOffset, bool]:
        """The end of a batch, and whether any queue holds the stream up."""
        seen = await self._cluster.look(log)
        self._cluster.tell_unanswered(seen)
        self._cluster.tell_held_up(seen, {name: mark.at for name, mark in start.marks.items()})
        self._check_names(start, seen)
        others = await self._compare(log, start, seen)
        self.newest = StreamOffset(
            QUEUE, {name: Mark(end) for name, end in self._ends(seen).items()}
        )
        marks = {name: Mark(bounds.first) for name, bounds in seen.bounds.items()} | dict(
            start.marks
        )
        begins, ends = {}, {}
        for name, mark in marks.items():
            begins[name], ends[name] = self._stretch(name, mark, seen.bounds.get(name))
            if name in self._held_up:
                log.distrust(topic_of(name))
            elif begins[name] < mark.at or name in others:
                begins[name] = ends[name] = await self._anew(log, seen, name, mark)
        backlog = {name: ends[name] - begins[name] for name in marks}
        limit = rows_max
        if bytes_max is not None:
            by_bytes = await self._rows_of(log, seen, begins, backlog, bytes_max)
            limit = by_bytes if limit is None else min(limit, by_bytes)
        if limit is not None:
            taken = shares(backlog, limit)
            ends = {name: begins[name] + taken.get(name, 0) for name in marks}
        found = dict(marks)

        async def ask(name: str) -> None:
            found[name] = await self._mark(log, seen, name, ends[name])

        await together(ask, [n for n, mark in marks.items() if ends[n] != mark.at or n in others])
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
        elif begin > self._cluster.end(bounds) and not self._is_over(name, begin):
            who = f"{bounds.shortest}, and " if bounds.shortest else ""
            why = f"a member ends at {bounds.end}, {who}the stream is at {begin}"
            if name not in self._shortest:
                LOG.warning("stream.waits %s: %s; it is waited for while it catches up", name, why)
            known = self._shortest.get(name, bounds.end)
            if bounds.end > known:
                self._held_up.pop(name, None)
            self._shortest[name] = max(bounds.end, known)  # one that comes and goes gets no further
            self._hold_up(name, why)
            return begin, begin
        self._held_up.pop(name, None)
        self._shortest.pop(name, None)
        end = self._cluster.end(bounds)
        if self._target is not None:
            end = min(end, self._target.get(name, begin))
        return begin, max(begin, end)

    def _is_over(self, name: str, at: int) -> bool:
        """Whether nothing of a queue is wanted any more."""
        return self._target is not None and at >= self._target.get(name, at)

    async def _anew(self, log: WireLog, seen: Seen, name: str, mark: Mark) -> int:
        """Where reading a queue goes on that is shorter than what was read of it, or another one:
        at the first message that was stored later than the last one read. That is its beginning
        where its topic was made again, and its end, or what came since, where it lost its end."""
        bounds = seen.bounds[name]
        if not mark.crc:
            return bounds.longest
        at, why = bounds.first, "which is all that there is: nobody knows when that was"
        if 0 < mark.time_ms < time.time() * 1000 + CLOCK_MARGIN_MS:  # else a clock was wrong
            queue, later_ms = seen.queues[name], mark.time_ms + 1
            at = await place_of(log, queue, bounds.first, bounds.longest, later_ms)
            why = "the first that was stored later than the last one read"
        LOG.warning(
            "stream.anew %s has %d to %d, and goes on at %d, %s",
            name,
            bounds.first,
            bounds.longest,
            at,
            why,
        )
        return at

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

    # --- asking the cluster

    @property
    def _asked(self) -> str:
        if self.options.topics_pattern is not None:
            return f"that match {self.options.topics_pattern.pattern}"
        return ", ".join(sorted(self.options.topics or ()))

    def _check_names(self, start: StreamOffset, seen: Seen) -> None:
        """Refuse the offsets of another cluster or of other topics."""
        brokers = {queue.broker_name for queue in seen.queues.values()}
        known = {name.partition("|")[0] for name in start.marks}
        may_be_gone = not self.options.fail_on_data_loss and not brokers.isdisjoint(known)
        for name in start.marks:
            broker = name.partition("|")[0]
            if not Wanted.of(self.options).has_topic(topic_of(name)):
                raise StreamError(
                    f"the checkpoint has an offset of {name}, but this stream reads topics "
                    f"{self._asked}: give each stream its own checkpointLocation"
                )
            if brokers and broker not in brokers and not may_be_gone:
                raise StreamError(
                    f"the checkpoint has an offset of {name}, but the cluster at "
                    f"{self.options.endpoints} has those topics on brokers "
                    f"{', '.join(sorted(brokers))} only: it is another cluster, or the broker is "
                    f"gone permanently, or the topic; failOnDataLoss=false goes on without it, or "
                    f"start with a new checkpointLocation"
                )

    async def _compare(self, log: WireLog, start: StreamOffset, seen: Seen) -> list[str]:
        """What lies before each mark has to be what lay there: once a run, and whenever there is
        more to read, since a topic may be made again meanwhile and grow beyond the mark. Of those
        that stand still one is looked at in turn, since it may have grown just up to the mark.
        Queues that are others, for who allows loss. Raises `StreamError`."""
        others: list[str] = []

        async def ask(name: str) -> None:
            if await self._is_other(log, seen, name, start.marks[name]):
                others.append(name)

        ends = self._ends(seen)
        comparable = {
            name: mark.at < ends[name]
            for name, mark in start.marks.items()
            if mark.crc and name in ends and seen.bounds[name].first < mark.at <= ends[name]
        }
        due = [
            name for name, is_more in comparable.items() if is_more or name not in self._compared
        ]
        still = (name for name in self._compared if not comparable.get(name, True))
        due += islice(still, 1)
        await together(ask, due)
        for name in due:
            self._compared.pop(name, None)
            self._compared[name] = None
        return others

    async def _is_other(self, log: WireLog, seen: Seen, name: str, mark: Mark) -> bool:
        """Whether another message lies before a mark, for who allows loss. Raises `StreamError`."""
        if (await self._mark(log, seen, name, mark.at)).crc in (0, mark.crc):
            return False
        what = (
            f"{describe(seen.queues[name])}: message {mark.at - 1} is not the one that the "
            f"stream has read there: the topic was recreated, or it is another cluster"
        )
        if self.options.fail_on_data_loss:
            raise StreamError(f"{what}; start with a new checkpointLocation")
        LOG.warning("stream.data_lost %s", what)
        return True

    async def _mark(self, log: WireLog, seen: Seen, name: str, at: int) -> Mark:
        """The mark of an offset: a checksum of the stored record before it."""
        queue = seen.queues.get(name)
        if queue is None or at <= seen.bounds[name].first:
            return Mark(at)
        try:
            pulled = await log.pull(queue, at - 1, count=1)
        except Refused as refused:  # it is damaged
            if self.options.fail_on_data_loss:
                raise refused.with_advice from refused
            return Mark(at)
        size = int.from_bytes(pulled.records[:4], "big")
        record = pulled.records[:size]
        if int.from_bytes(record[20:28], "big") >= at:
            return Mark(at)  # what was there has expired meanwhile, and a later one was given
        return Mark(at, zlib.crc32(record) or 1, stored_ms(record)) if record else Mark(at)

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
        try:
            pulled = await log.pull(seen.queues[name], begins[name], count=SAMPLE)
        except Refused:  # it begins with a damaged one: any other guess will do
            return max(bytes_max // GUESS_BYTES, 1)
        count = max(pulled.next_offset - begins[name], 1)
        mean = max(len(pulled.records) // count, 1)
        return max(bytes_max // mean, 1)

    # --- batches

    def plan(self, start: StreamOffset, end: StreamOffset) -> list[Share]:
        """Shares of the batch between two offsets. Raises `StreamError`, `WireError`."""
        changed = {
            name: (start.marks.get(name), mark)
            for name, mark in end.marks.items()
            if name not in start.marks or start.marks[name].at < mark.at
        }
        if not changed:
            return []
        ends = {name: mark.at for name, (_, mark) in changed.items()}
        seen = self.look_until(ends)
        if gone := sorted({name.partition("|")[0] for name in ends if name not in seen.bounds}):
            self._log.call(lambda log: self._await_brokers(log, gone))
            seen = self.look_until(ends)  # one of them may have come only now
        self._check_names(end, seen)
        limits: dict[str, int] = {}
        if end != self._made:
            limits = self._log.call(lambda log: self._still_right(log, seen, changed))
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
            last = min(mark.at, bounds.longest, limits.get(name, mark.at))
            if first < last:
                found.append(QueueRange(seen.queues[name], first, last))
        return shared(found, self.options.min_partitions)

    async def _await_brokers(self, log: WireLog, names: Sequence[str]) -> None:
        """A topic that its broker does not have is gone, and left out by who allows loss; what a
        broker has that is away is not: nobody would read it later. Raises `WireError`."""
        try:
            await log.brokers(names, ())
        except WireError as exc:
            raise WireError(
                f"a batch that is planned has messages of {', '.join(names)}, and is not given "
                f"without them while a broker is away, also with failOnDataLoss=false: start the "
                f"query again when it is there, or with a new checkpointLocation: {exc}",
                exc.condition,
            ) from exc

    async def _still_right(
        self, log: WireLog, seen: Seen, changed: Mapping[str, tuple[Mark | None, Mark]]
    ) -> dict[str, int]:
        """Up to where a batch that an earlier run planned may be read, of queues that are others
        now: what came later is for the next batch. Raises `StreamError`."""
        found: dict[str, int] = {}

        async def ask(name: str) -> None:
            begin, end = changed[name]
            bounds = seen.bounds[name]
            is_short = bounds.longest < end.at
            mark = begin if begin is not None and (is_short or not end.crc) else end
            is_comparable = mark.crc and bounds.first < mark.at <= bounds.longest
            is_other = is_comparable and await self._is_other(log, seen, name, mark)
            if is_other and mark is begin:
                found[name] = 0
            elif is_other or (is_short and not self.options.fail_on_data_loss):
                found[name] = await self._anew(log, seen, name, end)

        await together(ask, [name for name in changed if name in seen.bounds])
        return found


def read_part(
    part: Share, schema: "pyarrow.Schema", options: Options
) -> "Iterator[pyarrow.RecordBatch]":
    """Rows of a share. Raises `WireError`, `TopicGone`."""
    return read_share(part, schema, options, Wanted.of(options))
