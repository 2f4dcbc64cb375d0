"""Batch reads over files, without Spark: plan the parts, then read each of them."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow

from rocketbed.pipeline.files.corrupt import DataLost
from rocketbed.pipeline.files.decode import Selection, batches
from rocketbed.pipeline.files.paths import parse_paths
from rocketbed.pipeline.files.pruning import (
    NOTHING,
    LeftOut,
    UsableStatistics,
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
"""Maximum number of splits of a read, which the driver holds in memory."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of a batch read: options, and the selection of records."""

    options: Options
    selection: Selection = field(default_factory=Selection)

    @classmethod
    def of(cls, options: Options) -> "Plan":
        """Make the plan for options. Raises `OptionError`."""
        if (options.starting_offsets, options.ending_offsets) != ("earliest", "latest"):
            raise OptionError(
                "startingOffsets and endingOffsets of a batch read are for endpoints; over path"
                " give startOffset, endOffset"
            )
        return cls(options, Selection.of(options))

    def splits(self) -> list[Any]:
        """Plan the parts of tasks: splits of all replicas up to the confirmed end, or parts of a
        view.

        Raises `NotAStore`, `OptionError`.
        """
        options, selection = self.options, self.selection
        replicas = parse_paths(options.path, options.fs, is_once=True)
        ends = read_ends(replicas, options.read_uncommitted)
        for replica in replicas:
            tell_overlaps(replica)
        empty = [replica for replica in replicas if is_empty(replica)]
        for replica in empty:
            logger.warning("%s: the log is empty%s", replica.root, self._effect(replica, replicas))
        if len(empty) < len(replicas):
            self._tell_late_start(max(end for _, end in ends))
        if options.view != "records":
            parts = plan_view(options, selection, ends)
            check_topics(replicas, options.topics, options.topics_pattern, empty)
            return parts
        check_topics(replicas, options.topics, options.topics_pattern, empty)
        parts_found: list[Split | LeftOut] = []
        usable = known_segments(replicas, options, selection)
        split_bytes = self._split_bytes(ends, usable)
        for replica, end in ends:
            statistics = usable.get(replica, NOTHING)
            planned = plan_splits(
                [replica],
                split_bytes=split_bytes,
                start=selection.start_offset,
                end=end if selection.end_offset is None else min(end, selection.end_offset),
                durable=end,
                start_ms=options.start_timestamp,
                end_ms=options.end_timestamp,
                holds=statistics.holds,
            )
            parts_found += parts_of(planned, statistics)
            parts_found += self._misnamed(replica, end)
        return parts_found

    def _tell_late_start(self, end: int) -> None:
        """Warn of a start after the end of all logs. A start at the end is a poll for new
        records."""
        start = self.selection.start_offset
        if start is not None and start > end:
            logger.warning(
                "startOffset=%d is behind %d, the end of all that is read, so there are no rows",
                start,
                end,
            )

    def _split_bytes(
        self, ends: Sequence[tuple[Replica, int]], usable: Mapping[Replica, UsableStatistics]
    ) -> int:
        """Return `splitBytes`, or less for `minPartitions`. Raises `OptionError` if it is too
        little."""
        options, selection = self.options, self.selection
        total = 0
        for replica, end in ends:
            high = end if selection.end_offset is None else min(end, selection.end_offset)
            holds = usable.get(replica, NOTHING).holds
            for file in log_files(replica):
                if not holds.get(file.start, True):
                    continue
                low = max(file.start, selection.start_offset or 0)
                total += max(min(file.end, high) - low, 0)
        size = max(min(options.split_bytes, total // options.min_partitions), 1)
        if total // size > TASKS_MAX:
            raise OptionError(
                f"{total} bytes of log would be {total // size} tasks: give a larger splitBytes, or"
                " fewer minPartitions"
            )
        return size

    def _misnamed(self, replica: Replica, end: int) -> list[Split]:
        """Return segments with wrong names as gaps of the log, unless a gap covers them. Raises
        `DataLost` if failOnDataLoss is set."""
        low, high = self.selection.start_offset or 0, self.selection.end_offset
        files = used_files(replica)
        gaps = []
        for file in misnamed(replica, files):
            if file.end <= low or (high is not None and file.start >= high):
                continue
            if self.options.fail_on_data_loss:
                problem = (
                    f"this is the file that holds it, under another name than {file.start:020d}"
                )
                raise DataLost(file.path, file.start, problem)
            log_end = max(files[-1].end, end) if files else end
            if file.start >= log_end or (files and file.end <= files[0].start):
                gaps.append(Split(replica, "", file.start, 0, file.size, file.size, is_tail=False))
        return gaps

    def _effect(self, empty: Replica, replicas: Sequence[Replica]) -> str:
        """Describe the effect of an empty replica on the other replicas of its broker, if any."""
        names = [each.name for each in replicas if each.broker == empty.broker and each != empty]
        if not names or self.options.read_uncommitted:
            return ""
        return (
            f", so nothing is read of {', '.join(names)} of {empty.broker} either: only what all "
            f"replicas hold is (readUncommitted=true reads more)"
        )

    def read(self, part: Any, schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
        if isinstance(part, LeftOut):
            return read_left_out(part, schema, self.options, self.selection)
        if self.options.view == "records":
            return batches(part, schema, self.options, self.selection)
        return read_view(part, schema, self.options, self.selection)


def warn_of_unread(replica: Replica, end: int, own_end: int) -> None:
    """Warn of the records of a replica that are not read because others lack them."""
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
    """Pair each replica with the physical offset at which reading it stops.

    That is the end that all listed replicas of its broker hold, or its own last good record. If a
    mark of the store, or bytes after that record, show that more had been on disk, it is the end of
    those bytes: they are shown as torn.
    """
    is_local = all(replica.storage.is_local for replica in replicas)
    own = dict(zip(replicas, spread(data_end, replicas, is_local=is_local), strict=True))
    ends = []
    for replica in replicas:
        end = own[replica]
        if not read_uncommitted:
            end = min(own[each] for each in replicas if each.broker == replica.broker)
        warn_of_unread(replica, end, own[replica])
        ends.append((replica, end))
    return spread(lambda pair: _judged(*pair, own[pair[0]]), ends, is_local=is_local)


def _judged(replica: Replica, end: int, own: int) -> tuple[Replica, int]:
    """Extend the end of a replica whose records end at `own` by damaged bytes after them."""
    if end == own:
        end = max(written_end(replica, used_files(replica), end), durable_offset(replica))
    return replica, end


def is_empty(replica: Replica) -> bool:
    """True if a replica's log never had data, or all of it was deleted."""
    files = used_files(replica)
    if len(files) != 1:
        return not files
    with replica.segment(files[0]) as segment:
        return segment.first_data(0) is None
