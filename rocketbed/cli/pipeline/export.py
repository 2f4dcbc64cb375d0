"""`rocketbed pipeline export`: stored messages as Parquet."""

from typing import Any

import click

from rocketbed.cli.pipeline.options import do_job, job_options, settings_of
from rocketbed.pipeline.jobs.export import RECORDS_PER_FILE, ExportOptions
from rocketbed.pipeline.jobs.export import export as export_job


@click.command()
@job_options("store", "mode", "columns")
@click.option("--topic", multiple=True, help="Only this topic; again for more.")
@click.option("--compact", is_flag=True, help="Fewer files, for a shuffle of all rows.")
@click.option(
    "--records-per-file",
    type=click.IntRange(min=1),
    default=RECORDS_PER_FILE,
    show_default=True,
    help="Most rows of one file.",
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
    """Write the messages of stores as Parquet, by topic and date; again for what came since."""
    settings = settings_of(common)
    options = ExportOptions(
        topics=topic,
        compact=compact,
        records_per_file=records_per_file,
        compression=compression,
    )
    return do_job("export", settings, lambda job: export_job(job, options))
