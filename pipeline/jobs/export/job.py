"""`export`: stored messages in any format of Spark's, partitioned, with a manifest.

    OUT/_rocketbed_manifest.json                    the complete parts: ranges, rows, files
    OUT/part=<broker>-<start>-<end>/topic=T/date=D/*.parquet

A part is a range of a broker's log, in bytes, or of all queues of a live cluster. A second run adds
only new messages; without any it changes nothing. The messages of a range never change, so neither
does a part. `manifest` describes what a killed run leaves.
"""

from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from rocketbed.pipeline.errors import EXIT_FINDING, PipelineError
from rocketbed.pipeline.jobs.common import Job, WrongUsage
from rocketbed.pipeline.jobs.export.manifest import Manifest, Part
from rocketbed.pipeline.jobs.export.new import NewPart, new_log_parts, new_queue_parts
from rocketbed.pipeline.jobs.export.place import Place
from rocketbed.pipeline.jobs.export.writing import (
    Form,
    exported_columns,
    partition_names,
    write_part,
)
from rocketbed.pipeline.jobs.inputs import distinct_logs, note_inputs
from rocketbed.pipeline.jobs.shared import check_shared


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Options of `export` beyond the common ones."""

    topics: tuple[str, ...] = ()
    """Topics to export; empty for all, or those of the settings' pattern."""
    out: str = ""
    """Output directory, with a scheme if it is remote; empty for the settings' directory."""
    form: Form = field(default_factory=Form)


def export(job: Job, options: ExportOptions) -> None:
    """Export the new messages. Raises `PipelineError`, `WrongUsage`."""
    settings = job.settings
    out = options.out or str(settings.out or "")
    if not out:
        raise WrongUsage("no output: give --out DIR")
    form = replace(
        options.form,
        columns=exported_columns(settings.columns),
        partition_by=partition_names(options.form.partition_by),
    )
    form.check()
    topics = settings.topic_options(options.topics)
    settings.source_options()
    logs = [] if settings.endpoints else distinct_logs(settings)
    note_inputs(job.report, logs)
    for finding in job.report.findings:
        if finding["id"] == "misnamed":
            raise PipelineError(
                f"{finding['title']}: rename it first, what is behind counts as done"
            )
    roots = [replica.replica.root for log in logs for replica in log.replicas]
    place = Place.of(out, settings.file_systems(out), roots)
    export_settings = {
        "columns": list(form.columns),
        "topics": list(options.topics),
        "topics_pattern": settings.topics_pattern,
        "brokers": settings.brokers,
        "clusters": settings.clusters,
        "mode": settings.mode,
        "format_of_files": form.format,
        "partition_by": list(form.partition_by),
        "source": "queues" if settings.endpoints else "logs",
    }
    parts: list[Part] = []
    job.until_closed(place.locked())
    manifest = Manifest(place, export_settings)
    if settings.endpoints:
        news = new_queue_parts(job, manifest, options.topics)
    else:
        news = new_log_parts(job, manifest, logs)
    with closing(news):
        for new in news:
            _export(job, form, place, manifest, new, topics)
            parts.append(new.part)
    _fill_report(job, parts, manifest)


def _export(
    job: Job, form: Form, place: Place, manifest: Manifest, new: NewPart, topics: dict[str, str]
) -> None:
    part = new.part
    job.spark  # noqa: B018 (its start is a phase of its own)
    if place.is_local:
        check_shared(job, place.path)
    manifest.begin(part)
    half = Path(place.at(part.name)) if place.is_local and form.is_of_files else None
    with job.phase(f"exporting {new.label}"):
        if half is not None:
            job.half_made(half)
        write_part(job, form, place, new, topics)
        if half is not None:
            job.keep(half)
    manifest.end(part)


def _fill_report(job: Job, parts: list[Part], manifest: Manifest) -> None:
    report = job.report
    report.counts |= {
        "rows": sum(part.rows for part in parts),
        "parts": len(parts),
        "files": sum(len(part.files) for part in parts),
        "bytes": sum(file["bytes"] for part in parts for file in part.files),
        "rows_in_all": sum(part.rows for part in manifest.parts),
    }
    for part in manifest.pending:
        report.notes.append(f"{part.name} is only half written: its log is not among these stores")
    written = {part.name for part in parts}
    sizes = manifest.place.sizes() if manifest.parts[len(parts) :] else {}
    for old in manifest.parts:
        lost = [file for file in old.files if sizes.get(str(file["path"])) != file["bytes"]]
        if lost and old.name not in written:
            title = (
                f"{len(lost)} files of {old.name} are not there as they were written, as"
                f" {lost[0]['path']}: put them back, or export all to another place"
            )
            report.findings.append({"id": "lost_files", "title": title, "count": len(lost)})
            report.exit_code = EXIT_FINDING
        if old.malformed and old.name not in written:
            title = f"{old.name} lacks {old.malformed} records that could not be read then"
            report.findings.append({"id": "incomplete", "title": title, "count": 1})
            report.exit_code = EXIT_FINDING
    for part in parts:
        for finding, count in (("malformed", part.malformed), ("wrong_crc", part.wrong_crc)):
            if count:
                kind = "cannot be read"
                if finding == "wrong_crc":
                    kind = "have a wrong checksum, or several messages that cannot be unpacked"
                where = f"{part.broker} between {part.start} and {part.end}"
                title = f"{count} records of {where if part.broker else part.name} {kind}"
                report.findings.append({"id": finding, "title": title, "count": count})
                report.exit_code = EXIT_FINDING
