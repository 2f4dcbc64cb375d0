"""Reading messages: by single pulls, or from the queues of subscribed topics by long polling.

The members of a group share the queues of their topics among themselves, again whenever a member
joins or leaves or the queues change. Apart from that they share only the committed offsets at the
brokers.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from types import TracebackType
from typing import Final, Self

import trio

from rocketbed.client.allocate import ALLOCATIONS, Allocation, AllocationName
from rocketbed.client.arguments import check_hold, check_listening, check_method, check_offset
from rocketbed.client.broker_requests import Asked
from rocketbed.client.commits import Commits
from rocketbed.client.errors import BadMessage, ClientError
from rocketbed.client.flow import COUNT, Flow, key_of
from rocketbed.client.inbox import Inbox
from rocketbed.client.listener import (
    HANDLER_S,
    RETRIES,
    WORKERS,
    Caller,
    Handler,
    Listener,
    here,
    retry_topic,
)
from rocketbed.client.local import AllQueues, LocalPositions, Positions
from rocketbed.client.locks import Locks
from rocketbed.client.messages import Received, check_group, check_topic
from rocketbed.client.offsets import QueueOffsets
from rocketbed.client.pulls import ALL, Pulled, Puller, PullStatus, TagFilter
from rocketbed.client.session import Session
from rocketbed.client.sharing import Sharing
from rocketbed.client.subscriptions import Start, Subscriptions
from rocketbed.client.tracing import Tracing
from rocketbed.remoting.handlers import Handlers
from rocketbed.wire.bodies import ConsumerData, MessageQueue, ProducerData
from rocketbed.world.api import World

__all__ = ["Consumer", "PullStatus", "Pulled", "Start"]

LAST_COMMIT_S: Final = 3.0
"""Longest wait for the automatic commit of a closing consumer, seconds."""
LAST_HANDLED_S: Final = 3.0
"""Longest wait before that for functions that are handling messages, seconds."""
HOLD_S: Final = 15.0
"""Time for which a broker may keep a pull waiting for messages (long poll), seconds (wire.md
5.1)."""
COMMIT_S: Final = 5.0
"""Pause between commits of handled messages of listeners, seconds (wire.md 6.1)."""


class Consumer:
    """Reads messages. `async with Consumer(nameservers="host:9876", group="g") as consumer: ...`

    `subscribe` to topics, then iterate (`async for message in consumer`) or call `poll` repeatedly;
    `assign` reads queues that the program chooses, and `pull` reads one queue from any offset.
    Nothing is committed automatically unless `auto_commit_s` is given: call `commit` when the
    received messages are finished.
    """

    def __init__(
        self,
        world: World | None = None,
        *,
        nameservers: str | Sequence[str],
        group: str,
        auto_commit_s: float | None = None,
        hold_s: float = HOLD_S,
        allocation: AllocationName | Allocation = "average",
        ordered: bool = False,
        broadcast: str | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """Prepare the client; nothing is connected yet. Raises `BadMessage` for unusable arguments.

        `auto_commit_s`: commit positions this often, in seconds, and also before a queue goes to
        another member and when the consumer closes, even by an error or a cancellation. A message
        is finished once the task that polled it polls again, commits, or calls `finish` with it.
        `hold_s`: time for which a broker keeps a pull waiting for messages (long poll), seconds.
        `allocation`: rule by which members share queues, the same for all of them; see
        `allocate.py`. `ordered`: hand out a queue's messages one at a time, each when its
        predecessor is finished, and under the broker's lock, so that no other ordered member of the
        group reads the queue. `broadcast`: path of a file. The consumer then reads all queues,
        whatever other members read (RocketMQ: broadcasting), and keeps its positions in that file,
        not at the brokers. All members of the group must agree on this, and each needs a file of
        its own. `tracing`: observer of the messages that `listen` handles; see `tracing.py`,
        `rocketbed.otel`.
        """
        check_group(group)
        if isinstance(allocation, str):
            if allocation not in ALLOCATIONS:
                names = ", ".join(ALLOCATIONS)
                raise BadMessage(f"allocation must be one of {names}, or a function: {allocation}")
            allocation = ALLOCATIONS[allocation]
        elif not callable(allocation):
            raise BadMessage(f"allocation must be a name or a function: {allocation!r}")
        if broadcast is not None and (ordered or not broadcast):
            raise BadMessage("broadcast needs the path of a file, and a consumer without order")
        if auto_commit_s is not None and not auto_commit_s > 0:
            raise BadMessage(f"auto_commit_s must be positive: {auto_commit_s!r}")
        check_hold(hold_s)
        check_method("tracing", tracing, "handling")
        self.group = group
        self._auto_commit_s = auto_commit_s
        self._is_ordered = ordered
        self._tracing = tracing
        handlers = Handlers()
        self._session = Session(world, nameservers, groups=self._groups, handlers=handlers)
        self._puller = Puller(self._session, group)
        self.offsets = QueueOffsets(self._session)
        """First, last and committed offset of any queue; offset at a time."""
        self._local = None if broadcast is None else LocalPositions(self._session.world, broadcast)
        self._positions: Positions = self._local or self.offsets
        self._inbox = Inbox(is_ordered=ordered)
        self._subscriptions = Subscriptions(
            self._session,
            group,
            AllQueues() if self._local else Sharing(self._session, group, allocation),
            self.offsets,
            self._positions,
            self._puller,
            self._inbox.batches,
            hold_s=hold_s,
            leave=self._leave,
            locks=Locks(self._session, group) if ordered else None,
        )
        self._commits = Commits(self._session.world, group, self._subscriptions, self._positions)
        Asked(self._session, group, self._subscriptions, self._commits, is_ordered=ordered).add_to(
            handlers
        )
        self._listeners: list[Listener] = []
        self._listener_ended = trio.Event()

    def _groups(self) -> tuple[list[ProducerData], list[ConsumerData]]:
        data = ConsumerData(
            group_name=self.group,
            consume_type="CONSUME_ACTIVELY",
            message_model="BROADCASTING" if self._local else "CLUSTERING",
            subscription_data_set=list(self._subscriptions.reported.values()),
        )
        return [], [data]

    async def __aenter__(self) -> Self:
        await self._session.__aenter__()
        if self._local is not None:
            try:
                self._local.open()
            except BaseException as exc:
                await self._session.__aexit__(type(exc), exc, exc.__traceback__)
                raise
        assert self._session.nursery is not None
        self._session.nursery.start_soon(self._subscriptions.share_forever)
        if self._auto_commit_s is not None:
            self._session.nursery.start_soon(self._commits.try_forever, self._auto_commit_s)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            try:
                await self._end_listeners()
            finally:
                if self._auto_commit_s is not None or self._is_ordered:
                    await self._session.last_words(error, self._let_go, LAST_COMMIT_S)
        finally:
            try:
                await self._session.__aexit__(kind, error, traceback)
            finally:
                self._inbox.close()
                if self._local is not None:
                    self._local.close()

    async def _end_listeners(self) -> None:
        """Wait a limited time for listeners of other tasks or threads to finish the messages in
        hand."""
        self.stop_listening()
        if self._listeners:
            with trio.move_on_after(LAST_HANDLED_S):
                while self._listeners:
                    await self._listener_ended.wait()

    async def _let_go(self) -> None:
        # Commit finished messages, whatever ends the block.
        if self._auto_commit_s is not None:
            await self._commits.try_all()
        await self._subscriptions.unlock()

    # --- by hand

    async def queues(self, topic: str, *, fresh: bool = False) -> tuple[MessageQueue, ...]:
        """Return the topic's readable queues: with `fresh` as a nameserver reports them now, else
        from a recent answer. Raises `ClientError`."""
        self._session.check_entered()
        check_topic(topic)
        await trio.lowlevel.checkpoint()  # the route may be at hand
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
        """Read from one queue at an offset, at most `count` messages.

        With `hold_s` the broker waits up to this many seconds for a first message (long poll).
        Raises `RequestRefused`, other `ClientError`, `RemotingError`; the consumer's state is then
        unchanged.
        """
        self._session.check_entered()
        if offset < 0 or count < 1:
            raise BadMessage("offset must be at least 0 and count at least 1")
        check_hold(hold_s)
        return await self._puller.pull(
            queue, offset, TagFilter(tags), count=count, hold_s=hold_s, commit=lambda: None
        )

    # --- by subscription

    async def subscribe(self, topic: str, *, tags: str = ALL, start: Start = "last") -> None:
        """Read this member's share of a topic's queues from now on. All members of a group have to
        subscribe to the same topics and tags.

        Each queue starts at the group's committed offset. Without one it starts at `start`: "first"
        message, after the "last", or at the first message stored at a time (Unix, milliseconds).
        That start is committed at once, so that the queue's next reader starts there too; but not
        with "first", which all members then have to pass. A queue that is added to the topic starts
        at its first message. Subscribing again changes the tags, and starts from the group's
        offsets at that time. Raises `ClientError`, `RemotingError`; the subscriptions are then
        unchanged, but first positions of some queues may have been committed.
        """
        self._session.check_entered()
        await self._subscriptions.subscribe(topic, tags, start)

    async def assign(
        self,
        queues: Iterable[MessageQueue],
        *,
        tags: str = ALL,
        start: Start = "last",
    ) -> None:
        """Read exactly these queues of one topic, whatever other members read; such a consumer
        should have a group of its own. Each queue starts as with `subscribe`, but nothing is
        committed. Raises `ClientError`, `RemotingError`; nothing has changed then."""
        self._session.check_entered()
        await self._subscriptions.assign(queues, tags, start)

    async def unsubscribe(self, topic: str) -> None:
        """Stop reading a topic; with `auto_commit_s`, finished messages are committed before.

        The other members do not take over its queues meanwhile: members are counted by group, not
        by topic.
        """
        self._session.check_entered()
        await trio.lowlevel.checkpoint()  # it may read no queue of the topic
        await self._subscriptions.unsubscribe(topic)

    async def poll(self, *, timeout_s: float = 1.0) -> list[Received]:
        """Return the next messages of any queue that this consumer reads, in order within the
        queue.

        Empty when none came within `timeout_s` seconds; with 0 it returns only messages that are
        already here. The queue's position is then after them. A queue that an operator withdraws is
        left with a warning in the log. Raises `RequestRefused` when a broker refuses to serve one
        that the topic has; polling may continue.
        """
        self._session.check_entered()
        self._inbox.finish_own()
        self._check_subscribed()
        if timeout_s <= 0:
            await trio.lowlevel.checkpoint()
            return self._inbox.batch_now()
        with trio.move_on_after(timeout_s):
            return await self._inbox.batch()
        return []

    def give_back(self, given: Received | list[Received]) -> None:
        """Take back messages that a call of this task returned and the program never received; the
        next call returns them."""
        self._inbox.give_back(given)

    def __aiter__(self) -> AsyncIterator[Received]:
        """Iterate over messages; each is finished when the task asks for the next one."""
        return self

    async def __anext__(self) -> Received:
        self._session.check_entered()
        self._inbox.finish_own()
        self._check_subscribed()
        return await self._inbox.message()

    async def listen(
        self,
        handler: Handler,
        *,
        workers: int = WORKERS,
        max_retries: int = RETRIES,
        timeout_s: float = HANDLER_S,
    ) -> None:
        """Call `handler` for each message of the subscribed topics, for up to `workers` at once,
        until cancelled or `stop_listening`.

        If the consumer is `ordered`, order is kept within a queue: a message that cannot be handled
        is tried again here each second, up to `max_retries` times, and delays its queue meanwhile.

        A message for which `handler` raises, or takes longer than `timeout_s` seconds, is delivered
        to the group again: after 10 s, 30 s, 1 min and so on (RocketMQ's delay levels from 3 on),
        up to `max_retries` times, and then goes to the topic `%DLQ%group`. With `broadcast` it is
        tried again here as often, each second, and then skipped with a warning. Handled messages
        are committed every 5 s, or every `auto_commit_s`.
        """
        check_listening(handler, workers, max_retries, timeout_s)
        await self.listen_by(
            here(handler), workers=workers, max_retries=max_retries, timeout_s=timeout_s
        )

    async def listen_by(
        self, call: Caller, *, workers: int, max_retries: int, timeout_s: float
    ) -> None:
        """Do as `listen` for a function that runs in another thread or loop."""
        self._session.check_entered()
        check_listening(call, workers, max_retries, timeout_s)
        self._check_subscribed()
        assert self._session.nursery is not None
        if self._auto_commit_s is None:
            self._auto_commit_s = COMMIT_S
            self._session.nursery.start_soon(self._commits.try_forever, COMMIT_S)
        if not self._is_ordered and self._local is None:
            self._subscriptions.expect(retry_topic(self.group))
        listener = Listener(
            self._session,
            self.group,
            call,
            self._inbox,
            lambda queue: queue in self._subscriptions.flows,
            max_retries=max_retries,
            timeout_s=timeout_s,
            is_ordered=self._is_ordered,
            is_broadcast=self._local is not None,
            tracing=self._tracing,
        )
        self._listeners.append(listener)
        try:
            await listener.run(workers)
        finally:
            self._listeners.remove(listener)
            self._listener_ended.set()
            self._listener_ended = trio.Event()
        await self._commits.try_all()

    def stop_listening(self) -> None:
        """Let `listen` return once the messages in hand are handled."""
        for listener in self._listeners:
            listener.stop()

    def finish(self, *messages: Received) -> None:
        """Mark messages as finished, in any order, whichever task received them."""
        for message in messages:
            flow = self._subscriptions.flows.get(message.queue)
            if flow is not None:
                flow.progress.finish(key_of(message))
            self._inbox.finish(message)
        self._inbox.go_on()

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message that will be handed out. Raises `ClientError`."""
        return self._subscriptions.flow(queue).position

    def positions(self) -> dict[MessageQueue, int]:
        """Return the offset of the next message of each queue that this consumer reads."""
        return {queue: flow.position for queue, flow in self._subscriptions.flows.items()}

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at another offset. Raises `ClientError` for a queue that this consumer does not
        read."""
        check_offset(offset)
        self._subscriptions.flow(queue).seek(offset)

    async def seek_to_time(self, queue: MessageQueue, time_ms: int) -> None:
        """Continue at the first message stored at or after a time (Unix, milliseconds). Raises
        `ClientError`, `RemotingError`."""
        self._subscriptions.flow(queue)
        offset = await self.offsets.offset_at(queue, time_ms)
        self.seek(queue, offset)

    def pause(self, *queues: MessageQueue) -> None:
        """Hand out no messages of these queues until `resume`, or until another member has had
        them. Raises `ClientError`."""
        for flow in [self._subscriptions.flow(queue) for queue in queues]:
            flow.pause()

    def resume(self, *queues: MessageQueue) -> None:
        """Continue with these queues. Raises `ClientError`."""
        for flow in [self._subscriptions.flow(queue) for queue in queues]:
            flow.resume()
        self._inbox.wake()

    async def lag(self) -> dict[MessageQueue, int]:
        """Return the number of messages of each queue of this consumer that were not handed out
        yet. Raises `ClientError`, `RemotingError`."""
        self._session.check_entered()
        await trio.lowlevel.checkpoint()  # it may read no queue
        ends = {
            queue: await self.offsets.max_offset(queue) for queue in list(self._subscriptions.flows)
        }
        return {
            queue: max(end - self.position(queue), 0)
            for queue, end in ends.items()
            if queue in self._subscriptions.flows
        }

    async def commit(self, positions: dict[MessageQueue, int] | None = None) -> None:
        """Commit positions at the brokers: those given, or for each queue of this consumer the
        first message that is not finished.

        The messages that this task polled last count as finished; those of another task do not
        before it polls again or calls `finish`. Raises `BadMessage`, and `ClientError`,
        `RemotingError`: some queues may have been committed then.
        """
        self._session.check_entered()
        await trio.lowlevel.checkpoint()  # there may be nothing to commit
        if positions is not None:
            for offset in positions.values():
                check_offset(offset)
            for queue, offset in positions.items():
                await self._commits.store(queue, offset)
            return
        self._inbox.finish_own()
        await self._commits.all()

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset of a queue, or None. Raises `ClientError`."""
        self._session.check_entered()
        await trio.lowlevel.checkpoint()  # positions of this machine are at hand
        return await self._positions.committed(self.group, queue)

    # --- inside

    def _check_subscribed(self) -> None:
        if self._subscriptions.is_empty:
            raise ClientError("no subscription: call subscribe first")

    async def _leave(self, flows: Sequence[Flow]) -> None:
        if self._auto_commit_s is not None:
            await self._commits.try_some(flows)
