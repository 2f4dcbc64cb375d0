"""Handlers of requests that arrive on a `Connection`; see `remoting.table`."""

from collections.abc import Awaitable, Callable

from rocketbed.remoting.connection import Connection
from rocketbed.remoting.table import HandlerTable
from rocketbed.wire.command import Command

Inline = Callable[[Command, Connection], Command | None]
Spawned = Callable[[Command, Connection], Awaitable[Command | None]]
ConnectionHook = Callable[[Connection], None]
Handlers = HandlerTable[Connection]
