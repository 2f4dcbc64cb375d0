"""Timed effects of a step end with the fault phase, also before their time."""

from pathlib import Path

from rocketbed.chaos.evidence.history import Function, read_history
from rocketbed.chaos.plan.plan import Consumers, Plan, Producers, Shape
from rocketbed.chaos.plan.step import parse_step
from rocketbed.chaos.search.runner import run_plan

LONGER_THAN_THE_FAULT_PHASE = ["at 2s double b2 for 60s", "at 3s clock b3 jump 20s for 60s"]


def test_end_of_the_storm_undoes_lasting_faults(tmp_path: Path) -> None:
    plan = Plan(
        name="lasting",
        seed=3,
        shape=Shape(brokers=3, nameservers=1, repl="async"),
        producers=Producers(count=1, rate=5),
        consumers=Consumers(count=1),
        steps=tuple(map(parse_step, LONGER_THAN_THE_FAULT_PHASE)),
        faults_s=6.0,
        recovery_s=8.0,
    )
    outcome = run_plan(plan, directory=tmp_path)
    assert outcome.verdict == "pass", outcome.error or outcome.finding_ids
    assert outcome.record is not None
    assert outcome.record.stopped_cleanly == ["b2", "b3", "b1"]
    starts = [
        (event.node, event.fields["role"])
        for event in read_history(tmp_path / "history.rbh").events
        if event.function == Function.NODE and event.kind == "start"
    ]
    assert [role for node, role in starts if node == "b2"] == ["SLAVE", "ASYNC_MASTER", "SLAVE"]
