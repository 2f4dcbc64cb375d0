"""Clients that read: members of groups, followers of queues, and the reader at the end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import trio

from rocketbed.chaos.history import UNKNOWN, Function, HistoryWriter, Outcome
from rocketbed.chaos.trial.load import ClientFailure, LoadControl
from rocketbed.chaos.workload import body_crc, decode_body
from rocketbed.client.admin import Admin
from rocketbed.client.consumer import Consumer
from rocketbed.client.messages import Received
from rocketbed.client.pulls import Pulled, PullStatus
from rocketbed.wire.bodies import MessageQueue
from rocketbed.world.api import World

FINAL_READER: Final = 1_000_000
"""Number of the reader that reads everything at the end."""
HOLD_S: Final = 5.0
RETRY_S: Final = 0.3
COMMIT_EVERY: Final = 8
"""Polls between two commits of a group's member."""


@dataclass(slots=True)
class Reading:
    """What readers share: the history and how a message is written into it."""

    control: LoadControl
    history: HistoryWriter
    nameservers: str
    topics: Sequence[str]

    def note_pull(self, process: int, queue: MessageQueue, asked: int, pulled: Pulled) -> None:
        pull = self.history.begin(
            Function.PULL,
            process=process,
            topic=queue.topic,
            queue=queue.queue_id,
            value=pulled.max_offset,
            operation=pulled.min_offset,
            node=queue.broker_name,
        )
        pull.finish(
            Outcome.OK,
            status=pulled.status.value,
            queue_offset=asked,
            physical_offset=pulled.next_offset,
        )
        for message in pulled.messages:
            self.note(Function.GOT, process, message, pull.row.number, asked)

    def note(
        self, function: Function, process: int, message: Received, operation: int, asked: int
    ) -> None:
        writer = decode_body(message.body)
        self.history.note(
            function,
            process=process,
            topic=message.topic,
            queue=message.queue.queue_id,
            value=UNKNOWN if writer is None else writer.value,
            operation=operation,
            queue_offset=message.queue_offset,
            physical_offset=asked,
            length=len(message.body),
            node=message.queue.broker_name,
            body_crc=body_crc(message.body),
        )

    async def commit(self, consumer: Consumer, process: int, group: int) -> None:
        """Store where a member of a group stands, with a row for each queue."""
        for queue, position in consumer.positions().items():
            row = self.history.begin(
                Function.COMMIT_OFFSET,
                process=process,
                topic=queue.topic,
                queue=queue.queue_id,
                operation=group,
                node=queue.broker_name,
            )
            try:
                await consumer.commit({queue: position})
            except ClientFailure:
                row.finish(Outcome.INFO, queue_offset=position)
                raise
            row.finish(Outcome.OK, queue_offset=position)


class GroupMember:
    """Polls all topics for its group and commits where it stands."""

    def __init__(self, reading: Reading, group: int) -> None:
        self._reading = reading
        self._group = group

    async def __call__(self, world: World) -> None:
        """Until told to stop; begins again when the client gives up."""
        control = self._reading.control
        while control.consuming:
            try:
                await self._consume(world, control.process())
            except* ClientFailure:
                await trio.sleep(RETRY_S)

    async def _consume(self, world: World, process: int) -> None:
        reading = self._reading
        async with Consumer(
            world, nameservers=reading.nameservers, group=f"group-{self._group}", hold_s=HOLD_S
        ) as consumer:
            for topic in reading.topics:
                await consumer.subscribe(topic, start="first")
            polls = 0
            while reading.control.consuming:
                for message in await consumer.poll(timeout_s=1.0):
                    reading.note(Function.DELIVER, process, message, self._group, UNKNOWN)
                polls += 1
                if polls % COMMIT_EVERY == 0:
                    await reading.commit(consumer, process, self._group)
            await reading.commit(consumer, process, self._group)


class QueueFollower:
    """Follows every queue from its first message by offsets of its own."""

    def __init__(self, reading: Reading, name: str) -> None:
        self._reading = reading
        self._name = name

    async def __call__(self, world: World) -> None:
        reading = self._reading
        process = reading.control.process()
        async with (
            Consumer(
                world, nameservers=reading.nameservers, group=self._name, hold_s=HOLD_S
            ) as consumer,
            trio.open_nursery() as nursery,
        ):
            for topic in reading.topics:
                for queue in await self._queues(consumer, topic):
                    nursery.start_soon(self._follow, consumer, process, queue)

    async def _queues(self, consumer: Consumer, topic: str) -> tuple[MessageQueue, ...]:
        while self._reading.control.consuming:
            try:
                return await consumer.queues(topic)
            except ClientFailure:
                await trio.sleep(RETRY_S)
        return ()

    async def _follow(self, consumer: Consumer, process: int, queue: MessageQueue) -> None:
        offset = 0
        while self._reading.control.consuming:
            try:
                pulled = await consumer.pull(queue, offset, hold_s=HOLD_S)
            except ClientFailure:
                await trio.sleep(RETRY_S)
                continue
            self._reading.note_pull(process, queue, offset, pulled)
            if not pulled.messages and pulled.next_offset == offset:
                await trio.sleep(RETRY_S)  # a slave answers at once, whatever the hold
            offset = pulled.next_offset


class FinalReader:
    """Reads every queue to its end and asks for some keys, when all has come to rest."""

    def __init__(self, reading: Reading, world: World) -> None:
        self._reading = reading
        self._world = world

    async def run(self) -> None:
        async with Consumer(
            self._world, nameservers=self._reading.nameservers, group="final-reader"
        ) as consumer:
            for topic in self._reading.topics:
                for queue in await consumer.queues(topic):
                    await self._read(consumer, queue)
        await self._ask_keys()

    async def _read(self, consumer: Consumer, queue: MessageQueue) -> None:
        offset = await consumer.offsets.min_offset(queue)
        while True:
            pulled = await consumer.pull(queue, offset)
            self._reading.note_pull(FINAL_READER, queue, offset, pulled)
            if pulled.status is PullStatus.NO_NEW or pulled.next_offset <= offset:
                return
            offset = pulled.next_offset

    async def _ask_keys(self) -> None:
        reading = self._reading
        async with Admin(self._world, nameservers=reading.nameservers) as admin:
            for topic, key, value in reading.control.keys:
                row = reading.history.begin(
                    Function.QUERY_KEY, process=FINAL_READER, topic=topic, value=value
                )
                try:
                    found = await admin.messages_by_key(topic, key)
                except ClientFailure:
                    row.finish(Outcome.INFO)
                    continue
                match = [message for message in found if key in message.keys]
                row.finish(
                    Outcome.OK,
                    status=len(found),
                    queue=match[0].queue.queue_id if match else None,
                    queue_offset=match[0].queue_offset if match else UNKNOWN,
                )
