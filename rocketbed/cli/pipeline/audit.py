"""`rocketbed pipeline audit`: statistics of a cluster's messages."""

from typing import Any

import click

from rocketbed.cli.pipeline.options import do_job, job_options, settings_of
from rocketbed.pipeline.jobs.audit.job import AuditOptions
from rocketbed.pipeline.jobs.audit.job import audit as audit_job


@click.command()
@job_options("store", "endpoints", "topics", "brokers", "clusters", "mode")
@click.option("--topic", multiple=True, help="Only this topic; repeatable.")
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="How many hot keys and tags to report.",
)
def audit(topic: tuple[str, ...], top: int, **common: Any) -> int:
    """Report rates, sizes, latencies, queue balance and hot keys: a page and CSV files in --out."""
    settings = settings_of(common)
    return do_job(
        "audit", settings, lambda job: audit_job(job, AuditOptions(topics=topic, top=top))
    )
