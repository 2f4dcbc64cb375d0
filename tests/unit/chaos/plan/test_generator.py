"""Plans from a seed: pure, within the fault model, different enough."""

from collections import Counter

import pytest

from rocketbed.chaos.plan.check import check_plan
from rocketbed.chaos.plan.generator import GENERATED, Generate, generate
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.plan.step import After, At, Step
from rocketbed.chaos.plan.targets import labels_in

SEEDS = range(300)


def label_root(plan: Plan, step: Step) -> Step:
    """The step that a step follows, and that one, to the first."""
    labels = {one.label: one for one in plan.steps if one.label}
    while isinstance(step.trigger, After):
        step = labels[step.trigger.label]
    return step


def test_a_seed_is_a_plan() -> None:
    for seed in range(20):
        assert generate(seed) == generate(seed)
    assert len({str(generate(seed)) for seed in range(50)}) == 50


@pytest.mark.parametrize("faults_s", [12.0, 30.0, 120.0])
def test_plans_can_be_run(faults_s: float) -> None:
    for seed in SEEDS:
        plan = generate(seed, Generate(faults_s=faults_s))
        check_plan(plan)
        assert plan.faults_s == faults_s
        for step in plan.steps:
            first = label_root(plan, step).trigger
            assert isinstance(first, At)
            assert first.seconds < faults_s


def test_the_load_is_light() -> None:
    for seed in SEEDS:
        load = generate(seed).producers
        assert 7.9 <= load.rate * load.count <= 20.1


def test_master_that_may_lack_its_end_is_replaced_first() -> None:
    for seed in SEEDS:
        plan = generate(seed)
        if plan.shape.brokers == 1:
            continue
        for step in plan.steps:
            lost = step.verb in ("wipe", "powercut") or "powercut" in step.words
            if not (lost and step.target.startswith("leader")):
                continue
            after = [
                one
                for one in plan.steps
                if isinstance(one.trigger, After) and one.trigger.label == step.label
            ]
            delays = {
                one.verb: one.trigger.seconds for one in after if isinstance(one.trigger, After)
            }
            assert delays["promote"] < delays["restart"]
            assert step.for_s is None


def test_odd_seeds_end_with_a_lost_master_disk() -> None:
    for seed in SEEDS:
        plan = generate(seed)
        wiped = [
            step.trigger.seconds
            for step in plan.steps
            if step.verb == "wipe"
            and step.target.startswith("leader")
            and isinstance(step.trigger, At)
        ]
        if seed % 2 and plan.shape.brokers > 1:
            assert wiped
            assert max(wiped) > plan.faults_s / 3


def test_every_class_occurs_and_is_often_absent() -> None:
    verbs: Counter[str] = Counter()
    for seed in SEEDS:
        verbs.update({step.verb for step in generate(seed).steps})
    for verb in ("kill", "stop", "powercut", "crash", "pause", "wipe", "promote", "partition"):
        assert 20 < verbs[verb] < 290, verb
    for verb in ("link", "reset", "swizzle", "disk", "clock", "cpu", "isolate"):
        assert 5 < verbs[verb] < 250, verb


@pytest.mark.parametrize("name", sorted(GENERATED))
def test_single_class(name: str) -> None:
    shares = (0.0, 1.0)
    plans = [
        generate(seed, Generate(classes=(name,), failover=share))
        for seed in range(0, 60, 2)
        for share in shares
    ]
    assert any(plan.steps for plan in plans)
    for plan in plans:
        check_plan(plan)


def test_every_mix_of_promises_comes() -> None:
    mixes = Counter(
        (plan.shape.brokers, plan.shape.flush, plan.shape.repl) for plan in map(generate, SEEDS)
    )
    assert len(mixes) == 12
    assert min(mixes.values()) > 3


def test_named_things_exist() -> None:
    for seed in SEEDS:
        plan = generate(seed)
        labels = {step.label for step in plan.steps}
        for step in plan.steps:
            assert labels.issuperset(labels_in(step.target))


def elected(seed: int, share: float = 1.0) -> Plan:
    return generate(seed, Generate(failover=share))


def test_some_seeds_fail_over_and_others_stay_unchanged() -> None:
    plans = [elected(seed, 0.2) for seed in SEEDS]
    assert 40 < sum(plan.shape.failover for plan in plans) < 80
    for plan in plans:
        assert plan.shape.failover or plan == generate(plan.seed)


def test_failover_plans_leave_elections_to_the_group() -> None:
    verbs: Counter[str] = Counter()
    for seed in SEEDS:
        plan = elected(seed)
        check_plan(plan)
        assert plan.shape.failover
        assert plan.shape.brokers >= 3
        assert plan.expect.loss == "none"
        here = {step.verb for step in plan.steps}
        assert not here & {"promote", "damage", "repair", "double"}
        verbs.update(here)
        for step in plan.steps:
            assert "lost-fsync" not in step.words
            # Within an operation: no step can make sure that another node could lead.
            assert plan.shape.flush == "sync" or not (
                step.verb == "crash" and "powercut" in step.words
            )
    for verb in ("kill", "powercut", "crash", "pause", "partition", "isolate", "handover", "wipe"):
        assert verbs[verb] > 20, verb
    targets = {f"{step.target} {step.second}" for s in SEEDS for step in elected(s).steps}
    assert any(one.startswith("leader") and "ns:" in one for one in targets)
    assert {elected(seed).shape.flush for seed in SEEDS} == {"sync", "async"}


def test_odd_failover_seeds_end_with_packet_loss() -> None:
    for seed in SEEDS:
        lossy = [
            step.trigger.seconds
            for step in elected(seed).steps
            if step.words.get("loss") == 0.7 and isinstance(step.trigger, At)
        ]
        assert len(lossy) == seed % 2
        assert all(moment > elected(seed).faults_s / 2 for moment in lossy)
