"""Runs of plans in simulation, and what of them failed."""

import os
from collections.abc import Iterable
from contextlib import closing

from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.search.runner import Outcome, run_many

SWARM, ELECTED = "soak-swarm", "soak-failover"


def failed(plans: Iterable[Plan], looked: list[dict[str, bool]] | None = None) -> list[str]:
    """A line for each run that did not pass, with what repeats it; `looked` gets each run's."""
    lines = []
    with closing(run_many(plans, jobs=os.cpu_count() or 1)) as outcomes:
        for outcome in outcomes:
            if outcome.verdict != "pass":
                lines.append(describe(outcome))
            if looked is not None and outcome.judgement is not None:
                looked.append(outcome.judgement.looked)
    return lines


def describe(outcome: Outcome) -> str:
    plan = outcome.plan
    ids = ", ".join(outcome.finding_ids)
    return (
        f"rocketbed chaos run {plan.name} --seed {plan.seed}: {outcome.verdict} {ids}"
        f" {outcome.error}"
    )
