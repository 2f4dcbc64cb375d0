"""`rocketbed pipeline stats`: statistics of segments, with which reads can skip segments."""

from typing import Any

import click

from rocketbed.cli.pipeline.options import do_job, job_options, settings_of
from rocketbed.pipeline.jobs.stats import stats as stats_job


@click.command()
@job_options("store")
def stats(**common: Any) -> int:
    """Read each segment once and store its statistics; a second run reads new segments.

    --out may have a scheme, s3a://BUCKET/DIR. Reads take it as the option stats.
    """
    out = common.pop("out") or ""
    settings = settings_of({**common, "out": None})
    return do_job("stats", settings, lambda job: stats_job(job, out))
