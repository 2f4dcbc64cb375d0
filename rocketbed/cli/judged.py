"""Options of every command that judges a run: demo, chaos run, chaos replay."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def judged_options(
    *, report: str, report_help: str = "Directory of the report."
) -> Callable[[Command], Command]:
    """Add `--json`, `--explain` and `--report`."""

    def decorate(command: Command) -> Command:
        command = click.option(
            "--report",
            type=click.Path(file_okay=False, path_type=Path),
            default=Path(report),
            show_default=True,
            callback=_check_directory,
            help=report_help,
        )(command)
        command = click.option(
            "--explain", is_flag=True, help="Say why each check that does not apply does not."
        )(command)
        return click.option(
            "--json", "as_json", is_flag=True, help="Print the verdict as JSON on standard output."
        )(command)

    return decorate


def _check_directory(ctx: click.Context, param: click.Parameter, report: Path) -> Path:
    """Try to make the directory, so that a run does not end without a place for its report. What
    was made is removed again, as other options may be refused yet."""
    absent = [place for place in (report, *report.parents) if not place.exists()]
    try:
        report.mkdir(parents=True, exist_ok=True)
        for place in absent:
            place.rmdir()
    except OSError as exc:
        raise click.BadParameter(
            f"{exc.filename} cannot be made: {exc.strerror}: choose another directory", ctx, param
        ) from exc
    return report


def verify_option(command: Command) -> Command:
    """Add `--verify`."""
    return click.option(
        "--verify",
        type=click.Choice(["spark"]),
        help="Check each run a second time with `pipeline verify` on Spark; both must agree.",
    )(command)
