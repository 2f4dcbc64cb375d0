"""`stats`: statistics of segments, gathered once by executors, so that later reads skip segments.

    OUT/store-<digest of its path>.parquet      a row a segment: `pipeline.files.statistics`

A segment is read by one task. Its statistics are valid until its first or last record changes; so a
second run checks two records of each known segment, and reads only new ones. A store's file is
rewritten as a whole while the job runs and when it ends, so that a killed run keeps its results and
the next run continues from there.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow
from pyarrow import compute

from rocketbed.pipeline.errors import EXIT_FINDING, Unwritable, user_errors
from rocketbed.pipeline.files.replicas import Replica
from rocketbed.pipeline.files.splits import Split, plan_splits
from rocketbed.pipeline.files.statistics import (
    SCHEMA,
    SegmentIdentity,
    Unusable,
    believed,
    describe,
    file_of,
    identity_of,
    load,
    packed,
    store_of,
)
from rocketbed.pipeline.jobs.common import Job, WrongUsage
from rocketbed.pipeline.jobs.export.place import Place
from rocketbed.pipeline.jobs.inputs import broker_logs, note_inputs
from rocketbed.pipeline.jobs.spread import spread

PIECE_BYTES: Final = 1 << 30
"""Bytes of log for a task: a second or more, so that the cost of a Spark job is small."""
LOOK_BYTES: Final = 1 << 20
"""Bytes that count for the check of a known segment."""
SAVE_S: Final = 60.0

Segment = tuple[str, Split, SegmentIdentity | None]
"""A segment: its store, its range, and the records by which an earlier run identified it."""


@dataclass(slots=True)
class Store:
    """The statistics of a store, as far as they are complete."""

    name: str
    replica: Replica
    splits: list[Split]
    earlier: pyarrow.Table
    """Rows of an earlier run."""
    new: list[pyarrow.Table] = field(default_factory=list)
    deleted: list[int] = field(default_factory=list)
    """Segments that were deleted while the job ran."""

    @property
    def table(self) -> pyarrow.Table:
        """A row for each segment of an earlier run or of this one."""
        new = pyarrow.concat_tables([SCHEMA.empty_table(), *self.new])
        replaced = pyarrow.array([*new["segment"].to_pylist(), *self.deleted], pyarrow.int64())
        is_replaced = compute.is_in(self.earlier["segment"], replaced)
        both = pyarrow.concat_tables([self.earlier.filter(compute.invert(is_replaced)), new])
        return both.sort_by("segment")

    @property
    def segments(self) -> Iterator[Segment]:
        """Segments to read or to check."""
        rows = self.earlier.select(["segment", *SegmentIdentity._fields]).to_pylist()
        places = {row.pop("segment"): SegmentIdentity(**row) for row in rows}
        return ((self.name, split, places.get(split.base)) for split in self.splits)


def stats(job: Job, out: str) -> None:
    """Create or update the statistics. Raises `PipelineError`, `WrongUsage`."""
    if not out:
        raise WrongUsage("no output: give --out DIR, or SCHEME://...")
    logs = broker_logs(job.settings)
    note_inputs(job.report, logs)
    roots = [item.replica.root for log in logs for item in log.replicas]
    place = Place.of(out, job.settings.file_systems(out), roots)
    stores = {
        store_of(item.replica): _opened(job, place, item.replica, log.end)
        for log in logs
        for item in log.replicas
    }
    pieces = list(_pieces([item for store in stores.values() for item in store.segments]))
    try:
        _read(job, place, stores, pieces)
    finally:
        _save(place, stores)
    _fill_report(job, list(stores.values()))


@user_errors
def examine(piece: Sequence[Segment]) -> list[tuple[str, int, pyarrow.Table | None]]:
    """Read the new and changed segments of a piece, in a task.

    Returns store, first offset and rows of each; None for the rows of a deleted segment.
    """
    return [
        (store, split.base, describe(store, split))
        for store, split, was in piece
        if was is None
        or identity_of(split.replica, split.file, was.first_offset, was.last_offset) != was
    ]


def _read(
    job: Job, place: Place, stores: dict[str, Store], pieces: Sequence[Sequence[Segment]]
) -> None:
    job.spark  # noqa: B018 (its start is a phase of its own)
    with job.phase("reading segments"):
        saved = time.monotonic()
        for done in spread(job, examine, pieces):
            for store, segment, table in done.answer:
                if table is None:
                    stores[store].deleted.append(segment)
                else:
                    stores[store].new.append(table)
            if time.monotonic() - saved > SAVE_S:
                _save(place, stores)
                saved = time.monotonic()


def _opened(job: Job, place: Place, replica: Replica, end: int) -> Store:
    """Return a store, with the rows of an earlier run that may still describe its segments."""
    planned = plan_splits([replica], split_bytes=1 << 62, end=end, durable=end)
    splits = [split for split in planned if split.path]
    store = store_of(replica)
    try:
        earlier = believed(load(place.storage, place.at(file_of(store)), store)).cast(SCHEMA)
    except Unusable as why:
        if str(why) != "not there":
            job.report.notes.append(f"{store}: the statistics were {why}; all is read anew")
        return Store(store, replica, splits, SCHEMA.empty_table())
    sizes = {split.base: split.size for split in splits if split.is_full}
    rows = zip(earlier["segment"].to_pylist(), earlier["size"].to_pylist(), strict=True)
    mask = [sizes.get(segment) == size for segment, size in rows]
    return Store(store, replica, splits, earlier.filter(pyarrow.array(mask, pyarrow.bool_())))


def _pieces(segments: Sequence[Segment]) -> Iterator[Sequence[Segment]]:
    held: list[Segment] = []
    size = 0
    for store, split, was in segments:
        held.append((store, split, was))
        size += split.end - split.start if was is None else LOOK_BYTES
        if size >= PIECE_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held


def _save(place: Place, stores: dict[str, Store]) -> None:
    """Write the statistics of all stores. Raises `Unwritable`."""
    try:
        if place.is_local:
            Path(place.path).mkdir(parents=True, exist_ok=True)
        for name, store in stores.items():
            place.write(file_of(name), packed(store.table))
    except OSError as error:
        raise Unwritable(place.path, error) from error


def _fill_report(job: Job, stores: Sequence[Store]) -> None:
    tables = [store.table for store in stores]
    whole = pyarrow.concat_tables([SCHEMA.empty_table(), *tables])
    read = sum(len(store.new) for store in stores)
    topics = compute.unique(whole["topics"].combine_chunks().flatten().field("topic"))
    job.report.counts |= {
        "stores": len(stores),
        "segments": whole.num_rows,
        "read": read,
        "known": whole.num_rows - read,
        "not_full": whole.num_rows - (compute.sum(whole["is_full"]).as_py() or 0),
        "topics": len(topics),
        **{
            name: compute.sum(whole[name]).as_py() or 0 for name in ("records", "messages", "bytes")
        },
    }
    for store, table in zip(stores, tables, strict=True):
        if store.deleted:
            job.report.notes.append(
                f"{store.replica.root}: {len(store.deleted)} segments were deleted while the job"
                " ran: they are in no figure"
            )
        replaced = {table["segment"][0].as_py() for table in store.new}
        replaced &= set(store.earlier["segment"].to_pylist())
        if replaced:
            job.report.notes.append(
                f"{store.replica.root}: {len(replaced)} segments were not those that were known"
            )
        bad = table.filter(compute.greater(table["damaged"], 0))
        if bad.num_rows:
            title = (
                f"segments of {store.replica.root} hold what is no record, the first at"
                f" {bad['segment'][0].as_py()}: they are never left out"
            )
            job.report.findings.append({"id": "malformed", "title": title, "count": bad.num_rows})
            job.report.exit_code = EXIT_FINDING
