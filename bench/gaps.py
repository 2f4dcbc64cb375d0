"""Longest time without an acknowledgement when a group's leader fails: ours, and RocketMQ's
controller mode.

Three nodes, and a nameserver with the controller, as real processes. A gap is the longest time
between two acknowledgements to any of four senders of 1 KiB, from the last one before the leader is
struck until half a second after another one leads, or, at a rolling restart, until all are in sync
again; so it includes all of a failover, the client's part too. At the end each acknowledged message
is searched at its place.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import trio

from bench.group import WHOLE_S, Group, Outcome, Recover, under_load
from rocketbed.chaos.backends.foreign.installation import unpacked
from rocketbed.chaos.backends.foreign.rocketmq import RocketMQSoftware
from rocketbed.chaos.backends.foreign.target import ForeignHost
from rocketbed.chaos.backends.process.backend import ProcessBackend, SetUp
from rocketbed.chaos.backends.process.network.choice import Net
from rocketbed.chaos.backends.process.network.switch.network import missing_for_switch
from rocketbed.chaos.backends.process.run import ProcessHost
from rocketbed.chaos.plan.plan import Shape
from rocketbed.chaos.run.api import Elected
from rocketbed.chaos.run.links import HEALTHY, LinkState

Row = tuple[str, float, str]
AFTER_S: Final = 0.5
"""Time after which a gap no longer belongs to the failover."""
MS: Final = 1000.0
SEGMENT: Final = 128 << 20
SHAPE: Final = Shape(brokers=3, nameservers=1, failover=True, segment=SEGMENT)
PEER_SHAPE: Final = Shape(brokers=3, nameservers=1, min_isr=2, segment=SEGMENT)
"""Acknowledged means held by all of the in-sync set, two nodes or more, as with ours."""
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


async def _kill(group: Group, leader: str) -> Recover:
    await group.backend.kill(leader)
    return partial(group.members.start, leader)


async def _pause(group: Group, leader: str) -> Recover:
    await group.backend.pause(leader)
    return partial(group.backend.resume, leader)


async def _stop(group: Group, leader: str) -> Recover:
    if not await group.members.stop(leader):
        raise RuntimeError(f"{leader} did not stop in time")
    return partial(group.members.start, leader)


async def _cut(group: Group, leader: str) -> Recover:
    """Cut the leader off; clients still reach it."""
    await _link(group, leader, LinkState(cut=True))
    return partial(_link, group, leader, HEALTHY)


async def _link(group: Group, leader: str, state: LinkState) -> None:
    peers_of_leader = [
        *group.members.shape.nameserver_names,
        *(n for n in group.nodes if n != leader),
    ]
    for peer in peers_of_leader:
        await group.backend.set_link(leader, peer, state)
        await group.backend.set_link(peer, leader, state)


CUT: Final = "cut off from controller and followers"
STRIKES: Final = {"SIGKILL": _kill, "SIGSTOP": _pause, "clean stop": _stop, CUT: _cut}
"""Ways to strike the leader."""


def net_of(strike: str) -> Net:
    """Return loopback where it will do; a cut needs machines in network namespaces."""
    return "switch" if strike == CUT else "plain"


# --- rows


def ours(runs: int) -> Iterator[Row]:
    """Yield rows of this many strikes of each kind, and of a rolling restart with this many
    stops."""
    for strike in STRIKES:
        yield from _rows(strike, ProcessHost(), SHAPE, runs)
    stops, handovers, outcome = trio.run(_rolling, runs)
    yield from _figures("rolling restart, a node stopped and started", stops)
    yield from _figures("rolling restart, a handover before it", handovers)
    yield from _outcome_rows("rolling restart", outcome)


def peers(jars: Path, runs: int) -> Iterator[Row]:
    """Yield rows of the same strikes at RocketMQ in controller mode, with its own timers and tuned
    ones."""
    installation = unpacked(jars)
    tuned = replace(PEER_SHAPE, settings=TUNED_BROKER)
    for strike in STRIKES:
        yield from _rows(strike, ForeignHost(installation, "controller"), PEER_SHAPE, runs)
        yield from _rows(strike, _TunedHost(installation, "controller"), tuned, runs, ", tuned")


def _rows(strike: str, host: ProcessHost, shape: Shape, runs: int, how: str = "") -> Iterator[Row]:
    if strike == CUT and (missing := missing_for_switch()) is not None:
        print(f"failover, {strike}: left out, {missing}", file=sys.stderr)
        return
    gaps, outcome = trio.run(_gaps, host, shape, strike, runs)
    yield from _figures(strike + how, gaps)
    yield from _outcome_rows(strike + how, outcome)


def _figures(strike: str, gaps: list[float]) -> Iterator[Row]:
    ordered = sorted(gaps)
    if not ordered:
        return
    name = f"gap, {strike}"
    yield f"{name}: least of {len(ordered)}", MS * ordered[0], "ms"
    yield f"{name}: median", MS * ordered[len(ordered) // 2], "ms"
    yield f"{name}: p99", MS * ordered[len(ordered) * 99 // 100], "ms"
    yield f"{name}: longest", MS * ordered[-1], "ms"


def _outcome_rows(strike: str, outcome: Outcome) -> Iterator[Row]:
    yield f"gap, {strike}: acknowledged meanwhile", outcome.acknowledged, "messages"
    if outcome.is_stuck:
        yield f"gap, {strike}: given up, nothing for more than", WHOLE_S, "s"
        return
    yield f"gap, {strike}: of them lost", outcome.lost, "messages"


# --- runs


async def _gaps(
    host: ProcessHost, shape: Shape, strike: str, runs: int
) -> tuple[list[float], Outcome]:
    """Return the seconds of each strike at the leader of that time."""
    gaps: list[float] = []
    outcome = Outcome()
    async with under_load(host, net_of(strike), shape, outcome) as group:
        for _ in range(runs):
            try:
                led = await group.wait_whole()
                seconds, recover = await group.gap(
                    partial(STRIKES[strike], group, led.node), partial(_led, group, led.epoch)
                )
            except trio.TooSlowError:
                outcome.is_stuck = True
                break
            gaps.append(seconds)
            await recover()
    return gaps, outcome


async def _led(group: Group, epoch: int) -> None:
    await group.wait_led(epoch)
    await trio.sleep(AFTER_S)


async def _rolling(runs: int) -> tuple[list[float], list[float], Outcome]:
    """Return gaps of stops and of handovers: each node in turn, which no longer leads when it is
    stopped."""
    stops: list[float] = []
    handover_gaps: list[float] = []
    outcome = Outcome()
    async with under_load(ProcessHost(), "plain", SHAPE, outcome) as group:
        for number in range(runs):
            node = group.nodes[number % len(group.nodes)]
            led = await group.wait_whole()
            if led.node == node:
                seconds, _ = await group.gap(partial(_handed, group, led), group.wait_whole)
                handover_gaps.append(seconds)
            seconds, _ = await group.gap(partial(_restart, group, node), group.wait_whole)
            stops.append(seconds)
    return stops, handover_gaps, outcome


async def _handed(group: Group, led: Elected) -> Recover:
    await group.hand_over(led)
    await group.wait_led(led.epoch)
    return group.wait_whole


async def _restart(group: Group, node: str) -> Recover:
    recover = await _stop(group, node)
    await recover()
    return recover


# --- RocketMQ


class _TunedSoftware(RocketMQSoftware):
    def nameserver_command(
        self, name: str, directory: Path, lines: Mapping[str, str]
    ) -> Sequence[str]:
        return super().nameserver_command(name, directory, {**lines, **TUNED_CONTROLLER})


class _TunedHost(ForeignHost):
    def backend(self, setup: SetUp) -> ProcessBackend:
        software = _TunedSoftware(self.installation, self.mode, setup.network, setup.plan)
        return ProcessBackend(setup, software)
