"""Fresh seeds for a given time, and what they found.

    python -m tests.fuzz --seconds 1800

Runs swarms, shipped scenarios, models and properties in turn, each with new seeds.
A finding does not fail the command: replay files and outputs are kept, and the last lines name
them.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import SystemRandom
from typing import Final

import click

from rocketbed.chaos.plan.library import all_scenarios
from tests.support.sim.plans import ELECTED, SWARM

ROOT: Final = Path(__file__).parents[1]
SEEDS_END: Final = 10**9
SWARM_SEEDS: Final = 8
FAILOVER_SEEDS: Final = 4
SCENARIO_SEEDS: Final = 2
JOB_S: Final = 300.0
"""The longest that one job may take; a longer one hangs, which is a finding."""
CUT_OFF: Final = -1
"""Exit code of a job that the end of the time cut off."""
STOP_S: Final = 20.0
ROCKETBED: Final = (sys.executable, "-P", "-m", "rocketbed")


@dataclass(frozen=True, slots=True)
class Job:
    """A command with fresh seeds; it exits with 0 if they found nothing."""

    name: str
    command: tuple[str, ...]


def jobs(out: Path) -> Iterator[Job]:
    """Yield jobs without end, one of each kind in turn."""
    random = SystemRandom()
    properties = sorted(path.relative_to(ROOT) for path in ROOT.glob("tests/property/test_*.py"))
    scenarios = [one.name for one in all_scenarios() if one.name not in (SWARM, ELECTED)]
    for turn in count():
        for name, seeds in (
            (SWARM, SWARM_SEEDS),
            (ELECTED, FAILOVER_SEEDS),
            (random.choice(scenarios), SCENARIO_SEEDS),
        ):
            seed = random.randrange(SEEDS_END)
            command = (*ROCKETBED, "chaos", "run", name, "--seed", str(seed))
            report = str(out / f"{name}-{seed}")
            yield Job(f"{name}-{seed}", (*command, "--seeds", str(seeds), "--report", report))
        seed = random.randrange(SEEDS_END)
        yield Job(f"model-{seed}", (sys.executable, "-m", "tests.model", str(seed)))
        path = properties[turn % len(properties)]
        pytest = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path))
        yield Job(f"{path.stem}-{turn}", (*pytest, "-m", "not slow and not peer"))


@click.command()
@click.option("--seconds", type=click.FloatRange(min=1), default=600.0, show_default=True)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out/fuzz"),
    show_default=True,
    help="Directory of replay files and of the output of jobs that found something.",
)
def fuzz(seconds: float, out: Path) -> None:
    """Search for bugs with fresh seeds. Exits with 0 whatever is found."""
    out = out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + seconds
    results: list[str] = []
    done = 0
    for job in jobs(out):
        if time.monotonic() >= until:
            break
        code = run(job, out, min(JOB_S, until - time.monotonic() + STOP_S))
        done += 1
        text = {0: "nothing found", CUT_OFF: "cut off"}.get(code, f"exit {code}")
        click.echo(f"{job.name}: {text}")
        if code not in (0, CUT_OFF):
            results.append(f"{job.name}: exit {code}, {out / job.name}.txt")
    click.echo(f"{done} jobs in {seconds:.0f} s; {len(results)} found something")
    for line in results:
        click.echo(line)


def run(job: Job, out: Path, timeout_s: float) -> int:
    """Run a job in a process group of its own, and return its exit code.

    Its output is kept if that is not 0. A job that takes `JOB_S` counts as a hang; one that the end
    of the time cuts off gives `CUT_OFF`.
    """
    log = out / f"{job.name}.txt"
    environment = os.environ | {"ROCKETBED_HYPOTHESIS": "fuzz"}
    with log.open("wb") as file:
        process = subprocess.Popen(
            job.command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            stop(process)
            code = 124 if timeout_s >= JOB_S else CUT_OFF
        except BaseException:
            stop(process)
            raise
    if not code:
        log.unlink()
    return code


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End a job and all that it started."""
    for number in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(STOP_S)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


if __name__ == "__main__":
    fuzz()
