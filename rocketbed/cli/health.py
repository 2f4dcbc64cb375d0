"""`rocketbed health`: whether a member serves, for health checks of containers and scripts."""

from __future__ import annotations

from typing import Final

import click

from rocketbed.cli.client import run

EXIT_NOT_SERVING: Final = 1
TIMEOUT_S: Final = 3.0


@click.command()
@click.argument("address", metavar="HOST:PORT")
@click.option(
    "-n",
    "--nameservers",
    metavar="HOST:PORT[;...]",
    help="It is a node: each of these that answers has to know it, and one has to answer.",
)
def health(address: str, nameservers: str | None) -> int:
    """Ask the member at HOST:PORT whether it serves: 0 if it does, 1 with the reason if not.

    A nameserver serves when it answers. A node serves when it answers and, with -n, when clients
    that ask a nameserver are sent to it.
    """
    reason = run(lambda: _missing(address, nameservers))
    click.echo(f"{address} serves" if reason is None else f"{address} does not serve: {reason}")
    return 0 if reason is None else EXIT_NOT_SERVING


async def _missing(address: str, nameservers: str | None) -> str | None:
    """What is missing; None when it serves."""
    from rocketbed.client.admin import Admin
    from rocketbed.client.errors import ClientError
    from rocketbed.remoting.errors import RemotingError
    from rocketbed.world.real import real_world

    world = real_world("health")
    failures = []
    try:
        if nameservers is None:
            async with Admin(world, nameservers=address, timeout_s=TIMEOUT_S) as admin:
                await admin.cluster()
            return None
        async with Admin(world, nameservers=nameservers, timeout_s=TIMEOUT_S) as admin:
            info = await admin.runtime_info(address)
    except (ClientError, RemotingError) as exc:
        return str(exc)
    answers = 0
    for one in nameservers.split(";"):
        async with Admin(world, nameservers=one, timeout_s=TIMEOUT_S) as admin:
            try:
                table = (await admin.cluster()).broker_addr_table
            except (ClientError, RemotingError):
                continue
        answers += 1
        known = {port for broker in table.values() for port in broker.broker_addrs.values()}
        if address not in known:
            failures.append(f"{one} does not know it")
    if not info or not answers:
        return "no nameserver answers"
    return "; ".join(failures) or None
