"""Bugs kept out of the catalogue that the testbed knows: seeds alone have to find them."""

from collections.abc import Callable

from rocketbed.chaos.plan.family import Family
from rocketbed.chaos.plan.library import load_scenario
from tests.mutation.planted.examine import hunt
from tests.mutation.planted.mutant import Mutant


def assert_found(
    plant: Callable[[], None],
    ids: tuple[str, ...],
    *,
    first_seed: int,
    budget_s: float,
    scenario: Family | None = None,
) -> None:
    """Put a bug into the node in the processes of its runs only, and look for it with seeds from
    the first on, for so many simulated seconds."""
    planted = Mutant(
        id="R0", title=plant.__name__, bug="", edit="", caught_by=ids, targets=(), plant=plant
    )
    family = scenario or load_scenario("soak-swarm")
    result = hunt(planted, family, first_seed=first_seed, budget_s=budget_s)
    assert result.found_ids, result.noisy
