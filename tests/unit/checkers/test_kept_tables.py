"""Tables of a run's nodes, images among them: groups as they were made (S21)."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.run_maker import (
    GROUP,
    SECOND,
    TOPIC,
    ImageMaker,
    RunMaker,
    found,
    write_table,
)

AT_NS = 30 * SECOND
"""Of the image."""


@pytest.fixture
def run(tmp_path: Path) -> RunMaker:
    made = RunMaker(tmp_path / "run")
    made.record.consumer_groups = {"group-1": GROUP}
    return made


def groups(run: RunMaker, place: str, **fields: Any) -> None:
    table = {"subscriptionGroupTable": {"group-1": {"groupName": "group-1", **fields}}}
    run.after.append(lambda path: write_table(path / place, "subscriptionGroup.json", table))


def image(run: RunMaker, node: str) -> None:
    """What a kill left of a node."""
    run.images.append(ImageMaker(node, "kill", AT_NS, run.specs))


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"retryMaxTimes": 16, "consumeEnable": True}, set()),
        ({"retryMaxTimes": 3}, {"S21"}),
        ({"consumeEnable": False}, {"S21"}),
        ({"attributes": {"priority": "1"}}, {"S21"}),
    ],
)
@pytest.mark.parametrize("place", ["stores/b3", "images/b2-1"])
def test_groups_are_as_they_were_made(
    run: RunMaker, place: str, fields: dict[str, Any], wanted: set[str]
) -> None:
    image(run, "b2")
    groups(run, place, **fields)
    assert found(run.judge(only=["S21"])) == wanted


@pytest.mark.parametrize(("group", "wanted"), [("group-1", {"S21"}), ("another", set())])
def test_nothing_is_forbidden_to_a_group_of_the_run(
    run: RunMaker, group: str, wanted: set[str]
) -> None:
    table = {"subscriptionGroupTable": {}, "forbiddenTable": {group: {TOPIC: 4}}}
    run.after.append(lambda path: write_table(path / "stores/b1", "subscriptionGroup.json", table))
    assert found(run.judge(only=["S21"])) == wanted
