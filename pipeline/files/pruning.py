"""Skip segments by their statistics, and check that the statistics still match.

A few tasks check skipped segments: they compare two records of each with the statistics, and read
the segments that differ. So a stale file of statistics costs time, and never a row.
"""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import numpy
import pyarrow
from pyarrow import compute

from rocketbed.pipeline.files.arrays import numbers, scalar
from rocketbed.pipeline.files.decode import Selection, batches
from rocketbed.pipeline.files.remote import RemoteStorage, storage_of
from rocketbed.pipeline.files.replicas import Replica
from rocketbed.pipeline.files.splits import Split, used_files
from rocketbed.pipeline.files.statistics import (
    SegmentIdentity,
    Unusable,
    believed,
    file_of,
    identity_of,
    load,
    store_of,
)
from rocketbed.pipeline.files.storage import (
    Storage,
    StorageError,
    UnknownScheme,
    plain_path,
    spread,
)
from rocketbed.pipeline.option_table import OptionError
from rocketbed.pipeline.options import Options

logger = logging.getLogger("rocketbed.pipeline")

SEGMENTS: Final = 1000
"""Segments that one task checks: 10 ms for local files, some seconds for remote ones."""
MAKE: Final = "`rocketbed pipeline stats` makes them anew"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Segments that hold no selected record, if they still match their statistics."""

    segments: tuple[tuple[Split, SegmentIdentity], ...]


@dataclass(frozen=True, slots=True)
class UsableStatistics:
    """Usable statistics of one store, by the first offset of a segment."""

    holds: Mapping[int, bool]
    """True for segments that may hold selected records."""
    identities: Mapping[int, SegmentIdentity]
    """Identifying records of the segments without selected records."""


NOTHING: Final = UsableStatistics({}, {})


def known_segments(
    replicas: Sequence[Replica], options: Options, selection: Selection
) -> dict[Replica, UsableStatistics]:
    """Load the usable statistics of each store; warns of unusable ones.

    Raises `OptionError` for a location that can never have statistics.
    """
    if not options.stats:
        return {}
    directory = plain_path(options.stats).rstrip("/")
    storage = _place(directory, options)
    content = (selection.topics, selection.pattern, selection.start_ms, selection.end_ms)
    if all(each is None for each in content):
        if storage.is_local and not storage.is_dir(directory):
            # With a selection this is reported for each store.
            logger.warning("option stats: %s is not there; %s", directory, MAKE)
        return {}
    is_local = storage.is_local and all(one.storage.is_local for one in replicas)
    loaded = spread(
        lambda replica: _load_usable(replica, storage, directory, selection),
        replicas,
        is_local=is_local,
    )
    return dict(zip(replicas, loaded, strict=True))


def parts_of(planned: Sequence[Split], statistics: UsableStatistics) -> list[Split | LeftOut]:
    """Return the splits to read, then the parts of skipped segments, many segments in each."""
    out = [
        (split, statistics.identities[split.base])
        for split in planned
        if split.path and split.base in statistics.identities
    ]
    read = [split for split in planned if not split.path or split.base not in statistics.identities]
    return [
        *read,
        *(LeftOut(tuple(out[at : at + SEGMENTS])) for at in range(0, len(out), SEGMENTS)),
    ]


def read_left_out(
    part: LeftOut, schema: pyarrow.Schema, options: Options, selection: Selection
) -> Iterator[pyarrow.RecordBatch]:
    """Read the rows of skipped segments that no longer match their statistics."""
    is_local = part.segments[0][0].replica.storage.is_local
    is_same = spread(lambda segment: _is_same(*segment), part.segments, is_local=is_local)
    for (split, _), same in zip(part.segments, is_same, strict=True):
        if not same and _is_deleted(split):
            logger.warning("%s: deleted meanwhile; it held nothing of what is read", split.path)
        elif not same:
            logger.warning(
                "%s: not the segment that its statistics are of: read without them; %s",
                split.path,
                MAKE,
            )
            yield from batches(split, schema, options, selection)


def _is_same(split: Split, expected: SegmentIdentity) -> bool:
    return (
        identity_of(split.replica, split.file, expected.first_offset, expected.last_offset)
        == expected
    )


def _is_deleted(split: Split) -> bool:
    """True if only the file was deleted: a machine may not have the store at all."""
    storage = split.replica.storage
    return not storage.is_file(split.path) and storage.is_dir(os.path.dirname(split.path))


def _place(directory: str, options: Options) -> Storage:
    """Return the storage of the option `stats`. Raises `OptionError`."""
    problem = f"option stats={options.stats!r}: expected the --out of `rocketbed pipeline stats`"
    try:
        storage = storage_of(directory, options.fs)
    except StorageError as exc:
        raise OptionError(f"{problem}; {exc}") from None
    if isinstance(storage, RemoteStorage):
        try:
            storage.at(directory)
        except UnknownScheme as exc:
            raise OptionError(f"{problem}; {exc}") from None
        except StorageError:
            pass  # reported for each store, which is read without statistics
    elif storage.is_file(directory) or ":" in directory.partition("/")[0]:
        raise OptionError(f"{problem}: a directory, or SCHEME://...")
    return storage


def _load_usable(
    replica: Replica, storage: Storage, directory: str, selection: Selection
) -> UsableStatistics:
    store = store_of(replica)
    path = f"{directory}/{file_of(store)}"
    try:
        table = believed(load(storage, path, store, _columns(selection)))
    except (Unusable, StorageError) as exc:
        reason = exc if isinstance(exc, Unusable) else f"not readable: {exc}"
        logger.warning(
            "%s: read without statistics, since those in %s are %s; %s", store, path, reason, MAKE
        )
        return NOTHING
    files = {file.start: file for file in used_files(replica)[:-1]}
    may_hold = _holding(table, selection)
    holds: dict[int, bool] = {}
    places: dict[int, SegmentIdentity] = {}
    changed = 0
    rows = zip(
        *(table[name].to_pylist() for name in ("segment", "size", *SegmentIdentity._fields)),
        strict=True,
    )
    for number, (segment, size, *identity) in enumerate(rows):
        if segment not in files or files[segment].size != size:
            changed += segment in files
            continue
        holds[segment] = number in may_hold
        if not holds[segment]:
            places[segment] = SegmentIdentity(*identity)
    if changed:
        logger.warning(
            "%s: %d segments are not as long as their statistics say: read without them; %s",
            store,
            changed,
            MAKE,
        )
    last = max(places, default=None)
    if last is not None and identity_of(replica, files[last], *places[last][:2]) != places[last]:
        problem = f"{files[last].path} is not the segment that the statistics in {path} are of"
        logger.warning("%s: read without them, since %s; %s", store, problem, MAKE)
        return NOTHING
    return UsableStatistics(holds, places)


def _columns(selection: Selection) -> list[str]:
    """Columns that the selection needs: lists of topics may be long."""
    has_times = selection.start_ms is not None or selection.end_ms is not None
    names = ["topic"] * _needs_topics(selection) + ["oldest_ms", "youngest_ms"] * has_times
    if _needs_topics(selection):
        names = [f"topics.list.element.{name}" for name in names]
    return ["segment", "size", "is_full", "damaged", *SegmentIdentity._fields, *names]


def _needs_topics(selection: Selection) -> bool:
    return selection.topics is not None or selection.pattern is not None


def _holding(table: pyarrow.Table, selection: Selection) -> set[int]:
    """Numbers of the rows with selected records: a topic within the times, or any within them."""
    masks = []
    rows, rows_by_topic = numbers(numpy.arange(table.num_rows)), table
    if _needs_topics(selection):
        lists = table["topics"].combine_chunks()
        rows = compute.list_parent_indices(lists)
        rows_by_topic = pyarrow.Table.from_struct_array(lists.flatten())
        names = rows_by_topic["topic"].combine_chunks()
        selected = [
            n for n, name in enumerate(names.dictionary.to_pylist()) if selection.has_topic(name)
        ]
        masks.append(
            compute.is_in(names.indices, value_set=numbers(numpy.array(selected, numpy.int32)))
        )
    if selection.start_ms is not None:
        masks.append(
            compute.greater_equal(rows_by_topic["youngest_ms"], scalar(selection.start_ms))
        )
    if selection.end_ms is not None:
        masks.append(compute.less(rows_by_topic["oldest_ms"], scalar(selection.end_ms)))
    return set(compute.unique(rows.filter(reduce(compute.and_, masks))).to_pylist())
