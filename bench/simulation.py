"""The testbed: its speed of simulating and judging, and of real starts and power cuts.

The cluster is always three nodes, two nameservers and six clients; the generator draws its faults,
background faults and load for the seeds below, so the figure is one of ordinary work.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

from rocketbed.chaos.backends.process.disk.volume import Volume
from rocketbed.chaos.backends.sim.simulation import Simulation
from rocketbed.chaos.checks.judgement import judge_run
from rocketbed.chaos.evidence.history import Function, HistoryWriter, Outcome
from rocketbed.chaos.evidence.record import HISTORY_FILE, Promise, RunRecord
from rocketbed.chaos.plan.library import load_scenario
from rocketbed.chaos.plan.plan import Consumers, Plan, Producers, Shape
from rocketbed.chaos.search.runner import Options, run_many, run_plan
from rocketbed.chaos.search.runner import Outcome as Ran
from rocketbed.host.errors import HostError
from rocketbed.host.janitor.record import Ledger
from rocketbed.world.api import World

Row = tuple[str, float, str]
SEEDS: Final = 8
ECHO_SECONDS: Final = 20.0
ROWS: Final = 1_000_000
CUTS: Final = 20


def simulation() -> Iterator[Row]:
    """Yield rows of the simulator."""
    yield "simulation, two nodes echoing", _echo(), "events/s"
    began = time.monotonic()
    outcomes = _swarm()
    wall_s = time.monotonic() - began
    cpu_s = sum(outcome.run_cpu_s for outcome in outcomes)
    judged_s = sum(outcome.cpu_s for outcome in outcomes) - cpu_s
    simulated_s = sum(outcome.simulated_s for outcome in outcomes)
    events = sum(outcome.record.facts.get("events", 0) for outcome in outcomes if outcome.record)
    yield "simulation, 3 nodes, 2 nameservers, 6 clients", simulated_s / cpu_s, "s/CPU s"
    yield "  events", events / cpu_s, "events/s"
    yield "  judging a seed", judged_s / len(outcomes), "CPU s"
    yield "  two at a time", 60 * len(outcomes) / wall_s, "seeds/min"
    yield "  memory of a seed's process", max(outcome.memory_mib for outcome in outcomes), "MiB"


def checkers() -> Iterator[Row]:
    """Yield rows of the checks: processor seconds for a million rows of history."""
    with tempfile.TemporaryDirectory() as place:
        _write_history(Path(place))
        began = time.process_time()
        judgement = judge_run(place)
        seconds = time.process_time() - began
        checked = sum(result.passed for result in judgement.results)
        yield "checks, a million rows of history", seconds, "CPU s"
        yield "  checks that ran on them", float(checked), "checks"


def processes() -> Iterator[Row]:
    """Yield rows of real processes: start of a cluster, and a power cut with all that belongs to
    it."""
    plan = Plan(
        name="start",
        seed=1,
        shape=Shape(brokers=3, nameservers=1),
        producers=Producers(count=1, rate=5.0),
        consumers=Consumers(count=0),
        faults_s=0.2,
        recovery_s=0.2,
    )
    times = []
    for _ in range(3):
        outcome = run_plan(plan, Options(backend="process", net="plain"))
        if outcome.record is not None:
            times.append(outcome.record.facts["zero_ns"] / 1e9)
    if times:
        yield "three real nodes and a nameserver, until all are in sync", min(times), "s"
    try:
        yield "power cut and remount of a real file system", 1e3 * _cut(), "ms"
    except HostError as error:
        print(f"power cut: left out, {error}")


def _swarm() -> list[Ran]:
    family = load_scenario("soak-swarm")
    plans: list[Plan] = []
    seed = 0
    while len(plans) < SEEDS:
        plan = family.plan(seed)
        if (plan.shape.brokers, plan.shape.groups) == (3, 1):
            plans.append(
                replace(
                    plan,
                    shape=replace(plan.shape, nameservers=2),
                    producers=replace(plan.producers, count=4),
                    consumers=replace(plan.consumers, count=2),
                    steps=tuple(step for step in plan.steps if "ns3" not in str(step)),
                )
            )
        seed += 1
    with closing(run_many(plans)) as outcomes:
        results = list(outcomes)
    for outcome in results:
        assert outcome.record is not None, outcome.error
    return results


def _echo() -> float:
    """Return events a second of two nodes that send a few bytes to and fro."""

    async def serve(world: World) -> None:
        listener = await world.network.listen("", 7)
        stream = await listener.accept()
        while data := await stream.receive_some():
            await stream.send_all(data)

    async def ask(world: World) -> None:
        stream = await world.network.connect("server", 7)
        while True:
            await stream.send_all(b"12345678")
            await stream.receive_some()

    with Simulation(1) as simulated:
        simulated.start("server", serve)
        simulated.start("client", ask)
        began = time.process_time()
        simulated.run(ECHO_SECONDS)
        return simulated.timeline._sequence / (time.process_time() - began)


def _cut() -> float:
    """Return the mean seconds of a cut and a remount."""
    with Ledger.begin() as run:
        volume = Volume.create(run.directory / "bench", run=run)
        try:
            seconds = 0.0
            for number in range(CUTS):
                (volume.path / f"file-{number}").write_bytes(bytes(1 << 16))
                began = time.perf_counter()
                volume.power_cut()
                volume.remount()
                seconds += time.perf_counter() - began
            return seconds / CUTS
        finally:
            volume.destroy()


def _write_history(place: Path) -> None:
    """Write a run of nothing but sends and reads, all in order."""
    clock = iter(range(10**12))
    with HistoryWriter(place / HISTORY_FILE, lambda: 1000 * next(clock)) as history:
        for value in range(ROWS // 2):
            fields = {"topic": "load-1", "queue": value % 8, "value": value, "length": 100}
            sent = history.begin(Function.SEND, process=1, operation=value, **fields)  # type: ignore[arg-type]
            sent.finish(Outcome.OK, queue_offset=value // 8, physical_offset=value * 200, node="b")
            got = history.begin(Function.DELIVER, process=2, operation=1, **fields)  # type: ignore[arg-type]
            got.finish(Outcome.OK, queue_offset=value // 8, node="b")
    record = RunRecord(scenario="bench", backend="sim", seed=1, promise=Promise(), groups={"b": []})
    record.save(place)
