"""Reads with `onlyCommitted=true`: messages of exactly-once jobs count only if a marker lists them.

All other messages are returned as usual. The markers are read once, when the read is planned, so
that all tasks agree and a batch is returned whole or not at all. The markers are stored in the same
store or cluster as the messages. With several brokers one of them holds the markers, so the option
`path` has to list the stores of all brokers. A batch without a marker does not count.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute

from rocketbed.inspect import NotAStore as NotAStoreDirectory
from rocketbed.inspect import Record, StoreDirectory, open_directory
from rocketbed.inspect.bodies import unpack_body
from rocketbed.inspect.record import judge_body_crc
from rocketbed.pipeline.files.decode import Selection, batches
from rocketbed.pipeline.files.paths import parse_paths
from rocketbed.pipeline.files.reading import read_ends
from rocketbed.pipeline.files.remote import need_local
from rocketbed.pipeline.files.replicas import known_topics
from rocketbed.pipeline.files.splits import NotAStore, Replica, plan_splits
from rocketbed.pipeline.option_table import OptionError
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.schema import arrow_schema, canonical
from rocketbed.pipeline.sink.keys import TRANSACTION
from rocketbed.pipeline.sink.markers import (
    BadMarker,
    committed,
    jobs_of,
    marker_topic,
    warn_expired,
)
from rocketbed.pipeline.sink.runs import Lookup, Place, Runs

if TYPE_CHECKING:
    from rocketbed.pipeline.wire.log import WireLog

logger = logging.getLogger("rocketbed.pipeline")

COLUMNS: Final = ("broker", "topic", "queue_id", "queue_offset", "properties")
"""Columns that decide whether a row counts."""
_SCANNED: Final = ("topic", "physical_offset", "queue_offset", "body", "crc_ok")
_JOB: Final = f"(?s)^(?:.*\\x02)?{TRANSACTION}\\x01(?P<job>[^\\x02]+)"


class ReadPlan(Protocol):
    """A plan whose parts can be read."""

    def read(self, split: Any, schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows of one part."""


@dataclass(frozen=True, slots=True)
class CommittedPart:
    """A part of a read, with the committed messages of each job."""

    split: Any
    runs: "Marked"


Marked = Mapping[str, list[list[Any]] | None]
"""Committed messages by job id, as `Runs.as_json`; None if they cannot be determined."""


def marked_runs(options: Options) -> Marked:
    """Return the messages that are committed now, by the job's id.

    Raises `BadMarker`, `WireError`, `NotAStore`.
    """
    runs_by_job: Mapping[str, Runs | None]
    runs_by_job = _cluster_runs(options) if options.endpoints else _stores_runs(options)
    return {
        job: None if runs is None else _within(runs, options.topics).as_json()
        for job, runs in runs_by_job.items()
    }


def read_committed(
    plan: ReadPlan, part: CommittedPart, schema: pyarrow.Schema, corrupt_column: str
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows of a part that count.

    Raises `BadMarker` for a row of a job whose markers cannot be read.
    """
    readable = {job: rows for job, rows in part.runs.items() if rows is not None}
    lookup = Lookup({job: Runs.from_json(rows) for job, rows in readable.items()})
    unknown: set[str] = set()
    names = {canonical(name, corrupt_column): name for name in schema.names}
    extra_fields = [field for field in arrow_schema("records", COLUMNS) if field.name not in names]
    for batch in plan.read(part.split, pyarrow.schema([*schema, *extra_fields])):
        columns = {name: batch[names.get(name, name)] for name in COLUMNS}
        mask = counting(columns, lookup, unknown)
        if unreadable := sorted(unknown & part.runs.keys()):
            raise BadMarker(
                f"topic {marker_topic(unreadable[0])} has more than one queue, or its first message"
                f" is no marker: it was not made by a writer, so what is committed is unknown"
                f" of job {unreadable[0]}, of which there are rows"
            )
        committed_rows = pyarrow.RecordBatch.from_arrays(
            batch.columns[: len(schema)], schema=schema
        )
        if not mask.all():
            committed_rows = committed_rows.filter(pyarrow.array(mask))
        if committed_rows.num_rows:
            yield committed_rows
    for job in sorted(unknown):
        logger.warning(
            "rows of job %s are left out: there is no topic %s, so none of them counts, or the"
            " broker or the store that has it is away",
            job,
            marker_topic(job),
        )


def counting(
    columns: Mapping[str, pyarrow.Array], lookup: Lookup, unknown: set[str]
) -> NDArray[numpy.bool_]:
    """Return a mask of the rows that count, from the columns `COLUMNS`.

    Adds to `unknown` the jobs that `lookup` does not have.
    """
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
            if job not in lookup.jobs:
                unknown.add(job)
    return mask


def _cluster_runs(options: Options) -> dict[str, Runs | None]:
    import trio

    from rocketbed.pipeline.sink.marking import read_markers
    from rocketbed.pipeline.wire.log import WireLog

    async def read_runs() -> dict[str, Runs | None]:
        async with WireLog(options.endpoints, limit_s=options.limit_s) as log:
            runs_by_job = await read_markers(log, await log.topics())
            await _await_brokers(log, [runs for runs in runs_by_job.values() if runs], options)
            return runs_by_job

    return trio.run(read_runs)


async def _await_brokers(log: "WireLog", marked: Sequence[Runs], options: Options) -> None:
    """Check that all brokers with committed messages can be reached.

    An unreachable broker is on no route, so nothing else would report its messages as missing.
    Raises `WireError`, unless failOnDataLoss=false: then it logs a warning.
    """
    from rocketbed.pipeline.wire.log import WireError

    row_filter = Selection.of(options)
    places = (place for runs in marked for place in runs.places())
    names = sorted({place.broker for place in places if row_filter.has_topic(place.topic)})
    if options.brokers:
        names = [name for name in names if name in options.brokers]
    try:
        if names:
            await log.brokers(names, ())
    except WireError as exc:
        problem = f"not all brokers with rows that count ({', '.join(names)}) are there: {exc}"
        if options.fail_on_data_loss:
            hint = "failOnDataLoss=false reads what is there, brokers=... what some have"
            raise WireError(f"{problem}; {hint}", exc.condition) from exc
        logger.warning("wire.broker_away %s", problem)


def _stores_runs(options: Options) -> dict[str, Runs | None]:
    """Read the markers of one replica of each broker, up to its confirmed end.

    All replicas of a broker agree up to that end.
    """
    runs_by_job: dict[str, Runs] = {}
    unreadable: dict[str, None] = {}
    ends = read_ends(parse_paths(options.path, options.fs), options.read_uncommitted)
    brokers: set[str] = set()
    for replica, end in ends:
        if replica.broker not in brokers:
            brokers.add(replica.broker)
            for job, runs in _store_runs(replica, end, options).items():
                if runs is None:
                    unreadable[job] = None
                else:
                    runs_by_job.setdefault(job, Runs()).update(runs)
    marker_brokers = {place.broker for runs in runs_by_job.values() for place, _ in runs.items()}
    if marker_brokers and not marker_brokers & brokers:
        raise OptionError(
            f"option path: the markers name broker {', '.join(sorted(marker_brokers))}, and the"
            f" path {', '.join(sorted(brokers))}: call each store as its broker,"
            " broker/replica=root"
        )
    if marker_brokers - brokers and brokers - marker_brokers:
        logger.warning(
            "the markers name broker %s, and the path has %s, which they do not name: if that is a"
            " name from its directory, what jobs wrote there is left out: call each store as its"
            " broker, broker/replica=root",
            ", ".join(sorted(marker_brokers - brokers)),
            ", ".join(sorted(brokers - marker_brokers)),
        )
    return runs_by_job | unreadable


def _store_runs(replica: Replica, end: int, options: Options) -> dict[str, Runs | None]:
    """Return the committed messages by job; None for a job whose topic does not hold markers.

    Raises `BadMarker` if the topics with markers or a marker cannot be determined.
    """
    need_local([replica.root], "onlyCommitted")
    try:
        directory = open_directory(replica.root)
    except NotAStoreDirectory as exc:
        raise NotAStore(str(exc)) from exc
    try:
        if end > directory.log.min_offset and not (directory.queues or directory.batch_queues):
            raise BadMarker(
                f"{replica.root}: without consume queues the topics with markers are unknown:"
                " build them again (rocketbed store rebuild)"
            )
        topics = {marker_topic(job): job for job in jobs_of(sorted(known_topics(replica)))}
        with_more_queues = {topic for topic, queue in directory.queues if queue}
        bodies: dict[str, list[bytes]] = {}
        scan_starts: dict[str, int] = {}
        for topic in topics.keys() - with_more_queues:
            bodies[topic], scan_starts[topic] = _markers_in_queue(directory, topic, end)
        for topic, markers in _markers_in_log(replica, end, scan_starts, options).items():
            if not bodies[topic] and (expired := markers[0][0]):
                warn_expired(topic, expired, replica.root)
            bodies[topic] += [body for _, body in markers]
        runs_by_job: dict[str, Runs | None] = dict.fromkeys(topics.values())
        for topic, topic_bodies in bodies.items():
            state = committed(topics[topic], topic_bodies)
            runs_by_job[topics[topic]] = None if state is None else state.runs()
        return runs_by_job
    finally:
        directory.close()


def _markers_in_queue(directory: StoreDirectory, topic: str, end: int) -> tuple[list[bytes], int]:
    """Return the bodies of the markers in a queue, and the log offset after the last of them.

    Stops where queue and log disagree. Raises `BadMarker` for a marker that cannot be read.
    """
    bodies: list[bytes] = []
    log, queue = directory.log, directory.queues.get((topic, 0))
    expired, scan_start = 0, log.min_offset
    for unit in queue.units() if queue is not None else ():
        if not 0 <= unit.offset < end or unit.slot != expired + len(bodies):
            break
        if not bodies and unit.offset < log.min_offset:
            expired = unit.slot + 1
            continue
        record = log.record_at(unit.offset, unit.size)
        body = unpack_body(record.body, record.sys_flag) if isinstance(record, Record) else None
        if body is None or not isinstance(record, Record) or judge_body_crc(record):
            raise _damaged(directory.root, topic, unit.offset)
        if (record.topic, record.queue_id, record.queue_offset) != (topic, 0, unit.slot):
            break
        bodies.append(body)
        scan_start = unit.offset + unit.size
    if expired:
        warn_expired(topic, expired, directory.root)
    return bodies, scan_start


def _markers_in_log(
    replica: Replica, end: int, scan_starts: Mapping[str, int], options: Options
) -> dict[str, list[tuple[int, bytes]]]:
    """Return the markers that the log has beyond the queues, by topic, with their queue offsets.

    A queue may have been synced later than the log, or be missing, without any sign of it.
    """
    markers: dict[str, list[tuple[int, bytes]]] = {}
    if not scan_starts:
        return markers
    # The limits of the user's read apply to its rows, not to the markers.
    marker_options = Options(
        topics=frozenset(scan_starts), fail_on_data_loss=options.fail_on_data_loss
    )
    start = min(scan_starts.values())
    for split in plan_splits([replica], start=start, end=end, is_aligned=True, durable=end):
        for batch in batches(split, _SCANNED, marker_options):
            rows = zip(*(batch.column(name).to_pylist() for name in _SCANNED), strict=True)
            for topic, offset, number, body, is_good in rows:
                if topic in scan_starts and offset >= scan_starts[topic]:
                    if not is_good or body is None:
                        raise _damaged(replica.root, topic, offset)
                    markers.setdefault(topic, []).append((number, body))
    for topic, topic_markers in markers.items():
        logger.warning(
            "%s: the queue of %s lacks %d markers, which its log has",
            replica.root,
            topic,
            len(topic_markers),
        )
    return markers


def _damaged(root: str, topic: str, offset: int) -> BadMarker:
    return BadMarker(f"{root}: the marker of {topic} at physical offset {offset} is damaged")


def _within(runs: Runs, topics: frozenset[str] | None) -> Runs:
    """Return the part of `runs` in these topics; everything if `topics` is None."""
    if topics is None:
        return runs
    result = Runs()
    for place, pairs in runs.items():
        if place.topic in topics:
            for first, count in pairs:
                result.add(place, first, count)
    return result
