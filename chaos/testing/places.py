"""Where a test makes its cluster: one function for each backend.

Each runs the script to its end, in this very process, and returns the record of the run. A signal
that ends the process ends what was started first.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from rocketbed.chaos.record import RunRecord
from rocketbed.chaos.scenario.plan import Plan
from rocketbed.chaos.testing.script import Script
from rocketbed.chaos.testing.stage import Stage
from rocketbed.chaos.testing.wishes import Wishes

if TYPE_CHECKING:
    from rocketbed.chaos.process.network.choice import Net
    from rocketbed.chaos.process.run import Host


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
    from rocketbed.chaos.sim.run import run_in_simulation

    record, simulation = run_in_simulation(plan, directory, conductor=partial(Stage, script=script))
    return Played(
        record=record,
        simulated_s=simulation.timeline.now / 1e9,
        digest=simulation.digest(),
    )


def in_processes(plan: Plan, directory: Path, wishes: Wishes, script: Script) -> Played:
    """Real processes on loopback. Raises `BackendError`."""
    net = wishes.net_of("process", is_open=script.is_open)
    return _on_host(plan, directory, net, script, None)


def in_containers(plan: Plan, directory: Path, wishes: Wishes, script: Script) -> Played:
    """Containers of this machine's daemon. Raises `DockerError`."""
    from rocketbed.chaos.docker.host import DockerHost

    net = wishes.net_of("docker", is_open=script.is_open)
    with DockerHost.open() as host:
        return _on_host(plan, directory, net, script, host)


def missing_for(backend: str) -> str | None:
    """Why a backend cannot be used here at all; what takes long is prepared meanwhile."""
    if backend != "docker":
        return None
    from rocketbed.chaos.docker.errors import DockerError
    from rocketbed.chaos.docker.host import DockerHost

    try:
        with DockerHost.open():
            return None
    except DockerError as error:
        return str(error)


PLACES: Final[Mapping[str, Place]] = {
    "sim": in_simulation,
    "process": in_processes,
    "docker": in_containers,
}
"""Backend -> what makes its cluster."""


def _on_host(
    plan: Plan, directory: Path, net: "Net", script: Script, host: "Host | None"
) -> Played:
    from rocketbed.chaos.process.run import run, run_in_processes

    conductor = partial(Stage, script=script)
    if threading.current_thread() is threading.main_thread():
        record = run_in_processes(plan, directory, net=net, host=host, conductor=conductor)
    else:
        part = partial(run, plan, directory, net, _say_nothing, host=host, conductor=conductor)
        record = trio.run(part)
    return Played(record=record)


def _say_nothing(_line: str) -> None:
    return None
