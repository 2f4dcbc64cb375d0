"""Opening connections to other processes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from rocketbed.remoting.connection import Connection
from rocketbed.remoting.errors import NotConnected
from rocketbed.remoting.handlers import Handlers
from rocketbed.world.api import Address, World

CONNECT_TIMEOUT_S: Final = 3.0
"""Time to connect, seconds; a client's default (wire.md 1.8)."""


async def dial(
    world: World,
    address: Address,
    handlers: Handlers | None = None,
    *,
    timeout_s: float = CONNECT_TIMEOUT_S,
) -> Connection:
    """Open a connection; the caller has to start its `run` in a nursery. Raises `NotConnected`."""
    host, port = address
    try:
        with trio.fail_after(timeout_s):
            stream = await world.network.connect(host, port)
    except OSError as exc:
        raise NotConnected(f"cannot connect to {host}:{port}: {exc.strerror or exc}") from exc
    except trio.TooSlowError as exc:
        raise NotConnected(f"cannot connect to {host}:{port} in {timeout_s:g} s") from exc
    try:
        return Connection(world, stream, handlers)
    except (OSError, ValueError) as exc:  # the peer had closed, and its address is unknown
        await trio.aclose_forcefully(stream)
        raise NotConnected(f"{host}:{port} closed the connection at once") from exc


@asynccontextmanager
async def open_connection(
    world: World,
    address: Address,
    handlers: Handlers | None = None,
    *,
    timeout_s: float = CONNECT_TIMEOUT_S,
) -> AsyncIterator[Connection]:
    """Open a connection for the length of a block. Raises `NotConnected`."""
    connection = await dial(world, address, handlers, timeout_s=timeout_s)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        try:
            yield connection
        finally:
            connection.close()


def parse_address(text: str) -> Address:
    """Parse `host:port` as a pair; IPv6 hosts may be in brackets. Raises `ValueError`."""
    if {"@", "/"} & set(text):  # not quoted in the error: it may hold a password
        raise ValueError("an address is host:port, without a scheme, a user or a path")
    host, colon, port = text.strip().rpartition(":")
    is_number = port.isascii() and port.isdigit() and len(port) <= 5
    if not colon or not host or not is_number or int(port) > 65535:
        raise ValueError(f"not an address of the form host:port: {text!r}")
    host = host.removeprefix("[").removesuffix("]")
    check_host(host)
    return host, int(port)


def check_host(host: str) -> None:
    """Raise `ValueError` for a text that no resolver takes as an address or a host name."""
    try:
        is_host = bool(host.encode("idna")) and host.isprintable() and not set(host) & set(" ;,@/")
    except UnicodeError:  # an empty label, one of more than 63 bytes, or half of a character
        is_host = False
    if not is_host:
        raise ValueError(f"not a host name or an IP address: {host!r}")
