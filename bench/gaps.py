"""How long nobody is acknowledged when a group's leader goes: ours, and RocketMQ's controller mode.

Three nodes, and a nameserver with the controller, as real processes. A gap is the longest time
between two acknowledgements to any of four senders of 1 KiB, from the last one before the leader is
struck until half a second after another one leads, or, at a rolling restart, until all are in sync
again; so it holds all that a failover takes, the client's part too. At the end each acknowledged
message is looked for at the place that was told.
"""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

import trio

from bench.testbed import testbed
from rocketbed.chaos.foreign.installation import unpacked
from rocketbed.chaos.foreign.rocketmq import RocketMQSoftware
from rocketbed.chaos.foreign.target import ForeignHost
from rocketbed.chaos.process.backend import ProcessBackend, SetUp
from rocketbed.chaos.process.network.choice import Net
from rocketbed.chaos.process.network.switch.fabric import missing_for_switch
from rocketbed.chaos.process.run import ProcessHost
from rocketbed.chaos.scenario.plan import Plan, Shape
from rocketbed.chaos.trial.api import Elected
from rocketbed.chaos.trial.links import HEALTHY, LinkState
from rocketbed.chaos.trial.load import topic_names
from rocketbed.chaos.trial.members import Members
from rocketbed.client.admin import Admin
from rocketbed.client.consumer import Consumer
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Sent
from rocketbed.client.producer import Producer
from rocketbed.wire.errors import RocketbedError

Row = tuple[str, float, str]
QUEUES: Final = 4
BODY: Final = bytes(1024 - 8)
"""Behind a message's number."""
SENDERS: Final = 4
SEND_S: Final = 10.0
STEADY_S: Final = 0.3
"""Of acknowledgements before the leader is struck."""
AFTER_S: Final = 0.5
"""A gap that comes later is none of the failover."""
LOOK_S: Final = 0.01
WHOLE_S: Final = 120.0
PULL: Final = 500
MS: Final = 1000.0
SEGMENT: Final = 128 << 20
SHAPE: Final = Shape(brokers=3, nameservers=1, failover=True, segment=SEGMENT)
PEER_SHAPE: Final = Shape(brokers=3, nameservers=1, min_isr=2, segment=SEGMENT)
"""Acknowledged is what all of the in-sync set has, two nodes or more, as it is with ours."""
TUNED_CONTROLLER: Final = {
    "scanNotActiveBrokerInterval": "200",
    "scanInactiveMasterInterval": "500",
}
TUNED_BROKER: Final = {
    "brokerHeartbeatInterval": "200",
    "sendHeartbeatTimeoutMillis": "500",
    "controllerHeartBeatTimeoutMills": "1000",
}
"""Defaults: 5 s each, and 1, 1, 10 s."""

Mend = Callable[[], Awaitable[object]]


@dataclass(slots=True)
class Group:
    """A group under load."""

    backend: ProcessBackend
    members: Members
    admin: Admin
    name: str
    topic: str
    times: list[float] = field(default_factory=list)
    """Of acknowledgements, since the last strike and of the last one before."""
    stored: dict[tuple[int, int], int] = field(default_factory=dict)
    """Number of each acknowledged message, by queue and offset."""
    others: int = 0
    """Sends that ended otherwise."""

    async def wait_led(self, after: int = 0) -> Elected:
        """Until one leads in a later epoch. Raises `trio.TooSlowError`."""
        with trio.fail_after(WHOLE_S):
            while True:
                found = await self.backend.elected(self.name)
                if found is not None and found.epoch > after:
                    return found
                await trio.sleep(LOOK_S)

    async def wait_whole(self) -> Elected:
        """Until one leads and all are in sync, by its own word. Raises `trio.TooSlowError`."""
        with trio.fail_after(WHOLE_S):
            while True:
                found = await self.wait_led()
                sample = await self.backend.observe(found.node)
                if sample is not None and sample.is_master and sample.in_sync == len(self.nodes):
                    return found
                await trio.sleep(LOOK_S)

    @property
    def nodes(self) -> list[str]:
        return self.members.nodes

    async def hand_over(self, led: Elected) -> None:
        """Have another one lead that has everything."""
        host, port = self.backend.address(led.node)
        await self.admin.hand_over(f"{host}:{port}", self.name, to=-1, epoch=led.epoch)

    async def gap(self, strike: Callable[[], Awaitable[Mend]], until: Mend) -> tuple[float, Mend]:
        """The longest time without an acknowledgement, seconds, and how the strike is mended."""
        await self._wait_acknowledged()
        await trio.sleep(STEADY_S)
        del self.times[:-1]
        mend = await strike()
        await until()
        await self._wait_acknowledged()
        return max(after - before for before, after in pairwise(self.times)), mend

    async def _wait_acknowledged(self) -> None:
        """Until one more message is acknowledged. Raises `trio.TooSlowError`."""
        count = len(self.times)
        with trio.fail_after(WHOLE_S):
            while len(self.times) == count:
                await trio.sleep(LOOK_S)


# --- strikes


async def _kill(group: Group, leader: str) -> Mend:
    await group.backend.kill(leader)
    return partial(group.members.start, leader)


async def _pause(group: Group, leader: str) -> Mend:
    await group.backend.pause(leader)
    return partial(group.backend.resume, leader)


async def _stop(group: Group, leader: str) -> Mend:
    if not await group.members.stop(leader):
        raise RuntimeError(f"{leader} did not stop in time")
    return partial(group.members.start, leader)


async def _cut(group: Group, leader: str) -> Mend:
    """Clients still reach it."""
    await _link(group, leader, LinkState(cut=True))
    return partial(_link, group, leader, HEALTHY)


async def _link(group: Group, leader: str, state: LinkState) -> None:
    others = [*group.members.shape.nameserver_names, *(n for n in group.nodes if n != leader)]
    for other in others:
        await group.backend.set_link(leader, other, state)
        await group.backend.set_link(other, leader, state)


CUT: Final = "cut off from controller and followers"
STRIKES: Final = {"SIGKILL": _kill, "SIGSTOP": _pause, "clean stop": _stop, CUT: _cut}
"""How the leader is struck."""


def net_of(what: str) -> Net:
    """Loopback where it will do; a cut needs machines in network namespaces."""
    return "switch" if what == CUT else "plain"


# --- rows


def ours(runs: int) -> Iterator[Row]:
    """Of so many strikes of each kind, and of a rolling restart with so many stops."""
    for what in STRIKES:
        yield from _rows(what, ProcessHost(), SHAPE, runs)
    stops, handovers, outcome = trio.run(_rolling, runs)
    yield from _figures("rolling restart, a node stopped and started", stops)
    yield from _figures("rolling restart, a handover before it", handovers)
    yield from _kept("rolling restart", outcome)


def peers(jars: Path, runs: int) -> Iterator[Row]:
    """The same strikes at RocketMQ in controller mode, its timers as they are and tuned."""
    installation = unpacked(jars)
    tuned = replace(PEER_SHAPE, settings=TUNED_BROKER)
    for what in STRIKES:
        yield from _rows(what, ForeignHost(installation, "controller"), PEER_SHAPE, runs)
        yield from _rows(what, _TunedHost(installation, "controller"), tuned, runs, ", tuned")


def _rows(what: str, host: ProcessHost, shape: Shape, runs: int, how: str = "") -> Iterator[Row]:
    if what == CUT and (missing := missing_for_switch()) is not None:
        print(f"failover, {what}: left out, {missing}", file=sys.stderr)
        return
    found, outcome = trio.run(_gaps, host, shape, what, runs)
    yield from _figures(what + how, found)
    yield from _kept(what + how, outcome)


def _figures(what: str, found: list[float]) -> Iterator[Row]:
    ordered = sorted(found)
    if not ordered:
        return
    name = f"gap, {what}"
    yield f"{name}: least of {len(ordered)}", MS * ordered[0], "ms"
    yield f"{name}: median", MS * ordered[len(ordered) // 2], "ms"
    yield f"{name}: p99", MS * ordered[len(ordered) * 99 // 100], "ms"
    yield f"{name}: longest", MS * ordered[-1], "ms"


def _kept(what: str, outcome: "Outcome") -> Iterator[Row]:
    yield f"gap, {what}: acknowledged meanwhile", outcome.acknowledged, "messages"
    if outcome.is_stuck:
        yield f"gap, {what}: given up, nothing for more than", WHOLE_S, "s"
        return
    yield f"gap, {what}: of them lost", outcome.lost, "messages"


# --- runs


@dataclass(slots=True)
class Outcome:
    """What became of the messages of a group."""

    acknowledged: int = 0
    lost: int = 0
    is_stuck: bool = False
    """Whether nobody was acknowledged, or not all in sync, for `WHOLE_S`; nothing was looked for
    then."""


async def _gaps(
    host: ProcessHost, shape: Shape, what: str, runs: int
) -> tuple[list[float], Outcome]:
    """Seconds, one of each strike at who leads by then."""
    found: list[float] = []
    outcome = Outcome()
    async with _under_load(host, net_of(what), shape, outcome) as group:
        for _ in range(runs):
            try:
                led = await group.wait_whole()
                taken, mend = await group.gap(
                    partial(STRIKES[what], group, led.node), partial(_led, group, led.epoch)
                )
            except trio.TooSlowError:
                outcome.is_stuck = True
                break
            found.append(taken)
            await mend()
    return found, outcome


async def _led(group: Group, epoch: int) -> None:
    await group.wait_led(epoch)
    await trio.sleep(AFTER_S)


async def _rolling(runs: int) -> tuple[list[float], list[float], Outcome]:
    """Gaps of stops and of handovers: each node in turn, which leads no more when it is stopped."""
    stops: list[float] = []
    handovers: list[float] = []
    outcome = Outcome()
    async with _under_load(ProcessHost(), "plain", SHAPE, outcome) as group:
        for number in range(runs):
            node = group.nodes[number % len(group.nodes)]
            led = await group.wait_whole()
            if led.node == node:
                taken, _ = await group.gap(partial(_handed, group, led), group.wait_whole)
                handovers.append(taken)
            taken, _ = await group.gap(partial(_restart, group, node), group.wait_whole)
            stops.append(taken)
    return stops, handovers, outcome


async def _handed(group: Group, led: Elected) -> Mend:
    await group.hand_over(led)
    await group.wait_led(led.epoch)
    return group.wait_whole


async def _restart(group: Group, node: str) -> Mend:
    mend = await _stop(group, node)
    await mend()
    return mend


@asynccontextmanager
async def _under_load(
    host: ProcessHost, net: Net, shape: Shape, outcome: Outcome
) -> AsyncIterator[Group]:
    """A group in which everybody is in sync and four send; what was acknowledged is counted, and
    looked for, at the end."""
    plan = Plan(name="bench", seed=1, shape=shape)
    topic = topic_names(plan)[0]
    async with testbed(host, net, plan) as backend:
        members = Members(shape, backend)
        for name in shape.nameserver_names:
            await backend.start(name, {})
        await members.start_all()
        world, names = backend.world, backend.nameservers()
        async with (
            Admin(world, nameservers=names) as admin,
            Producer(world, nameservers=names, timeout_s=SEND_S) as producer,
        ):
            group = Group(backend, members, admin, next(iter(shape.group_nodes())), topic)
            await group.wait_whole()
            await _make_topic(group)
            async with trio.open_nursery() as nursery:
                for sender in range(SENDERS):
                    nursery.start_soon(_send, producer, group, sender)
                yield group
                nursery.cancel_scope.cancel()
            outcome.acknowledged = len(group.stored)
            if not outcome.is_stuck:
                await group.wait_whole()
                outcome.lost = await _lost(group)


async def _make_topic(group: Group) -> None:
    with trio.fail_after(WHOLE_S):
        while True:
            with suppress(RocketbedError):
                await group.admin.create_topic(group.topic, queues=QUEUES)
                return
            await trio.sleep(LOOK_S)


async def _send(producer: Producer, group: Group, sender: int) -> None:
    number = sender
    while True:
        body = number.to_bytes(8, "big") + BODY
        outcome = await producer.send(Message(group.topic, body))
        if isinstance(outcome, Sent) and outcome.is_safe:
            group.times.append(trio.current_time())
            group.stored[outcome.queue.queue_id, outcome.queue_offset] = number
        else:
            group.others += 1
        number += SENDERS


async def _lost(group: Group) -> int:
    """How many acknowledged messages are not where they were said to be."""
    wanted = dict(group.stored)
    world, names = group.backend.world, group.backend.nameservers()
    async with Consumer(world, nameservers=names, group="bench-reader") as consumer:
        for queue in await consumer.queues(group.topic, fresh=True):
            offset = 0
            while True:
                pulled = await consumer.pull(queue, offset, count=PULL)
                for message in pulled.messages:
                    place = queue.queue_id, message.queue_offset
                    if wanted.get(place) == int.from_bytes(message.body[:8], "big"):
                        del wanted[place]
                if pulled.next_offset >= pulled.max_offset and not pulled.messages:
                    break
                offset = pulled.next_offset
    return len(wanted)


# --- RocketMQ


class _TunedSoftware(RocketMQSoftware):
    def nameserver_command(
        self, name: str, directory: Path, lines: Mapping[str, str]
    ) -> Sequence[str]:
        return super().nameserver_command(name, directory, {**lines, **TUNED_CONTROLLER})


class _TunedHost(ForeignHost):
    def backend(self, setup: SetUp) -> ProcessBackend:
        software = _TunedSoftware(self.installation, self.mode, setup.fabric, setup.plan)
        return ProcessBackend(setup, software)
