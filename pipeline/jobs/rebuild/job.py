"""`rebuild`: builds consume queues and index files from a log, in parallel.

    OUT/consumequeue/TOPIC/ID/*  OUT/batchconsumequeue/TOPIC/ID/*  OUT/index/*

The files equal those of `rocketbed store rebuild` byte for byte, by the same rules
(`rocketbed.inspect`). They also equal a broker's files, except for what the log does not contain:

* names of index files: a broker uses its clock at creation; here it is the store time of the first
  key.
* an index after an unclean stop: a broker discards its last files or dispatches some records again,
  so that file boundaries differ and keys can be stored twice. Here each key is stored once.
* units and keys that a killed broker had not written yet: they are included here.
* units and keys of records that retention has deleted: a broker's first files still have them; here
  such slots are pre-blank units.
* `consumequeue_ext` (bit maps of SQL filters): not created.

There are two passes. The first decodes splits of the log and writes runs of units and keys to
staging files; the second collects the runs of a file and writes it. So a task holds a single file
of a queue, or a run of keys and a slot table, however long the log is. The result is moved into
place once it is complete and synced.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow

from rocketbed.inspect import NotAStore, Settings, SettingsError, StoreDirectory, open_directory
from rocketbed.inspect.consumequeue import BATCH_UNIT, UNIT
from rocketbed.inspect.dispatch import Dispatcher, indexes_tags
from rocketbed.inspect.index import IndexLayout
from rocketbed.pipeline.errors import EXIT_FINDING, PipelineError
from rocketbed.pipeline.files.reading import read_ends
from rocketbed.pipeline.files.remote import need_local
from rocketbed.pipeline.files.splits import Split, plan_splits
from rocketbed.pipeline.jobs.common import Job, WrongUsage
from rocketbed.pipeline.jobs.inputs import BrokerLog, broker_logs, note_inputs
from rocketbed.pipeline.jobs.rebuild.blobs import (
    BATCH,
    DAMAGE,
    INDEX,
    QUEUE,
    RUN_DDL,
    SPLIT,
    BlobWriter,
    Run,
    batch_of,
    runs_of,
    table_of,
)
from rocketbed.pipeline.jobs.rebuild.dispatch import SplitDispatch
from rocketbed.pipeline.jobs.rebuild.files import (
    WRITTEN_DDL,
    Written,
    write_index_file,
    write_queue,
    write_queue_file,
    written_batch,
)
from rocketbed.pipeline.jobs.rebuild.place import (
    BLOBS,
    PARTS,
    STAGING,
    check_place,
    locked,
    named,
    put_in_place,
)
from rocketbed.pipeline.jobs.rebuild.plan import index_pieces, uneven_queues
from rocketbed.pipeline.jobs.shared import check_shared
from rocketbed.pipeline.session import configured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPLIT_BYTES: Final = 128 << 20
EXAMPLES: Final = 20
ODD: Final = {
    "refused": "records cannot have the queue offset that they say; they are in the index only",
    "corrected": "records say another queue offset than the one that their neighbours leave",
}
"""Kinds of records whose slot differs from their queue offset, with a sentence about them."""
UNCOMPILED: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildOptions:
    """Options of `rebuild` beyond the common ones."""

    force: bool = False
    """Replace an earlier result in OUT."""
    around_damage: bool = False
    """Build even if the log is damaged; damaged records are in no queue."""
    split_bytes: int = SPLIT_BYTES
    properties: dict[str, str] = field(default_factory=dict)
    """The broker's settings by RocketMQ's names, for sizes that the files do not reveal."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Settings of the store that the tasks need."""

    dispatcher: Dispatcher
    queue_segment: int
    batch_queue_segment: int
    layout: IndexLayout
    with_tags: bool
    """True if the index holds tags too, as RocketMQ 5.5.0's does."""
    staging: str


def rebuild(job: Job, options: RebuildOptions) -> None:
    """Build queues and index. Raises `PipelineError`, `WrongUsage`, `OSError`."""
    log, out = _log_and_output(job, options)
    note_inputs(job.report, [log])
    shape = _shape(log.replicas[0].replica.root, options.properties, str(out / STAGING))
    # Spark gets only a row for each run: compiling its queries would cost more than running them.
    with configured(job.spark, UNCOMPILED), locked(out):
        shutil.rmtree(out / STAGING, ignore_errors=True)  # from a killed run
        staging = job.staging(out / STAGING)
        (staging / BLOBS).mkdir()
        check_shared(job, staging)
        runs = first_pass(job.spark, _splits(log, options.split_bytes), shape).persist()
        try:
            files = _passes(job, options, log, runs, shape)
        finally:
            runs.unpersist()
        if files is not None:
            with job.phase("putting them in place"):
                files = named(staging, files)
                put_in_place(staging, out)
            _report_files(job, files)
        shutil.rmtree(staging)


def _passes(
    job: Job, options: RebuildOptions, log: BrokerLog, runs: "DataFrame", shape: Shape
) -> list[Written] | None:
    """Read the log and write the files; None if it is damaged and nothing was written."""
    with job.phase("reading the log"):
        reports = _collected(runs.where(f"kind NOT IN ('{QUEUE}', '{BATCH}')"), runs_of)
    _report_log(job, reports, log)
    if job.report.findings and not options.around_damage:
        job.report.notes.append(
            "the log is damaged, nothing was built: restore it from a replica, or skip the damage"
            " with --around-damage"
        )
        return None
    with job.phase("writing queues and index"):
        return _second_pass(job, runs, reports, shape)


def first_pass(spark: "SparkSession", splits: list[Split], shape: Shape) -> "DataFrame":
    """Return the runs of all splits, with a task for each split."""

    def work(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
        if not numbers:
            return
        with BlobWriter(os.path.join(shape.staging, BLOBS)) as blobs:
            for number in numbers:
                dispatch = SplitDispatch(
                    shape.dispatcher,
                    queue_segment=shape.queue_segment,
                    with_tags=shape.with_tags,
                    blobs=blobs,
                )
                yield batch_of(list(dispatch.run(splits[number])))

    count = len(splits)
    return spark.range(0, count, 1, max(1, count)).mapInArrow(work, RUN_DDL)


def write_runs(
    batches: Iterator[pyarrow.RecordBatch], shape: Shape, *, whole_queues: bool
) -> Iterator[pyarrow.RecordBatch]:
    """Write the files of a partition's runs, and yield their descriptions.

    The partition has all runs of a file (or queue) one after the other, in order.
    """
    sizes = {QUEUE: shape.queue_segment, BATCH: shape.batch_queue_segment}

    def key(run: Run) -> tuple[str, int]:
        return run.path, 0 if whole_queues else run.file

    for _, group in groupby((run for batch in batches for run in runs_of(batch)), key=key):
        runs = list(group)
        kind = runs[0].kind
        if kind == INDEX:
            files = [write_index_file(shape.staging, runs, shape.layout)]
        elif kind == BATCH or whole_queues:
            files = write_queue(shape.staging, runs, sizes[kind])
        else:
            files = [write_queue_file(shape.staging, runs, sizes[kind])]
        yield written_batch(files)


def _log_and_output(job: Job, options: RebuildOptions) -> tuple[BrokerLog, Path]:
    """Return the log and the output directory. Raises `WrongUsage`, `PipelineError`."""
    out = job.settings.out
    if out is None:
        raise WrongUsage("no output: give --out DIR")
    logs = broker_logs(job.settings)
    if len(logs) != 1 or len(logs[0].replicas) != 1:
        raise WrongUsage("rebuild reads one store: give --store once")
    need_local([logs[0].replicas[0].replica.root], "rebuild")
    check_place(out, Path(logs[0].replicas[0].replica.root), force=options.force)
    return logs[0], out


def _shape(root: str, properties: dict[str, str], staging: str) -> Shape:
    """Read the settings of the store. Raises `WrongUsage`, `PipelineError`."""
    try:
        directory = open_directory(root, Settings.from_properties(properties))
    except SettingsError as error:
        raise WrongUsage(str(error)) from error
    except NotAStore as error:
        raise PipelineError(str(error)) from error
    try:
        return _checked_shape(directory, staging)
    finally:
        directory.close()


def _checked_shape(directory: StoreDirectory, staging: str) -> Shape:
    """Return the settings of an open store. Raises `WrongUsage` for unknown or invalid sizes."""
    layout = directory.index_layout
    if layout is None:
        raise WrongUsage(
            "the layout of the index cannot be read off its files: give --set maxHashSlotNum=N"
            " and --set maxIndexNum=N, or --config broker.conf"
        )
    if layout.entries < 2:
        raise WrongUsage("an index file needs room for two entries: maxIndexNum is too small")
    own = os.path.join(directory.root, "commitlog")
    if any(os.path.dirname(segment.path) != own for segment in directory.log.segments):
        raise WrongUsage(
            "a log in several directories (storePathCommitLog) is not read here:"
            " rocketbed store rebuild does"
        )
    sizes = directory.sizes
    for size, unit in ((sizes.queue_segment, UNIT), (sizes.batch_queue_segment, BATCH_UNIT)):
        if size % unit.size or not size:
            raise WrongUsage(
                f"a queue file of {size} bytes is not a multiple of the entry size {unit.size}:"
                " give --set mappedFileSizeConsumeQueue=N, or for batch queues"
                " --set mapperFileSizeBatchConsumeQueue=N"
            )
    return Shape(
        Dispatcher(directory),
        sizes.queue_segment,
        sizes.batch_queue_segment,
        layout,
        indexes_tags(directory),
        staging,
    )


def _splits(log: BrokerLog, split_bytes: int) -> list[Split]:
    splits: list[Split] = []
    for replica, end in read_ends([log.replicas[0].replica], read_uncommitted=True):
        splits += plan_splits([replica], split_bytes=split_bytes, end=end)
    return splits


def _second_pass(job: Job, runs: "DataFrame", reports: list[Run], shape: Shape) -> list[Written]:
    """Write all files, and return their descriptions."""
    spark = job.spark
    pieces = index_pieces([run for run in reports if run.kind == INDEX], shape.layout)
    queues = runs.where(f"kind IN ('{QUEUE}', '{BATCH}')")
    all_runs = queues.unionByName(spark.createDataFrame(table_of(pieces))) if pieces else queues
    parts = max(int(spark.conf.get("spark.sql.shuffle.partitions") or 2), 2)
    files = _write(all_runs, ["path", "file"], parts, shape, whole_queues=False)
    plain = [file for file in files if file.path.startswith(PARTS[0])]
    uneven = uneven_queues(plain, shape.queue_segment // UNIT.size)
    if not uneven:
        return files
    even_files = [file for file in files if not _is_of(file, uneven)]
    repeated = queues.join(
        spark.createDataFrame([(path,) for path in uneven], "path string"), "path"
    )
    return even_files + _write(repeated, ["path"], parts, shape, whole_queues=True)


def _write(
    runs: "DataFrame", keys: list[str], parts: int, shape: Shape, *, whole_queues: bool
) -> list[Written]:
    grouped = runs.repartition(parts, *keys).sortWithinPartitions(*keys, "at", "blob", "position")
    work = partial(write_runs, shape=shape, whole_queues=whole_queues)
    return _collected(grouped.mapInArrow(lambda batches: work(batches), WRITTEN_DDL), _written)


def _written(batch: pyarrow.RecordBatch) -> list[Written]:
    return [Written(**row) for row in batch.to_pylist()]


def _is_of(file: Written, queues: set[str]) -> bool:
    return file.path in queues or file.path.rpartition("/")[0] in queues


def _collected(frame: "DataFrame", read: Callable[[pyarrow.RecordBatch], list[Any]]) -> list[Any]:
    return [row for batch in frame.toArrow().to_batches() for row in read(batch)]


def _report_log(job: Job, reports: list[Run], log: BrokerLog) -> None:
    """Enter the records that were read in the report, and the damage as a finding."""
    splits = [run for run in reports if run.kind == SPLIT]
    rows = [json.loads(run.text) for run in splits]
    left_out: dict[str, int] = {}
    for row in rows:
        for topic, count in row["left_out"].items():
            left_out[topic] = left_out.get(topic, 0) + count
    job.report.counts |= {"records": sum(run.items for run in splits), "log_end": log.end}
    if left_out:
        total = sum(left_out.values())
        job.report.counts["of_deleted_topics"] = total
        names = ", ".join(sorted(left_out)[:5])
        job.report.notes.append(f"{total} records of deleted topics are skipped: {names}")
    damaged = sum(row["damaged"] for row in rows)
    if damaged:
        damage_runs = sorted((run for run in reports if run.kind == DAMAGE), key=lambda run: run.at)
        examples = [
            {"text": f"{run.at} to {run.at + run.items}: {run.text}"}
            for run in damage_runs[:EXAMPLES]
        ]
        _add_finding(job, "damage", "places of the log are no records", damaged, examples)


def _report_files(job: Job, files: list[Written]) -> None:
    """Enter the written files in the report, and the records without a place in their queue."""
    odd = [json.loads(file.odd) for file in files if file.odd]
    written = [file for file in files if file.path]
    index = [file for file in written if file.path.startswith("index/")]
    queues = [file for file in written if not file.path.startswith("index/")]
    job.report.counts |= {
        "queues": len({file.path.rpartition("/")[0] for file in queues}),
        "queue_files": len(queues),
        "units": sum(file.entries for file in queues),
        "index_files": len(index),
        "index_entries": sum(file.entries for file in index),
    }
    job.report.files = [
        {"path": file.path, "entries": file.entries, "crc": f"{file.crc:08x}"} for file in written
    ]
    for name, title in ODD.items():
        if count := sum(row[name]["count"] for row in odd):
            texts = [text for row in odd for text in row[name]["first"]][:EXAMPLES]
            _add_finding(job, name, title, count, [{"text": text} for text in texts])


def _add_finding(
    job: Job, name: str, title: str, count: int, examples: list[dict[str, str]]
) -> None:
    job.report.findings.append({"id": name, "title": title, "count": count, "examples": examples})
    job.report.exit_code = EXIT_FINDING
