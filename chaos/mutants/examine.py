"""Taking the score: each mutant is hunted N times; controls must stay silent."""

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rocketbed.chaos.hunt.replay import versions
from rocketbed.chaos.hunt.runner import Options
from rocketbed.chaos.hunt.shrink import shrink
from rocketbed.chaos.mutants.catalogue import controls, mutants
from rocketbed.chaos.mutants.hunt import hunt
from rocketbed.chaos.mutants.mutant import Mutant
from rocketbed.chaos.mutants.score import Row, Score, row_of
from rocketbed.chaos.scenario.family import Family

BUDGET_S: Final = 2000.0
REPETITIONS: Final = 3
QUIET_S: Final = 10_000.0
"""Simulated seconds in which the node and each control have to be silent, in a full examination."""
SEEDS: Final = 10_000
"""Between the first seeds of two hunts: more than a budget uses."""
SHRINK_RUNS: Final = 40
SHRINK_S: Final = 90.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    family: Family
    seed: int
    """First of all seeds."""
    only: Sequence[str] = ()
    """Ids, and `node`; empty: all."""
    budget_s: float = BUDGET_S
    quiet_s: float = BUDGET_S
    repetitions: int = REPETITIONS
    jobs: int = 2
    shrink: bool = False

    def facts(self) -> dict[str, Any]:
        """What the history of scores keeps of it."""
        return {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "git": versions().get("git", "unknown"),
            "seed": self.seed,
            "budget_s": self.budget_s,
            "repetitions": self.repetitions,
        }


def examine(wanted: Examination, told: Callable[[Row], None], say: Say) -> Score:
    """Do it; `told` hears of each row. Raises `StaleMutant` before anything runs."""
    chosen = [one for one in mutants() if _is_wanted(wanted, one.id)]
    quiet: list[Mutant | None] = [one for one in controls() if _is_wanted(wanted, one.id)]
    if _is_wanted(wanted, "node"):
        quiet.insert(0, None)
    for one in (*chosen, *filter(None, quiet)):
        one.check()
    score = Score([], [])
    seed = wanted.seed
    for one in chosen:
        row = row_of(one)
        for _ in range(wanted.repetitions):
            _hunt(wanted, row, one, seed, wanted.budget_s, say)
            seed += SEEDS
        if wanted.shrink:
            _shrink(wanted, row, one)
        score.rows.append(row)
        told(row)
    for control in quiet:
        row = row_of(control)
        _hunt(wanted, row, control, seed, wanted.quiet_s, say)
        seed += SEEDS
        score.quiet.append(row)
        told(row)
    return score


def _is_wanted(wanted: Examination, identity: str) -> bool:
    return not wanted.only or identity in wanted.only


def _hunt(
    wanted: Examination, row: Row, planted: Mutant | None, seed: int, budget_s: float, say: Say
) -> None:
    row.hunts.append(
        hunt(
            planted,
            wanted.family,
            first_seed=seed,
            budget_s=budget_s,
            jobs=wanted.jobs,
            say=say,
        )
    )


def _shrink(wanted: Examination, row: Row, planted: Mutant) -> None:
    """The plan of the first find, as short as it gets by the finding that named the mutant."""
    found = next((one for one in row.finds if one.outcome is not None), None)
    if found is None or found.outcome is None or found.outcome.record is None:
        return
    shrunk = shrink(
        found.outcome,
        Options(before=planted.plant),
        finding=found.found[0],
        jobs=wanted.jobs,
        runs=SHRINK_RUNS,
        seconds=SHRINK_S,
    )
    if shrunk.reproduced:
        row.shrunk_steps = shrunk.steps_after
