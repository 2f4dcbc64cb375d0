"""Groups with failover: their cost, compared with one node and with a classic master.

Three nodes and a nameserver with the controller, as processes on loopback. Rates are those of the
load generator at the leader; of several groups those of a generator at each leader, together. One
node has no copies; the classic master waits for both its slaves, as a leader waits for its whole
in-sync set.
"""

import statistics
import tempfile
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal

import trio

from bench.processes import cpu_seconds, generate
from rocketbed.cluster.cluster import LocalCluster
from rocketbed.cluster.plan import BROKER_NAME
from rocketbed.wire.errors import RocketbedError

Row = tuple[str, float, str]
Flush = Literal["async", "sync"]
IN_FLIGHT: Final = "64"
WARM_S: Final = 1.0
TURNS: Final = 3
LOOK_S: Final = 0.01
WHOLE_S: Final = 60.0
WARM_TRIES: Final = 20
KINDS: Final[dict[str, dict[str, Any]]] = {
    "one node": {"slaves": 0, "sync": False},
    "classic master, two slaves": {"slaves": 2, "in_sync_replicas": 3},
    "three replicas": {"slaves": 2, "failover": True},
    "two groups of three": {"slaves": 2, "failover": True, "groups": 2},
}


def rates(seconds: float) -> Iterator[Row]:
    """Yield rates under either policy: medians of a few turns, all kinds by turns."""
    flushes: tuple[Flush, ...] = ("async", "sync")
    for flush in flushes:
        results_by_kind: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
        for _ in range(TURNS):
            for kind in KINDS:
                results_by_kind[kind].append(trio.run(_rate, seconds, flush, KINDS[kind]))
        for kind, results in results_by_kind.items():
            name = f"{flush.upper()}_FLUSH, {IN_FLIGHT} in flight, {kind}"
            yield name, _median(results, "rate"), "messages/s"
            yield f"{name}: CPU of who is asked", _median(results, "leader"), "us/message"
            if "follower" in results[0]:
                yield f"{name}: CPU of a follower", _median(results, "follower"), "us/message"
            if refused := sum(result["refused"] for result in results):
                yield f"{name}: not acknowledged", refused, "messages"
        replicas = results_by_kind.pop("three replicas")
        for kind, results in results_by_kind.items():
            ratios = [b["rate"] / a["rate"] for a, b in zip(results, replicas, strict=True)]
            name = f"{flush.upper()}_FLUSH, three replicas / {kind}"
            yield name, statistics.median(ratios), "x"
            yield f"{name}: least", min(ratios), "x"
            yield f"{name}: greatest", max(ratios), "x"


def _median(results: list[dict[str, float]], field: str) -> float:
    return statistics.median(result[field] for result in results)


async def _rate(seconds: float, flush: Flush, kind: dict[str, Any]) -> dict[str, float]:
    async with local_group(flush=flush, **kind) as cluster:
        await cluster.start()
        brokers = cluster.plan.brokers
        each = len(cluster.nodes) // len(brokers)
        leaders = [await wait_leader(cluster, each, broker) for broker in brokers]
        ports = [cluster.plan.member(leader).port for leader in leaders]
        for port in ports:
            warm(port)
        before = _spent(cluster)
        with ThreadPoolExecutor() as threads:
            loads = list(threads.map(lambda port: generate(port, IN_FLIGHT, seconds), ports))
        result = {
            field: sum(load[field] for load in loads) for field in ("rate", "messages", "refused")
        }
        spent = {name: _spent(cluster)[name] - before[name] for name in before}
        of_leaders = sum(spent.pop(leader) for leader in leaders)
        result["leader"] = 1e6 * of_leaders / result["messages"]
        if spent:
            result["follower"] = 1e6 * sum(spent.values()) / result["messages"] / (each - 1)
        return result


def warm(port: int) -> None:
    """Load until nothing is refused: slaves that are waited for are connected, disks keep up."""
    for _ in range(WARM_TRIES):
        if not generate(port, IN_FLIGHT, WARM_S)["refused"]:
            return
    raise RuntimeError("sends are still refused")


def _spent(cluster: LocalCluster) -> dict[str, float]:
    """Return the CPU seconds of each node."""
    pids = {name: cluster.pid(name) for name in cluster.nodes}
    return {name: cpu_seconds(pid) for name, pid in pids.items() if pid is not None}


@asynccontextmanager
async def local_group(**options: Any) -> AsyncIterator[LocalCluster]:
    """Yield a cluster that is not started; the options are `make_plan`'s."""
    with tempfile.TemporaryDirectory(prefix="rocketbed-bench-") as directory:
        async with LocalCluster.create(Path(directory) / "c", tied=True, **options) as cluster:
            yield cluster


async def wait_leader(cluster: LocalCluster, in_sync: int, broker: str = BROKER_NAME) -> str:
    """Return a group's leader, once this many are in sync; without failover the master."""
    if not cluster.plan.failover:
        return cluster.plan.master(broker).name
    with trio.fail_after(WHOLE_S):
        while True:
            with suppress(RocketbedError):
                group = await cluster.group(broker)
                if group is not None and group.leader and len(group.in_sync) >= in_sync:
                    return group.names[group.leader]
            await trio.sleep(LOOK_S)
