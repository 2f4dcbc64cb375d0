"""Changes of a topic are in every table at the end, and hold meanwhile."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rocketbed.chaos.checks.result import Verdict
from tests.support.run_maker import NODES, SECOND, TOPIC, RunMaker, violated, write_table

Change = Callable[[RunMaker], None]
READ, WRITE = 4, 2
CHANGED_NS = 60 * SECOND


def table(run: RunMaker, node: str, queues: int, perm: int) -> None:
    row = {"readQueueNums": queues, "writeQueueNums": queues, "perm": perm}
    rows = {"topicConfigTable": {TOPIC: row}}
    run.after.append(lambda path: write_table(path / "stores" / node, "topics.json", rows))


@pytest.fixture
def run(tmp_path: Path) -> RunMaker:
    """The topic gets a fifth queue, and is closed to readers before; these come later (at 90 s)."""
    maker = RunMaker(tmp_path / "run")
    maker.event(50 * SECOND, "", "topic_changed", topic=TOPIC, queues=4, perm=WRITE)
    maker.event(55 * SECOND, "", "topic_widening", topic=TOPIC)
    maker.event(CHANGED_NS, "", "topic_changed", topic=TOPIC, queues=5, perm=READ | WRITE)
    for node in NODES:
        table(maker, node, 5, READ | WRITE)
    return maker


def as_it_should_be(run: RunMaker) -> None:
    pass


def queues_forgotten(run: RunMaker) -> None:
    table(run, "b3", 4, READ | WRITE)


def permission_forgotten(run: RunMaker) -> None:
    table(run, "b2", 5, WRITE)


def closed_while_they_read(run: RunMaker) -> None:
    run.event(89 * SECOND, "", "topic_changed", topic=TOPIC, queues=5, perm=WRITE)
    run.event(91 * SECOND, "", "topic_widening", topic=TOPIC)
    run.event(92 * SECOND, "", "topic_changed", topic=TOPIC, queues=5, perm=READ | WRITE)


def closed_to_senders_while_they_read(run: RunMaker) -> None:
    closed_while_they_read(run)
    run.events = [
        (*one[:4], {**one[4], "perm": READ}) if one[4].get("perm") == WRITE else one
        for one in run.events
    ]


def pause(run: RunMaker, target: str, begin_s: float, end_s: float) -> None:
    begin, end = int(begin_s * SECOND), int(end_s * SECOND)
    run.strike(begin, "", "pause", targets=[target], for_s=end_s - begin_s)
    run.strike(end, "", "heal", targets=[target], step="pause")


def closed_while_a_node_was_paused(run: RunMaker) -> None:
    pause(run, "b3", 88.2, 89.9)
    closed_while_they_read(run)


def closed_while_readers_were_paused(run: RunMaker) -> None:
    pause(run, "consumer-1", 88.2, 89.9)
    closed_while_they_read(run)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (closed_while_a_node_was_paused, {"read-without-permission"}),
        (closed_while_readers_were_paused, set()),
        (as_it_should_be, set()),
        (queues_forgotten, {"topic-changes-kept"}),
        (permission_forgotten, {"topic-changes-kept"}),
        (closed_while_they_read, {"read-without-permission"}),
        (closed_to_senders_while_they_read, set()),
    ],
)
def test_changes(run: RunMaker, change: Change, expected: set[str]) -> None:
    change(run)
    assert violated(run.judge(only=["topic-changes-kept", "read-without-permission"])) == expected


def test_without_changes_the_checks_do_not_apply(tmp_path: Path) -> None:
    judgement = RunMaker(tmp_path / "run").judge(
        only=["topic-changes-kept", "read-without-permission"]
    )
    assert {
        judgement.result(one).verdict for one in ("topic-changes-kept", "read-without-permission")
    } == {Verdict.NOT_APPLICABLE}
