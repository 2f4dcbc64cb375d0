"""`rocketbed pipeline verify`: compare histories with replicas, and replicas with each other."""

from pathlib import Path
from typing import Any

import click

from rocketbed.cli.pipeline.options import do_job, job_options, settings_of
from rocketbed.pipeline.jobs.verify.job import VerifyOptions
from rocketbed.pipeline.jobs.verify.job import verify as verify_job

_FILE = click.Path(dir_okay=False, exists=True, path_type=Path)


@click.command()
@job_options("store", "endpoints")
@click.option(
    "--run",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    metavar="DIR",
    help="Directory of a testbed run, instead of --store and --history.",
)
@click.option(
    "--history",
    multiple=True,
    type=_FILE,
    metavar="FILE",
    help="Client history: the testbed's, JSON lines, Arrow or Parquet; repeatable.",
)
@click.option(
    "--requirement",
    type=_FILE,
    metavar="FILE",
    help="The testbed's durability requirement: which messages may be lost.",
)
@click.option(
    "--copies",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How many replicas must hold an acknowledged message.",
)
@click.option(
    "--leader",
    multiple=True,
    metavar="BROKER=REPLICA",
    help="Replica whose log is authoritative; default: the longest log.",
)
@click.option("--ordered-topic", multiple=True, help="A topic whose order is checked; repeatable.")
@click.option("--no-queues", is_flag=True, help="Do not check the consume queues.")
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
    """Check acknowledged messages against every replica, and the replicas against each other."""
    settings = settings_of(common)
    if run is not None and (settings.stores or settings.endpoints or history):
        raise click.UsageError(
            "--run names stores and history: it excludes --store, --endpoints and --history"
        )
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
        raise click.UsageError(f"--leader {text}: expected BROKER=REPLICA")
    return broker, replica
