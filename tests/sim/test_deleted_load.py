"""A topic deleted and recreated under load: done everywhere, judged, no findings."""

from pathlib import Path

import pytest

from rocketbed.chaos.evidence.history import FINAL_READER, Function, Outcome, read_history
from rocketbed.chaos.evidence.record import HISTORY_FILE
from rocketbed.chaos.plan.dump import plan_to_toml
from rocketbed.chaos.plan.plan import Consumers, Plan, Producers, Shape
from rocketbed.chaos.plan.step import parse_step
from rocketbed.chaos.plan.toml import read_toml
from rocketbed.chaos.search.runner import run_plan

PLAN = Plan(
    name="deleted",
    seed=1,
    shape=Shape(brokers=2, nameservers=1),
    producers=Producers(count=2, rate=8.0, topics=3, deleted=2, changes=2, queues=2),
    consumers=Consumers(count=3, members=2),
    steps=(parse_step("at 5s kill leader for 500ms"),),
    faults_s=12.0,
    recovery_s=15.0,
)


@pytest.mark.slow
def test_topics_are_deleted_and_changed_under_load(tmp_path: Path) -> None:
    outcome = run_plan(PLAN, directory=tmp_path)
    assert outcome.verdict == "pass", outcome.error or outcome.finding_ids
    history = read_history(tmp_path / HISTORY_FILE)
    events = [event for event in history.events if event.kind.startswith("topic_")]
    deleted = [event for event in events if event.kind == "topic_deleted"]
    assert [event.fields["topic"] for event in deleted] == ["load-2", "load-3"]
    recreated_ns = {
        event.fields["topic"]: event.time_ns for event in events if "again" in event.kind
    }
    assert recreated_ns
    assert outcome.judgement is not None
    assert outcome.judgement.result("deletion-complete").passed
    assert outcome.judgement.result("deleted-message-read").passed
    assert outcome.judgement.result("topic-changes-kept").passed
    causes = {excuse.cause for excuse in outcome.judgement.ledger}
    assert causes >= {"deletion of load-2", "deletion of load-3"}
    read = [row for row in history.columns.rows() if row.function == Function.GOT]
    assert any(row.invoked_ns > recreated_ns.get(history.topic(row), 1 << 62) for row in read)
    # An answer may overtake another one's: what is asked needs the time of the question as well.
    kinds = (Function.READ_OFFSET, Function.BOUNDS, Function.COMMIT_OFFSET)
    queries = [row for row in history.columns.rows() if row.function in kinds]
    queries = [row for row in queries if row.process != FINAL_READER and row.outcome == Outcome.OK]
    assert {row.function for row in queries} == set(kinds)
    assert all(row.invoked_ns < row.returned_ns for row in queries)


def test_its_keys_are_read_back() -> None:
    plan = read_toml(plan_to_toml(PLAN), "deleted.toml").plan(PLAN.seed)
    assert plan.producers == PLAN.producers
