"""`replay`: sends a range of a cluster's messages again, into another cluster.

The log is read twice. The first read, without bodies, finds the queues, their ranges, and rows that
cannot be sent. The second read groups the messages by queue and sorts them, and the tasks send
them. A task has whole queues, which preserves their order. There are no more tasks than Spark runs
at once, since a task that waits for a slot would be late for all its messages.

The order across queues follows store times. Within a queue, the order of the queue takes
precedence: a message with an earlier store time than its predecessor (after a clock was set back)
is due at the same time as the predecessor.

Unless Spark has retries, a failed task is not repeated, and the messages that it sent stay. All
copies of a message carry the same id, derived from the job and its place in the replay, and
`RB_ORIGIN`, its id at the source.
"""

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from rocketbed.pipeline.errors import EXIT_FINDING, PipelineError
from rocketbed.pipeline.jobs.common import Job, WrongUsage
from rocketbed.pipeline.jobs.inputs import distinct_logs, note_inputs
from rocketbed.pipeline.jobs.replay.send import COLUMNS, RESULT, Pace, send_task
from rocketbed.pipeline.jobs.replay.target import (
    SYSTEM_TOPICS,
    SourceQueue,
    live_topics,
    matched,
    prepare_topics,
    refuse_same_brokers,
)
from rocketbed.pipeline.option_values import time_in_ms
from rocketbed.pipeline.sink.options import SinkOptions
from rocketbed.wire.message import INNER_BATCH

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import Column, DataFrame

    from rocketbed.wire.bodies import MessageQueue

MESSAGE_COLUMNS: Final = (
    "broker", "topic", "queue_id", "queue_offset", "physical_offset", "store_timestamp",
    "body_length", "sys_flag", "crc_ok",
)  # fmt: skip
SURVEY_COLUMNS: Final = (*MESSAGE_COLUMNS, "_corrupt")
"""Surveyed columns, and the one without which a read of topics or times skips bad ranges."""
SEND_COLUMNS: Final = (*MESSAGE_COLUMNS, "flag", "properties", "body")
QUEUE: Final = ("broker", "topic", "queue_id")
GOOD: Final = "good"
SKIPPED_KINDS: Final = {
    "system": "in topics of the cluster's own",
    "transaction": "prepared or rolled back",
}
"""Kinds of rows that are not sent and need not be."""
UNSENDABLE_KINDS: Final = {
    "unreadable": "places of the log that cannot be read",
    "damaged_batches": "records that hold several messages and are damaged",
    "wrong_crc": "messages with a wrong checksum",
    "empty": "messages without a body, which no client can send",
}
"""Kinds of rows that cannot be sent: findings."""
TRANSACTION_BITS: Final = 0xC
UNDONE: Final = (0x4, 0xC)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Options of `replay` beyond the common ones."""

    target: str
    """Name servers of the target cluster."""
    topics: tuple[str, ...] = ()
    """Topics to replay; empty for all user topics."""
    start: str = ""
    """Store time, inclusive: ISO 8601 or milliseconds since 1970."""
    end: str = ""
    """Store time, exclusive."""
    start_offset: int | None = None
    """Physical offset of the first record, of each broker's log."""
    end_offset: int | None = None
    """Physical offset after the last record."""
    speed: float | None = None
    """1.0: at the times of the source; 2.0: in half the time."""
    rate: float | None = None
    """Messages per second, of all tasks together."""
    create_topics: bool = False
    """Create topics that the target lacks."""
    retry_timeout_ms: int = 30_000
    """The replay ends if the target has not accepted a message after this time."""


def replay(job: Job, options: ReplayOptions) -> None:
    """Send the range once. Raises `PipelineError`, `WrongUsage`."""
    _check(job, options)
    sources = _sources(job, options)
    with job.phase("looking at the target"):
        if job.settings.endpoints:
            refuse_same_brokers(job.settings.endpoints, options.target)
        else:
            live_topics(options.target)  # fails if it cannot be reached
    job.spark  # noqa: B018 (its start is a phase of its own)
    with job.phase("surveying the range"):
        counts, queues = _survey(_records(job, sources, SURVEY_COLUMNS))
    if not queues:
        raise PipelineError("no messages to replay in this range")
    with job.phase("preparing topics"):
        writable = prepare_topics(options.target, queues, create=options.create_topics)
    targets = matched(queues, writable)
    tasks = deal([queue.messages for queue in queues], _slots(job))
    pace = pace_of(options, queues, tasks)
    with job.phase("sending"):
        records = _records(job, sources, SEND_COLUMNS)
        results = _send(job, options, records, list(zip(queues, targets, tasks, strict=True)), pace)
    _fill_report(job, counts, queues, targets, results)


def deal(sizes: Sequence[int], count: int) -> list[int]:
    """Assign queues to at most `count` tasks with about equally many messages."""
    loads = [0] * max(1, min(count, len(sizes)))
    tasks = [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda queue: -sizes[queue]):
        tasks[number] = loads.index(min(loads))
        loads[tasks[number]] += sizes[number]
    return tasks


def pace_of(options: ReplayOptions, queues: Sequence[SourceQueue], tasks: Sequence[int]) -> Pace:
    """Return the pace; a rate is divided so that all tasks end together."""
    first_ms = min(queue.first_ms for queue in queues)
    rates: tuple[float, ...] = ()
    if options.rate:
        loads = [0] * (max(tasks) + 1)
        for queue, task in zip(queues, tasks, strict=True):
            loads[task] += queue.messages
        rates = tuple(options.rate * load / sum(loads) for load in loads)
    return Pace(speed=options.speed or 0.0, first_ms=first_ms, rates=rates)


def _check(job: Job, options: ReplayOptions) -> None:
    """Raise `WrongUsage` for invalid options."""
    job.settings.source_options()
    if options.speed is not None and options.rate is not None:
        raise WrongUsage("--speed and --rate cannot be combined: give one of them")
    for name, value in (("--speed", options.speed), ("--rate", options.rate)):
        if value is not None and not 0 < value < float("inf"):
            raise WrongUsage(f"{name} must be positive, not {value:g}")
    for name, text in (("--start", options.start), ("--end", options.end)):
        try:
            time_in_ms(text or "0")
        except ValueError as error:
            raise WrongUsage(f"{name} {text!r}: expected {error}") from error
    if wrong := [topic for topic in options.topics if topic.startswith(SYSTEM_TOPICS)]:
        raise WrongUsage(
            f"topic {wrong[0]} is a system topic of its cluster and cannot be replayed"
        )


def _sources(job: Job, options: ReplayOptions) -> list[dict[str, str]]:
    """Return the options to read each broker's log. Raises `PipelineError`, `WrongUsage`."""
    common = {"mode": job.settings.mode}
    times = (("startTimestamp", options.start), ("endTimestamp", options.end))
    common |= {name: text for name, text in times if text}
    if options.start_offset is not None:
        common["startOffset"] = str(options.start_offset)
    if options.topics:
        common["topics"] = ",".join(options.topics)
    if job.settings.endpoints:
        topics = options.topics or live_topics(job.settings.endpoints)
        if not topics:
            raise PipelineError(f"{job.settings.endpoints} has only system topics")
        job.report.inputs.append({"endpoints": job.settings.endpoints, "topics": list(topics)})
        if options.end_offset is not None:
            common["endOffset"] = str(options.end_offset)
        return [common | {"endpoints": job.settings.endpoints, "topics": ",".join(topics)}]
    logs = distinct_logs(job.settings)
    note_inputs(job.report, logs)
    sources = []
    for log in logs:
        end = log.end if options.end_offset is None else min(options.end_offset, log.end)
        if (options.start_offset or 0) < end:
            sources.append(common | log.replicas[0].source | {"endOffset": str(end)})
    if not sources:
        raise PipelineError("the logs end before --start-offset: no messages to replay")
    return sources


def _records(job: Job, sources: Sequence[dict[str, str]], columns: Sequence[str]) -> "DataFrame":
    """Return the rows of all sources, with the column `kind`."""
    from pyspark.sql import functions as f

    from rocketbed.pipeline.schema import records_ddl

    reader = job.spark.read.format("rocketbed").schema(records_ddl(columns))
    frames = [reader.options(**source).load() for source in sources]
    whole: DataFrame = reduce(lambda table, frame: table.unionAll(frame), frames)
    return whole.withColumn("kind", _kind(f.col("topic")))


def _kind(topic: "Column") -> "Column":
    """Column with the reason why a row is not sent, or `good`."""
    from pyspark.sql import functions as f

    flags = f.col("sys_flag")
    is_system = reduce(
        lambda condition, term: condition | term, (topic.startswith(name) for name in SYSTEM_TOPICS)
    )
    return (
        f.when(topic.isNull(), "unreadable")
        .when(is_system, "system")
        .when(flags.bitwiseAND(TRANSACTION_BITS).isin(*UNDONE), "transaction")
        # Records that were unpacked no longer have the bit.
        .when(flags.bitwiseAND(INNER_BATCH) != 0, "damaged_batches")
        .when(f.col("crc_ok") == f.lit(False), "wrong_crc")
        .when(f.col("body_length") == 0, "empty")
        .otherwise(GOOD)
    )


def _survey(records: "DataFrame") -> tuple[dict[str, int], list[SourceQueue]]:
    """Return the number of rows by kind, and the ranges of queues to send."""
    from pyspark.sql import functions as f

    stored_ms = f.unix_millis("store_timestamp")
    last = f.struct("queue_offset", "physical_offset", stored_ms.alias("ms"))
    rows = (
        records.groupBy("kind", *QUEUE)
        .agg(
            f.count("*").alias("messages"),
            f.sum("body_length").alias("bytes"),
            f.min("queue_offset").alias("first_offset"),
            f.min(stored_ms).alias("first_ms"),
            f.max(stored_ms).alias("last_ms"),
            f.max(last).alias("last"),
        )
        .collect()
    )
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.kind] = counts.get(row.kind, 0) + row.messages
    queues = [
        SourceQueue(
            **{name: row[name] for name in (*QUEUE, "messages", "bytes", "first_offset")},
            first_ms=row.first_ms,
            last_ms=row.last_ms,
            last_offset=row["last"].queue_offset,
            last_position=row["last"].physical_offset,
            last_stored_ms=row["last"].ms,
        )
        for row in rows
        if row.kind == GOOD
    ]
    return counts, sorted(queues, key=lambda queue: (queue.broker, queue.topic, queue.queue_id))


def _send(
    job: Job,
    options: ReplayOptions,
    records: "DataFrame",
    plan: "list[tuple[SourceQueue, MessageQueue, int]]",
    pace: Pace,
) -> list[dict[str, Any]]:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    ways = job.spark.createDataFrame(
        [
            (
                *(getattr(queue, name) for name in QUEUE),
                queue.first_offset,
                queue.last_offset,
                target.broker_name,
                target.queue_id,
                task,
            )
            for queue, target, task in plan
        ],
        "broker string, topic string, queue_id int, first_offset long, last_offset long,"
        " target_broker string, target_queue int, task int",
    )
    offset = f.col("queue_offset")
    rows = records.where(f.col("kind") == GOOD).join(f.broadcast(ways), list(QUEUE))
    rows = rows.where(offset.between(f.col("first_offset"), f.col("last_offset")))
    rows = rows.repartitionById(max(task for _, _, task in plan) + 1, "task")
    queue = Window.partitionBy("task", *QUEUE).orderBy("queue_offset")
    so_far = queue.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    rows = rows.withColumn("due_ms", f.max(f.unix_millis("store_timestamp")).over(so_far))
    rows = rows.sortWithinPartitions("due_ms", *QUEUE, "queue_offset")
    rows = rows.withColumn("origin", f.concat_ws("/", *QUEUE, "queue_offset"))
    rows = rows.withColumns({"broker": f.col("target_broker"), "queue_id": f.col("target_queue")})
    sink = SinkOptions(
        endpoints=options.target,
        job=f"replay-{uuid.uuid4().hex}",
        retry_timeout_ms=options.retry_timeout_ms,
    )
    job.report.counts["job_id"] = sink.job
    task = _task(sink, pace)
    ran = rows.select("due_ms", "origin", *COLUMNS).mapInArrow(task, RESULT, barrier=pace.speed > 0)
    try:
        return [json.loads(row.text) for row in ran.collect()]
    except BaseException:
        job.report.notes.append(
            f"messages sent before it ended remain in the target; their ids begin with {sink.job}"
        )
        raise


def _task(sink: SinkOptions, pace: Pace) -> Any:
    """Return the function of a task, which is imported where it runs."""

    def run(batches: "Iterator[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
        return send_task(batches, sink, pace)

    return run


def _slots(job: Job) -> int:
    """Return the number of concurrent tasks; 1 over Connect, where it is unknown."""
    try:
        return int(job.spark.sparkContext.defaultParallelism)
    except Exception:
        return 1


def _fill_report(
    job: Job,
    counts: dict[str, int],
    queues: Sequence[SourceQueue],
    targets: "Sequence[MessageQueue]",
    results: Sequence[dict[str, Any]],
) -> None:
    report = job.report
    places = merged_places(results)
    surveyed = sum(queue.messages for queue in queues)
    sent = sum(result["rows"] for result in results)
    report.counts |= {
        "messages": sent,
        "bytes": sum(result.get("bytes", 0) for result in results),
        "queues": len(queues),
        "target_queues": len(places),
        "tasks": len(results),
        "repeated_requests": sum(result.get("retries", 0) for result in results),
        "perhaps_twice": sum(result.get("doubtful", 0) for result in results),
        "late_ms_max": max((result.get("late_ms_max", 0) for result in results), default=0),
    }
    for queue, target in zip(queues, targets, strict=True):
        place = (queue.topic, target.broker_name, target.queue_id)
        report.inputs.append(
            {
                **{name: getattr(queue, name) for name in QUEUE},
                "messages": queue.messages,
                "first_offset": queue.first_offset,
                "last_offset": queue.last_offset,
                "first_ms": queue.first_ms,
                "last_ms": queue.last_ms,
                "target": places.get(place),
            }
        )
    for kind, title in SKIPPED_KINDS.items():
        if counts.get(kind):
            report.notes.append(f"{counts[kind]} messages {title} were skipped")
    missing = {"missing": surveyed - sent} if sent != surveyed else {}
    titles = UNSENDABLE_KINDS | {
        "missing": "messages that were there at first and gone when it was sent"
    }
    for kind, count in (counts | missing).items():
        if kind in titles:
            report.exit_code = EXIT_FINDING
            title = f"{titles[kind]}; they were not sent"
            report.findings.append({"id": kind, "title": title, "count": count})


def merged_places(results: Sequence[dict[str, Any]]) -> dict[tuple[str, str, int], dict[str, Any]]:
    """Merge the tasks' results into the offset ranges of the target's queues."""
    places: dict[tuple[str, str, int], dict[str, Any]] = {}
    for result in results:
        for topic, broker, queue_id, first, last, count in result.get("places", ()):
            place = places.setdefault(
                (topic, broker, queue_id),
                {"broker": broker, "queue_id": queue_id, "first_offset": first, "messages": 0},
            )
            place["first_offset"] = min(place["first_offset"], first)
            place["last_offset"] = max(place.get("last_offset", last), last)
            place["messages"] += count
    return places
