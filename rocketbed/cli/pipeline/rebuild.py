"""`rocketbed pipeline rebuild`: consume queues and index files from the log."""

from pathlib import Path
from typing import Any

import click

from rocketbed.cli.pipeline.options import do_job, job_options, settings_of
from rocketbed.inspect.config import read_properties
from rocketbed.pipeline.jobs.rebuild.job import SPLIT_BYTES, RebuildOptions
from rocketbed.pipeline.jobs.rebuild.job import rebuild as rebuild_job
from rocketbed.pipeline.option_values import size_in_bytes


@click.command()
@job_options("store")
@click.option("--force", is_flag=True, help="Replace consume queues and index that exist in --out.")
@click.option(
    "--around-damage", is_flag=True, help="Build even from a damaged log, skipping the damage."
)
@click.option(
    "--split",
    "split_bytes",
    default=str(SPLIT_BYTES),
    metavar="BYTES",
    help="How many bytes of the log one task reads, e.g. 64m.",
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The broker's broker.conf, for settings that cannot be derived from the files.",
)
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override one such setting."
)
def rebuild(
    force: bool,
    around_damage: bool,
    split_bytes: str,
    config: Path | None,
    overrides: tuple[str, ...],
    **common: Any,
) -> int:
    """Rebuild consume queues and index files from a store's commit log, in parallel."""
    settings = settings_of(common)
    properties = {}
    if config is not None:
        properties = read_properties(config.read_text(encoding="utf-8-sig", errors="replace"))
    for text in overrides:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise click.UsageError(f"--set {text}: expected KEY=VALUE")
        properties[name.strip()] = value.strip()
    try:
        size = size_in_bytes(split_bytes)
    except ValueError as error:
        raise click.UsageError(f"--split: {error}") from error
    options = RebuildOptions(
        force=force, around_damage=around_damage, split_bytes=size, properties=properties
    )
    return do_job("rebuild", settings, lambda job: rebuild_job(job, options))
