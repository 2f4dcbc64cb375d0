"""`rocketbed pipeline export`: stored messages as Parquet."""

from typing import Any

import click

from rocketbed.cli.pipeline.options import do_job, job_options, settings_of
from rocketbed.pipeline.jobs.export import RECORDS_PER_FILE, ExportOptions
from rocketbed.pipeline.jobs.export import export as export_job


@click.command()
@job_options("store", "mode", "columns")
@click.option("--topic", multiple=True, help="Only this topic; repeatable.")
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
    "--compression",
    type=click.Choice(["zstd", "snappy", "gzip", "none"]),
    default="zstd",
    show_default=True,
)
def export(
    topic: tuple[str, ...], compact: bool, records_per_file: int, compression: str, **common: Any
) -> int:
    """Export stored messages as Parquet, by topic and date; a second run adds new messages."""
    settings = settings_of(common)
    options = ExportOptions(
        topics=topic,
        compact=compact,
        records_per_file=records_per_file,
        compression=compression,
    )
    return do_job("export", settings, lambda job: export_job(job, options))
