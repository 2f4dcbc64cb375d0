"""Which queues a consumer reads, and where it begins in each."""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

import trio

from rocketbed.client.errors import BadMessage, ClientError, NoBroker
from rocketbed.client.flow import Batch, Flow
from rocketbed.client.messages import check_topic
from rocketbed.client.offsets import QueueOffsets
from rocketbed.client.pulls import Puller, TagFilter, describe
from rocketbed.client.routes import MASTER_ID, Route
from rocketbed.client.session import Session
from rocketbed.client.sharing import Sharing
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.bodies import MessageQueue, SubscriptionData
from rocketbed.world.api import Address

SHARE_S: Final = 10.0
"""Longest pause until the queues of the subscribed topics are shared out anew: brokers tell of
members that come and go, nobody of new queues."""

Start = Literal["first", "last"] | int
"""Where a group without committed offset begins; a number is a wall time in milliseconds."""


@dataclass(frozen=True, slots=True)
class _Shared:
    """A topic whose queues the members share out."""

    words: TagFilter
    start: Start
    known: frozenset[MessageQueue]
    """Its queues when we subscribed: those that it gains are read from their first message."""


class Subscriptions:
    """The topics of a consumer and the flows of its queues."""

    def __init__(
        self,
        session: Session,
        group: str,
        sharing: Sharing,
        offsets: QueueOffsets,
        puller: Puller,
        batches: trio.MemorySendChannel[Batch],
        *,
        hold_s: float,
        leave: Callable[[Flow], Awaitable[None]],
    ) -> None:
        """`leave` is awaited for each queue that is given up, after its flow has stopped."""
        self.told: dict[str, SubscriptionData] = {}
        """By topic, what brokers hear of us."""
        self.flows: dict[MessageQueue, Flow] = {}
        self._shared: dict[str, _Shared] = {}
        self._session = session
        self._group = group
        self._puller = puller
        self._sharing = sharing
        self._offsets = offsets
        self._batches = batches
        self._hold_s = hold_s
        self._leave = leave
        self._members_changed = trio.Event()

    @property
    def is_empty(self) -> bool:
        """Whether nothing can ever be received."""
        return not self.flows and not self._shared

    def flow(self, queue: MessageQueue) -> Flow:
        """Raises `ClientError` for a queue that is not read."""
        flow = self.flows.get(queue)
        if flow is None:
            raise ClientError(f"{describe(queue)} is not subscribed to, or another member's now")
        return flow

    async def subscribe(self, topic: str, tags: str, start: Start) -> None:
        """Read our part of a topic's queues; see `Consumer.subscribe`."""
        words = _checked(topic, tags, start)
        with self._subscribed(topic, words):
            route = await self._introduce(topic)
            queues = await self._sharing.own(route)
            if queues is None:
                raise NoBroker(f"no broker of topic {topic} tells who the members of the group are")
            offsets = {
                queue: await self._first_offset(queue, start, is_shared=True) for queue in queues
            }
        self._read_only(topic, words, offsets)
        self._shared[topic] = _Shared(words, start, frozenset(route.readable))

    async def assign(self, queues: Iterable[MessageQueue], tags: str, start: Start) -> None:
        """Read these queues of a topic; see `Consumer.assign`."""
        wanted = tuple(queues)
        if not wanted:
            raise BadMessage("assign needs at least one queue; unsubscribe reads none")
        topic = wanted[0].topic
        words = _checked(topic, tags, start)
        for queue in wanted:
            if queue.topic != topic:
                raise BadMessage(f"{describe(queue)} is not a queue of topic {topic}")
        with self._subscribed(topic, words):
            await self._introduce(topic)
            offsets = {queue: await self._first_offset(queue, start) for queue in wanted}
        self._read_only(topic, words, offsets)

    async def unsubscribe(self, topic: str) -> None:
        """Read a topic no more, and tell brokers."""
        self._shared.pop(topic, None)
        await self._give_up(queue for queue in self.flows if queue.topic == topic)
        if self.told.pop(topic, None) is not None:
            for link in self._session.connections.open_links():
                self._session.tell(link.address)

    # --- sharing out

    def share_soon(self) -> None:
        """Members came or went."""
        self._members_changed.set()

    async def share_forever(self) -> None:
        """Keep to the queues that are ours, until cancelled."""
        while True:
            with trio.move_on_after(SHARE_S):
                await self._members_changed.wait()
            self._members_changed = trio.Event()
            for topic, shared in list(self._shared.items()):
                try:
                    await self._share(topic, shared)
                except (ClientError, RemotingError) as exc:
                    self._not_shared(topic, exc)

    async def _share(self, topic: str, shared: _Shared) -> None:
        """Give up queues that are another member's, and take up those that are ours now.

        A broker that no nameserver knows at present keeps its queues with us: it may come back.
        """
        route = await self._session.routes.get(topic, fresh=True)
        for address in (one for members in route.brokers.values() for one in members.values()):
            if self._session.connections.found(address) is None:
                self._session.tell(address)
        own = await self._sharing.own(route)
        if own is None or self._shared.get(topic) is not shared:
            return
        mine = [queue for queue in self.flows if queue.topic == topic]
        await self._give_up(
            queue for queue in mine if queue not in own and queue.broker_name in route.brokers
        )
        for queue in own:
            if queue not in self.flows:
                await self._take_up(queue, shared)

    async def _give_up(self, queues: Iterable[MessageQueue]) -> None:
        for queue in list(queues):
            flow = self.flows.pop(queue, None)
            if flow is not None:
                flow.stop()
                await self._leave(flow)

    async def _take_up(self, queue: MessageQueue, shared: _Shared) -> None:
        try:
            start: Start = shared.start if queue in shared.known else "first"
            offset = await self._first_offset(queue, start, is_shared=True)
        except (ClientError, RemotingError) as exc:
            self._not_shared(describe(queue), exc)
            return
        # Subscribed to otherwise meanwhile, or not at all.
        if self._shared.get(queue.topic) is shared and queue not in self.flows:
            self._begin(queue, shared.words, offset)

    def _not_shared(self, what: str, error: Exception) -> None:
        self._session.world.log.info("client.queues_not_shared", what=what, error=str(error))

    # --- reading

    @contextmanager
    def _subscribed(self, topic: str, words: TagFilter) -> Iterator[None]:
        """Brokers hear of a subscription; what fails inside takes that back."""
        earlier = self.told.get(topic)
        own = self.told[topic] = SubscriptionData(
            topic=topic,
            sub_string=words.expression,
            tags_set=sorted(words.tags),
            sub_version=self._session.world.clock.wall_ms(),
        )
        try:
            yield
        except BaseException:
            if self.told.get(topic) is own:
                del self.told[topic]
                if earlier is not None:
                    self.told[topic] = earlier
            raise

    async def _introduce(self, topic: str) -> Route:
        """Tell the topic's brokers of us. Raises `ClientError`."""
        route = await self._session.routes.get(topic)
        for members in route.brokers.values():
            for broker_id, address in members.items():
                if broker_id == MASTER_ID:
                    await self._try_heartbeat(address)
                else:  # nothing waits for it: one that is gone without a word must not cost
                    self._session.tell(address)
        return route

    async def _try_heartbeat(self, address: Address) -> None:
        try:
            await self._session.heartbeat(address)
        except RemotingError as exc:
            self._session.world.log.info("client.heartbeat_lost", error=str(exc))

    def _read_only(self, topic: str, words: TagFilter, offsets: dict[MessageQueue, int]) -> None:
        """From now on, and without a pause: a round of sharing out that is under way must not take
        up what is not read yet."""
        self._shared.pop(topic, None)
        for queue in [queue for queue in self.flows if queue.topic == topic]:
            self.flows.pop(queue).stop()
        for queue, offset in offsets.items():
            self._begin(queue, words, offset)

    def _begin(self, queue: MessageQueue, words: TagFilter, offset: int) -> None:
        flow = self.flows[queue] = Flow(
            self._session.world,
            self._puller,
            queue,
            words,
            offset,
            self._batches,
            hold_s=self._hold_s,
        )
        assert self._session.nursery is not None, "the consumer was not entered with `async with`"
        self._session.nursery.start_soon(flow.run)

    async def _first_offset(
        self, queue: MessageQueue, start: Start, *, is_shared: bool = False
    ) -> int:
        """Where we begin; in a shared queue with us whoever gets it before our first commit."""
        stored = await self._offsets.committed(self._group, queue)
        if stored is not None:
            return stored
        if start == "first":  # it is the same for everybody
            return await self._offsets.min_offset(queue)
        if start == "last":
            offset = await self._offsets.max_offset(queue)
        else:
            offset = await self._offsets.offset_at(queue, start)
        if is_shared:
            await self._offsets.commit(self._group, queue, offset)
        return offset


def _checked(topic: str, tags: str, start: Start) -> TagFilter:
    check_topic(topic)
    if start not in ("first", "last") and type(start) is not int:
        raise BadMessage(f"start must be 'first', 'last' or a time in milliseconds: {start!r}")
    return TagFilter(tags)
