"""Shrinking, with a stand-in for the runs: only plans with the steps that matter show it."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from rocketbed.chaos.plan.plan import Background, Consumers, Plan, Producers
from rocketbed.chaos.plan.step import parse_step
from rocketbed.chaos.search.shrink import Budget, shrink_plan


def plan_of(*texts: str) -> Plan:
    return Plan(name="x", seed=1, steps=tuple(map(parse_step, texts)))


def probe_of(needed: set[str], ran: list[Plan]) -> Callable[[Sequence[Plan]], list[bool]]:
    def probe(plans: Sequence[Plan]) -> list[bool]:
        ran.extend(plans)
        return [needed <= {f"{step.verb} {step.target}" for step in plan.steps} for plan in plans]

    return probe


TEXTS = [
    f"at {number}.123s {verb} b{number % 3 + 1}"
    for number in range(4)
    for verb in ("pause", "stop")
]
PAIR = plan_of("at 1.5s kill b1", *TEXTS, "at 9.5s promote b2 as p")


def test_ten_steps_become_the_two_that_matter() -> None:
    ran: list[Plan] = []
    shrunk = shrink_plan(PAIR, "lost-write", probe_of({"kill b1", "promote b2"}, ran))
    assert [f"{step.verb} {step.target}" for step in shrunk.plan.steps] == ["kill b1", "promote b2"]
    assert shrunk.reproduced
    assert (shrunk.steps_before, shrunk.steps_after) == (10, 2)
    assert shrunk.runs == len(ran) < 60


def test_everything_else_becomes_plain() -> None:
    background = Background(disk_ms={"b1": 50.0, "b2": 5.0}, link_ms=20.0, cut_mode="strict")
    plan = replace(
        PAIR,
        background=background,
        producers=Producers(count=4, batch=0.5, topics=2),
        consumers=Consumers(count=3),
    )

    def probe(plans: Sequence[Plan]) -> list[bool]:
        return [
            "b1" in one.background.disk_ms and any(step.verb == "kill" for step in one.steps)
            for one in plans
        ]

    shrunk = shrink_plan(plan, "lost-write", probe)
    assert shrunk.plan.background == Background(disk_ms={"b1": 50.0})
    assert (shrunk.plan.producers.count, shrunk.plan.producers.batch) == (1, 0.0)
    assert (shrunk.plan.producers.topics, shrunk.plan.consumers.count) == (1, 0)
    assert [str(step) for step in shrunk.plan.steps] == ["at 2s kill b1"]
    assert (shrunk.plan.faults_s, shrunk.plan.recovery_s) == (3.0, 10.0)


def test_a_stall_keeps_its_recovery_phase() -> None:
    shrunk = shrink_plan(PAIR, "replicas-equal", probe_of({"kill b1"}, []))
    assert shrunk.plan.recovery_s == PAIR.recovery_s


def test_durations_are_halved_while_they_may_be() -> None:
    plan = plan_of("at 1s pause b1 for 8s")

    def probe(plans: Sequence[Plan]) -> list[bool]:
        return [bool(one.steps) and (one.steps[0].for_s or 0.0) >= 1.5 for one in plans]

    assert str(shrink_plan(plan, "lost-write", probe).plan.steps[0]) == "at 1s pause b1 for 2s"


def test_concrete_steps_are_tried_before_the_scenarios() -> None:
    plan = plan_of("at 1s kill leader as k", "after k+1s restart @k", "at 5s pause follower:any")
    concrete = tuple(map(parse_step, ["at 1s kill b1", "at 2s restart b1", "at 5s pause b3"]))
    shrunk = shrink_plan(plan, "lost-write", probe_of({"kill b1"}, []), concrete=concrete)
    assert [str(step) for step in shrunk.plan.steps] == ["at 1s kill b1"]
    own = shrink_plan(plan, "lost-write", probe_of({"restart @k"}, []), concrete=concrete)
    assert [str(step) for step in own.plan.steps] == [
        "at 1s kill leader as k",
        "after k+1s restart @k",
    ]


def test_finding_that_does_not_recur_is_left_unshrunk() -> None:
    shrunk = shrink_plan(PAIR, "lost-write", lambda plans: [False] * len(plans))
    assert (shrunk.reproduced, shrunk.plan, shrunk.runs) == (False, PAIR, 1)


@pytest.mark.parametrize("runs", [1, 2, 7])
def test_the_budget_ends_it(runs: int) -> None:
    ran: list[Plan] = []
    shrink_plan(PAIR, "lost-write", probe_of({"promote b2"}, ran), budget=Budget(runs=runs))
    assert runs <= len(ran) <= runs + 1
