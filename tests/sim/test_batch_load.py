"""A topic of batch queues in the load, through kills and a power cut; judged as any other."""

from contextlib import closing
from pathlib import Path

import pytest

from rocketbed.chaos.evidence.history import Function, Outcome, read_history
from rocketbed.chaos.evidence.record import HISTORY_FILE
from rocketbed.chaos.plan.dump import plan_to_toml
from rocketbed.chaos.plan.plan import Consumers, Plan, Producers, Shape
from rocketbed.chaos.plan.step import parse_step
from rocketbed.chaos.plan.toml import read_toml
from rocketbed.chaos.search.runner import run_plan
from rocketbed.inspect import open_directory

PLAN = Plan(
    name="batch-queues",
    seed=1,
    shape=Shape(brokers=2, nameservers=1),
    producers=Producers(count=2, rate=8.0, topics=2, batch_queues=1, batch=0.3, queues=2),
    consumers=Consumers(count=2, rewinds=0.05),
    steps=(
        parse_step("at 3s kill follower:any for 500ms"),
        parse_step("at 5s powercut leader as cut"),
        parse_step("after cut+1s promote follower:longest"),
        parse_step("after cut+2s restart @cut"),
    ),
    faults_s=10.0,
    recovery_s=15.0,
)


@pytest.mark.slow
def test_a_topic_of_batch_queues(tmp_path: Path) -> None:
    outcome = run_plan(PLAN, directory=tmp_path)
    assert outcome.verdict == "pass", outcome.error or outcome.finding_ids
    history = read_history(tmp_path / HISTORY_FILE)
    rows = [row for row in history.columns.rows() if history.topic(row) == "load-1"]
    assert len([row for row in rows if row.function == Function.GOT]) > 50
    assert any(row.outcome == Outcome.OK for row in rows if row.function == Function.SEND)
    assert outcome.record is not None
    for path in outcome.record.stores.values():
        with closing(open_directory(tmp_path / path)) as directory:
            assert {topic for topic, _ in directory.batch_queues} == {"load-1"}
            assert "load-1" not in {topic for topic, _ in directory.queues}


def test_its_keys_are_read_back() -> None:
    plan = read_toml(plan_to_toml(PLAN), "batch.toml").plan(PLAN.seed)
    assert plan.producers == PLAN.producers
