"""A stream over store directories: stretches of each broker's log, from any of its replicas.

The engine writes the end of a batch into the checkpoint before the batch runs and plans the same
stretch again after a crash. What lies below the confirmed end is the same on every replica and does
not change, and which records a stretch has depends on nothing but its bytes; so a batch that is run
again has the same rows, on whichever replica. Ends stand at the end of a record: a batch never
begins inside one.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from rocketbed.pipeline.errors import Condition
from rocketbed.pipeline.files.corrupt import DataLost
from rocketbed.pipeline.files.decode import batches
from rocketbed.pipeline.files.paths import parse_paths
from rocketbed.pipeline.files.reading import tell_rest
from rocketbed.pipeline.files.replicas import first_offset
from rocketbed.pipeline.files.splits import (
    NotAStore,
    Replica,
    Split,
    aligned_end,
    data_end,
    log_files,
    plan_splits,
    used_files,
)
from rocketbed.pipeline.files.tails import Behind, behind, misnamed, traces
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.streams.offsets import (
    EARLIEST,
    LATEST,
    NEWEST,
    OLDEST,
    PHYSICAL,
    Mark,
    StreamError,
    StreamOffset,
    Topics,
    check_names,
    check_topics,
    dealt,
    parse_offsets,
    shares,
)
from rocketbed.pipeline.streams.replicas import (
    Standing,
    State,
    View,
    is_unwritten,
    judge,
    look,
    mark_at,
    may_begin,
)

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")

LOG: Final = logging.getLogger("rocketbed.pipeline.streams.reader")
LOOK_S: Final = 0.1
"""Pause between looks at replicas that hold the stream up."""
CLOSE_LOOK_S: Final = 1.0
COUNTED_MAX: Final = 64 << 20
"""Bytes of the log that are walked at most to count rows for one batch."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A close look that found nothing new."""

    mark: Mark
    view: View
    at_s: float


@dataclass(frozen=True, slots=True)
class LogPart:
    """What one task of a micro-batch reads."""

    split: Split
    others: tuple[Replica, ...]
    """Replicas that hold the same bytes, for when the first one fails."""


class PhysicalLog:
    """The side of a stream that plans; lives in the driver for as long as the query runs."""

    def __init__(self, options: Options) -> None:
        """Raises `OptionError`."""
        self.options = options
        self._brokers: dict[str, list[Replica]] = {}
        for replica in parse_paths(options.path, options.fs):
            self._brokers.setdefault(replica.broker, []).append(replica)
        pattern = options.topics_pattern
        self._topics = Topics(options.topics, None if pattern is None else pattern.pattern)
        self._target: dict[str, int] | None = None
        self.newest: StreamOffset | None = None
        """Where logs ended when the last batch was planned."""
        self._held_up: dict[str, float] = {}
        self._seen: dict[Replica, _Seen] = {}
        self._suspect: dict[Replica, Behind] = {}
        """What stood behind the log's end at the last close look."""
        self._told: dict[Replica, str] = {}
        """What was told of what stands behind the log's end."""

    def close(self) -> None:
        """Nothing stays open between batches."""

    # --- offsets

    def initial(self) -> StreamOffset:
        """Where a stream without a checkpoint begins. Raises `StreamError`."""
        starting = parse_offsets(self.options.starting_offsets, PHYSICAL)
        if isinstance(starting, StreamOffset):
            advice = "name brokers as the option path does (broker=root)"
            check_names(starting.marks, set(self._brokers), "startingOffsets", advice)
            return self._offset(
                {name: self._given(name, mark) for name, mark in starting.marks.items()}
            )
        if self.options.starting_timestamp is not None:
            places = {name: self._patiently(name, self._since) for name in self._brokers}
            return self._offset({name: self._mark(name, at) for name, at in places.items()})
        if starting == EARLIEST:
            return self._offset({name: self._earliest(name) for name in self._brokers})
        assert starting == LATEST
        ends = self.ends()
        return self._offset({name: self._mark(name, at) for name, at in ends.items()})

    def _offset(self, marks: Mapping[str, Mark]) -> StreamOffset:
        return StreamOffset(PHYSICAL, marks, self._topics)

    def _check(self, offset: StreamOffset) -> None:
        """That one of the checkpoint is of these logs and topics. Raises `StreamError`."""
        advice = (
            "it belongs to another cluster or another set of brokers; give each stream its own"
            " checkpointLocation"
        )
        check_names(offset.marks, set(self._brokers), "the checkpoint", advice)
        check_topics(offset.topics, self._topics)

    def ends(self) -> dict[str, int]:
        """What every replica of each broker holds now. Raises `StreamError` after the limit."""
        return {name: self._patiently(name, self._end) for name in self._brokers}

    def freeze(self) -> None:
        """From now on nothing behind the present ends is given (`Trigger.AvailableNow`)."""
        target = {}
        for name in self._brokers:
            own = self._patiently(name, _own_ends)
            target[name] = end = self._shared(own.values())
            for replica, own_end in own.items():
                tell_rest(replica, end, own_end)
        self._target = target

    def latest(
        self, start: StreamOffset, *, bytes_max: int | None, rows_max: int | None
    ) -> StreamOffset:
        """Where the batch that begins at `start` ends. Raises `StreamError`, `DataLoss`."""
        self._check(start)
        while True:
            marks = {name: start.marks.get(name) or self._earliest(name) for name in self._brokers}
            standings = {name: self._standing(name, mark) for name, mark in marks.items()}
            ends = {name: Mark(standing.end) for name, standing in standings.items()}
            self.newest = self._offset(ends)
            found = self._offset(
                self._admit(marks, standings, bytes_max=bytes_max, rows_max=rows_max)
            )
            is_held_up = any(standing.held_up_by for standing in standings.values())
            if self._target is None or not is_held_up or found.marks != marks:
                return found
            time.sleep(LOOK_S)

    def _admit(
        self,
        marks: Mapping[str, Mark],
        standings: Mapping[str, Standing],
        *,
        bytes_max: int | None,
        rows_max: int | None,
    ) -> dict[str, Mark]:
        """The end of a batch for each broker."""
        ends = {}
        for name, standing in standings.items():
            end = standing.end
            if self._target is not None:
                end = max(min(end, self._target[name]), standing.begin)
            ends[name] = end
        backlog = {name: ends[name] - standings[name].begin for name in ends}
        if bytes_max is not None or rows_max is not None:
            bytes_by = shares(backlog, bytes_max or COUNTED_MAX * len(backlog))
            rows_by = None if rows_max is None else shares_of_rows(backlog, rows_max)
            for name, count in bytes_by.items():
                standing = standings[name]
                ends[name] = aligned_end(
                    standing.holders[0].replica,
                    standing.begin,
                    count if rows_by is None else min(count, COUNTED_MAX),
                    rows_max=None if rows_by is None else rows_by[name],
                    limit=ends[name],
                )
        found = {}
        for name, standing in standings.items():
            is_same = ends[name] == marks[name].at
            found[name] = (
                marks[name] if is_same else mark_at(standing.holders[0].replica, ends[name])
            )
        return found

    def _standing(self, name: str, mark: Mark) -> Standing:
        """How a broker stands to a mark, with an eye on the clock."""
        since = self._held_up.get(name)
        overdue = since is not None and time.monotonic() - since >= self.options.limit_s
        views = [self._look(replica, mark) for replica in self._brokers[name]]
        if self.options.read_uncommitted:
            # Whatever the longest replica shows; a failover may take it away again.
            holders = [view for view in views if view.state is State.HOLDS]
            views = [max(holders, key=lambda view: view.end)] if holders else views
        standing = judge(
            views,
            mark,
            fail_on_data_loss=self.options.fail_on_data_loss,
            overdue=overdue,
        )
        if not standing.held_up_by:
            if standing.begin != mark.at:
                LOG.warning(
                    "stream.data_lost broker=%s from=%d to=%d", name, mark.at, standing.begin
                )
            if all(view.state is State.HOLDS for view in views):
                self._held_up.pop(name, None)
        elif since is None:
            self._held_up[name] = time.monotonic()
            LOG.warning("stream.held_up broker=%s at=%d: %s", name, mark.at, standing.held_up_by)
        return standing

    def _look(self, replica: Replica, mark: Mark) -> View:
        """A replica as it stands to a mark. Spark asks every few milliseconds: while nothing has
        been written behind the mark a close look once a second is enough."""
        seen = self._seen.get(replica)
        now = time.monotonic()
        if (
            seen is not None
            and seen.mark == mark
            and now - seen.at_s < CLOSE_LOOK_S
            and is_unwritten(replica, mark.at)
        ):
            return seen.view
        view = look(replica, mark)
        self._seen.pop(replica, None)
        if view.state is State.HOLDS and view.end == mark.at:
            self._check_tail(replica, mark.at)
            self._seen[replica] = _Seen(mark, view, now)
        else:
            self._suspect.pop(replica, None)
        return view

    def _check_tail(self, replica: Replica, at: int) -> None:
        """What a stream that waits at a log's end would never come upon. Raises `DataLoss`,
        `StreamError`, unless failOnDataLoss=false: then it is told once."""
        told, is_lost = "", True
        condition = Condition.DATA_LOSS
        for file in misnamed(replica, log_files(replica)):
            told = f"{file.path} is a segment, and not called {file.start:020d}"
        found = behind(replica, used_files(replica), at)
        if found is None:
            self._suspect.pop(replica, None)
        elif self._suspect.get(replica) == found or self._target is not None:
            size = found.end - at
            if found.is_damage:
                told = f"{replica.root}: {size} bytes from {at} on, the log's end, are damaged"
                condition = Condition.CORRUPT_RECORD
            elif not told and data_end(replica) == at:
                told, is_lost = traces(replica, at, found), False
        else:
            self._suspect[replica] = found  # a live log's next record may be on its way
        if not told:
            self._told.pop(replica, None)
        elif is_lost and self.options.fail_on_data_loss:
            raise StreamError(
                f"broker {replica.broker}: {told}; failOnDataLoss=false waits there for what comes",
                condition,
            )
        elif self._told.get(replica) != told:
            self._told[replica] = told
            what = "damaged" if is_lost else "log_end"
            LOG.warning("stream.%s broker=%s: %s", what, replica.broker, told)

    def _given(self, name: str, mark: Mark) -> Mark:
        """A mark of the user's: a record has to begin there. Raises `StreamError`."""
        if mark.at == OLDEST:
            return self._earliest(name)
        if mark.at == NEWEST:
            return self._mark(name, self._patiently(name, self._end))
        if not any(self._asked(lambda one: may_begin(one, mark.at), self._brokers[name])):
            raise StreamError(
                f"startingOffsets: no record of broker {name} begins at {mark.at}; use a "
                f"physical_offset that was read, or an offset from a checkpoint"
            )
        return mark if mark.crc or not mark.at else self._mark(name, mark.at)

    def _asked(self, ask: Callable[[Replica], bool], replicas: Sequence[Replica]) -> Iterator[bool]:
        for replica in replicas:
            with suppress(NotAStore, OSError):
                yield ask(replica)

    def _mark(self, name: str, at: int) -> Mark:
        for replica in self._brokers[name]:
            try:
                return mark_at(replica, at)
            except NotAStore:
                continue
        return Mark(at)

    def _since(self, replicas: Sequence[Replica]) -> int:
        """Where the first record begins that was stored at `startingTimestamp` or later."""
        end, since_ms = self._end(replicas), self.options.starting_timestamp
        asked = replace(self.options, mode="DROPMALFORMED", start_timestamp=since_ms)
        first = _first(replicas)
        replica = next((one for one in replicas if first_offset(one) == first), replicas[0])
        for split in plan_splits([replica], end=end, durable=end, start_ms=since_ms):
            for batch in batches(split, ["physical_offset"], asked):
                return int(batch.column(0)[0].as_py())
        return end

    def _earliest(self, name: str) -> Mark:
        return Mark(self._patiently(name, _first))

    def _end(self, replicas: Sequence[Replica]) -> int:
        return self._shared(_own_ends(replicas).values())

    def _shared(self, ends: Collection[int]) -> int:
        """Up to where replicas that end there are read."""
        return max(ends) if self.options.read_uncommitted else min(ends)

    def _patiently(self, name: str, ask: Callable[[Sequence[Replica]], T]) -> T:
        """Ask all replicas until they can be read or the limit is over."""
        deadline = time.monotonic() + self.options.limit_s
        while True:
            try:
                return ask(self._brokers[name])
            except (NotAStore, DataLost, OSError) as exc:
                if time.monotonic() >= deadline:
                    raise StreamError(
                        f"broker {name}: after {self.options.limit_s:g} s still: {exc}",
                        getattr(exc, "condition", Condition.UNREADABLE),
                    ) from exc
            time.sleep(LOOK_S)

    # --- batches

    def plan(self, start: StreamOffset, end: StreamOffset) -> list[LogPart]:
        """Parts of the batch between two offsets. Raises `StreamError`, `DataLoss`."""
        self._check(end)
        total = sum(
            max(mark.at - start.marks.get(name, Mark(0)).at, 0) for name, mark in end.marks.items()
        )
        wanted = -(-total // self.options.min_partitions)
        split_bytes = max(min(self.options.split_bytes, wanted), 1)
        found: list[LogPart] = []
        for name, mark in sorted(end.marks.items()):
            begin = start.marks.get(name) or self._earliest(name)
            if mark.at > begin.at:
                found += self._parts(name, begin, mark, split_bytes)
        return found

    def _parts(self, name: str, begin: Mark, end: Mark, split_bytes: int) -> list[LogPart]:
        """Parts of one broker's stretch; waits for a replica that has all of it."""
        deadline = time.monotonic() + self.options.limit_s
        while True:
            overdue = time.monotonic() >= deadline
            ends = [look(one, end, finds_end=False) for one in self._brokers[name]]
            has_end = [view.replica for view in ends if view.state is State.HOLDS]
            views = [look(one, begin, finds_end=False) for one in self._brokers[name]]
            able = [v for v in views if v.state is State.HOLDS and v.replica in has_end]
            if able:
                break
            kept = [v for v in views if v.state is State.RETAINED]
            if overdue or len(kept) == len(views):
                # Raises unless failOnDataLoss=false; then what is left of the stretch is read.
                judge(
                    [v for v in views if v.state is not State.HOLDS] or ends,
                    begin,
                    fail_on_data_loss=self.options.fail_on_data_loss,
                    overdue=True,
                )
                able = sorted(kept, key=lambda view: view.first)  # who has most of it
                for view in able[:1]:
                    LOG.warning(
                        "stream.data_lost broker=%s from=%d to=%d", name, begin.at, view.first
                    )
                break
            time.sleep(LOOK_S)
        if not able:
            return []
        first = able[0]
        replicas = tuple(view.replica for view in able[1:])
        splits = plan_splits(
            [first.replica],
            split_bytes=split_bytes,
            start=max(begin.at, first.first),
            end=end.at,
            is_aligned=True,
        )
        return [LogPart(split, replicas) for split in splits]


def _own_ends(replicas: Sequence[Replica]) -> dict[Replica, int]:
    return {replica: data_end(replica) for replica in replicas}


def _first(replicas: Sequence[Replica]) -> int:
    """The first offset that any of them has; an empty one says nothing of it."""
    found = [at for replica in replicas if (at := first_offset(replica)) is not None]
    return min(found, default=0)


def shares_of_rows(backlog: Mapping[str, int], rows_max: int) -> dict[str, int]:
    """A limit of rows dealt out by bytes of backlog; at least one for who has any."""
    return dealt({name: size for name, size in backlog.items() if size > 0}, rows_max)


def read_part(
    part: LogPart, columns: Sequence[str], options: Options
) -> "Iterator[pyarrow.RecordBatch]":
    """Rows of a part, from the next replica where one fails in the middle.

    The rows of a stretch are the same on every replica and come in the same order, so what was
    given already is passed over. Raises `DataLost` when no replica is left.
    """
    given, strictly = 0, replace(options, fail_on_data_loss=True)
    replicas = (part.split.replica, *part.others)
    for number, replica in enumerate(replicas):
        is_last = number + 1 == len(replicas)
        try:
            splits = [part.split] if number == 0 else _same_stretch(part.split, replica)
            skipped = 0
            for split in splits:
                # What this one has lost another may have.
                for batch in batches(split, columns, options if is_last else strictly):
                    passed = min(given - skipped, batch.num_rows)
                    skipped += passed
                    if passed < batch.num_rows:
                        given += batch.num_rows - passed
                        skipped += batch.num_rows - passed
                        yield batch.slice(passed)
            return
        except (DataLost, NotAStore, OSError) as exc:
            if is_last:
                raise
            LOG.warning("stream.next_replica after=%s rows=%d: %s", replica.name, given, exc)


def _same_stretch(split: Split, replica: Replica) -> list[Split]:
    return plan_splits(
        [replica],
        start=split.base + split.start,
        end=split.base + split.end,
        is_aligned=split.is_aligned,
    )
