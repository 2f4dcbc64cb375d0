"""The testbed shows its worth: a bug is planted, found, made small, and reported.

Small plans of one node with synchronous flush, some of whose steps are power cuts and most are
noise; the bug acknowledges before the flush. So the way from a failing run to two lines that anyone
can follow takes seconds.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from rocketbed.chaos.hunt.runner import Options, Outcome, run_many, run_plan
from rocketbed.chaos.hunt.shrink import Shrunk, shrink
from rocketbed.chaos.mutants.catalogue import mutants
from rocketbed.chaos.mutants.mutant import Mutant
from rocketbed.chaos.report.page import write_report
from rocketbed.chaos.scenario.plan import KIB, Consumers, Plan, Producers, Shape, Weather
from rocketbed.chaos.scenario.step import parse_step

BUG: Final = "M1"
FINDING: Final = "A1"
STEPS: Final = 10
STORM_S: Final = 10.0
CALM_S: Final = 4.0
SEEDS_MAX: Final = 40
SHRINK_RUNS: Final = 40
SHRINK_S: Final = 15.0
NOISE: Final = (
    "pause b1 for {time}",
    "kill b1 for {time}",
    "disk b1 slow-fsync 200ms for {time}",
    "reset b1 -> clients:all",
    "kill ns1 for {time}",
    "clock b1 jump 2s",
    "pause clients:producers for {time}",
    "powercut b1 for {time}",
)

Say = Callable[[str], None]


@dataclass(slots=True)
class Shown:
    bug: Mutant
    runs: int = 0
    found: Outcome | None = None
    shrunk: Shrunk | None = None
    page: Path | None = None

    @property
    def complete(self) -> bool:
        """Whether the bug was found, made small and reported."""
        return self.page is not None


def show(report: Path, say: Say, *, seed: int = 1, jobs: int = 2) -> Shown:
    """Plant, find, shrink, report. Raises `StaleMutant`, `OSError`."""
    bug = next(one for one in mutants() if one.id == BUG)
    bug.check()
    shown = Shown(bug)
    options = Options(before=bug.plant)
    say(f"planted {bug.id}: {bug.title} ({bug.edit})")
    with closing(run_many(_plans(seed), options, jobs=jobs)) as outcomes:
        for outcome in outcomes:
            shown.runs += 1
            ids = ", ".join(outcome.finding_ids) or outcome.verdict
            say(f"  seed {outcome.plan.seed}: {ids}")
            if FINDING in outcome.finding_ids:
                shown.found = outcome
                break
    if shown.found is None:
        say(f"{FINDING} was not found in {shown.runs} runs")
        return shown
    say(f"found by {FINDING} in seed {shown.found.plan.seed}; shrinking")
    shrunk = shrink(
        shown.found, options, finding=FINDING, jobs=jobs, runs=SHRINK_RUNS, seconds=SHRINK_S
    )
    shown.shrunk = shrunk
    say(f"{shrunk.steps_before} steps became {shrunk.steps_after} in {shrunk.runs} runs:")
    for step in shrunk.plan.steps:
        say(f"    {step}")
    directory = report / f"{BUG}-{shown.found.plan.seed}"
    shutil.rmtree(directory, ignore_errors=True)
    small = run_plan(shrunk.plan, options, directory=directory)
    if small.judgement is not None and small.record is not None:
        again = f"rocketbed chaos demo --seed {seed}"
        shown.page = write_report(directory, small.judgement, small.record, again=again)
    return shown


def _plans(seed: int) -> Iterator[Plan]:
    for number in range(seed, seed + SEEDS_MAX):
        yield _plan(number)


def _plan(seed: int) -> Plan:
    random = Random(f"show {seed}")
    moments = sorted(random.uniform(0.5, STORM_S - 1) for _ in range(STEPS))
    steps = tuple(
        parse_step(
            f"at {at:.3f}s {random.choice(NOISE).format(time=f'{random.uniform(0.1, 0.6):.3f}s')}"
        )
        for at in moments
    )
    return Plan(
        name="planted",
        seed=seed,
        shape=Shape(
            brokers=1, nameservers=1, flush="sync", repl="async", min_isr=1, segment=64 * KIB
        ),
        producers=Producers(count=2, rate=6.0, queues=2, body=(64, 800)),
        consumers=Consumers(count=1, mode="pull"),
        weather=Weather(disk_ms={"b1": 20.0}),
        steps=steps,
        storm_s=STORM_S,
        calm_s=CALM_S,
    )
