"""Samples of nodes, over their own protocol, without a long wait for a silent node."""

import math
from collections.abc import Mapping
from typing import Final

import trio

from rocketbed.chaos.run.api import Sample
from rocketbed.client.connections import Connections
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.bodies import HaRuntimeInfo, KvTable
from rocketbed.wire.command import Command, RequestCode, ResponseCode, request
from rocketbed.wire.errors import ProtocolError
from rocketbed.world.api import Address, World

ANSWER_S: Final = 0.5
"""Time after which a node counts as silent."""


class Asker:
    """Connections to the nodes, one for each, that are kept open."""

    def __init__(self, world: World) -> None:
        self._connections = Connections(world)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the connections until cancelled. Requests are possible once it has started."""
        async with trio.open_nursery() as nursery:
            self._connections.start(nursery)
            task_status.started()
            await trio.sleep_forever()

    async def sample(self, address: Address) -> Sample | None:
        """Return a node's sample; None if it does not answer in time."""
        tables = await self.look(address)
        return None if tables is None else sample_of(*tables)

    async def look(self, address: Address) -> tuple[dict[str, str], HaRuntimeInfo] | None:
        """Return a node's runtime information and replication status; None if it does not answer in
        time."""
        info = await self.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        status = None if info is None else await self.ask(address, RequestCode.GET_BROKER_HA_STATUS)
        if info is None or status is None:
            return None
        try:
            return KvTable.decode(info.body).table, HaRuntimeInfo.decode(status.body)
        except ProtocolError:
            return None

    async def ask(
        self, address: Address, code: int, fields: Mapping[str, str] | None = None
    ) -> Command | None:
        """Send one request. Return None if there is no answer in time, or not a success."""
        command = request(code, fields)
        try:
            answer = await self._connections.request(address, command, timeout_s=ANSWER_S)
        except (RemotingError, ProtocolError, OSError):
            self._connections.close(address)
            return None
        return answer if answer.code == ResponseCode.SUCCESS else None


def sample_of(table: dict[str, str], ha: HaRuntimeInfo) -> Sample | None:
    """Return a sample from these answers; None if the table has no end of the log."""
    written = _number(table, "commitLogMaxOffset")
    if written is None:
        return None
    unflushed = size_at_most(table.get("remainHowManyDataToFlush", "0"))
    undispatched = _number(table, "dispatchBehindBytes") or 0
    acks = sorted((slave.slave_ack_offset for slave in ha.ha_connection_info), reverse=True)
    slave = ha.ha_client_runtime_info
    confirmed = _number(table, "rbConfirmedOffset")  # present with failover
    return Sample(
        written=written,
        flushed=max(written - unflushed, 0),
        confirmed=confirmed if confirmed is not None else min([written, *acks[:1]]),
        dispatched=written - undispatched,
        in_sync=1 + ha.in_sync_slave_nums if ha.master else 0,
        is_master=ha.master,
        is_following=not ha.master and slave.is_activated,
        refused=_number(table, "putMessageFailedTimes") or 0,
        disk_used=_share(table.get("commitLogDiskRatio", "")),
        group=table.get("rbGroup", ""),
        unmade=table.get("queuesUnmade", ""),
    )


def size_at_most(text: str) -> int:
    """Return bytes of a size as RocketMQ prints it for people, `512 B` or `1.2 KiB`; rounded up."""
    number, _, unit = text.strip().partition(" ")
    try:
        value = float(number)
    except ValueError:
        return 0
    power = "BKMGTPE".find(unit[:1] or "B")
    return math.ceil(value) if power <= 0 else math.ceil((value + 0.05) * 1024**power)


def _number(table: dict[str, str], key: str) -> int | None:
    text = table.get(key, "").partition(" ")[0]
    return int(text) if text.lstrip("-").isdigit() else None


def _share(text: str) -> float | None:
    """Return a ratio; None if the text is not one."""
    try:
        value = float(text)
    except ValueError:
        return None
    return round(value, 3) if 0 <= value <= 1 else None
