"""A real RocketMQ as the cluster under test: what it must be found to do, and what it does well.

On plain loopback; power cuts need root and loop devices, as everywhere.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from rocketbed.chaos.checks.result import CheckResult, Verdict
from rocketbed.chaos.evidence.history import Event, Function, read_history
from rocketbed.chaos.evidence.record import HISTORY_FILE, Expectation
from rocketbed.chaos.plan.library import load_scenario
from rocketbed.chaos.plan.plan import Plan, Producers, Shape
from rocketbed.chaos.plan.step import parse_step
from rocketbed.chaos.search.runner import Options, Outcome, run_plan
from tests.support.peer.installation import Installation

KILLS = Plan(
    name="kills",
    seed=1,
    shape=Shape(brokers=1, nameservers=1, flush="async", repl="async"),
    producers=Producers(count=2, rate=30),
    steps=(parse_step("at 3s kill leader for 500ms"), parse_step("at 9s kill leader for 500ms")),
    faults_s=12.0,
    recovery_s=18.0,
    expect=Expectation(loss="none"),
)
"""A start may not register before the next period, 10 s: the recovery phase is longer."""
FAILOVER = Plan(
    name="failover",
    seed=1,
    shape=Shape(brokers=3, nameservers=1, flush="async", repl="sync", min_isr=2),
    producers=Producers(count=2, rate=30),
    steps=(parse_step("at 5s kill leader as k"), parse_step("after k+12s restart @k")),
    faults_s=20.0,
    recovery_s=15.0,
    expect=Expectation(loss="none"),
)


@pytest.fixture
def run(installation: Installation, tmp_path: Path) -> Callable[..., Outcome]:
    def run(plan: Plan, mode: Literal["classic", "controller"] = "classic") -> Outcome:
        target = str(installation.lib.parent)
        options = Options(backend="process", net="plain", target=target, mode=mode)
        outcome = run_plan(plan, options, directory=tmp_path / "run")
        assert outcome.judgement is not None, outcome.error
        return outcome

    return run


def check(outcome: Outcome, id_: str) -> CheckResult:
    assert outcome.judgement is not None
    return outcome.judgement.result(id_)


def events(outcome: Outcome, kind: str) -> list[Event]:
    assert outcome.directory is not None
    history = read_history(outcome.directory / HISTORY_FILE)
    return [one for one in history.events if one.function == Function.NODE and one.kind == kind]


@pytest.mark.ci
def test_power_loss_after_a_roll_loses_flushed_messages(
    run: Callable[..., Outcome],
) -> None:
    """T1, RocketMQ's issues 678 and 10073: all is in the log, and queues do not lead to it."""
    outcome = run(load_scenario("power-roll").plan(1, "process", quick=True))
    assert outcome.verdict == "anomaly"
    unseen = check(outcome, "unseen-message")
    assert unseen.verdict is Verdict.VIOLATED
    assert "is in the final log, and the final reader did not get it" in unseen.findings[0]
    assert check(outcome, "lost-write").passed, "the log itself loses nothing that was flushed"
    recovered = [event.fields["clean"] for event in events(outcome, "recovered")]
    assert recovered == [True, False]


def test_kills_take_nothing(run: Callable[..., Outcome]) -> None:
    outcome = run(KILLS)
    assert (outcome.verdict, outcome.finding_ids) == ("pass", [])
    assert len(events(outcome, "recovered")) == 3
    assert outcome.record is not None
    assert outcome.record.stopped_cleanly == ["b1"]
    assert outcome.record.facts["software"] == "rocketmq-5.3.3"
    assert check(outcome, "recovery-idempotent").verdict is Verdict.NOT_APPLICABLE
    assert "rocketmq-5.3.3" in check(outcome, "recovery-idempotent").note


def test_controller_elects_a_complete_replica(run: Callable[..., Outcome]) -> None:
    outcome = run(FAILOVER, "controller")
    assert (outcome.verdict, outcome.finding_ids) == ("pass", [])
    (election,) = events(outcome, "promote")
    assert election.node in ("b2", "b3")
    assert election.fields["former"] == "b1"
    assert election.fields["epoch"] == 2
    assert outcome.record is not None
    assert outcome.record.leaders == {"b": election.node}
    assert outcome.record.ids["b1"] != 0
