"""The cluster for tests on asyncio: it runs in a thread, and its calls are awaited here.

Names and arguments are those of `Cluster`, `Chaos`, `TopicProducer` and so on; a cancelled call is
cancelled in the thread too, and has ended there when it raises.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import trio

from rocketbed.asyncio_loop import Waiter
from rocketbed.chaos.plan.step import Step, parse_step
from rocketbed.chaos.pytest_plugin.blocking import StageThread
from rocketbed.chaos.pytest_plugin.clients import TopicConsumer, TopicProducer, Value
from rocketbed.chaos.pytest_plugin.cluster import Cluster, ClusterNames
from rocketbed.chaos.pytest_plugin.errors import ClusterFailed, NotReady
from rocketbed.chaos.pytest_plugin.faults import Chaos, ChaosVerbs, Fault, place_of
from rocketbed.chaos.pytest_plugin.opening import Opening
from rocketbed.chaos.pytest_plugin.recorded import RecordedProducer
from rocketbed.chaos.pytest_plugin.stage import Stage
from rocketbed.client.errors import ClientError
from rocketbed.client.messages import Received
from rocketbed.client.producer import Producer
from rocketbed.portal import Call

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")


class Side:
    """The thread of a cluster, as seen from the tasks of one asyncio loop."""

    def __init__(self, thread: StageThread) -> None:
        self.thread = thread
        self._loop = asyncio.get_running_loop()

    async def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run an async function in the cluster's thread."""
        waiter = Waiter(self._loop)

        def done() -> None:
            with suppress(RuntimeError):  # the loop is closed, with everything that waited in it
                self._loop.call_soon_threadsafe(waiter.end)

        call = Call(function, poller=asyncio.current_task(), done=done)
        self._post(call.begin)
        try:
            await waiter.wait()
        except asyncio.CancelledError:
            with suppress(ClusterFailed):
                self._post(call.give_up)
                while not waiter.has_ended:
                    with suppress(asyncio.CancelledError):
                        await waiter.wait()
            raise
        try:
            return call.result()
        except ClientError as error:
            if self.thread.token is None:
                raise self.thread.ended() from None
            raise error

    def _post(self, function: Callable[[], object]) -> None:
        token = self.thread.token
        if token is None:
            raise NotReady("the cluster runs only during the body of the test: use it there")
        try:
            token.run_sync_soon(function)
        except trio.RunFinishedError:
            raise self.thread.ended() from None


class Awaited(Generic[P, T]):
    """A method of `owner.inner`, an object of the cluster's thread, awaited in this loop.

    Parameters and result keep their types.
    """

    def __init__(self, method: Callable[Concatenate[Any, P], Awaitable[T]]) -> None:
        self._name = method.__name__
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> "Awaited[P, T]": ...

    @overload
    def __get__(self, owner: object, kind: type) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(
        self, owner: Any, kind: type
    ) -> "Awaited[P, T] | Callable[P, Coroutine[Any, Any, T]]":
        if owner is None:
            return self
        method = getattr(owner.inner, self._name)

        async def call(*args: P.args, **kwargs: P.kwargs) -> T:
            result: T = await owner.side.call(partial(method, *args, **kwargs))
            return result

        return call


class Far(Generic[U]):
    """An object of the cluster's thread."""

    def __init__(self, side: Side, inner: U) -> None:
        self.side = side
        self.inner = inner


class AsyncioProducer(Far[TopicProducer]):
    """`TopicProducer` for asyncio."""

    send = Awaited(TopicProducer.send)
    send_all = Awaited(TopicProducer.send_all)

    @property
    def topic(self) -> str:
        return self.inner.topic


class AsyncioConsumer(Far[TopicConsumer]):
    """`TopicConsumer` for asyncio."""

    read = Awaited(TopicConsumer.read)
    read_all = Awaited(TopicConsumer.read_all)
    commit = Awaited(TopicConsumer.commit)

    @property
    def topic(self) -> str:
        return self.inner.topic

    @property
    def messages(self) -> list[Received]:
        """Messages that were read so far, in order."""
        return self.inner.messages

    @property
    def values(self) -> list[Value]:
        """The values of all messages that were read."""
        return self.inner.values


class AsyncioRealProducer(Far[RecordedProducer]):
    """`rocketbed.aio.Producer` for this cluster, whose sends go into the history."""

    send = Awaited(Producer.send)
    send_batch = Awaited(Producer.send_batch)
    send_oneway = Awaited(Producer.send_oneway)


class AsyncioOpening(Generic[T, U]):
    """An `Opening` for asyncio: awaited for the rest of the test, or entered for a block."""

    def __init__(
        self, side: Side, inner: Callable[[], Opening[T]], wrap: Callable[[Side, T], U]
    ) -> None:
        self._side = side
        self._inner = inner
        self._wrap = wrap
        self._leave: Callable[[], Awaitable[None]] | None = None

    def __await__(self) -> Generator[Any, Any, U]:
        return self._open().__await__()

    async def __aenter__(self) -> U:
        return await self._open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._leave is not None
        await self._side.call(self._leave)

    async def _open(self) -> U:
        stage = self._side.thread.cluster.stage
        client, self._leave = await self._side.call(lambda: stage.lodge(self._inner().opens()))
        return self._wrap(self._side, client)


class AsyncioCluster(ClusterNames):
    """`Cluster` for asyncio; the fixture `cluster` of tests that run there."""

    create_topic = Awaited(Cluster.create_topic)
    settled = Awaited(Cluster.settled)
    kill = Awaited(Cluster.kill)
    stop = Awaited(Cluster.stop)
    restart = Awaited(Cluster.restart)
    pause = Awaited(Cluster.pause)
    resume = Awaited(Cluster.resume)
    promote = Awaited(Cluster.promote)
    recover = Awaited(Cluster.recover)

    def __init__(self) -> None:
        self._side: Side | None = None

    def bind(self, side: Side | None) -> None:
        """Use the cluster of this side from now on."""
        self._side = side

    @property
    def side(self) -> Side:
        if self._side is None:
            raise NotReady(
                "the cluster runs only during the body of the test: use it there, or in a"
                " fixture that is an async function"
            )
        return self._side

    @property
    def inner(self) -> Cluster:
        """The `Cluster` of the cluster's own thread."""
        return self.side.thread.cluster

    @property
    def stage(self) -> Stage:
        return self.inner.stage

    def producer(
        self, topic: str, *, group: str = "test-producer"
    ) -> AsyncioOpening[TopicProducer, AsyncioProducer]:
        """Open a producer whose sends go into the history."""
        inner = self.inner
        return AsyncioOpening(
            self.side, lambda: inner.producer(topic, group=group), AsyncioProducer
        )

    def consumer(
        self, topic: str, *, group: str = "test-group"
    ) -> AsyncioOpening[TopicConsumer, AsyncioConsumer]:
        """Open a member of a group whose reads go into the history."""
        inner = self.inner
        return AsyncioOpening(
            self.side, lambda: inner.consumer(topic, group=group), AsyncioConsumer
        )

    def real_producer(
        self, **options: Any
    ) -> AsyncioOpening[RecordedProducer, AsyncioRealProducer]:
        """Open a producer of any messages, whose sends go into the history."""
        inner = self.inner
        return AsyncioOpening(
            self.side, lambda: inner.real_producer(**options), AsyncioRealProducer
        )


@dataclass(eq=False)
class AsyncioFault:
    """A step that was not taken yet: `await` it, or give it to `chaos.during`."""

    chaos: "AsyncioChaos"
    step: Step

    def __str__(self) -> str:
        return self.step.action()

    def __await__(self) -> Generator[Any, Any, list[str]]:
        return self.now().__await__()

    async def now(self) -> list[str]:
        """Take the step. Return the names of those it hit."""
        return await self.chaos.side.call(Fault(self.chaos.inner, self.step).now)


class AsyncioChaos(ChaosVerbs[AsyncioFault]):
    """`Chaos` for asyncio."""

    fault_phase = Awaited(Chaos.fault_phase)
    recover = Awaited(Chaos.recover)

    def __init__(self, cluster: AsyncioCluster) -> None:
        self._cluster = cluster

    @property
    def side(self) -> Side:
        return self._cluster.side

    @property
    def inner(self) -> Chaos:
        return Chaos(self._cluster.inner)

    def _take(self, step: Step) -> AsyncioFault:
        return AsyncioFault(self, parse_step(str(step)))

    @asynccontextmanager
    async def during(self, *faults: AsyncioFault | str) -> AsyncIterator[list[str]]:
        """Keep faults in force for as long as the block runs; see `Chaos.during`."""
        inner, side = self.inner, self.side
        inner_faults = [
            fault if isinstance(fault, str) else Fault(inner, fault.step) for fault in faults
        ]
        block = inner.during(*inner_faults)
        names = await side.call(block.__aenter__)
        try:
            yield names
        finally:
            await side.call(partial(block.__aexit__, None, None, None))

    def check(self, *ids: str) -> None:
        """Have the history judged once the body has ended."""
        self.side.thread.script.ask(ids, place_of(inspect.currentframe()))
