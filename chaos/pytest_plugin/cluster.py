"""The cluster of a test, for its body."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import trio

from rocketbed.chaos.plan.step import parse_step
from rocketbed.chaos.pytest_plugin.clients import TopicConsumer, TopicProducer
from rocketbed.chaos.pytest_plugin.errors import NotReady, TestingError
from rocketbed.chaos.pytest_plugin.opening import Opening
from rocketbed.chaos.pytest_plugin.recorded import RecordedProducer
from rocketbed.client.admin import Admin
from rocketbed.client.consumer import Consumer
from rocketbed.client.producer import Producer
from rocketbed.world.api import World

if TYPE_CHECKING:
    from rocketbed.chaos.pytest_plugin.stage import Stage

SETTLE_S: Final = 60.0
ATTEMPT_S: Final = 3.0
HOLD_S: Final = 1.0


class ClusterNames(ABC):
    """Properties of a cluster that need no waiting."""

    @property
    @abstractmethod
    def stage(self) -> "Stage":
        """Stage of the test. Raises `NotReady` outside the body and its async fixtures."""

    @property
    def nameserver_address(self) -> str:
        """Address for clients: `host:port`, several joined by `;`."""
        return self.stage.backend.nameservers()

    @property
    def nodes(self) -> list[str]:
        """Masters and slaves: `b1`, `b2`, ..."""
        return self.stage.members.nodes

    @property
    def nameservers(self) -> list[str]:
        """`ns1`, ..."""
        return self.stage.plan.shape.nameserver_names

    @property
    def leaders(self) -> Mapping[str, str]:
        """Group -> its current master."""
        return self.stage.members.leaders()

    @property
    def leader(self) -> str:
        """Master of the only group."""
        leaders = self.leaders
        if len(leaders) > 1:
            raise TestingError("there are several groups: use `leaders` for the master of one")
        return next(iter(leaders.values()))

    def address(self, name: str) -> str:
        """Return the address of a node or nameserver for clients, `host:port`."""
        host, port = self.stage.backend.address(self._checked(name))
        return f"{host}:{port}"

    def state(self, name: str) -> str:
        """Return `running`, `paused` or `down`."""
        return self.stage.backend.state(self._checked(name))

    def _checked(self, name: str) -> str:
        if name not in (*self.nodes, *self.nameservers):
            raise TestingError(
                f"unknown node {name!r}: {', '.join([*self.nodes, *self.nameservers])}"
            )
        return name


class Cluster(ClusterNames):
    """A running cluster; the fixture `cluster` of tests that are async functions.

    It runs while the body does: fixtures may keep it, and only async ones may use it.
    """

    def __init__(self) -> None:
        self._stage: Stage | None = None

    @property
    def stage(self) -> "Stage":
        if self._stage is None:
            raise NotReady(
                "the cluster runs only during the body of the test: use it there, or in a"
                " fixture that is an async function"
            )
        return self._stage

    def bind(self, stage: "Stage | None") -> None:
        """Use the cluster of this stage from now on."""
        self._stage = stage

    # --- clients

    @property
    def world(self) -> World:
        """Machine of the body, to be passed to clients as their world."""
        return self.stage.backend.world

    # Awaited, a client stays open for the rest of the test; in `async with`, for the block.

    def producer(self, topic: str, *, group: str = "test-producer") -> Opening[TopicProducer]:
        """Open a producer of values for one topic, whose sends go into the history; the topic is
        created if necessary."""
        stage = self.stage

        @asynccontextmanager
        async def opens() -> AsyncIterator[TopicProducer]:
            await stage.ensure_topic(topic)
            if topic not in stage.topics:
                stage.topics.append(topic)
            nameservers = self.nameserver_address
            options: Any = {"group": group, "timeout_s": ATTEMPT_S, "retries": 0}
            async with Producer(self.world, nameservers=nameservers, **options) as client:
                yield TopicProducer(stage, client, topic)

        return Opening(stage, opens)

    def consumer(self, topic: str, *, group: str = "test-group") -> Opening[TopicConsumer]:
        """Open a member of a group whose reads go into the history.

        A new group begins at the first message.
        """
        stage = self.stage

        @asynccontextmanager
        async def opens() -> AsyncIterator[TopicConsumer]:
            await stage.ensure_topic(topic)
            number = stage.groups.setdefault(group, len(stage.groups) + 1)
            async with self.real_consumer(group, hold_s=HOLD_S) as client:
                await stage.insist(
                    lambda: client.subscribe(topic, start="first"), f"subscribing to {topic}"
                )
                yield TopicConsumer(stage, client, topic, number)

        return Opening(stage, opens)

    async def create_topic(self, topic: str, *, queues: int | None = None) -> None:
        """Create a topic at every master."""
        await trio.lowlevel.checkpoint()  # it may be there
        await self.stage.ensure_topic(topic, queues)

    def real_producer(self, **options: Any) -> Opening[RecordedProducer]:
        """Open a `rocketbed.Producer` for this cluster; its sends go into the history too."""
        stage = self.stage
        return Opening(stage, lambda: RecordedProducer(stage, **options))

    def real_consumer(self, group: str, **options: Any) -> Opening[Consumer]:
        """Open a `rocketbed.Consumer` for this cluster; not in the history."""
        own: Any = {"nameservers": self.nameserver_address, "group": group}
        return Opening(self.stage, lambda: Consumer(self.world, **own, **options))

    def admin(self) -> Opening[Admin]:
        """Open a `rocketbed.Admin` for this cluster."""
        return Opening(self.stage, lambda: Admin(self.world, nameservers=self.nameserver_address))

    # --- actions of an operator

    async def settled(self, *, timeout_s: float = SETTLE_S) -> None:
        """Wait until all running nodes serve, and slaves have all of their master's log.

        Raises a `ClusterFailed` with what is missing.
        """
        await self.stage.settled(timeout_s)

    async def kill(self, target: str) -> list[str]:
        """Send SIGKILL. Return the names of those it hit. They stay down until `restart`."""
        return await self._do(f"kill {target}")

    async def stop(self, target: str) -> list[str]:
        """Send SIGTERM, and wait."""
        return await self._do(f"stop {target}")

    async def restart(self, target: str = "all") -> list[str]:
        """Start what is down; a running node that is named is stopped first."""
        down = " down" if target == "all" else ""
        return await self._do(f"restart {target}{down}")

    async def pause(self, target: str) -> list[str]:
        """Send SIGSTOP, until `resume`."""
        return await self._do(f"pause {target}")

    async def resume(self, target: str = "all") -> list[str]:
        """Send SIGCONT."""
        await trio.lowlevel.checkpoint()  # nothing may be paused
        stage = self.stage
        names = await stage.resolver.names(target)
        pauses = [held for held in stage.body_schedule.held if held.step.verb == "pause"]
        for held in pauses:
            if set(held.done.names) & set(names):
                await stage.end(held)
        return names

    async def promote(self, target: str = "follower:longest") -> list[str]:
        """Make a slave the master; the old one is its slave from its next start on."""
        return await self._do(f"promote {target}")

    async def recover(self) -> None:
        """End every fault and start everything that is down."""
        await self.stage.recover()

    async def _do(self, text: str) -> list[str]:
        held = await self.stage.begin(parse_step(f"at 0s {text}"))
        return [] if held is None else held.done.names
