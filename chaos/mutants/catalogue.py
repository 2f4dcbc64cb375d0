"""All mutants, and the bugs of the catalogue that wait for the code they would break."""

from typing import Final

from rocketbed.chaos.mutants import boot, listening, promises, routes, upkeep  # noqa: F401
from rocketbed.chaos.mutants.mutant import REGISTRY, Mutant, Waiting

WAITING: Final = (
    Waiting("M4", "no truncation on demotion", "epochs (controller mode)"),
    Waiting("M5", "truncation not crash-safe", "epochs (controller mode)"),
    Waiting("M7", "confirm offset not capped", "the in-sync set (controller mode)"),
    Waiting("M11", "queue offsets recovered from confirm", "the in-sync set (controller mode)"),
    Waiting("M13", "ack of an old epoch counted", "epochs (controller mode)"),
    Waiting("M14", "lease not checked", "leases (controller mode)"),
    Waiting("M20", "in-sync set expanded too early", "the in-sync set (controller mode)"),
)


def mutants() -> list[Mutant]:
    """To be found, by number."""
    return [one for one in _by_number() if one.caught_by]


def controls() -> list[Mutant]:
    """Not to be found, by number."""
    return [one for one in _by_number() if not one.caught_by]


def _by_number() -> list[Mutant]:
    return sorted(REGISTRY.values(), key=lambda one: int(one.id[1:]))
