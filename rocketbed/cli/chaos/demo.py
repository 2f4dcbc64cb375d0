"""`rocketbed chaos demo`: plant a bug, find it, make it small, report it."""

from pathlib import Path

import click

from rocketbed.chaos.mutants.mutant import StaleMutant
from rocketbed.chaos.mutants.show import show
from rocketbed.cli.chaos.run import tell_failure
from rocketbed.cli.interrupts import Interruptible


@click.command()
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True)
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True)
@click.option(
    "--report",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out/chaos-demo"),
    show_default=True,
    help="Directory of the report.",
)
def demo(seed: int, jobs: int, report: Path) -> int:
    """Plant a bug in a simulated node, find it, shrink the failing plan, and write the report.

    Exits with 0 when all of that worked, 1 when the bug was not found.
    """
    try:
        with Interruptible():
            page = show(report.absolute(), click.echo, seed=seed, jobs=jobs)
    except StaleMutant as exc:
        raise click.ClickException(str(exc)) from exc
    except OSError as exc:
        return tell_failure(exc, click.echo, as_json=False)
    except KeyboardInterrupt:
        raise click.Abort from None
    if page is None:
        return 1
    click.echo(f"report: {page}")
    return 0
