"""Queues that a consumer reads, and their first offsets."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Literal

import trio

from rocketbed.client.arguments import check_queue, check_time
from rocketbed.client.errors import BadMessage, ClientError, NoBroker, NoRoute
from rocketbed.client.flow import Batch, Flow
from rocketbed.client.local import AllQueues, Positions
from rocketbed.client.locks import Locks
from rocketbed.client.messages import check_topic
from rocketbed.client.offsets import QueueOffsets
from rocketbed.client.pulls import Puller, TagFilter, describe
from rocketbed.client.routes import MASTER_ID, Route
from rocketbed.client.session import Session
from rocketbed.client.sharing import MembersAt, Sharing
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.bodies import MessageQueue, SubscriptionData
from rocketbed.wire.errors import RocketbedError
from rocketbed.world.api import Address

SHARE_S: Final = 10.0
"""Longest pause between shares of the subscribed topics' queues, seconds: brokers report members
that join and leave, but no new queues."""

LOCK_S: Final = 1.0
"""Longest pause while waiting for a lock, seconds."""
HAND_OVER_S: Final = 0.2
"""Time for another member to commit its positions in queues that it gives up, seconds."""
ASKED_AT_ONCE: Final = 32
"""Most queues of one subscription whose offsets are queried at once."""
LET_GO_S: Final = 20.0
"""Longest time, seconds, for which a message that is being handled delays the release of its
queue's lock."""

Start = Literal["first", "last"] | int
"""First position of a group without committed offset; a number is a wall time in milliseconds."""


@dataclass(frozen=True, slots=True)
class _Shared:
    """A topic whose queues the members share."""

    words: TagFilter
    start: Start
    initial_queues: set[MessageQueue]
    """Queues of the topic since the time of the subscription; queues added later are read from
    their first message."""


class Subscriptions:
    """Topics of a consumer and the flows of its queues."""

    def __init__(
        self,
        session: Session,
        group: str,
        sharing: Sharing | AllQueues,
        offsets: QueueOffsets,
        positions: Positions,
        puller: Puller,
        batches: trio.MemorySendChannel[Batch | None],
        *,
        hold_s: float,
        leave: Callable[[Sequence[Flow]], Awaitable[None]],
        locks: Locks | None,
    ) -> None:
        """With `locks` a shared queue is read only while this member holds its lock. `leave` is
        awaited for each queue that is given up, after its flow has stopped, and for the queues of a
        topic before it is subscribed to again."""
        self.reported: dict[str, SubscriptionData] = {}
        """Subscriptions by topic, as heartbeats report them."""
        self.flows: dict[MessageQueue, Flow] = {}
        self._shared: dict[str, _Shared] = {}
        self._session = session
        self._group = group
        self._puller = puller
        self._sharing = sharing
        self._offsets = offsets
        self._positions = positions
        self._batches = batches
        self._hold_s = hold_s
        self._leave = leave
        self._locks = locks
        self._members_changed = trio.Event()
        self._changes = 0
        """Number of times that members joined or left."""
        self._is_waiting = False
        """True while another member holds a lock that this one needs."""
        self._subscribing = 0
        """Calls of `subscribe` under way: the queues they have locked are not read yet."""
        self._leaving: set[MessageQueue] = set()
        """Queues still locked while their last messages are handled."""

    @property
    def is_empty(self) -> bool:
        """True if no message can ever be received."""
        return not self.flows and not self._shared

    def flow(self, queue: MessageQueue) -> Flow:
        """Return the flow of a queue. Raises `ClientError` if it is not read."""
        check_queue(queue)
        flow = self.flows.get(queue)
        if flow is None:
            raise ClientError(f"{describe(queue)} is not subscribed to, or another member's now")
        return flow

    async def subscribe(self, topic: str, tags: str, start: Start) -> None:
        """Read this member's share of a topic's queues; see `Consumer.subscribe`."""
        words = _checked(topic, tags, start)
        self._subscribing += 1
        try:
            await self._subscribe(topic, words, start)
        except BaseException:
            self.share_soon()  # this releases the locks that it took
            raise
        finally:
            self._subscribing -= 1

    async def _subscribe(self, topic: str, words: TagFilter, start: Start) -> None:
        with self._subscribed(topic, words):
            await self._leave_all(topic)
            route = await self._introduce(topic)
            changes = self._changes
            queues = await self._own(route, {})
            if queues is None:
                raise NoBroker(f"no broker of topic {topic} tells who the members of the group are")
            if len(queues) < len(route.readable):
                await trio.sleep(HAND_OVER_S)
            offsets = await self._first_offsets(queues, start, is_shared=True)
        self._read_only(topic, words, offsets, is_shared=True)
        self._shared[topic] = _Shared(words, start, set(route.readable))
        # A share computed meanwhile skipped this topic.
        if self._is_waiting or changes != self._changes:
            self.share_soon()

    def expect(self, topic: str) -> None:
        """Read this member's share of a topic from its beginning, once the topic exists."""
        words = TagFilter()
        with self._subscribed(topic, words):
            self._shared.setdefault(topic, _Shared(words, "first", set()))
        self._tell_all()
        self.share_soon()

    async def assign(self, queues: Iterable[MessageQueue], tags: str, start: Start) -> None:
        """Read these queues of a topic; see `Consumer.assign`."""
        assigned = tuple(queues)
        if not assigned:
            raise BadMessage("assign needs at least one queue; unsubscribe reads none")
        for queue in assigned:
            check_queue(queue)
        topic = assigned[0].topic
        words = _checked(topic, tags, start)
        for queue in assigned:
            if queue.topic != topic:
                raise BadMessage(f"{describe(queue)} is not a queue of topic {topic}")
        with self._subscribed(topic, words):
            await self._leave_all(topic)
            await self._introduce(topic)
            offsets = await self._first_offsets(assigned, start)
        self._read_only(topic, words, offsets)

    async def _leave_all(self, topic: str) -> None:
        """Commit finished messages, so that subscribing again does not deliver them again."""
        await self._leave([flow for queue, flow in self.flows.items() if queue.topic == topic])

    async def unsubscribe(self, topic: str) -> None:
        """Stop reading a topic, and tell the brokers."""
        self._shared.pop(topic, None)
        await self._give_up(queue for queue in self.flows if queue.topic == topic)
        if self.reported.pop(topic, None) is not None:
            self._tell_all()

    def _tell_all(self) -> None:
        for link in self._session.connections.open_links():
            self._session.tell(link.address)

    # --- sharing out

    def share_soon(self) -> None:
        """Compute the shares soon, because members joined or left."""
        self._changes += 1
        self._members_changed.set()

    async def share_forever(self) -> None:
        """Keep reading this member's share of the queues, until cancelled."""
        while True:
            with trio.move_on_after(LOCK_S if self._is_waiting else SHARE_S):
                await self._members_changed.wait()
            self._members_changed = trio.Event()
            self._is_waiting = False
            self._session.routes.has_nameserver = True
            members_at: MembersAt = {}
            for topic, shared in list(self._shared.items()):
                try:
                    await self._share(topic, shared, members_at)
                except RocketbedError as exc:
                    self._not_shared(topic, exc)
            with suppress(RocketbedError):
                await self._unlock_strays()

    async def _share(self, topic: str, shared: _Shared, members_at: MembersAt) -> None:
        """Give up queues that are now another member's or withdrawn, and start reading new ones.

        Queues of a broker that no nameserver knows at present are kept, since it may come back.
        """
        # Without a nameserver each query takes seconds, and the locks of many topics would expire.
        routes = self._session.routes
        try:
            route = await routes.get(topic, fresh=routes.has_nameserver)
        except NoRoute:
            await self._forget(shared, self._refused(topic))
            raise
        for address in (
            address for members in route.brokers.values() for address in members.values()
        ):
            if self._session.connections.existing(address) is None:
                self._session.tell(address)
        own = await self._own(route, members_at)
        if own is None or self._shared.get(topic) is not shared:
            return
        current = [queue for queue in self.flows if queue.topic == topic]
        routed = [queue for queue in current if queue.broker_name in route.brokers]
        foreign = [queue for queue in routed + self._refused(topic) if queue not in own]
        await self._forget(shared, [queue for queue in foreign if queue not in route.readable])
        await self._give_up(foreign)
        new = [queue for queue in own if queue not in self.flows]
        if new:
            await trio.sleep(HAND_OVER_S)
        for queue in new:
            await self._take_up(queue, shared)

    def _refused(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that their brokers refuse now."""
        flows = self.flows.items()
        return [q for q, flow in flows if q.topic == topic and flow.refused_code is not None]

    async def _forget(self, shared: _Shared, queues: Iterable[MessageQueue]) -> None:
        """Give up queues that the topic no longer has; if they come again, they are new ones."""
        withdrawn = list(dict.fromkeys(queues))
        for queue in withdrawn:
            shared.initial_queues.discard(queue)
            self._session.world.log.warning(
                "client.queue_withdrawn",
                queue=describe(queue),
                position=self.flows[queue].position,
                advice="what it has from there on can be read when the queue is there again",
            )
        await self._give_up(withdrawn)

    async def _own(self, route: Route, members_at: MembersAt) -> list[MessageQueue] | None:
        """Return the queues that this member is to read; None when no broker answered."""
        own = await self._sharing.own(route, members_at)
        if own is None or self._locks is None:
            return own
        requested = [queue for queue in own if queue not in self._leaving]
        locked = await self._locks.hold(route, requested)
        if len(locked) < len(own):  # another member is about to release them
            self._is_waiting = True
        return locked

    async def unlock(self) -> None:
        """Release the locks of all queues when the client closes."""
        if self._locks is not None:
            await self._locks.release_all()

    async def _unlock_strays(self) -> None:
        """Release locks of queues that are not read: their subscription failed or was withdrawn
        meanwhile."""
        if self._locks is None or self._subscribing:
            return
        strays = sorted(self._locks.requested - self.flows.keys() - self._leaving)
        for topic in dict.fromkeys(queue.topic for queue in strays):
            if topic not in self._shared:
                route = await self._session.routes.get(topic)
                await self._locks.release(
                    route, [queue for queue in strays if queue.topic == topic]
                )

    async def _give_up(self, queues: Iterable[MessageQueue]) -> None:
        stopped: list[Flow] = []
        for queue in list(queues):
            flow = self.flows.pop(queue, None)
            if flow is not None:
                flow.stop()
                if self._locks is None:
                    stopped.append(flow)
                else:
                    assert self._session.nursery is not None
                    self._leaving.add(queue)
                    self._session.nursery.start_soon(self._let_go, flow, self._locks)
        await self._leave(stopped)

    async def _let_go(self, flow: Flow, locks: Locks) -> None:
        """Release a queue's lock once its last message is handled here."""
        with trio.move_on_after(LET_GO_S):
            await flow.progress.idle()
        await self._leave([flow])
        with suppress(ClientError):
            await locks.release(await self._session.routes.get(flow.queue.topic), [flow.queue])
        self._leaving.discard(flow.queue)

    async def _take_up(self, queue: MessageQueue, shared: _Shared) -> None:
        try:
            start: Start = shared.start if queue in shared.initial_queues else "first"
            offset = await self._first_offset(queue, start, is_shared=True)
        except RocketbedError as exc:
            self._not_shared(describe(queue), exc)
            return
        # Not subscribed any more, or subscribed again in another way, meanwhile.
        if self._shared.get(queue.topic) is shared and queue not in self.flows:
            self._begin(queue, shared.words, offset, is_shared=True)

    def _not_shared(self, subject: str, error: Exception) -> None:
        self._session.world.log.info("client.queues_not_shared", what=subject, error=str(error))

    # --- reading

    @contextmanager
    def _subscribed(self, topic: str, words: TagFilter) -> Iterator[None]:
        """Tell brokers of a subscription, and withdraw it if the block fails."""
        earlier = self.reported.get(topic)
        own = self.reported[topic] = SubscriptionData(
            topic=topic,
            sub_string=words.expression,
            tags_set=sorted(words.tags),
            sub_version=self._session.world.clock.wall_ms(),
        )
        try:
            yield
        except BaseException:
            if self.reported.get(topic) is own:
                del self.reported[topic]
                if earlier is not None:
                    self.reported[topic] = earlier
            raise

    async def _introduce(self, topic: str) -> Route:
        """Send heartbeats to the topic's brokers. Raises `ClientError`."""
        route = await self._session.routes.get(topic)
        for members in route.brokers.values():
            for broker_id, address in members.items():
                if broker_id == MASTER_ID:
                    await self._try_heartbeat(address)
                else:  # not waited for: an unreachable broker must not delay the others
                    self._session.tell(address)
        return route

    async def _try_heartbeat(self, address: Address) -> None:
        try:
            await self._session.heartbeat(address)
        except RemotingError as exc:
            self._session.world.log.info("client.heartbeat_lost", error=str(exc))

    def _read_only(
        self,
        topic: str,
        words: TagFilter,
        offsets: dict[MessageQueue, int],
        *,
        is_shared: bool = False,
    ) -> None:
        """Read only these queues from now on. It has no await, so that a share being computed
        cannot start reading queues in between."""
        self._shared.pop(topic, None)
        for queue in [queue for queue in self.flows if queue.topic == topic]:
            self.flows.pop(queue).stop()
        for queue, offset in offsets.items():
            self._begin(queue, words, offset, is_shared=is_shared)

    def _begin(
        self, queue: MessageQueue, words: TagFilter, offset: int, *, is_shared: bool
    ) -> None:
        flow = self.flows[queue] = Flow(
            self._session.world,
            self._puller,
            queue,
            words,
            offset,
            self._batches,
            hold_s=self._hold_s,
            is_ordered=self._locks is not None,
            on_refused=self.share_soon if is_shared else None,
        )
        assert self._session.nursery is not None, "the consumer was not entered with `async with`"
        self._session.nursery.start_soon(flow.run)

    async def _first_offsets(
        self, queues: Sequence[MessageQueue], start: Start, *, is_shared: bool = False
    ) -> dict[MessageQueue, int]:
        offsets: dict[MessageQueue, int] = {}
        limiter = trio.CapacityLimiter(ASKED_AT_ONCE)
        failures: list[RocketbedError] = []

        async def ask(queue: MessageQueue) -> None:
            async with limiter:
                if not failures:
                    try:
                        offsets[queue] = await self._first_offset(queue, start, is_shared=is_shared)
                    except RocketbedError as exc:
                        failures.append(exc)

        async with trio.open_nursery() as nursery:
            for queue in queues:
                nursery.start_soon(ask, queue)
        if failures:
            raise failures[0]
        return {queue: offsets[queue] for queue in queues}

    async def _first_offset(
        self, queue: MessageQueue, start: Start, *, is_shared: bool = False
    ) -> int:
        """Return the first offset; for a shared queue it is committed, so that its reader before
        the first commit starts there too."""
        stored = await self._positions.committed(self._group, queue)
        if stored is not None:
            return stored
        if start == "first":  # the same for every member
            return await self._offsets.min_offset(queue)
        if start == "last":
            offset = await self._offsets.max_offset(queue)
        else:
            offset = await self._offsets.offset_at(queue, start)
        if is_shared:
            await self._positions.commit(self._group, queue, offset)
        return offset


def _checked(topic: str, tags: str, start: Start) -> TagFilter:
    check_topic(topic)
    if type(start) is int:
        check_time(start)
    elif start not in ("first", "last"):
        raise BadMessage(f"start must be 'first', 'last' or a time in milliseconds: {start!r}")
    return TagFilter(tags)
