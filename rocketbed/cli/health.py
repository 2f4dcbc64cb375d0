"""`rocketbed health` among the other commands: its help and its usage errors."""

import click

from rocketbed.cli import probe


@click.command()
@click.argument("address", metavar="HOST:PORT")
@click.option(
    "--live",
    is_flag=True,
    help="Only check that it answers or closes the connection: to restart a process that hangs.",
)
def health(address: str, live: bool) -> int:
    """Ask the server at HOST:PORT if clients can use it: exits with 0 if so, else with 1.

    If not, it prints the reason on one line. A nameserver is ready when it answers. A broker is
    ready when it is registered at a nameserver and its disk can be written; a master that waits for
    slaves, when enough of them follow (inSyncReplicas); a slave, when it follows its master. Damage
    that the scrub has found is reported, but does not make it unready.
    """
    try:
        probe.parse(address)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    return probe.check(address, live=live)
