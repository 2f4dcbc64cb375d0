"""Run of a plan in a simulation: from a seed to a run directory."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from rocketbed.chaos.backends.sim.backend import HARNESS, SimBackend
from rocketbed.chaos.backends.sim.clock import MILLISECOND
from rocketbed.chaos.backends.sim.simulation import Simulation
from rocketbed.chaos.evidence.history import HistoryWriter
from rocketbed.chaos.evidence.record import HISTORY_FILE, RunRecord
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.plan.targets import machine_names
from rocketbed.chaos.run.conductor import Company, Conductor, MakeConductor
from rocketbed.world.api import World

LIMIT_S: Final = 600.0
"""Simulated seconds that a run may take beyond its fault phase and recovery phase."""


def run_in_simulation(
    plan: Plan,
    directory: Path,
    *,
    say: Callable[[str], None] = lambda line: None,
    keep_trace: bool = False,
    conductor: MakeConductor = Conductor,
) -> tuple[RunRecord, Simulation]:
    """Run a plan. The directory has to exist and be empty.

    Raises `SimulationError` if the simulation itself fails, for instance because a node spins.
    """
    simulation = Simulation(f"{plan.name}/{plan.seed}", keep_trace=keep_trace)
    with simulation:
        _set_background_faults(plan, simulation)
        with HistoryWriter(directory / HISTORY_FILE, lambda: simulation.timeline.now) as history:

            async def main(world: World) -> RunRecord:
                names = plan.shape.nameserver_names
                backend = SimBackend(simulation, world, history, names, elects=plan.shape.failover)
                backend.wall_rate = plan.background.wall_rate
                return await conductor(plan, backend, Company(say=say)).run(directory)

            process = simulation.start(HARNESS, main)
            limit_s = plan.faults_s + plan.recovery_s + LIMIT_S
            record: RunRecord = simulation.run_process(process, limit_s)
    return record, simulation


def _set_background_faults(plan: Plan, simulation: Simulation) -> None:
    background = plan.background
    link = simulation.network.usual_link
    link.latency_ns = int(background.link_ms * MILLISECOND)
    link.jitter_ns = int(background.link_jitter_ms * MILLISECOND)
    for name in machine_names(plan):
        host = simulation.host(name)
        host.cut_mode = background.cut_mode
        host.cold_share = background.cold_share
        host.clock.wall_rate = background.wall_rate
        host.slowness = background.slowness.get(name, 1.0)
        if name in background.disk_ms:
            seconds = background.disk_ms[name] / 1000
            host.sync_seconds = (seconds / 2, seconds * 1.5)
