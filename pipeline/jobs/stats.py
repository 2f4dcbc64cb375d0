"""`stats`: what segments hold, read once by executors, for reads that then leave segments out.

    OUT/store-<digest of its path>.parquet      a row a segment: `pipeline.files.statistics`

A segment is read by one task, and what is known of it is kept until its first or last record is
another; so a second run looks at two records of each segment that it knows, and reads new ones.
A store's file is written again while the job runs and when it ends, whole each time: a run that is
killed leaves what was done until then, and the next one goes on from there.
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
    Seen,
    Unusable,
    believed,
    describe,
    file_of,
    load,
    packed,
    seen,
    store_of,
)
from rocketbed.pipeline.jobs.common import Job, WrongUsage
from rocketbed.pipeline.jobs.export.place import Place
from rocketbed.pipeline.jobs.inputs import broker_logs, note_inputs
from rocketbed.pipeline.jobs.spread import spread

PIECE_BYTES: Final = 1 << 30
"""Of log, that a task reads: a second or more, beside which a job of Spark's costs little."""
LOOK_BYTES: Final = 1 << 20
"""What it counts as to look whether a segment is the one that is known."""
SAVE_S: Final = 60.0

Asked = tuple[str, Split, Seen | None]
"""A segment: its store, its stretch, by what it is known again."""


@dataclass(slots=True)
class Store:
    """The statistics of one store, as far as they are made."""

    name: str
    replica: Replica
    splits: list[Split]
    known: pyarrow.Table
    """Rows that an earlier run made."""
    new: list[pyarrow.Table] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    """Segments that were deleted while the job ran."""

    @property
    def table(self) -> pyarrow.Table:
        """A row for each segment that is known or was read."""
        new = pyarrow.concat_tables([SCHEMA.empty_table(), *self.new])
        others = pyarrow.array([*new["segment"].to_pylist(), *self.gone], pyarrow.int64())
        again = compute.is_in(self.known["segment"], others)
        both = pyarrow.concat_tables([self.known.filter(compute.invert(again)), new])
        return both.sort_by("segment")

    @property
    def segments(self) -> Iterator[Asked]:
        """What there is to read, or to look at."""
        rows = self.known.select(["segment", *Seen._fields]).to_pylist()
        places = {row.pop("segment"): Seen(**row) for row in rows}
        return ((self.name, split, places.get(split.base)) for split in self.splits)


def stats(job: Job, out: str) -> None:
    """Make the statistics, or bring them up to date. Raises `PipelineError`, `WrongUsage`."""
    if not out:
        raise WrongUsage("no output: give --out DIR, or SCHEME://...")
    logs = broker_logs(job.settings)
    note_inputs(job.report, logs)
    roots = [one.replica.root for log in logs for one in log.replicas]
    place = Place.of(out, job.settings.file_systems(out), roots)
    stores = {
        store_of(one.replica): _opened(job, place, one.replica, log.end)
        for log in logs
        for one in log.replicas
    }
    pieces = list(_pieces([one for store in stores.values() for one in store.segments]))
    try:
        _read(job, place, stores, pieces)
    finally:
        _save(place, stores)
    _tell(job, list(stores.values()))


@user_errors
def examine(piece: Sequence[Asked]) -> list[tuple[str, int, pyarrow.Table | None]]:
    """In a task: stores and first offsets of those segments that are not known, or not what is
    known, with their rows; None for one that is gone."""
    return [
        (store, split.base, describe(store, split))
        for store, split, was in piece
        if was is None or seen(split.replica, split.file, was.first_offset, was.last_offset) != was
    ]


def _read(
    job: Job, place: Place, stores: dict[str, Store], pieces: Sequence[Sequence[Asked]]
) -> None:
    job.spark  # noqa: B018 (its start is a phase of its own)
    with job.phase("reading segments"):
        saved = time.monotonic()
        for done in spread(job, examine, pieces):
            for store, segment, table in done.answer:
                if table is None:
                    stores[store].gone.append(segment)
                else:
                    stores[store].new.append(table)
            if time.monotonic() - saved > SAVE_S:
                _save(place, stores)
                saved = time.monotonic()


def _opened(job: Job, place: Place, replica: Replica, end: int) -> Store:
    """A store, with those rows of an earlier run that may be of its segments still."""
    planned = plan_splits([replica], split_bytes=1 << 62, end=end, durable=end)
    splits = [split for split in planned if split.path]
    store = store_of(replica)
    try:
        known = believed(load(place.storage, place.at(file_of(store)), store)).cast(SCHEMA)
    except Unusable as why:
        if str(why) != "not there":
            job.report.notes.append(f"{store}: the statistics were {why}; all is read anew")
        return Store(store, replica, splits, SCHEMA.empty_table())
    sizes = {split.base: split.size for split in splits if split.is_full}
    rows = zip(known["segment"].to_pylist(), known["size"].to_pylist(), strict=True)
    mask = [sizes.get(segment) == size for segment, size in rows]
    return Store(store, replica, splits, known.filter(pyarrow.array(mask, pyarrow.bool_())))


def _pieces(segments: Sequence[Asked]) -> Iterator[Sequence[Asked]]:
    held: list[Asked] = []
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
    """Raises `Unwritable`."""
    try:
        if place.is_local:
            Path(place.path).mkdir(parents=True, exist_ok=True)
        for name, store in stores.items():
            place.write(file_of(name), packed(store.table))
    except OSError as error:
        raise Unwritable(place.path, error) from error


def _tell(job: Job, stores: Sequence[Store]) -> None:
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
        if store.gone:
            job.report.notes.append(
                f"{store.replica.root}: {len(store.gone)} segments were deleted while the job ran:"
                " they are in no figure"
            )
        replaced = {one["segment"][0].as_py() for one in store.new}
        replaced &= set(store.known["segment"].to_pylist())
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
