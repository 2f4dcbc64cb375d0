"""Groups with failover: how long nobody is acknowledged when the leader goes, and the price of it.

Three nodes and a nameserver with the controller, as processes on loopback. A gap is the longest
time between two acknowledgements to any of four senders, from the last one before the leader was
struck until half a second after another one leads; so it holds all that a failover takes, the
client's part too. Rates are those of the load generator at the leader, beside those of one node
that no other has a copy of.
"""

import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Literal

import trio

from bench.processes import cpu_seconds, generate
from rocketbed.chaos.cluster.cluster import LocalCluster
from rocketbed.chaos.cluster.status import GroupStatus
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Sent
from rocketbed.client.producer import Producer
from rocketbed.wire.errors import RocketbedError

Row = tuple[str, float, str]
TOPIC = "bench"
BODY = bytes(1024)
SENDERS = 4
STEADY_S = 0.3
"""Of acknowledgements before the leader is struck."""
AFTER_S = 0.5
"""A gap that comes later is none of the failover."""
LOOK_S = 0.01
IN_FLIGHT = "64"
WARM_S = 1.0
TURNS = 3
MS = 1000.0


def gaps(runs: int) -> Iterator[Row]:
    """Of so many strikes of each kind."""
    for what, strike in STRIKES.items():
        found = sorted(trio.run(_gaps, strike, runs))
        yield f"failover, {what}: gap, least of {runs}", MS * found[0], "ms"
        yield "  median", MS * found[len(found) // 2], "ms"
        yield "  p99", MS * found[len(found) * 99 // 100], "ms"
        yield "  longest", MS * found[-1], "ms"


# --- gaps

Mend = Callable[[], Awaitable[object]]


async def _kill(cluster: LocalCluster, leader: str) -> Mend:
    cluster.kill(leader)

    async def mend() -> None:
        await cluster.wait_ended(leader)
        await cluster.start(leader)

    return mend


async def _pause(cluster: LocalCluster, leader: str) -> Mend:
    cluster.pause(leader)

    async def mend() -> None:
        cluster.resume(leader)

    return mend


async def _stop(cluster: LocalCluster, leader: str) -> Mend:
    if not await cluster.stop(leader):
        raise RuntimeError(f"{leader} did not stop in time")

    async def mend() -> None:
        await cluster.start(leader)

    return mend


STRIKES = {"SIGKILL": _kill, "SIGSTOP": _pause, "rolling (SIGTERM)": _stop}
"""How the leader is struck."""


async def _gaps(strike: Callable[[LocalCluster, str], Awaitable[Mend]], runs: int) -> list[float]:
    """Seconds, one of each strike at who leads by then."""
    found: list[float] = []
    async with _group() as cluster:
        producer = Producer(nameservers=cluster.nameserver_address, timeout_s=10)
        async with producer, trio.open_nursery() as nursery:
            acknowledged: list[float] = []
            for _ in range(SENDERS):
                nursery.start_soon(_send, producer, acknowledged)
            for _ in range(runs):
                group = await _wait_whole(cluster)
                await trio.sleep(STEADY_S)
                del acknowledged[:-1]
                mend = await strike(cluster, f"node-{group.leader}")
                await _wait_group(cluster, partial(_is_later, group.epoch))
                await trio.sleep(AFTER_S)
                times = [*acknowledged, trio.current_time()]
                found.append(max(after - before for before, after in pairwise(times)))
                await mend()
            nursery.cancel_scope.cancel()
    return found


@asynccontextmanager
async def _group() -> AsyncIterator[LocalCluster]:
    """A group in which everybody is in sync."""
    with tempfile.TemporaryDirectory(prefix="rocketbed-bench-") as directory:
        path = Path(directory) / "c"
        async with LocalCluster.create(path, tied=True, slaves=2, failover=True) as cluster:
            await cluster.start()
            await _wait_whole(cluster)
            yield cluster


async def _send(producer: Producer, acknowledged: list[float]) -> None:
    while True:
        outcome = await producer.send(Message(TOPIC, BODY))
        if isinstance(outcome, Sent) and outcome.is_safe:
            acknowledged.append(trio.current_time())


async def _wait_whole(cluster: LocalCluster) -> GroupStatus:
    return await _wait_group(cluster, lambda group: len(group.in_sync) == 3)


def _is_later(epoch: int, group: GroupStatus) -> bool:
    return group.epoch > epoch


async def _wait_group(
    cluster: LocalCluster, holds: Callable[[GroupStatus], bool], seconds: float = 60
) -> GroupStatus:
    """Until it has a leader and this can be said of it."""
    with trio.fail_after(seconds):
        while True:
            with suppress(RocketbedError):
                group = await cluster.group()
                if group is not None and group.leader is not None and holds(group):
                    return group
            await trio.sleep(LOOK_S)


# --- rates


def rates(seconds: float) -> Iterator[Row]:
    """Under either policy: medians of a few turns, one node and three by turns."""
    flushes: tuple[Literal["async", "sync"], ...] = ("async", "sync")
    for flush in flushes:
        alone, copied = [], []
        for _ in range(TURNS):
            alone.append(trio.run(_rate, seconds, flush, 0))
            copied.append(trio.run(_rate, seconds, flush, 2))
        ratios = [b["rate"] / a["rate"] for a, b in zip(alone, copied, strict=True)]
        what = f"failover, {flush.upper()}_FLUSH, {IN_FLIGHT} in flight"
        yield f"{what}: one node", _median(alone, "rate"), "messages/s"
        yield "  its CPU", _median(alone, "leader"), "us/message"
        yield "  three replicas", _median(copied, "rate"), "messages/s"
        yield "  CPU of the leader", _median(copied, "leader"), "us/message"
        yield "  CPU of a follower", _median(copied, "follower"), "us/message"
        yield "  three replicas / one node", statistics.median(ratios), "x"
        yield "  least", min(ratios), "x"
        yield "  greatest", max(ratios), "x"
        if refused := sum(one["refused"] for one in copied):
            yield "  not acknowledged", refused, "messages"


def _median(found: list[dict[str, float]], what: str) -> float:
    return statistics.median(one[what] for one in found)


async def _rate(seconds: float, flush: Literal["sync", "async"], copies: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="rocketbed-bench-") as directory:
        cluster = LocalCluster.create(
            Path(directory) / "c",
            tied=True,
            slaves=copies,
            sync=copies > 0,
            failover=copies > 0,
            flush=flush,
        )
        async with cluster:
            await cluster.start()
            leader = f"node-{(await _wait_whole(cluster)).leader}" if copies else "master"
            port = cluster.plan.member(leader).port
            generate(port, IN_FLIGHT, WARM_S)
            before = _spent(cluster)
            result = generate(port, IN_FLIGHT, seconds)
            spent = {name: _spent(cluster)[name] - before[name] for name in before}
            result["leader"] = 1e6 * spent.pop(leader) / result["messages"]
            result["follower"] = 1e6 * sum(spent.values()) / result["messages"] / max(copies, 1)
            return result


def _spent(cluster: LocalCluster) -> dict[str, float]:
    """CPU seconds of each node."""
    pids = {name: cluster.pid(name) for name in cluster.nodes}
    return {name: cpu_seconds(pid) for name, pid in pids.items() if pid is not None}
