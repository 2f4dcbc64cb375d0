"""After the writing: everything is read back through the client, slaves catch up, all stops.

What a consumer gets goes into the history too, so that the checks compare what was acknowledged
with what clients see and with what lies in the files.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from chaos.demo.plan import MASTER, DemoPlan
from chaos.demo.samples import offsets_of
from chaos.history import UNKNOWN, Function, HistoryWriter, Outcome
from chaos.process.cluster import LocalCluster
from chaos.workload import body_crc, decode_body
from rocketbed.client.admin import Admin
from rocketbed.client.consumer import Consumer, Pulled, PullStatus
from rocketbed.client.errors import ClientError
from rocketbed.client.messages import Received
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.bodies import HaRuntimeInfo, MessageQueue
from rocketbed.wire.command import RequestCode
from rocketbed.world.api import World

CONSUMER: Final = 1000
"""Number of the consumer in the history, apart from the producers'."""
LOOK_S: Final = 0.02
CAUGHT_UP_S: Final = 30.0


@dataclass(slots=True)
class KeyQueries:
    """What queries by key gave."""

    asked: int = 0
    findings: list[str] = field(default_factory=list)


class QueueReader:
    """Reads a queue from its first message to its last, pull by pull."""

    def __init__(self, consumer: Consumer, queue: MessageQueue) -> None:
        self.asked = UNKNOWN
        """The offset that the last pull asked for."""
        self._consumer = consumer
        self._queue = queue
        self._next = UNKNOWN
        self._ended = False

    async def next(self) -> Pulled | None:
        """The next pull; None behind the last. Raises `ClientError`, `RemotingError`."""
        if self._ended:
            return None
        if self._next == UNKNOWN:
            self._next = await self._consumer.offsets.min_offset(self._queue)
        self.asked = self._next
        pulled = await self._consumer.pull(self._queue, self.asked)
        self._next = pulled.next_offset
        self._ended = pulled.status is PullStatus.NO_NEW or self._next <= self.asked
        return pulled


class Drain:
    """Reads the workload back and waits for the slaves."""

    def __init__(
        self, world: World, plan: DemoPlan, cluster: LocalCluster, history: HistoryWriter
    ) -> None:
        self.keys = KeyQueries()
        self._world = world
        self._plan = plan
        self._cluster = cluster
        self._history = history

    async def read_back(self) -> int:
        """Pull every queue of the workload; number of messages.

        Raises `ClientError`, `RemotingError`.
        """
        counts: list[int] = []
        async with (
            Consumer(
                self._world, nameservers=self._cluster.nameserver_address, group="demo-reader"
            ) as consumer,
            trio.open_nursery() as nursery,
        ):
            for topic in self._plan.topics:
                for queue in await consumer.queues(topic.name):
                    nursery.start_soon(self._read_queue, consumer, queue, counts)
        return sum(counts)

    async def _read_queue(self, consumer: Consumer, queue: MessageQueue, counts: list[int]) -> None:
        reader = QueueReader(consumer, queue)
        while (pulled := await reader.next()) is not None:
            pull = self._history.begin(
                Function.PULL, process=CONSUMER, topic=queue.topic, queue=queue.queue_id
            )
            pull.finish(Outcome.OK, status=pulled.status.value, queue_offset=reader.asked)
            counts.append(len(pulled.messages))
            for message in pulled.messages:
                self._note(message, pull.row.number, reader.asked)

    def _note(self, message: Received, pull: int, asked: int) -> None:
        writer = decode_body(message.body)
        got = self._history.begin(
            Function.GOT,
            process=CONSUMER,
            topic=message.topic,
            queue=message.queue.queue_id,
            value=UNKNOWN if writer is None else writer.value,
            operation=pull,
            length=len(message.body),
            body_crc=body_crc(message.body),
        )
        got.finish(Outcome.OK, queue_offset=message.queue_offset, physical_offset=asked)

    async def ask_keys(self, sent: Sequence[tuple[str, str]]) -> None:
        """Look for some acknowledged messages, given as (topic, key), through the index."""
        async with self._cluster.admin() as admin:
            for topic, key in sent:
                self.keys.asked += 1
                try:
                    found = await admin.messages_by_key(topic, key)
                except (ClientError, RemotingError) as exc:
                    self.keys.findings.append(f"{topic}, key {key}: {exc}")
                    continue
                if not any(key in message.keys for message in found):
                    self.keys.findings.append(
                        f"{topic}, key {key}: acknowledged, but the index does not find it"
                    )

    async def wait_caught_up(self) -> bool:
        """Wait until every slave has all of the master's log; False when that takes too long."""
        with trio.move_on_after(CAUGHT_UP_S):
            async with self._cluster.admin() as admin:
                caught_up = False
                while not caught_up:
                    try:
                        caught_up = await self._is_caught_up(admin)
                    except (ClientError, RemotingError):
                        caught_up = False
                    if not caught_up:
                        await trio.sleep(LOOK_S)
            return True
        return False

    async def _is_caught_up(self, admin: Admin) -> bool:
        """Whether all slaves are connected, and acknowledged and hold all of the master's log."""
        answer = await admin.ask(
            self._cluster.address(MASTER), RequestCode.GET_BROKER_HA_STATUS, what="slaves"
        )
        info = HaRuntimeInfo.decode(answer.body)
        end = info.master_commit_log_max_offset
        slaves = [node for node in self._cluster.nodes if node != MASTER]
        acknowledged = [slave.slave_ack_offset >= end for slave in info.ha_connection_info]
        if sum(acknowledged) < len(slaves):
            return False
        for node in slaves:
            if offsets_of(await admin.runtime_info(self._cluster.address(node)))[0] != end:
                return False
        return True
