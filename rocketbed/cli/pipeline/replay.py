"""`rocketbed pipeline replay`: replay messages of one cluster into another."""

from typing import Any

import click

from rocketbed.cli.pipeline.options import do_job, job_options, settings_of
from rocketbed.pipeline.jobs.replay.job import ReplayOptions
from rocketbed.pipeline.jobs.replay.job import replay as replay_job

_TIME = "TIME"


@click.command()
@job_options("store", "endpoints", "mode")
@click.option(
    "--target", required=True, metavar="HOST:PORT,...", help="Nameservers of the target cluster."
)
@click.option("--topic", "topics", multiple=True, help="Only this topic; repeatable.")
@click.option(
    "--start",
    default="",
    metavar=_TIME,
    help="Stored at or after; ISO 8601 or milliseconds since the epoch.",
)
@click.option("--end", default="", metavar=_TIME, help="Stored before.")
@click.option(
    "--start-offset", type=click.IntRange(min=0), help="Start at this byte offset of the log."
)
@click.option(
    "--end-offset", type=click.IntRange(min=0), help="Stop at this byte offset of the log."
)
@click.option(
    "--speed", type=float, metavar="X",
    help="Keep the time between messages, X times as fast. Default: as fast as possible.",
)  # fmt: skip
@click.option("--rate", type=float, metavar="N", help="Send at most N messages a second.")
@click.option("--create-topics", is_flag=True, help="Create topics that the target lacks.")
def replay(**keywords: Any) -> int:
    """Send a range of messages, from stores or a live cluster, into another live cluster.

    Each queue keeps its order. Each message gets a new id; RB_ORIGIN holds the old one.
    """
    settings = settings_of(keywords)
    options = ReplayOptions(**keywords)
    return do_job("replay", settings, lambda job: replay_job(job, options))
