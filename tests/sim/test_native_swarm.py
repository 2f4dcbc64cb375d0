"""Whole simulated clusters whose nodes take plain sends with the native body: nothing is found, and
a run is the one that it is with the Python body."""

from dataclasses import replace

import pytest

from rocketbed.chaos.plan.library import load_scenario
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.search.runner import run_many
from tests.support.native import needed
from tests.support.sim.plans import ELECTED, SWARM, failed

pytestmark = pytest.mark.slow


def with_body(plan: Plan, is_native: bool) -> Plan:
    settings = {**plan.shape.settings, "rbNative": str(is_native).lower()}
    return replace(plan, shape=replace(plan.shape, settings=settings))


@pytest.mark.ci
def test_seeds_of_the_swarm_with_the_native_body() -> None:
    needed()
    swarm, elected = load_scenario(SWARM), load_scenario(ELECTED)
    plans = [swarm.plan(seed) for seed in range(6)] + [elected.plan(seed) for seed in range(2)]
    assert failed(with_body(plan, True) for plan in plans) == []


def test_a_seed_is_the_same_run_with_both() -> None:
    needed()
    plans = [load_scenario(SWARM).plan(seed) for seed in range(2)]
    digests = [
        [outcome.digest for outcome in run_many([with_body(plan, body) for plan in plans], jobs=1)]
        for body in (False, True)
    ]
    assert digests[0] == digests[1]
