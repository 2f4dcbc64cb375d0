"""The swarm on whole simulated clusters, and the seeds that ever failed: nothing may be found."""

import os
from pathlib import Path
from random import SystemRandom

import pytest

from rocketbed.chaos.plan.generator import generate
from rocketbed.chaos.plan.library import load_scenario
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.search.unreached import must_run_all, never_ran
from tests.support.sim.plans import ELECTED, SWARM, failed
from tests.support.turns import part

SEEDS = Path(__file__).with_name("seeds.txt")


def known() -> list[str]:
    lines = SEEDS.read_text(encoding="utf-8").splitlines()
    return [line.split()[0] for line in lines if line and not line.startswith("#")]


def pinned(seed: str) -> Plan:
    """The plan that failed. Of the swarm it is one without failover: a seed that draws it now once
    drew the same cluster without."""
    name, _, number = seed.rpartition("/")
    return load_scenario(name).plan(int(number)) if name else generate(int(number), name=SWARM)


def test_four_seeds_of_the_swarm_and_a_seventh_of_those_that_ever_failed() -> None:
    plans = [load_scenario(SWARM).plan(seed) for seed in part(range(28), 7)]
    assert failed(plans + [pinned(seed) for seed in part(known(), 7)]) == []


@pytest.mark.slow
def test_all_seeds_that_ever_failed() -> None:
    assert failed(map(pinned, known())) == []


@pytest.mark.slow
def test_a_thousand_fresh_seeds_of_the_swarm() -> None:
    """`ROCKETBED_SOAK_SEEDS` makes it another number, `ROCKETBED_SOAK_FIRST` fixes the first."""
    first = int(os.environ.get("ROCKETBED_SOAK_FIRST") or SystemRandom().randrange(10**3, 10**9))
    count = int(os.environ.get("ROCKETBED_SOAK_SEEDS", "1000"))
    family = load_scenario(SWARM)
    looked: list[dict[str, bool]] = []
    assert failed((family.plan(first + number) for number in range(count)), looked) == []
    if must_run_all(family, count):
        assert never_ran(looked) == [], f"checks that ran in none of {count} seeds from {first} on"


@pytest.mark.slow
def test_fresh_seeds_of_groups_with_failover() -> None:
    """`ROCKETBED_FAILOVER_SEEDS` makes it another number than 60, `ROCKETBED_SOAK_FIRST` fixes the
    first."""
    first = int(os.environ.get("ROCKETBED_SOAK_FIRST") or SystemRandom().randrange(10**3, 10**9))
    count = int(os.environ.get("ROCKETBED_FAILOVER_SEEDS", "60"))
    family = load_scenario(ELECTED)
    assert failed(family.plan(first + number) for number in range(count)) == []
