"""Remainders of a deleted topic, and findings that its deletion excuses."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from rocketbed.chaos.checks.deletions import Deletion, Generations
from rocketbed.chaos.checks.result import Verdict
from rocketbed.chaos.evidence.history import Function, Outcome, Row
from tests.support.run_maker import (
    COUNT,
    MS,
    NODES,
    SECOND,
    TOPIC,
    RunMaker,
    violated,
    write_table,
)

Change = Callable[[RunMaker], None]
IDS = [
    "unseen-message",
    "inconsistent-offset",
    "follower-skip",
    "deleted-message-read",
    "dense-queue-offsets",
    "topics-before-messages",
    "deletion-complete",
]
BEGIN_NS, END_NS = 40 * SECOND, 41 * SECOND
LAST = 1 << 40
"""Longer than any log."""


def forget(path: Path) -> None:
    """Every node does what it promised."""
    for node in NODES:
        store = path / "stores" / node
        shutil.rmtree(store / "consumequeue" / TOPIC)
        write_table(store, "topics.json", {"topicConfigTable": {}})


@pytest.fixture
def run(tmp_path: Path) -> RunMaker:
    """The topic is deleted after all sends, and no member reads it at the end."""
    maker = RunMaker(tmp_path / "run")
    maker.record.followers = {"consumer-2": 7}
    maker.event(BEGIN_NS, "", "topic_leaving", topic=TOPIC)
    maker.event(END_NS, "", "topic_deleted", topic=TOPIC, ends={"b": LAST})
    maker.read_values, maker.delivered, maker.committed = [], [], {0: 0, 1: 0}
    maker.after.append(forget)
    return maker


def as_it_should_be(run: RunMaker) -> None:
    pass


def never_deleted(run: RunMaker) -> None:
    run.events = [one for one in run.events if "topic" not in one[3]]


def never_done(run: RunMaker) -> None:
    run.events = [one for one in run.events if one[3] != "topic_deleted"]


def served(run: RunMaker) -> None:
    run.read_values = [3]


def row_left(run: RunMaker) -> None:
    table = {"topicConfigTable": {TOPIC: {"readQueueNums": 16, "perm": 6}}}
    run.after.append(lambda path: write_table(path / "stores" / "b2", "topics.json", table))


def position_left(run: RunMaker) -> None:
    table = {"offsetTable": {f"{TOPIC}@group-1": {"0": 3}}}
    run.after.append(lambda path: write_table(path / "stores" / "b2", "consumerOffset.json", table))


def queue_left(run: RunMaker) -> None:
    def harm(path: Path) -> None:
        forget(path)

    def keep(path: Path) -> None:
        stores = path / "stores"
        shutil.copytree(stores / "b3" / "consumequeue", path / "kept")
        harm(path)
        shutil.copytree(path / "kept", stores / "b3" / "consumequeue", dirs_exist_ok=True)
        shutil.rmtree(path / "kept")

    run.after = [keep]


def queue_left_and_disks_replaced(run: RunMaker, times_s: tuple[int, ...]) -> None:
    """A deletion can pass from one node to the next only while both run."""
    queue_left(run)
    for node, time_s in zip(NODES, times_s, strict=False):
        run.strike(time_s * SECOND, node, "wipe")


def queue_left_of_one_made_again(run: RunMaker) -> None:
    queue_left(run)
    run.event(END_NS, "", "topic_again", topic=TOPIC)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (as_it_should_be, set()),
        (never_deleted, {"unseen-message", "follower-skip"}),
        (never_done, set()),
        (served, {"deleted-message-read"}),
        (row_left, {"deletion-complete"}),
        (position_left, {"deletion-complete"}),
        (queue_left, {"deletion-complete"}),
        (partial(queue_left_and_disks_replaced, times_s=(50, 70, 73)), set()),
        (partial(queue_left_and_disks_replaced, times_s=(50, 70, 81)), {"deletion-complete"}),
        (partial(queue_left_and_disks_replaced, times_s=(70, 73)), {"deletion-complete"}),
        (partial(queue_left_and_disks_replaced, times_s=(39, 70, 73)), {"deletion-complete"}),
        (queue_left_of_one_made_again, {"deletion-complete"}),
    ],
)
def test_remains_of_a_deletion(run: RunMaker, change: Change, expected: set[str]) -> None:
    change(run)
    judgement = run.judge(only=IDS)
    assert violated(judgement) == expected


def test_the_ledger_names_each_message(run: RunMaker) -> None:
    judgement = run.judge(only=IDS)
    (line,) = judgement.result("unseen-message").excused
    assert line.excuse.cause == f"deletion of {TOPIC}"
    assert (line.excuse.begin_ns, line.count, line.values) == (BEGIN_NS, COUNT, tuple(range(COUNT)))


def test_without_a_deletion_the_checks_do_not_apply(tmp_path: Path) -> None:
    judgement = RunMaker(tmp_path / "run").judge(only=["deleted-message-read", "deletion-complete"])
    assert {
        judgement.result(one).verdict for one in ("deleted-message-read", "deletion-complete")
    } == {Verdict.NOT_APPLICABLE}


def test_messages_sent_after_a_deletion_must_exist(run: RunMaker) -> None:
    """Nothing excuses a missing message of the recreated topic."""
    late = run.sends[5]
    late.invoked_ns = END_NS + SECOND
    run.event(END_NS, "", "topic_again", topic=TOPIC)
    judgement = run.judge(only=IDS)
    assert {"unseen-message", "follower-skip"} <= violated(judgement)
    assert [one.value for one in judgement.result("unseen-message").examples] == [late.value]


def test_undatable_send_is_judged_by_its_place() -> None:
    deletion = Deletion("T", BEGIN_NS, END_NS, {"b": 1000})
    generations = Generations({"T": deletion}, ["b"])
    ids = [generations.topic_of("T", 0, value, at) for value, at in ((1, 999), (2, 1000))]
    assert ids == ["T (deleted)", "T"]
    assert generations.is_deleted(1)
    assert not generations.is_deleted(2)
    assert generations.topic_of_row("T", END_NS + MS, 1) == "T (deleted)"
    assert generations.topic_of("U", 0, 1, 5) == "U"


def test_message_read_before_a_deletion_is_the_deleted_topics() -> None:
    """The message was beyond the deletion's offset, in the end of the log that a former master
    lost."""
    deletion = Deletion("T", BEGIN_NS, END_NS, {"b": 1000})
    generations = Generations({"T": deletion}, ["b"])
    row = Row(
        number=0, process=1, function=Function.DELIVER, topic=0, queue=0, value=7, operation=1,
        attempt=0, invoked_ns=BEGIN_NS - 2, returned_ns=BEGIN_NS - 1, outcome=Outcome.OK, status=0,
        queue_offset=26, physical_offset=-1, length=0, epoch=0, node=0, body_crc=0, label_crc=0,
    )  # fmt: skip
    generations.learn("T", row)
    assert generations.topic_of("T", 0, 7, 1001) == "T (deleted)"
    assert generations.topic_of_row("T", BEGIN_NS - 2, 7) == "T (deleted)"
