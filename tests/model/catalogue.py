"""Models by name: each runs a part of the node beside a model of it, drawn from a seed."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from tests.model.damage import run_cuts, run_damage
from tests.model.damaged_records import run_damaged_records
from tests.model.figures import run_figures
from tests.model.full_disk import run_full_disk
from tests.model.groups import run_groups
from tests.model.leaders import run_leaders
from tests.model.lives import run_lives, run_remade
from tests.model.members import run_members
from tests.model.mending import run_holes, run_mending
from tests.model.moments import run_moments
from tests.model.redelivery import run_redelivery
from tests.model.register import run_register
from tests.model.registration import run_registration
from tests.model.replica_lives import run_replica_lives
from tests.model.routes import run_routes
from tests.model.sends import run_sends
from tests.model.waiting import run_waiting

Session = Callable[[], str]
Run = Callable[[int], str]
"""Runs a model with a seed, raises `AssertionError` where they differ, and returns a digest."""
SEEDS: Final = 4
"""Seeds of one session of a model that takes little time."""
LIVES: Final = 3
"""Sessions of a store's lives."""


def _lives(seed: int) -> str:
    return run_lives(seed)[2]


MODELS: Final[Mapping[str, Run]] = {
    "broker-full-disk": run_full_disk,
    "broker-damaged-records": run_damaged_records,
    "broker-registration": run_registration,
    "broker-redelivery": run_redelivery,
    "broker-figures": run_figures,
    "broker-groups": run_groups,
    "broker-members": run_members,
    "broker-sends": run_sends,
    "broker-waiting": run_waiting,
    "failover-leaders": run_leaders,
    "failover-lives": run_replica_lives,
    "failover-register": run_register,
    "nameserver-routes": run_routes,
    "store-cuts": run_cuts,
    "store-damage": run_damage,
    "store-holes": run_holes,
    "store-lives": _lives,
    "store-mending": run_mending,
    "store-moments": run_moments,
    "store-remade": run_remade,
}
SHORT: Final = (
    "broker-damaged-records",
    "broker-redelivery",
    "broker-sends",
    "failover-register",
    "nameserver-routes",
    "store-cuts",
    "store-damage",
    "store-holes",
    "store-lives",
    "store-mending",
    "store-moments",
    "store-remade",
)
"""Models whose sessions take several seeds."""


def sessions(seed: int) -> Mapping[str, Session]:
    """Sessions of some seconds of processor time each; another `seed` has others."""
    result: dict[str, Session] = {}
    for name, run in MODELS.items():
        if name not in SHORT:
            result[f"{name}/{seed}"] = partial(run, seed)
            continue
        for number in range(LIVES if name == "store-lives" else 1):
            first = seed * 1000 + number * SEEDS
            key = first if name in ("store-lives", "store-mending") else seed
            result[f"{name}/{key}"] = partial(_each, run, range(first, first + SEEDS))
    return result


def _each(run: Run, seeds: Iterable[int]) -> str:
    return " ".join(map(run, seeds))
