"""Run a single node to its end or a crash point, look at its disk, start it again.

    whole = run_solo(workload)
    for event in range(1, whole.events + 1):
        crashed = run_solo(workload, crash_at=event, kind="power")
        run_solo(check_recovery, image=crashed.image)

The seed is the same by default, so every run takes the same way to its crash point.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.chaos.backends.sim.process import Main
from rocketbed.chaos.backends.sim.simulation import LogLine, Simulation

NAME = "node"


@dataclass(frozen=True, slots=True)
class SoloRun:
    outcome: str
    """`ended`, `killed`, `power cut`, `exited` or `still running`."""
    value: Any
    """Result of `main`; None unless it ended."""
    exit_code: int | None
    image: DiskImage
    """The disk afterwards."""
    events: int
    """Disk events, including the one it died at."""
    digest: str
    log: list[LogLine]
    marks: dict[str, int]
    seconds: float
    """Virtual time."""


def run_solo(
    main: Main,
    *arguments: object,
    image: DiskImage | None = None,
    boots: int = 1,
    seed: int | str = 0,
    crash_at: int | None = None,
    kind: str = "kill",
    mode: str = "random",
    crash_at_mark: str | None = None,
    seconds: float = 3600.0,
    prepare: Callable[[SimDisk], None] | None = None,
) -> SoloRun:
    """Run `main(world, *arguments)` on a disk that holds `image`.

    `boots` counts the boots of the host: pass another number after a power cut. `crash_at` is the
    number of a disk event, `crash_at_mark` a mark; `kind` is `kill` or `power`, `mode` what a power
    cut keeps. `prepare` may put faults on the disk before the start. Raises the error of `main`. A
    run longer than `seconds` of virtual time is left `still running`, and its image is the disk at
    that moment.
    """
    with Simulation(seed) as simulation:
        host = simulation.host(NAME)
        if image is not None:
            host.image = image
        host.boots = boots
        process = simulation.start(NAME, main, *arguments)
        disk = process.disk
        disk.crash_at, disk.crash_kind, disk.crash_mode = crash_at, kind, mode
        if crash_at_mark is not None:
            simulation.crash_at_pattern(NAME, crash_at_mark, kind=kind)
        if prepare is not None:
            prepare(disk)
        simulation.tolerate_crashes = True
        simulation.run(seconds, until=lambda: process.done or _is_over(simulation, seconds))
        outcome = _OUTCOMES[process.life.cause]
        return SoloRun(
            outcome=outcome,
            value=process.value() if outcome == "ended" else None,
            exit_code=process.exit_code,
            image=disk.image(),
            events=disk.events,
            digest=simulation.digest(),
            log=simulation.log,
            marks={mark: count for (_, mark), count in simulation.marks.items()},
            seconds=simulation.timeline.now / 1e9,
        )


_OUTCOMES = {
    "end": "ended",
    "kill": "killed",
    "power": "power cut",
    "exit": "exited",
    "": "still running",
}


def _is_over(simulation: Simulation, seconds: float) -> bool:
    moment = simulation.timeline.next_moment()
    return moment is None or moment > seconds * 1e9
