"""`rocketbed pipeline retention`: use of a log's bytes, and what retention would remove."""

from typing import Any

import click

from rocketbed.cli.pipeline.options import do_job, job_options, settings_of
from rocketbed.pipeline.jobs.common import Job
from rocketbed.pipeline.jobs.retention.job import HOURS, RetentionOptions, retention_text
from rocketbed.pipeline.jobs.retention.job import retention as retention_job
from rocketbed.pipeline.option_values import time_in_ms


@click.command()
@job_options("store", "mode")
@click.option(
    "--hours",
    multiple=True,
    type=click.FloatRange(min=0),
    default=HOURS,
    show_default=True,
    help="A retention time to evaluate, in hours; repeatable.",
)
@click.option(
    "--now",
    metavar="TIME",
    help="Measure ages at this time: ISO 8601 or milliseconds since the epoch; default: now.",
)
@click.option("--no-keys", is_flag=True, help="Skip the estimate of what compaction would remove.")
def retention(hours: tuple[float, ...], now: str | None, no_keys: bool, **common: Any) -> int:
    """Report bytes by segment, day and topic, and how much retention or compaction would remove."""
    settings = settings_of(common)
    try:
        now_ms = None if now is None else time_in_ms(now)
    except ValueError as error:
        raise click.UsageError(f"--now: expected {error}") from error
    options = RetentionOptions(hours=hours, now_ms=now_ms, keys=not no_keys)
    tables: dict[str, list[dict[str, Any]]] = {}

    def work(job: Job) -> None:
        retention_job(job, options)
        tables.update(job.report.tables)

    code = do_job("retention", settings, work)
    if tables and not settings.as_json:
        click.echo(retention_text(tables))
    return code
