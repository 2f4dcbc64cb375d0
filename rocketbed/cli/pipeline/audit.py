"""`rocketbed pipeline audit`: what went through a cluster."""

from typing import Any

import click

from rocketbed.cli.pipeline.options import do_job, job_options, settings_of
from rocketbed.pipeline.jobs.audit.job import AuditOptions
from rocketbed.pipeline.jobs.audit.job import audit as audit_job


@click.command()
@job_options("store", "mode")
@click.option("--topic", multiple=True, help="Only this topic; again for more.")
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="How many hot keys and tags.",
)
def audit(topic: tuple[str, ...], top: int, **common: Any) -> int:
    """Rates, sizes, latencies, balance of queues and hot keys: a page and CSV files in --out."""
    settings = settings_of(common)
    return do_job(
        "audit", settings, lambda job: audit_job(job, AuditOptions(topics=topic, top=top))
    )
