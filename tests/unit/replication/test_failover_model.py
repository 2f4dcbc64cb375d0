"""The rules of failover in a model of a whole group (tests/support/model, replication.md 7.7)."""

from itertools import product

import pytest

from rocketbed.replication.entry import Policy
from tests.support.model.cluster import Action, Cluster
from tests.support.model.exhaust import Limits, search
from tests.support.model.rules import RULES, SECOND_LINES
from tests.support.model.traces import ALONE, BOTH, LED, TRACES
from tests.support.model.walks import SETTLE, Shape, fails, shape_of, shrunk, violated_by, walk

GROUPS = list(product(Policy, (1, 2)))
SYNCED = Shape(2, 1, Policy.FSYNC)
THREE = Shape(3, 2, Policy.MEMORY)


def check_walk(seed: int, shape: Shape) -> None:
    counterexample = walk(seed, shape)
    if counterexample is not None:
        text = "\n".join(map(str, shrunk(counterexample, shape)))
        pytest.fail(f"walk {seed} of {shape}: {fails(counterexample, shape)}\n{text}")


@pytest.mark.parametrize(("policy", "min_in_sync"), GROUPS)
def test_no_walk_loses_or_moves_what_was_confirmed(policy: Policy, min_in_sync: int) -> None:
    for seed in range(75):
        check_walk(seed, shape_of(seed, min_in_sync, policy))


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "min_in_sync"), GROUPS)
def test_no_longer_walk_loses_or_moves_confirmed_records(policy: Policy, min_in_sync: int) -> None:
    for seed in range(1_000, 1_600):
        check_walk(seed, shape_of(seed, min_in_sync, policy))


def test_outsider_may_cut_records_it_never_knew_confirmed() -> None:
    """Its bytes of epoch 1 are confirmed in epoch 3 when it follows the leader of epoch 2."""
    deposed: list[Action] = [("hand_over", 0, 1), ("read", 1), ("promise", 1), ("lead", 1)]
    repeated: list[Action] = [("hand_over", 1, 0), *LED[1:], ("leave", 0, 1), ("deliver", 1)]
    cluster = Cluster.of(3, 1, Policy.MEMORY, 2)
    for action in [*LED, ("write", 0), ("attach", 2, 0), ("fetch", 2, 2), *deposed, *repeated]:
        assert cluster.apply(action), action
    assert cluster.apply(("confirm", 0))
    assert cluster.held_of_confirmed(cluster.nodes[2]) == 2
    assert cluster.apply(("attach", 2, 1))
    assert cluster.nodes[2].log == ()
    assert cluster.apply(SETTLE)


def test_each_rule_has_a_trace() -> None:
    assert TRACES.keys() == RULES.keys()


@pytest.mark.parametrize("name", TRACES)
def test_trace_violates_only_without_its_rule(name: str) -> None:
    trace = TRACES[name]
    with RULES[name].removed():
        assert violated_by(trace.actions, trace.shape) == trace.invariant
    assert fails(trace.actions, trace.shape) is None


@pytest.mark.parametrize("name", TRACES)
def test_every_action_of_a_trace_is_needed(name: str) -> None:
    trace = TRACES[name]
    with RULES[name].removed():
        assert shrunk(list(trace.actions), trace.shape) == list(trace.actions)


@pytest.mark.slow
@pytest.mark.parametrize("name", SECOND_LINES)
def test_a_second_line_is_never_the_only_one(name: str) -> None:
    """A violation here is a reason to move it to `RULES`."""
    with SECOND_LINES[name][0].removed():
        for seed, (policy, min_in_sync) in product(range(15), GROUPS):
            check_walk(seed, shape_of(seed, min_in_sync, policy))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "limits", "states"),
    [
        (SYNCED, Limits(crashes=0, fences=0), 17_330),
        (SYNCED, Limits(writes=0, fences=0), 32_837),
        (BOTH, Limits(requests=0, fences=0), 40_753),
        (THREE, Limits(writes=0, crashes=0, fences=0), 15_748),
        (THREE, Limits(writes=0, requests=0, fences=0, elections=1), 8_376),
        pytest.param(SYNCED, Limits(fences=0), 287_887, marks=pytest.mark.slow),
        pytest.param(BOTH, Limits(fences=0), 191_325, marks=pytest.mark.slow),
        pytest.param(THREE, Limits(crashes=0, fences=0), 107_840, marks=pytest.mark.slow),
        pytest.param(
            THREE, Limits(writes=0, fences=0, elections=1), 73_368, marks=pytest.mark.slow
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, Limits) else None,
)
def test_no_state_of_a_small_group_violates(shape: Shape, limits: Limits, states: int) -> None:
    """Fewer states than here: the search leaves out more, by intention?"""
    assert search(Cluster.of(*shape), limits) == (states, [])


def test_search_finds_a_loss_in_the_fewest_actions() -> None:
    name = "a lossy restart is told"
    with RULES[name].removed():
        _, actions = search(Cluster.of(*ALONE), Limits(writes=0, requests=0, fences=0))
    assert tuple(actions) == TRACES[name].actions
