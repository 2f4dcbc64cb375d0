"""`export`: stored messages as Parquet, partitioned by topic and date, with a manifest.

    OUT/_rocketbed_manifest.json                    what is whole: ranges, rows, files
    OUT/part=<broker>-<start>-<end>/topic=T/date=D/*.parquet

A part is one range of one broker's log, in bytes. It is written beside (`_staging`), renamed, and
then entered in the manifest: files that the manifest does not name are not whole, so a reader other
than Spark's own writer log has to go by it. A second run adds only new messages; one that has
nothing to add changes nothing. The log up to its confirmed end never changes, so neither does a
part.
"""

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from rocketbed.pipeline.errors import EXIT_FINDING, PipelineError
from rocketbed.pipeline.jobs.common import Job, WrongUsage
from rocketbed.pipeline.jobs.inputs import BrokerLog, broker_logs, note_inputs
from rocketbed.pipeline.report import write_whole

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MANIFEST: Final = "_rocketbed_manifest.json"
LOCK: Final = "_rocketbed_lock"
STAGING: Final = "_staging"
FORMAT: Final = 1
RECORDS_PER_FILE: Final = 1_000_000
PARTITIONS: Final = ("topic", "date")
LEFT_OUT: Final = ("_corrupt", "headers")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Options of `export` beyond the common ones."""

    topics: tuple[str, ...] = ()
    """Only these; empty for all."""
    compact: bool = False
    """Bring each topic's day together first: a shuffle, for fewer files."""
    records_per_file: int = RECORDS_PER_FILE
    compression: str = "zstd"


@dataclass(slots=True)
class Part:
    """One range that was written whole."""

    name: str
    broker: str
    start: int
    end: int
    rows: int
    malformed: int
    """Places of the log that could not be read; they are not in the files."""
    wrong_crc: int
    """Rows whose body does not match its stored checksum; they are, with `crc_ok` false."""
    crc: int
    """Digest of the rows' positions and stored checksums, whatever their order."""
    mark: int = 0
    """Checksum of the log's last bytes before `end`, by which another log is known; 0: none."""
    files: list[dict[str, Any]] = field(default_factory=list)
    """`path` below OUT, `rows`, `bytes`."""


def export(job: Job, options: ExportOptions) -> None:
    """Write what is new. Raises `PipelineError`, `WrongUsage`."""
    out = job.settings.out
    if out is None:
        raise WrongUsage("no output: give --out DIR")
    logs = broker_logs(job.settings)
    note_inputs(job.report, logs)
    for finding in job.report.findings:
        if finding["id"] == "misnamed":
            raise PipelineError(
                f"{finding['title']}: mend this first, what is behind counts as done"
            )
    columns = exported_columns(job.settings.columns)
    asked = {"columns": list(columns), "topics": list(options.topics), "mode": job.settings.mode}
    with locked(out):
        manifest = open_manifest(out, asked)
        parts = [
            part
            for log in logs
            if (part := _export_broker(job, options, out, manifest, log, columns)) is not None
        ]
    _tell(job, parts, manifest)


def exported_columns(chosen: tuple[str, ...]) -> tuple[str, ...]:
    """The columns of the files: those chosen, or all. Raises `WrongUsage` for one that is not."""
    from rocketbed.pipeline.schema import RECORDS

    if unknown := [name for name in chosen if name not in RECORDS]:
        raise WrongUsage(f"unknown column {unknown[0]!r}; available columns: {', '.join(RECORDS)}")
    return chosen or tuple(name for name in RECORDS if name not in LEFT_OUT)


def open_manifest(out: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """The manifest of an earlier run, or a new one, which is written at once.

    Raises `WrongUsage` for a directory of something else, or of an export of other columns.
    """
    path = out / MANIFEST
    if not path.exists():
        if others := [entry.name for entry in out.iterdir() if entry.name != LOCK]:
            raise WrongUsage(
                f"{out} holds {others[0]} and no {MANIFEST}: give --out another, empty directory"
            )
        manifest: dict[str, Any] = {"format": FORMAT, **asked, "parts": []}
        _save(out, manifest)
        return manifest
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        known = {key: manifest[key] for key in asked}
        if manifest["format"] != FORMAT:
            raise ValueError(f"its format is {manifest['format']}")
    except (ValueError, KeyError, TypeError) as error:
        raise PipelineError(f"invalid manifest {path}: {error}; export to another --out") from error
    for key, value in asked.items():
        if known[key] != value:
            raise WrongUsage(
                f"{out} was exported with {key}={known[key]}, not {value}: give another --out"
            )
    return manifest


def next_range(manifest: dict[str, Any], log: BrokerLog) -> tuple[int, int] | None:
    """What of a broker's log is not exported yet, bytes; None: nothing.

    Raises `PipelineError` when the log ends before what was exported, or has other bytes there: it
    is another log.
    """
    from rocketbed.pipeline.streams.replicas import mark_at

    parts = [part for part in manifest["parts"] if part["broker"] == log.broker]
    last = max(parts, key=lambda part: int(part["end"]), default=None)
    start = max(log.start, last["end"] if last else 0)
    told = ""
    if last is not None and log.end < last["end"]:
        told = f"ends at {log.end}, and {last['end']} bytes of it were exported"
    elif last is not None and last.get("mark"):
        crc = mark_at(log.replicas[0].replica, last["end"]).crc
        if crc not in (0, last["mark"]):
            told = f"has other bytes before {last['end']} than those that were exported"
    if told:
        raise PipelineError(
            f"the log of {log.broker} {told}: this is another log, or one that lost its end; give"
            " another --out"
        )
    return (start, log.end) if start < log.end else None


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Nobody else exports to this directory. Raises `WrongUsage`, `PipelineError`."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        file = open(out / LOCK, "w")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise PipelineError(f"cannot write to {out}: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise WrongUsage(f"another export is writing to {out}") from error
        shutil.rmtree(out / STAGING, ignore_errors=True)
        yield


def _export_broker(
    job: Job,
    options: ExportOptions,
    out: Path,
    manifest: dict[str, Any],
    log: BrokerLog,
    columns: tuple[str, ...],
) -> Part | None:
    from rocketbed.pipeline.streams.replicas import mark_at

    wanted = next_range(manifest, log)
    if wanted is None:
        job.report.notes.append(f"{log.broker}: already exported up to {log.end}; nothing new")
        return None
    start, end = wanted
    _note_deleted(job, manifest, log, start)
    assert job.spark is not None  # started before the phase that it is not part of
    name = f"part={quote(log.broker, safe='')}-{start}-{end}"
    with job.phase(f"exporting {log.broker} {start} to {end}"):
        staging = job.staging(out / STAGING)
        part = _write(job, options, log, Part(name, log.broker, start, end, 0, 0, 0, 0), columns)
        part.files = _files(staging, name)
        part.mark = mark_at(log.replicas[0].replica, end).crc
        written = sum(file["rows"] for file in part.files)
        if written != part.rows:
            raise PipelineError(
                f"{staging} holds {written} rows and {part.rows} were read: run the export again"
            )
        shutil.rmtree(out / name, ignore_errors=True)  # of a run that ended before its entry
        staging.rename(out / name)
    manifest["parts"].append({key: getattr(part, key) for key in Part.__slots__})
    _save(out, manifest)
    return part


def _note_deleted(job: Job, manifest: dict[str, Any], log: BrokerLog, start: int) -> None:
    """A finding where the log lost what comes behind the last part before it was exported."""
    ends = [part["end"] for part in manifest["parts"] if part["broker"] == log.broker]
    if ends and max(ends) < start:
        title = f"{log.broker}: {max(ends)} to {start} were deleted before they were exported"
        job.report.findings.append({"id": "deleted", "title": title, "count": 1})
        job.report.exit_code = EXIT_FINDING


def _write(
    job: Job, options: ExportOptions, log: BrokerLog, part: Part, columns: tuple[str, ...]
) -> Part:
    """Let Spark write a range into the staging directory; the part with its counts."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    from rocketbed.pipeline.schema import records_ddl

    assert job.settings.out is not None
    needed = dict.fromkeys([*columns, "topic", "store_timestamp", "physical_offset", "body_crc"])
    needed |= dict.fromkeys(["crc_ok", "_corrupt"])
    reader = job.spark.read.format("rocketbed").schema(records_ddl(list(needed)))
    source = {
        **log.replicas[0].source,  # up to `end` they are all the same
        "startOffset": str(part.start),
        "endOffset": str(part.end),
        "mode": job.settings.mode,
    }
    if options.topics:
        source["topics"] = ",".join(options.topics)
    seen = Observation("export")
    unframed = f.col("topic").isNull()
    rows: DataFrame = reader.options(**source).load()
    rows = rows.observe(seen, *_measures(unframed)).where(~unframed)
    rows = rows.withColumn("date", f.to_date("store_timestamp"))
    rows = rows.select(*[name for name in columns if name not in PARTITIONS], *PARTITIONS)
    if options.compact:
        rows = rows.repartition(*PARTITIONS)
    writer = rows.write.mode("append").partitionBy(*PARTITIONS)
    writer = writer.option("maxRecordsPerFile", options.records_per_file)
    writer.option("compression", options.compression).parquet(str(job.settings.out / STAGING))
    counts = seen.get
    part.rows, part.malformed = counts["rows"], counts["malformed"]
    part.wrong_crc, part.crc = counts["wrong_crc"], counts["crc"] or 0
    return part


def _measures(unframed: "Column") -> "list[Column]":
    from pyspark.sql import functions as f

    return [
        f.count_if(~unframed).alias("rows"),
        f.count_if(unframed).alias("malformed"),
        f.count_if(~unframed & (f.col("crc_ok") == f.lit(False))).alias("wrong_crc"),
        f.bit_xor(f.when(~unframed, f.xxhash64("physical_offset", "body_crc"))).alias("crc"),
    ]


def _files(staging: Path, name: str) -> list[dict[str, Any]]:
    """What Spark wrote, with the rows of each file from its footer."""
    from pyarrow.parquet import read_metadata

    return [
        {
            "path": f"{name}/{path.relative_to(staging)}",
            "rows": read_metadata(path).num_rows,
            "bytes": path.stat().st_size,
        }
        for path in sorted(staging.rglob("*.parquet"))
    ]


def _save(out: Path, manifest: dict[str, Any]) -> None:
    write_whole(out / MANIFEST, json.dumps(manifest, indent=1) + "\n")


def _tell(job: Job, parts: list[Part], manifest: dict[str, Any]) -> None:
    report = job.report
    report.counts |= {
        "rows": sum(part.rows for part in parts),
        "parts": len(parts),
        "files": sum(len(part.files) for part in parts),
        "bytes": sum(file["bytes"] for part in parts for file in part.files),
        "rows_in_all": sum(part["rows"] for part in manifest["parts"]),
    }
    written = {part.name for part in parts}
    for old in manifest["parts"]:
        if old.get("malformed") and old["name"] not in written:
            title = f"{old['name']} lacks {old['malformed']} records that could not be read then"
            report.findings.append({"id": "incomplete", "title": title, "count": 1})
            report.exit_code = EXIT_FINDING
    for part in parts:
        for what, count in (("malformed", part.malformed), ("wrong_crc", part.wrong_crc)):
            if count:
                kind = "cannot be read" if what == "malformed" else "have a wrong checksum"
                title = f"{count} records of {part.broker} between {part.start} and {part.end}"
                report.findings.append({"id": what, "title": f"{title} {kind}", "count": count})
                report.exit_code = EXIT_FINDING
