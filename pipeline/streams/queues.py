"""A stream over a live cluster: ranges of queues, pulled through the client protocol.

A range of a queue never changes its messages, just as a stretch of a log does not, and the end of a
batch is in the checkpoint before the batch runs. See `pipeline.wire.log` for what a classic cluster
cannot promise.
"""

import logging
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final

from rocketbed.pipeline.files.decode import Selection
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
from rocketbed.pipeline.wire.clients import SharedLog
from rocketbed.pipeline.wire.cluster import Cluster, QueueSnapshot
from rocketbed.pipeline.wire.log import Refused, WireError, WireLog
from rocketbed.pipeline.wire.plan import QueueRange, Share, WirePlan, read_share, shared
from rocketbed.pipeline.wire.questions import QueueBounds, describe, together
from rocketbed.pipeline.wire.times import place_of, stored_ms

if TYPE_CHECKING:
    import pyarrow

LOG: Final = logging.getLogger("rocketbed.pipeline.streams.reader")
LOOK_S: Final = 0.2
GUESS_BYTES: Final = 4096
"""Assumed size of a record while no record could be pulled."""
SAMPLE: Final = 32
"""Records pulled to estimate the mean record size."""


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
        """End of the shortest member of each queue that is held up: the furthest that was seen."""
        self._compared: dict[str, None] = {}
        """Queues whose mark was compared in this run, the least recently compared one first."""
        self._log = SharedLog(options)
        self._last_planned: StreamOffset | None = None
        """End of the last batch that this run planned; None until it has planned one."""
        self.newest: StreamOffset | None = None
        """Ends of all queues when the last batch was planned."""

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        self._log.close()

    # --- offsets

    def initial(self) -> StreamOffset:
        """Return the offset of a stream without a checkpoint. Raises `StreamError`, `WireError`."""
        starting = parse_offsets(self.options.starting_offsets, QUEUE, "startingOffsets")
        snapshot, time_ms = self.look(), self.options.starting_timestamp
        places = self._cluster.places(starting, snapshot, "startingOffsets")
        if time_ms is not None:
            places = self._log.call(lambda log: self._cluster.since(log, snapshot, time_ms))
        starting_marks = starting.marks if isinstance(starting, StreamOffset) else {}
        fixed_marks = {name: mark for name, mark in starting_marks.items() if mark.at >= 0}
        marks = {name: Mark(at) for name, at in places.items()} | fixed_marks
        return StreamOffset(
            QUEUE, self._log.call(lambda log: self._with_checksums(log, snapshot, marks))
        )

    async def _with_checksums(
        self, log: WireLog, snapshot: QueueSnapshot, marks: Mapping[str, Mark]
    ) -> dict[str, Mark]:
        """Add checksums to marks that have none: a queue without new messages keeps its first mark,
        and the checksum shows if its topic is recreated meanwhile."""
        checked = dict(marks)

        async def ask(name: str) -> None:
            with suppress(Refused):  # the damaged message lies before all that the stream will read
                checked[name] = await self._mark(log, snapshot, name, marks[name].at)

        await together(ask, [name for name, mark in marks.items() if not mark.crc])
        return checked

    def look(self) -> QueueSnapshot:
        """Look at all queues now, including those of topics created a moment ago. Raises
        `WireError`."""
        return self._log.call(lambda log: self._cluster.look(log, fresh=True))

    def look_until(self, ends: Mapping[str, int]) -> QueueSnapshot:
        """Look until all queues reach these ends or the limit is over. Raises `WireError`."""
        return self._log.call(lambda log: self._cluster.look_until(log, ends))

    def compare(self, offset: StreamOffset, snapshot: QueueSnapshot) -> None:
        """Raise `StreamError` if the cluster's queues are not those of the offset."""
        self._log.call(lambda log: self._compare(log, offset, snapshot))

    def ends(self) -> dict[str, int]:
        """Return the present end of each queue. Raises `WireError`."""
        return self._ends(self.look())

    def _ends(self, snapshot: QueueSnapshot) -> dict[str, int]:
        return {name: self._cluster.end(bounds) for name, bounds in snapshot.bounds.items()}

    def freeze(self) -> None:
        """Make the present ends the last that any batch reads to (`Trigger.AvailableNow`)."""
        snapshot = self.look()
        self._cluster.tell_unanswered(snapshot)
        self._cluster.tell_left_out(snapshot)
        self._target = self._ends(snapshot)

    def latest(
        self, start: StreamOffset, *, bytes_max: int | None, rows_max: int | None
    ) -> StreamOffset:
        """Return the end of the batch that begins at `start`. Raises `StreamError`, `WireError`."""
        while True:
            end, is_held_up = self._log.call(
                lambda log: self._latest(log, start, bytes_max, rows_max)
            )
            if self._target is None or not is_held_up or end.marks != start.marks:
                self._last_planned = end
                return end
            time.sleep(LOOK_S)

    async def _latest(
        self, log: WireLog, start: StreamOffset, bytes_max: int | None, rows_max: int | None
    ) -> tuple[StreamOffset, bool]:
        """Return the end of a batch, and True if any queue holds the stream up."""
        snapshot = await self._cluster.look(log)
        self._cluster.tell_unanswered(snapshot)
        self._cluster.tell_held_up(snapshot, {name: mark.at for name, mark in start.marks.items()})
        self._check_names(start, snapshot)
        replaced = await self._compare(log, start, snapshot)
        self.newest = StreamOffset(
            QUEUE, {name: Mark(end) for name, end in self._ends(snapshot).items()}
        )
        marks = {name: Mark(bounds.first) for name, bounds in snapshot.bounds.items()} | dict(
            start.marks
        )
        begins, ends = {}, {}
        for name, mark in marks.items():
            begins[name], ends[name] = self._stretch(name, mark, snapshot.bounds.get(name))
            if name in self._held_up:
                log.distrust(topic_of(name))
            elif begins[name] < mark.at or name in replaced:
                begins[name] = ends[name] = await self._restart_offset(log, snapshot, name, mark)
        backlog = {name: ends[name] - begins[name] for name in marks}
        limit = rows_max
        if bytes_max is not None:
            by_bytes = await self._rows_of(log, snapshot, begins, backlog, bytes_max)
            limit = by_bytes if limit is None else min(limit, by_bytes)
        if limit is not None:
            counts = shares(backlog, limit)
            ends = {name: begins[name] + counts.get(name, 0) for name in marks}
        new_marks = dict(marks)

        async def ask(name: str) -> None:
            new_marks[name] = await self._mark(log, snapshot, name, ends[name])

        await together(
            ask, [key for key, mark in marks.items() if ends[key] != mark.at or key in replaced]
        )
        return StreamOffset(QUEUE, new_marks), bool(self._held_up)

    def _stretch(self, name: str, mark: Mark, bounds: QueueBounds | None) -> tuple[int, int]:
        """Return the offsets between which a queue may be read now: (begin, end)."""
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
        elif begin > self._cluster.end(bounds) and not self._is_at_target(name, begin):
            member = f"{bounds.shortest}, and " if bounds.shortest else ""
            why = f"a member ends at {bounds.end}, {member}the stream is at {begin}"
            if name not in self._shortest:
                LOG.warning("stream.waits %s: %s; it is waited for while it catches up", name, why)
            furthest = self._shortest.get(name, bounds.end)
            if bounds.end > furthest:
                self._held_up.pop(name, None)
            self._shortest[name] = max(
                bounds.end, furthest
            )  # a member that comes and goes makes no progress
            self._hold_up(name, why)
            return begin, begin
        self._held_up.pop(name, None)
        self._shortest.pop(name, None)
        end = self._cluster.end(bounds)
        if self._target is not None:
            end = min(end, self._target.get(name, begin))
        return begin, max(begin, end)

    def _is_at_target(self, name: str, at: int) -> bool:
        """True if the queue has been read to the end that `freeze` set."""
        return self._target is not None and at >= self._target.get(name, at)

    async def _restart_offset(
        self, log: WireLog, snapshot: QueueSnapshot, name: str, mark: Mark
    ) -> int:
        """Return the offset to go on from in a queue that was recreated, or that is now shorter
        than what was read of it: that of the first message stored later than the last one read.
        After a recreation that is the queue's beginning; after a truncation its end, or the first
        message stored since."""
        bounds = snapshot.bounds[name]
        if not mark.crc:
            return bounds.longest
        at, why = bounds.first, "which is all that is left: its time is unknown"
        if 0 < mark.time_ms < time.time() * 1000 + CLOCK_MARGIN_MS:  # otherwise a clock was wrong
            queue, later_ms = snapshot.queues[name], mark.time_ms + 1
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
        """Record that a queue cannot go on. True if it has been so for longer than the limit.

        Raises `DataLoss` after the limit, unless failOnDataLoss=false.
        """
        since = self._held_up.setdefault(name, time.monotonic())
        if time.monotonic() - since < self.options.limit_s:
            return False
        self._held_up.pop(name)
        self._data_lost(f"{name}: after {self.options.limit_s:g} s still: {why}")
        return True

    def _data_lost(self, text: str) -> None:
        if self.options.fail_on_data_loss:
            raise DataLoss(f"{text}; failOnDataLoss=false continues with the rest")
        LOG.warning("stream.data_lost %s", text)

    # --- requests to the cluster

    @property
    def _topics_text(self) -> str:
        if self.options.topics_pattern is not None:
            return f"that match {self.options.topics_pattern.pattern}"
        return ", ".join(sorted(self.options.topics or ()))

    def _check_names(self, start: StreamOffset, snapshot: QueueSnapshot) -> None:
        """Refuse the offsets of another cluster or of other topics. Raises `StreamError`."""
        brokers = {queue.broker_name for queue in snapshot.queues.values()}
        mark_brokers = {name.partition("|")[0] for name in start.marks}
        may_be_gone = not self.options.fail_on_data_loss and not brokers.isdisjoint(mark_brokers)
        for name in start.marks:
            broker = name.partition("|")[0]
            if not Selection.of(self.options).has_topic(topic_of(name)):
                raise StreamError(
                    f"the checkpoint has an offset of {name}, but this stream reads topics "
                    f"{self._topics_text}: give each stream its own checkpointLocation"
                )
            if brokers and broker not in brokers and not may_be_gone:
                raise StreamError(
                    f"the checkpoint has an offset of {name}, but the cluster at "
                    f"{self.options.endpoints} has those topics on brokers "
                    f"{', '.join(sorted(brokers))} only: it is another cluster, or the broker is "
                    f"gone permanently, or the topic; failOnDataLoss=false continues without it, "
                    f"or start with a new checkpointLocation"
                )

    async def _compare(
        self, log: WireLog, start: StreamOffset, snapshot: QueueSnapshot
    ) -> list[str]:
        """Check that the message before each mark is still the one that was read there.

        Each queue is checked once a run and whenever it has more to read, since its topic may have
        been recreated and grown beyond the mark. Of the queues without new messages one is checked
        at each call, in turn, since a recreated one may have grown to exactly the mark. Returns the
        queues that differ if loss is allowed, else raises `StreamError`.
        """
        replaced: list[str] = []

        async def ask(name: str) -> None:
            if await self._is_replaced(log, snapshot, name, start.marks[name]):
                replaced.append(name)

        ends = self._ends(snapshot)
        comparable = {
            name: mark.at < ends[name]
            for name, mark in start.marks.items()
            if mark.crc and name in ends and snapshot.bounds[name].first < mark.at <= ends[name]
        }
        to_compare = [
            name for name, is_more in comparable.items() if is_more or name not in self._compared
        ]
        unchanged = (name for name in self._compared if not comparable.get(name, True))
        to_compare += islice(unchanged, 1)
        await together(ask, to_compare)
        for name in to_compare:
            self._compared.pop(name, None)
            self._compared[name] = None
        return replaced

    async def _is_replaced(
        self, log: WireLog, snapshot: QueueSnapshot, name: str, mark: Mark
    ) -> bool:
        """True if another message lies before a mark and loss is allowed; else raises `StreamError`
        for it."""
        if (await self._mark(log, snapshot, name, mark.at)).crc in (0, mark.crc):
            return False
        text = (
            f"{describe(snapshot.queues[name])}: message {mark.at - 1} is not the one that the "
            f"stream has read there: the topic was recreated, or it is another cluster"
        )
        if self.options.fail_on_data_loss:
            raise StreamError(f"{text}; start with a new checkpointLocation")
        LOG.warning("stream.data_lost %s", text)
        return True

    async def _mark(self, log: WireLog, snapshot: QueueSnapshot, name: str, at: int) -> Mark:
        """Return the mark of an offset, with a checksum of the stored record before it."""
        queue = snapshot.queues.get(name)
        if queue is None or at <= snapshot.bounds[name].first:
            return Mark(at)
        try:
            pulled = await log.pull(queue, at - 1, count=1)
        except Refused as refused:  # the message is damaged
            if self.options.fail_on_data_loss:
                raise refused.with_advice from refused
            return Mark(at)
        size = int.from_bytes(pulled.records[:4], "big")
        record = pulled.records[:size]
        if int.from_bytes(record[20:28], "big") >= at:
            return Mark(at)  # the record expired meanwhile, and the broker gave a later one
        return Mark(at, zlib.crc32(record) or 1, stored_ms(record)) if record else Mark(at)

    async def _rows_of(
        self,
        log: WireLog,
        snapshot: QueueSnapshot,
        begins: Mapping[str, int],
        backlog: Mapping[str, int],
        bytes_max: int,
    ) -> int:
        """Estimate how many records fill `bytes_max`, by a sample of the longest backlog."""
        if not any(backlog.values()):
            return 1
        name = max(backlog, key=lambda queue: backlog[queue])
        try:
            pulled = await log.pull(snapshot.queues[name], begins[name], count=SAMPLE)
        except Refused:  # the backlog begins with a damaged message: the default size will do
            return max(bytes_max // GUESS_BYTES, 1)
        count = max(pulled.next_offset - begins[name], 1)
        mean = max(len(pulled.records) // count, 1)
        return max(bytes_max // mean, 1)

    # --- batches

    def plan(self, start: StreamOffset, end: StreamOffset) -> list[Share]:
        """Divide the batch between two offsets into shares. Raises `StreamError`, `WireError`."""
        changed = {
            name: (start.marks.get(name), mark)
            for name, mark in end.marks.items()
            if name not in start.marks or start.marks[name].at < mark.at
        }
        if not changed:
            return []
        ends = {name: mark.at for name, (_, mark) in changed.items()}
        snapshot = self.look_until(ends)
        if missing_brokers := sorted(
            {name.partition("|")[0] for name in ends if name not in snapshot.bounds}
        ):
            self._log.call(lambda log: self._await_brokers(log, missing_brokers))
            snapshot = self.look_until(ends)  # a broker may have registered only now
        self._check_names(end, snapshot)
        limits: dict[str, int] = {}
        if end != self._last_planned:
            limits = self._log.call(lambda log: self._limits_of_replanned(log, snapshot, changed))
        ranges: list[QueueRange] = []
        for name, (begin, mark) in sorted(changed.items()):
            bounds = snapshot.bounds.get(name)
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
                ranges.append(QueueRange(snapshot.queues[name], first, last))
        return shared(ranges, self.options.min_partitions)

    async def _await_brokers(self, log: WireLog, names: Sequence[str]) -> None:
        """Wait until brokers are registered. A topic that its broker no longer has is lost, and
        skipped if loss is allowed; a queue of an unreachable broker is not skipped, since nothing
        would read it later. Raises `WireError`."""
        try:
            await log.brokers(names, ())
        except WireError as exc:
            raise WireError(
                f"a batch that is planned has messages of {', '.join(names)}, and is not given "
                f"without them while a broker is away, also with failOnDataLoss=false: start the "
                f"query again when it is there, or with a new checkpointLocation: {exc}",
                exc.condition,
            ) from exc

    async def _limits_of_replanned(
        self, log: WireLog, snapshot: QueueSnapshot, changed: Mapping[str, tuple[Mark | None, Mark]]
    ) -> dict[str, int]:
        """Return the ends of a batch that an earlier run planned, for queues recreated or truncated
        since: later messages belong to the next batch. Raises `StreamError`."""
        limits: dict[str, int] = {}

        async def ask(name: str) -> None:
            begin, end = changed[name]
            bounds = snapshot.bounds[name]
            is_short = bounds.longest < end.at
            mark = begin if begin is not None and (is_short or not end.crc) else end
            is_comparable = mark.crc and bounds.first < mark.at <= bounds.longest
            is_other = is_comparable and await self._is_replaced(log, snapshot, name, mark)
            if is_other and mark is begin:
                limits[name] = 0
            elif is_other or (is_short and not self.options.fail_on_data_loss):
                limits[name] = await self._restart_offset(log, snapshot, name, end)

        await together(ask, [name for name in changed if name in snapshot.bounds])
        return limits


def read_part(
    part: Share, schema: "pyarrow.Schema", options: Options
) -> "Iterator[pyarrow.RecordBatch]":
    """Read the rows of a share. Raises `WireError`, `TopicGone`."""
    return read_share(part, schema, options, Selection.of(options))
