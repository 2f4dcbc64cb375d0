"""The demonstration of `rocketbed demo --bug`: a bug is planted, found, shrunk and reported.

The plans are small: one node with synchronous flush, a few power cuts and mostly noise. The bug
acknowledges before the flush, so the way from a failing run to two steps takes seconds.
"""

import shutil
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Final

from rocketbed.chaos.checks.registry import MEANINGS
from rocketbed.chaos.plan.plan import KIB, Background, Consumers, Plan, Producers, Shape
from rocketbed.chaos.plan.step import parse_step
from rocketbed.chaos.report.cause import roots
from rocketbed.chaos.report.page import write_report
from rocketbed.chaos.search.runner import Options, Outcome, Say, run_many, run_plan
from rocketbed.chaos.search.shrink import Budget, shrink
from rocketbed.node.release import ReleaseQueue

FINDING: Final = "lost-write"
STEPS: Final = 10
FAULTS_S: Final = 10.0
RECOVERY_S: Final = 4.0
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


def plant() -> None:
    """Let this process acknowledge a send before its bytes are on the master's disk.

    Brokers in the wild have had this bug (apache/rocketmq 8239).
    """

    def is_safe(self: ReleaseQueue, end: int) -> bool:
        return self._confirmed is None or self._confirmed.value >= end

    ReleaseQueue._is_safe = is_safe  # type: ignore[method-assign]


def show(report: Path, say: Say, *, seed: int = 1, jobs: int = 2) -> Path | None:
    """Plant the bug, find it, shrink the failing plan, and return the report's page.

    Returns None if a part of that did not work. Raises `OSError` for the directory.
    """
    options = Options(before=plant)
    say("planted: a send is acknowledged before its bytes are on disk")
    failing = _search(options, say, seed=seed, jobs=jobs)
    if failing is None:
        say(f"{FINDING} was not found in {SEEDS_MAX} runs")
        return None
    say(f"found by {FINDING} in seed {failing.plan.seed}. What its checks require:")
    for name in failing.finding_ids:
        say(f"    {name}: {MEANINGS.get(name, 'a rule of this run')}")
    say("shrinking")
    budget = Budget(SHRINK_RUNS, SHRINK_S)
    shrunk = shrink(failing, options, finding=FINDING, jobs=jobs, budget=budget)
    say(f"{shrunk.steps_before} steps became {shrunk.steps_after} in {shrunk.runs} runs:")
    for step in shrunk.plan.steps:
        say(f"    {step}")
    directory = report / f"bug-{failing.plan.seed}"
    shutil.rmtree(directory, ignore_errors=True)
    small = run_plan(shrunk.plan, options, directory=directory)
    if small.judgement is None or small.record is None:
        return None
    for root in roots(small.judgement, small.record, None):
        say(f"{root.sentence} ({', '.join(result.id for result in root.results)})")
    command = f"rocketbed demo --bug --seed {failing.plan.seed}"
    return write_report(directory, small.judgement, small.record, repeat_command=command)


def _search(options: Options, say: Say, *, seed: int, jobs: int) -> Outcome | None:
    plans = map(_plan, range(seed, seed + SEEDS_MAX))
    with closing(run_many(plans, options, jobs=jobs)) as outcomes:
        for outcome in outcomes:
            ids = ", ".join(outcome.finding_ids) or outcome.verdict
            say(f"  seed {outcome.plan.seed}: {ids}")
            if FINDING in outcome.finding_ids:
                return outcome
    return None


def _plan(seed: int) -> Plan:
    random = Random(f"show {seed}")
    moments = sorted(random.uniform(0.5, FAULTS_S - 1) for _ in range(STEPS))
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
        background=Background(disk_ms={"b1": 20.0}),
        steps=tuple(map(parse_step, noise)),
        faults_s=FAULTS_S,
        recovery_s=RECOVERY_S,
    )
