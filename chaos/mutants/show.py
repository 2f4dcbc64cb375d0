"""The testbed shows its worth: a bug is planted, found, made small, and reported.

Small plans of one node with synchronous flush, some of whose steps are power cuts and most are
noise; the bug acknowledges before the flush. So the way from a failing run to two lines that anyone
can follow takes seconds.
"""

import shutil
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Final

from rocketbed.chaos.hunt.runner import Options, Say, run_many, run_plan
from rocketbed.chaos.hunt.shrink import Budget, shrink
from rocketbed.chaos.mutants.catalogue import mutants
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


def show(report: Path, say: Say, *, seed: int = 1, jobs: int = 2) -> Path | None:
    """Plant, find, shrink, report: the page, if all of it worked.

    Raises `StaleMutant`, `OSError`.
    """
    bug = next(one for one in mutants() if one.id == BUG)
    bug.check()
    options = Options(before=bug.plant)
    say(f"planted {bug.id}: {bug.title} ({bug.edit})")
    found = None
    plans = map(_plan, range(seed, seed + SEEDS_MAX))
    with closing(run_many(plans, options, jobs=jobs)) as outcomes:
        for outcome in outcomes:
            ids = ", ".join(outcome.finding_ids) or outcome.verdict
            say(f"  seed {outcome.plan.seed}: {ids}")
            if FINDING in outcome.finding_ids:
                found = outcome
                break
    if found is None:
        say(f"{FINDING} was not found in {SEEDS_MAX} runs")
        return None
    say(f"found by {FINDING} in seed {found.plan.seed}; shrinking")
    shrunk = shrink(
        found, options, finding=FINDING, jobs=jobs, budget=Budget(SHRINK_RUNS, SHRINK_S)
    )
    say(f"{shrunk.steps_before} steps became {shrunk.steps_after} in {shrunk.runs} runs:")
    for step in shrunk.plan.steps:
        say(f"    {step}")
    directory = report / f"{BUG}-{found.plan.seed}"
    shutil.rmtree(directory, ignore_errors=True)
    small = run_plan(shrunk.plan, options, directory=directory)
    if small.judgement is None or small.record is None:
        return None
    again = f"rocketbed chaos demo --seed {found.plan.seed}"
    return write_report(directory, small.judgement, small.record, again=again)


def _plan(seed: int) -> Plan:
    random = Random(f"show {seed}")
    moments = sorted(random.uniform(0.5, STORM_S - 1) for _ in range(STEPS))
    shape = Shape(brokers=1, nameservers=1, flush="sync", repl="async", min_isr=1, segment=64 * KIB)
    noise = [
        f"at {at:.3f}s {random.choice(NOISE).format(time=f'{random.uniform(0.1, 0.6):.3f}s')}"
        for at in moments
    ]
    return Plan(
        name="planted",
        seed=seed,
        shape=shape,
        producers=Producers(count=2, rate=6.0, queues=2, body=(64, 800)),
        consumers=Consumers(count=1, mode="pull"),
        weather=Weather(disk_ms={"b1": 20.0}),
        steps=tuple(map(parse_step, noise)),
        storm_s=STORM_S,
        calm_s=CALM_S,
    )
