"""Consumers of a plan by group, and the tags that groups request."""

from dataclasses import replace

import pytest

from rocketbed.chaos.plan.plan import Consumers, Plan
from rocketbed.chaos.run.group import groups_of
from rocketbed.chaos.run.load import TAGS
from rocketbed.wire.javahash import tag_code


def members(consumers: Consumers) -> list[tuple[int, tuple[str, ...]]]:
    plan = Plan(name="made", seed=1, consumers=consumers)
    return [
        (group.number, tuple(name.removeprefix("consumer-") for name in group.members))
        for group in groups_of(plan)
    ]


@pytest.mark.parametrize(
    ("consumers", "expected"),
    [
        (Consumers(count=3, mode="pull"), []),
        (Consumers(count=3, mode="group"), [(1, ("1",)), (2, ("2",)), (3, ("3",))]),
        (Consumers(count=4, mode="mixed"), [(1, ("1",)), (3, ("3",))]),
        (Consumers(count=5, mode="mixed", members=2), [(1, ("1", "3")), (5, ("5",))]),
        (Consumers(count=3, mode="group", members=3), [(1, ("1", "2", "3"))]),
    ],
)
def test_groups_take_so_many_consumers_each(
    consumers: Consumers, expected: list[tuple[int, tuple[str, ...]]]
) -> None:
    assert members(consumers) == expected


def test_a_share_of_groups_asks_for_some_tags() -> None:
    plan = Plan(name="made", seed=1, consumers=Consumers(count=40, mode="group", filtered=0.5))
    tags_by_group = [group.tags for group in groups_of(plan)]
    assert 8 < tags_by_group.count(()) < 32
    assert {tag for tags in tags_by_group for tag in tags} == set(TAGS)
    assert groups_of(plan)[0].expression in {
        "*",
        *TAGS,
        *(" || ".join(tags) for tags in tags_by_group),
    }
    every = replace(plan, consumers=replace(plan.consumers, filtered=1.0))
    assert all(1 <= len(group.tags) <= 2 for group in groups_of(every))
    assert groups_of(every) == groups_of(every)


def test_the_tags_of_the_load_try_hashes() -> None:
    red, same_hash, negative = map(tag_code, TAGS)
    assert red == same_hash > 0 > negative
