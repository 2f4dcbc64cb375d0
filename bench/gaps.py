"""How long nobody is acknowledged when a group's leader goes: ours, and RocketMQ's controller mode.

Three nodes, and a nameserver with the controller, as real processes. A gap is the longest time
between two acknowledgements to any of four senders of 1 KiB, from the last one before the leader is
struck until half a second after another one leads, or, at a rolling restart, until all are in sync
again; so it holds all that a failover takes, the client's part too. At the end each acknowledged
message is looked for at the place that was told.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import trio

from bench.group import WHOLE_S, Group, Mend, Outcome, under_load
from rocketbed.chaos.backends.foreign.installation import unpacked
from rocketbed.chaos.backends.foreign.rocketmq import RocketMQSoftware
from rocketbed.chaos.backends.foreign.target import ForeignHost
from rocketbed.chaos.backends.process.backend import ProcessBackend, SetUp
from rocketbed.chaos.backends.process.network.choice import Net
from rocketbed.chaos.backends.process.network.switch.fabric import missing_for_switch
from rocketbed.chaos.backends.process.run import ProcessHost
from rocketbed.chaos.plan.plan import Shape
from rocketbed.chaos.run.api import Elected
from rocketbed.chaos.run.links import HEALTHY, LinkState

Row = tuple[str, float, str]
AFTER_S: Final = 0.5
"""A gap that comes later is none of the failover."""
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


def _kept(what: str, outcome: Outcome) -> Iterator[Row]:
    yield f"gap, {what}: acknowledged meanwhile", outcome.acknowledged, "messages"
    if outcome.is_stuck:
        yield f"gap, {what}: given up, nothing for more than", WHOLE_S, "s"
        return
    yield f"gap, {what}: of them lost", outcome.lost, "messages"


# --- runs


async def _gaps(
    host: ProcessHost, shape: Shape, what: str, runs: int
) -> tuple[list[float], Outcome]:
    """Seconds, one of each strike at who leads by then."""
    found: list[float] = []
    outcome = Outcome()
    async with under_load(host, net_of(what), shape, outcome) as group:
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
    async with under_load(ProcessHost(), "plain", SHAPE, outcome) as group:
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
