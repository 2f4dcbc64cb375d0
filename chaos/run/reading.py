"""Clients that read: members of groups, followers of queues, and the final reader."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import trio

from rocketbed.chaos.evidence.history import (
    FINAL_READER,
    UNKNOWN,
    Attempt,
    Function,
    HistoryWriter,
    Outcome,
)
from rocketbed.chaos.evidence.workload import body_crc, label_crc, writer_of
from rocketbed.chaos.run.load import TAGS, ClientFailure, LoadControl
from rocketbed.client.admin import Admin
from rocketbed.client.consumer import Consumer
from rocketbed.client.messages import Received
from rocketbed.client.pulls import Pulled, PullStatus
from rocketbed.client.routes import MASTER_ID
from rocketbed.remoting.client import parse_address
from rocketbed.wire.bodies import MessageQueue
from rocketbed.world.api import Address, World

HOLD_S: Final = 5.0
LOOK_S: Final = 10.0
"""Pause between searches for queues of brokers that came back, or of new topics."""
RETRY_S: Final = 0.3
ASKED_MAX: Final = 8
"""Queues whose backlog is queried at the same time."""
COMMITTED_MAX: Final = 32
"""Queues that a commit stores again even if they have not moved."""
SEARCHES: Final = 8
"""Searches by time in each queue, about, at the end."""


@dataclass(slots=True)
class Reading:
    """State that readers share: the history, and how a message is recorded in it."""

    control: LoadControl
    history: HistoryWriter
    nameservers: str
    topics: Sequence[str]
    place: Callable[[Address], str | None]
    """Returns the node at an address."""
    followers: dict[str, int] = field(default_factory=dict)
    """Followers of queues -> the last process of each."""
    followed: dict[tuple[str, MessageQueue], int] = field(default_factory=dict)
    """Follower and queue -> the offset of its next pull."""
    rounds: int = 0
    """Number of commits of all members."""
    turns: "Counter[int]" = field(default_factory=Counter)
    """Number of commits of each process; every second one lets the consumer commit its own
    positions."""
    committed: dict[int, dict[MessageQueue, int]] = field(default_factory=dict)
    """Process of a member -> its positions at its last commit."""

    def note_pull(
        self, process: int, queue: MessageQueue, asked_offset: int, pulled: Pulled
    ) -> None:
        """Record a pull and its messages, with the node that answered."""
        node = self.place(pulled.address) or queue.broker_name
        pull = self.history.begin(
            Function.PULL,
            process=process,
            topic=queue.topic,
            queue=queue.queue_id,
            value=pulled.max_offset,
            operation=pulled.min_offset,
            node=node,
        )
        pull.finish(
            Outcome.OK,
            status=pulled.status.value,
            queue_offset=asked_offset,
            physical_offset=pulled.next_offset,
        )
        for message in pulled.messages:
            self.note(Function.GOT, process, message, pull.row.number, asked_offset, node)

    def note(
        self,
        function: Function,
        process: int,
        message: Received,
        operation: int,
        asked_offset: int,
        node: str | None = None,
    ) -> None:
        """Record a message; without a node the row names the group of brokers."""
        writer = writer_of(message.body, message.properties)
        self.history.note(
            function,
            process=process,
            topic=message.topic,
            queue=message.queue.queue_id,
            value=UNKNOWN if writer is None else writer.value,
            operation=operation,
            queue_offset=message.queue_offset,
            physical_offset=asked_offset,
            length=len(message.body),
            node=node or message.queue.broker_name,
            body_crc=body_crc(message.body),
            label_crc=label_crc(message.tag, message.keys, message.properties),
        )

    async def read_back(
        self, consumer: Consumer, process: int, group: int, queue: MessageQueue
    ) -> None:
        """Record a group's position in a queue according to its broker. Raises `ClientFailure`."""
        row = self.history.begin(
            Function.READ_OFFSET,
            process=process,
            topic=queue.topic,
            queue=queue.queue_id,
            operation=group,
            node=queue.broker_name,
        )
        stands = await consumer.offsets.committed(group_name(group), queue)
        node = self.place(consumer.offsets.answered[queue])
        row.finish(Outcome.OK, queue_offset=stands or 0, node=node)

    async def commit(self, consumer: Consumer, process: int, group: int) -> None:
        """Store the positions of a member of a group, with a row for each queue. Before that record
        the positions according to the broker, and of one queue in turn where it ends."""
        self.rounds += 1
        last = self.committed.get(process, {})
        positions = self._to_commit(process, consumer.positions())
        self.turns[process] += 1
        if self.turns[process] % 2:
            async with trio.open_nursery() as nursery:
                for queue in positions:
                    nursery.start_soon(self.read_back, consumer, process, group, queue)
            # A queue that was allocated meanwhile is stored too, at its start position.
            self.committed[process] = now = consumer.positions()
            moved = {queue: at for queue, at in now.items() if at != last.get(queue)}
            await self._commit_all(consumer, process, group, moved)
            return
        async with trio.open_nursery() as nursery:
            for number, (queue, position) in enumerate(positions.items()):
                is_asked = number == self.rounds % len(positions)
                own = partial(self._commit, consumer, process, group, queue, position)
                nursery.start_soon(partial(own, ask_end=is_asked))

    def _to_commit(
        self, process: int, positions: dict[MessageQueue, int]
    ) -> dict[MessageQueue, int]:
        """Return all queues or, if there are hundreds, those that moved and some others in turn."""
        last, self.committed[process] = self.committed.get(process, {}), positions
        if len(positions) <= COMMITTED_MAX:
            return positions
        turns = -(-len(positions) // COMMITTED_MAX)
        return {
            queue: position
            for number, (queue, position) in enumerate(positions.items())
            if position != last.get(queue) or number % turns == self.rounds % turns
        }

    async def _commit_all(
        self, consumer: Consumer, process: int, group: int, moved: dict[MessageQueue, int]
    ) -> None:
        """Have the consumer commit its own positions."""
        rows = {queue: self._commits(process, group, queue, at) for queue, at in moved.items()}
        stored = dict.fromkeys(moved, Outcome.INFO)
        try:
            await consumer.commit()
            # The outcome for a queue that went to another member meanwhile is unknown.
            now = consumer.positions()
            stored |= {queue: Outcome.OK for queue, at in moved.items() if now.get(queue) == at}
        finally:
            for queue, row in rows.items():
                is_stored = stored[queue] is Outcome.OK
                node = self.place(consumer.offsets.answered[queue]) if is_stored else None
                row.finish(stored[queue], queue_offset=moved[queue], node=node)

    def _commits(self, process: int, group: int, queue: MessageQueue, position: int) -> Attempt:
        return self.history.begin(
            Function.COMMIT_OFFSET,
            process=process,
            topic=queue.topic,
            queue=queue.queue_id,
            operation=group,
            queue_offset=position,
            node=queue.broker_name,
        )

    async def _commit(
        self,
        consumer: Consumer,
        process: int,
        group: int,
        queue: MessageQueue,
        position: int,
        *,
        ask_end: bool,
    ) -> None:
        begin = partial(
            self.history.begin,
            process=process,
            topic=queue.topic,
            queue=queue.queue_id,
            operation=group,
            node=queue.broker_name,
        )
        await self.read_back(consumer, process, group, queue)
        if ask_end:
            row = begin(Function.BOUNDS, operation=UNKNOWN)
            end = await consumer.offsets.max_offset(queue)
            node = self.place(consumer.offsets.answered[queue])
            row.finish(Outcome.OK, value=end, node=node)
        row = self._commits(process, group, queue, position)
        try:
            await consumer.commit({queue: position})
        except ClientFailure:
            row.finish(Outcome.INFO, queue_offset=position)
            raise
        node = self.place(consumer.offsets.answered[queue])
        row.finish(Outcome.OK, queue_offset=position, node=node)


async def follow_queues(reading: Reading, name: str, world: World) -> None:
    """Follow every queue from its first message by offsets of its own, until told to stop."""
    reading.followers[name] = next(reading.control.processes)
    async with (
        Consumer(world, nameservers=reading.nameservers, group=name, hold_s=HOLD_S) as consumer,
        trio.open_nursery() as nursery,
    ):
        followed: set[MessageQueue] = set()
        while reading.control.consuming:
            pause = LOOK_S
            for topic in reading.topics:
                try:
                    queues = await consumer.queues(topic, fresh=True)
                except ClientFailure:
                    pause = RETRY_S  # it may be about to be created
                    continue
                for queue in queues:
                    if queue not in followed:
                        followed.add(queue)
                        nursery.start_soon(_follow, reading, consumer, name, queue)
            await trio.sleep(pause)


async def _follow(reading: Reading, consumer: Consumer, name: str, queue: MessageQueue) -> None:
    offset, process = 0, reading.followers[name]
    while reading.control.consuming:
        reading.followed[name, queue] = offset
        try:
            pulled = await consumer.pull(queue, offset, hold_s=HOLD_S)
        except ClientFailure:
            await trio.sleep(RETRY_S)
            continue
        reading.note_pull(process, queue, offset, pulled)
        if not pulled.messages and pulled.next_offset == offset:
            await trio.sleep(RETRY_S)  # a slave answers at once, despite the long poll
        offset = pulled.next_offset


def group_name(number: int) -> str:
    return f"group-{number}"


async def backlog(reading: Reading, groups: Iterable[int], consumer: Consumer) -> str:
    """Return the first group (by its brokers) or follower that has not reached the end of a queue,
    or the error of a query; empty if all have. Raises `ClientFailure`."""
    numbers, reasons = list(groups), list[str]()
    limit = trio.CapacityLimiter(ASKED_MAX)

    async def look(queue: MessageQueue) -> None:
        async with limit:
            if not reasons:
                try:
                    reason = await _lag(reading, numbers, consumer, queue)
                except ClientFailure as error:
                    reason = f"{error}"
                reasons.extend([reason] if reason else [])

    queues = [queue for topic in reading.topics for queue in await consumer.queues(topic)]
    async with trio.open_nursery() as nursery:
        for queue in queues:
            nursery.start_soon(look, queue)
    return reasons[0] if reasons else ""


async def _lag(reading: Reading, groups: list[int], consumer: Consumer, queue: MessageQueue) -> str:
    end = await consumer.offsets.max_offset(queue)
    stands: dict[str, int | None] = {
        group_name(number): await consumer.offsets.committed(group_name(number), queue)
        for number in groups
    }
    stands |= {name: reading.followed.get((name, queue), 0) for name in reading.followers}
    for name, at in stands.items():
        if (at or 0) != end:
            where = "has no position" if at is None else f"stands at {at}"
            return f"{name} {where}, of {end} in {queue.topic}/{queue.queue_id}"
    return ""


async def misrouted(
    world: World, nameservers: str, ids: Mapping[Address, int], topics: Iterable[str]
) -> str:
    """Return how a nameserver's list of brokers differs from `ids` (address -> broker id), or its
    topics from those of the masters; empty if they agree. Raises `ClientFailure`."""
    async with Admin(world, nameservers=nameservers) as admin:
        table = (await admin.cluster()).broker_addr_table
        own = {
            name: await admin.topic_configs(data.broker_addrs[MASTER_ID])
            for name, data in sorted(table.items())
            if MASTER_ID in data.broker_addrs
        }
        for topic in topics:
            route = await admin.route(topic)
            advertised = {
                row.broker_name: (row.read_queue_nums, row.write_queue_nums, row.perm)
                for row in (() if route is None else route.queue_datas)
            }
            expected = {
                name: (row.read_queue_nums, row.write_queue_nums, row.perm)
                for name, rows in own.items()
                if (row := rows.get(topic)) is not None
            }
            if advertised != expected:
                return (
                    f"{nameservers} has {topic} with {advertised},"
                    f" and masters have it with {expected}"
                )
    listed = [
        (parse_address(address), number)
        for group in table.values()
        for number, address in group.broker_addrs.items()
    ]
    if sorted(listed) == sorted(ids.items()):
        return ""
    return f"{nameservers} has the brokers {sorted(listed)}, and they are {sorted(ids.items())}"


async def read_everything(reading: Reading, groups: Iterable[int], world: World) -> None:
    """Read every queue to its end, query some keys, and in each queue each group's position, after
    the load."""
    numbers = list(groups)
    async with Consumer(world, nameservers=reading.nameservers, group="final-reader") as consumer:
        for topic in reading.topics:
            for queue in await consumer.queues(topic):
                await _read_to_end(reading, consumer, queue)
                for group in numbers:
                    await reading.read_back(consumer, FINAL_READER, group, queue)
    async with Admin(world, nameservers=reading.nameservers) as admin:
        for topic, key, value in reading.control.keys:
            await _ask_key(reading, admin, topic, key, value)


async def _read_to_end(reading: Reading, consumer: Consumer, queue: MessageQueue) -> None:
    offset = await _ask_bounds(reading, consumer, queue)
    times: list[int] = []
    while True:
        pulled = await consumer.pull(queue, offset)
        reading.note_pull(FINAL_READER, queue, offset, pulled)
        times += [message.stored_ms for message in pulled.messages]
        if pulled.status is PullStatus.NO_NEW or pulled.next_offset <= offset:
            break
        offset = pulled.next_offset
    await _read_filtered(reading, consumer, queue)
    for number in range(0, len(times), max(len(times) // SEARCHES, 1)):
        await _search_time(reading, consumer, queue, times[number] + number % 2)


async def _read_filtered(reading: Reading, consumer: Consumer, queue: MessageQueue) -> None:
    """Pull a tag whose hash is unique, and record the other messages that came: our client would
    filter them out."""
    low = await consumer.offsets.min_offset(queue)
    pulled = await consumer.pull(queue, low, tags=TAGS[-1])
    node = reading.place(pulled.address) or queue.broker_name
    fields = {"topic": queue.topic, "queue": queue.queue_id, "unwanted": pulled.unwanted}
    reading.history.event(Function.NODE, node, "filtered", fields)


async def _ask_bounds(reading: Reading, consumer: Consumer, queue: MessageQueue) -> int:
    """Return the first offset of a queue; recorded together with the last one."""
    low = await consumer.offsets.min_offset(queue)
    high = await consumer.offsets.max_offset(queue)
    _begin_query(reading, Function.BOUNDS, queue, value=high, operation=low).finish(Outcome.OK)
    return low


async def _search_time(
    reading: Reading, consumer: Consumer, queue: MessageQueue, time_ms: int
) -> None:
    row = _begin_query(reading, Function.SEARCH_TIME, queue, value=time_ms)
    row.finish(Outcome.OK, queue_offset=await consumer.offsets.offset_at(queue, time_ms))


def _begin_query(
    reading: Reading, function: Function, queue: MessageQueue, **fields: int
) -> Attempt:
    return reading.history.begin(
        function,
        process=FINAL_READER,
        topic=queue.topic,
        queue=queue.queue_id,
        node=queue.broker_name,
        **fields,
    )


async def _ask_key(reading: Reading, admin: Admin, topic: str, key: str, value: int) -> None:
    row = reading.history.begin(Function.QUERY_KEY, process=FINAL_READER, topic=topic, value=value)
    try:
        messages = await admin.messages_by_key(topic, key)
    except ClientFailure:
        row.finish(Outcome.INFO)
        return
    match = [message for message in messages if key in message.keys]
    row.finish(
        Outcome.OK,
        status=len(messages),
        queue=match[0].queue.queue_id if match else None,
        queue_offset=match[0].queue_offset if match else UNKNOWN,
    )
