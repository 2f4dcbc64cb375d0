"""`onlyCommitted=true`: of what exactly-once jobs wrote, just the messages that a marker lists.

All other messages are returned as usual. What is marked is read once, when the read is planned, so
that all tasks agree: a batch is there whole or not at all. The markers lie in the same store or
cluster as the messages: with several brokers, in one of them, so the option `path` has to list the
stores of all. A batch whose marker is not there does not count.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute

from rocketbed.inspect import Filter, messages, open_directory
from rocketbed.inspect import NotAStore as NotAStoreDirectory
from rocketbed.pipeline.files.paths import parse_paths
from rocketbed.pipeline.files.reading import read_ends
from rocketbed.pipeline.files.splits import NotAStore, Replica
from rocketbed.pipeline.files.storage import need_local
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.schema import arrow_schema, canonical
from rocketbed.pipeline.sink.keys import TRANSACTION
from rocketbed.pipeline.sink.markers import committed, jobs_of, marker_topic
from rocketbed.pipeline.sink.runs import Lookup, Place, Runs

COLUMNS: Final = ("broker", "topic", "queue_id", "queue_offset", "properties")
"""What it takes to tell whether a row counts."""
_JOB: Final = f"(?s)^(?:.*\\x02)?{TRANSACTION}\\x01(?P<job>[^\\x02]+)"


class ReadPlan(Protocol):
    """What reads the parts of a plan."""

    def read(self, split: Any, schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
        """Rows of one part."""


@dataclass(frozen=True, slots=True)
class CommittedPart:
    """A part of a read, and what counts of each job."""

    split: Any
    runs: Mapping[str, list[list[Any]]]


def marked_runs(options: Options) -> dict[str, list[list[Any]]]:
    """What counts of each job now, as `Runs.as_json`; by the job's id.

    Raises `BadMarker`, `WireError`, `NotAStore`.
    """
    found = _of_cluster(options) if options.endpoints else _of_stores(options)
    return {job: _within(runs, options.topics).as_json() for job, runs in found.items()}


def read_committed(
    plan: ReadPlan, part: CommittedPart, schema: pyarrow.Schema, corrupt_column: str
) -> Iterator[pyarrow.RecordBatch]:
    """The rows of a part that count."""
    lookup = Lookup({job: Runs.from_json(rows) for job, rows in part.runs.items()})
    names = {canonical(name, corrupt_column): name for name in schema.names}
    added = [item for item in arrow_schema("records", COLUMNS) if item.name not in names]
    for batch in plan.read(part.split, pyarrow.schema([*schema, *added])):
        columns = {name: batch[names.get(name, name)] for name in COLUMNS}
        mask = counting(columns, lookup)
        kept = pyarrow.RecordBatch.from_arrays(batch.columns[: len(schema)], schema=schema)
        if not mask.all():
            kept = kept.filter(pyarrow.array(mask))
        if kept.num_rows:
            yield kept


def counting(columns: Mapping[str, pyarrow.Array], lookup: Lookup) -> NDArray[numpy.bool_]:
    """Mask of the rows that count, by the columns `COLUMNS`."""
    jobs = compute.struct_field(compute.extract_regex(columns["properties"], _JOB), "job")
    mask = numpy.ones(len(jobs), bool)
    if jobs.null_count == len(jobs):
        return mask
    rows = zip(*(columns[name].to_pylist() for name in COLUMNS[:4]), strict=True)
    for row, (job, (broker, topic, queue_id, offset)) in enumerate(
        zip(jobs.to_pylist(), rows, strict=True)
    ):
        if job is not None:
            mask[row] = lookup.has(job, Place(topic, broker, queue_id), offset)
    return mask


def _of_cluster(options: Options) -> dict[str, Runs]:
    import trio

    from rocketbed.client.admin import Admin
    from rocketbed.pipeline.sink.marking import read_markers
    from rocketbed.pipeline.wire.log import WireLog

    async def ask() -> dict[str, Runs]:
        async with Admin(nameservers=options.endpoints) as admin:
            topics = await admin.topics()
        async with WireLog(options.endpoints, limit_s=options.limit_s) as log:
            return await read_markers(log, topics)

    return trio.run(ask)


def _of_stores(options: Options) -> dict[str, Runs]:
    """From one replica of each broker: what counts is what is confirmed, the same on all."""
    found: dict[str, Runs] = {}
    ends = read_ends(parse_paths(options.path, options.fs), options.read_uncommitted)
    seen: set[str] = set()
    for replica, end in ends:
        if replica.broker not in seen:
            seen.add(replica.broker)
            for job, runs in _of_store(replica, end).items():
                found.setdefault(job, Runs()).update(runs)
    return found


def _of_store(replica: Replica, end: int) -> dict[str, Runs]:
    need_local([replica.root], "onlyCommitted")
    try:
        directory = open_directory(replica.root)
    except NotAStoreDirectory as exc:
        raise NotAStore(str(exc)) from exc
    try:
        topics = sorted({topic for topic, _ in directory.queues})
        found = {}
        for job in jobs_of(topics):
            wanted = Filter(topic=marker_topic(job), queue_id=0)
            rows = [
                message
                for message in messages(directory, wanted)
                if message.record.offset < end and message.body is not None
            ]
            rows.sort(key=lambda message: message.queue_offset)
            found[job] = committed(job, [message.body or b"" for message in rows]).runs()
        return found
    finally:
        directory.close()


def _within(runs: Runs, topics: frozenset[str] | None) -> Runs:
    """Those of some topics; None: of all."""
    if topics is None:
        return runs
    result = Runs()
    for place, pairs in runs.items():
        if place.topic in topics:
            for first, count in pairs:
                result.add(place, first, count)
    return result
