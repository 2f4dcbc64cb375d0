"""Where a test makes its cluster: one function for each backend.

Each runs the script to its end, in this very process, and returns the record of the run. A signal
that ends the process ends what was started first.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import trio

from chaos.record import RunRecord
from chaos.scenario.plan import Plan
from chaos.testing.script import Script
from chaos.testing.stage import Stage
from chaos.testing.wishes import Wishes


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A script that was played to its end."""

    record: RunRecord
    simulated_s: float = 0.0
    """0 where time is real."""
    digest: str = ""
    """Of the simulation."""


Place = Callable[[Plan, Path, Wishes, Script], Played]
"""Gets the plan, an empty directory, the wishes and the script."""


def in_simulation(plan: Plan, directory: Path, wishes: Wishes, script: Script) -> Played:
    """The body is one more machine of a simulation. Raises `SimulationError`."""
    from chaos.sim.run import run_in_simulation

    record, simulation = run_in_simulation(plan, directory, conductor=partial(Stage, script=script))
    return Played(
        record=record,
        simulated_s=simulation.timeline.now / 1e9,
        digest=simulation.digest(),
    )


def in_processes(plan: Plan, directory: Path, wishes: Wishes, script: Script) -> Played:
    """Real processes on loopback. Raises `BackendError`."""
    from chaos.process.run import run, run_in_processes

    conductor = partial(Stage, script=script)
    if threading.current_thread() is not threading.main_thread():
        part = partial(run, plan, directory, wishes.net, _say_nothing, conductor=conductor)
        return Played(record=trio.run(part))
    record = run_in_processes(plan, directory, net=wishes.net, conductor=conductor)
    return Played(record=record)


PLACES: Final[Mapping[str, Place]] = {"sim": in_simulation, "process": in_processes}
"""Backend -> what makes its cluster."""


def _say_nothing(_line: str) -> None:
    return None
