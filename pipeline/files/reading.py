"""What a batch read does, without Spark: plans its parts, then reads each of them."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow

from rocketbed.pipeline.files.corrupt import DataLost
from rocketbed.pipeline.files.decode import Wanted, batches
from rocketbed.pipeline.files.paths import parse_paths
from rocketbed.pipeline.files.pruning import (
    NOTHING,
    Known,
    LeftOut,
    known_segments,
    parts_of,
    read_left_out,
)
from rocketbed.pipeline.files.replicas import check_topics
from rocketbed.pipeline.files.splits import (
    Replica,
    Split,
    data_end,
    durable_offset,
    log_files,
    plan_splits,
    used_files,
)
from rocketbed.pipeline.files.storage import spread
from rocketbed.pipeline.files.tails import misnamed, tell_overlaps, written_end
from rocketbed.pipeline.files.views import plan_view, read_view
from rocketbed.pipeline.option_table import OptionError
from rocketbed.pipeline.options import Options

logger = logging.getLogger("rocketbed.pipeline")

TASKS_MAX = 1_000_000
"""Splits of a read, which the driver holds in memory."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be read, and what is wanted of it."""

    options: Options
    wanted: Wanted = field(default_factory=Wanted)

    @classmethod
    def of(cls, options: Options) -> "Plan":
        """The plan that the options ask for. Raises `OptionError`."""
        if (options.starting_offsets, options.ending_offsets) != ("earliest", "latest"):
            raise OptionError(
                "startingOffsets and endingOffsets of a batch read are for endpoints; over path"
                " give startOffset, endOffset"
            )
        return cls(options, Wanted.of(options))

    def splits(self) -> list[Any]:
        """What each task reads: splits of all replicas up to what is confirmed, or a view's parts.

        Raises `NotAStore`, `OptionError`.
        """
        options, wanted = self.options, self.wanted
        replicas = parse_paths(options.path, options.fs, is_once=True)
        ends = read_ends(replicas, options.read_uncommitted)
        for replica in replicas:
            tell_overlaps(replica)
        empty = [replica for replica in replicas if is_empty(replica)]
        for replica in empty:
            logger.warning("%s: the log is empty%s", replica.root, self._so(replica, replicas))
        if len(empty) < len(replicas):
            self._tell_late_start(max(end for _, end in ends))
        if options.view != "records":
            parts = plan_view(options, wanted, ends)
            check_topics(replicas, options.topics, options.topics_pattern, empty)
            return parts
        check_topics(replicas, options.topics, options.topics_pattern, empty)
        found: list[Split | LeftOut] = []
        known = known_segments(replicas, options, wanted)
        split_bytes = self._split_bytes(ends, known)
        for replica, end in ends:
            here = known.get(replica, NOTHING)
            planned = plan_splits(
                [replica],
                split_bytes=split_bytes,
                start=wanted.start_offset,
                end=end if wanted.end_offset is None else min(end, wanted.end_offset),
                durable=end,
                start_ms=options.start_timestamp,
                end_ms=options.end_timestamp,
                holds=here.holds,
            )
            found += parts_of(planned, here)
            found += self._misnamed(replica, end)
        return found

    def _tell_late_start(self, end: int) -> None:
        """One that begins where the longest log ends is one that waits for more."""
        start = self.wanted.start_offset
        if start is not None and start > end:
            logger.warning(
                "startOffset=%d is behind %d, the end of all that is read, so there are no rows",
                start,
                end,
            )

    def _split_bytes(
        self, ends: Sequence[tuple[Replica, int]], known: Mapping[Replica, Known]
    ) -> int:
        """`splitBytes`, or less for `minPartitions`. Raises `OptionError`: too little."""
        options, wanted = self.options, self.wanted
        total = 0
        for replica, end in ends:
            high = end if wanted.end_offset is None else min(end, wanted.end_offset)
            holds = known.get(replica, NOTHING).holds
            for file in log_files(replica):
                if not holds.get(file.start, True):
                    continue
                low = max(file.start, wanted.start_offset or 0)
                total += max(min(file.end, high) - low, 0)
        size = max(min(options.split_bytes, total // options.min_partitions), 1)
        if total // size > TASKS_MAX:
            raise OptionError(
                f"{total} bytes of log would be {total // size} tasks: give a larger splitBytes, or"
                " fewer minPartitions"
            )
        return size

    def _misnamed(self, replica: Replica, end: int) -> list[Split]:
        """Segments under other names as holes of the log, if they are none yet. Raises `DataLost`
        where it may."""
        low, high = self.wanted.start_offset or 0, self.wanted.end_offset
        files = used_files(replica)
        found = []
        for file in misnamed(replica, files):
            if file.end <= low or (high is not None and file.start >= high):
                continue
            if self.options.fail_on_data_loss:
                what = f"this is the file that holds it, under another name than {file.start:020d}"
                raise DataLost(file.path, file.start, what)
            there = max(files[-1].end, end) if files else end
            if file.start >= there or (files and file.end <= files[0].start):
                found.append(Split(replica, "", file.start, 0, file.size, file.size, is_tail=False))
        return found

    def _so(self, empty: Replica, replicas: Sequence[Replica]) -> str:
        """What follows for the other replicas of a broker, if there are any."""
        others = [one.name for one in replicas if one.broker == empty.broker and one != empty]
        if not others or self.options.read_uncommitted:
            return ""
        return (
            f", so nothing is read of {', '.join(others)} of {empty.broker} either: only what all "
            f"replicas hold is (readUncommitted=true reads more)"
        )

    def read(self, part: Any, schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
        if isinstance(part, LeftOut):
            return read_left_out(part, schema, self.options, self.wanted)
        if self.options.view == "records":
            return batches(part, schema, self.options, self.wanted)
        return read_view(part, schema, self.options, self.wanted)


def tell_rest(replica: Replica, end: int, own_end: int) -> None:
    """Say in the log what is not read of a replica, since others lack it."""
    if end < own_end:
        logger.warning(
            "%s: read up to %d of %d, since not all replicas of %s that are listed hold the rest"
            " (readUncommitted=true reads more)",
            replica.root,
            end,
            own_end,
            replica.broker,
        )


def read_ends(
    replicas: Sequence[Replica], read_uncommitted: bool = False
) -> list[tuple[Replica, int]]:
    """Each replica with the physical offset at which reading it stops.

    That is what all listed replicas of its broker hold, or its own last good record. Where a mark,
    or bytes that stand there, say that more had been on disk, it is the end of that: what is no
    record then is shown as torn.
    """
    is_local = all(replica.storage.is_local for replica in replicas)
    own = dict(zip(replicas, spread(data_end, replicas, is_local=is_local), strict=True))
    found = []
    for replica in replicas:
        end = own[replica]
        if not read_uncommitted:
            end = min(own[other] for other in replicas if other.broker == replica.broker)
        tell_rest(replica, end, own[replica])
        found.append((replica, end))
    return spread(lambda one: _judged(*one, own[one[0]]), found, is_local=is_local)


def _judged(replica: Replica, end: int, own: int) -> tuple[Replica, int]:
    """The end of a replica whose records end at `own`, of which up to `end` is to be read."""
    if end == own:
        end = max(written_end(replica, used_files(replica), end), durable_offset(replica))
    return replica, end


def is_empty(replica: Replica) -> bool:
    """Whether no byte was ever stored in a replica's log, or all of it is gone."""
    files = used_files(replica)
    if len(files) != 1:
        return not files
    with replica.segment(files[0]) as segment:
        return segment.first_data(0) is None
