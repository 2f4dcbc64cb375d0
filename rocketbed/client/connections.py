"""Connections, one for each address, opened when first needed and again after it broke.

A connection begins with JSON headers. When an answer contains `rbMsgpack=1` the peer is a rocketbed
server, and from then on that connection uses msgpack headers (design.md 2).
"""

from collections.abc import Callable
from typing import Final

import trio

from rocketbed.remoting.client import CONNECT_TIMEOUT_S, dial
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.errors import NotConnected, RequestTimeout
from rocketbed.remoting.handlers import Handlers
from rocketbed.wire.command import Command, Encoding
from rocketbed.world.api import Address, World

CLOSED: Final = "the client is closed"
SPEAKS_MSGPACK: Final = "rbMsgpack"


class Link:
    """A connection, with the header encoding to use on it."""

    __slots__ = ("address", "connection", "encoding")

    def __init__(self, address: Address, connection: Connection) -> None:
        self.address = address
        self.connection = connection
        self.encoding = Encoding.JSON

    @property
    def is_closed(self) -> bool:
        """True if the connection has ended."""
        return self.connection.is_closed

    async def request(self, command: Command, *, timeout_s: float) -> Command:
        """Send a request and wait for the answer, whatever its code. Raises as
        `Connection.request`."""
        command.encoding = self.encoding
        response = await self.connection.request(command, timeout_s=timeout_s)
        if response.raw_fields.get(SPEAKS_MSGPACK) == "1":
            self.encoding = Encoding.MSGPACK
        return response

    async def notify(self, command: Command, *, timeout_s: float) -> None:
        """Send a one-way request, once the peer has read most of what was sent before it.

        Raises `RequestTimeout` if the peer reads nothing for `timeout_s` seconds.
        """
        # Before anything is sent: a loop of sends lets other tasks run, and can be cancelled.
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(timeout_s):
            await self.connection.room()
            command.encoding = self.encoding
            self.connection.notify(command)
            return
        raise RequestTimeout(
            f"{self.connection.remote_text} has taken nothing of what was sent before for"
            f" {timeout_s:g} s; this request was not sent"
        )


class Connections:
    """The connections of a client. They run in the nursery given to `start`."""

    def __init__(
        self,
        world: World,
        handlers: Handlers | None = None,
        *,
        on_open: Callable[[Link], None] | None = None,
    ) -> None:
        """`on_open` is called with each new link before anything is sent on it."""
        self._world = world
        self._handlers = handlers
        self._on_open = on_open
        self._nursery: trio.Nursery | None = None
        self._links: dict[Address, Link] = {}
        self._locks: dict[Address, trio.Lock] = {}
        self.is_closed = False
        """True once no more connections are opened; set by the owner of the nursery."""
        self.local_host: str | None = None
        """The client's own address, as seen on the latest connection."""

    def start(self, nursery: trio.Nursery) -> None:
        """Allow connections to be opened; they end with the nursery."""
        self._nursery = nursery

    def open_links(self) -> list[Link]:
        """Return the links that are open now, oldest first."""
        return [link for link in self._links.values() if not link.is_closed]

    def existing(self, address: Address) -> Link | None:
        """Return the open link to an address, or None."""
        link = self._links.get(address)
        return None if link is None or link.is_closed else link

    async def link(self, address: Address, *, timeout_s: float = CONNECT_TIMEOUT_S) -> Link:
        """Return the open link to an address, dialling if necessary. Raises `NotConnected`."""
        link = self.existing(address)
        if link is not None:
            return link
        if self.is_closed:
            raise NotConnected(CLOSED)
        assert self._nursery is not None, "the client was not entered with `async with`"
        lock = self._locks.setdefault(address, trio.Lock())
        with trio.move_on_after(timeout_s):
            async with lock:
                link = self.existing(address)
                return link if link is not None else await self._open(address, timeout_s)
        raise NotConnected(f"cannot connect to {address[0]}:{address[1]} within {timeout_s:g} s")

    async def _open(self, address: Address, timeout_s: float) -> Link:
        assert self._nursery is not None
        connection = await dial(self._world, address, self._handlers, timeout_s=timeout_s)
        if self.is_closed:  # closed during the dial
            connection.close()
            await connection.run()
            raise NotConnected(CLOSED)
        self.local_host = connection.local[0]
        self._nursery.start_soon(connection.run)
        link = self._links[address] = Link(address, connection)
        if self._on_open is not None:
            self._on_open(link)
        return link

    async def request(
        self,
        address: Address,
        command: Command,
        *,
        timeout_s: float,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> Command:
        """Send a request to one peer; dialling and the answer share `timeout_s`. Raises
        `RemotingError`."""
        began = trio.current_time()
        link = await self.link(address, timeout_s=min(connect_timeout_s, timeout_s))
        left_s = max(timeout_s - (trio.current_time() - began), 0.001)
        return await link.request(command, timeout_s=left_s)

    def close(self, address: Address, why: str = "") -> None:
        """End a connection; the next request opens a new one. `why`: as `Connection.close`."""
        link = self._links.pop(address, None)
        if link is not None:
            link.connection.close(why)
