"""An empty replica that catches up while its leader serves: its speed, and the cost for producers.

The log is written beforehand by the node's own store (generate.py), and founds the group. The first
follower copies it without traffic, the second one together with the load generator, 64 in flight,
and a send every 2 ms whose latency is measured. Rates of a copy are from its first byte to the
leader's end.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import trio

from bench.failover import LOOK_S, local_group, wait_leader, warm
from bench.processes import generate
from rocketbed.cluster.cluster import LocalCluster
from rocketbed.cluster.plan import NAMESERVER

Row = tuple[str, float, str]
MIB: Final = 1 << 20
LOG_MIB: Final = 1536
SEGMENT_MIB: Final = 128
"""As in `cluster.plan`."""
INDEX: Final = {"maxHashSlotNum": "5000000", "maxIndexNum": "20000000"}
"""As the generator leaves index files: RocketMQ's defaults."""
BODY: Final = 1024
IN_FLIGHT: Final = "64"
SLICE_S: Final = 2.0
SLICES: Final = 5
"""Slices of traffic before the second copy."""
COPY_S: Final = 600.0
JOIN_S: Final = 60.0


def catch_up() -> Iterator[Row]:
    """Yield the rows of both copies."""
    yield from trio.run(_catch_up)


async def _catch_up() -> list[Row]:
    async with local_group(slaves=2, failover=True, settings=INDEX) as cluster:
        first, second, third = cluster.nodes
        store = cluster.member_directory(first) / "store"
        command = ["-m", "bench.generate", "--out", store, "--mib", LOG_MIB, "--body", BODY]
        command += ["--segment-mib", SEGMENT_MIB]
        await trio.run_process([sys.executable, "-P", *map(str, command)], capture_stdout=True)
        await cluster.start(NAMESERVER, first)
        await wait_leader(cluster, 1)
        alone = await _copy(cluster, first, second)
        await wait_leader(cluster, 2)
        traffic = partial(_traffic, cluster.plan.member(first).port)
        before = Traffic()
        await trio.to_thread.run_sync(warm, cluster.plan.member(first).port)
        for _ in range(SLICES):
            await trio.to_thread.run_sync(traffic, before)
        during = Traffic()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_serve_until_cancelled, partial(traffic, during))
            under_load = await _copy(cluster, first, third)
            nursery.cancel_scope.cancel()
        with trio.fail_after(JOIN_S):
            await wait_leader(cluster, 3)
    title = f"catch-up, a log of {LOG_MIB} MiB"
    return [
        (f"{title}, nobody sends", alone, "MiB/s"),
        (f"{title}, beside the load", under_load, "MiB/s"),
        *before.rows("before"),
        *during.rows("meanwhile"),
    ]


@dataclass(slots=True)
class Traffic:
    """Results of producers, in slices."""

    messages: float = 0.0
    seconds: float = 0.0
    p99: list[float] = field(default_factory=list)
    longest: float = 0.0
    refused: float = 0.0

    def rows(self, when: str) -> Iterator[Row]:
        """Yield the producers' rows."""
        yield f"producers {when}: acknowledged", self.messages / self.seconds, "messages/s"
        yield f"producers {when}: p99, median of slices", statistics.median(self.p99), "ms"
        yield f"producers {when}: longest", self.longest, "ms"
        yield f"producers {when}: refused", self.refused, "messages"


def _traffic(port: int, traffic: Traffic) -> None:
    """Run one slice."""
    command = [sys.executable, "-P", "-m", "bench.ping", str(port), "send", str(SLICE_S)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as ping:
        result = generate(port, IN_FLIGHT, SLICE_S)
        times = json.loads(ping.communicate()[0])
    traffic.messages += result["messages"]
    traffic.seconds += result["seconds"]
    traffic.p99.append(times["p99"])
    traffic.longest = max(traffic.longest, times["longest"])
    traffic.refused += result["refused"] + times["refused"]


async def _serve_until_cancelled(traffic: Callable[[], None]) -> None:
    while True:
        await trio.to_thread.run_sync(traffic)


async def _copy(cluster: LocalCluster, leader: str, follower: str) -> float:
    """Start an empty replica; return MiB a second until it has what the leader had by then."""
    cluster.launch(follower)
    began = None
    with trio.fail_after(COPY_S):
        while True:
            own, end = await _end(cluster, follower), await _end(cluster, leader)
            now = trio.current_time()
            if own and began is None:
                began, at = now, own
            if began is not None and end and own >= end - SEGMENT_MIB * MIB // 100:
                return (own - at) / MIB / (now - began)
            await trio.sleep(LOOK_S)


async def _end(cluster: LocalCluster, name: str) -> int:
    """Return the end of a node's log; 0 if it does not answer."""
    rows = {row.member.name: row for row in await cluster.status()}
    return rows[name].offset("commitLogMaxOffset") or 0
