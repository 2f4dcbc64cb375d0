"""Runtime information of a broker: 28 (wire.md 2.8)."""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import trio

from rocketbed import __version__
from rocketbed.node.broker.pull import Puller
from rocketbed.node.broker.send import Sender
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.node.store.store import MessageStore
from rocketbed.remoting.connection import Connection
from rocketbed.wire.bodies import KvTable
from rocketbed.wire.command import Command, ResponseCode, answer
from rocketbed.wire.errors import RemoteProtocolError
from rocketbed.wire.message import decode_message
from rocketbed.world.api import World

VERSION_NAME: Final = "V5_3_3"
"""Release whose behaviour this broker has; our own is in `rocketbedVersion`."""
ZERO_KEYS: Final = (
    "sendThreadPoolQueueSize",
    "pullThreadPoolQueueSize",
    "ackThreadPoolQueueSize",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "ackThreadPoolQueueHeadWaitTimeMills",
    "timerReadBehind",
    "timerOffsetBehind",
    "timerCongestNum",
    "msgPutTotalYesterdayMorning",
    "msgPutTotalTodayMorning",
    "msgGetTotalYesterdayMorning",
    "msgGetTotalTodayMorning",
)
"""Numbers that tools print and that have no counterpart here."""


class RuntimeInfo:
    """Counters as text."""

    def __init__(
        self,
        world: World,
        config: NodeConfig,
        store: MessageStore,
        sender: Sender,
        puller: Puller,
    ) -> None:
        self._world = world
        self._config = config
        self._store = store
        self._sender = sender
        self._puller = puller
        self._boot_ms = world.clock.wall_ms()
        self._began = trio.current_time()
        self.not_ready: Callable[[], str] = lambda: ""
        """Returns why clients cannot use this node (readiness.py); empty if they can."""
        self.failover: Callable[[], dict[str, str]] = dict
        """Returns further entries of a member of a group with failover."""

    async def runtime(self, command: Command, connection: Connection) -> Command:
        """28: the table of runtime information."""
        body = KvTable(table=await self._table()).encode()
        return answer(command, ResponseCode.SUCCESS, None, None, body)

    async def _table(self) -> dict[str, str]:
        sender, puller = self._sender, self._puller
        elapsed_s = max(trio.current_time() - self._began, 0.001)
        puts = f"{sender.accepted / elapsed_s:.1f}"
        gets = f"{puller.served / elapsed_s:.1f}"
        misses = f"{puller.missed / elapsed_s:.1f}"
        average = sender.accepted_bytes / sender.accepted if sender.accepted else 0.0
        first = await self._store.record_at(self._store.min_offset)
        earliest_ms = 0
        if first is not None:
            with suppress(RemoteProtocolError):  # damaged, as another entry of the table says
                earliest_ms = decode_message(first).store_timestamp
        return {
            **dict.fromkeys(ZERO_KEYS, "0"),
            "brokerActive": "true",
            "brokerVersionDesc": VERSION_NAME,
            "brokerVersion": "479",
            "rocketbedVersion": __version__,
            "bootTimestamp": str(self._boot_ms),
            "runtime": f"[ {int(elapsed_s)} seconds ]",
            "startAcceptSendRequestTimeStamp": str(self._config.start_accept_sends_ms),
            "putTps": f"{puts} {puts} {puts}",
            "getTransferredTps": f"{gets} {gets} {gets}",
            "getFoundTps": f"{gets} {gets} {gets}",
            "getMissTps": f"{misses} {misses} {misses}",
            "timerEnqueueTps": "0.0",
            "timerDequeueTps": "0.0",
            "putMessageTimesTotal": str(sender.accepted),
            "putMessageFailedTimes": str(sender.failed),
            "putMessageSizeTotal": str(sender.accepted_bytes),
            "putMessageAverageSize": str(average),
            "msgPutTotalTodayNow": str(sender.accepted),
            "msgGetTotalTodayNow": str(puller.served),
            "earliestMessageTimeStamp": str(earliest_ms),
            "pullRequestsHeld": str(len(puller.polls)),
            "rbNotReady": self.not_ready(),
            **self.failover(),
            **self._store.runtime_info(),
        }
