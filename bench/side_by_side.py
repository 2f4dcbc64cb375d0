"""Rates of a node, and of a real RocketMQ at the same time: both are up, and are loaded in turns.

Then other load of the machine affects both alike, and a Java broker is warmed up once.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from bench.measures import WARM_S
from bench.processes import Bench, Broker, load, wait_serving

Start = Callable[..., Broker]
SidedRow = tuple[str, float, str, str]
"""Name, value, unit, and side."""
ROUNDS = 5


def sends(starts: Mapping[str, Start], seconds: float) -> Iterator[SidedRow]:
    """Yield 1 KiB messages a second on one connection by requests in flight, async flush; and
    pulls."""
    loads = {f"send, async flush, {count} in flight": str(count) for count in (64, 8, 1)}
    loads["pull, 32 a request, 8 in flight"] = "pull"
    yield from _in_turns({side: [start()] for side, start in starts.items()}, loads, seconds)


def bodies(bench: Bench, seconds: float, *settings: str) -> Iterator[SidedRow]:
    """Yield the sends of a node with the native function, and of one with the Python function."""
    brokers = {
        "native": [bench.node(*settings, "rbNative=true")],
        "python": [bench.node(*settings, "rbNative=false")],
    }
    loads = {f"send by body, {count} in flight": str(count) for count in (64, 8, 1)}
    yield from _in_turns(brokers, loads, seconds)


def sync_flush(starts: Mapping[str, Start], seconds: float) -> Iterator[SidedRow]:
    """Yield the same with an fsync before each answer."""
    loads = {f"send, sync flush, {count} in flight": str(count) for count in (64, 1)}
    brokers = {side: [start("flushDiskType=SYNC_FLUSH")] for side, start in starts.items()}
    yield from _in_turns(brokers, loads, seconds)


def two_groups(starts: Mapping[str, Start], seconds: float) -> Iterator[SidedRow]:
    """Yield the rates of a machine with two cores: of ours two groups, a node on each core, of
    RocketMQ one broker, which uses both. Two generators at a time on either side."""
    brokers = {
        side: [start(), start()] if side == "rocketbed" else [start()]
        for side, start in starts.items()
    }
    yield from _in_turns(brokers, {"send, two connections, 64 in flight on each": "64"}, seconds, 2)


def _in_turns(
    brokers: Mapping[str, list[Broker]],
    loads: Mapping[str, str],
    seconds: float,
    generators: int = 1,
) -> Iterator[SidedRow]:
    """Yield medians of all rounds, and of their ratios; a generator's processor time as a share."""
    for each in brokers.values():
        for broker in each:
            wait_serving(broker)
            load(broker, "64", WARM_S[broker.name])
    for load_name, kind in loads.items():
        results: dict[str, list[dict[str, float]]] = {side: [] for side in brokers}
        for turn in range(ROUNDS):
            for side in [*brokers][:: 1 if turn % 2 else -1]:
                results[side].append(_at_once(brokers[side], kind, seconds / ROUNDS, generators))
        for side, runs in results.items():
            for field, name, unit in (
                ("rate", load_name, "messages/s"),
                ("cpu_us", f"  CPU, {load_name}", "us/message"),
                ("busy", "  of a core, each generator", ""),
                ("refused", "  refused", "messages"),
            ):
                value = statistics.median(run[field] for run in runs)
                if value or field != "refused":
                    yield name, value, unit, side
        if len(results) == 2:
            for field, name in (("rate", load_name), ("cpu_us", f"  CPU, {load_name}")):
                ours, theirs = ([run[field] for run in runs] for runs in results.values())
                ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
                yield f"{name}: ratio, least", min(ratios), "x", ""
                yield f"{name}: ratio, median", statistics.median(ratios), "x", ""
                yield f"{name}: ratio, greatest", max(ratios), "x", ""
    for each in brokers.values():
        for broker in each:
            broker.kill()


def _at_once(brokers: list[Broker], kind: str, seconds: float, generators: int) -> dict[str, float]:
    """Put one load on each generator's broker; return sums, and the generators' mean share of a
    core."""
    chosen = [brokers[number % len(brokers)] for number in range(generators)]
    before = sum(broker.cpu_seconds for broker in brokers)
    with ThreadPoolExecutor(generators) as pool:
        runs = [*pool.map(lambda broker: load(broker, kind, seconds), chosen)]
    messages = sum(run["messages"] for run in runs)
    return {
        "rate": sum(run["rate"] for run in runs),
        "cpu_us": 1e6 * (sum(broker.cpu_seconds for broker in brokers) - before) / messages,
        "busy": statistics.mean(run["generator_s"] / run["seconds"] for run in runs),
        "refused": sum(run["refused"] for run in runs),
    }


def starts_of(bench: Bench, peer: Start | None, *settings: str) -> dict[str, Start]:
    """Return a function for each side that starts its broker."""
    ours: dict[str, Start] = {"rocketbed": lambda *more: bench.node(*settings, *more)}
    return ours if peer is None else {**ours, "RocketMQ": peer}
