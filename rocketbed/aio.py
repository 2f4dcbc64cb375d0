"""The client for programs on asyncio: the same names; methods that are awaited in `rocketbed` are
awaited here.

    from rocketbed.aio import Message, Producer

    async with Producer(nameservers="host:9876") as producer:
        outcome = await producer.send(Message("topic", b"body"))

`start` and `stop` do the same where no `async with` fits. Each client has a background thread
(`portal.py`) and belongs to the loop that started it. A cancelled call is cancelled in that thread
too, and has ended there when it raises. Arguments, results and errors are those of `rocketbed`.
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
        """Run an async function in the client's thread, for the task that calls this. Another task
        may await the result (`asyncio.wait_for` creates one on Python 3.11)."""
        self._portal.check_process()
        waiter = Waiter(self._loop.check())
        return self._run(waiter, function, undo, asyncio.current_task())

    async def _run(
        self,
        waiter: Waiter,
        function: Callable[[], Awaitable[T]],
        undo: Undo | None,
        poller: object,
    ) -> T:
        call = Call(
            function,
            poller=poller,
            done=lambda: self._loop.post(waiter.end),
            undo=undo,
        )
        self._portal.post(call.begin)
        try:
            await waiter.wait()
        except BaseException as exc:
            with suppress(ClientError):  # the client was closed, which ends the call too
                self._portal.post(call.give_up)
            while isinstance(exc, asyncio.CancelledError) and not waiter.has_ended:
                with suppress(asyncio.CancelledError):
                    await waiter.wait()
            raise
        return call.result()


class _Client(_Face[C]):
    async def start(self) -> None:
        """Open the client, for the running loop."""
        running = running_loop()
        self._portal.open()
        self._loop.loop = running

    async def stop(self) -> None:
        """Close the client: a consumer commits according to its `auto_commit_s`. Calls under way
        end."""
        running = running_loop()
        closed: asyncio.Future[None] = running.create_future()

        def settle(error: BaseException | None) -> None:
            if closed.done():  # by a cancellation; closing continues
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
            with suppress(RuntimeError):  # the loop was closed
                running.call_soon_threadsafe(settle, error)

        # Not in the loop's executor, where the program's own work may be queued before it.
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
    """Return a method for asyncio that calls an async method of the client."""

    @wraps(method)
    def call(self: _Face[C], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return self._call(partial(method, self._client, *args, **kwargs))

    return call


def _plain(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[_Face[C], P], T]:
    """Return a method that calls a plain method of the client in its thread; the loop waits for it,
    some 0.1 ms."""

    @wraps(method)
    def call(self: _Face[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._loop.check()
        function = later(partial(method, self._client, *args, **kwargs))
        return self._portal.call(function, poller=asyncio.current_task())

    return call


class Producer(ProducerFace, _Client[NativeProducer]):
    """Sends messages; see `rocketbed.Producer`."""

    send = _waits(NativeProducer.send)
    send_batch = _waits(NativeProducer.send_batch)
    send_oneway = _waits(NativeProducer.send_oneway)
    queues = _waits(NativeProducer.queues)


class QueueOffsets(_Face[NativeQueueOffsets]):
    """Offsets of one queue; see `rocketbed.client.offsets`."""

    committed = _waits(NativeQueueOffsets.committed)
    commit = _waits(NativeQueueOffsets.commit)
    min_offset = _waits(NativeQueueOffsets.min_offset)
    max_offset = _waits(NativeQueueOffsets.max_offset)
    offset_at = _waits(NativeQueueOffsets.offset_at)


class Consumer(ConsumerFace, _Client[NativeConsumer]):
    """Reads messages; see `rocketbed.Consumer`. The poller is the asyncio task: its messages are
    finished when it polls again or commits. A consumer stays a member of its group while the
    program keeps the loop busy."""

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
        """First, last and committed offset of any queue; offset at a time."""
        return QueueOffsets(self._portal, self._client.offsets, self._loop)

    def poll(self, *, timeout_s: float = 1.0) -> Coroutine[Any, Any, list[Received]]:
        """Return the next messages; see `rocketbed.Consumer.poll`. The next call returns the
        messages of a cancelled call."""
        poll = partial(self._client.poll, timeout_s=timeout_s)
        return self._call(poll, self._client.give_back)

    def __aiter__(self) -> AsyncIterator[Received]:
        """Iterate over messages; each is finished when the task asks for the next one."""
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
        `rocketbed.Consumer.listen`. A call that takes longer than `timeout_s` seconds is
        cancelled."""
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
        """Mark messages as finished, whichever task received them. Raises `TypeError`."""
        for message in messages:
            if not isinstance(message, Received):  # in the client's thread the error would be lost
                raise TypeError(f"finish takes messages that were received, not {message!r}")
        self._portal.post(partial(self._client.finish, *messages))


class Admin(AdminFace, _Client[NativeAdmin]):
    """Reads and changes the state of a cluster; see `rocketbed.Admin`."""

    create_topic = _waits(NativeAdmin.create_topic)
    delete_topic = _waits(NativeAdmin.delete_topic)
    topics = _waits(NativeAdmin.topics)
    route = _waits(NativeAdmin.route)
    topic_config = _waits(NativeAdmin.topic_config)
    topic_configs = _waits(NativeAdmin.topic_configs)
    cluster = _waits(NativeAdmin.cluster)
    runtime_info = _waits(NativeAdmin.runtime_info)
    masters = _waits(NativeAdmin.masters)
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
        """First, last and committed offset of any queue; offset at a time."""
        return QueueOffsets(self._portal, self._client.offsets, self._loop)
