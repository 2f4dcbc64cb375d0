"""The shipped scenarios on whole simulated clusters: nothing may be found."""

import os

import pytest

from rocketbed.chaos.plan.library import load_scenario, scenario_names
from tests.support.sim.plans import ELECTED, SWARM, failed

NAMES = [name for name in scenario_names() if name not in (SWARM, ELECTED)]


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_scenario_finds_nothing(name: str) -> None:
    family = load_scenario(name)
    assert failed(family.plan(seed, quick=True) for seed in range(2)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_scenario_in_full_with_twenty_seeds(name: str) -> None:
    """`ROCKETBED_SCENARIO_SEEDS` makes it another number, `ROCKETBED_SCENARIO_FIRST` the first."""
    first = int(os.environ.get("ROCKETBED_SCENARIO_FIRST", "0"))
    count = int(os.environ.get("ROCKETBED_SCENARIO_SEEDS", "20"))
    family = load_scenario(name)
    assert failed(family.plan(first + number) for number in range(count)) == []
