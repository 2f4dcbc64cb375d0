"""Plans of trials: the same from the same seed, and such that every kill can meet writers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.demo.plan import (
    MASTER,
    MESSAGES_MIN,
    SLAVES,
    PlanError,
    Target,
    beside,
    make_plan,
    operations,
)


def test_a_seed_gives_one_plan_and_one_load() -> None:
    one, other = make_plan(seed=7, messages=500), make_plan(seed=7, messages=500)
    assert one == other
    assert list(operations(one, 2)) == list(operations(other, 2))
    assert list(operations(one, 2)) != list(operations(make_plan(seed=8, messages=500), 2))


def test_seeds_differ_in_what_they_kill() -> None:
    targets = {tuple(strike.node for strike in make_plan(seed=seed).strikes) for seed in range(50)}
    assert {nodes[0] for nodes in targets} == {MASTER}
    assert {nodes[1] for nodes in targets} == set(SLAVES)
    assert {nodes[2] for nodes in targets} == {MASTER, *SLAVES}


@given(st.integers(0, 1 << 32), st.integers(MESSAGES_MIN, 3000))
def test_any_plan_is_complete(seed: int, messages: int) -> None:
    plan = make_plan(seed=seed, messages=messages)
    assert [strike.target for strike in plan.strikes] == list(Target)
    ats = [strike.at for strike in plan.strikes]
    limits = plan.limits()
    assert ats == sorted(ats)
    assert limits == sorted(limits)
    assert limits[-1] == messages
    for at, limit in zip(ats, limits, strict=False):
        assert at < limit, "producers would stop before the kill is due"
    sent = 0
    topics = {topic.name for topic in plan.topics}
    for producer, share in enumerate(plan.shares()):
        count = 0
        for operation in operations(plan, producer):
            assert operation.topic in topics
            assert 1 <= len(operation.items) <= plan.batch_max
            assert operation.is_batch == (len(operation.items) > 1)
            count += len(operation.items)
        assert count == share
        sent += count
    assert sent == messages


def test_topics_stand_beside_those_that_are_there() -> None:
    plan = make_plan(seed=1, messages=500)
    assert beside(plan, {"other"}) == plan
    again = beside(plan, {"demo-one", "demo-orders-2"})
    assert {topic.name for topic in again.topics} == {
        "demo-one-3",
        "demo-orders-3",
        "demo-events-3",
    }
    assert {operation.topic for operation in operations(again, 0)} <= {
        topic.name for topic in again.topics
    }


def test_keys_are_unique() -> None:
    plan = make_plan(seed=1, messages=2000)
    keys = [
        item.key
        for producer in range(plan.producers)
        for operation in operations(plan, producer)
        for item in operation.items
    ]
    assert len(set(keys)) == len(keys) == 2000


@pytest.mark.parametrize("messages", [0, MESSAGES_MIN - 1, 10_000_000])
def test_a_number_that_cannot_be_is_refused(messages: int) -> None:
    with pytest.raises(PlanError, match=f"{messages} messages"):
        make_plan(seed=1, messages=messages)
