"""One plan on real processes: from a seed to a run directory."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from chaos.history import HistoryWriter
from chaos.process.backend import ProcessBackend
from chaos.process.fabric import Fabric, PlainFabric
from chaos.process.machine import Machine
from chaos.record import HISTORY_FILE, RunRecord
from chaos.scenario.plan import Plan
from chaos.trial.conductor import Conductor

NODES: Final = "nodes"
"""Folder of the run's directory with configurations, logs and, where plain, stores."""


def run_in_processes(
    plan: Plan, directory: Path, *, say: Callable[[str], None] = lambda line: None
) -> RunRecord:
    """Run a plan. The directory has to exist and be empty. Raises `BackendError`."""
    return trio.run(run, plan, directory, say)


async def run(plan: Plan, directory: Path, say: Callable[[str], None]) -> RunRecord:
    """The same within a trio program; cancelled, it ends what it started."""
    began_ns = time.monotonic_ns()
    shape = plan.shape
    fabric: Fabric = PlainFabric(shape.nodes, shape.nameserver_names)
    machines = {
        name: Machine(directory / NODES / name, f"{plan.seed}/{name}") for name in shape.nodes
    }
    with HistoryWriter(directory / HISTORY_FILE, lambda: time.monotonic_ns() - began_ns) as history:
        async with ProcessBackend(
            fabric, machines, shape.nameserver_names, history, directory / NODES, began_ns
        ) as backend:
            record = await Conductor(plan, backend, say).run(directory)
    for machine in machines.values():
        await machine.close()
        shutil.rmtree(machine.store, ignore_errors=True)
    return record
