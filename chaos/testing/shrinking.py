"""From a failing run of a test to a smaller one that fails the same way.

The steps are the body's own, so a smaller plan is one in which the body's calls for some of them do
nothing; storms lose steps as those of a scenario do, and the weather becomes plain.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rocketbed.chaos.hunt.shrink import Budget, shrink_plan
from rocketbed.chaos.scenario.plan import Plan
from rocketbed.chaos.scenario.step import Step, parse_step
from rocketbed.chaos.testing.order import Order, Told
from rocketbed.chaos.testing.stage import Choice

RUNS: Final = 60
SECONDS: Final = 30.0
TRIES: Final = 3
"""Runs of each candidate outside the simulation; one of them has to fail the same way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """What became of an order."""

    order: Order
    told: Told
    """Of the last run of that order."""
    reproduced: bool
    runs: int
    steps_before: int
    steps_after: int


def shrink_order(
    order: Order,
    told: Told,
    run: Callable[[Order], Told],
    *,
    runs: int = RUNS,
    seconds: float = SECONDS,
) -> Shrunk:
    """The smallest order found whose run fails with the signature of `told`."""
    tries = 1 if order.backend == "sim" else TRIES
    steps = _steps(told)
    latest: list[tuple[Plan, Told]] = []

    def probe(plans: Sequence[Plan]) -> list[bool]:
        return [any(fails(plan) for _ in range(tries)) for plan in plans]

    def fails(plan: Plan) -> bool:
        tried = run(_order_of(order, plan, steps))
        if tried.signature != told.signature:
            return False
        latest.append((plan, tried))
        return True

    plan = replace(order.plan, steps=steps, storm_s=1.0, calm_s=1.0)
    shrunk = shrink_plan(
        plan, told.signature, probe, concrete=steps, budget=Budget(runs, seconds), width=1
    )
    if not shrunk.reproduced:
        return Shrunk(
            order=order,
            told=told,
            reproduced=False,
            runs=shrunk.runs,
            steps_before=len(steps),
            steps_after=len(steps),
        )
    return Shrunk(
        order=_order_of(order, shrunk.plan, steps),
        told=next(tried for plan, tried in reversed(latest) if plan == shrunk.plan),
        reproduced=True,
        runs=shrunk.runs,
        steps_before=shrunk.steps_before,
        steps_after=shrunk.steps_after,
    )


def _steps(told: Told) -> tuple[Step, ...]:
    """All steps with labels that tell whose they are: `n3` the body's third, `w1...` a storm's."""
    steps = [
        replace(parse_step(f"at 0s {text}"), for_s=None, label=f"n{number}")
        for number, text in told.steps
    ]
    for storm, texts in told.storms.items():
        for place, text in enumerate(texts):
            step = parse_step(text)
            steps.append(step if step.label else replace(step, label=f"w{storm}s{place}"))
    return tuple(steps)


def _order_of(order: Order, plan: Plan, all_steps: tuple[Step, ...]) -> Order:
    """The order that a plan of the shrinker stands for."""
    kept = {step.label for step in plan.steps}
    left_out = {
        int(step.label[1:])
        for step in all_steps
        if step.label.startswith("n") and step.label not in kept
    }
    storms: dict[int, tuple[str, ...]] = {
        _storm(step): () for step in all_steps if step.label.startswith("w")
    }
    for step in plan.steps:
        if step.label.startswith("w"):
            storms[_storm(step)] = (*storms[_storm(step)], str(step))
    return replace(
        order,
        plan=replace(order.plan, weather=plan.weather),
        choice=Choice(left_out=order.choice.left_out | left_out, storms=storms),
    )


def _storm(step: Step) -> int:
    digits = step.label[1:].partition("e")[0].partition("s")[0]
    return int(digits)
