"""`python -m bench [--peer DIR | --before DIR]`: prints machine and date, then a row each."""

import argparse
import datetime
import os
import platform
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from bench import (
    catch_up,
    clients,
    consumers,
    failover,
    gaps,
    live,
    many,
    measures,
    pairs,
    places,
    side_by_side,
    simulation,
    spread,
    stall,
    starts,
    switch,
)
from bench.measures import GIB, Row
from bench.processes import Bench, Broker

SMALL_LOG = "mappedFileSizeCommitLog=1073741824"
PEER_RUNS = 5
"""Strikes at a real RocketMQ, which takes half a minute to recover."""


def main() -> int:
    """Run all measures; one side after the other, so that neither disturbs the other."""
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("--peer", type=Path, help="folder of RocketMQ's jars, for the same load")
    parser.add_argument(
        "--before", type=Path, help="another checkout: only its rates and ours, in pairs"
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each load")
    parser.add_argument(
        "--messages", type=int, default=1_000_000, help="existing messages that are read"
    )
    parser.add_argument("--runs", type=int, default=50, help="failovers of each kind")
    parser.add_argument(
        "--only", default="", help="run only the measures whose name has this in it"
    )
    options = parser.parse_args()
    print(_machine(), flush=True)
    bench = Bench()
    table = Table()
    try:
        if options.before is not None:
            table.add(pairs.before_and_after(bench, options.before, options.seconds / 2), "")
            return 0
        for name, ours, theirs in _plan(bench, options):
            if options.only in name:
                table.add(ours, "rocketbed")
                if theirs is not None:
                    table.add(theirs, "RocketMQ")
    except KeyboardInterrupt:
        return 130
    finally:
        bench.close()
    table.ratios()
    return 0


Rows = Iterable[Row | side_by_side.SidedRow]
CALIBRATION_MAX = 0.15
"""Change of a calibration loop's time during a row from which the row is marked."""


def _plan(bench: Bench, options: argparse.Namespace) -> Iterable[tuple[str, Rows, Rows | None]]:
    """Yield the name of each measure, and its rows on either side; nothing runs before it is
    iterated."""
    jars: Path | None = options.peer
    seconds: float = options.seconds
    messages: int = options.messages

    def ours(*settings: str) -> Broker:
        return bench.node(SMALL_LOG, *settings)

    def peer(*settings: str) -> Broker:
        assert jars is not None
        return bench.peer(jars, *settings)

    both: list[tuple[str, Callable[[Callable[..., Broker]], Rows]]] = [
        ("start", lambda start: measures.start_and_stop(bench, start)),
        ("clients", lambda start: clients.client_faces(bench, start)),
        ("consumers", lambda start: consumers.consumers(bench, start, messages, seconds, jars)),
    ]
    sides = side_by_side.starts_of(bench, peer if jars is not None else None, SMALL_LOG)
    yield "sends", side_by_side.sends(sides, seconds), None
    yield "native body", side_by_side.bodies(bench, seconds, SMALL_LOG), None
    yield "sync flush", side_by_side.sync_flush(sides, seconds / 2), None
    yield "two groups", side_by_side.two_groups(sides, seconds), None
    for name, measure in both:
        yield name, measure(ours), measure(peer) if jars is not None else None
    yield "slave", measures.one_slave(bench, seconds / 2), None
    peers = gaps.peers(jars, min(options.runs, PEER_RUNS)) if jars is not None else None
    yield "failover gaps", gaps.ours(options.runs), peers
    yield "failover rates", failover.rates(seconds / 4), None
    yield "failover catch-up", catch_up.catch_up(), None
    yield "nameserver", measures.nameserver_memory(bench), None
    yield "recovery", measures.recovery(bench, GIB), None
    yield "late queues", starts.late_queues(bench), None
    yield "large log", starts.large_log(bench), None
    yield "scrub", starts.scrub(bench), None
    yield "stall", stall.longest_stall(bench), None
    yield "switch", switch.between_machines(), None
    yield "places", places.places(), None
    yield "many", many.many(bench), None
    yield "spread", spread.spread(bench, seconds / 4, SMALL_LOG), None
    yield "live", live.live_page(), None
    yield "simulation", simulation.simulation(), None
    yield "checkers", simulation.checkers(), None
    yield "processes", simulation.processes(), None


class Table:
    """Prints rows as they come, and ratios at the end."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, float]] = {}

    def add(self, rows: Rows, side: str) -> None:
        """Print rows; the last column names the measured side, if the row does not."""
        before = _calibration_s()
        for name, value, unit, *row_side in rows:
            after, measured_side = _calibration_s(), row_side[0] if row_side else side
            moved, before = after / before, after
            self._values.setdefault(name, {})[measured_side] = value
            is_steady = abs(moved - 1) <= CALIBRATION_MAX
            note = "" if is_steady else f"  (the processor's speed moved, x {moved:.2f})"
            print(f"{name:<52} {value:>12,.2f} {unit:<12} {measured_side}{note}", flush=True)

    def ratios(self) -> None:
        """Print the ratios of our values to RocketMQ's, where both were measured."""
        for name, sides in self._values.items():
            if len(sides) == 2 and sides.get("RocketMQ"):
                ratio = sides["rocketbed"] / sides["RocketMQ"]
                print(f"{name:<52} {ratio:>12.2f} x RocketMQ", flush=True)


def _calibration_s() -> float:
    """Return the shortest of three times of a loop that only the interpreter affects."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        sum(number * number for number in range(200_000))
        times.append(time.perf_counter() - began)
    return min(times)


def _machine() -> str:
    cpu = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    arguments = sysconfig.get_config_var("CONFIG_ARGS") or ""
    build = "optimised" if "--enable-optimizations" in arguments else "plain build"
    now = datetime.datetime.now(datetime.UTC)
    return (
        f"{now:%Y-%m-%d %H:%M} UTC, {os.cpu_count()} x {cpu}, Linux {platform.release()},"
        f" Python {platform.python_version()} ({build}), rocketbed {commit or 'without git'}"
    )


if __name__ == "__main__":
    sys.exit(main())
