"""The client for programs without an event loop: the same names, plain calls.

    from rocketbed.blocking import Message, Producer

    with Producer(nameservers="host:9876") as producer:
        outcome = producer.send(Message("topic", b"body"))

Each client has one thread in the background that runs trio with the client in it; calls are handed
over to it and wait for its answer, from any number of threads at once. This module stands beside
`rocketbed/client`, not in it, since client code knows neither threads nor event loops.
"""

import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar

import trio

from rocketbed.client import admin as native_admin
from rocketbed.client import consumer as native_consumer
from rocketbed.client import offsets as native_offsets
from rocketbed.client import producer as native_producer
from rocketbed.client.allocate import Allocation, AllocationName
from rocketbed.client.errors import ClientError
from rocketbed.client.flow import COUNT
from rocketbed.client.listener import HANDLER_S, RETRIES, WORKERS
from rocketbed.client.messages import Message, Received
from rocketbed.client.outcome import Outcome, Refused, SendStatus, Sent, Unknown
from rocketbed.client.progress import POLLER
from rocketbed.client.pulls import ALL, Pulled, PullStatus
from rocketbed.client.select import Choice, QueueSelector
from rocketbed.wire.bodies import (
    ClusterInfo,
    MessageQueue,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicRouteData,
)

__all__ = [
    "Admin",
    "Consumer",
    "Message",
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

P = ParamSpec("P")
T = TypeVar("T")
Client = AbstractAsyncContextManager[Any]

START_S: Final = 10.0
"""For a thread to begin; longer means that the machine is out of breath."""


class Portal:
    """A thread that runs trio with one client in it."""

    def __init__(self, make: Callable[[], Client]) -> None:
        self._make = make
        self._thread: threading.Thread | None = None
        self._began = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._closing: trio.Event | None = None
        self._failure: BaseException | None = None
        self._pid = 0
        """Of the process that has the thread: a child that is forked has none."""

    def open(self) -> None:
        """Start the thread and enter the client. Raises what entering raised."""
        if self._thread is not None:
            raise ClientError("a client can be entered only once; create a new one")
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="rocketbed client", daemon=True)
        self._thread.start()
        if not self._began.wait(START_S):
            raise ClientError(f"the client's thread did not start within {START_S:g} s")
        if self._token is None:
            self._thread.join()
            raise self._failure or ClientError("the client ended immediately")

    def call(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an async function of the client in its thread; its result, or what it raised."""
        if self._token is None or self._closing is None:
            raise ClientError("the client is not open: use it in a `with` block")
        if os.getpid() != self._pid:
            raise ClientError(
                f"this client belongs to process {self._pid}, of which {os.getpid()} is a fork:"
                " create a client after the fork (in gunicorn's post_fork, Celery's"
                " worker_process_init, multiprocessing's initializer)"
            )
        # Its tasks are new ones for each call: who calls is the thread.
        caller = POLLER.set(threading.current_thread())
        try:
            return trio.from_thread.run(partial(function, *args, **kwargs), trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled) as exc:
            raise ClientError(
                f"the client is closed: {self._failure or 'close was called'}"
            ) from exc
        finally:
            POLLER.reset(caller)

    def close(self) -> None:
        """Leave the client and end the thread. Raises what the client's own tasks raised."""
        if self._thread is None or self._token is None or self._closing is None:
            return
        if os.getpid() != self._pid:
            return  # nothing of it lives here
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._closing.set)
        self._thread.join()
        self._token = None
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as exc:
            self._failure = exc
        finally:
            self._began.set()

    async def _main(self) -> None:
        async with self._make():
            self._closing = trio.Event()
            self._token = trio.lowlevel.current_trio_token()
            self._began.set()
            await self._closing.wait()


class _Blocking:
    """A client behind a portal."""

    def __init__(self, client: Client) -> None:
        self._portal = Portal(lambda: client)

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


class Producer(_Blocking):
    """Sends messages; see `rocketbed.Producer`, whose arguments and results are the same."""

    def __init__(
        self,
        *,
        nameservers: str | Sequence[str],
        group: str = "rocketbed_producer",
        timeout_s: float = native_producer.TIMEOUT_S,
        retries: int = native_producer.RETRIES,
        retry_unknown: bool = True,
        retry_unsafe: bool = False,
        select: Choice | QueueSelector = "round_robin",
    ) -> None:
        self._client = native_producer.Producer(
            nameservers=nameservers,
            group=group,
            timeout_s=timeout_s,
            retries=retries,
            retry_unknown=retry_unknown,
            retry_unsafe=retry_unsafe,
            select=select,
        )
        super().__init__(self._client)

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        timeout_s: float | None = None,
    ) -> Outcome:
        """Send one message and wait for its outcome. Raises `BadMessage`."""
        return self._portal.call(
            self._client.send, message, queue=queue, order_key=order_key, timeout_s=timeout_s
        )

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        timeout_s: float | None = None,
    ) -> Outcome:
        """Send messages of one topic as one. Raises `BadMessage`."""
        return self._portal.call(
            self._client.send_batch,
            messages,
            queue=queue,
            order_key=order_key,
            timeout_s=timeout_s,
        )

    def send_oneway(
        self, message: Message, *, queue: MessageQueue | None = None, order_key: str | None = None
    ) -> str:
        """Send without an answer; the message's id."""
        return self._portal.call(
            self._client.send_oneway, message, queue=queue, order_key=order_key
        )

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The topic's queues that take messages now."""
        return self._portal.call(self._client.queues, topic)


class QueueOffsets:
    """Questions about one queue's offsets; see `rocketbed.client.offsets`."""

    def __init__(self, portal: Portal, offsets: native_offsets.QueueOffsets) -> None:
        self._portal = portal
        self._offsets = offsets

    def committed(self, group: str, queue: MessageQueue) -> int | None:
        """Where a group stands; None when it never committed."""
        return self._portal.call(self._offsets.committed, group, queue)

    def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Store where a group stands."""
        self._portal.call(self._offsets.commit, group, queue, offset)

    def min_offset(self, queue: MessageQueue) -> int:
        """First offset that the queue still has."""
        return self._portal.call(self._offsets.min_offset, queue)

    def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message gets."""
        return self._portal.call(self._offsets.max_offset, queue)

    def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        """Offset of the first message stored at or after a wall time in milliseconds."""
        return self._portal.call(self._offsets.offset_at, queue, time_ms)


class Consumer(_Blocking):
    """Reads messages; see `rocketbed.Consumer`, whose arguments and results are the same."""

    def __init__(
        self,
        *,
        nameservers: str | Sequence[str],
        group: str,
        auto_commit_s: float | None = None,
        hold_s: float = native_consumer.HOLD_S,
        allocation: AllocationName | Allocation = "average",
        ordered: bool = False,
    ) -> None:
        self._client = native_consumer.Consumer(
            nameservers=nameservers,
            group=group,
            auto_commit_s=auto_commit_s,
            hold_s=hold_s,
            allocation=allocation,
            ordered=ordered,
        )
        super().__init__(self._client)
        self.offsets = QueueOffsets(self._portal, self._client.offsets)

    def queues(self, topic: str, *, fresh: bool = False) -> tuple[MessageQueue, ...]:
        """The topic's queues that can be read."""
        return self._portal.call(partial(self._client.queues, topic, fresh=fresh))

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        tags: str = ALL,
        count: int = COUNT,
        hold_s: float = 0.0,
    ) -> Pulled:
        """Read from one queue."""
        return self._portal.call(
            self._client.pull, queue, offset, tags=tags, count=count, hold_s=hold_s
        )

    def subscribe(
        self, topic: str, *, tags: str = ALL, start: native_consumer.Start = "last"
    ) -> None:
        """Read our part of a topic's queues from now on."""
        self._portal.call(self._client.subscribe, topic, tags=tags, start=start)

    def assign(
        self,
        queues: Iterable[MessageQueue],
        *,
        tags: str = ALL,
        start: native_consumer.Start = "last",
    ) -> None:
        """Read just these queues of one topic."""
        self._portal.call(self._client.assign, queues, tags=tags, start=start)

    def unsubscribe(self, topic: str) -> None:
        """Read a topic no more."""
        self._portal.call(self._client.unsubscribe, topic)

    def poll(self, *, timeout_s: float = 1.0) -> list[Received]:
        """The next messages of any queue that we read; empty when none came in time. Those that
        this thread was given before are dealt with."""
        return self._portal.call(self._client.poll, timeout_s=timeout_s)

    def __iter__(self) -> Iterator[Received]:
        """One message after the other; each is dealt with when this thread asks for the next."""
        while True:
            yield self._portal.call(self._client.__anext__)

    def listen(
        self,
        handler: Callable[[Received], object],
        *,
        workers: int = WORKERS,
        max_retries: int = RETRIES,
        timeout_s: float = HANDLER_S,
    ) -> None:
        """Call `handler`, in threads of its own, for each message, until `stop_listening` or the
        end of the client; one that takes longer than `timeout_s` is not interrupted."""
        limiter = trio.CapacityLimiter(workers)

        async def in_thread(message: Received) -> None:
            await trio.to_thread.run_sync(  # noqa: TID251 - the program's function may block
                handler, message, limiter=limiter
            )

        self._portal.call(
            self._client.listen,
            in_thread,
            workers=workers,
            max_retries=max_retries,
            timeout_s=timeout_s,
        )

    def stop_listening(self) -> None:
        """Let `listen` return once the messages in hand are handled."""
        self._portal.call(_later(self._client.stop_listening))

    def finish(self, *messages: Received) -> None:
        """These are dealt with, whichever thread was given them."""
        self._portal.call(_later(self._client.finish), *messages)

    def position(self, queue: MessageQueue) -> int:
        """Offset of the next message that `poll` will return."""
        return self._portal.call(_later(self._client.position), queue)

    def positions(self) -> dict[MessageQueue, int]:
        """The same for all subscribed queues."""
        return self._portal.call(_later(self._client.positions))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on reading at another offset."""
        self._portal.call(_later(self._client.seek), queue, offset)

    def seek_to_time(self, queue: MessageQueue, time_ms: int) -> None:
        """Go on at the first message stored at or after a time in milliseconds."""
        self._portal.call(self._client.seek_to_time, queue, time_ms)

    def pause(self, *queues: MessageQueue) -> None:
        """Hand out nothing of these queues until `resume`."""
        self._portal.call(_later(self._client.pause), *queues)

    def resume(self, *queues: MessageQueue) -> None:
        """Go on with these queues."""
        self._portal.call(_later(self._client.resume), *queues)

    def lag(self) -> dict[MessageQueue, int]:
        """How many messages of each queue that we read were not handed out yet."""
        return self._portal.call(self._client.lag)

    def commit(self, positions: dict[MessageQueue, int] | None = None) -> None:
        """Store positions at the brokers: these, or of every queue that we read the first message
        that is not dealt with. What this thread was given is."""
        self._portal.call(self._client.commit, positions)

    def committed(self, queue: MessageQueue) -> int | None:
        """Where the group stands in a queue by its broker."""
        return self._portal.call(self._client.committed, queue)


class Admin(_Blocking):
    """Asks and changes a cluster; see `rocketbed.Admin`."""

    def __init__(
        self,
        *,
        nameservers: str | Sequence[str],
        timeout_s: float = native_admin.TIMEOUT_S,
    ) -> None:
        self._client = native_admin.Admin(nameservers=nameservers, timeout_s=timeout_s)
        super().__init__(self._client)
        self.offsets = QueueOffsets(self._portal, self._client.offsets)

    def create_topic(
        self,
        topic: str,
        *,
        queues: int = native_admin.QUEUES,
        read_queues: int | None = None,
        perm: int = native_admin.READ_WRITE,
        brokers: Iterable[str] | None = None,
        order: bool = False,
        attributes: str | None = None,
    ) -> list[str]:
        """Make a topic, or change it; names of the brokers that have it."""
        return self._portal.call(
            self._client.create_topic,
            topic,
            queues=queues,
            read_queues=read_queues,
            perm=perm,
            brokers=brokers,
            order=order,
            attributes=attributes,
        )

    def delete_topic(self, topic: str) -> None:
        """Forget a topic everywhere; its messages are gone."""
        self._portal.call(self._client.delete_topic, topic)

    def topics(self) -> list[str]:
        """Names of all topics that are routed."""
        return self._portal.call(self._client.topics)

    def route(self, topic: str) -> TopicRouteData | None:
        """Where a topic lives."""
        return self._portal.call(self._client.route, topic)

    def topic_config(self, topic: str, broker: str) -> TopicConfig:
        """A topic as one broker's master has it."""
        return self._portal.call(self._client.topic_config, topic, broker)

    def topic_configs(self, address: str) -> dict[str, TopicConfig]:
        """All topics of the broker at an address."""
        return self._portal.call(self._client.topic_configs, address)

    def cluster(self) -> ClusterInfo:
        """Clusters, their brokers and the addresses of each."""
        return self._portal.call(self._client.cluster)

    def runtime_info(self, address: str) -> dict[str, str]:
        """What the broker at an address says about itself."""
        return self._portal.call(self._client.runtime_info, address)

    def broker_config(self, address: str) -> dict[str, str]:
        """Settings of the broker at an address."""
        return self._portal.call(self._client.broker_config, address)

    def wipe_write_permission(self, broker: str) -> int:
        """Let no client write to a broker."""
        return self._portal.call(self._client.wipe_write_permission, broker)

    def add_write_permission(self, broker: str) -> int:
        """Let clients write to a broker again."""
        return self._portal.call(self._client.add_write_permission, broker)

    def groups(self) -> list[str]:
        """Names of the consumer groups."""
        return self._portal.call(self._client.groups)

    def create_group(self, config: SubscriptionGroupConfig) -> None:
        """Make a consumer group, or change it."""
        self._portal.call(self._client.create_group, config)

    def delete_group(self, group: str, *, offsets: bool = True) -> None:
        """Forget a consumer group."""
        self._portal.call(self._client.delete_group, group, offsets=offsets)

    def group_members(self, group: str) -> list[str]:
        """Ids of the connected members of a consumer group."""
        return self._portal.call(self._client.group_members, group)

    def message(self, message_id: str, topic: str | None = None) -> Received:
        """A message by the broker's id, or with `topic` by the producer's."""
        return self._portal.call(self._client.message, message_id, topic)

    def messages_by_unique_key(self, topic: str, unique_key: str) -> list[Received]:
        """All copies of a message, by the producer's id."""
        return self._portal.call(self._client.messages_by_unique_key, topic, unique_key)

    def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        count: int = 64,
        begin_ms: int = 0,
        end_ms: int = 2**63 - 1,
    ) -> list[Received]:
        """Messages with a key, stored in a time range."""
        return self._portal.call(
            self._client.messages_by_key,
            topic,
            key,
            count=count,
            begin_ms=begin_ms,
            end_ms=end_ms,
        )


def _later(function: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    """A plain function of the client as an async one, so that it runs in the client's thread."""

    async def run(*args: P.args, **kwargs: P.kwargs) -> T:
        await trio.lowlevel.checkpoint()
        return function(*args, **kwargs)

    return run
