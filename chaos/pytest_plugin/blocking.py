"""The cluster for tests that are plain functions: it runs in a thread, calls wait.

For clients of other projects: `cluster.nameserver_address` is the address for a program in Java, Go
or Node. Each method is that of `Cluster`, `TopicProducer` and so on, without `await`.
"""

import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar, overload

import trio

from rocketbed.chaos.plan.step import Step, parse_step
from rocketbed.chaos.pytest_plugin.clients import TopicConsumer, TopicProducer, Value
from rocketbed.chaos.pytest_plugin.cluster import Cluster, ClusterNames
from rocketbed.chaos.pytest_plugin.errors import ClusterFailed, NotReady
from rocketbed.chaos.pytest_plugin.faults import Chaos, ChaosVerbs, Fault, place_of
from rocketbed.chaos.pytest_plugin.perform import perform
from rocketbed.chaos.pytest_plugin.recorded import RecordedProducer
from rocketbed.chaos.pytest_plugin.spec import RunResult, RunSpec, Script
from rocketbed.chaos.pytest_plugin.stage import Stage
from rocketbed.client.producer import Producer

P = ParamSpec("P")
T = TypeVar("T")
START_S: Final = 90.0


class StageThread:
    """A thread with a cluster in it; the whole run is over when `finish` returns."""

    def __init__(self, spec: RunSpec, directory: Path) -> None:
        self.script = Script(
            body=self._wait_for_end,
            choice=spec.choice,
            failover_s=spec.wishes.failover_s,
            is_open=True,
        )
        self.cluster = Cluster()
        self._spec = spec
        self._directory = directory
        self._ready = threading.Event()
        self._is_over = False
        self.token: trio.lowlevel.TrioToken | None = None
        """Token of the cluster's loop; None while it does not run."""
        self._over: trio.Event | None = None
        self._ended: tuple[RunResult, BaseException | None] | None = None
        self._broken: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="rocketbed cluster", daemon=True)

    def start(self) -> bool:
        """Start the cluster. Return False if the run has ended already: see `finish`."""
        self._thread.start()
        if not self._ready.wait(START_S):
            raise ClusterFailed(f"the cluster did not come up in {START_S:g} s")
        return self.token is not None

    def call(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an async function in the cluster's thread."""
        if self.token is None:
            raise NotReady("the cluster runs only during the test")

        async def run() -> T:
            return await function(*args, **kwargs)

        try:
            return trio.from_thread.run(run, trio_token=self.token)
        except (trio.RunFinishedError, trio.Cancelled):
            raise self.ended() from None

    def ended(self) -> ClusterFailed:
        """Return the error of a call that comes too late."""
        return ClusterFailed(f"the cluster has ended: {self._broken or 'it was over'}")

    def finish(
        self, failure: BaseException | None = None
    ) -> tuple[RunResult, BaseException | None]:
        """End the run, with the judgement if one was asked for; `failure` is the error of the
        test."""
        if failure is not None:
            self.script.failure = failure
        self._is_over = True
        if self.token is not None and self._over is not None:
            with suppress(trio.RunFinishedError):
                self.token.run_sync_soon(self._over.set)
        self._thread.join()
        self.token = None
        if self._broken is not None:
            raise self._broken
        assert self._ended is not None
        return self._ended

    async def _wait_for_end(self, stage: Stage) -> None:
        self.cluster.bind(stage)
        self._over = trio.Event()
        self.token = trio.lowlevel.current_trio_token()
        self._ready.set()
        if not self._is_over:
            await self._over.wait()

    def _run(self) -> None:
        try:
            self._ended = perform(self._spec, self.script, self._directory)
        except BaseException as error:
            self._broken = error
        finally:
            self._ready.set()


class Blocking(Generic[P, T]):
    """A method of the async object `owner.inner`, called without `await` in `owner.thread`.

    Parameters and result keep their types.
    """

    def __init__(self, method: Callable[Concatenate[Any, P], Awaitable[T]]) -> None:
        self._name = method.__name__
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> "Blocking[P, T]": ...

    @overload
    def __get__(self, owner: object, kind: type) -> Callable[P, T]: ...

    def __get__(self, owner: Any, kind: type) -> "Blocking[P, T] | Callable[P, T]":
        if owner is None:
            return self
        return partial(owner.thread.call, getattr(owner.inner, self._name))


class BlockingProducer:
    """`TopicProducer` without `await`."""

    send = Blocking(TopicProducer.send)
    send_all = Blocking(TopicProducer.send_all)

    def __init__(self, thread: StageThread, inner: TopicProducer) -> None:
        self.thread = thread
        self.inner = inner
        self.topic = inner.topic


class BlockingConsumer:
    """`TopicConsumer` without `await`."""

    read = Blocking(TopicConsumer.read)
    read_all = Blocking(TopicConsumer.read_all)
    commit = Blocking(TopicConsumer.commit)

    def __init__(self, thread: StageThread, inner: TopicConsumer) -> None:
        self.thread = thread
        self.inner = inner
        self.topic = inner.topic
        self.messages = inner.messages
        """All messages that were read, in order."""

    @property
    def values(self) -> list[Value]:
        """The values of all messages that were read."""
        return self.inner.values


class BlockingRealProducer:
    """`rocketbed.blocking.Producer` for this cluster, whose sends go into the history."""

    send = Blocking(Producer.send)
    send_batch = Blocking(Producer.send_batch)
    send_oneway = Blocking(Producer.send_oneway)

    def __init__(self, thread: StageThread, inner: RecordedProducer) -> None:
        self.thread = thread
        self.inner = inner


class BlockingCluster(ClusterNames):
    """`Cluster` without `await`; the fixture `cluster` of plain functions, and `cluster_module`."""

    create_topic = Blocking(Cluster.create_topic)
    settled = Blocking(Cluster.settled)
    kill = Blocking(Cluster.kill)
    stop = Blocking(Cluster.stop)
    restart = Blocking(Cluster.restart)
    pause = Blocking(Cluster.pause)
    resume = Blocking(Cluster.resume)
    promote = Blocking(Cluster.promote)
    recover = Blocking(Cluster.recover)

    def __init__(self) -> None:
        self._thread: StageThread | None = None

    def bind(self, thread: StageThread | None) -> None:
        """Use the cluster of this thread from now on."""
        self._thread = thread

    @property
    def thread(self) -> StageThread:
        if self._thread is None:
            raise NotReady("the cluster runs only during the body of the test: use it there")
        return self._thread

    @property
    def inner(self) -> Cluster:
        """The async `Cluster` of the cluster's own thread."""
        return self.thread.cluster

    @property
    def stage(self) -> Stage:
        return self.inner.stage

    def producer(self, topic: str, *, group: str = "test-producer") -> BlockingProducer:
        """Open a producer whose sends go into the history."""
        producer = self.thread.call(self.inner.producer, topic, group=group)
        return BlockingProducer(self.thread, producer)

    def consumer(self, topic: str, *, group: str = "test-group") -> BlockingConsumer:
        """Open a member of a group whose reads go into the history."""
        consumer = self.thread.call(self.inner.consumer, topic, group=group)
        return BlockingConsumer(self.thread, consumer)

    def real_producer(self, **options: Any) -> BlockingRealProducer:
        """Open a producer of any messages, whose sends go into the history; `options` as
        `rocketbed.Producer` has them."""
        producer = self.thread.call(self.inner.real_producer, **options)
        return BlockingRealProducer(self.thread, producer)


@dataclass(eq=False)
class BlockingFault:
    """A step that was not taken yet."""

    chaos: "BlockingChaos"
    step: Step

    def __str__(self) -> str:
        return self.step.action()

    def now(self) -> list[str]:
        """Take the step. Return the names of those it hit."""
        chaos = self.chaos
        return chaos.thread.call(Fault(chaos.inner, self.step).now)


class BlockingChaos(ChaosVerbs[BlockingFault]):
    """`Chaos` without `await`: `with chaos.during(chaos.kill("leader")): ...`"""

    fault_phase = Blocking(Chaos.fault_phase)
    recover = Blocking(Chaos.recover)

    def __init__(self, cluster: BlockingCluster) -> None:
        self._cluster = cluster

    @property
    def thread(self) -> StageThread:
        return self._cluster.thread

    @property
    def inner(self) -> Chaos:
        return Chaos(self._cluster.inner)

    def _take(self, step: Step) -> BlockingFault:
        return BlockingFault(self, parse_step(str(step)))

    @contextmanager
    def during(self, *faults: BlockingFault | str) -> Iterator[list[str]]:
        """Keep faults in force for as long as the block runs; see `Chaos.during`."""
        inner, thread = self.inner, self.thread
        inner_faults = [
            fault if isinstance(fault, str) else Fault(inner, fault.step) for fault in faults
        ]
        block = inner.during(*inner_faults)
        names = thread.call(block.__aenter__)
        try:
            yield names
        finally:
            thread.call(block.__aexit__, None, None, None)

    def check(self, *ids: str) -> None:
        """Have the history judged once the body has ended."""
        self.thread.script.ask(ids, place_of(inspect.currentframe()))
