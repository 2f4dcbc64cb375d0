"""Taking the score: each mutant is hunted N times; controls must stay silent (chaos.md 6.4).

A hunt takes plans of fresh seeds until a check of the mutant's column finds it, or until the budget
of simulated seconds is used up.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import count, takewhile
from typing import Final

from rocketbed.chaos.plan.family import Family
from rocketbed.chaos.plan.library import load_scenario
from rocketbed.chaos.search.runner import Options, Outcome, Say, run_many
from rocketbed.chaos.search.shrink import Budget, shrink
from tests.mutation.planted.catalogue import controls, mutants
from tests.mutation.planted.mutant import Mutant
from tests.mutation.planted.score import Hunt, Row, Score

BUDGET_S: Final = 2000.0
REPETITIONS: Final = 3
QUIET_S: Final = 10_000.0
"""Simulated seconds in which the node and each control have to be silent, in a full examination."""
SEEDS: Final = 10_000
"""Between the first seeds of two hunts: more than a budget uses."""
SHRINK_RUNS: Final = 40
SHRINK_S: Final = 90.0


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


def examine(request: Examination, on_row: Callable[[Row], None], say: Say) -> Score:
    """Do it; `on_row` hears of each row. Raises `StaleMutant` before anything runs."""

    def is_wanted(identity: str) -> bool:
        return not request.only or identity in request.only

    chosen = [mutant for mutant in mutants() if is_wanted(mutant.id)]
    quiet: list[Mutant | None] = [None] if is_wanted("node") else []
    quiet += [mutant for mutant in controls() if is_wanted(mutant.id)]
    for mutant in (*chosen, *filter(None, quiet)):
        mutant.check()
    seeds = count(request.seed, SEEDS)

    def hunted(mutant_or_control: Mutant | None, budget_s: float, times: int) -> Row:
        row = Row(identity="node", title="the unchanged node")
        if mutant_or_control is not None:
            row = Row(
                identity=mutant_or_control.id,
                title=mutant_or_control.title,
                column=mutant_or_control.caught_by,
            )
        family = (
            load_scenario(mutant_or_control.soak)
            if mutant_or_control is not None and mutant_or_control.soak
            else request.family
        )
        hunt_once = partial(
            hunt, mutant_or_control, family, budget_s=budget_s, jobs=request.jobs, say=say
        )
        row.hunts += [hunt_once(first_seed=next(seeds)) for _ in range(times)]
        if mutant_or_control is not None and mutant_or_control.caught_by and request.shrink:
            _shrink(request, row, mutant_or_control)
        on_row(row)
        return row

    return Score(
        rows=[hunted(mutant, request.budget_s, request.repetitions) for mutant in chosen],
        quiet=[hunted(control, request.quiet_s, 1) for control in quiet],
    )


def hunt(
    planted: Mutant | None,
    family: Family,
    *,
    first_seed: int,
    budget_s: float,
    jobs: int = 2,
    say: Say = lambda line: None,
) -> Hunt:
    """Search with seeds from `first_seed` on; a control, or None for the node, uses all budget.

    Raises `StaleMutant`.
    """
    if planted is not None:
        planted.check()
    result = Hunt()
    column = planted.caught_by if planted else ()
    options = Options(before=planted.plant if planted else None)
    seeds = takewhile(lambda _: result.simulated_s < budget_s, count(first_seed))
    plans = map(family.plan, seeds)
    with closing(run_many(plans, options, jobs=jobs)) as outcomes:
        for outcome in outcomes:
            ids = _take(result, outcome, column)
            name = "node" if planted is None else planted.id
            say(f"{name} seed {outcome.plan.seed}: {', '.join(ids) or 'nothing'}")
            if result.found_ids:
                break
    return result


def _take(result: Hunt, outcome: Outcome, column: tuple[str, ...]) -> list[str]:
    """Count a run; what was found in it."""
    result.runs += 1
    result.simulated_s += outcome.simulated_s
    result.cpu_s += outcome.cpu_s
    result.points.update(dict.fromkeys(outcome.facts.get("points", ())))
    ids = outcome.finding_ids or ([outcome.verdict] if outcome.verdict != "pass" else [])
    result.found_ids = tuple(name for name in ids if name in column)
    if result.found_ids:
        result.outcome = outcome
    elif ids:
        result.other_findings.update(ids)
        result.noisy.append(f"seed {outcome.plan.seed}: {', '.join(ids)}")
    return ids


def _shrink(request: Examination, row: Row, planted: Mutant) -> None:
    """The plan of the first find, as short as it gets by the finding that named the mutant."""
    find = next((one for one in row.finds if one.outcome is not None), None)
    if find is None or find.outcome is None or find.outcome.record is None:
        return
    shrunk = shrink(
        find.outcome,
        Options(before=planted.plant),
        finding=find.found_ids[0],
        jobs=request.jobs,
        budget=Budget(SHRINK_RUNS, SHRINK_S),
    )
    if shrunk.reproduced:
        row.shrunk_steps = shrunk.steps_after
