"""`rocketbed health` among the other commands: its help, and what is wrong usage."""

import click

from rocketbed.cli import probe


@click.command()
@click.argument("address", metavar="HOST:PORT")
@click.option(
    "--live",
    is_flag=True,
    help="Ask only whether it answers or turns us away: for what restarts a process that hangs.",
)
def health(address: str, live: bool) -> int:
    """Ask the server at HOST:PORT whether clients can use it: exits with 0 if so, else with 1.

    One line says why not. A nameserver is ready when it answers. A broker is ready when a
    nameserver has it registered and its disk can be written; a master that waits for slaves, when
    enough of them follow (inSyncReplicas); a slave, when it follows its master. Damage that the
    scrub has found is told, and does not make it unready.
    """
    try:
        probe.parse(address)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    return probe.check(address, live=live)
