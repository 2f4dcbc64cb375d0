"""`rocketbed pipeline export`: stored messages in any format of Spark's."""

from typing import Any

import click

from rocketbed.cli.pipeline.options import do_job, job_options, settings_of
from rocketbed.pipeline.jobs.export.job import ExportOptions
from rocketbed.pipeline.jobs.export.job import export as export_job
from rocketbed.pipeline.jobs.export.writing import RECORDS_PER_FILE, Form


@click.command()
@job_options("store", "endpoints", "topics", "brokers", "clusters", "mode", "columns")
@click.option("--topic", multiple=True, help="Only this topic; repeatable.")
@click.option(
    "--format", "format_", metavar="NAME", default="parquet", show_default=True,
    help="A format of Spark's: parquet, orc, json, csv, and with their jars delta, iceberg, ...",
)  # fmt: skip
@click.option(
    "--partition-by", metavar="NAME,...", default="topic,date", show_default=True,
    help="Columns that directories are named after; '' for none.",
)  # fmt: skip
@click.option(
    "--compact", is_flag=True, help="Write fewer files, at the cost of a shuffle of all rows."
)
@click.option(
    "--records-per-file",
    type=click.IntRange(min=1),
    default=RECORDS_PER_FILE,
    show_default=True,
    help="Maximum number of rows in a file.",
)
@click.option(
    "--compression", metavar="CODEC", default="",
    help="Compression by Spark's name; default: zstd for parquet and orc, none for others.",
)  # fmt: skip
def export(
    topic: tuple[str, ...],
    format_: str,
    partition_by: str,
    compact: bool,
    records_per_file: int,
    compression: str,
    **common: Any,
) -> int:
    """Export stored messages, by topic and date; a second run adds new messages.

    --out may be any directory that Spark can write to, with its scheme: s3a://BUCKET/DIR.
    """
    out = common.pop("out") or ""
    settings = settings_of({**common, "out": None})
    names = tuple(name.strip() for name in partition_by.split(",") if name.strip())
    form = Form(
        format=format_,
        partition_by=names,
        compact=compact,
        records_per_file=records_per_file,
        compression=compression.strip().lower(),
    )
    options = ExportOptions(topics=topic, out=out, form=form)
    return do_job("export", settings, lambda job: export_job(job, options))
