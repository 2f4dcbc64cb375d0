"""Load that most runs lack: it happens, it is written down as what it was, and nothing is found."""

from pathlib import Path

import pytest

from rocketbed.chaos.evidence.history import Function, Outcome, read_history
from rocketbed.chaos.evidence.record import HISTORY_FILE
from rocketbed.chaos.plan.dump import plan_to_toml
from rocketbed.chaos.plan.plan import Consumers, Listeners, Plan, Producers, Shape
from rocketbed.chaos.plan.step import parse_step
from rocketbed.chaos.plan.toml import read_toml
from rocketbed.chaos.report.text import summary_text
from rocketbed.chaos.search.runner import run_plan

LARGE = 100_000
PLAN = Plan(
    name="rare",
    seed=4,
    shape=Shape(
        brokers=2,
        nameservers=2,
        min_isr=1,
        flush="sync",
        settings={"rbDispatchRing": "4", "maxMessageSize": str(2 * LARGE)},
    ),
    producers=Producers(
        count=2, rate=10.0, oneway=0.3, burst=30, large=LARGE, late=2, topics=3, stay_s=3.0
    ),
    consumers=Consumers(count=2),
    faults_s=12.0,
    recovery_s=28.0,
    broken="follower:any",
)


@pytest.mark.slow
def test_rare_load_with_a_minority_that_stays_broken(tmp_path: Path) -> None:
    outcome = run_plan(PLAN, directory=tmp_path)
    assert outcome.verdict == "pass", outcome.error or outcome.finding_ids
    assert outcome.record is not None
    assert outcome.record.marks["b1:store.ring_lost"]
    assert outcome.judgement is not None
    assert outcome.judgement.result("half-open-replica-counted").examined
    history = read_history(tmp_path / HISTORY_FILE)
    rows = list(history.columns.rows())
    oneway = {row.outcome for row in rows if row.function == Function.SEND_ONEWAY}
    assert oneway == {Outcome.INFO}
    sends = [row for row in rows if row.function == Function.SEND and row.outcome == Outcome.OK]
    assert {history.topic(row) for row in sends} == {"load-1", "load-2", "load-3"}
    assert max(row.length for row in sends) > LARGE // 10
    assert len({row.process for row in sends}) > PLAN.producers.count


@pytest.mark.parametrize(
    ("failover", "target", "count"),
    [(True, "leader", 1), (False, "b1", 0), (False, "follower:lagging", 0)],
)
def test_permanently_broken_target_is_reported(*, failover: bool, target: str, count: int) -> None:
    """A leader only where another one is elected in its place."""
    shape = Shape(brokers=3, nameservers=2, min_isr=2, flush="sync", failover=failover)
    load = Producers(count=1, rate=10.0)
    plan = Plan(
        name="left",
        seed=1,
        shape=shape,
        producers=load,
        consumers=Consumers(count=1),
        faults_s=1.0,
        recovery_s=12.0,
        broken=target,
    )
    outcome = run_plan(plan)
    assert outcome.verdict == "pass", outcome.error or outcome.finding_ids
    assert outcome.record
    assert outcome.judgement
    assert len(outcome.record.facts["left_broken"]) == count
    assert len(outcome.record.facts["missed"]) == (not count)
    text = summary_text(outcome.judgement, outcome.record)
    assert ("in the recovery phase without power: b" in text) == bool(count)


def test_its_keys_are_read_back() -> None:
    plan = read_toml(plan_to_toml(PLAN), "rare.toml").plan(PLAN.seed)
    assert (plan.producers, plan.broken) == (PLAN.producers, PLAN.broken)


def test_nodes_without_an_index_skip_index_checks() -> None:
    plan = Plan(
        name="no-index",
        seed=1,
        shape=Shape(brokers=2, min_isr=2, flush="sync", settings={"messageIndexEnable": "false"}),
        producers=Producers(count=2, rate=10.0),
        listeners=Listeners(count=2),
        steps=(parse_step("at 4s kill leader for 500ms"),),
        faults_s=8.0,
        recovery_s=31.0,
    )
    outcome = run_plan(plan)
    assert outcome.verdict == "pass", outcome.error or outcome.finding_ids
    assert outcome.judgement is not None
    off = "messageIndexEnable=false: nodes kept no index of keys"
    assert {
        outcome.judgement.result(name).note
        for name in ("query-mismatch", "delayed-duplicate", "index-matches-log", "index-complete")
    } == {off}
    assert outcome.judgement.result("listener-never-called").examined
