"""`rocketbed health`: whether a server is up, for health checks of containers and scripts."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import click
import trio

from rocketbed.cli.client import run
from rocketbed.remoting.client import parse_address

EXIT_NOT_SERVING: Final = 1
TIMEOUT_S: Final = 3.0


@click.command()
@click.argument("address", metavar="HOST:PORT")
@click.option(
    "-n",
    "--nameservers",
    metavar="HOST:PORT[;...]",
    help="A broker at HOST:PORT must be registered at each of these that answers.",
)
def health(address: str, nameservers: str | None) -> int:
    """Check that the server at HOST:PORT is serving: exits with 0 if so, else 1 with the reason.

    A nameserver serves when it answers. A broker serves when it answers, takes messages, and, with
    -n, is registered at the nameservers. Damage that its scrub has found is told on standard error.
    """
    try:
        parse_address(address)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    reason = run(lambda: _missing(address, nameservers))
    click.echo(f"{address} serves" if reason is None else f"{address} does not serve: {reason}")
    return 0 if reason is None else EXIT_NOT_SERVING


async def _missing(address: str, nameservers: str | None) -> str | None:
    """What is missing; None when it serves."""
    from rocketbed.client.admin import Admin
    from rocketbed.client.errors import BadMessage, ClientError, RequestRefused
    from rocketbed.remoting.errors import RemotingError
    from rocketbed.world.real import real_world

    world = real_world("health")
    in_time = trio.move_on_after(TIMEOUT_S)  # the client tries several times
    try:
        with in_time:
            async with Admin(world, nameservers=nameservers or address) as admin:
                if nameservers is None:
                    with suppress(RequestRefused):  # as nodes do
                        await admin.cluster()
                        return None
                info = await admin.runtime_info(address)
                if info.get("trouble"):
                    return f"it takes no messages: {info['trouble']}"
                if info.get("indexDamage"):
                    click.echo(
                        f"the index is damaged: {info['indexDamage']}; start the node again",
                        err=True,
                    )
                if info.get("damagedRanges"):
                    click.echo(
                        f"damage in the log, bytes {info['damagedRanges']}: heal it", err=True
                    )
    except BadMessage:
        raise
    except (ClientError, RemotingError) as exc:
        return str(exc)
    if in_time.cancelled_caught:
        return f"no answer within {TIMEOUT_S:g} s"
    if nameservers is None:
        return None
    known: dict[str, bool] = {}  # by nameserver that answers

    async def ask(one: str) -> None:
        async with Admin(world, nameservers=one) as admin:
            with trio.move_on_after(TIMEOUT_S), suppress(ClientError, RemotingError):
                table = (await admin.cluster()).broker_addr_table
                known[one] = any(
                    address in broker.broker_addrs.values() for broker in table.values()
                )

    asked = [one.strip() for one in nameservers.split(";") if one.strip()]
    async with trio.open_nursery() as nursery:  # at once: a health check has little time
        for one in asked:
            nursery.start_soon(ask, one)
    if not known:
        return "no nameserver answered"
    return (
        "; ".join(f"not registered at {one}" for one in asked if not known.get(one, True)) or None
    )
