"""Where the log of an empty slave begins (replication.md 7.13, "Full copy from a real master").

On the replication port, "I have nothing" makes RocketMQ's master begin with its last file only. So
an empty slave first asks the master's main port for the log's true beginning, and reports that. A
log that still begins at 0 cannot be asked for so, since 0 is "nothing": there the first message is
fetched by itself, and the slave goes on behind it.
"""

from dataclasses import dataclass

import trio

from rocketbed.remoting.client import dial
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.bodies import KvTable
from rocketbed.wire.codes import RequestCode, ResponseCode
from rocketbed.wire.command import request
from rocketbed.wire.errors import ProtocolError
from rocketbed.world.api import Address, World


@dataclass(frozen=True, slots=True)
class LogStart:
    """The beginning of a master's log."""

    offset: int
    """Its first byte."""
    data: bytes = b""
    """What stands there: the first message, when `offset` is 0."""


async def ask_log_start(world: World, master: Address) -> LogStart | None:
    """Ask at a master's remoting address; None when its log is empty or it does not say.

    Why it does not say goes to the log. Safe to cancel.
    """
    start: LogStart | None = None
    try:
        connection = await dial(world, master)
    except RemotingError as exc:
        _warn(world, master, str(exc))
        return None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        try:
            start = await _ask(connection)
        except (RemotingError, ProtocolError, ValueError) as exc:
            _warn(world, master, str(exc))
        connection.close()
    return start


async def _ask(connection: Connection) -> LogStart | None:
    response = await connection.request(request(RequestCode.GET_BROKER_RUNTIME_INFO))
    table = KvTable.decode(response.body).table if response.code == ResponseCode.SUCCESS else {}
    if "commitLogMinOffset" not in table:
        raise ValueError(f"its runtime info (code 28) has no commitLogMinOffset: {response.remark}")
    first = int(table["commitLogMinOffset"])
    if first != 0:
        return LogStart(first) if first > 0 else None
    if int(table.get("commitLogMaxOffset", "0")) <= 0:
        return None
    response = await connection.request(request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "0"}))
    if response.code != ResponseCode.SUCCESS or not response.body:
        raise ValueError(f"it does not give its first message (code 33): {response.remark}")
    return LogStart(0, response.body)


def _warn(world: World, master: Address, reason: str) -> None:
    world.log.warning(
        "replication.start_unknown",
        master=f"{master[0]}:{master[1]}",
        reason=f"{reason}; a RocketMQ master then sends its last file only",
    )
