"""Questions of a slave to its master outside of the log (replication.md 7.13).

Where the log of an empty slave begins ("Full copy from a real master"): on the replication port, "I
have nothing" makes RocketMQ's master begin with its last file only. So an empty slave first asks
the master's main port for the log's true beginning, and reports that. A log that still begins at 0
cannot be requested that way, since 0 is "nothing": then the first message is fetched separately,
and the slave continues after it.

Where the master's log ends, if ours is longer: on the replication port a master that has nothing
more is silent for five seconds and then sends its position.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import trio

from rocketbed.remoting.client import dial
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.bodies import HaRuntimeInfo, KvTable
from rocketbed.wire.codes import RequestCode, ResponseCode
from rocketbed.wire.command import request
from rocketbed.wire.errors import ProtocolError
from rocketbed.world.api import Address, World

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LogBounds:
    """Bounds of a master's log: offsets of its first byte and after its last."""

    first: int
    end: int
    is_slave: bool = False
    """True if it answers that it is a slave itself; 4.x does not answer."""


@dataclass(frozen=True, slots=True)
class LogStart:
    """The beginning of a master's log."""

    offset: int
    """First byte of the log."""
    data: bytes = b""
    """Bytes at `offset`: the first message, if `offset` is 0."""


async def ask_log_start(world: World, master: Address) -> LogStart | None:
    """Ask a master's remoting address; None if its log is empty or it does not answer.

    The reason for a missing answer is logged. Safe to cancel.
    """
    try:
        return await with_connection(world, master, _ask_start)
    except (RemotingError, ProtocolError, ValueError) as exc:
        world.log.warning(
            "replication.start_unknown",
            master=f"{master[0]}:{master[1]}",
            reason=f"{exc}; a RocketMQ master then sends its last file only",
        )
        return None


async def ask_log_bounds(world: World, master: Address) -> LogBounds | None:
    """Ask a master's remoting address; None if it does not answer. Safe to cancel."""
    try:
        return await with_connection(world, master, _ask_bounds_and_role)
    except (RemotingError, ProtocolError, ValueError) as exc:
        world.log.debug(
            "replication.bounds_unknown", master=f"{master[0]}:{master[1]}", reason=str(exc)
        )
        return None


async def with_connection(
    world: World, master: Address, ask: Callable[[Connection], Awaitable[T]]
) -> T:
    """Ask on a separate connection. Raises the errors of `ask` and `dial`."""
    connection = await dial(world, master)
    result: T
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        try:
            result = await ask(connection)
        except (RemotingError, ProtocolError, ValueError) as exc:
            failure = exc  # raised outside, since a nursery would wrap it in a group
        connection.close()
    if failure is not None:
        raise failure
    return result


async def _ask_bounds(connection: Connection) -> LogBounds:
    response = await connection.request(request(RequestCode.GET_BROKER_RUNTIME_INFO))
    table = KvTable.decode(response.body).table if response.code == ResponseCode.SUCCESS else {}
    if "commitLogMinOffset" not in table:
        raise ValueError(f"its runtime info (code 28) has no commitLogMinOffset: {response.remark}")
    first = int(table["commitLogMinOffset"])
    return LogBounds(first, max(int(table.get("commitLogMaxOffset", "0")), first))


async def _ask_bounds_and_role(connection: Connection) -> LogBounds:
    bounds = await _ask_bounds(connection)
    response = await connection.request(request(RequestCode.GET_BROKER_HA_STATUS))
    if response.code != ResponseCode.SUCCESS or HaRuntimeInfo.decode(response.body).master:
        return bounds
    return replace(bounds, is_slave=True)


async def _ask_start(connection: Connection) -> LogStart | None:
    bounds = await _ask_bounds(connection)
    if bounds.first != 0:
        return LogStart(bounds.first) if bounds.first > 0 else None
    if bounds.end <= 0:
        return None
    response = await connection.request(request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "0"}))
    if response.code != ResponseCode.SUCCESS or not response.body:
        raise ValueError(f"it does not give its first message (code 33): {response.remark}")
    return LogStart(0, response.body)
