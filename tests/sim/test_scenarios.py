"""The shipped scenarios on whole simulated clusters: nothing may be found."""

import pytest

from rocketbed.chaos.plan.library import load_scenario, scenario_names
from tests.support.sim.plans import ELECTED, SWARM, failed

NAMES = [name for name in scenario_names() if name not in (SWARM, ELECTED)]


LONG = {"rolling-handover", "takeover", "register-loss", "rebalance", "power-lone", "failover"}
"""Scenarios whose short form takes ten seconds or more."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in NAMES],
)
def test_a_shipped_scenario_passes(name: str) -> None:
    assert failed([load_scenario(name).plan(0, quick=True)]) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_shipped_scenario_passes_with_five_seeds(name: str) -> None:
    family = load_scenario(name)
    assert failed(family.plan(seed) for seed in range(5)) == []
