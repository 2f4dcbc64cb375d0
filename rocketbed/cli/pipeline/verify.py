"""`rocketbed pipeline verify`: histories against replicas, replicas against each other."""

from pathlib import Path
from typing import Any

import click

from rocketbed.cli.pipeline.options import do_job, job_options, settings_of
from rocketbed.pipeline.jobs.verify.job import VerifyOptions
from rocketbed.pipeline.jobs.verify.job import verify as verify_job

_FILE = click.Path(dir_okay=False, exists=True, path_type=Path)


@click.command()
@job_options("store")
@click.option(
    "--run",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    metavar="DIR",
    help="A run of the testbed, instead of --store and --history.",
)
@click.option(
    "--history",
    multiple=True,
    type=_FILE,
    metavar="FILE",
    help="What clients were told: the testbed's, JSON lines, Arrow or Parquet; again for more.",
)
@click.option(
    "--requirement", type=_FILE, metavar="FILE", help="What may be gone, as the testbed judges."
)
@click.option(
    "--copies",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How many replicas have to hold an acknowledged message.",
)
@click.option(
    "--leader",
    multiple=True,
    metavar="BROKER=REPLICA",
    help="Whose log counts; else the longest one.",
)
@click.option("--ordered-topic", multiple=True, help="A topic whose order readers rely on.")
@click.option("--no-queues", is_flag=True, help="Leave the consume queues out.")
def verify(
    run: Path | None,
    history: tuple[Path, ...],
    requirement: Path | None,
    copies: int,
    leader: tuple[str, ...],
    ordered_topic: tuple[str, ...],
    no_queues: bool,
    **common: Any,
) -> int:
    """Check what was acknowledged against every replica, and replicas against each other."""
    settings = settings_of(common)
    if run is not None and (settings.stores or history):
        raise click.UsageError("--run names its stores and history: leave --store, --history out")
    options = VerifyOptions(
        run=run,
        histories=history,
        requirement=requirement,
        copies=copies,
        leaders=dict(_leader(text) for text in leader),
        ordered_topics=ordered_topic,
        queues=not no_queues,
    )
    return do_job("verify", settings, lambda job: verify_job(job, options))


def _leader(text: str) -> tuple[str, str]:
    broker, equals, replica = text.partition("=")
    if not (broker and equals and replica):
        raise click.UsageError(f"--leader wants BROKER=REPLICA, got {text!r}")
    return broker, replica
