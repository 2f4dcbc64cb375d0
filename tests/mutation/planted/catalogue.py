"""Imports of all mutants."""

from tests.mutation.planted import (  # noqa: F401
    boot,
    failover,
    listening,
    promises,
    routes,
    upkeep,
)
from tests.mutation.planted.mutant import REGISTRY, Mutant


def mutants() -> list[Mutant]:
    """To be found, by number."""
    return [one for one in _by_number() if one.caught_by and not one.unshown]


def unshown() -> list[Mutant]:
    """Bugs in what only stands behind another line of defence, or shows too rarely; by number."""
    return [one for one in _by_number() if one.unshown]


def controls() -> list[Mutant]:
    """Not to be found, by number."""
    return [one for one in _by_number() if not one.caught_by]


def _by_number() -> list[Mutant]:
    return sorted(REGISTRY.values(), key=lambda mutant: int(mutant.id[1:]))
