"""Tables of a run's nodes, images included: unaltered groups, positions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketbed.chaos.evidence.history import Row
from tests.support.run_maker import (
    GROUP,
    SECOND,
    TOPIC,
    Ids,
    ImageMaker,
    RunMaker,
    Written,
    results,
    violated,
    write_table,
)

Change = Callable[[RunMaker], None]
AT_NS = 30 * SECOND
"""Time of the image."""
COMMITTED = 6
"""Position that was committed."""


@pytest.fixture
def run(tmp_path: Path) -> RunMaker:
    maker = RunMaker(tmp_path / "run")
    maker.record.consumer_groups = {"group-1": GROUP}
    return maker


def groups(run: RunMaker, place: str, **fields: Any) -> None:
    table = {"subscriptionGroupTable": {"group-1": {"groupName": "group-1", **fields}}}
    run.after.append(lambda path: write_table(path / place, "subscriptionGroup.json", table))


def image(run: RunMaker, node: str, offset: int | None, time_ns: int = AT_NS) -> None:
    """Add the image of a killed node with this position of queue 0 in its table."""
    table = {"offsetTable": {} if offset is None else {f"{TOPIC}@group-1": {"0": offset}}}

    def write(store: Path) -> None:
        write_table(store, "consumerOffset.json", table)

    image_maker = ImageMaker(node, "kill", time_ns, run.specs, harm=write)
    run.images.append(image_maker)
    run.event(time_ns, node, "exit", cause="kill")


def committed(run: RunMaker, time_ns: int, offset: int = COMMITTED) -> None:
    def rows(_run: RunMaker, _built: Written, ids: Ids) -> list[Row]:
        return [ids.commit(0, offset, time_ns)._replace(node=ids.b1)]

    run.rows.append(rows)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"retryMaxTimes": 16, "consumeEnable": True}, set()),
        ({"retryMaxTimes": 3}, {"tables-complete"}),
        ({"consumeEnable": False}, {"tables-complete"}),
        ({"attributes": {"priority": "1"}}, {"tables-complete"}),
    ],
)
@pytest.mark.parametrize("place", ["stores/b3", "images/b2-1"])
def test_groups_are_as_they_were_made(
    run: RunMaker, place: str, fields: dict[str, Any], expected: set[str]
) -> None:
    image(run, "b2", None)
    groups(run, place, **fields)
    assert violated(run.judge(only=["tables-complete"])) == expected


@pytest.mark.parametrize(
    ("group", "expected"), [("group-1", {"tables-complete"}), ("another", set())]
)
def test_group_of_the_run_has_every_permission(
    run: RunMaker, group: str, expected: set[str]
) -> None:
    table = {"subscriptionGroupTable": {}, "forbiddenTable": {group: {TOPIC: 4}}}
    run.after.append(lambda path: write_table(path / "stores/b1", "subscriptionGroup.json", table))
    assert violated(run.judge(only=["tables-complete"])) == expected


def has_it(run: RunMaker) -> None:
    committed(run, 20 * SECOND)
    image(run, "b1", COMMITTED)


def has_none(run: RunMaker) -> None:
    committed(run, 20 * SECOND)
    image(run, "b1", None)


def has_less(run: RunMaker) -> None:
    committed(run, 20 * SECOND)
    image(run, "b1", COMMITTED - 1)


def was_given_less_since(run: RunMaker) -> None:
    has_less(run)
    committed(run, 25 * SECOND, COMMITTED - 1)


def was_given_it_just_now(run: RunMaker) -> None:
    committed(run, 25 * SECOND)
    image(run, "b1", None)


def is_a_slave(run: RunMaker) -> None:
    committed(run, 20 * SECOND)
    image(run, "b2", None)


def was_emptied_since(run: RunMaker) -> None:
    has_none(run)
    run.strike(22 * SECOND, "b1", "wipe", targets=["b1"])


def disk(run: RunMaker, *, begin: int, end: int) -> None:
    has_none(run)
    run.strike(begin * SECOND, "b1", "disk", targets=["b1"])
    run.strike(end * SECOND, "b1", "heal", targets=["b1"], step="disk b1")


def could_not_write(run: RunMaker) -> None:
    disk(run, begin=21, end=25)


def could_write_again_in_time(run: RunMaker) -> None:
    disk(run, begin=21, end=22)


def was_paused(run: RunMaker) -> None:
    has_none(run)
    run.strike(21 * SECOND, "b1", "pause", targets=["b1"], for_s=6)
    run.strike(27 * SECOND, "b1", "heal", targets=["b1"], step="pause b1")


def had_its_topic_deleted_later(run: RunMaker) -> None:
    """The table may hold another topic of the same name."""
    has_none(run)
    run.event(40 * SECOND, "", "topic_leaving", topic=TOPIC)
    run.event(41 * SECOND, "", "topic_deleted", topic=TOPIC, ends={"b": 1 << 20})


CASES: list[tuple[Change, tuple[int, int]]] = [
    (has_it, (0, 0)),
    (has_none, (1, 0)),
    (has_less, (1, 0)),
    (was_given_less_since, (0, 0)),
    (was_given_it_just_now, (0, 0)),
    (is_a_slave, (0, 0)),
    (was_emptied_since, (0, 0)),
    (could_not_write, (0, 1)),
    (could_write_again_in_time, (1, 0)),
    (was_paused, (0, 1)),
    (had_its_topic_deleted_later, (0, 0)),
]


@pytest.mark.parametrize(("change", "expected"), CASES, ids=[case[0].__name__ for case in CASES])
def test_a_kill_leaves_a_master_its_positions(
    run: RunMaker, change: Change, expected: tuple[int, int]
) -> None:
    change(run)
    result = results(run.judge(only=["positions-in-images"]))["positions-in-images"]
    assert (result.found, result.allowed_found) == expected, result.findings


def promoted(run: RunMaker, at_s: int, exit_s: int = 0, start_s: int = 0) -> None:
    """Promote b2, which may have been down before."""
    if exit_s:
        run.event(exit_s * SECOND, "b2", "exit", cause="kill")
        run.event(start_s * SECOND, "b2", "start", role="slave")
    run.event(at_s * SECOND, "b1", "exit", cause="kill")
    run.event(at_s * SECOND, "b2", "promote", former="b1", written=0, epoch=2)
    run.event(at_s * SECOND + 1, "b2", "recovered", end=0)


def promoted_with_first_queue(run: RunMaker) -> None:
    """Remove the messages of all other queues."""
    run.specs = [spec for spec in run.specs if spec.queue_id == 0]
    promoted(run, 3)


@pytest.mark.parametrize(
    ("change", "created", "columns", "expected"),
    [
        (lambda run: None, 4, 2, (1, 0)),
        (lambda run: promoted(run, 3), 4, 2, (0, 1)),
        (lambda run: promoted(run, 3), 4, 1, (1, 0)),  # the log has messages of the second
        (promoted_with_first_queue, 4, 1, (0, 1)),  # which were lost
        (lambda run: promoted(run, 3), 4, 5, (1, 0)),
        (lambda run: promoted(run, 16), 4, 2, (1, 0)),
        (lambda run: promoted(run, 16, 2, 3), 4, 2, (0, 1)),
        (lambda run: promoted(run, 19, 2, 3), 4, 2, (1, 0)),
        (lambda run: promoted(run, 3), 2, 4, (0, 1)),  # a send created it again
        (lambda run: promoted(run, 3), 2, 5, (1, 0)),
        (lambda run: promoted(run, 16), 2, 4, (1, 0)),
    ],
)
def test_topic_has_its_queues_unless_its_master_never_copied_them(
    run: RunMaker, change: Change, created: int, columns: int, expected: tuple[int, int]
) -> None:
    """A topic that was rebuilt from the log alone has as many queues as its messages name."""
    run.record.topics = {TOPIC: created}

    def after(path: Path) -> None:
        for node, count in {"b1": columns, "b2": created, "b3": created}.items():
            row = {"topicName": TOPIC, "readQueueNums": count, "writeQueueNums": count, "perm": 6}
            table = {"topicConfigTable": {TOPIC: row}}
            write_table(path / "stores" / node, "topics.json", table)

    run.after.append(after)
    change(run)
    result = results(run.judge(only=["tables-complete"]))["tables-complete"]
    assert (result.found, result.allowed_found) == expected, result.findings


@pytest.mark.parametrize(("write", "expected"), [(4, (0, 1)), (16, (1, 0)), (1, (1, 0))])
def test_send_makes_a_topic_with_equal_queue_numbers(
    run: RunMaker, write: int, expected: tuple[int, int]
) -> None:
    run.record.topics = {TOPIC: 2}

    def after(path: Path) -> None:
        for node, counts in {"b1": (4, write), "b2": (2, 2), "b3": (2, 2)}.items():
            row = {"readQueueNums": counts[0], "writeQueueNums": counts[1], "perm": 6}
            table = {"topicConfigTable": {TOPIC: {"topicName": TOPIC, **row}}}
            write_table(path / "stores" / node, "topics.json", table)

    run.after.append(after)
    promoted(run, 3)
    result = results(run.judge(only=["tables-complete"]))["tables-complete"]
    assert (result.found, result.allowed_found) == expected, result.findings
