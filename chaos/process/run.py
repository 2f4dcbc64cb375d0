"""One plan on real processes: from a seed to a run directory."""

import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Literal

import trio

from chaos.history import HistoryWriter
from chaos.process.backend import ProcessBackend
from chaos.process.fabric import Fabric, PlainFabric
from chaos.process.janitor import Run as JanitorRun
from chaos.process.machines import make_machine
from chaos.record import HISTORY_FILE, RunRecord
from chaos.scenario.plan import Plan
from chaos.trial.conductor import Conductor

Net = Literal["auto", "plain", "proxy", "switch"]
NODES: Final = "nodes"
"""Folder of the run's directory with configurations, logs and, where plain, stores."""


def run_in_processes(
    plan: Plan,
    directory: Path,
    *,
    net: Net = "auto",
    say: Callable[[str], None] = lambda line: None,
) -> RunRecord:
    """Run a plan. The directory has to exist and be empty. Raises `BackendError`."""
    return trio.run(run, plan, directory, net, say)


async def run(plan: Plan, directory: Path, net: Net, say: Callable[[str], None]) -> RunRecord:
    """The same within a trio program; cancelled, it ends what it started."""
    began_ns = time.monotonic_ns()
    shape = plan.shape
    wanted = sorted({need for step in plan.steps for need in step.needs})
    with ExitStack() as stack:
        keeper = stack.enter_context(JanitorRun.begin())
        machines = {
            name: make_machine(directory / NODES / name, f"{plan.seed}/{name}", keeper, wanted)
            for name in shape.nodes
        }
        fabric: Fabric = PlainFabric(shape.nodes, shape.nameserver_names)
        history = stack.enter_context(
            HistoryWriter(directory / HISTORY_FILE, lambda: time.monotonic_ns() - began_ns)
        )
        try:
            async with ProcessBackend(
                fabric, machines, shape.nameserver_names, history, directory / NODES, began_ns
            ) as backend:
                return await Conductor(plan, backend, say).run(directory)
        finally:
            with trio.CancelScope(shield=True):
                for machine in machines.values():
                    await machine.close()
                    shutil.rmtree(machine.store, ignore_errors=True)
