"""Reading messages: single pulls, or all queues of a topic in turn by long polling.

A consumer reads every queue it is told to; members of a group do not share queues out among
themselves. What the group has in common is the committed offsets at the brokers.
"""

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Final, Literal, Self

import trio

from rocketbed.client.errors import BadMessage, ClientError
from rocketbed.client.flow import Batch, Flow
from rocketbed.client.messages import Received, check_group, check_topic
from rocketbed.client.offsets import QueueOffsets
from rocketbed.client.pulls import ALL, Pulled, Puller, PullStatus, TagFilter, describe
from rocketbed.client.routes import MASTER_ID
from rocketbed.client.session import Session
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.bodies import ConsumerData, MessageQueue, ProducerData, SubscriptionData
from rocketbed.world.api import World

__all__ = ["Consumer", "PullStatus", "Pulled", "Start"]

COUNT: Final = 32
"""Messages of one pull; brokers give no more by default."""
LAST_COMMIT_S: Final = 3.0
"""What a consumer that ends waits at most for its automatic commit."""
HOLD_S: Final = 15.0
"""How long a broker may hold a pull that finds nothing (wire.md 5.1)."""
QUEUES_S: Final = 10.0
"""Pause between looks for new queues of the subscribed topics. A broker that no nameserver knew
when its topic was subscribed to is not read before the next look."""

Start = Literal["first", "last"] | int
"""Where a group without committed offset begins; a number is a wall time in milliseconds."""


class Consumer:
    """Reads messages. `async with Consumer(nameservers="host:9876", group="g") as consumer: ...`

    Either call `pull` with offsets of your own, or `subscribe` and then `poll` again and again.
    Nothing is committed by itself unless `auto_commit_s` is given: call `commit` when what `poll`
    returned has been dealt with.
    """

    def __init__(
        self,
        world: World | None = None,
        *,
        nameservers: str | Sequence[str],
        group: str,
        auto_commit_s: float | None = None,
        hold_s: float = HOLD_S,
    ) -> None:
        """Nothing is connected yet. Raises `BadMessage` for arguments that cannot be used.

        With `auto_commit_s` positions are committed that often, and when the consumer ends, by an
        error too but not when it is cancelled; a message counts as dealt with once `poll` is called
        again.
        """
        check_group(group)
        self.group = group
        self._hold_s = hold_s
        self._auto_commit_s = auto_commit_s
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._session = Session(world, nameservers, groups=self._groups)
        self._puller = Puller(self._session, group)
        self.offsets = QueueOffsets(self._session)
        """Questions about any queue's offsets."""
        self._flows: dict[MessageQueue, Flow] = {}
        self._starts: dict[str, Start] = {}
        self._batches_in, self._batches_out = trio.open_memory_channel[Batch](0)
        self._uncounted: Batch | None = None
        """What the last poll returned: counts for automatic commits from the next poll on."""

    def _groups(self) -> tuple[list[ProducerData], list[ConsumerData]]:
        data = ConsumerData(
            group_name=self.group,
            consume_type="CONSUME_ACTIVELY",
            subscription_data_set=list(self._subscriptions.values()),
        )
        return [], [data]

    async def __aenter__(self) -> Self:
        await self._session.__aenter__()
        assert self._session.nursery is not None
        self._session.nursery.start_soon(self._watch_queues)
        if self._auto_commit_s is not None:
            self._session.nursery.start_soon(self._commit_forever, self._auto_commit_s)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._auto_commit_s is not None:
            # What counts is dealt with, whatever ends the block.
            with trio.move_on_after(LAST_COMMIT_S):
                await self._try_commit()
        await self._session.__aexit__(kind, error, traceback)

    # --- by hand

    async def queues(self, topic: str, *, fresh: bool = False) -> tuple[MessageQueue, ...]:
        """The topic's queues that can be read; with `fresh` as a nameserver knows them now, else
        as one did not long ago. Raises `ClientError`."""
        check_topic(topic)
        return (await self._session.routes.get(topic, fresh=fresh)).readable

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        tags: str = ALL,
        count: int = COUNT,
        hold_s: float = 0.0,
    ) -> Pulled:
        """Read from one queue. With `hold_s` the broker waits that long for a first message.

        Raises `RequestRefused`, other `ClientError`, `RemotingError`; nothing is changed then.
        """
        if offset < 0 or count < 1:
            raise BadMessage("offset must be at least 0 and count at least 1")
        return await self._puller.pull(
            queue, offset, TagFilter(tags), count=count, hold_s=hold_s, commit=lambda: None
        )

    # --- by subscription

    async def subscribe(
        self,
        topic: str,
        *,
        tags: str = ALL,
        start: Start = "last",
        queues: Iterable[MessageQueue] | None = None,
    ) -> None:
        """Read a topic from now on: all its queues, new ones too, or just `queues`.

        A queue begins at the group's committed offset, else where `start` says: at the first
        message, behind the last, or at the first one stored at a time (Unix, milliseconds).
        Subscribing again changes the tags. Raises `ClientError`, `RemotingError`; nothing has
        changed then.
        """
        check_topic(topic)
        if start not in ("first", "last") and type(start) is not int:
            raise BadMessage(f"start must be 'first', 'last' or a time in milliseconds: {start!r}")
        words = TagFilter(tags)
        wanted = None if queues is None else tuple(queues)
        for queue in wanted or ():
            if queue.topic != topic:
                raise BadMessage(f"{describe(queue)} is not a queue of topic {topic}")
        earlier = self._subscriptions.get(topic)
        own = self._subscriptions[topic] = SubscriptionData(
            topic=topic,
            sub_string=words.expression,
            tags_set=sorted(words.tags),
            sub_version=self._session.world.clock.wall_ms(),
        )
        offsets: dict[MessageQueue, int] = {}
        try:
            route = await self._session.routes.get(topic)
            for members in route.brokers.values():
                for broker_id, address in members.items():
                    if broker_id == MASTER_ID:
                        await self._try_heartbeat(address)
                    else:  # nothing waits for it: one that is gone without a word must not cost
                        self._session.tell(address)
            for queue in route.readable if wanted is None else wanted:
                offsets[queue] = await self._first_offset(queue, start)
        except BaseException:
            if self._subscriptions.get(topic) is own:
                del self._subscriptions[topic]
                if earlier is not None:
                    self._subscriptions[topic] = earlier
            raise
        for queue in [queue for queue in self._flows if queue.topic == topic]:
            self._flows.pop(queue).stop()
        # Only now, and without a pause: whoever looks for new queues takes up those that are not
        # read yet from their beginning.
        self._starts.pop(topic, None)
        if wanted is None:
            self._starts[topic] = start
        for queue, offset in offsets.items():
            self._begin(queue, words, offset)

    async def poll(self, *, timeout_s: float = 1.0) -> list[Received]:
        """The next messages of any subscribed queue, in order within the queue.

        Empty when none came in time. The position of the queue is behind them then. Raises
        `RequestRefused` when a broker refuses to serve a queue; polling may go on.
        """
        self._count_up()
        if not self._flows:
            raise ClientError("no subscription: call subscribe before poll")
        with trio.move_on_after(timeout_s):
            while True:
                batch = await self._batches_out.receive()
                if not batch.flow.is_current(batch):
                    continue
                if batch.failure is not None:
                    raise batch.failure
                batch.flow.position = batch.next_offset
                if batch.messages:
                    self._uncounted = batch
                    return list(batch.messages)
                batch.flow.done = batch.next_offset
        return []

    def position(self, queue: MessageQueue) -> int:
        """Offset of the next message that `poll` will return. Raises `ClientError`."""
        return self._flow(queue).position

    def positions(self) -> dict[MessageQueue, int]:
        """The same for all subscribed queues."""
        return {queue: flow.position for queue, flow in self._flows.items()}

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on reading at another offset. Raises `ClientError` for a queue not subscribed to."""
        if offset < 0:
            raise BadMessage("offset must be at least 0")
        flow = self._flow(queue)
        flow.seek(offset)
        if self._uncounted is not None and self._uncounted.flow is flow:
            self._uncounted = None

    async def commit(self, positions: dict[MessageQueue, int] | None = None) -> None:
        """Store positions at the brokers: these, or where `poll` stands in every queue.

        Raises `ClientError`, `RemotingError`; some queues may have been stored then.
        """
        wanted = self.positions() if positions is None else positions
        for queue, offset in wanted.items():
            flow = self._flows.get(queue)
            if positions is None and flow is not None and flow.committed == offset:
                continue
            if flow is not None:
                flow.told, flow.committed = offset, None
            await self.offsets.commit(self.group, queue, offset)
            if flow is not None:
                flow.committed = offset

    async def committed(self, queue: MessageQueue) -> int | None:
        """Where the group stands in a queue by its broker. Raises `ClientError`."""
        return await self.offsets.committed(self.group, queue)

    # --- inside

    def _flow(self, queue: MessageQueue) -> Flow:
        flow = self._flows.get(queue)
        if flow is None:
            raise ClientError(f"{describe(queue)} is not subscribed to")
        return flow

    def _begin(self, queue: MessageQueue, tags: TagFilter, offset: int) -> None:
        flow = Flow(
            self._session.world,
            self._puller,
            queue,
            tags,
            offset,
            self._batches_in,
            hold_s=self._hold_s,
        )
        self._flows[queue] = flow
        assert self._session.nursery is not None, "the consumer was not entered with `async with`"
        self._session.nursery.start_soon(flow.run)

    async def _first_offset(self, queue: MessageQueue, start: Start) -> int:
        stored = await self.offsets.committed(self.group, queue)
        if stored is not None:
            return stored
        if start == "first":
            return await self.offsets.min_offset(queue)
        if start == "last":
            return await self.offsets.max_offset(queue)
        return await self.offsets.offset_at(queue, start)

    async def _watch_queues(self) -> None:
        """Begin to read queues that a subscribed topic gained; those from their start."""
        while True:
            await trio.sleep(QUEUES_S)
            for topic in list(self._starts):
                try:
                    queues = await self.queues(topic, fresh=True)
                except (ClientError, RemotingError) as exc:
                    self._not_looked_at(topic, exc)
                    continue
                for queue in queues:
                    if queue not in self._flows:
                        await self._take_up(queue)

    async def _take_up(self, queue: MessageQueue) -> None:
        try:
            offset = await self._first_offset(queue, "first")
        except (ClientError, RemotingError) as exc:
            self._not_looked_at(describe(queue), exc)
            return
        # Subscribed to otherwise meanwhile, or by a second look.
        if queue.topic in self._starts and queue not in self._flows:
            self._begin(queue, TagFilter(self._subscriptions[queue.topic].sub_string), offset)

    def _not_looked_at(self, what: str, error: Exception) -> None:
        self._session.world.log.info("client.queues_not_looked_at", what=what, error=str(error))

    async def _try_heartbeat(self, address: tuple[str, int]) -> None:
        try:
            await self._session.heartbeat(address)
        except RemotingError as exc:
            self._session.world.log.info("client.heartbeat_lost", error=str(exc))

    # --- automatic commits

    def _count_up(self) -> None:
        if self._uncounted is not None:
            self._uncounted.flow.done = self._uncounted.next_offset
            self._uncounted = None

    async def _commit_forever(self, pause_s: float) -> None:
        while True:
            await trio.sleep(pause_s)
            await self._try_commit()

    async def _try_commit(self) -> None:
        """Commit what counts; a queue whose broker is away is left to the next time."""
        for queue, flow in list(self._flows.items()):
            try:
                if flow.done != flow.committed:
                    await self.commit({queue: flow.done})
            except (ClientError, RemotingError) as exc:
                self._session.world.log.info(
                    "client.not_committed", queue=describe(queue), error=str(exc)
                )
