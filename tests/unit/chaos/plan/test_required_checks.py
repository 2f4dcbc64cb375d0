"""Checks that have to run, which follow from the load."""

import pytest

from rocketbed.chaos.plan.toml import read_toml
from rocketbed.chaos.run.required_checks import required_checks


@pytest.mark.parametrize(
    ("topics", "batch_queues", "is_due"), [(1, 0, True), (1, 1, False), (2, 1, True)]
)
def test_tags_are_checked_where_queues_hold_tags(
    topics: int, batch_queues: int, is_due: bool
) -> None:
    load = f"[load.producer]\ntopics = {topics}\nbatch_queues = {batch_queues}\n"
    plan = read_toml(f'name = "made"\nsteps = []\n{load}[recovery]\nat = "5s"\n', "made").plan(1)
    assert ("broker-tag-filter" in required_checks(plan, "sim")) is is_due
