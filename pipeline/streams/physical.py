"""A stream over store directories: stretches of each broker's log, read from any replica.

The engine writes the end of a batch into the checkpoint before the batch runs and plans the same
stretch again after a crash. Below the confirmed end all replicas have the same bytes and never
change them, and the records of a stretch depend only on its bytes; so a batch that is run again has
the same rows, from any replica. A batch ends at the end of a record, so none begins inside one.
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
from rocketbed.pipeline.files.reading import warn_of_unread
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
from rocketbed.pipeline.files.tails import TailBytes, bytes_after, misnamed, traces
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
class _CloseLook:
    """A close look at a replica that had nothing new."""

    mark: Mark
    view: View
    at_s: float


@dataclass(frozen=True, slots=True)
class LogPart:
    """Share of a micro-batch that one task reads."""

    split: Split
    fallbacks: tuple[Replica, ...]
    """Replicas that hold the same bytes, to read from if the first one fails."""


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
        """Ends of all logs when the last batch was planned."""
        self._held_up: dict[str, float] = {}
        self._close_looks: dict[Replica, _CloseLook] = {}
        self._suspect: dict[Replica, TailBytes] = {}
        """Bytes after the log's end, as the last close look saw them."""
        self._reported: dict[Replica, str] = {}
        """Last warning about bytes after the log's end."""

    def close(self) -> None:
        """Do nothing: no file stays open between batches."""

    # --- offsets

    def initial(self) -> StreamOffset:
        """Return the offset of a stream without a checkpoint. Raises `StreamError`."""
        starting = parse_offsets(self.options.starting_offsets, PHYSICAL)
        if isinstance(starting, StreamOffset):
            advice = "name brokers as the option path does (broker=root)"
            check_names(starting.marks, set(self._brokers), "startingOffsets", advice)
            return self._offset(
                {name: self._starting_mark(name, mark) for name, mark in starting.marks.items()}
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
        """Refuse an offset of the checkpoint that is of other logs or topics. Raises
        `StreamError`."""
        advice = (
            "it belongs to another cluster or another set of brokers; give each stream its own"
            " checkpointLocation"
        )
        check_names(offset.marks, set(self._brokers), "the checkpoint", advice)
        check_topics(offset.topics, self._topics)

    def ends(self) -> dict[str, int]:
        """Return by broker the end that all of its replicas hold now. Raises `StreamError` after
        the limit."""
        return {name: self._patiently(name, self._end) for name in self._brokers}

    def freeze(self) -> None:
        """Make the present ends the last that any batch reads to (`Trigger.AvailableNow`)."""
        target = {}
        for name in self._brokers:
            own = self._patiently(name, _own_ends)
            target[name] = end = self._shared(own.values())
            for replica, own_end in own.items():
                warn_of_unread(replica, end, own_end)
        self._target = target

    def latest(
        self, start: StreamOffset, *, bytes_max: int | None, rows_max: int | None
    ) -> StreamOffset:
        """Return the end of the batch that begins at `start`. Raises `StreamError`, `DataLoss`."""
        self._check(start)
        while True:
            marks = {name: start.marks.get(name) or self._earliest(name) for name in self._brokers}
            standings = {name: self._standing(name, mark) for name, mark in marks.items()}
            ends = {name: Mark(standing.end) for name, standing in standings.items()}
            self.newest = self._offset(ends)
            end = self._offset(
                self._admit(marks, standings, bytes_max=bytes_max, rows_max=rows_max)
            )
            is_held_up = any(standing.held_up_by for standing in standings.values())
            if self._target is None or not is_held_up or end.marks != marks:
                return end
            time.sleep(LOOK_S)

    def _admit(
        self,
        marks: Mapping[str, Mark],
        standings: Mapping[str, Standing],
        *,
        bytes_max: int | None,
        rows_max: int | None,
    ) -> dict[str, Mark]:
        """Return the end of a batch for each broker, within the limits."""
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
        new_marks = {}
        for name, standing in standings.items():
            is_same = ends[name] == marks[name].at
            new_marks[name] = (
                marks[name] if is_same else mark_at(standing.holders[0].replica, ends[name])
            )
        return new_marks

    def _standing(self, name: str, mark: Mark) -> Standing:
        """Judge a broker's replicas by a mark, and time how long they hold the stream up."""
        since = self._held_up.get(name)
        overdue = since is not None and time.monotonic() - since >= self.options.limit_s
        views = [self._look(replica, mark) for replica in self._brokers[name]]
        if self.options.read_uncommitted:
            # The longest replica alone counts; a failover may take its last messages away again.
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
        """Compare a replica with a mark. Spark asks every few milliseconds: while nothing has been
        written after the mark, a close look once a second is enough."""
        close_look = self._close_looks.get(replica)
        now = time.monotonic()
        if (
            close_look is not None
            and close_look.mark == mark
            and now - close_look.at_s < CLOSE_LOOK_S
            and is_unwritten(replica, mark.at)
        ):
            return close_look.view
        view = look(replica, mark)
        self._close_looks.pop(replica, None)
        if view.state is State.HOLDS and view.end == mark.at:
            self._check_tail(replica, mark.at)
            self._close_looks[replica] = _CloseLook(mark, view, now)
        else:
            self._suspect.pop(replica, None)
        return view

    def _check_tail(self, replica: Replica, at: int) -> None:
        """Look for damage at a log's end, which a stream that waits there would never read. Raises
        `DataLoss`, `StreamError`, unless failOnDataLoss=false: then it warns once."""
        problem, is_lost = "", True
        condition = Condition.DATA_LOSS
        for file in misnamed(replica, log_files(replica)):
            problem = f"{file.path} is a segment, and not called {file.start:020d}"
        tail = bytes_after(replica, used_files(replica), at)
        if tail is None:
            self._suspect.pop(replica, None)
        elif self._suspect.get(replica) == tail or self._target is not None:
            size = tail.end - at
            if tail.is_damage:
                problem = f"{replica.root}: {size} bytes from {at} on, the log's end, are damaged"
                condition = Condition.CORRUPT_RECORD
            elif not problem and data_end(replica) == at:
                problem, is_lost = traces(replica, at, tail), False
        else:
            self._suspect[replica] = tail  # a live log's next record may be on its way
        if not problem:
            self._reported.pop(replica, None)
        elif is_lost and self.options.fail_on_data_loss:
            raise StreamError(
                f"broker {replica.broker}: {problem}; failOnDataLoss=false waits there"
                " for what comes",
                condition,
            )
        elif self._reported.get(replica) != problem:
            self._reported[replica] = problem
            event = "damaged" if is_lost else "log_end"
            LOG.warning("stream.%s broker=%s: %s", event, replica.broker, problem)

    def _starting_mark(self, name: str, mark: Mark) -> Mark:
        """Resolve a mark of the option `startingOffsets`: a record has to begin there. Raises
        `StreamError`."""
        if mark.at == OLDEST:
            return self._earliest(name)
        if mark.at == NEWEST:
            return self._mark(name, self._patiently(name, self._end))
        if not any(self._answers(lambda replica: may_begin(replica, mark.at), self._brokers[name])):
            raise StreamError(
                f"startingOffsets: no record of broker {name} begins at {mark.at}; use a "
                f"physical_offset that was read, or an offset from a checkpoint"
            )
        return mark if mark.crc or not mark.at else self._mark(name, mark.at)

    def _answers(
        self, ask: Callable[[Replica], bool], replicas: Sequence[Replica]
    ) -> Iterator[bool]:
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
        """Offset of the first record stored at `startingTimestamp` or later."""
        end, since_ms = self._end(replicas), self.options.starting_timestamp
        options = replace(self.options, mode="DROPMALFORMED", start_timestamp=since_ms)
        first = _first(replicas)
        replica = next((each for each in replicas if first_offset(each) == first), replicas[0])
        for split in plan_splits([replica], end=end, durable=end, start_ms=since_ms):
            for batch in batches(split, ["physical_offset"], options):
                return int(batch.column(0)[0].as_py())
        return end

    def _earliest(self, name: str) -> Mark:
        return Mark(self._patiently(name, _first))

    def _end(self, replicas: Sequence[Replica]) -> int:
        return self._shared(_own_ends(replicas).values())

    def _shared(self, ends: Collection[int]) -> int:
        """Return the end to read to, from the ends of all replicas."""
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
        """Divide the batch between two offsets into parts. Raises `StreamError`, `DataLoss`."""
        self._check(end)
        total = sum(
            max(mark.at - start.marks.get(name, Mark(0)).at, 0) for name, mark in end.marks.items()
        )
        part_bytes = -(-total // self.options.min_partitions)
        split_bytes = max(min(self.options.split_bytes, part_bytes), 1)
        parts: list[LogPart] = []
        for name, mark in sorted(end.marks.items()):
            begin = start.marks.get(name) or self._earliest(name)
            if mark.at > begin.at:
                parts += self._parts(name, begin, mark, split_bytes)
        return parts

    def _parts(self, name: str, begin: Mark, end: Mark, split_bytes: int) -> list[LogPart]:
        """Divide one broker's stretch into parts; waits for a replica that has all of it."""
        deadline = time.monotonic() + self.options.limit_s
        while True:
            overdue = time.monotonic() >= deadline
            ends = [look(replica, end, finds_end=False) for replica in self._brokers[name]]
            has_end = [view.replica for view in ends if view.state is State.HOLDS]
            views = [look(replica, begin, finds_end=False) for replica in self._brokers[name]]
            able = [v for v in views if v.state is State.HOLDS and v.replica in has_end]
            if able:
                break
            later = [v for v in views if v.state is State.RETAINED]
            if overdue or len(later) == len(views):
                # Raises unless failOnDataLoss=false; then the rest of the stretch is read.
                judge(
                    [v for v in views if v.state is not State.HOLDS] or ends,
                    begin,
                    fail_on_data_loss=self.options.fail_on_data_loss,
                    overdue=True,
                )
                able = sorted(
                    later, key=lambda view: view.first
                )  # the replica with most of it first
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
    """Lowest first offset of the replicas, ignoring empty ones; 0 if all are empty."""
    firsts = [at for replica in replicas if (at := first_offset(replica)) is not None]
    return min(firsts, default=0)


def shares_of_rows(backlog: Mapping[str, int], rows_max: int) -> dict[str, int]:
    """Divide a limit of rows by bytes of backlog; at least one row for each with a backlog."""
    return dealt({name: size for name, size in backlog.items() if size > 0}, rows_max)


def read_part(
    part: LogPart, columns: Sequence[str], options: Options
) -> "Iterator[pyarrow.RecordBatch]":
    """Read the rows of a part, going on with the next replica where one fails in the middle.

    All replicas have the same rows of a stretch in the same order, so rows that were yielded before
    are skipped. Raises `DataLost` when the last replica fails.
    """
    yielded, strict_options = 0, replace(options, fail_on_data_loss=True)
    replicas = (part.split.replica, *part.fallbacks)
    for number, replica in enumerate(replicas):
        is_last = number + 1 == len(replicas)
        try:
            splits = [part.split] if number == 0 else _same_stretch(part.split, replica)
            skipped = 0
            for split in splits:
                # Another replica may have what this one lost.
                for batch in batches(split, columns, options if is_last else strict_options):
                    passed = min(yielded - skipped, batch.num_rows)
                    skipped += passed
                    if passed < batch.num_rows:
                        yielded += batch.num_rows - passed
                        skipped += batch.num_rows - passed
                        yield batch.slice(passed)
            return
        except (DataLost, NotAStore, OSError) as exc:
            if is_last:
                raise
            LOG.warning("stream.next_replica after=%s rows=%d: %s", replica.name, yielded, exc)


def _same_stretch(split: Split, replica: Replica) -> list[Split]:
    return plan_splits(
        [replica],
        start=split.base + split.start,
        end=split.base + split.end,
        is_aligned=split.is_aligned,
    )
