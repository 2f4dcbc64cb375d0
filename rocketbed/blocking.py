"""The client for programs without an event loop: the same names, plain calls.

    from rocketbed.blocking import Message, Producer

    with Producer(nameservers="host:9876") as producer:
        outcome = producer.send(Message("topic", b"body"))

Each client has a background thread (`portal.py`); calls wait for its answer, from any number of
threads at once. Arguments, results and errors are those of the same methods of `rocketbed`.
"""

import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial, wraps
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

import trio

from rocketbed.client.admin import Admin as NativeAdmin
from rocketbed.client.arguments import check_listening
from rocketbed.client.consumer import Consumer as NativeConsumer
from rocketbed.client.listener import HANDLER_S, RETRIES, WORKERS, Begun
from rocketbed.client.messages import Message, Received
from rocketbed.client.offsets import QueueOffsets as NativeQueueOffsets
from rocketbed.client.outcome import Outcome, Refused, SendStatus, Sent, Unknown
from rocketbed.client.producer import Producer as NativeProducer
from rocketbed.client.pulls import Pulled, PullStatus
from rocketbed.facade import AdminFace, ConsumerFace, Face, ProducerFace
from rocketbed.portal import Undo, later
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
    def _call(self, function: Callable[[], Awaitable[T]], undo: Undo | None = None) -> T:
        return self._portal.call(function, poller=threading.current_thread(), undo=undo)


class _Client(_Face[C]):
    def __enter__(self) -> Self:
        self._portal.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._portal.close()


def _waits(
    method: Callable[Concatenate[C, P], Awaitable[T]],
) -> Callable[Concatenate[_Face[C], P], T]:
    """Return a plain method that calls an async method of the client."""

    @wraps(method)
    def call(self: _Face[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._call(partial(method, self._client, *args, **kwargs))

    return call


def _plain(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[_Face[C], P], T]:
    """Return a method that calls a plain method of the client in its thread."""

    @wraps(method)
    def call(self: _Face[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._call(later(partial(method, self._client, *args, **kwargs)))

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
    """Reads messages; see `rocketbed.Consumer`. The poller is the thread: its messages are finished
    when it polls again or commits."""

    queues = _waits(NativeConsumer.queues)
    pull = _waits(NativeConsumer.pull)
    subscribe = _waits(NativeConsumer.subscribe)
    assign = _waits(NativeConsumer.assign)
    unsubscribe = _waits(NativeConsumer.unsubscribe)
    stop_listening = _plain(NativeConsumer.stop_listening)
    finish = _plain(NativeConsumer.finish)
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
        return QueueOffsets(self._portal, self._client.offsets)

    def poll(self, *, timeout_s: float = 1.0) -> list[Received]:
        """Return the next messages; see `rocketbed.Consumer.poll`. The next call returns the
        messages of an interrupted call."""
        return self._call(partial(self._client.poll, timeout_s=timeout_s), self._client.give_back)

    def __iter__(self) -> Iterator[Received]:
        """Iterate over messages; each is finished when this thread asks for the next one."""
        while True:
            yield self._call(self._client.__anext__, self._client.give_back)

    def listen(
        self,
        handler: Callable[[Received], object],
        *,
        workers: int = WORKERS,
        max_retries: int = RETRIES,
        timeout_s: float = HANDLER_S,
    ) -> None:
        """Call `handler`, in threads of its own, for each message, until `stop_listening` or the
        end of the client; see `rocketbed.Consumer.listen`.

        A thread cannot be interrupted: a call that takes longer than `timeout_s` seconds, or than
        the client lives, goes on, and its message is delivered again nevertheless; it occupies one
        of the `workers` until it ends.
        """
        check_listening(handler, workers, max_retries, timeout_s)
        limiter = trio.CapacityLimiter(workers)

        async def in_thread(message: Received, begun: Begun) -> None:
            token = trio.lowlevel.current_trio_token()

            def run() -> None:
                token.run_sync_soon(begun)
                handler(message)

            await trio.to_thread.run_sync(  # noqa: TID251 - the program's function may block
                run, limiter=limiter, abandon_on_cancel=True
            )

        self._call(
            partial(
                self._client.listen_by,
                in_thread,
                workers=workers,
                max_retries=max_retries,
                timeout_s=timeout_s,
            )
        )


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
        return QueueOffsets(self._portal, self._client.offsets)
