"""Looking for one mutant: plans of fresh seeds until a check of its column finds it, or until the
budget of simulated seconds is used up (chaos.md 6.4)."""

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count, takewhile

from rocketbed.chaos.hunt.runner import Options, Outcome, Say, run_many
from rocketbed.chaos.mutants.mutant import Mutant
from rocketbed.chaos.scenario.family import Family


@dataclass(slots=True, kw_only=True)
class Hunt:
    identity: str
    """Id of the mutant or control; `node` for the unmodified node."""
    found: tuple[str, ...] = ()
    """Ids of its column that found it."""
    seed: int | None = None
    """Seed of the run that found it."""
    outcome: Outcome | None = None
    """That run."""
    runs: int = 0
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    other: "Counter[str]" = field(default_factory=Counter)
    """Runs by finding that is not in the column; for the node and the controls all findings."""
    noisy: list[str] = field(default_factory=list)
    """What was found where nothing should be, each with its seed."""
    points: dict[str, None] = field(default_factory=dict)
    """Marks and events that were reached."""


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
    result = Hunt(identity=planted.id if planted else "node")
    column = planted.caught_by if planted else ()
    options = Options(before=planted.plant if planted else None)
    seeds = takewhile(lambda _: result.simulated_s < budget_s, count(first_seed))
    plans = map(family.plan, seeds)
    with closing(run_many(plans, options, jobs=jobs)) as outcomes:
        for outcome in outcomes:
            _take(result, outcome, column, say)
            if result.found:
                break
    return result


def _take(result: Hunt, outcome: Outcome, column: tuple[str, ...], say: Say) -> None:
    result.runs += 1
    result.simulated_s += outcome.simulated_s
    result.cpu_s += outcome.cpu_s
    seed = outcome.plan.seed
    if outcome.record is not None:
        result.points.update(dict.fromkeys(outcome.record.facts.get("points", ())))
    ids = outcome.finding_ids or ([outcome.verdict] if outcome.verdict != "pass" else [])
    result.found = tuple(name for name in ids if name in column)
    if result.found:
        result.seed, result.outcome = seed, outcome
    elif ids:
        result.other.update(ids)
        result.noisy.append(f"seed {seed}: {', '.join(ids)}")
    say(f"{result.identity} seed {seed}: {', '.join(ids) or 'nothing'}")
