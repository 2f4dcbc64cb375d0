"""`rocketbed pipeline tail`: messages as they are stored."""

import os
import sys
from pathlib import Path
from typing import Any

import click

from rocketbed.cli.interrupts import Interruptible
from rocketbed.cli.pipeline.options import job_options, settings_of, summary
from rocketbed.pipeline.jobs.common import run_job
from rocketbed.pipeline.jobs.tail.job import STARTS, TailOptions
from rocketbed.pipeline.jobs.tail.job import tail as tail_job
from rocketbed.pipeline.report import EXIT_INTERRUPTED, EXIT_USAGE


@click.command()
@job_options("store", "endpoints", "topics", "brokers", "clusters", "mode", "columns")
@click.option("--topic", multiple=True, help="Only this topic; repeatable.")
@click.option(
    "--from", "start", type=click.Choice(STARTS), default="latest", show_default=True,
    help="Where to start when there is no checkpoint.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Exit once everything stored now has been read.")
@click.option(
    "--checkpoint", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="Checkpoint directory for --out; default: _checkpoint in --out.",
)  # fmt: skip
@click.option(
    "--every", "every_s", type=click.FloatRange(min=0.0), metavar="SECONDS",
    help="Time between batches; default: 0.25 for lines, 10 for files.",
)  # fmt: skip
def tail(
    topic: tuple[str, ...],
    start: str,
    once: bool,
    checkpoint: Path | None,
    every_s: float | None,
    **common: Any,
) -> int:
    """Print messages as they are stored, one per line (--json: as JSON), or write them to --out.

    Stop it with Ctrl-C. The report goes to --report; standard output has only the messages.
    """
    settings = settings_of(common)
    options = TailOptions(
        topics=topic,
        start=start,
        once=once,
        as_json=settings.as_json,
        checkpoint=checkpoint,
        every_s=every_s,
    )
    with Interruptible():
        report = run_job("tail", settings, lambda job: tail_job(job, options, _write))
    if report.exit_code == EXIT_USAGE:
        raise click.UsageError(report.error)
    if report.exit_code == EXIT_INTERRUPTED:
        raise click.Abort
    if report.error:
        click.echo(f"rocketbed: {report.error}", err=True)
    click.echo(summary(report), err=True)
    return report.exit_code


def _write(line: str) -> None:
    """Print a line at once, for a program that reads the output."""
    try:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would fail on the remaining buffer once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise
