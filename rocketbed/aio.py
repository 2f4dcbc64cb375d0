"""The client for programs on asyncio: the same names, and what is awaited in `rocketbed` is here.

    from rocketbed.aio import Message, Producer

    async with Producer(nameservers="host:9876") as producer:
        outcome = await producer.send(Message("topic", b"body"))

`start` and `stop` do the same where no `async with` fits. Each client has a thread in the
background (`portal.py`) and belongs to the loop that started it. A call that is cancelled is
cancelled there too, and has ended there when it raises; arguments, results and errors are those of
`rocketbed`.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from rocketbed.asyncio_loop import InLoop, Loop, Waiter, running_loop
from rocketbed.client.admin import Admin as NativeAdmin
from rocketbed.client.consumer import Consumer as NativeConsumer
from rocketbed.client.errors import ClientError
from rocketbed.client.listener import HANDLER_S, RETRIES, WORKERS, Handler
from rocketbed.client.messages import Message, Received
from rocketbed.client.offsets import QueueOffsets as NativeQueueOffsets
from rocketbed.client.outcome import Outcome, Refused, SendStatus, Sent, Unknown
from rocketbed.client.producer import Producer as NativeProducer
from rocketbed.client.pulls import Pulled, PullStatus
from rocketbed.facade import AdminFace, ConsumerFace, Face, ProducerFace
from rocketbed.portal import Call, Portal, Undo, later
from rocketbed.wire.bodies import MessageQueue

__all__ = [
    "Admin",
    "Consumer",
    "Message",
    "MessageQueue",
    "Outcome",
    "Producer",
    "PullStatus",
    "Pulled",
    "Received",
    "Refused",
    "SendStatus",
    "Sent",
    "Unknown",
]

C = TypeVar("C")
P = ParamSpec("P")
T = TypeVar("T")


class _Face(Face[C]):
    def __init__(self, portal: Portal, client: C, loop: Loop | None = None) -> None:
        super().__init__(portal, client)
        self._loop = loop or Loop()

    def _call(
        self, function: Callable[[], Awaitable[T]], undo: Undo | None = None
    ) -> Coroutine[Any, Any, T]:
        """Run an async function in the client's thread, for the task that calls this: which task
        awaits it is another matter (`asyncio.wait_for` makes one of its own on Python 3.11)."""
        self._portal.check_process()
        waiter = Waiter(self._loop.check())
        return self._run(waiter, function, undo, asyncio.current_task())

    async def _run(
        self,
        waiter: Waiter,
        function: Callable[[], Awaitable[T]],
        undo: Undo | None,
        who: object,
    ) -> T:
        call = Call(
            function,
            who=who,
            done=lambda: self._loop.post(waiter.end),
            undo=undo,
        )
        self._portal.post(call.begin)
        try:
            await waiter.wait()
        except BaseException as exc:
            with suppress(ClientError):  # closed, which ends it too
                self._portal.post(call.give_up)
            while isinstance(exc, asyncio.CancelledError) and not waiter.has_ended:
                with suppress(asyncio.CancelledError):
                    await waiter.wait()
            raise
        return call.result()


class _Client(_Face[C]):
    async def start(self) -> None:
        """Open the client, for the loop that runs now."""
        running = running_loop()
        self._portal.open()
        self._loop.loop = running

    async def stop(self) -> None:
        """Close it: a consumer commits as its `auto_commit_s` says. Calls under way end."""
        running = running_loop()
        closed: asyncio.Future[None] = running.create_future()

        def settle(error: BaseException | None) -> None:
            if closed.done():  # by a cancellation; it goes on closing
                return
            if error is None:
                closed.set_result(None)
            else:
                closed.set_exception(error)

        def close() -> None:
            error: BaseException | None = None
            try:
                self._portal.close()
            except BaseException as exc:
                error = exc
            with suppress(RuntimeError):  # the loop is gone
                running.call_soon_threadsafe(settle, error)

        # Not in the loop's executor, where the program's own work may stand before it.
        threading.Thread(target=close, name="rocketbed close", daemon=True).start()
        await closed

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()


def _waits(
    method: Callable[Concatenate[C, P], Awaitable[T]],
) -> Callable[Concatenate[_Face[C], P], Coroutine[Any, Any, T]]:
    """An async method of the client, for asyncio."""

    @wraps(method)
    def call(self: _Face[C], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return self._call(partial(method, self._client, *args, **kwargs))

    return call


def _plain(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[_Face[C], P], T]:
    """A plain method of the client, called in its thread; the loop waits for it, some 0.1 ms."""

    @wraps(method)
    def call(self: _Face[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._loop.check()
        function = later(partial(method, self._client, *args, **kwargs))
        return self._portal.call(function, who=asyncio.current_task())

    return call


class Producer(ProducerFace, _Client[NativeProducer]):
    """Sends messages; see `rocketbed.Producer`."""

    send = _waits(NativeProducer.send)
    send_batch = _waits(NativeProducer.send_batch)
    send_oneway = _waits(NativeProducer.send_oneway)
    queues = _waits(NativeProducer.queues)


class QueueOffsets(_Face[NativeQueueOffsets]):
    """Questions about one queue's offsets; see `rocketbed.client.offsets`."""

    committed = _waits(NativeQueueOffsets.committed)
    commit = _waits(NativeQueueOffsets.commit)
    min_offset = _waits(NativeQueueOffsets.min_offset)
    max_offset = _waits(NativeQueueOffsets.max_offset)
    offset_at = _waits(NativeQueueOffsets.offset_at)


class Consumer(ConsumerFace, _Client[NativeConsumer]):
    """Reads messages; see `rocketbed.Consumer`. Who polls is the asyncio task: what it was given
    counts as dealt with when it polls again or commits. A program that keeps its loop busy stays a
    member of its group meanwhile."""

    queues = _waits(NativeConsumer.queues)
    pull = _waits(NativeConsumer.pull)
    subscribe = _waits(NativeConsumer.subscribe)
    assign = _waits(NativeConsumer.assign)
    unsubscribe = _waits(NativeConsumer.unsubscribe)
    position = _plain(NativeConsumer.position)
    positions = _plain(NativeConsumer.positions)
    seek = _plain(NativeConsumer.seek)
    seek_to_time = _waits(NativeConsumer.seek_to_time)
    pause = _plain(NativeConsumer.pause)
    resume = _plain(NativeConsumer.resume)
    lag = _waits(NativeConsumer.lag)
    commit = _waits(NativeConsumer.commit)
    committed = _waits(NativeConsumer.committed)

    @property
    def offsets(self) -> QueueOffsets:
        """Questions about any queue's offsets."""
        return QueueOffsets(self._portal, self._client.offsets, self._loop)

    def poll(self, *, timeout_s: float = 1.0) -> Coroutine[Any, Any, list[Received]]:
        """See `rocketbed.Consumer.poll`. Messages that a cancelled call did not return are the next
        call's."""
        poll = partial(self._client.poll, timeout_s=timeout_s)
        return self._call(poll, self._client.give_back)

    def __aiter__(self) -> AsyncIterator[Received]:
        """One message after the other; each is dealt with when the task asks for the next one."""
        return self

    def __anext__(self) -> Coroutine[Any, Any, Received]:
        return self._call(self._client.__anext__, self._client.give_back)

    def listen(
        self,
        handler: Handler,
        *,
        workers: int = WORKERS,
        max_retries: int = RETRIES,
        timeout_s: float = HANDLER_S,
    ) -> Coroutine[Any, Any, None]:
        """Call the async function `handler`, in tasks of this loop, for each message; see
        `rocketbed.Consumer.listen`. One that takes longer than `timeout_s` is cancelled."""
        in_loop = InLoop(handler, self._portal, self._loop)
        listen = partial(
            self._client.listen_by,
            in_loop,
            workers=workers,
            max_retries=max_retries,
            timeout_s=timeout_s,
        )
        return self._call(listen)

    def stop_listening(self) -> None:
        """Let `listen` return once the messages in hand are handled."""
        self._portal.post(self._client.stop_listening)

    def finish(self, *messages: Received) -> None:
        """These are dealt with, whichever task was given them. Raises `TypeError`."""
        for message in messages:
            if not isinstance(message, Received):  # nobody would hear of it there
                raise TypeError(f"finish takes messages that were received, not {message!r}")
        self._portal.post(partial(self._client.finish, *messages))


class Admin(AdminFace, _Client[NativeAdmin]):
    """Asks and changes a cluster; see `rocketbed.Admin`."""

    create_topic = _waits(NativeAdmin.create_topic)
    delete_topic = _waits(NativeAdmin.delete_topic)
    topics = _waits(NativeAdmin.topics)
    route = _waits(NativeAdmin.route)
    topic_config = _waits(NativeAdmin.topic_config)
    topic_configs = _waits(NativeAdmin.topic_configs)
    cluster = _waits(NativeAdmin.cluster)
    runtime_info = _waits(NativeAdmin.runtime_info)
    failover_groups = _waits(NativeAdmin.failover_groups)
    hand_over = _waits(NativeAdmin.hand_over)
    force_leader = _waits(NativeAdmin.force_leader)
    broker_config = _waits(NativeAdmin.broker_config)
    change_broker_config = _waits(NativeAdmin.change_broker_config)
    wipe_write_permission = _waits(NativeAdmin.wipe_write_permission)
    add_write_permission = _waits(NativeAdmin.add_write_permission)
    groups = _waits(NativeAdmin.groups)
    create_group = _waits(NativeAdmin.create_group)
    delete_group = _waits(NativeAdmin.delete_group)
    group_members = _waits(NativeAdmin.group_members)
    message = _waits(NativeAdmin.message)
    messages_by_unique_key = _waits(NativeAdmin.messages_by_unique_key)
    messages_by_key = _waits(NativeAdmin.messages_by_key)

    @property
    def offsets(self) -> QueueOffsets:
        """Questions about any queue's offsets."""
        return QueueOffsets(self._portal, self._client.offsets, self._loop)
