"""The same plan is the same run: other process, other hash seed, other addresses.

A whole cluster under faults is run in fresh interpreters. A difference is an order that depends on
a set, an address or a hash, in the node or in the simulator, and makes every replay file worthless.
"""

from dataclasses import replace

import pytest

from rocketbed.chaos.backends.sim.clock import CHECKPOINT_EVENTS
from rocketbed.chaos.plan.generator import Generate, generate
from rocketbed.chaos.plan.plan import Plan, Shape
from rocketbed.chaos.search.determinism import difference, shared_events, window


def plan_of(seed: int) -> Plan:
    """A short plan for three nodes, whatever the seed had drawn."""
    plan = generate(seed, Generate(faults_s=8.0, recovery_s=8.0))
    while plan.shape.nodes != Shape().nodes or len(plan.steps) < 6:
        seed += 100
        plan = generate(seed, Generate(faults_s=8.0, recovery_s=8.0))
    return plan


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_cluster_under_faults_is_deterministic_across_interpreters(seed: int) -> None:
    plan = plan_of(seed)
    assert difference(plan) == ""
    assert len(window(plan, 0, 2001)) == 2001


def test_checkpoints_tell_the_events_that_two_runs_share() -> None:
    assert shared_events(["a", "b", "c"], ["a", "b", "x"]) == 2 * CHECKPOINT_EVENTS
    assert shared_events(["x"], ["a", "b"]) == 0
    assert shared_events([], []) == 0


@pytest.mark.slow
def test_window_of_events_is_the_same_each_time() -> None:
    plan = replace(plan_of(3), steps=(), faults_s=1.0, recovery_s=1.0)
    events_seen = window(plan, 100, 140)
    assert len(events_seen) == 40
    assert events_seen == window(plan, 100, 140)
    assert window(replace(plan, seed=plan.seed + 1), 100, 140) != events_seen
