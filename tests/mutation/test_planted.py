"""Planted bugs are found, and harmless changes are not."""

import pytest

from rocketbed.chaos.plan.library import load_scenario
from tests.mutation.planted.catalogue import controls, mutants, unshown
from tests.mutation.planted.examine import Examination, examine, hunt
from tests.mutation.planted.mutant import REGISTRY, Mutant, StaleMutant, swap

FIRST_SEED = 7_000
QUICK_S = 600.0
CHEAP = {"M9": 7_002}
"""Found soon, and the seed that finds it: the quick run does so, and `M2` by an examination."""
DEAR = [one for one in mutants() if one.id not in (*CHEAP, "M2")]
ALL = [*mutants(), *unshown(), *controls()]
FAMILY = load_scenario("soak-swarm")


@pytest.mark.parametrize("mutant", ALL, ids=[mutant.id for mutant in ALL])
def test_each_mutant_replaces_functions_that_exist(mutant: Mutant) -> None:
    mutant.check()


def test_every_bug_of_the_catalogue_is_planted() -> None:
    names = [one.id for one in (*mutants(), *unshown())]
    assert sorted(int(name[1:]) for name in names) == list(range(1, 27))
    assert [one.id for one in controls()] == ["E1", "E2", "E3"]


def test_mutant_of_a_missing_function_is_refused() -> None:
    stale = Mutant(
        id="M0",
        title="none",
        bug="none",
        edit="none",
        caught_by=("lost-write",),
        targets=("tests.mutation.planted.mutant:nothing",),
        plant=lambda: None,
    )
    with pytest.raises(StaleMutant, match="nothing"):
        stale.check()


def test_planting_gives_back_what_stood_there() -> None:
    target = "tests.mutation.planted.mutant:Plant"
    before = swap(target, 3)
    assert swap(target, before) == 3


@pytest.mark.slow
@pytest.mark.parametrize("identity", CHEAP)
def test_a_cheap_one_is_found_soon(identity: str) -> None:
    result = hunt(REGISTRY[identity], FAMILY, first_seed=CHEAP[identity], budget_s=QUICK_S, jobs=1)
    assert result.found_ids, result.noisy


@pytest.mark.slow
@pytest.mark.parametrize("mutant", DEAR, ids=[mutant.id for mutant in DEAR])
def test_every_other_one_is_found(mutant: Mutant) -> None:
    family = load_scenario(mutant.soak) if mutant.soak else FAMILY
    result = hunt(mutant, family, first_seed=FIRST_SEED, budget_s=12_000)
    assert result.found_ids, result.noisy


@pytest.mark.slow
def test_ungranted_locks_are_found_where_members_return() -> None:
    """The mutant has its own scenario: in the swarm a master has nearly always begun without its
    locks shortly before, which excuses two owners."""
    target = "rocketbed.node.broker.locks:_is_free"
    mutant = Mutant(
        id="M0",
        title="locks for everybody",
        bug="two members that listen in order have messages of one queue in hand at once",
        edit="a queue's lock is given to every client that asks",
        caught_by=("double-queue-owner",),
        targets=(target,),
        plant=lambda: swap(target, lambda lock, client_id, now: True),
    )
    result = hunt(mutant, load_scenario("delays"), first_seed=1, budget_s=QUICK_S)
    assert result.found_ids, result.noisy


@pytest.mark.slow
@pytest.mark.parametrize("control", controls(), ids=[control.id for control in controls()])
def test_a_control_is_not(control: Mutant) -> None:
    quiet = hunt(control, FAMILY, first_seed=FIRST_SEED, budget_s=QUICK_S)
    assert quiet.runs > 0
    assert quiet.noisy == []


@pytest.mark.slow
def test_a_mutant_that_is_found_counts_one_point() -> None:
    request = Examination(
        family=FAMILY, seed=FIRST_SEED, only=("M2",), budget_s=QUICK_S, repetitions=1, jobs=1
    )
    ids: list[str] = []
    score = examine(request, lambda row: ids.append(row.identity), lambda line: None)
    assert ids == ["M2"]
    assert score.points == 1
    score.rows[0].hunts[0].found_ids = ()
    assert score.points == 0
