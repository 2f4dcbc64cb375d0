"""`rocketbed chaos doctor`: try which faults this machine supports."""

import click

from rocketbed.chaos.doctor.report import doctor_rows, render_json, render_table
from rocketbed.host.janitor.record import sweep


@click.command()
@click.argument("names", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--strict", is_flag=True, help="Exit with 5 when something is broken or absent.")
@click.option(
    "--sweep", "do_sweep", is_flag=True, help="First remove what killed runs left behind."
)
def doctor(names: tuple[str, ...], as_json: bool, strict: bool, do_sweep: bool) -> int:
    """Try each fault on this machine for about a second: works, broken or absent, and why."""
    if do_sweep:
        for swept in sweep():
            for thing in swept.removed:
                click.echo(f"removed {thing}", err=True)
            for thing in swept.not_removed:
                click.echo(f"left {thing}", err=True)
    try:
        rows = doctor_rows(names or None)
    except (KeyError, ValueError) as exc:
        raise click.UsageError(str(exc)) from exc
    click.echo(render_json(rows) if as_json else render_table(rows))
    if any(row.state == "broken" for row in rows):
        return 5 if strict else 1
    return 5 if strict and not all(row.works for row in rows) else 0
